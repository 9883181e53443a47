/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Which pieces of a disk are marked?
 *
 * There is a bit for each piece, in words of 64 bits.  The memory comes zeroed from the
 * host and is touched only where something is marked, so that a bitmap of a large disk in
 * which little has changed uses little memory.
 *
 * Pure.  Locks: none; only one thread marks pieces, and afterwards the set does not
 * change.  But any threads may record in a set, while another one takes what they have
 * recorded: then all use the words atomically.
 */

#include <config.h>

#include "util/bytes.h"
#include "util/sparse.h"
#include "request/dirtyset.h"

struct dirtyset {
  uint64_t bits;
  unsigned granularity_bits;
  uint64_t words[];
};

uint64_t
dirtyset_bytes (uint64_t bits)
{
  return sizeof (struct dirtyset) + div_up (bits, 64) * sizeof (uint64_t);
}

struct dirtyset *
dirtyset_new (uint64_t bits, unsigned granularity_bits)
{
  struct dirtyset *s = sparse_new (dirtyset_bytes (bits));

  if (s == NULL)
    return NULL;
  s->bits = bits;
  s->granularity_bits = granularity_bits;
  return s;
}

void
dirtyset_free (struct dirtyset *s)
{
  if (s)
    sparse_free (s, dirtyset_bytes (s->bits));
}

void
dirtyset_mark (struct dirtyset *s, uint64_t word, uint64_t value)
{
  if (value != 0 && word < div_up (s->bits, 64))
    s->words[word] |= value;
}

/* Bits that are already set are not written again, so that writers of the same piece do
 * not compete for the cache line.  (Such a bit is taken together with what is written
 * now, or before it: see dirtyset_take.) */
void
dirtyset_record (struct dirtyset *s, uint64_t offset, uint64_t count)
{
  const uint64_t first = offset >> s->granularity_bits;
  uint64_t last, mask;

  if (count == 0 || first >= s->bits)
    return;
  last = min64 ((offset + count - 1) >> s->granularity_bits, s->bits - 1);
  for (uint64_t word = first / 64; word <= last / 64; word++) {
    mask = word_mask (word, first, last);
    if ((__atomic_load_n (&s->words[word], __ATOMIC_SEQ_CST) & mask) != mask)
      __atomic_fetch_or (&s->words[word], mask, __ATOMIC_SEQ_CST);
  }
}

void
dirtyset_take (struct dirtyset *from, struct dirtyset *into)
{
  for (uint64_t word = 0; word < div_up (from->bits, 64); word++)
    if (__atomic_load_n (&from->words[word], __ATOMIC_SEQ_CST) != 0)
      into->words[word] |= __atomic_exchange_n (&from->words[word], 0, __ATOMIC_SEQ_CST);
}

void
dirtyset_unmark (struct dirtyset *s, uint64_t offset, uint64_t count)
{
  const uint64_t first = offset >> s->granularity_bits;
  const uint64_t last = (offset + count - 1) >> s->granularity_bits;

  for (uint64_t word = first / 64; word <= last / 64; word++)
    s->words[word] &= ~word_mask (word, first, last);
}

uint64_t
dirtyset_count (const struct dirtyset *s)
{
  uint64_t n = 0;

  for (uint64_t word = 0; word < div_up (s->bits, 64); word++)
    n += __builtin_popcountll (__atomic_load_n (&s->words[word], __ATOMIC_RELAXED));
  return n;
}

static uint64_t
word_of (const struct dirtyset *s, uint64_t bit)
{
  return __atomic_load_n (&s->words[bit / 64], __ATOMIC_SEQ_CST);
}

/* Counts the bits from BIT on that have the value of its first one, in *MARKED.  At most
 * MOST (> 0). */
static uint64_t
count_alike (const struct dirtyset *s, uint64_t bit, uint64_t most, bool *marked)
{
  const uint64_t word = word_of (s, bit) >> bit % 64, flip = word & 1 ? UINT64_MAX : 0;
  uint64_t n = 64 - bit % 64, differ = word ^ flip >> bit % 64;

  *marked = word & 1;
  if (differ != 0)
    return min64 (most, __builtin_ctzll (differ));
  while (n < most) {
    differ = word_of (s, bit + n) ^ flip;
    if (differ != 0)
      return min64 (most, n + __builtin_ctzll (differ));
    n += 64;
  }
  return most;
}

bool
dirtyset_find (const struct dirtyset *s, uint64_t offset, uint64_t *len)
{
  const uint64_t piece = UINT64_C (1) << s->granularity_bits;
  const uint64_t first = offset >> s->granularity_bits;
  const uint64_t last = (offset + *len - 1) >> s->granularity_bits;
  bool marked;
  uint64_t n;

  if (first >= s->bits)         /* beyond the last piece */
    return false;
  n = count_alike (s, first, min64 (last, s->bits - 1) - first + 1, &marked);
  *len = min64 (*len, n * piece - (offset & (piece - 1)));
  return marked;
}
