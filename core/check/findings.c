/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Which faults does an image have, kept in limited memory?
 *
 * A hostile or damaged image may have millions of faults.  All are counted, by kind.  The
 * descriptions of the first LIMIT are kept.  Leaks get at most half of these places, so
 * that they cannot displace corruptions.  Several threads look for faults at the same
 * time, so if there are more than LIMIT, which ones are kept is not deterministic.  The
 * list is sorted.
 *
 * Locks: `lock' guards the list; the counts are atomic.
 */

#include <config.h>

#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

#include "util/cleanup.h"
#include "util/memory.h"
#include "util/report.h"
#include "check/findings.h"

struct findings {
  _Atomic uint64_t counts[FINDING_KINDS];
  _Atomic uint64_t omitted;

  pthread_mutex_t lock;
  size_t limit, n, leaks;       /* guarded by lock; leaks <= n <= limit */
  size_t room;                  /* allocated entries of list; guarded by lock */
  struct finding *list;         /* guarded by lock */
};

struct findings *
findings_new (size_t limit)
{
  struct findings *f = memory_new (1, sizeof *f);

  if (f == NULL)
    return NULL;
  f->limit = limit;
  pthread_mutex_init (&f->lock, NULL);
  return f;
}

void
findings_free (struct findings *f)
{
  if (f == NULL)
    return;
  pthread_mutex_destroy (&f->lock);
  free (f->list);
  free (f);
}

/* Returns a new entry of the list; NULL if there is no space for it. */
static struct finding *
new_place (struct findings *f, enum finding_kind kind)
{
  struct finding *list;
  size_t room;

  if (f->n == f->limit || (kind == FINDING_LEAK && f->leaks >= f->limit / 2))
    return NULL;
  if (f->n == f->room) {
    room = f->room ? 2 * f->room : 16;
    list = realloc (f->list, room * sizeof *list);
    if (list == NULL)
      return NULL;              /* the finding is counted anyway */
    f->list = list;
    f->room = room;
  }
  f->leaks += kind == FINDING_LEAK;
  return &f->list[f->n++];
}

void
findings_vadd (struct findings *f, enum finding_kind kind, uint64_t times,
               uint64_t offset, const char *fmt, va_list args)
{
  struct finding *place;
  LOCK_FOR_BLOCK (&f->lock);

  atomic_fetch_add (&f->counts[kind], times);
  place = new_place (f, kind);
  if (place == NULL) {
    atomic_fetch_add (&f->omitted, times);
    return;
  }
  place->kind = kind;
  place->offset = offset;
  place->times = times;
  vsnprintf (place->text, sizeof place->text, fmt, args);
}

void
findings_add (struct findings *f, enum finding_kind kind, uint64_t times,
              uint64_t offset, const char *fmt, ...)
{
  va_list args;

  va_start (args, fmt);
  findings_vadd (f, kind, times, offset, fmt, args);
  va_end (args);
}

uint64_t
findings_count (const struct findings *f, enum finding_kind kind)
{
  return atomic_load (&f->counts[kind]);
}

uint64_t
findings_corruptions (const struct findings *f)
{
  uint64_t total = 0;
  enum finding_kind kind;

  for (kind = FINDING_REFCOUNT; kind < FINDING_KINDS; kind++)
    total += findings_count (f, kind);
  return total;
}

uint64_t
findings_omitted (const struct findings *f)
{
  return atomic_load (&f->omitted);
}

static int
compare (const void *a, const void *b)
{
  const struct finding *x = a, *y = b;

  if ((x->kind == FINDING_LEAK) != (y->kind == FINDING_LEAK))
    return x->kind == FINDING_LEAK ? 1 : -1;
  if (x->offset != y->offset)
    return x->offset < y->offset ? -1 : 1;
  return (int) x->kind - (int) y->kind;
}

const struct finding *
findings_list (struct findings *f, size_t *n)
{
  if (f->n > 0)
    qsort (f->list, f->n, sizeof *f->list, compare);
  *n = f->n;
  return f->list;
}

const char *
finding_name (enum finding_kind kind)
{
  switch (kind) {
  case FINDING_LEAK: return "leak";
  case FINDING_WORK: return "too-much-work";
  case FINDING_MISSING: return "missing-file";
  case FINDING_REFCOUNT: return "refcount-too-low";
  case FINDING_COPIED: return "copied-flag";
  case FINDING_REFTABLE: return "refcount-table";
  case FINDING_OVERLAP: return "overlap";
  case FINDING_ALIGNMENT: return "alignment";
  case FINDING_BEYOND: return "beyond-end-of-file";
  case FINDING_RESERVED: return "reserved-bits";
  case FINDING_ENTRY: return "table-entry";
  case FINDING_SUBCLUSTERS: return "subclusters";
  case FINDING_SNAPSHOT: return "snapshot";
  case FINDING_ENTRIES: return "snapshot-table";
  case FINDING_BITMAP: return "bitmap";
  case FINDING_ENCRYPTION: return "encryption-header";
  case FINDING_COMPRESSED: return "compressed-data";
  case FINDING_UNREADABLE: return "unreadable";
  case FINDING_HEADER: return "header";
  case FINDING_CHAIN: return "backing-chain";
  case FINDING_KINDS: break;
  }
  abort ();
}
