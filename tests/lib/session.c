/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What does a session of a client promise if something fails in it?
 *
 * The session opens an image on a simulated disk, makes requests (lib/attempt), leaves
 * and closes it.  An operation on the file fails, or some, or allocations do.
 *
 *   ENOSPC, ENOMEM   what met it fails with that, and succeeds as soon as nothing is
 *                    missing; in the end nothing is leaked
 *   EIO of a read    what needed it fails with that, and reads succeed the next time
 *   other EIO        whatever changes the disk may fail from then on, with EIO
 *   a failed sync    it does fail; and so does leaving, as nobody can say what is durable
 *                    (R9)
 *   always           a call fails only if something has failed, and says why; reads show
 *                    the right data, and fail for nothing that they do not need; no
 *                    descriptor is left open; a power cut leaves a file that is as
 *                    crash/requests says, and who opens it again can write it
 */

#include <config.h>

#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <unistd.h>

#include "lib/reach.h"
#include "lib/session.h"
#include "lib/shortage.h"
#include "lib/survivor.h"
#include "lib/trials.h"

#define SYNC (1u << STORAGE_OP_SYNC)
#define READS (1u << STORAGE_OP_READ)

const struct accident accidents[ACCIDENTS] = {
  { "growth", GROWING, 1, ENOSPC, .ends = true },
  { "no space", GROWING, UINT64_MAX, ENOSPC, .ends = true },
  { "begin", SYNC, 2, ENOMEM, .ends = false },
  { "change", CHANGING, 1, EIO, .ends = false },
  { "sync", SYNC, 1, EIO, .ends = false },
  { "read", READS, 1, EIO, .ends = false },
  { "memory", 0, 1, ENOMEM, .ends = true },
  { "no memory", 0, UINT64_MAX, ENOMEM, .ends = false },
  { "full", 0, 0, ENOSPC, .full = true, .ends = true },
  { "little memory", 0, 0, ENOMEM, .ends = true, .one_in = 30 },
  { "less memory", 0, 0, ENOMEM, .ends = true, .one_in = 100 },
};

unsigned session_failed_calls;

static bool
is_of_memory (const struct accident *a)
{
  return a->ops == 0 && !a->full;
}

bool
accident_concerns (const struct accident *a, const struct attempt_image *t)
{
  if (t->dirty)
    return a->ends && is_of_memory (a);
  return !(reach_server () && a->ops == SYNC && a->err == ENOMEM);
}

/* --- what fails --- */

static void
begin_accident (struct session *s)
{
  const struct accident *a = s->accident;
  const struct fault fault = {
    .ops = a->ops, .after = s->k, .times = a->times, .err = a->err, .partial = s->k % 2,
  };

  if (a->full)
    simdisk_limit (s->attempt.sim, simdisk_size (s->attempt.sim) + s->k * 1024);
  else if (a->ops)
    simdisk_fault (s->attempt.sim, &fault);
  else {
    if (a->one_in)
      shortage_begin_scarcity (a->one_in, s->k);
    else
      shortage_begin ((struct shortage) { s->k, a->times });
    s->under_way = true;
  }
}

static bool
was_met (struct session *s)
{
  s->met |= simdisk_failures (s->attempt.sim) > 0 ||
    (s->under_way && shortage_failures () > 0);
  return s->met;
}

static void
end_accident (struct session *s)
{
  was_met (s);
  simdisk_fault (s->attempt.sim, NULL);
  simdisk_limit (s->attempt.sim, UINT64_MAX);
  if (s->under_way)
    shortage_end ();
  s->under_way = false;
}

/* Is everything as if nothing had failed, once it has succeeded the next time? */
static bool
passes (const struct session *s)
{
  return s->accident->ends || s->accident->times == 2;
}

/* A call returned this errno, or 0.  Returns whether it succeeded. */
static bool
succeeds (struct session *s, int err, const char *what)
{
  const struct accident *a = s->accident;

  if (err == 0)
    return true;
  if (err != a->err)
    FAIL ("%s fails with %s, not %s (%s)", what, strerror (err), strerror (a->err),
          last_error ());
  if (!was_met (s))
    FAIL ("%s fails without a reason: %s", what, last_error ());
  if (s->failed_calls == 0 && last_error ()[0] == '\0')
    FAIL ("%s fails, and does not say why", what);
  if (++s->failed_calls > a->times && passes (s) && !a->one_in && !a->full)
    FAIL ("%s fails, though nothing is missing any more: %s", what, last_error ());
  session_failed_calls++;
  clear_last_error ();
  if (a->ends)
    end_accident (s);
  return false;
}

/* One of the calls, again and again while there is hope. */
static bool
does (struct session *s, int (*call) (struct attempt *), const char *what)
{
  do
    if (succeeds (s, call (&s->attempt), what))
      return true;
  while (passes (s) || s->failed_calls == 1);
  return false;
}

/* --- requests --- */

static void
judge_random (struct attempt *r, const char *when)
{
  attempt_judge (r, simdisk_random_cut (&r->cut_rng), true, when);
}

/* May a change still be accepted after a failed sync?  If that belonged to a durable
 * write, the next sync is the first to find out, and must fail. */
static bool
may_go_on (const struct attempt_request *q)
{
  return q->kind >= READ || (!reach_writes_durably () && q->kind != FLUSH && !q->fua);
}

/* May this request fail?  SINCE: operations had failed before it. */
static bool
may_fail (struct session *s, const struct attempt_request *q, uint64_t since)
{
  return q->kind < READ || is_of_memory (s->accident) ||
    (s->accident->ops == READS && simdisk_failures (s->attempt.sim) > since);
}

static bool
step (struct attempt *r, const struct attempt_request *q, unsigned char *buf)
{
  struct session *s = (struct session *) r;
  const uint64_t since = simdisk_failures (r->sim);
  char what[40];
  int err = attempt_execute (r, q, buf);

  snprintf (what, sizeof what, "request of kind %d", q->kind);
  if (s->accident->err == EIO && s->accident->ops == SYNC && err == 0 &&
      since > s->before_work && !may_go_on (q))
    FAIL ("%s succeeds after a failed sync", what);
  if (succeeds (s, err, what))
    return true;
  if (!may_fail (s, q, since))
    FAIL ("a read fails, though nothing that it needs does");
  if (s->failed_calls == 1 || (!r->image->shaped && rng_below (&r->cut_rng, 10) == 0))
    judge_random (r, "after a failure");
  do {
    err = attempt_execute (r, q, buf);
    if (err != 0 && !may_fail (s, q, UINT64_MAX))
      FAIL ("a read fails again");
  } while (!succeeds (s, err, what) && passes (s));
  if (s->accident->one_in && !s->under_way) {
    s->k += 1000;
    begin_accident (s);
  }
  return true;
}

/* --- one session --- */

/* Returns whether all is durable. */
static bool
leaves (struct session *s)
{
  bool left = succeeds (s, attempt_leave (&s->attempt), "leaving");

  if (s->accident->ops == SYNC && s->accident->err == EIO && left &&
      simdisk_failures (s->attempt.sim) > s->before_work)
    FAIL ("leaving after a failed sync says that all is well");
  /* The last chance is when somebody comes again. */
  while (!left && passes (s))
    left = succeeds (s, attempt_come (&s->attempt), "connecting again") &&
      succeeds (s, attempt_leave (&s->attempt), "leaving again");
  return left && (s->accident->err != EIO || !was_met (s));
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
judge_end (struct session *s)
{
  struct attempt *r = &s->attempt;

  attempt_judge (r, CUT_ALL, !s->rests, "in the end");
  if (!r->image->shaped)
    attempt_judge (r, CUT_NOTHING, true, "in the end");
  judge_random (r, "in the end");
  if (s->rests && r->image->spec.version == 3 &&
      blob_get (simdisk_cut (r->sim, &r->cut_rng, CUT_ALL), ATTEMPT_AUTOCLEAR_AT, 8) &
      ATTEMPT_AUTOCLEAR_UNKNOWN)
    FAIL ("an autoclear bit that nobody knows is kept");
  if (r->image->spec.data_file == NULL &&
      rng_below (&r->cut_rng, r->image->shaped ? 8 : 2) == 0)
    open_again (r, s->rests);
}

void
session_run (struct session *s, const struct attempt_image *t, const struct accident *a,
             uint64_t k)
{
  const unsigned descriptors = reach_open_descriptors ();
  struct attempt *r = &s->attempt;
  bool opened, came = false;

  *s = (struct session) { .accident = a, .k = k };
  attempt_prepare (r, t, a->name, k);
  simdisk_hurry (r->sim);
  clear_last_error ();
  begin_accident (s);
  opened = does (s, attempt_open, "opening");
  if (!opened && (passes (s) || a->err == EIO))
    FAIL ("opening fails again: %s", last_error ());
  if (opened)
    came = does (s, attempt_come, "connecting");
  while (came) {
    s->before_work = simdisk_failures (r->sim);
    attempt_work (r, step);
    s->rests = leaves (s);
    came = s->rests && !t->shaped && rng_below (&r->cut_rng, 3) == 0 &&
      does (s, attempt_come, "connecting again");
  }
  if (opened) {
    if (a->ops != READS || was_met (s))
      attempt_read_all (r, "before the end");
    s->rests &= succeeds (s, attempt_close (r), "closing");
  }
  end_accident (s);
  CHECK (reach_open_descriptors () == descriptors);
  judge_end (s);
}

void
session_end (struct session *s)
{
  attempt_end (&s->attempt);
}
