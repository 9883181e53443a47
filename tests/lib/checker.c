/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Is this image valid?
 *
 * Walks header, refcount table and blocks, snapshots, bitmaps, L1 and L2 tables of an
 * image in memory, counts the references to each host cluster, and compares.  It calls
 * corrupt what qemu-img check calls corrupt, and a few things more:
 *
 *   count < references            data loss ahead
 *   COPIED and count == 1 differ  in active tables (R7)
 *   unaligned or reserved bits
 *   a reference that begins behind the end of the file
 *   a cluster with two roles      metadata and anything else; L2 table and data
 *   subclusters in an invalid state
 *
 * and leaked: count > references, also behind the end of the file.
 *
 * On purpose this uses no code of the core, not even its header files.
 */

#include <config.h>

#include <endian.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

#include "lib/checker.h"

#define OFFSET_BITS UINT64_C (0x00fffffffffffe00)
#define COPIED (UINT64_C (1) << 63)
#define COMPRESSED (UINT64_C (1) << 62)
#define EXTENDED_L2 UINT64_C (16)       /* incompatible feature */
#define EXTERNAL_DATA UINT64_C (4)

enum role { NOTHING, METADATA, L2_TABLE, DATA };

struct walk {
  const unsigned char *p;
  uint64_t len;
  struct check_result *result;

  unsigned version, bits, order;
  bool external;                /* has a data file */
  uint64_t cs;                  /* cluster size */
  unsigned entry_size;          /* bytes of an L2 entry: 8, or 16 with subclusters */
  uint64_t size;                /* virtual size */
  uint64_t l1_offset, l1_size;
  uint64_t table_offset, table_clusters;
  uint64_t snapshots_offset, snapshots;
  uint64_t bitmaps, bitmaps_offset, bitmaps_bytes;      /* 0: none */
  uint64_t luks_offset, luks_bytes;

  uint64_t clusters;            /* in the file */
  uint64_t *refs;
  unsigned char *roles;
};

/* --- bytes; the file reads as zeros behind its end --- */

static uint64_t
get (const struct walk *w, uint64_t at, unsigned bytes)
{
  unsigned char raw[8] = { 0 };
  uint64_t value;

  /* Big-endian: the last bytes count. */
  if (at < w->len)
    memcpy (raw + 8 - bytes, w->p + at,
            w->len - at < bytes ? w->len - at : bytes);
  memcpy (&value, raw, 8);
  return be64toh (value);
}

static void
note (struct walk *w, bool corrupt, const char *fmt, ...)
  __attribute__ ((format (printf, 3, 4)));

static void
note (struct walk *w, bool corrupt, const char *fmt, ...)
{
  struct check_result *r = w->result;
  va_list args;

  if (corrupt ? r->corruptions == 0 : r->corruptions + r->leaks == 0) {
    va_start (args, fmt);
    vsnprintf (r->first, sizeof r->first, fmt, args);
    va_end (args);
  }
  if (corrupt)
    r->corruptions++;
  else
    r->leaks++;
}

/* Where the contents of this header extension are; 0 if there is none. */
static uint64_t
find_extension (const struct walk *w, uint64_t wanted)
{
  uint64_t at = w->version == 3 ? get (w, 100, 4) : 72, type;

  while (at + 8 <= w->cs && (type = get (w, at, 4)) != 0) {
    if (type == wanted)
      return at + 8;
    at += 8 + (get (w, at + 4, 4) + 7) / 8 * 8;
  }
  return 0;
}

/* Finds the bitmaps extension, if the header says that it is valid. */
static void
find_bitmaps (struct walk *w)
{
  uint64_t at;

  if (w->version != 3 || !(get (w, 88, 8) & 1))
    return;
  at = find_extension (w, 0x23852875);
  if (at == 0) {
    note (w, true, "header: bitmaps, but no directory");
    return;
  }
  w->bitmaps = get (w, at, 4);
  w->bitmaps_bytes = get (w, at + 8, 8);
  w->bitmaps_offset = get (w, at + 16, 8);
}

/* Finds the LUKS header and its keys. */
static void
find_encryption (struct walk *w)
{
  uint64_t at;

  if (get (w, 32, 4) != 2)
    return;
  at = find_extension (w, 0x0537be77);
  if (at == 0) {
    note (w, true, "header: LUKS, but no place of its header");
    return;
  }
  w->luks_offset = get (w, at, 8);
  w->luks_bytes = get (w, at + 8, 8);
}

static bool
read_header (struct walk *w)
{
  uint64_t incompatible = 0;

  w->version = get (w, 4, 4);
  w->bits = get (w, 20, 4);
  if (get (w, 0, 4) != 0x514649fb || (w->version != 2 && w->version != 3) ||
      w->bits < 9 || w->bits > 21) {
    note (w, true, "no valid header");
    return false;
  }
  w->cs = UINT64_C (1) << w->bits;
  w->size = get (w, 24, 8);
  w->l1_size = get (w, 36, 4);
  w->l1_offset = get (w, 40, 8);
  w->table_offset = get (w, 48, 8);
  w->table_clusters = get (w, 56, 4);
  w->snapshots = get (w, 60, 4);
  w->snapshots_offset = get (w, 64, 8);
  w->order = 4;
  if (w->version == 3) {
    incompatible = get (w, 72, 8);
    w->order = get (w, 96, 4);
  }
  w->entry_size = incompatible & EXTENDED_L2 ? 16 : 8;
  w->external = incompatible & EXTERNAL_DATA;
  if ((incompatible & ~(EXTENDED_L2 | EXTERNAL_DATA)) != 0)
    note (w, true, "incompatible features 0x%" PRIx64, incompatible);
  if (w->order > 6 || w->l1_offset % w->cs || w->table_offset % w->cs ||
      w->table_offset == 0 || w->table_clusters == 0 ||
      w->l1_size > 1 << 22 || w->table_clusters * w->cs > 8 << 20) {
    note (w, true, "header: impossible tables");
    return false;
  }
  if (w->l1_size * (w->cs / w->entry_size) << w->bits < w->size)
    note (w, true, "header: L1 table too short");
  find_bitmaps (w);
  find_encryption (w);
  return true;
}

static uint64_t
refcount (const struct walk *w, uint64_t cluster)
{
  const unsigned block_bits = w->bits + 3 - w->order;
  const uint64_t index = cluster >> block_bits;
  const uint64_t within = cluster & ((UINT64_C (1) << block_bits) - 1);
  uint64_t block;

  if (index >= w->table_clusters * w->cs / 8)
    return 0;
  block = get (w, w->table_offset + index * 8, 8);
  if (block == 0 || block % w->cs)
    return 0;
  if (w->order >= 3)
    return get (w, block + (within << (w->order - 3)), 1 << (w->order - 3));
  return get (w, block + (within << w->order >> 3), 1) >>
    ((within << w->order) & 7) & ((1 << (1 << w->order)) - 1);
}

/* --- references --- */

static void
refer (struct walk *w, uint64_t offset, uint64_t count, enum role role,
       const char *what)
{
  uint64_t c;

  if (count == 0)
    return;
  for (c = offset >> w->bits; c <= (offset + count - 1) >> w->bits; c++) {
    if (c >= w->clusters) {
      note (w, true, "%s at 0x%" PRIx64 " is behind the end of the file",
            what, offset);
      return;
    }
    if (w->roles[c] != NOTHING && (w->roles[c] != role || role == METADATA))
      note (w, true, "%s at 0x%" PRIx64 " overlaps something else", what,
            c << w->bits);
    w->roles[c] = role;
    w->refs[c]++;
  }
}

static void
walk_l2_entry (struct walk *w, uint64_t entry, bool active, uint64_t guest)
{
  const uint64_t offset = entry & OFFSET_BITS;

  /* In a data file, each cluster has the same offset as in the guest, and no other
   * user. */
  if (w->external) {
    const bool is_data = offset != 0 || (entry & (COPIED | 1)) == COPIED;

    if (entry & ~(OFFSET_BITS | COPIED | 1) ||
        (is_data && (offset != guest || !(entry & COPIED))))
      note (w, true, "L2 entry 0x%" PRIx64 ", guest 0x%" PRIx64
            ", not allowed with an external data file", entry, guest);
    return;
  }
  if (entry & COMPRESSED) {
    const unsigned x = 62 - (w->bits - 8);
    const uint64_t at = entry & ((UINT64_C (1) << x) - 1);
    const uint64_t sectors =
      ((entry >> x) & ((UINT64_C (1) << (w->bits - 8)) - 1)) + 1;

    if (entry & COPIED)
      note (w, true, "compressed cluster with COPIED, guest 0x%" PRIx64, guest);
    refer (w, at & ~UINT64_C (511), sectors * 512, DATA, "compressed data");
    return;
  }
  if (entry & ~(OFFSET_BITS | COPIED | 1) ||
      (w->version == 2 && (entry & 1)))
    note (w, true, "L2 entry 0x%" PRIx64 " has reserved bits, guest 0x%" PRIx64,
          entry, guest);
  if (offset == 0) {
    if (entry & COPIED)
      note (w, true, "COPIED without a cluster, guest 0x%" PRIx64, guest);
    return;
  }
  if (offset % w->cs) {
    note (w, true, "L2 entry 0x%" PRIx64 " is unaligned, guest 0x%" PRIx64,
          entry, guest);
    return;
  }
  refer (w, offset, w->cs, DATA, "data");
  if (active && (refcount (w, offset >> w->bits) == 1) != !!(entry & COPIED))
    note (w, true, "L2 entry 0x%" PRIx64 ", guest 0x%" PRIx64
          ": COPIED does not fit count %" PRIu64, entry, guest,
          refcount (w, offset >> w->bits));
}

/* The 32 subclusters of an entry. */
static void
check_subclusters (struct walk *w, uint64_t entry, uint64_t bitmap,
                   uint64_t guest)
{
  const uint32_t allocated = bitmap, zeros = bitmap >> 32;

  if (entry & COMPRESSED) {
    if (bitmap != 0)
      note (w, true, "compressed cluster with bitmap 0x%" PRIx64 ", guest 0x%"
            PRIx64, bitmap, guest);
    return;
  }
  if (entry & 1)
    note (w, true, "extended L2 entry 0x%" PRIx64 " with a zero flag, guest 0x%"
          PRIx64, entry, guest);
  if (allocated & zeros)
    note (w, true, "subclusters are allocated and zeros, 0x%" PRIx64
          ", guest 0x%" PRIx64, bitmap, guest);
  if (allocated != 0 && (entry & OFFSET_BITS) == 0 &&
      !(w->external && (entry & COPIED)))
    note (w, true, "subclusters are allocated without a cluster, 0x%" PRIx64
          ", guest 0x%" PRIx64, bitmap, guest);
}

static void
walk_l1 (struct walk *w, uint64_t l1, uint64_t n, bool active)
{
  const uint64_t per_table = w->cs / w->entry_size;
  uint64_t i, j, entry, table, l2, guest;

  if (l1 % w->cs) {
    note (w, true, "L1 table at 0x%" PRIx64 " is unaligned", l1);
    return;
  }
  refer (w, l1, n * 8, METADATA, "L1 table");
  for (i = 0; i < n; i++) {
    entry = get (w, l1 + i * 8, 8);
    table = entry & OFFSET_BITS;
    if (entry == 0)
      continue;
    if (entry & ~(OFFSET_BITS | COPIED) || table == 0 || table % w->cs) {
      note (w, true, "L1 entry %" PRIu64 " is 0x%" PRIx64, i, entry);
      continue;
    }
    refer (w, table, w->cs, L2_TABLE, "L2 table");
    if (active && (refcount (w, table >> w->bits) == 1) != !!(entry & COPIED))
      note (w, true, "L1 entry %" PRIu64 " is 0x%" PRIx64
            ": COPIED does not fit count %" PRIu64, i, entry,
            refcount (w, table >> w->bits));
    for (j = 0; j < per_table; j++) {
      l2 = get (w, table + j * w->entry_size, 8);
      guest = (i * per_table + j) << w->bits;
      if (l2 != 0)
        walk_l2_entry (w, l2, active, guest);
      if (w->entry_size == 16)
        check_subclusters (w, l2, get (w, table + j * 16 + 8, 8), guest);
    }
  }
}

static void
walk_refcounts (struct walk *w)
{
  const uint64_t n = w->table_clusters * w->cs / 8;
  uint64_t i, block;

  refer (w, w->table_offset, w->table_clusters * w->cs, METADATA,
         "refcount table");
  for (i = 0; i < n; i++) {
    block = get (w, w->table_offset + i * 8, 8);
    if (block == 0)
      continue;
    if (block % w->cs)
      note (w, true, "refcount table entry %" PRIu64 " is 0x%" PRIx64, i,
            block);
    else
      refer (w, block, w->cs, METADATA, "refcount block");
  }
}

static void
walk_snapshots (struct walk *w)
{
  uint64_t at = w->snapshots_offset, i;

  if (w->snapshots > 65536 || at % w->cs) {
    note (w, true, "header: impossible snapshot table");
    return;
  }
  for (i = 0; i < w->snapshots; i++) {
    uint64_t len = 40 + get (w, at + 36, 4) + get (w, at + 12, 2) +
      get (w, at + 14, 2);

    walk_l1 (w, get (w, at, 8), get (w, at + 8, 4), false);
    at += (len + 7) / 8 * 8;
  }
  refer (w, w->snapshots_offset, at - w->snapshots_offset, METADATA,
         "snapshot table");
}

static void
walk_bitmap_table (struct walk *w, uint64_t table, uint64_t n)
{
  uint64_t i, entry;

  if (table == 0 || table % w->cs || n == 0 || n > 1 << 20) {
    note (w, true, "impossible bitmap table at 0x%" PRIx64, table);
    return;
  }
  refer (w, table, n * 8, METADATA, "bitmap table");
  for (i = 0; i < n; i++) {
    entry = get (w, table + i * 8, 8);
    if (entry <= 1)
      continue;
    if (entry & ~OFFSET_BITS || entry % w->cs)
      note (w, true, "bitmap table entry %" PRIu64 " is 0x%" PRIx64, i, entry);
    else
      refer (w, entry, w->cs, METADATA, "bitmap data");
  }
}

static uint64_t
bitmap_entry_bytes (const struct walk *w, uint64_t at)
{
  return (24 + get (w, at + 20, 4) + get (w, at + 18, 2) + 7) / 8 * 8;
}

static void
walk_bitmaps (struct walk *w)
{
  uint64_t at = w->bitmaps_offset, i;

  if (at == 0 || at % w->cs) {
    note (w, true, "impossible bitmap directory at 0x%" PRIx64, at);
    return;
  }
  for (i = 0; i < w->bitmaps; i++) {
    const uint64_t flags = get (w, at + 12, 4), n = get (w, at + 8, 4);
    const unsigned granularity_bits = get (w, at + 17, 1);

    if (flags & ~UINT64_C (3) || get (w, at + 16, 1) != 1 ||
        granularity_bits < 9 || granularity_bits > 31)
      note (w, true, "impossible bitmap at 0x%" PRIx64, at);
    else if (!(flags & 1) && n << (w->bits + 3 + granularity_bits) < w->size)
      note (w, true, "bitmap at 0x%" PRIx64 " is too short", at);
    walk_bitmap_table (w, get (w, at, 8), n);
    at += bitmap_entry_bytes (w, at);
  }
  if (at - w->bitmaps_offset != w->bitmaps_bytes)
    note (w, true, "bitmap directory has %" PRIu64 " bytes, not %" PRIu64,
          at - w->bitmaps_offset, w->bitmaps_bytes);
  refer (w, w->bitmaps_offset, w->bitmaps_bytes, METADATA, "bitmap directory");
}

static void
compare (struct walk *w)
{
  const uint64_t countable = w->table_clusters * w->cs / 8 <<
    (w->bits + 3 - w->order);
  uint64_t c, count;

  for (c = 0; c < w->clusters; c++) {
    count = refcount (w, c);
    if (count < w->refs[c])
      note (w, true, "cluster %" PRIu64 ": count %" PRIu64 ", but %" PRIu64
            " references", c, count, w->refs[c]);
    else if (count > w->refs[c])
      note (w, false, "cluster %" PRIu64 ": count %" PRIu64 ", but %" PRIu64
            " references", c, count, w->refs[c]);
    if (count > 0)
      w->result->allocated_end = (c + 1) << w->bits;
  }
  /* The table can describe far more than the file contains: look only at existing blocks,
   * 8 bytes at a time. */
  while (c < countable) {
    const unsigned block_bits = w->bits + 3 - w->order;
    const uint64_t word = UINT64_C (64) >> w->order;    /* counts per 8 bytes */
    const uint64_t block =
      get (w, w->table_offset + (c >> block_bits) * 8, 8);

    if (block == 0)
      c = ((c >> block_bits) + 1) << block_bits;
    else if (c % word == 0 &&
             get (w, block + ((c & ((UINT64_C (1) << block_bits) - 1)) / word) * 8,
                  8) == 0)
      c += word;
    else {
      count = refcount (w, c);
      if (count > 0) {
        note (w, false, "cluster %" PRIu64 " behind the end of the file has "
              "count %" PRIu64, c, count);
        w->result->allocated_end = (c + 1) << w->bits;
      }
      c++;
    }
  }
}

void
checker_check (const struct blob *b, struct check_result *result)
{
  struct walk w = { .p = b->data, .len = b->len, .result = result };

  memset (result, 0, sizeof *result);
  if (!read_header (&w))
    return;
  w.clusters = (w.len + w.cs - 1) >> w.bits;
  w.refs = calloc (w.clusters + 1, sizeof *w.refs);
  w.roles = calloc (w.clusters + 1, 1);
  CHECK (w.refs != NULL && w.roles != NULL);

  refer (&w, 0, w.cs, METADATA, "header");
  refer (&w, w.luks_offset, w.luks_bytes, METADATA, "encryption header");
  walk_refcounts (&w);
  walk_l1 (&w, w.l1_offset, w.l1_size, true);
  if (w.snapshots > 0)
    walk_snapshots (&w);
  if (w.bitmaps > 0)
    walk_bitmaps (&w);
  compare (&w);

  free (w.refs);
  free (w.roles);
}

/* --- sharing within one mapping --- */

enum { WHOLE = 1, COMPRESSED_DATA = 2 };

/* Uses the clusters of an L2 entry.  Were they used before (not both by compressed
 * data)? */
static bool
use (const struct walk *w, uint64_t entry, unsigned char *uses)
{
  const unsigned place_bits = 62 - (w->bits - 8);
  const uint64_t at = entry & COMPRESSED ? entry & ((UINT64_C (1) << place_bits) - 1)
    : entry & OFFSET_BITS;
  const uint64_t len = !(entry & COMPRESSED) ? 1
    : (((entry & (COMPRESSED - 1)) >> place_bits) + 1) * 512 - at % 512;
  bool shares = false;

  for (uint64_t c = at >> w->bits; at && c <= (at + len - 1) >> w->bits && c < w->clusters;
       c++) {
    shares |= entry & COMPRESSED ? uses[c] & WHOLE : uses[c];
    uses[c] |= entry & COMPRESSED ? COMPRESSED_DATA : WHOLE;
  }
  return shares;
}

/* Is there a cluster that is used more than once, other than by compressed data only? */
static bool
l1_shares (const struct walk *w, uint64_t l1, uint64_t n, unsigned char *uses)
{
  const uint64_t per_table = w->cs / w->entry_size;
  bool shares = false;

  memset (uses, 0, w->clusters);
  for (uint64_t i = 0; i < n && l1 + i * 8 < w->len; i++) {
    const uint64_t table = get (w, l1 + i * 8, 8) & OFFSET_BITS;

    if (table == 0 || table >> w->bits >= w->clusters)
      continue;
    shares |= use (w, table, uses);
    for (uint64_t j = 0; j < per_table && !shares; j++)
      shares = use (w, get (w, table + j * w->entry_size, 8), uses);
  }
  return shares;
}

bool
checker_shares (const struct blob *b)
{
  struct check_result result = { 0 };
  struct walk w = { .p = b->data, .len = b->len, .result = &result };
  unsigned char *uses;
  uint64_t at, i;
  bool shares;

  if (!read_header (&w) || w.external)
    return false;
  w.clusters = (w.len + w.cs - 1) >> w.bits;
  uses = malloc (w.clusters + 1);
  CHECK (uses != NULL);
  shares = l1_shares (&w, w.l1_offset, w.l1_size, uses);
  at = w.snapshots_offset;
  for (i = 0; i < w.snapshots && at < w.len && !shares; i++) {
    shares = l1_shares (&w, get (&w, at, 8), get (&w, at + 8, 4), uses);
    at += (40 + get (&w, at + 36, 4) + get (&w, at + 12, 2) + get (&w, at + 14, 2) + 7)
      / 8 * 8;
  }
  free (uses);
  return shares;
}

/* --- contents --- */

static void
copy_from (const unsigned char *p, uint64_t len, uint64_t from,
           unsigned char *out, uint64_t n)
{
  const uint64_t have = from >= len ? 0 : len - from < n ? len - from : n;

  if (have > 0)
    memcpy (out, p + from, have);
  memset (out + have, 0, n - have);
}

/* Decompresses N bytes of one compressed cluster. */
static int
inflate_from (const struct walk *w, uint64_t entry, unsigned char *out,
              uint64_t n)
{
  const unsigned x = 62 - (w->bits - 8);
  const uint64_t at = entry & ((UINT64_C (1) << x) - 1);
  const uint64_t sectors =
    ((entry >> x) & ((UINT64_C (1) << (w->bits - 8)) - 1)) + 1;
  uint64_t stored = sectors * 512 - (at & 511);
  z_stream z = { .next_out = out, .avail_out = n };
  int r;

  if (at >= w->len)
    return -1;
  if (stored > w->len - at)
    stored = w->len - at;
  z.next_in = (unsigned char *) w->p + at;
  z.avail_in = stored;
  if (inflateInit2 (&z, -15) != Z_OK)
    return -1;
  r = inflate (&z, Z_FINISH);
  inflateEnd (&z);
  /* The last cluster can extend beyond the end of the disk. */
  return (r == Z_STREAM_END || r == Z_BUF_ERROR) && z.avail_out == 0 ? 0 : -1;
}

/* Is byte AT allocated, zeros, or neither? */
static void
state_at (const struct walk *w, uint64_t l2_entry_at, uint64_t entry, uint64_t at,
          bool *allocated, bool *zeros)
{
  uint64_t bitmap;
  unsigned sub;

  *allocated = (entry & OFFSET_BITS) != 0 || (w->external && (entry & COPIED));
  *zeros = entry & 1;
  if (w->entry_size == 8)
    return;
  bitmap = get (w, l2_entry_at + 8, 8);
  sub = at % w->cs / (w->cs / 32);
  *allocated = bitmap >> sub & 1;
  *zeros = bitmap >> (32 + sub) & 1;
}

int
checker_read (const struct blob *b, const struct blob *below,
              unsigned char *out, uint64_t size)
{
  return checker_read_data (b, NULL, below, out, size);
}

int
checker_own (const struct blob *b, bool *own, uint64_t size)
{
  struct blob marks = { .data = malloc (size), .len = size };
  unsigned char *one = malloc (size), *other = malloc (size);
  int r;

  CHECK (marks.data != NULL && one != NULL && other != NULL);
  memset (marks.data, 0x5a, size);
  r = checker_read (b, &marks, one, size);
  memset (marks.data, 0xa5, size);
  checker_read (b, &marks, other, size);
  for (uint64_t i = 0; i < size; i++)
    own[i] = one[i] == other[i];
  blob_free (&marks);
  free (one);
  free (other);
  return r;
}

int
checker_read_data (const struct blob *b, const struct blob *data,
                   const struct blob *below, unsigned char *out, uint64_t size)
{
  struct check_result ignored = { 0 };
  struct walk w = { .p = b->data, .len = b->len, .result = &ignored };
  uint64_t at, n, step, per_table, cluster, l1, l2, entry;
  bool allocated, zeros;
  int r = 0;

  if (!read_header (&w) || w.size != size)
    return -1;
  per_table = w.cs / w.entry_size;
  step = w.entry_size == 16 ? w.cs / 32 : w.cs;
  for (at = 0; at < size; at += n) {
    cluster = at >> w.bits;
    l1 = get (&w, w.l1_offset + cluster / per_table * 8, 8) & OFFSET_BITS;
    l2 = l1 + cluster % per_table * w.entry_size;
    entry = l1 == 0 ? 0 : get (&w, l2, 8);
    n = entry & COMPRESSED ? w.cs : step;
    if (n > size - at)
      n = size - at;
    if (entry & COMPRESSED) {
      if (inflate_from (&w, entry, out + at, n) == -1) {
        memset (out + at, CHECKER_UNREADABLE, n);
        r = -1;
      }
      continue;
    }
    allocated = zeros = false;
    if (l1 != 0)
      state_at (&w, l2, entry, at, &allocated, &zeros);
    if (zeros)
      memset (out + at, 0, n);
    else if (allocated && data)
      copy_from (data->data, data->len, (entry & OFFSET_BITS) + at % w.cs,
                 out + at, n);
    else if (allocated && w.external)
      return -1;
    else if (allocated)
      copy_from (w.p, w.len, (entry & OFFSET_BITS) + at % w.cs, out + at, n);
    else if (below)
      copy_from (below->data, below->len, at, out + at, n);
    else
      memset (out + at, 0, n);
  }
  return r;
}

/* --- bitmaps --- */

static bool
bit_is_set (const struct walk *w, const struct checked_bitmap *b, uint64_t bit)
{
  const uint64_t byte = bit / 8;
  const uint64_t entry = get (w, b->table + (byte >> w->bits) * 8, 8);

  if (entry <= 1)
    return entry;
  return get (w, (entry & OFFSET_BITS) + byte % w->cs, 1) >> bit % 8 & 1;
}

bool
checker_bitmap (const struct blob *b, const char *name,
                struct checked_bitmap *found, unsigned char *sectors)
{
  struct check_result ignored = { 0 };
  struct walk w = { .p = b->data, .len = b->len, .result = &ignored };
  const size_t len = strlen (name);
  uint64_t at, i;

  if (!read_header (&w))
    return false;
  at = w.bitmaps_offset;
  for (i = 0; i < w.bitmaps && at + 24 + len <= w.len; i++) {
    if (get (&w, at + 18, 2) == len &&
        memcmp (w.p + at + 24 + get (&w, at + 20, 4), name, len) == 0)
      break;
    at += bitmap_entry_bytes (&w, at);
  }
  if (i == w.bitmaps || at + 24 + len > w.len)
    return false;

  *found = (struct checked_bitmap) {
    .at = at, .table = get (&w, at, 8), .table_entries = get (&w, at + 8, 4),
    .in_use = get (&w, at + 12, 4) & 1, .automatic = get (&w, at + 12, 4) & 2,
    .granularity_bits = get (&w, at + 17, 1),
  };
  if (sectors != NULL)
    for (i = 0; i < w.size / 512; i++)
      sectors[i] = bit_is_set (&w, found, i * 512 >> found->granularity_bits);
  return true;
}
