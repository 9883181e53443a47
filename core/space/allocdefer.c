/* SPDX-License-Identifier: BSD-3-Clause
 *
 * When may freed clusters be used again?
 *
 * See the life of a cluster in alloc.h.  Freed runs are pending (in memory no entry
 * points to them), taken by a checkpoint, waiting (for requests that began before), and
 * being reaped: the thread that punches them, without a lock, has taken them out of the
 * list, so no other thread sees them.  From waiting on, the set `held' hides them from
 * the scan.
 *
 * Only alloc_free_begin depends on memory: from then on, each run has its list item.  If
 * only parts of a run become free, it may need more items.  Clusters for which there is
 * no item join the crowd: clusters that wait together, in no list and no set, until the
 * grace period of the youngest has passed; the scan must not run until then.
 * Runs that would make the list too long join the crowd, too: a long request holds back
 * everything that other requests free, and a change of the disk can free any number of
 * runs at once.
 *
 * When its time has come, the crowd is swept: its range is searched for free clusters
 * that no set contains, a portion at a time.  Those of a portion are put into held while
 * they are punched, so no other thread finds them, in the crowd or in the scan.  Then
 * they are idle.  (Clusters in that range that were free all the time, and not known, get
 * holes as well.)  A cluster that joins the crowd meanwhile may lie before the point that
 * the sweep has reached, which therefore goes back there, after the grace period of that
 * cluster.
 *
 * What a change of the whole disk writes ahead is set aside: it is in held, too, until
 * the change gives it up.
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
 * yet lower there: those that the last checkpoint released, those that were freed while
 * it collected what it writes, and during a checkpoint those that it has taken.  So a
 * checkpoint is worthwhile, for the pointers or for the counts, when all that was freed
 * and is not in the file is more than this many bytes.  (It does not help clusters that
 * wait for their grace period; a crash does not leak these.) */
#define DEFERRED_LIMIT (UINT64_C (128) << 20)
/* If leaks last, counts are written as soon as this many bytes would leak at any time. */
#define DEFERRED_LASTING (UINT64_C (512) << 10)

/* Runs of the crowd that are punched before the lock is taken again. */
#define PORTION_RUNS 64u

int
alloc_free_begin (struct alloc *a, unsigned n)
{
  struct alloc_frees *spare = NULL, *last = NULL;

  for (unsigned i = 0; i < n; i++) {
    struct alloc_frees *item = memory_get (sizeof *item);

    if (item == NULL) {
      free_items (spare);
      errno = ENOMEM;
      return -1;
    }
    item->next = spare;
    spare = item;
    if (last == NULL)
      last = item;
  }
  if (last) {
    LOCK_FOR_BLOCK (&a->lock);
    last->next = a->spare;
    a->spare = spare;
  }
  return 0;
}

/* Takes an item that alloc_free_begin allocated.  The caller holds the lock. */
static struct alloc_frees *
take_item (struct alloc *a)
{
  struct alloc_frees *item = a->spare;

  assert (item != NULL);
  a->spare = item->next;
  return item;
}

void
alloc_free_run (struct alloc *a, uint64_t host, uint64_t clusters)
{
  const uint64_t first = host >> a->bits;
  struct alloc_frees *item, *tail;
  LOCK_FOR_BLOCK (&a->lock);

  alloc_trace (a, "freed: reuse deferred until that is durable", first, clusters);
  item = take_item (a);
  a->deferred += clusters;
  a->pending_clusters += clusters;
  tail = a->pending.head ? a->pending.tail : NULL;
  if (tail && tail->first + tail->n == first) {
    tail->n += clusters;
    free (item);
    return;
  }
  item->first = first;
  item->n = clusters;
  list_append (&a->pending, item);
  a->pending_items++;
  a->freed_items++;
  alloc_charge (a);
}

void
alloc_free_end (struct alloc *a, unsigned unused)
{
  LOCK_FOR_BLOCK (&a->lock);

  while (unused-- > 0)
    free (take_item (a));
}

uint64_t
alloc_deferred (struct alloc *a)
{
  LOCK_FOR_BLOCK (&a->lock);
  return a->deferred << a->bits;
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
           > DEFERRED_LIMIT ||
         (a->leaks_last && (a->exposed_clusters + a->unwritten_clusters) << a->bits
                             > DEFERRED_LASTING) ||
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

void
alloc_set_max_waiting (struct alloc *a, size_t runs)
{
  a->max_items = runs;
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

/* The rest of the crowd is free.  It is left to the scan, unless all of it was SWEPT. */
static void
release_crowd (struct alloc *a, bool swept)
{
  alloc_trace (a, swept ? "none of the range are deferred any more"
               : "some of the range were deferred, are free", a->crowd.first,
               a->crowd.end - a->crowd.first);
  a->deferred -= a->crowd.clusters;
  if (!swept)
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

  alloc_trace (a, "in no use: reuse deferred until requests have ended", first, n);
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
      a->freed_items - a->pending_items <= a->max_items &&
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

  f.stamp = epoch_stamp (a->epoch);
  for (item = frees; item; item = next) {
    const uint64_t first = item->first, n = item->n;

    next = item->next;
    f.spare = item;
    f.clusters = 0;
    if (refcount_dec (a->refcounts, first, n, became_free, &f) == 0) {
      a->deferred -= n - f.clusters;
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
      a->deferred -= n;
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
  struct freed f = { .a = a, .stamp = epoch_stamp (a->epoch) };

  if (refcount_dec (a->refcounts, first, n, became_free, &f) == -1)
    return -1;
  a->deferred += f.clusters;
  return 0;
}

void
alloc_hold_freed (struct alloc *a, uint64_t first, uint64_t n)
{
  struct freed f = { .a = a, .stamp = epoch_stamp (a->epoch) };
  LOCK_FOR_BLOCK (&a->lock);

  became_free (&f, first, n);
  a->deferred += f.clusters;
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

  head = a->waiting.head;
  for (struct alloc_frees *i = head;
       i && ((last && i->stamp == last->stamp) ||
             epoch_passed (a->epoch, i->stamp));
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

/* Punches a run that is in held, and for which the list had ITEMS items, and makes it
 * idle.  False: there is metadata in it (reported). */
static bool
punch (struct alloc *a, uint64_t first, uint64_t n, unsigned items)
{
  /* R5, R4 (c).  A failed punch has been reported, and does no harm. */
  const bool good = alloc_check_no_metadata (a, first, n, "punched") == 0;
  const bool zeroed = a->discard && good &&
    storage_discard (a->file, first << a->bits, n << a->bits) == 1;
  LOCK_FOR_BLOCK (&a->lock);

  /* This fails if there is no memory to split a run of held.  The clusters then stay
   * hidden from the scan, which need not find them any more. */
  freeset_remove (&a->held, first, n);
  alloc_trace (a, zeroed ? "free, with a hole" : "free", first, n);
  if (good)
    alloc_add_idle (a, first, n, zeroed);
  a->deferred -= n;
  a->stats.punched += zeroed ? n : 0;
  a->freed_items -= items;
  return good;
}

static void
end_reaping (struct alloc *a)
{
  LOCK_FOR_BLOCK (&a->lock);

  a->reaping--;
  alloc_charge (a);
}

/* Returns -1 (EUCLEAN) if there is metadata in freed clusters. */
static int
reap_list (struct alloc *a)
{
  struct alloc_frees *items = take_passed (a), *next;
  bool good = true;

  if (items == NULL)
    return 0;
  for (; items; items = next) {
    next = items->next;
    good &= punch (a, items->first, items->n, 1);
    free (items);
  }
  end_reaping (a);
  if (good)
    return 0;
  errno = EUCLEAN;
  return -1;
}

/* --- set aside for a change --- */

int
alloc_set_aside (struct alloc *a, uint64_t n, struct alloc_run *run)
{
  struct alloc_frees *item = memory_get (sizeof *item);
  uint64_t first;
  LOCK_FOR_BLOCK (&a->lock);

  if (item == NULL || alloc_take (a, n, run) == -1 ||
      refcount_dec (a->refcounts, run->host >> a->bits, run->clusters, NULL, NULL) == -1) {
    free (item);
    return -1;
  }
  first = run->host >> a->bits;
  alloc_trace (a, "set aside for a change", first, run->clusters);
  if (freeset_add (&a->held, first, run->clusters) == -1) {
    alloc_add_idle (a, first, run->clusters, false);
    free (item);
    errno = ENOMEM;
    return -1;
  }
  item->first = first;
  item->n = run->clusters;
  list_append (&a->aside, item);
  return 0;
}

void
alloc_end_aside (struct alloc *a)
{
  struct alloc_frees *items, *next;

  {
    LOCK_FOR_BLOCK (&a->lock);

    items = a->aside.head;
    if (items == NULL)
      return;
    a->aside = (struct list) { NULL, NULL };
    for (next = items; next; next = next->next)
      a->deferred += next->n;
    a->reaping++;
  }
  for (; items; items = next) {
    next = items->next;
    punch (a, items->first, items->n, 0);
    free (items);
  }
  end_reaping (a);
}

/* --- the crowd --- */

struct portion {
  struct { uint64_t first, n; } runs[PORTION_RUNS];
  unsigned count;
};

/* Some of [first, end), which is free, is not known: adds that to the portion and to
 * held.  Returns where it ended, or UINT64_MAX if there is no memory.  The caller holds
 * the lock. */
static uint64_t
take_unknown (struct alloc *a, struct portion *p, uint64_t first, uint64_t end)
{
  uint64_t known, len;

  for (; first < end && p->count < PORTION_RUNS; first = known + len) {
    alloc_next_known (a, first, end, &known, &len);
    if (known == first)
      continue;
    if (freeset_add (&a->held, first, known - first) == -1)
      return UINT64_MAX;
    p->runs[p->count].first = first;
    p->runs[p->count++].n = known - first;
    a->deferred += known - first;
  }
  return first;
}

/* Takes clusters out of the crowd, from at most one refcount block.  False: it has to
 * wait, or there is none. */
static bool
take_portion (struct alloc *a, struct portion *p)
{
  uint64_t at, limit, first, n, next;
  const uint64_t per_block = refcount_block_clusters (a->refcounts);
  LOCK_FOR_BLOCK (&a->lock);

  p->count = 0;
  if (a->crowd.clusters == 0 || !epoch_passed (a->epoch, a->crowd.stamp))
    return false;
  at = a->discard ? a->crowd.first : UINT64_MAX;
  limit = min64 (a->crowd.end, round_down (a->crowd.first, per_block) + per_block);
  while (at < limit && p->count < PORTION_RUNS) {
    const int r = refcount_find_free (a->refcounts, at, limit, UINT64_MAX,
                                      &first, &n, &next);

    at = r == 0 ? next : r == -1 ? UINT64_MAX : take_unknown (a, p, first, first + n);
  }
  a->reaping++;
  if (at == UINT64_MAX)         /* a hole is not worth an error */
    release_crowd (a, false);
  else if (at >= a->crowd.end)
    release_crowd (a, true);
  else
    a->crowd.first = at;
  return true;
}

/* Returns true if it has done something. */
static bool
sweep (struct alloc *a)
{
  struct portion p;

  if (!take_portion (a, &p))
    return false;
  for (unsigned i = 0; i < p.count; i++)        /* (There was no metadata.) */
    punch (a, p.runs[i].first, p.runs[i].n, 0);
  end_reaping (a);
  return true;
}

int
alloc_reap_some (struct alloc *a)
{
  const int r = reap_list (a);

  KEEP_ERRNO_FOR_BLOCK;
  sweep (a);
  return r;
}

int
alloc_reap (struct alloc *a)
{
  const int r = reap_list (a);

  KEEP_ERRNO_FOR_BLOCK;
  while (sweep (a))
    ;
  return r;
}
