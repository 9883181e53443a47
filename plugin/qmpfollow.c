/* SPDX-License-Identifier: BSD-3-Clause
 *
 * How does a job copy a disk that clients write (follow.c), and when is it ready?
 *
 * It copies piece by piece, and obeys orders between them.  When little is left it is
 * ready, and looks from time to time for what has changed.  When it is to complete, it
 * makes the copy durable first, so that the last step is short.  If clients write faster
 * than it copies, the job does not end, as in QEMU, until they write less or it is
 * cancelled.  What fails is dealt with as on-error says, also behind the gate, which
 * opens then.
 *
 * Locks: see qmpjobs.c.
 */

#include <config.h>

#include <errno.h>

#include "util/report.h"
#include "plugin/qmpfollow.h"

/* Bytes of data between two looks at orders. */
#define STEP (UINT64_C (1) << 20)
/* How often a job that is ready looks for changes. */
#define FOLLOW_MS 20
/* A piece that failed, and is to be ignored, is tried again after that. */
#define RETRY_MS 100

/* A piece failed.  -1: so does the job, or it was cancelled. */
static int
go_on (struct job *j, const struct follow *f)
{
  switch (job_fails (j, !follow_target_failed (f), errno)) {
  case JOB_FAIL: return -1;
  case JOB_SKIP: job_sleep (j, RETRY_MS); return 0;
  default: return 0;
  }
}

/* Tells how far it is, after a step that copied so much.  -1: the job was cancelled. */
static int
tell (struct job *j, struct follow *f, uint64_t copied)
{
  uint64_t done, left;

  follow_progress (f, &done, &left);
  return job_step (j, done, done + left, copied);
}

int
qmpfollow_run (struct job *j, struct follow *f)
{
  bool ready = false, ends;
  uint64_t copied;
  int r;

  for (;;) {
    r = follow_step (f, STEP, &copied);
    ends = r == 0 && ready && job_completes (j);
    if (ends)
      r = follow_near (f);
    if ((r == -1 && go_on (j, f) == -1) || tell (j, f, copied) == -1)
      return -1;
    if (ends && r == 0)
      return 0;
    if (r == 0 && !ready) {
      job_ready (j);
      ready = true;
    }
    if (r == 0)
      job_sleep (j, FOLLOW_MS);
  }
}

int
qmpfollow_catch_up (struct job *j, struct follow *f)
{
  uint64_t copied;
  int r;

  for (;;) {
    report_watch ();
    r = follow_step (f, STEP, &copied);
    if (r == 0)
      r = follow_near (f);
    if (r == 0)
      r = follow_close (f);
    r = job_told (j, r);
    if (r == 0)
      return 0;
    if ((r == -1 && go_on (j, f) == -1) || tell (j, f, copied) == -1)
      return -1;
  }
}
