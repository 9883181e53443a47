/* SPDX-License-Identifier: BSD-3-Clause
 *
 * When may freed clusters be used again?
 *
 * See the life of a cluster in alloc.h.  Freed runs are pending (in memory no entry points
 * to them), taken by a checkpoint, waiting (for requests that began before), and being
 * reaped: the thread that punches them, without a lock, has taken them out of the list, so
 * no other thread sees them.  From waiting on, the set `held' hides them from the scan.
 *
 * Only alloc_free_begin depends on memory: from then on, each run has its list item.  If
 * only parts of a run become free, it may need more items.  Clusters for which there is
 * no item join the crowd: clusters that wait together, in no list and no set, until the
 * grace period of the youngest has passed; the scan must not run until then.
 * Runs that would make the list too long join the crowd, too, because a long request
 * holds back everything that other requests free.  The crowd is not punched: the scan
 * finds its clusters as they are.
 *
 * Locks: the allocator's lock.
 */

#include <config.h>

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "util/bytes.h"
#include "util/cleanup.h"
#include "util/memory.h"
#include "space/alloc-impl.h"

/* A crash leaks clusters whose pointers are gone from the file while their counts are not
 * yet lower there: those that the last checkpoint released, those that were freed while it
 * collected what it writes, and during a checkpoint those that it has taken.  So a
 * checkpoint is worthwhile, for the pointers or for the counts, when all that was freed and
 * is not in the file is more than this many bytes.  (It does not help clusters that wait
 * for their grace period; a crash does not leak these.) */
#define QUARANTINE_LIMIT (UINT64_C (128) << 20)
/* If leaks last, counts are written as soon as this many bytes would leak at any time. */
#define QUARANTINE_LASTING (UINT64_C (512) << 10)

int
alloc_free_begin (struct alloc *a, unsigned n)
{
  struct alloc_frees *rooms = NULL, *last = NULL;

  for (unsigned i = 0; i < n; i++) {
    struct alloc_frees *room = memory_get (sizeof *room);

    if (room == NULL) {
      free_items (rooms);
      errno = ENOMEM;
      return -1;
    }
    room->next = rooms;
    rooms = room;
    if (last == NULL)
      last = room;
  }
  if (last) {
    LOCK_FOR_BLOCK (&a->lock);
    last->next = a->rooms;
    a->rooms = rooms;
  }
  return 0;
}

/* Takes an item that alloc_free_begin allocated.  The caller holds the lock. */
static struct alloc_frees *
take_room (struct alloc *a)
{
  struct alloc_frees *room = a->rooms;

  assert (room != NULL);
  a->rooms = room->next;
  return room;
}

void
alloc_free_run (struct alloc *a, uint64_t host, uint64_t clusters)
{
  const uint64_t first = host >> a->bits;
  struct alloc_frees *room, *tail;
  LOCK_FOR_BLOCK (&a->lock);

  alloc_trace (a, "freed: quarantine until that is durable", first, clusters);
  room = take_room (a);
  a->quarantined += clusters;
  a->pending_clusters += clusters;
  tail = a->pending.head ? a->pending.tail : NULL;
  if (tail && tail->first + tail->n == first) {
    tail->n += clusters;
    free (room);
    return;
  }
  room->first = first;
  room->n = clusters;
  list_append (&a->pending, room);
  a->pending_items++;
  a->freed_items++;
  alloc_charge (a);
}

void
alloc_free_end (struct alloc *a, unsigned unused)
{
  LOCK_FOR_BLOCK (&a->lock);

  while (unused-- > 0)
    free (take_room (a));
}

uint64_t
alloc_quarantined (struct alloc *a)
{
  LOCK_FOR_BLOCK (&a->lock);
  return a->quarantined << a->bits;
}

/* The limit for the memory of the items in one list (SHARES shares), in bytes. */
static uint64_t
most_bytes (const struct alloc *a, unsigned shares)
{
  return a->budget ? shares * max64 (budget_share (a->budget) / 16, ALLOC_LEAST_IDLE)
                : UINT64_MAX;
}

bool
alloc_wants_release (struct alloc *a)
{
  const uint64_t most = most_bytes (a, 1);
  LOCK_FOR_BLOCK (&a->lock);

  return (a->pending_clusters + a->taken_clusters + a->unwritten_clusters) << a->bits
           > QUARANTINE_LIMIT ||
         (a->leaks_last && (a->exposed_clusters + a->unwritten_clusters) << a->bits
                             > QUARANTINE_LASTING) ||
         a->pending_items * ALLOC_ITEM_BYTES > most;
}

struct alloc_frees *
alloc_take_frees (struct alloc *a)
{
  struct alloc_frees *frees;
  LOCK_FOR_BLOCK (&a->lock);

  frees = a->pending.head;
  a->pending.head = a->pending.tail = NULL;
  a->pending_items = 0;
  a->taken_clusters = a->pending_clusters;
  a->pending_clusters = a->exposed_clusters = 0;
  return frees;
}

void
alloc_expose_frees (struct alloc *a)
{
  LOCK_FOR_BLOCK (&a->lock);

  a->exposed_clusters = a->pending_clusters;
}

/* Collects the parts of a run that became free. */
struct freed {
  struct alloc *a;
  struct alloc_frees *spare;    /* the run's own item, for its first part */
  uint64_t stamp;
  uint64_t clusters;            /* that became free, and now wait */
  bool corrupt;
};

/* The memory of all items that are not pending, in bytes. */
static uint64_t
waiting_bytes (const struct alloc *a)
{
  return (a->freed_items - a->pending_items) * ALLOC_ITEM_BYTES;
}

/* Adds a run to waiting.  Uses ITEM or frees it. */
static void
add_waiting (struct alloc *a, struct alloc_frees *item, uint64_t first,
             uint64_t n, uint64_t stamp)
{
  struct alloc_frees *tail = a->waiting.head ? a->waiting.tail : NULL;

  if (tail && tail->stamp == stamp && tail->first + tail->n == first) {
    tail->n += n;
    a->freed_items--;
    free (item);
    return;
  }
  item->first = first;
  item->n = n;
  item->stamp = stamp;
  list_append (&a->waiting, item);
}

static void
join_crowd (struct alloc *a, uint64_t first, uint64_t n, uint64_t stamp)
{
  if (a->crowd.clusters == 0) {
    a->crowd.first = first;
    a->crowd.end = first + n;
  }
  a->crowd.first = min64 (a->crowd.first, first);
  a->crowd.end = max64 (a->crowd.end, first + n);
  a->crowd.clusters += n;
  a->crowd.stamp = max64 (a->crowd.stamp, stamp);
}

/* Releases the whole crowd when the grace period of its youngest has passed. */
static void
release_crowd (struct alloc *a)
{
  if (a->crowd.clusters == 0 || !grace_passed (a->grace, a->crowd.stamp))
    return;
  alloc_trace (a, "some of the range were in quarantine, are free", a->crowd.first,
               a->crowd.end - a->crowd.first);
  a->quarantined -= a->crowd.clusters;
  alloc_forget (a, a->crowd.first, a->crowd.end, a->crowd.clusters);
  memset (&a->crowd, 0, sizeof a->crowd);
}

/* An L2 table without references is no longer metadata.  Other kinds of metadata cannot
 * be freed like this, so they stay in overlap. */
static void
forget_tables (struct alloc *a, uint64_t first, uint64_t n)
{
  const uint64_t cs = UINT64_C (1) << a->bits;

  for (uint64_t c = first; c < first + n; c++)
    if (overlap_find (a->overlap, c << a->bits, cs) == OVERLAP_L2)
      overlap_remove (a->overlap, c << a->bits, cs);
}

static void
became_free (void *opaque, uint64_t first, uint64_t n)
{
  struct freed *f = opaque;
  struct alloc *a = f->a;
  struct alloc_frees *item;

  if (overlap_find (a->overlap, first << a->bits, n << a->bits) != OVERLAP_NONE) {
    forget_tables (a, first, n);
    if (alloc_check_no_metadata (a, first, n, "free") == -1) {
      f->corrupt = true;
      return;
    }
  }

  alloc_trace (a, "in no use: quarantine until requests have ended", first, n);
  alloc_bytes_forget (a, first, n);
  f->clusters += n;
  a->stats.freed += n;
  item = f->spare;
  f->spare = NULL;
  if (item == NULL) {
    item = malloc (sizeof *item);
    a->freed_items += item != NULL;
  }
  if (item && waiting_bytes (a) <= most_bytes (a, 4) &&
      freeset_add (&a->held, first, n) == 0) {
    add_waiting (a, item, first, n, f->stamp);
    return;
  }
  join_crowd (a, first, n, f->stamp);
  a->freed_items -= item != NULL;
  free (item);
}

int
alloc_frees_done (struct alloc *a, struct alloc_frees *frees, bool ok)
{
  struct alloc_frees *item, *next;
  struct freed f = { .a = a };
  int err = 0;

  LOCK_FOR_BLOCK (&a->lock);

  a->taken_clusters = 0;
  if (ok)
    a->unwritten_clusters = 0;  /* of the checkpoint before, which this one has written */
  if (frees == NULL)
    return 0;
  if (!ok) {
    for (item = frees; ; item = item->next) {
      a->pending_items++;
      a->pending_clusters += item->n;
      if (item->next == NULL)
        break;
    }
    item->next = a->pending.head;
    if (a->pending.head == NULL)
      a->pending.tail = item;
    a->pending.head = frees;
    return 0;
  }

  f.stamp = grace_stamp (a->grace);
  for (item = frees; item; item = next) {
    const uint64_t first = item->first, n = item->n;

    next = item->next;
    f.spare = item;
    f.clusters = 0;
    if (refcount_dec (a->refcounts, first, n, became_free, &f) == 0) {
      a->quarantined -= n - f.clusters;
      a->unwritten_clusters += n;
    }
    else if (errno == ENOMEM) {
      list_append (&a->pending, item);  /* the next checkpoint tries again */
      a->pending_items++;
      a->pending_clusters += n;
      continue;
    }
    else {
      err = errno;              /* reported; they are leaked */
      a->quarantined -= n;
    }
    a->freed_items -= f.spare != NULL;
    free (f.spare);
  }
  alloc_charge (a);
  if (f.corrupt)
    err = EUCLEAN;
  if (err == 0)
    return 0;
  errno = err;
  return -1;
}

int
alloc_release (struct alloc *a, uint64_t first, uint64_t n)
{
  struct freed f = { .a = a, .stamp = grace_stamp (a->grace) };

  if (refcount_dec (a->refcounts, first, n, became_free, &f) == -1)
    return -1;
  a->quarantined += f.clusters;
  return 0;
}

void
alloc_hold_freed (struct alloc *a, uint64_t first, uint64_t n)
{
  struct freed f = { .a = a, .stamp = grace_stamp (a->grace) };
  LOCK_FOR_BLOCK (&a->lock);

  became_free (&f, first, n);
  a->quarantined += f.clusters;
  alloc_charge (a);
  if (first + n <= a->bump)
    return;
  /* New clusters are taken behind it; the scan finds what is free before. */
  assert (a->bump == a->bump_end);
  a->bump = a->bump_end = a->scan_end = first + n;
}

/* Takes the items whose grace period has passed out of the list.  They belong to the
 * caller then. */
static struct alloc_frees *
take_passed (struct alloc *a)
{
  struct alloc_frees *head, *last = NULL;
  LOCK_FOR_BLOCK (&a->lock);

  release_crowd (a);
  head = a->waiting.head;
  for (struct alloc_frees *i = head;
       i && ((last && i->stamp == last->stamp) ||
             grace_passed (a->grace, i->stamp));
       i = i->next)
    last = i;
  if (last == NULL)
    return NULL;
  a->waiting.head = last->next;
  if (a->waiting.head == NULL)
    a->waiting.tail = NULL;
  last->next = NULL;
  a->reaping++;
  return head;
}

int
alloc_reap (struct alloc *a)
{
  struct alloc_frees *items, *next;
  bool corrupt = false;

  items = take_passed (a);
  if (items == NULL)
    return 0;
  for (; items; items = next) {
    bool zeroed = false, bad;

    next = items->next;
    /* R5, R4 (c).  A failed punch has been reported, and does no harm. */
    bad = alloc_check_no_metadata (a, items->first, items->n, "punched") == -1;
    if (a->discard && !bad)
      zeroed = storage_discard (a->file, items->first << a->bits,
                                items->n << a->bits) == 1;
    {
      LOCK_FOR_BLOCK (&a->lock);
      /* This fails if there is no memory to split a run of held.  The clusters then stay
       * hidden from the scan, which need not find them any more. */
      freeset_remove (&a->held, items->first, items->n);
      alloc_trace (a, zeroed ? "free, with a hole" : "free", items->first, items->n);
      if (!bad)
        alloc_add_idle (a, items->first, items->n, zeroed);
      a->quarantined -= items->n;
      a->stats.punched += zeroed ? items->n : 0;
      a->freed_items--;
    }
    corrupt |= bad;
    free (items);
  }
  {
    LOCK_FOR_BLOCK (&a->lock);
    a->reaping--;
    alloc_charge (a);
  }
  if (!corrupt)
    return 0;
  errno = EUCLEAN;
  return -1;
}
