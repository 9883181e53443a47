/* SPDX-License-Identifier: BSD-3-Clause
 *
 * How do bitmaps that record changes survive a crash?
 *
 * With a write-intent log, as RAID has it, that needs no place of its own: it is the
 * bitmap in the file.  Before the disk changes in a region (REGION_BITS) about which the
 * file does not say enough, all bits of the region are set in the file, durably.  When a
 * region has been quiet for a while, the file gets its true bits again.
 *
 *   asleep   the file has the bits that memory has
 *     |        a request wants to set one: the leader sets all in the file, sync
 *   awake    requests set bits in memory, and the file need not know
 *     |        no bit was set from one bitmap_narrow to the next
 *   closing  requests that still believe it to be awake end (setters)
 *     |        the file gets the bits that memory has, without a sync
 *   asleep
 *
 * Invariants:
 *
 *   1  a bit that is set in memory is durably set in the file
 *   2  so a request that finds its bits set in memory has nothing to do: most do
 *   3  while something is recorded, memory has all that the bitmap says
 *
 * Bits in memory are only ever added, and only while a region is awake.  So the contents
 * that bitmap_narrow writes have all bits that were set before, whether or not they reach
 * the disk before a crash: each sector of the old contents has them, too.
 *
 * Why no mark says that the bitmap can be trusted after a crash: it is not marked as in
 * use.  The format asks for that flag while the file does not say what has changed
 * (``while the bitmap is not synced''), but here it does at any moment; only not how
 * little.  A mark of our own beside the flag would have to become invalid when others
 * write to the image.  The obvious one, an autoclear bit, does not: QEMU clears those
 * that it does not know when it opens an image to write it, but keeps them when it opens
 * it to read, and begins to write later (the target of a commit).  A bitmap that is
 * simply valid has the rules of the format: QEMU records what it changes, and so do other
 * servers, without a log as well; a program without bitmaps clears their autoclear bit.
 * QEMU, too, can use the bitmap after a crash, nothing has to be repaired, and an earlier
 * version can go on.
 *
 * If a table entry says that a cell has no bits, a mark is the entry that says that all
 * of them are set: 8 bytes, for which no space is needed.  The next bitmap_narrow gives
 * the cell a cluster (bitmapstore.c), which still has the marks of regions that are
 * awake.  If there is no space for one, the cell keeps that entry until there is.
 *
 * Requests that wait for marks share one write, or if it is several, one sync: the first
 * to come is the leader, and marks what all of them want, while others queue.  For
 * writers in order it marks ahead, as many regions as are awake in a row before theirs,
 * up to AHEAD.  bitmap_narrow is a leader, too, so regions do not wake up meanwhile.
 *
 * If a mark fails, so do the requests that need it.  The file may have it or not, so its
 * region is asleep.  That is all for want of space; after any other failure, R9.
 *
 * Memory: beside that of bitmap.c, at most the same again, but only where regions have
 * been awake: a byte for each, and it has 8 bits or more.  One cluster.
 *
 * Locks: `lock' of the bitmaps guards the queue; it is not held during I/O.  Only the
 * leader uses what is said to be its own, among it the tables of the bitmaps, and it
 * alone wakes regions and lets them sleep.  States are atomic.
 */

#include <config.h>

#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "util/cleanup.h"
#include "util/memory.h"
#include "util/report.h"
#include "util/sparse.h"
#include "format/format.h"
#include "request/bitmap-impl.h"

#define REGION_BITS 22          /* log2 of guest bytes; less, if that is more than a
                                   cell */
#define LEAST_BITS 3            /* log2 of pieces: more guest bytes, if those are
                                   larger */
#define AHEAD 16                /* regions */
/* So much of a cell is written at once: bytes. */
#define BLOCK UINT64_C (4096)

/* A request that waits for marks. */
struct waiter {
  struct waiter *next;
  uint64_t offset, count;
  bool done;
  int err;                      /* errno, or 0 */
};

/* Consecutive regions, in one cell, some of which are being woken. */
struct place {
  struct bitmap *b;
  uint64_t cell, first, last;
  bool entry;                   /* the table entry is their mark, and has to be written */
};

struct bitmaplog {
  struct epoch *setters;        /* threads that may set bits */
  unsigned most_bits;           /* of guest bytes; changes only in tests */
  pthread_cond_t turn;
  bool busy;                    /* there is a leader; under lock */
  struct waiter *waiting;       /* under lock */

  /* The leader's. */
  struct place *places;
  size_t nr_places;
  uint64_t *buf;                /* one cluster */
  uint64_t marks, narrowed;     /* how often, and how many regions */
};

struct bitmaplog *
bitmaplog_new (struct bitmaps *bs)
{
  struct bitmaplog *log = memory_new (1, sizeof *log);

  if (log == NULL)
    return NULL;
  log->most_bits = REGION_BITS;
  log->setters = epoch_new ();
  log->buf = memory_get (bs->h->cluster_size);
  pthread_cond_init (&log->turn, NULL);
  if (log->setters && log->buf)
    return log;
  bitmaplog_free (log);
  return NULL;
}

void
bitmaplog_free (struct bitmaplog *log)
{
  KEEP_ERRNO_FOR_BLOCK;

  if (log == NULL)
    return;
  pthread_cond_destroy (&log->turn);
  epoch_free (log->setters);
  free (log->places);
  free (log->buf);
  free (log);
}

void
bitmap_set_regions (struct bitmaps *bs, unsigned bits)
{
  if (bs->log)
    bs->log->most_bits = bits;
}

/* --- regions --- */

static uint64_t
count_regions (const struct bitmap *b)
{
  return div_up (b->e->bits, UINT64_C (1) << b->region_bits);
}

/* The last bit of a region. */
static uint64_t
last_of (const struct bitmap *b, uint64_t region)
{
  return min64 ((region + 1) << b->region_bits, b->e->bits) - 1;
}

static uint64_t
bits_per_cell (const struct bitmaps *bs)
{
  return bs->h->cluster_size * 8;
}

static uint64_t
cell_of (const struct bitmaps *bs, const struct bitmap *b, uint64_t region)
{
  return (region << b->region_bits) / bits_per_cell (bs);
}

/* The first and the last region of a cell. */
static uint64_t
first_in_cell (const struct bitmaps *bs, const struct bitmap *b, uint64_t cell)
{
  return cell * bits_per_cell (bs) >> b->region_bits;
}

static uint64_t
last_in_cell (const struct bitmaps *bs, const struct bitmap *b, uint64_t cell)
{
  return min64 (first_in_cell (bs, b, cell + 1), count_regions (b)) - 1;
}

static uint8_t
state_of (const struct bitmap *b, uint64_t region)
{
  return atomic_load (&b->regions[region]);
}

static bool
is_awake (const struct bitmap *b, uint64_t region)
{
  const uint8_t state = state_of (b, region);

  return state == AWAKE || state == IN_USE;
}

static void
set_state (struct bitmap *b, uint64_t region, uint8_t state)
{
  atomic_store (&b->regions[region], state);
}

/* Changes WAS to IS; false: it was something else. */
static bool
change_state (struct bitmap *b, uint64_t region, uint8_t was, uint8_t is)
{
  return atomic_compare_exchange_strong (&b->regions[region], &was, is);
}

/* --- beginning and ending --- */

static int
make_regions (struct bitmaps *bs, struct bitmap *b)
{
  const unsigned g = b->e->granularity_bits;
  const unsigned most = bs->log->most_bits;
  const unsigned bits = most > g + LEAST_BITS ? most - g : LEAST_BITS;

  if (b->regions == NULL) {
    b->region_bits = min64 (bits, bs->h->cluster_bits + 3);
    b->regions = sparse_new (count_regions (b));
  }
  if (b->awake == NULL)
    b->awake = calloc (b->e->table_entries, sizeof *b->awake);
  if (b->regions && b->awake)
    return 0;
  return report_refusal (ENOMEM, "calloc: %m");
}

void
bitmaplog_free_bits (struct bitmap *b)
{
  if (b->regions)
    sparse_free ((void *) b->regions, count_regions (b));
  free (b->awake);
  b->regions = NULL;
  b->awake = NULL;
}

/* (Zeros are not written: they would need memory.) */
static int
load_cell (struct bitmaps *bs, struct bitmap *b, uint64_t i)
{
  const uint64_t per_cell = bits_per_cell (bs), first = i * (per_cell / 64);
  const uint64_t n = min64 (per_cell / 64, bitmap_words (b) - first);
  const uint64_t last = min64 ((i + 1) * per_cell, b->e->bits) - 1;
  const bool ones = b->table[i] == QCOW2_BITMAP_ALL_ONES;
  uint64_t *const buf = bs->log->buf;

  if (b->table[i] == 0)
    return 0;
  if (!ones && storage_read (bs->file, buf, n * sizeof *buf, b->table[i]) == -1)
    return -1;
  for (uint64_t w = 0; w < n; w++) {
    const uint64_t value = ones ? word_mask (first + w, i * per_cell, last)
      : le64toh (buf[w]);

    if (value)
      atomic_fetch_or_explicit (&b->bits[first + w], value, memory_order_relaxed);
  }
  return 0;
}

int
bitmaplog_begin (struct bitmaps *bs)
{
  for (size_t i = 0; i < bs->dir.n; i++) {
    struct bitmap *b = &bs->list[i];

    if (make_regions (bs, b) == -1)
      return -1;
    for (uint64_t cell = 0; cell < b->e->table_entries; cell++)
      if (load_cell (bs, b, cell) == -1)
        return -1;
  }
  return 0;
}

/* Calls FN for each region that is not asleep. */
static void
for_awake (struct bitmaps *bs,
           void (*fn) (struct bitmaps *, struct bitmap *, uint64_t region))
{
  for (struct bitmap *b = bs->list; b < bs->list + bs->dir.n; b++)
    for (uint64_t cell = 0; cell < b->e->table_entries; cell++) {
      bool any = false;

      if (!b->awake[cell])
        continue;
      for (uint64_t r = first_in_cell (bs, b, cell); r <= last_in_cell (bs, b, cell); r++)
        if (state_of (b, r) != ASLEEP) {
          fn (bs, b, r);
          any |= state_of (b, r) != ASLEEP;
        }
      b->awake[cell] = any;
    }
}

/* It is to be written. */
static void
cell_has_changed (struct bitmaps *bs, struct bitmap *b, uint64_t region)
{
  b->cells[cell_of (bs, b, region)] = CHANGED;
}

static void
put_to_sleep (struct bitmaps *bs, struct bitmap *b, uint64_t region)
{
  cell_has_changed (bs, b, region);
  set_state (b, region, ASLEEP);
}

void
bitmaplog_end (struct bitmaps *bs)
{
  for_awake (bs, put_to_sleep);
  report_debug ("%s: bitmaps were marked %" PRIu64 " times, and narrowed in %" PRIu64
                " regions", storage_path (bs->file), bs->log->marks, bs->log->narrowed);
}

/* --- the leader: marking --- */

/* Plans that region R, which is asleep, wakes up. */
static int
plan_region (struct bitmaps *bs, struct bitmap *b, uint64_t r)
{
  struct bitmaplog *log = bs->log;
  const uint64_t cell = cell_of (bs, b, r);
  struct place *p = log->nr_places > 0 ? &log->places[log->nr_places - 1] : NULL;

  if (p == NULL || p->b != b || p->cell != cell || p->last + 1 != r) {
    if (MEMORY_APPEND (log->places, log->nr_places) == -1)
      return -1;
    p = &log->places[log->nr_places++];
    *p = (struct place) {
      .b = b, .cell = cell, .first = r, .entry = b->table[cell] == 0,
    };
    if (p->entry)
      b->table[cell] = QCOW2_BITMAP_ALL_ONES;
  }
  p->last = r;
  b->awake[cell] = true;
  set_state (b, r, WAKING);
  return 0;
}

/* How many regions to mark behind R, from which on a request writes. */
static uint64_t
count_ahead (const struct bitmap *b, uint64_t r)
{
  uint64_t n = 0;

  while (n < AHEAD && n < r && is_awake (b, r - 1 - n))
    n++;
  return n;
}

static int
plan_bitmap (struct bitmaps *bs, struct bitmap *b, const struct waiter *w)
{
  const uint64_t first = w->offset >> b->e->granularity_bits;
  const uint64_t last = (w->offset + w->count - 1) >> b->e->granularity_bits;
  const uint64_t begin = first >> b->region_bits, end = last >> b->region_bits;
  const uint64_t most = min64 (end + count_ahead (b, begin),
                               last_in_cell (bs, b, cell_of (bs, b, end)));
  bool woken = false;

  for (uint64_t r = begin; r <= (woken ? most : end); r++) {
    const uint64_t from = r << b->region_bits, to = last_of (b, r);
    const bool wanted = r <= end
      ? !bitmap_has_all (b, max64 (from, first), min64 (to, last))
      : !bitmap_has_all (b, from, to);

    if (!wanted || state_of (b, r) != ASLEEP)
      continue;
    if (plan_region (bs, b, r) == -1)
      return -1;
    woken = true;
  }
  return 0;
}

/* The words of the blocks that contain the regions of P. */
static uint64_t
words_of (const struct bitmaps *bs, const struct place *p, uint64_t *first)
{
  const uint64_t block = min64 (BLOCK, bs->h->cluster_size) / sizeof *bs->log->buf;
  const uint64_t end = round_up (last_of (p->b, p->last) / 64 + 1, block);

  *first = round_down ((p->first << p->b->region_bits) / 64, block);
  return min64 (end, bitmap_words (p->b)) - *first;
}

/* Does the mark need a write? */
static bool
has_write (const struct place *p)
{
  return p->entry || p->b->table[p->cell] != QCOW2_BITMAP_ALL_ONES;
}

static int
write_mark (struct bitmaps *bs, const struct place *p, bool durable)
{
  const uint64_t cs = bs->h->cluster_size, host = p->b->table[p->cell];
  const struct be64 ones = put64 (QCOW2_BITMAP_ALL_ONES);
  struct iovec iov = { (void *) &ones, sizeof ones };
  uint64_t at, first;

  if (!has_write (p))
    return 0;
  if (p->entry)
    at = p->b->e->table + p->cell * sizeof ones;
  else {
    if (overlap_find (bs->overlap, host, cs) != OVERLAP_BITMAP) {       /* R5 */
      health_corrupt (bs->health, "found while marking bitmaps");
      return -1;
    }
    iov.iov_base = bs->log->buf;
    iov.iov_len = words_of (bs, p, &first) * sizeof *bs->log->buf;
    bitmapstore_compose (p->b, first, iov.iov_len / sizeof *bs->log->buf, bs->log->buf);
    at = host + first * sizeof *bs->log->buf % cs;
  }
  return storage_writev (bs->file, &iov, 1, at,
                         durable ? STORAGE_DURABLE : STORAGE_IN_PLACE) == 0 ? 0
    : bitmapstore_failed (bs);
}

/* One write can be durable by itself: then nothing has to wait for the data of
 * clients. */
static int
write_marks (struct bitmaps *bs)
{
  const struct bitmaplog *log = bs->log;
  size_t i, n = 0;

  for (i = 0; i < log->nr_places; i++)
    n += has_write (&log->places[i]);
  for (i = 0; i < log->nr_places; i++)
    if (write_mark (bs, &log->places[i], n == 1) == -1)
      return -1;
  return n > 1 ? bitmapstore_sync (bs) : 0;
}

/* After a failure, the file may say of each either. */
static void
end_marking (struct bitmaps *bs, bool ok)
{
  for (size_t i = 0; i < bs->log->nr_places; i++) {
    struct place *p = &bs->log->places[i];

    for (uint64_t r = p->first; r <= p->last; r++)
      change_state (p->b, r, WAKING, ok ? IN_USE : ASLEEP);
    if (ok)
      p->b->cells[p->cell] = p->entry ? CHANGED : p->b->cells[p->cell];
    else if (p->entry) {        /* the cell has no bits, as before */
      p->b->table[p->cell] = 0;
      p->b->table_changed = true;
    }
    else if (p->b->table[p->cell] > QCOW2_BITMAP_ALL_ONES)
      p->b->cells[p->cell] = CHANGED;
  }
  bs->log->nr_places = 0;
}

/* Wakes the regions that the waiters need.  Returns 0 or errno (reported). */
static int
mark (struct bitmaps *bs, const struct waiter *list)
{
  int r = health_check (bs->health), err;

  for (const struct waiter *w = list; w; w = w->next)
    for (struct bitmap *b = bs->list; r == 0 && b < bs->list + bs->dir.n; b++)
      r = plan_bitmap (bs, b, w);
  if (r == 0)
    r = write_marks (bs);
  err = r == 0 ? 0 : errno;
  end_marking (bs, r == 0);
  bs->log->marks++;
  return err;
}

/* --- whose turn is it? --- */

static void
end_turn (struct bitmaps *bs)
{
  bs->log->busy = false;
  pthread_cond_broadcast (&bs->log->turn);
}

/* With the lock, which is given back meanwhile. */
static void
lead (struct bitmaps *bs)
{
  struct waiter *next = bs->log->waiting;
  int err;

  bs->log->waiting = NULL;
  bs->log->busy = true;
  pthread_mutex_unlock (&bs->lock);
  err = mark (bs, next);
  pthread_mutex_lock (&bs->lock);
  for (struct waiter *w; (w = next) != NULL; ) {
    next = w->next;
    w->err = err;
    w->done = true;
  }
  end_turn (bs);
}

/* Returns when the regions were awake that a request needs; some may sleep again.  -1:
 * reported. */
static int
wake (struct bitmaps *bs, uint64_t offset, uint64_t count)
{
  struct bitmaplog *log = bs->log;
  struct waiter w = { .offset = offset, .count = count };
  LOCK_FOR_BLOCK (&bs->lock);

  w.next = log->waiting;
  log->waiting = &w;
  while (!w.done)
    if (log->busy)
      pthread_cond_wait (&log->turn, &bs->lock);
    else
      lead (bs);
  errno = w.err;
  return w.err ? -1 : 0;
}

/* --- requests --- */

/* For threads that may set bits: is the region awake?  Then it stays so for a while. */
static bool
use_region (struct bitmap *b, uint64_t region)
{
  const uint8_t state = state_of (b, region);

  return state == IN_USE ||
    (state == AWAKE && (change_state (b, region, AWAKE, IN_USE) ||
                        state_of (b, region) == IN_USE));
}

/* May all bits of [first, last] be set that are not? */
static bool
may_set (struct bitmap *b, uint64_t first, uint64_t last)
{
  for (uint64_t r = first >> b->region_bits; r <= last >> b->region_bits; r++)
    if (!bitmap_has_all (b, max64 (r << b->region_bits, first),
                         min64 (last_of (b, r), last)) &&
        !use_region (b, r))
      return false;
  return true;
}

/* As in bitmap.c: what is set is not written again. */
static void
set_bits (struct bitmap *b, uint64_t first, uint64_t last)
{
  for (uint64_t word = first / 64; word <= last / 64; word++) {
    const uint64_t mask = word_mask (word, first, last);

    if ((atomic_load_explicit (&b->bits[word], memory_order_relaxed) & mask) != mask)
      atomic_fetch_or (&b->bits[word], mask);
  }
}

/* Calls FN with the bits of each bitmap, while it returns true. */
static bool
for_bits (struct bitmaps *bs, uint64_t offset, uint64_t count,
          bool (*fn) (struct bitmap *, uint64_t first, uint64_t last))
{
  for (struct bitmap *b = bs->list; b < bs->list + bs->dir.n; b++)
    if (!fn (b, offset >> b->e->granularity_bits,
             (offset + count - 1) >> b->e->granularity_bits))
      return false;
  return true;
}

static bool
has_all (struct bitmap *b, uint64_t first, uint64_t last)
{
  return bitmap_has_all (b, first, last);
}

static bool
set_all (struct bitmap *b, uint64_t first, uint64_t last)
{
  set_bits (b, first, last);
  return true;
}

int
bitmaplog_record (struct bitmaps *bs, uint64_t offset, uint64_t count)
{
  while (!for_bits (bs, offset, count, has_all)) {
    const struct epoch_section section = epoch_enter (bs->log->setters);
    const bool awake = for_bits (bs, offset, count, may_set);

    if (awake)
      for_bits (bs, offset, count, set_all);
    epoch_leave (bs->log->setters, section);
    if (!awake && wake (bs, offset, count) == -1)
      return -1;
  }
  return 0;
}

/* --- the leader: narrowing --- */

static void
close_region (struct bitmaps *bs, struct bitmap *b, uint64_t region)
{
  if (change_state (b, region, IN_USE, AWAKE) ||
      !change_state (b, region, AWAKE, CLOSING))
    return;
  cell_has_changed (bs, b, region);
  bs->log->narrowed++;
}

static void
end_closing (struct bitmaps *bs, struct bitmap *b, uint64_t region)
{
  (void) bs;
  change_state (b, region, CLOSING, ASLEEP);
}

/* Requests that set bits are in a section for a moment, in which they wait for
 * nothing. */
static void
wait_for_setters (struct bitmaps *bs)
{
  const uint64_t stamp = epoch_stamp (bs->log->setters);

  while (!epoch_passed (bs->log->setters, stamp))
    sched_yield ();
}

void
bitmap_narrow (struct bitmaps *bs)
{
  int r;

  if (bs == NULL || bs->log == NULL)
    return;
  {
    LOCK_FOR_BLOCK (&bs->lock);

    if (!bs->recording || bs->log->busy)
      return;
    bs->log->busy = true;
  }
  if (health_check (bs->health) == 0) {
    for_awake (bs, close_region);
    wait_for_setters (bs);
    report_keep ();
    r = bitmapstore_write (bs, bs->log->buf);
    report_end_keeping (r == 0 || !storage_may_try_again (errno));
    for_awake (bs, end_closing);
  }
  LOCK_FOR_BLOCK (&bs->lock);

  end_turn (bs);
}
