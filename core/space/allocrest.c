/* SPDX-License-Identifier: BSD-3-Clause
 *
 * How are clusters given back that were allocated ahead of time?
 *
 * Part of alloc.c.  After the last writer has finished, the clusters that were allocated
 * ahead of time (the reserve, those for tables, those for compressed clusters) are given
 * back, and the file is truncated behind the last cluster that is in use, or set aside
 * for a change of the whole disk.
 *
 * Locks: the allocator's lock.
 */

#include <config.h>

#include "util/bytes.h"
#include "util/cleanup.h"
#include "space/alloc-impl.h"

int
alloc_give_back (struct alloc *a)
{
  {
    LOCK_FOR_BLOCK (&a->lock);

    if (alloc_give_back_reserve (a) == -1)
      return -1;
    alloc_bytes_give_back (a);
  }
  return alloc_reap (a);
}

static uint64_t
list_end (const struct list *l)
{
  uint64_t end = 0;

  for (const struct alloc_frees *i = l->head; i; i = i->next)
    end = max64 (end, i->first + i->n);
  return end;
}

/* The cluster after the last one that a reader may still use, or that is set aside. */
static uint64_t
waiting_end (const struct alloc *a)
{
  return max64 (a->crowd.end, max64 (list_end (&a->waiting), list_end (&a->aside)));
}

void
alloc_need_only (struct alloc *a, uint64_t bytes)
{
  LOCK_FOR_BLOCK (&a->lock);

  a->open_size = min64 (a->open_size, bytes);
}

int
alloc_trim_file (struct alloc *a)
{
  uint64_t end, size;
  LOCK_FOR_BLOCK (&a->lock);

  if (!a->regular || a->reaping > 0 || a->bump < a->bump_end ||
      a->tables.clusters > 0 || a->pack.end - a->pack.at >= UINT64_C (1) << a->bits)
    return 0;
  if (refcount_end (a->refcounts, &end) == -1)
    return -1;
  end = max64 (end, waiting_end (a));
  size = max64 (a->open_size, end << a->bits);
  if (size >= storage_size (a->file))
    return 0;
  if (storage_truncate (a->file, size) == -1)
    return -1;

  /* Clusters behind the new end belong to a later reserve only: idle clusters must be
   * within the file.  (None of their runs extends beyond the reserve, so none is split,
   * and this cannot fail.) */
  end = div_up (size, UINT64_C (1) << a->bits);
  if (end >= a->bump)
    return 0;
  freeset_remove (&a->zeroed, end, a->bump - end);
  freeset_remove (&a->stale, end, a->bump - end);
  alloc_idle_cut (a, end);

  a->bump = a->bump_end = end;
  a->settled_end = min64 (a->settled_end, end);
  a->top_mark = min64 (a->top_mark, end);       /* a reader's flush may be in progress */
  return 0;
}
