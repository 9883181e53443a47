/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Which partitions does a disk have?
 *
 * An MBR has four entries; one of them may be a chain of further tables, each with one
 * partition and a link to the next.  A GPT has up to 128.  The bytes may be hostile:
 * numbers are only taken, and chains are limited.  Sectors have 512 bytes.
 *
 * Locks: none.
 */

#include <config.h>

#include <endian.h>
#include <string.h>

#include "util/bytes.h"
#include "img/partitions.h"

#define SECTOR UINT64_C (512)
/* A GPT's table may be anywhere; programs have it at the beginning. */
#define HEAD (UINT64_C (64) << 10)
#define MOST_LOGICAL 59         /* numbers 5 to 63 */

static uint64_t
little (const uint8_t *bytes, unsigned n)
{
  uint64_t x = 0;

  while (n > 0)
    x = x << 8 | bytes[--n];
  return x;
}

/* Fills BUF, with zeros behind the end of the disk. */
static int
read_disk (const struct copy_end *e, uint8_t *buf, uint64_t count, uint64_t at)
{
  const uint64_t there = at < e->size ? min64 (count, e->size - at) : 0;

  memset (buf + there, 0, count - there);
  return there == 0 ? 0 : e->ops->read (e, buf, there, at);
}

bool
partitions_is_fat (const void *sector)
{
  const char *s = sector;

  return memcmp (s + 510, "\x55\xaa", 2) == 0 &&
    (memcmp (s + 54, "FAT", 3) == 0 || memcmp (s + 82, "FAT32", 5) == 0);
}

static bool
is_extended (uint8_t type)
{
  return type == 0x05 || type == 0x0f || type == 0x85;
}

static int
find_gpt (const uint8_t *head, struct partition *list)
{
  static const uint8_t unused[16];
  const uint64_t at = little (head + 584, 8), n = little (head + 592, 4);
  const uint64_t size = little (head + 596, 4);
  int found = 0;

  if (size < 128 || size > 4096 || at > HEAD / SECTOR)
    return 0;
  for (uint64_t i = 0; i < n && i < MOST_PARTITIONS; i++) {
    const uint64_t place = at * SECTOR + i * size;
    const uint8_t *entry = head + place;

    if (!range_within (place, 48, HEAD))
      break;
    if (memcmp (entry, unused, sizeof unused) != 0) {
      const uint64_t first = little (entry + 32, 8), last = little (entry + 40, 8);

      list[found++] = (struct partition) {
        i + 1, first * SECTOR, (last - first + 1) * SECTOR
      };
    }
  }
  return found;
}

/* The chain of tables in the extended partition that begins at sector BEGIN. */
static int
find_logical (const struct copy_end *e, uint64_t begin, struct partition *list, int found)
{
  uint64_t table = begin;
  uint8_t sector[512];

  for (unsigned i = 0; i < MOST_LOGICAL; i++) {
    const uint8_t *one = sector + 446, *next = one + 16;

    if (read_disk (e, sector, sizeof sector, table * SECTOR) == -1)
      return -1;
    if (memcmp (sector + 510, "\x55\xaa", 2) != 0)
      break;
    if (one[4] && little (one + 12, 4))
      list[found++] = (struct partition) {
        5 + i, (table + little (one + 8, 4)) * SECTOR, little (one + 12, 4) * SECTOR
      };
    if (!is_extended (next[4]) || little (next + 8, 4) == 0)
      break;
    table = begin + little (next + 8, 4);
  }
  return found;
}

static int
find_mbr (const struct copy_end *e, const uint8_t *head, struct partition *list)
{
  const uint8_t *const entries = head + 446;
  uint64_t extended = 0;
  int found = 0;

  /* A boot sector of FAT has the mark too, and anything in place of partitions. */
  for (unsigned i = 0; i < 4; i++)
    if (entries[16 * i] != 0 && entries[16 * i] != 0x80)
      return 0;
  if (partitions_is_fat (head))
    return 0;
  for (unsigned i = 0; i < 4; i++) {
    const uint8_t *one = entries + 16 * i;

    if (is_extended (one[4]))
      extended = little (one + 8, 4);
    else if (one[4] && little (one + 12, 4))
      list[found++] = (struct partition) {
        i + 1, little (one + 8, 4) * SECTOR, little (one + 12, 4) * SECTOR
      };
  }
  return extended ? find_logical (e, extended, list, found) : found;
}

int
partitions_find (const struct copy_end *e, struct partition list[MOST_PARTITIONS])
{
  uint8_t head[HEAD];
  int n = 0;

  if (read_disk (e, head, sizeof head, 0) == -1)
    return -1;
  if (memcmp (head + 510, "\x55\xaa", 2) == 0)
    n = memcmp (head + 512, "EFI PART", 8) == 0 ? find_gpt (head, list)
      : find_mbr (e, head, list);
  if (n == 0)
    list[n++] = (struct partition) { 0, 0, e->size };
  return n;
}
