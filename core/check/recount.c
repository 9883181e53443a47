/* SPDX-License-Identifier: BSD-3-Clause
 *
 * How many references does each host cluster have?
 *
 * The correct refcounts are computed by walking everything that points to host clusters
 * (walk.c), one window of clusters after the other.
 *
 * The refcount table and blocks count as no references if they are about to be replaced.
 * They must not overlap anything else.  Refcount table entries that point to
 * no valid block are ignored.
 *
 * A cluster that has two uses is a fault (R5), as is a reference that is not aligned or
 * that points beyond the end of the file.  A fault ends the recount; the caller decides
 * what to do about it.  If there are several faults, the one found first is kept.
 *
 * Locks: `lock' guards the fault, because several threads may find one.
 */

#include <config.h>

#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "util/bytes.h"
#include "util/cleanup.h"
#include "util/report.h"
#include "check/recount.h"

struct recount {
  struct walk *walk;
  uint64_t end;
  uint32_t refcounts;           /* references that each cluster of refcounts has */
  bool taken;                   /* all of the current window was counted */

  pthread_mutex_t lock;
  char fault[200];              /* guarded by lock while threads walk */
};

struct recount *
recount_new (struct storage *file, const struct header *h, uint32_t refcounts)
{
  struct recount *c = calloc (1, sizeof *c);

  if (c == NULL) {
    report_error ("%s: counting references: %m", storage_path (file));
    return NULL;
  }
  c->refcounts = refcounts;
  pthread_mutex_init (&c->lock, NULL);
  c->walk = walk_new (file, h);
  if (c->walk)
    return c;
  recount_free (c);
  return NULL;
}

void
recount_free (struct recount *c)
{
  if (c == NULL)
    return;
  walk_free (c->walk);
  pthread_mutex_destroy (&c->lock);
  free (c);
}

void
recount_follow (struct recount *c, struct pace *pace)
{
  pace_expect (pace, walk_bytes (c->walk));
  walk_follow (c->walk, pace);
}

void
recount_replace_snapshots (struct recount *c)
{
  walk_replace_snapshots (c->walk);
}

uint64_t
recount_get (const struct recount *c, uint64_t cluster)
{
  bool shared;

  return refwindow_count (walk_window (c->walk), cluster, &shared);
}

uint64_t
recount_next (const struct recount *c)
{
  return walk_window (c->walk)->next;
}

uint64_t
recount_end (const struct recount *c)
{
  return c->end;
}

const char *
recount_fault (const struct recount *c)
{
  return c->fault[0] ? c->fault : NULL;
}

const struct walk *
recount_walk (const struct recount *c)
{
  return c->walk;
}

/* --- the visitor of the walk --- */

static int
fault (void *opaque, enum finding_kind kind, uint64_t times, uint64_t offset,
       const char *fmt, ...)
{
  struct recount *c = opaque;
  LOCK_FOR_BLOCK (&c->lock);

  (void) kind, (void) times, (void) offset;
  if (c->fault[0] == 0) {
    va_list args;

    va_start (args, fmt);
    vsnprintf (c->fault, sizeof c->fault, fmt, args);
    va_end (args);
  }
  errno = EUCLEAN;
  return -1;
}

/* Every reference that can be followed is counted. */
static int
follow (void *opaque, enum finding_kind kind, uint64_t times, uint64_t offset,
        const char *fmt, ...)
{
  (void) opaque, (void) kind, (void) times, (void) offset, (void) fmt;
  return 1;
}

static const struct walk_visitor visitor = { .fault = fault, .doubt = follow };

int
recount_window (struct recount *c, uint64_t first)
{
  if (c->taken && first == walk_window (c->walk)->first)
    return 0;
  c->taken = false;
  if (walk_begin (c->walk, first, &visitor, c) == -1 ||
      walk_references (c->walk, c->refcounts) == -1)
    return -1;
  c->taken = true;
  c->end = max64 (c->end, refwindow_end (walk_window (c->walk)));
  return 0;
}
