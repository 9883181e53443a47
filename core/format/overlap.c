/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Which host clusters contain metadata, and of which kind?
 *
 * R5 requires this check before each allocation and each write of metadata, and for each
 * run that is looked up, so it has to be cheap.  Nearly always the answer is "none",
 * which takes one look at a filter, without a lock.
 *
 * Three structures hold the set:
 *
 * - a hash table of single clusters (open addressing, linear probing, deletion
 *   by shifting back), for L2 tables, refcount blocks and all short things;
 * - an array of long ranges, sorted and disjoint.  What would overlap
 *   with earlier ranges is cut, so that the first kind stays;
 * - a counting filter: an array of 8-bit counters, indexed by hash.  Each cluster
 *   of the hash table counts in one of them, and so does each block of
 *   2^BLOCK_BITS clusters that a long range touches.  If the counters of
 *   a cluster and of its block are both 0, then it is not in the set.  A
 *   counter that has reached 255 stays there.  (Most images have no long ranges,
 *   and blocks are then not looked at.)  Each cluster also counts in one of a
 *   few more counters, that of its group of 2^GROUP_BITS clusters, so that many
 *   clusters can be found not to be in the set by one look.
 *
 * Why the filter may be read without the lock: a counter is incremented before
 * overlap_add returns, and is not 0 as long as one cluster that counts in it is in the
 * set.  A thread that has to see a cluster as metadata knows about it from something
 * that happened after overlap_add returned, hence it also sees the counter.  A lookup at
 * the same time as the add or remove may get the old or the new answer, as it would with
 * a lock.  When a larger filter replaces the filter, the new one is complete before the
 * pointer to it changes.  The old one is kept until the end, so that no thread reads
 * freed memory; a thread that still has the old pointer began before the add that caused
 * the replacement had returned.
 *
 * The filter also says "maybe" for up to a quarter of the clusters that are not in the
 * set.  Taking the lock for them would write to its cache line, each time that such a
 * cluster is looked up.  So the hash table may be read without the lock, too, to find out
 * that a cluster is not in it.  `version' is odd while the table changes.  A lookup that
 * finds the same even version before and after has seen the table as it was in between.
 * Otherwise it takes the lock.  A table that was replaced is kept, as a filter is.
 *
 * An attacker may choose cluster numbers, so the hash has a secret.
 */

#include <config.h>

#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

#include "util/bytes.h"
#include "util/report.h"
#include "format/overlap.h"

/* More clusters than this in one call are kept as a range. */
#define LONG_RANGE 16

/* Ranges count in the filter by blocks of this many clusters (log2). */
#define BLOCK_BITS 10

/* Single clusters count by groups of this many clusters (log2) ... */
#define GROUP_BITS 6
/* ... in a part of the number of counters that clusters have (log2). */
#define GROUP_SHARE 2

/* A range of more blocks than this is not counted: from then on all lookups take the
 * lock. */
#define MAX_BLOCKS (1u << 20)

/* Maximum number of slots, in total, that are searched for single clusters that overlap
 * long ranges: hostile snapshots may have any number of long tables. */
#define MAX_EFFORT (UINT64_C (1) << 26)

/* It is worthwhile to look at a group for so many of its clusters. */
#define FEW 4

/* After so many slots that contain other clusters, a lookup takes the lock: they move. */
#define MOST_PROBES 64

#define MIN_SLOTS_BITS 4
#define MIN_FILTER_BITS 9
/* Minimum number of counters per cluster in the hash table. */
#define FILTER_SPREAD 4

struct filter {
  struct filter *older;         /* the one replaced; all are freed at the end */
  unsigned bits;                /* log2 of the number of counters */
  unsigned group_bits;          /* of those of groups, which follow them */
  /* Written under the lock, read without it: see above. */
  _Atomic uint8_t counter[];
};

/* The hash table. */
struct slots {
  struct slots *older;          /* as for filters */
  unsigned bits;                /* log2 of the number of slots */
  /* A slot is cluster << 8 | kind, or 0 if empty.  At most 3/4 are full. */
  _Atomic uint64_t slot[];
};

struct range {
  uint64_t first, end;          /* clusters [first, end) */
  enum overlap_kind kind;
};

struct overlap {
  unsigned cluster_bits;        /* fixed */
  uint64_t secret;              /* fixed */

  /* Changed under the lock, read without it: see above. */
  _Atomic (struct filter *) filter;
  atomic_bool has_ranges;       /* there are, or were, long ranges */
  atomic_bool unfiltered;       /* one was too long for the filter; both stay true */
  _Atomic (struct slots *) slots;
  _Atomic uint64_t version;     /* of the slots: odd while they change */

  pthread_rwlock_t lock;        /* guards all fields below */

  uint64_t used;                /* slots */
  uint64_t most;                /* of them; the user's limit */
  uint64_t effort;              /* the rest of MAX_EFFORT */

  /* Removing must not fail, so room for cut ranges is allocated ahead: there is always
   * room for one more. */
  struct range *ranges;
  size_t nr_ranges, max_ranges;
};

static uint64_t
hash (const struct overlap *o, uint64_t x)
{
  x = (x ^ o->secret) * UINT64_C (0xff51afd7ed558ccd);
  x = (x ^ x >> 32) * UINT64_C (0xc4ceb9fe1a85ec53);
  return x ^ x >> 32;
}

/* Blocks and clusters share the filter; the top bit distinguishes them. */
static uint64_t
block_hash (const struct overlap *o, uint64_t block)
{
  return hash (o, block | UINT64_C (1) << 63);
}

static uint64_t
nr_slots (const struct overlap *o)
{
  return UINT64_C (1) << o->slots->bits;
}

/* --- the filter --- */

static struct filter *
filter_new (unsigned bits)
{
  const unsigned group_bits = bits - GROUP_SHARE;
  struct filter *f = calloc (1, sizeof *f + (sizeof f->counter[0] << bits) +
                             (sizeof f->counter[0] << group_bits));

  if (f != NULL) {
    f->bits = bits;
    f->group_bits = group_bits;
  }
  return f;
}

/* The counter of a cluster or a block, by its hash. */
static _Atomic uint8_t *
counter_of (struct filter *f, uint64_t h)
{
  return &f->counter[h >> (64 - f->bits)];
}

/* The counter of the group of CLUSTER. */
static _Atomic uint8_t *
group_counter (const struct overlap *o, struct filter *f, uint64_t cluster)
{
  return &f->counter[(UINT64_C (1) << f->bits) +
                     (hash (o, cluster >> GROUP_BITS) >> (64 - f->group_bits))];
}

static void
count (_Atomic uint8_t *counter, int by)
{
  uint8_t value = atomic_load_explicit (counter, memory_order_relaxed);

  /* A counter at its maximum no longer knows how many clusters it stands for.  Plain load
   * and store are enough: the caller holds the lock, so no other thread writes. */
  if (value != UINT8_MAX)
    atomic_store_explicit (counter, value + by, memory_order_release);
}

static void
count_single (const struct overlap *o, struct filter *f, uint64_t cluster, int by)
{
  count (counter_of (f, hash (o, cluster)), by);
  count (group_counter (o, f, cluster), by);
}

static bool
counts (const _Atomic uint8_t *counter)
{
  return atomic_load_explicit (counter, memory_order_acquire) != 0;
}

/* May CLUSTER be in a long range? */
static bool
maybe_in_range (const struct overlap *o, struct filter *f, uint64_t cluster)
{
  return atomic_load_explicit (&o->has_ranges, memory_order_acquire) &&
         (counts (counter_of (f, block_hash (o, cluster >> BLOCK_BITS))) ||
          atomic_load_explicit (&o->unfiltered, memory_order_acquire));
}

/* May CLUSTER be in the set?  Takes no lock. */
static bool
maybe (const struct overlap *o, uint64_t cluster)
{
  struct filter *f = atomic_load_explicit (&o->filter, memory_order_acquire);

  return counts (counter_of (f, hash (o, cluster))) || maybe_in_range (o, f, cluster);
}

/* May a cluster of the group of CLUSTER be in the set? */
static bool
maybe_in_group (const struct overlap *o, uint64_t cluster)
{
  struct filter *f = atomic_load_explicit (&o->filter, memory_order_acquire);

  return counts (group_counter (o, f, cluster)) || maybe_in_range (o, f, cluster);
}

/* Counts the blocks of a range up or down. */
static void
filter_count_range (struct overlap *o, struct filter *f,
                    const struct range *r, int by)
{
  uint64_t first = r->first >> BLOCK_BITS, last = (r->end - 1) >> BLOCK_BITS;

  atomic_store_explicit (&o->has_ranges, true, memory_order_release);
  if (last - first >= MAX_BLOCKS) {
    atomic_store_explicit (&o->unfiltered, true, memory_order_release);
    return;
  }
  for (uint64_t block = first; block <= last; block++)
    count (counter_of (f, block_hash (o, block)), by);
}

/* Replaces the filter by one that suits the hash table.  Without memory the old one
 * stays, with more false positives. */
static void
filter_grow (struct overlap *o)
{
  struct filter *old = o->filter, *f;
  unsigned bits = old->bits;

  while ((UINT64_C (1) << bits) / FILTER_SPREAD < o->used)
    bits += 2;
  if (bits == old->bits || (f = filter_new (bits)) == NULL)
    return;
  for (uint64_t i = 0; i < nr_slots (o); i++)
    if (o->slots->slot[i] != 0)
      count_single (o, f, o->slots->slot[i] >> 8, 1);
  for (size_t i = 0; i < o->nr_ranges; i++)
    filter_count_range (o, f, &o->ranges[i], 1);
  f->older = old;
  atomic_store_explicit (&o->filter, f, memory_order_release);
}

/* --- the hash table --- */

static struct slots *
slots_new (unsigned bits)
{
  struct slots *t = calloc (1, sizeof *t + (sizeof t->slot[0] << bits));

  if (t != NULL)
    t->bits = bits;
  return t;
}

/* Returns the slot that contains CLUSTER, or the empty one where it would go. */
static _Atomic uint64_t *
find_slot (const struct overlap *o, uint64_t cluster)
{
  struct slots *t = o->slots;
  const uint64_t mask = (UINT64_C (1) << t->bits) - 1;
  uint64_t i = hash (o, cluster) & mask;

  while (t->slot[i] != 0 && t->slot[i] >> 8 != cluster)
    i = (i + 1) & mask;
  return &t->slot[i];
}

/* Is CLUSTER certainly not in the hash table?  Takes no lock. */
static bool
is_absent (const struct overlap *o, uint64_t cluster)
{
  const uint64_t version = atomic_load (&o->version);
  struct slots *t = atomic_load (&o->slots);
  const uint64_t mask = (UINT64_C (1) << t->bits) - 1;
  uint64_t i = hash (o, cluster) & mask, slot, left = MOST_PROBES;

  if (version & 1)
    return false;
  do {
    slot = atomic_load (&t->slot[i]);
    i = (i + 1) & mask;
  } while (slot != 0 && slot >> 8 != cluster && --left > 0);
  return slot == 0 && atomic_load (&o->version) == version;
}

/* Makes room for N more clusters.  -1 with errno ENOMEM, not reported. */
static int
reserve_slots (struct overlap *o, uint64_t n)
{
  struct slots *const old = o->slots;
  unsigned bits = old->bits;
  struct slots *t;

  while (o->used + n > (UINT64_C (3) << bits) / 4)
    bits++;
  if (bits == old->bits)
    return 0;
  t = slots_new (bits);
  if (t == NULL)
    return -1;
  t->older = old;
  o->slots = t;
  for (uint64_t i = 0; i < UINT64_C (1) << old->bits; i++)
    if (old->slot[i] != 0)
      *find_slot (o, old->slot[i] >> 8) = old->slot[i];
  return 0;
}

static void
remove_single (struct overlap *o, uint64_t cluster)
{
  const uint64_t mask = nr_slots (o) - 1;
  _Atomic uint64_t *const table = o->slots->slot, *const slot = find_slot (o, cluster);
  uint64_t hole, i;

  if (*slot == 0)
    return;
  count_single (o, o->filter, cluster, -1);
  o->used--;

  /* Moves later members of the chain into the hole if they can be found there: that is,
   * if their home is not between the hole and them. */
  hole = i = slot - table;
  for (;;) {
    uint64_t home;

    i = (i + 1) & mask;
    if (table[i] == 0)
      break;
    home = hash (o, table[i] >> 8) & mask;
    if (((i - home) & mask) >= ((i - hole) & mask)) {
      table[hole] = table[i];
      hole = i;
    }
  }
  table[hole] = 0;
}

/* Removes clusters [first, end) from the hash table.  The work is bounded by the number
 * of slots, however long the range. */
static void
remove_singles (struct overlap *o, uint64_t first, uint64_t end)
{
  const uint64_t n = nr_slots (o);
  _Atomic uint64_t *const table = o->slots->slot;

  if (end - first < n) {
    for (uint64_t c = first; c < end; c++)
      remove_single (o, c);
    return;
  }
  for (uint64_t i = 0; i < n; i++)
    /* Another cluster may move into the slot of a removed one. */
    while (table[i] != 0 && table[i] >> 8 >= first && table[i] >> 8 < end)
      remove_single (o, table[i] >> 8);
}

/* --- the ranges --- */

/* Returns the index of the first range that ends after CLUSTER, or nr_ranges. */
static size_t
find_range (const struct overlap *o, uint64_t cluster)
{
  size_t low = 0, high = o->nr_ranges;

  while (low < high) {
    size_t mid = low + (high - low) / 2;

    if (o->ranges[mid].end <= cluster)
      low = mid + 1;
    else
      high = mid;
  }
  return low;
}

/* Makes room for N more ranges, and as many again for later cuts.  -1 on ENOMEM. */
static int
reserve_ranges (struct overlap *o, size_t n)
{
  struct range *ranges;
  size_t want = 2 * (o->nr_ranges + n) + 1;

  if (o->max_ranges >= want)
    return 0;
  want *= 2;                    /* so that this is rare */
  ranges = realloc (o->ranges, want * sizeof ranges[0]);
  if (ranges == NULL)
    return -1;
  o->ranges = ranges;
  o->max_ranges = want;
  return 0;
}

static void
insert_range (struct overlap *o, size_t i, struct range r)
{
  assert (o->nr_ranges < o->max_ranges);
  memmove (&o->ranges[i + 1], &o->ranges[i],
           (o->nr_ranges - i) * sizeof r);
  o->ranges[i] = r;
  o->nr_ranges++;
  filter_count_range (o, o->filter, &r, 1);
}

static void
delete_range (struct overlap *o, size_t i)
{
  filter_count_range (o, o->filter, &o->ranges[i], -1);
  o->nr_ranges--;
  memmove (&o->ranges[i], &o->ranges[i + 1],
           (o->nr_ranges - i) * sizeof o->ranges[0]);
}

/* Removes clusters [first, end) from the ranges. */
static void
cut_ranges (struct overlap *o, uint64_t first, uint64_t end)
{
  size_t i = find_range (o, first);

  while (i < o->nr_ranges && o->ranges[i].first < end) {
    const struct range r = o->ranges[i];

    /* Cutting out the middle makes one more range.  Without memory for it, the range
     * stays: protecting too much only costs some space. */
    if (r.first < first && r.end > end && reserve_ranges (o, 1) == -1 &&
        o->nr_ranges + 1 > o->max_ranges)
      return;
    /* The rest of the range must not be missing from the filter at any time. */
    filter_count_range (o, o->filter, &r, 1);
    delete_range (o, i);
    if (r.first < first)
      insert_range (o, i++, (struct range) { r.first, first, r.kind });
    if (r.end > end)
      insert_range (o, i++, (struct range) { end, r.end, r.kind });
    filter_count_range (o, o->filter, &r, -1);
  }
}

/* --- the set --- */

/* Returns the kind of one cluster, under the lock.  If a cluster is both in the hash
 * table and in a range, the single one was there first. */
static enum overlap_kind
kind_of (const struct overlap *o, uint64_t cluster)
{
  enum overlap_kind kind = *find_slot (o, cluster) & 0xff;
  size_t i;

  if (kind != OVERLAP_NONE || o->nr_ranges == 0)
    return kind;
  i = find_range (o, cluster);
  if (i < o->nr_ranges && o->ranges[i].first <= cluster)
    return o->ranges[i].kind;
  return OVERLAP_NONE;
}

/* Returns the first kind other than KIND among single clusters [first, end). */
static enum overlap_kind
other_single (const struct overlap *o, uint64_t first, uint64_t end,
              enum overlap_kind kind)
{
  const uint64_t n = nr_slots (o);
  const _Atomic uint64_t *const table = o->slots->slot;
  uint64_t best = UINT64_MAX;   /* the lowest slot is that of the first cluster */

  if (end - first < n) {
    for (uint64_t c = first; c < end; c++) {
      uint64_t slot = *find_slot (o, c);

      if (slot != 0 && (slot & 0xff) != kind)
        return slot & 0xff;
    }
    return OVERLAP_NONE;
  }
  for (uint64_t i = 0; i < n; i++) {
    uint64_t c = table[i] >> 8;

    if (table[i] != 0 && c >= first && c < end &&
        (table[i] & 0xff) != kind && table[i] < best)
      best = table[i];
  }
  return best == UINT64_MAX ? OVERLAP_NONE : best & 0xff;
}

/* May return the kind of a range that overlaps a single cluster added before it: that
 * overlap was reported when the range was added. */
static int
add_long (struct overlap *o, uint64_t first, uint64_t end,
          enum overlap_kind kind)
{
  const uint64_t cost = min64 (end - first, nr_slots (o));
  enum overlap_kind other = OVERLAP_NONE;
  size_t i = find_range (o, first), gaps = 1;

  if (cost <= o->effort) {
    o->effort -= cost;
    other = other_single (o, first, end, kind);
  }
  for (size_t j = i; j < o->nr_ranges && o->ranges[j].first < end; j++)
    gaps++;
  if (reserve_ranges (o, gaps) == -1)
    return -1;

  /* Fills the gaps between the known ranges. */
  while (first < end) {
    if (i == o->nr_ranges || o->ranges[i].first >= end) {
      insert_range (o, i, (struct range) { first, end, kind });
      break;
    }
    if (o->ranges[i].first > first) {
      const uint64_t gap_end = o->ranges[i].first;

      insert_range (o, i++, (struct range) { first, gap_end, kind });
    }
    if (o->ranges[i].kind != kind && other == OVERLAP_NONE)
      other = o->ranges[i].kind;
    first = o->ranges[i++].end;
  }
  return other;
}

/* How many of clusters [first, end) are not in the set? */
static uint64_t
count_new (const struct overlap *o, uint64_t first, uint64_t end)
{
  uint64_t n = 0;

  for (uint64_t c = first; c < end; c++)
    n += kind_of (o, c) == OVERLAP_NONE;
  return n;
}

static int
add_singles (struct overlap *o, uint64_t first, uint64_t end,
             enum overlap_kind kind)
{
  enum overlap_kind other = OVERLAP_NONE;

  if (o->used + (end - first) > o->most && o->used + count_new (o, first, end) > o->most) {
    errno = E2BIG;
    return -1;
  }
  if (reserve_slots (o, end - first) == -1)
    return -1;
  for (uint64_t c = first; c < end; c++) {
    enum overlap_kind known = kind_of (o, c);

    if (known == OVERLAP_NONE) {
      *find_slot (o, c) = c << 8 | kind;
      o->used++;
      count_single (o, o->filter, c, 1);
    }
    else if (known != kind && other == OVERLAP_NONE)
      other = known;
  }
  filter_grow (o);
  return other;
}

/* Computes the clusters [*first, *end) that a range of bytes (> 0) touches. */
static void
to_clusters (const struct overlap *o, uint64_t offset, uint64_t bytes,
             uint64_t *first, uint64_t *end)
{
  uint64_t last;

  if (!add_fits (offset, bytes - 1, &last))
    last = UINT64_MAX;
  *first = offset >> o->cluster_bits;
  *end = (last >> o->cluster_bits) + 1;
}

/* Makes a lock that a steady stream of readers cannot keep from writers. */
static void
init_lock (pthread_rwlock_t *lock)
{
  pthread_rwlockattr_t attr;

  pthread_rwlockattr_init (&attr);
#ifdef __GLIBC__
  pthread_rwlockattr_setkind_np (&attr,
                                 PTHREAD_RWLOCK_PREFER_WRITER_NONRECURSIVE_NP);
#endif
  pthread_rwlock_init (lock, &attr);
  pthread_rwlockattr_destroy (&attr);
}

struct overlap *
overlap_new (unsigned cluster_bits)
{
  struct overlap *o = calloc (1, sizeof *o);
  struct filter *f = filter_new (MIN_FILTER_BITS);

  if (o == NULL || f == NULL)
    goto fail;
  o->cluster_bits = cluster_bits;
  o->most = UINT64_MAX;
  o->effort = MAX_EFFORT;
  if (getrandom (&o->secret, sizeof o->secret, GRND_NONBLOCK) !=
      sizeof o->secret)
    o->secret = (uint64_t) time (NULL) * UINT64_C (0x9e3779b97f4a7c15) ^
      (uintptr_t) o;
  o->slots = slots_new (MIN_SLOTS_BITS);
  if (o->slots == NULL)
    goto fail;
  atomic_init (&o->filter, f);
  init_lock (&o->lock);
  if (overlap_add (o, 0, UINT64_C (1) << cluster_bits, OVERLAP_HEADER) == -1) {
    overlap_free (o);
    return NULL;
  }
  return o;

 fail:
  free (f);
  free (o);
  return NULL;
}

void
overlap_free (struct overlap *o)
{
  struct slots *t, *older_slots;
  struct filter *f, *older;

  if (o == NULL)
    return;
  for (f = o->filter; f != NULL; f = older) {
    older = f->older;
    free (f);
  }
  pthread_rwlock_destroy (&o->lock);
  for (t = o->slots; t != NULL; t = older_slots) {
    older_slots = t->older;
    free (t);
  }
  free (o->ranges);
  free (o);
}

void
overlap_limit (struct overlap *o, uint64_t most)
{
  pthread_rwlock_wrlock (&o->lock);
  o->most = most;
  pthread_rwlock_unlock (&o->lock);
}

int
overlap_add (struct overlap *o, uint64_t offset, uint64_t bytes,
             enum overlap_kind kind)
{
  uint64_t first, end;
  int r;

  assert (kind != OVERLAP_NONE);
  if (bytes == 0)
    return 0;
  to_clusters (o, offset, bytes, &first, &end);

  pthread_rwlock_wrlock (&o->lock);
  o->version++;
  if (end - first > LONG_RANGE)
    r = add_long (o, first, end, kind);
  else
    r = add_singles (o, first, end, kind);
  o->version++;
  pthread_rwlock_unlock (&o->lock);

  if (r == -1 && errno != E2BIG)
    report_error ("cannot keep track of where metadata is: %m");
  return r;
}

void
overlap_remove (struct overlap *o, uint64_t offset, uint64_t bytes)
{
  uint64_t first, end;

  if (bytes == 0)
    return;
  to_clusters (o, offset, bytes, &first, &end);

  pthread_rwlock_wrlock (&o->lock);
  o->version++;
  remove_singles (o, first, end);
  o->version++;
  cut_ranges (o, first, end);
  pthread_rwlock_unlock (&o->lock);
}

/* Finds the first cluster of [*FIRST, END) that is in the set. */
static enum overlap_kind
find_first (const struct overlap *o, uint64_t *first, uint64_t end)
{
  /* The set is constant here, but taking its lock changes the lock. */
  pthread_rwlock_t *lock = (pthread_rwlock_t *) &o->lock;
  enum overlap_kind kind = OVERLAP_NONE;
  uint64_t c = *first, group_end;

  while (c < end) {
    group_end = min64 (end, (c | ((1u << GROUP_BITS) - 1)) + 1);
    if (group_end - c >= FEW && !maybe_in_group (o, c))
      c = group_end;
    for (; c < group_end; c++)
      if (maybe (o, c)) {
        if (!maybe_in_range (o, o->filter, c) && is_absent (o, c))
          continue;
        pthread_rwlock_rdlock (lock);
        kind = kind_of (o, c);
        pthread_rwlock_unlock (lock);
        if (kind != OVERLAP_NONE) {
          *first = c;
          return kind;
        }
      }
  }
  return OVERLAP_NONE;
}

enum overlap_kind
overlap_find (const struct overlap *o, uint64_t offset, uint64_t bytes)
{
  uint64_t first, end;

  if (bytes == 0)
    return OVERLAP_NONE;
  to_clusters (o, offset, bytes, &first, &end);
  return find_first (o, &first, end);
}

uint64_t
overlap_clear (const struct overlap *o, uint64_t offset, uint64_t bytes)
{
  uint64_t first, end;

  if (bytes == 0)
    return 0;
  to_clusters (o, offset, bytes, &first, &end);
  if (find_first (o, &first, end) == OVERLAP_NONE)
    return bytes;
  return max64 (first << o->cluster_bits, offset) - offset;
}

const char *
overlap_name (enum overlap_kind kind)
{
  switch (kind) {
  case OVERLAP_NONE: return "no metadata";
  case OVERLAP_HEADER: return "header";
  case OVERLAP_L1: return "L1 table";
  case OVERLAP_L2: return "L2 table";
  case OVERLAP_REFTABLE: return "refcount table";
  case OVERLAP_REFBLOCK: return "refcount block";
  case OVERLAP_SNAPSHOT_TABLE: return "snapshot table";
  case OVERLAP_INACTIVE_L1: return "L1 table of a snapshot";
  case OVERLAP_INACTIVE_L2: return "L2 table of a snapshot";
  case OVERLAP_BITMAP: return "bitmap";
  case OVERLAP_CRYPTO: return "encryption header";
  }
  abort ();
}
