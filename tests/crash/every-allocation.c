/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Does a session survive any allocation that fails?
 *
 * Memory runs out at the first allocation of a session, then, in the same session from
 * the beginning, at the second, and so on: for one allocation alone, or for all from then
 * until the end of the session.  Allocations of the libraries count, too (lib/shortage).
 *
 * The session opens an image on a simulated disk, makes requests of all kinds, leaves and
 * closes it.
 *
 * What fails, fails with ENOMEM.  If one allocation failed, at most one call did, and the
 * same call succeeds the next time.  Reads return the right data.  At the end no
 * descriptor is left open (nor, with AddressSanitizer, memory allocated).  After a power
 * cut then, the image is what crash/requests allows; who opens it again can write it, and
 * leaves no leaks.
 *
 * Environment: SEED repeats a run; ITERATIONS: how many images, each with all accidents
 * (default: what is possible in SECONDS, 7); FIRST: start with this one; ALLOCATIONS=all:
 * see lib/shortage.h.
 */

#include <config.h>

#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <unistd.h>

#include "util/bytes.h"
#include "disk/export.h"
#include "lib/allocations.h"
#include "lib/attempt.h"
#include "lib/reach.h"
#include "lib/survivor.h"
#include "lib/trials.h"

/* Accidents for each image, even if there is no time. */
#define LEAST 10

static unsigned nr_sessions, nr_failed_calls;

/* --- one session --- */

/* What memory a session meets, and what came of it. */
struct session {
  struct shortage shortage;
  unsigned failed_calls;
  unsigned descriptors;         /* that were open before */
};

static void
begin (struct session *s, struct shortage shortage)
{
  *s = (struct session) {
    .shortage = shortage, .descriptors = reach_open_descriptors (),
  };
  shortage_begin (shortage);
}

/* A call returned this errno, or 0.  Returns whether it succeeded. */
static bool
succeeds (struct session *s, int err, const char *what)
{
  if (err == 0)
    return true;
  if (err != ENOMEM)
    FAIL ("%s fails with %s, not for lack of memory (%s)", what, strerror (err),
          last_error ());
  if (shortage_failures () == 0)
    FAIL ("%s fails without a reason: %s", what, last_error ());
  s->failed_calls++;
  nr_failed_calls++;
  if (s->failed_calls > s->shortage.times)
    FAIL ("%s fails for lack of memory, of which there is enough again", what);
  return false;
}

static void
end (const struct session *s)
{
  shortage_end ();
  CHECK (reach_open_descriptors () == s->descriptors);
  nr_sessions++;
}

/* --- what it does --- */

struct writer {
  struct attempt attempt;       /* (first: steps get a pointer to it) */
  struct session session;
};

static bool
step (struct attempt *r, const struct attempt_request *q, unsigned char *buf)
{
  struct session *s = &((struct writer *) r)->session;
  char what[40];

  snprintf (what, sizeof what, "request of kind %d", q->kind);
  if (!succeeds (s, attempt_execute (r, q, buf), what) && s->shortage.times == 1)
    succeeds (s, attempt_execute (r, q, buf), what);
  return true;
}

static bool
opens (struct writer *w)
{
  return succeeds (&w->session, attempt_open (&w->attempt), "opening");
}

static bool
comes (struct writer *w)
{
  return succeeds (&w->session, attempt_come (&w->attempt), "connecting") ||
    succeeds (&w->session, attempt_come (&w->attempt), "connecting again");
}

/* Somebody finds what was left on the disk.  RESTS: all that the session did. */
static void
open_again (struct attempt *r, bool rests)
{
  const struct attempt_image *t = r->image;
  struct disk_options options = t->options;
  struct export *client;
  struct disk *disk;
  struct blob b;

  blob_save (SURVIVOR, simdisk_cut (r->sim, &r->cut_rng, CUT_ALL));
  options.path = images_path (SURVIVOR);
  options.hooks = &without_sync;
  if (reach_open (&options, &disk) == -1 ||
      (client = export_open (disk, "", true)) == NULL || !export_is_writable (client))
    FAIL ("the image cannot be written again: %s", last_error ());
  if (export_read (client, r->contents, t->spec.size, 0) == -1 ||
      !ledger_allows (r->ledger, 0, t->spec.size / 512, r->contents, !rests))
    FAIL ("opened again: wrong contents");
  if (export_close (client) == -1 || disk_close (disk) == -1)
    FAIL ("opened again: closing: %m");
  blob_load (SURVIVOR, &b);
  unlink (SURVIVOR);
  survivor_check (&b, t->spec.version == 2, "opened again");
  blob_free (&b);
  free ((char *) options.path);
}

static void
run_session (const struct attempt_image *image, struct shortage shortage)
{
  struct writer w;
  bool rests = true;

  attempt_prepare (&w.attempt, image, shortage.times == 1 ? "once" : "for good",
                   shortage.after);
  simdisk_hurry (w.attempt.sim);
  begin (&w.session, shortage);
  if (opens (&w)) {
    if (comes (&w)) {
      attempt_work (&w.attempt, step);
      rests = succeeds (&w.session, attempt_leave (&w.attempt), "leaving");
    }
    rests &= succeeds (&w.session, attempt_close (&w.attempt), "closing");
  }
  else if (opens (&w))
    attempt_close (&w.attempt);
  end (&w.session);
  attempt_judge (&w.attempt, CUT_ALL, !rests, "in the end");
  attempt_judge_some (&w.attempt, "in the end");
  if (image->spec.data_file == NULL)
    open_again (&w.attempt, rests);
  attempt_end (&w.attempt);
}

/* --- images --- */

static void
fail_each (const struct attempt_image *t, struct rng *rng)
{
  uint64_t *which;
  size_t n;

  run_session (t, SHORTAGE_NONE);
  which = shortage_choose (rng, SIZE_MAX, &n);
  for (size_t i = 0; i < n && (i < LEAST || trials_time_left ()); i++) {
    run_session (t, (struct shortage) { which[i], 1 });
    run_session (t, (struct shortage) { which[i], UINT64_MAX });
  }
  free (which);
}

static void
one_image (struct rng *rng)
{
  struct attempt_image t;

  quiet_errors = true;          /* they are what we want */
  attempt_make_image (&t, rng);
  fail_each (&t, rng);
  attempt_free_image (&t);
}

int
main (void)
{
  unsigned done;

  shortage_spare (true);
  done = trials_run ("every-allocation", 7, 1, one_image);
  printf ("%u images, %u sessions, %" PRIu64 " allocations failed, %u calls failed, "
          "%u power cuts\n", done, nr_sessions, shortage_all_failures (), nr_failed_calls,
          attempt_counts.cuts);
  return 0;
}
