/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Which persistent bitmaps does an image have?
 *
 * Specification: "Bitmaps".
 *
 * A server that changes the disk must keep all bitmaps correct, and must not lose one.
 * There are three kinds:
 *
 *   auto, valid         must record each change: bitmap.c does that
 *   not auto, valid     record nothing now: kept byte for byte
 *   in use              invalid, because a program crashed: kept byte for byte
 *
 * The clusters of all kinds are metadata (R5).  So each directory entry and each table
 * is read and checked once, against all limits that QEMU has.  If a bitmap has
 * properties that the plugin does not know, it cannot be kept correct.  The caller then
 * has to serve the disk read-only.  This must be decided before any client may write,
 * hence when the image is opened.
 *
 * The flags of a directory entry are 4 bytes that never cross a sector, and nothing else
 * of an entry ever changes, so they are written in place.
 *
 * Locks: none; the directory is read once, before requests.  A caller that sets flags
 * makes sure that no other thread does.
 */

#include <config.h>

#include <endian.h>
#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "util/bytes.h"
#include "util/cleanup.h"
#include "util/memory.h"
#include "util/printable.h"
#include "util/report.h"
#include "format/format.h"
#include "image/bitmapdir.h"

#define SHOWN_NAME 48

/* The state of bitmapdir_read. */
struct reading {
  struct storage *file;
  const struct header *h;
  struct overlap *overlap;      /* NULL: only the directory is read */
  struct bitmapdir *dir;
  char *why;

  uint64_t at;                  /* offset of the current directory entry */
  struct qcow2_bitmap raw;
  uint64_t all_entries;         /* entries of all tables so far */
};

/* Records that the current bitmap cannot be kept correct, and why.  Returns 1. */
static int
refuse_bitmap (struct reading *r, const char *fmt, ...)
  __attribute__ ((__format__ (__printf__, 2, 3)));

static int
refuse_bitmap (struct reading *r, const char *fmt, ...)
{
  const size_t n = min64 (get16 (r->raw.name_size), SHOWN_NAME);
  char name[SHOWN_NAME], shown[PRINTABLE_SIZE (SHOWN_NAME)];
  char text[128];
  va_list args;

  va_start (args, fmt);
  vsnprintf (text, sizeof text, fmt, args);
  va_end (args);
  if (n == 0 ||
      storage_read (r->file, name, n, r->at + sizeof r->raw +
                    get32 (r->raw.extra_size)) == -1)
    snprintf (r->why, BITMAPDIR_WHY, "a bitmap cannot be maintained: %s", text);
  else {
    printable (name, n, shown, sizeof shown);
    snprintf (r->why, BITMAPDIR_WHY, "bitmap \"%.*s\" cannot be maintained: %s",
              SHOWN_NAME, shown, text);
  }
  return 1;
}

/* Registers clusters that must not have another use. */
static int
claim (struct reading *r, uint64_t offset, uint64_t bytes, const char *what)
{
  enum overlap_kind kind;

  if (r->overlap == NULL)
    return 0;
  kind = overlap_find (r->overlap, offset, bytes);
  if (kind != OVERLAP_NONE)
    return refuse_bitmap (r, "its %s at %" PRIu64 " overlaps the %s", what,
                          offset, overlap_name (kind));
  return overlap_add (r->overlap, offset, bytes, OVERLAP_BITMAP);
}

static int
check_entry (struct reading *r)
{
  const struct qcow2_bitmap *raw = &r->raw;
  const uint64_t offset = get64 (raw->table_offset);
  const uint64_t n = get32 (raw->table_size);

  if (get32 (raw->extra_size) != 0)
    return refuse_bitmap (r, "it has extra data");
  if (raw->type != QCOW2_BITMAP_DIRTY_TRACKING)
    return refuse_bitmap (r, "its type is %u", raw->type);
  if (get32 (raw->flags) & ~QCOW2_BITMAP_FLAGS)
    return refuse_bitmap (r, "its flags are 0x%" PRIx32, get32 (raw->flags));
  if (raw->granularity_bits < QCOW2_MIN_BITMAP_GRANULARITY ||
      raw->granularity_bits > QCOW2_MAX_BITMAP_GRANULARITY)
    return refuse_bitmap (r, "its granularity is 2^%u bytes", raw->granularity_bits);
  if (get16 (raw->name_size) == 0 ||
      get16 (raw->name_size) > QCOW2_MAX_BITMAP_NAME)
    return refuse_bitmap (r, "its name has %u bytes", get16 (raw->name_size));
  if (n == 0 || n > QCOW2_MAX_BITMAP_BYTES >> r->h->cluster_bits)
    return refuse_bitmap (r, "its table has %" PRIu64 " entries", n);
  if (offset == 0 || offset & (r->h->cluster_size - 1))
    return refuse_bitmap (r, "its table is at %" PRIu64, offset);
  if (!range_within (offset, n * sizeof (struct be64),
                     storage_size (r->file)))
    return refuse_bitmap (r, "its table lies beyond the end of the file");
  r->all_entries += n;
  if (r->all_entries > BITMAPDIR_MAX_ENTRIES)
    return refuse_bitmap (r, "all tables together have more than %" PRIu64 " entries",
                          BITMAPDIR_MAX_ENTRIES);
  return claim (r, offset, n * sizeof (struct be64), "table");
}

/* Checks an entry of a table.  BYTES: how many bytes of the cluster contain bits. */
static int
check_table_entry (struct reading *r, uint64_t entry, uint64_t bytes)
{
  const uint64_t offset = entry & QCOW2_BITMAP_OFFSET_MASK;

  if (offset == 0)
    return (entry & ~QCOW2_BITMAP_ALL_ONES) == 0 ? 0 :
      refuse_bitmap (r, "a table entry is 0x%" PRIx64, entry);
  if (entry != offset || (offset & (r->h->cluster_size - 1)) != 0)
    return refuse_bitmap (r, "a table entry is 0x%" PRIx64, entry);
  if (!range_within (offset, bytes, storage_size (r->file)))
    return refuse_bitmap (r, "its data at %" PRIu64 " lies beyond the end of the file",
                          offset);
  return claim (r, offset, r->h->cluster_size, "data");
}

/* Checks the table of a bitmap of TOTAL bytes. */
static int
check_table (struct reading *r, uint64_t total)
{
  const uint64_t cs = r->h->cluster_size;
  const uint64_t entries = get32 (r->raw.table_size);
  CLEANUP_FREE struct be64 *buf = NULL;
  uint64_t i, n, done;
  int result;

  if (r->overlap == NULL)
    return 0;
  buf = memory_get (65536);
  if (buf == NULL)
    return -1;
  for (done = 0; done < entries; done += n) {
    n = min64 (entries - done, 65536 / sizeof *buf);
    if (storage_read (r->file, buf, n * sizeof *buf,
                      get64 (r->raw.table_offset) +
                      done * sizeof *buf) == -1)
      return -1;
    for (i = 0; i < n; i++) {
      result = check_table_entry (r, get64 (buf[i]),
                                  min64 (cs, total - (done + i) * cs));
      if (result != 0)
        return result;
    }
  }
  return 0;
}

/* FOLLOWS: it must record changes. */
static int
add_entry (struct reading *r, uint64_t bits, bool follows)
{
  const size_t len = get16 (r->raw.name_size);
  struct bitmapdir *dir = r->dir;
  struct bitmapdir_any *any = &dir->all[dir->nr_all];

  any->name = memory_new (1, len + 1);
  if (any->name == NULL)
    return -1;
  dir->nr_all++;
  any->flags = get32 (r->raw.flags);
  any->follower = SIZE_MAX;
  any->e = (struct bitmapdir_entry) {
    .at = r->at, .table = get64 (r->raw.table_offset),
    .table_entries = get32 (r->raw.table_size),
    .bits = bits, .granularity_bits = r->raw.granularity_bits,
  };
  if (follows) {
    any->follower = dir->n;
    dir->entries[dir->n++] = any->e;
  }
  return storage_read (r->file, any->name, len,
                       r->at + sizeof r->raw + get32 (r->raw.extra_size));
}

/* Reads the entry at r->at. */
static int
read_entry (struct reading *r)
{
  const uint32_t count = get32 (r->raw.table_size);
  const uint64_t bits =
    div_up (r->h->size, UINT64_C (1) << r->raw.granularity_bits);
  const uint64_t bytes = div_up (bits, 8);
  int result;

  /* A bitmap that is in use may have the length of an earlier size of the disk. */
  if (get32 (r->raw.flags) & QCOW2_BITMAP_IN_USE) {
    result = check_table (r, count * r->h->cluster_size);
    return result == 0 ? add_entry (r, bits, false) : result;
  }

  if (count != div_up (bytes, r->h->cluster_size))
    return refuse_bitmap (r, "its table has %" PRIu32 " entries, which does not fit the "
                          "size of the disk", count);
  result = check_table (r, bytes);
  if (result != 0)
    return result;
  if (!(get32 (r->raw.flags) & QCOW2_BITMAP_AUTO))
    return add_entry (r, bits, false);
  r->dir->recorded += bytes;
  return add_entry (r, bits, true);
}

static int
read_directory (struct reading *r)
{
  const uint64_t start = r->h->bitmaps.dir_offset;
  const uint64_t end = start + r->h->bitmaps.dir_size;
  uint64_t len;
  uint32_t i;
  int result;

  result = claim (r, start, end - start, "directory");
  r->at = start;
  for (i = 0; result == 0 && i < r->h->bitmaps.count; i++) {
    if (!range_within (r->at, sizeof r->raw, end))
      break;
    if (storage_read (r->file, &r->raw, sizeof r->raw, r->at) == -1)
      return -1;
    len = round_up (sizeof r->raw + (uint64_t) get32 (r->raw.extra_size) +
                    get16 (r->raw.name_size), 8);
    if (!range_within (r->at, len, end))
      break;
    result = check_entry (r);
    if (result == 0)
      result = read_entry (r);
    r->at += len;
  }
  if (result == 0 && (i < r->h->bitmaps.count || r->at != end)) {
    snprintf (r->why, BITMAPDIR_WHY, "bitmaps cannot be maintained: the bitmap "
              "directory does not contain the %" PRIu32 " entries that the header states",
              r->h->bitmaps.count);
    result = 1;
  }
  return result;
}

int
bitmapdir_read (struct storage *file, const struct header *h,
                struct overlap *overlap, struct bitmapdir *dir,
                char why[BITMAPDIR_WHY])
{
  struct reading r = {
    .file = file, .h = h, .overlap = overlap, .dir = dir, .why = why,
  };
  int result;

  memset (dir, 0, sizeof *dir);
  dir->entries = memory_new (h->bitmaps.count, sizeof *dir->entries);
  dir->all = memory_new (h->bitmaps.count, sizeof *dir->all);
  if (dir->entries == NULL || dir->all == NULL) {
    bitmapdir_free (dir);
    return -1;
  }
  result = read_directory (&r);
  if (result == 0)
    report_debug ("%s: %" PRIu32 " bitmaps, %zu of them enabled",
                  storage_path (file), h->bitmaps.count, dir->n);
  else
    bitmapdir_free (dir);
  return result;
}

int
bitmapdir_list (struct storage *file, const struct header *h, struct overlap *overlap,
                struct bitmapdir *dir)
{
  char why[BITMAPDIR_WHY];
  const int r = bitmapdir_read (file, h, overlap, dir, why);

  if (r != 1)
    return r;
  return report_refusal (EINVAL, "%s: %s", storage_path (file), why);
}

uint64_t *
bitmapdir_read_table (struct storage *file, const struct bitmapdir_entry *e)
{
  uint64_t *table = memory_get (e->table_entries * sizeof *table);

  if (table == NULL)
    return NULL;
  if (storage_read (file, table, e->table_entries * sizeof *table, e->table) == -1) {
    KEEP_ERRNO_FOR_BLOCK;
    free (table);
    return NULL;
  }
  for (uint64_t i = 0; i < e->table_entries; i++)
    table[i] = be64toh (table[i]);
  return table;
}

void
bitmapdir_free (struct bitmapdir *dir)
{
  for (size_t i = 0; i < dir->nr_all; i++)
    free (dir->all[i].name);
  free (dir->all);
  free (dir->entries);
  memset (dir, 0, sizeof *dir);
}

int
bitmapdir_set_in_use (const struct bitmapdir *dir, struct storage *file,
                      bool in_use)
{
  const struct be32 flags =
    put32 (QCOW2_BITMAP_AUTO | (in_use ? QCOW2_BITMAP_IN_USE : 0));

  for (size_t i = 0; i < dir->n; i++)
    if (storage_write (file, &flags, sizeof flags, dir->entries[i].at +
                       offsetof (struct qcow2_bitmap, flags)) == -1)
      return -1;
  return 0;
}
