/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What do the bytes of a refcount block mean, and which blocks are in memory?
 *
 * Specification: "Host cluster management".
 *
 * Blocks are kept as they are in the file.  Counts are 1, 2 or 4 bits wide (the
 * lowest index in the least significant bits of a byte) or 1, 2, 4 or 8 bytes,
 * big-endian.
 *
 * An array of pointers, as long as the refcount table (1 Mi entries at most), leads to
 * the blocks, so there is no hash to tune.  A block is on one of two lists:
 *
 *    clean  may be evicted, least recently used first, when there are too many
 *    busy   changed, or a copy of it is being written: stays until it is clean
 *
 * No locks and no I/O: the functions of refcount.c call these under their lock.
 */

#include <config.h>

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "util/bytes.h"
#include "util/sparse.h"
#include "space/refblock.h"

void
refblock_set (void *raw, unsigned order, uint64_t i, uint64_t value)
{
  unsigned char *p = raw;

  switch (order) {
  case 3:
    p[i] = value;
    break;
  case 4: {
    struct be16 x = put16 (value);
    memcpy (p + i * 2, &x, 2);
    break;
  }
  case 5: {
    struct be32 x = put32 (value);
    memcpy (p + i * 4, &x, 4);
    break;
  }
  case 6: {
    struct be64 x = put64 (value);
    memcpy (p + i * 8, &x, 8);
    break;
  }
  default: {
    unsigned mask = (1u << (1u << order)) - 1;
    unsigned shift = (i << order) & 7;
    unsigned char *byte = &p[(i << order) >> 3];

    *byte = (*byte & ~(mask << shift)) | ((value & mask) << shift);
  }
  }
}

uint64_t
refblock_refer (void *raw, unsigned order, uint64_t from, uint64_t to, int by)
{
  uint64_t count;

  for (; from < to; from++) {
    count = refblock_get (raw, order, from);
    if (count == 0 || (by > 0 && count == refblock_max (order)))
      break;
    refblock_set (raw, order, from, count + by);
  }
  return from;
}

/* 1 in each of the counts of a word of eight bytes. */
static const uint64_t ones[] = {
  UINT64_MAX, UINT64_MAX / 3, UINT64_MAX / 15, UINT64_MAX / 255, UINT64_MAX / 65535,
  UINT64_MAX / UINT32_MAX, 1,
};

/* The highest bit of each count shows whether it borrowed: none did, if the subtraction
 * of all at once is right.  (Counts of less than 8 bits have any order in a word.) */
uint64_t
refblock_drop_as (void *raw, const void *from, unsigned order, uint64_t n)
{
  const uint64_t high = ones[order] << ((1 << order) - 1), word = UINT64_C (64) >> order;
  struct be64 rest, counts;
  uint64_t i, old, by, new;

  for (i = 0; i < n; i += word) {
    memcpy (&rest, (char *) raw + i / word * 8, 8);
    memcpy (&counts, (const char *) from + i / word * 8, 8);
    old = get64 (counts);
    by = ~get64 (rest);
    new = old - by;
    if (((~old & by) | (~(old ^ by) & new)) & high)
      break;
    rest = put64 (new);
    memcpy ((char *) raw + i / word * 8, &rest, 8);
  }
  while (i < n && refblock_get (from, order, i) >= refblock_max (order) -
         refblock_get (raw, order, i))
    i++;
  return i;
}

/* Words of eight bytes that are looked at in one step. */
#define LONG 64

/* Is one of the counts in N words 0?  In any order of bytes: subtracting 1 borrows from
 * the highest bit of a count, where it was not set, only if the count, or one before it
 * in the word, is 0.  (No branches, so that the compiler uses vectors.) */
static inline bool
has_zero (const unsigned char *p, unsigned n, unsigned order)
{
  const uint64_t one = ones[order], high = one << ((1 << order) - 1);
  uint64_t counts, found = 0;

  for (unsigned i = 0; i < n; i++) {
    memcpy (&counts, p + 8 * i, 8);
    found |= (counts - one) & ~counts & high;
  }
  return found != 0;
}

/* (Blocks may have 16 Mi counts, and a change looks through those of the whole file.) */
uint64_t
refblock_find_zero (const void *raw, unsigned order, uint64_t from,
                    uint64_t to)
{
  const unsigned char *p = raw;
  const uint64_t word = UINT64_C (64) >> order, stretch = LONG * word;

  while (from < to) {
    const unsigned char *at = p + from / word * 8;

    if (from % stretch == 0 && to - from >= stretch && !has_zero (at, LONG, order))
      from += stretch;
    else if (from % word == 0 && to - from >= word && !has_zero (at, 1, order))
      from += word;
    else if (refblock_get (raw, order, from) == 0)
      return from;
    else
      from++;
  }
  return to;
}

uint64_t
refblock_end (const void *raw, unsigned order, size_t size)
{
  const unsigned char *p = raw;
  uint64_t i;

  while (size >= 8) {
    uint64_t word;

    memcpy (&word, p + size - 8, 8);
    if (word != 0)
      break;
    size -= 8;
  }
  i = ((uint64_t) size << 3) >> order;
  while (i > 0 && refblock_get (raw, order, i - 1) == 0)
    i--;
  return i;
}

static void
list_remove (struct refblock *b)
{
  b->prev->next = b->next;
  b->next->prev = b->prev;
  b->prev = b->next = b;
}

static void
list_push (struct refblock *head, struct refblock *b)
{
  b->next = head->next;
  b->prev = head;
  head->next->prev = b;
  head->next = b;
}

static bool
is_clean (const struct refblock *b)
{
  return b->dirty_lo == b->dirty_hi && !b->writing;
}

static void
free_list (struct refblock_cache *c, struct refblock *head)
{
  while (head->next != head) {
    struct refblock *b = head->next;

    list_remove (b);
    refblock_free (c, b);
  }
}

/* Drops the least recently used blocks, but never the first one of the list. */
static void
evict (struct refblock_cache *c)
{
  while (c->nclean > c->max_clean && c->clean.prev != c->clean.next)
    refblock_cache_drop (c, c->clean.prev);
}

void
refblock_cache_init (struct refblock_cache *c, size_t size, size_t max_clean)
{
  memset (c, 0, sizeof *c);
  c->size = size;
  c->max_clean = max_clean;
  c->clean.prev = c->clean.next = &c->clean;
  c->busy.prev = c->busy.next = &c->busy;
}

void
refblock_cache_free (struct refblock_cache *c)
{
  free_list (c, &c->clean);
  free_list (c, &c->busy);
  sparse_free (c->slots, c->nslots * sizeof *c->slots);
}

int
refblock_cache_grow (struct refblock_cache *c, uint64_t nslots)
{
  struct refblock **slots;

  if (nslots <= c->nslots)
    return 0;
  slots = sparse_grow (c->slots, c->nslots * sizeof *slots,
                       nslots * sizeof *slots);
  if (slots == NULL)
    return -1;
  c->slots = slots;
  c->nslots = nslots;
  return 0;
}

struct refblock *
refblock_cache_find (struct refblock_cache *c, uint64_t index)
{
  struct refblock *b;

  assert (index < c->nslots);
  b = c->slots[index];
  if (b && is_clean (b)) {
    list_remove (b);
    list_push (&c->clean, b);
  }
  return b;
}

struct refblock *
refblock_new (const struct refblock_cache *c, uint64_t index)
{
  struct refblock *b = calloc (1, sizeof *b);

  if (b == NULL)
    return NULL;
  b->raw = sparse_new (c->size);
  if (b->raw == NULL) {
    free (b);
    return NULL;
  }
  b->prev = b->next = b;
  b->index = index;
  return b;
}

struct refblock *
refblock_recycle (struct refblock_cache *c, uint64_t index)
{
  struct refblock *b = c->clean.prev;

  if (b == &c->clean)
    return NULL;
  list_remove (b);
  c->nclean--;
  c->slots[b->index] = NULL;
  memset (b->raw, 0, c->size);
  b->fresh = false;
  b->index = index;
  return b;
}

void
refblock_free (const struct refblock_cache *c, struct refblock *b)
{
  sparse_free (b->raw, c->size);
  free (b);
}

void
refblock_cache_insert (struct refblock_cache *c, struct refblock *b)
{
  assert (b->index < c->nslots && c->slots[b->index] == NULL);
  c->slots[b->index] = b;
  list_push (&c->clean, b);
  c->nclean++;
  evict (c);
}

void
refblock_cache_drop (struct refblock_cache *c, struct refblock *b)
{
  if (is_clean (b))
    c->nclean--;
  list_remove (b);
  c->slots[b->index] = NULL;
  refblock_free (c, b);
}

void
refblock_dirty (struct refblock_cache *c, struct refblock *b, unsigned order,
                uint64_t from, uint64_t to)
{
  size_t lo = (from << order) >> 3;
  size_t hi = ((to << order) + 7) >> 3;

  assert (lo < hi && hi <= c->size);
  if (is_clean (b)) {
    list_remove (b);
    list_push (&c->busy, b);
    c->nclean--;
  }
  if (b->dirty_lo == b->dirty_hi) {
    b->dirty_lo = lo;
    b->dirty_hi = hi;
  }
  else {
    b->dirty_lo = min64 (b->dirty_lo, lo);
    b->dirty_hi = max64 (b->dirty_hi, hi);
  }
}

void
refblock_write_begin (struct refblock *b, size_t *lo, size_t *hi)
{
  assert (b->dirty_lo < b->dirty_hi && !b->writing);
  *lo = b->dirty_lo;
  *hi = b->dirty_hi;
  b->dirty_lo = b->dirty_hi = 0;
  b->writing = true;
}

void
refblock_write_end (struct refblock_cache *c, struct refblock *b,
                    size_t lo, size_t hi, bool ok)
{
  assert (b->writing);
  if (!ok)
    refblock_dirty (c, b, 3, lo, hi);   /* order 3: bytes */
  b->writing = false;
  if (is_clean (b)) {
    list_remove (b);
    list_push (&c->clean, b);
    c->nclean++;
    evict (c);
  }
}
