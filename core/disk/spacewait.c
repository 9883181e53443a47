/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What happens to a request for which there is no space?
 *
 * With on-enospc=wait it is tried again, with growing pauses, until there is space or
 * no client waits for it any more: then it fails with ENOSPC, as it would have done at
 * once.  Making the same attempt again is the one test that is right for every cause: a
 * full device, file system or quota, and space that only another request can use.
 *
 * So does a request while the disk is changed as a whole, whatever on-enospc= says: the
 * change may have set aside what the request needs (alloc_set_aside), until it is made.
 *
 * A failed attempt has restored the earlier state (R6), or is a part of the request that
 * need not be done again.  Between attempts a request holds nothing, so all others go on
 * that need no space, and those that free some.
 *
 * Requests wait together, so the log has two lines for all of them: when the first one
 * begins to wait, and when none waits any more.
 *
 * Locks: `lock', which is never held while anything else is done.
 */

#include <config.h>

#include <errno.h>
#include <inttypes.h>
#include <time.h>

#include "util/bytes.h"
#include "util/cleanup.h"
#include "util/clock.h"
#include "util/report.h"
#include "disk/spacewait.h"

#define FIRST_PAUSE_MS 5
#define LONGEST_PAUSE_MS 250

static void
begin_pause (struct spacewait *s)
{
  bool first;

  {
    LOCK_FOR_BLOCK (&s->lock);
    first = s->stats.waiting++ == 0;
    s->stats.requests++;
    if (first) {
      s->stats.pauses++;
      s->since = clock_ms ();
    }
  }
  if (!first)
    return;
  report_event (EVENT_NO_SPACE, s->path,
                "no space is left: requests wait until there is some");
  if (s->news)
    s->news ();
}

/* A request waits no more.  FULL: there is still no space. */
static void
end_pause (struct spacewait *s, bool full)
{
  int64_t ms = -1;

  {
    LOCK_FOR_BLOCK (&s->lock);
    if (--s->stats.waiting == 0) {
      ms = clock_ms () - s->since;
      s->stats.ms += ms;
    }
  }
  if (ms == -1)
    return;
  report_event (full ? EVENT_NO_SPACE : EVENT_SPACE, s->path,
                "requests waited for space for %" PRId64 ".%03" PRId64
                " seconds, and there is %s", ms / 1000, ms % 1000,
                full ? "still none" : "some again");
  if (s->news)
    s->news ();
}

/* Returns false if no client waits for the request any more. */
static bool
wait_a_moment (struct spacewait *s, struct spacewait_request *q)
{
  struct timespec pause;

  if (q->pause_ms == 0) {
    begin_pause (s);
    q->pause_ms = FIRST_PAUSE_MS;
  }
  if (s->client_waits && !s->client_waits ())
    return false;
  pause = (struct timespec) { .tv_nsec = q->pause_ms * 1000000 };
  nanosleep (&pause, NULL);
  q->pause_ms = min64 (2 * q->pause_ms, LONGEST_PAUSE_MS);
  return true;
}

void
spacewait_begin (struct spacewait *s, struct spacewait_request *q)
{
  q->changes = s->changes;
  q->keeps = s->enabled || q->changes % 2 == 1 || q->pause_ms > 0;
  if (q->keeps)
    report_keep ();
}

bool
spacewait_again (struct spacewait *s, struct spacewait_request *q, int r)
{
  const bool full = r == -1 && errno == ENOSPC;
  /* (If a change was made meanwhile, there may be space now.) */
  const bool may_wait = s->enabled || q->changes % 2 == 1 || q->changes != s->changes;
  bool again;

  if (!q->keeps && !(full && may_wait))
    return false;
  KEEP_ERRNO_FOR_BLOCK;
  again = full && may_wait && wait_a_moment (s, q);
  if (q->keeps)
    report_end_keeping (!again);
  if (!again && q->pause_ms > 0)
    end_pause (s, full);
  return again;
}

void
spacewait_get_stats (struct spacewait *s, struct spacewait_stats *stats)
{
  LOCK_FOR_BLOCK (&s->lock);

  *stats = s->stats;
  if (stats->waiting > 0)
    stats->ms += clock_ms () - s->since;
}
