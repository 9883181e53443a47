/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What does a bitmap contain into which others are merged?
 *
 * A piece of the disk is marked if any byte of it is marked in one of the parts.  So a
 * part with smaller pieces marks the larger ones around them, and a part with larger
 * pieces marks all smaller ones in them, up to the end of the disk, as in QEMU.
 *
 * The parts are bitmaps as they are in files, and what was merged into a bitmap that is
 * itself merged into another one counts as part of the latter.  On its way it may have
 * been rounded to larger pieces: granularity_bits of the part says to which.
 *
 * The result is computed cluster by cluster (a "cell"), from those bytes of the parts
 * that are about the same range of the disk.
 *
 * Memory: READ_WORDS, and what the caller has for one cell.
 *
 * Locks: none.
 */

#include <config.h>

#include <endian.h>
#include <stdlib.h>
#include <string.h>

#include "util/bytes.h"
#include "util/cleanup.h"
#include "util/memory.h"
#include "util/report.h"
#include "format/format.h"
#include "change/bitmapmerge.h"

/* The number of words that are read at a time, at most. */
#define READ_WORDS 4096

/* The range of the disk that the cell is about: [start, end), in bytes. */
struct range { uint64_t start, end; };

static struct range
range_of (const struct bitmapmerge_cell *c)
{
  const uint64_t start = c->first << c->granularity_bits;

  return (struct range) {
    start, start + min64 (c->disk_size - start, c->bytes * 8 << c->granularity_bits)
  };
}

/* Sets bits [FIRST, LAST] of the cell. */
static void
set_bits (const struct bitmapmerge_cell *c, uint64_t first, uint64_t last)
{
  for (uint64_t word = first / 64; word <= last / 64; word++) {
    uint64_t mask = UINT64_MAX;

    if (word == first / 64)
      mask &= UINT64_MAX << first % 64;
    if (word == last / 64)
      mask &= UINT64_MAX >> (63 - last % 64);
    c->words[word] |= htole64 (mask);
  }
}

/* Bits [FIRST, END) of the part are marked. */
static void
mark (const struct bitmapmerge_cell *c, const struct bitmapmerge_part *p,
      uint64_t first, uint64_t end)
{
  const struct range r = range_of (c);
  const uint64_t piece = UINT64_C (1) << p->granularity_bits;
  const unsigned bits = p->e->granularity_bits;
  const uint64_t from = max64 (round_down (first << bits, piece), r.start);
  const uint64_t to = min64 (round_up (end << bits, piece), r.end);

  if (from < to)
    set_bits (c, (from - r.start) >> c->granularity_bits,
              (to - 1 - r.start) >> c->granularity_bits);
}

/* The bits of WORD, which are [FIRST, END) of the part, or more. */
static void
mark_word (const struct bitmapmerge_cell *c, const struct bitmapmerge_part *p,
           uint64_t first, uint64_t end, uint64_t word)
{
  unsigned skip, n;

  if (end - first < 64)         /* what is behind the end of a disk does not count */
    word &= (UINT64_C (1) << (end - first)) - 1;
  if (p->granularity_bits == c->granularity_bits &&
      p->e->granularity_bits == c->granularity_bits) {
    c->words[(first - c->first) / 64] |= htole64 (word);
    return;
  }
  while (word != 0) {
    skip = __builtin_ctzll (word);
    word >>= skip;
    n = ~word ? __builtin_ctzll (~word) : 64;
    first += skip;
    mark (c, p, first, first + n);
    if (n == 64)
      return;
    word >>= n;
    first += n;
  }
}

/* Bits [FIRST, END) of the part, which are all in the cluster that ENTRY of its table
 * stands for.  FIRST is a multiple of 64. */
static int
mark_cluster (const struct bitmapmerge_cell *c, const struct bitmapmerge_part *p,
              uint64_t entry, uint64_t first, uint64_t end, uint64_t *buf)
{
  const uint64_t per_cluster = UINT64_C (8) << p->cluster_bits;
  uint64_t n;

  if (entry == 0)
    return 0;
  if (entry == QCOW2_BITMAP_ALL_ONES) {
    mark (c, p, first, end);
    return 0;
  }
  for (; first < end; first += n * 64) {
    n = min64 (div_up (end - first, 64), READ_WORDS);
    if (storage_read (p->file, buf, n * sizeof *buf,
                      entry + first % per_cluster / 8) == -1)
      return -1;
    for (uint64_t i = 0; i < n; i++)
      if (buf[i] != 0)
        mark_word (c, p, first + i * 64, end, le64toh (buf[i]));
  }
  return 0;
}

/* Marks what the part says about the range of the cell. */
static int
mark_part (const struct bitmapmerge_cell *c, const struct bitmapmerge_part *p,
           uint64_t *buf)
{
  const struct range r = range_of (c);
  const uint64_t piece = UINT64_C (1) << p->granularity_bits;
  const uint64_t per_cluster = UINT64_C (8) << p->cluster_bits;
  const unsigned bits = p->e->granularity_bits;
  const uint64_t end = min64 (div_up (round_up (r.end, piece), UINT64_C (1) << bits),
                              p->e->bits);
  uint64_t at = round_down (round_down (r.start, piece) >> bits, 64), next;
  struct be64 entry;

  for (; at < end; at = next) {
    next = min64 (round_down (at, per_cluster) + per_cluster, end);
    if (storage_read (p->file, &entry, sizeof entry,
                      p->e->table + at / per_cluster * sizeof entry) == -1 ||
        mark_cluster (c, p, get64 (entry), at, next, buf) == -1)
      return -1;
  }
  return 0;
}

int
bitmapmerge_compute (const struct bitmapmerge_part *parts, size_t n,
                     const struct bitmapmerge_cell *c)
{
  CLEANUP_FREE uint64_t *buf = memory_get (READ_WORDS * sizeof *buf);

  if (buf == NULL)
    return -1;
  memset (c->words, 0, c->bytes);
  for (size_t i = 0; i < n; i++)
    if (mark_part (c, &parts[i], buf) == -1)
      return -1;
  for (uint64_t i = 0; i < c->bytes / 8; i++)
    if (c->words[i] != 0)
      return 1;
  return 0;
}
