/* SPDX-License-Identifier: BSD-3-Clause
 *
 * How does the size of the disk of an image change?
 *
 * L2 entries of clusters that stay are kept.  All other entries drop their references
 * (also those that a crash, another program or the state of a virtual machine left past
 * the end of the disk).  New entries are
 *
 *   allocated    with preallocation=; past the end of the file, where the host has zeros.
 *                In an encrypted image they also have the zero flag, because the zeros of
 *                the host do not decrypt to zeros.
 *   zero         where the backing file is longer than the disk was, because its data
 *                must not become visible.  (Version 2 has no zero flag: allocated.)
 *   in place     in a raw external data file: all of it is mapped, and contains zeros.
 *   empty        otherwise.
 *
 * Added space within the cluster where the disk ended was zeroed before: see edit.c.
 *
 * The L1 table is written to a new place if it is too short or its entries have changed,
 * and so are L2 tables that have changed.  The size changes in the same step: see
 * shadow.c.  So data that is cut off disappears together with the size, and never
 * reappears.  Persistent bitmaps get their new length in this step, too: see
 * bitmapset.c.
 *
 * What a disk that becomes smaller frees cannot be used in the same step, so new tables
 * often lie past the end of the file.  A second step of the same kind moves them to free
 * clusters, after which the file can end where the data does (resize_gather).  Tables of
 * bitmaps stay where they are.
 *
 * Locks: none.
 */

#include <config.h>

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "util/cleanup.h"
#include "util/report.h"
#include "format/entry.h"
#include "change/bitmapset.h"
#include "change/resize.h"

/* Bytes of zeros that are written before the watch is told. */
#define PIECE (UINT64_C (8) << 20)

#define MAX_L1_ENTRIES (QCOW2_MAX_L1_BYTES / sizeof (struct be64))

struct resize {
  const struct image *image;
  const struct resize_options *options;
  const struct header *h;
  struct shadow *s;
  struct be64 *l1, *l2;
  uint64_t per_table;           /* L2 entries of a table */
  uint64_t old_n, n;            /* L1 entries, old and new */
  uint64_t keep, fill;          /* guest clusters: [0, keep) stay, [keep, fill)
                                   are new */
  uint64_t hidden;              /* guest clusters before this one have data below */
  uint64_t reserved;            /* bytes */
  uint64_t end;                 /* tables at or past this offset get another place */
  bool changed;
};

static uint64_t
l1_needed (const struct header *h, uint64_t size)
{
  return max64 (1, div_up (size, UINT64_C (1) << (h->cluster_bits + h->l2_bits)));
}

/* --- is the resize possible? --- */

static bool
needs_clusters (const struct image *image,
                const struct resize_options *o)
{
  return o->preallocation != PREALLOCATION_OFF ||
    (image->header.version < 3 && o->backing_size > image->header.size &&
     o->size > image->header.size);
}

/* Persistent bitmaps get their new length.  Only checks that if S is NULL. */
static int
resize_bitmaps (const struct image *image, const struct resize_options *o,
                struct shadow *s, struct shadow_header *sh)
{
  struct bitmapset set;
  int r = bitmapset_new (&set, image, o->bitmaps, 0);

  if (r == 0)
    r = bitmapset_resize (&set, o->size, o->preallocation != PREALLOCATION_OFF);
  if (r == 0)
    r = s ? bitmapset_write (&set, s, sh) : bitmapset_check (&set);
  bitmapset_free (&set);
  return r;
}

int
resize_check (const struct image *image,
              const struct resize_options *o)
{
  const struct header *h = &image->header;
  const char *why = NULL;

  if (o->size > INT64_MAX - h->cluster_size ||
           l1_needed (h, o->size) > MAX_L1_ENTRIES)
    why = "the new size exceeds the maximum for the cluster size of the image";
  else if (h->version < 3 && h->nb_snapshots > 0)
    why = "an image of version 2 with snapshots cannot be resized";
  else if (o->size < h->size && o->preallocation != PREALLOCATION_OFF)
    why = "preallocation requires a larger size";
  else if (h->version < 3 && h->crypt_method != QCOW2_CRYPT_NONE &&
           needs_clusters (image, o))
    why = "an encrypted image of version 2 cannot mark new clusters as zeros";
  else if (image->data && o->size < h->size)
    why = "a disk with an external data file cannot be shrunk";
  else if (image->data && o->preallocation != PREALLOCATION_OFF)
    why = "preallocation cannot be used with an external data file";
  else if (image_data_is_raw (image) && h->crypt_method != QCOW2_CRYPT_NONE)
    why = "an encrypted disk with a raw external data file cannot be resized";
  else if (image->data && !storage_is_regular (image->data) &&
           o->size > storage_size (image->data))
    why = "the external data file is a device that is too small";
  if (why)
    return report_refusal (EINVAL, "%s: resize: %s", storage_path (image->file), why);
  return resize_bitmaps (image, o, NULL, NULL);
}

/* --- the external data file --- */

/* Gives the data file the size of the disk, unless it is longer.  Added space becomes
 * zeros in a raw data file; in other data files nothing points to it.  All is durable
 * before the image changes. */
static int
prepare_data_file (struct resize *r)
{
  struct storage *data = r->image->data;
  const uint64_t from = r->keep << r->h->cluster_bits;
  uint64_t to;

  if (data == NULL)
    return 0;
  to = min64 (storage_size (data), r->fill << r->h->cluster_bits);
  if (image_data_is_raw (r->image) && from < to &&
      storage_make_zeros (data, true, from, to - from) == -1)
    return -1;
  if (storage_size (data) < r->options->size &&
      storage_truncate (data, r->options->size) == -1)
    return -1;
  return storage_sync (data);
}

/* --- new clusters --- */

/* Tells the watch that BYTES more are reserved. */
static int
advance (struct resize *r, uint64_t bytes)
{
  const uint64_t total = (r->fill - r->keep) << r->h->cluster_bits;

  r->reserved += bytes;
  if (chunks_tell (r->options->watch, r->reserved, total, r->reserved))
    return 0;
  return report_refusal (EINTR, "%s: the resize was stopped; nothing was changed",
                         storage_path (r->image->file));
}

static int
fill_with_zeros (struct resize *r, uint64_t host, uint64_t bytes)
{
  uint64_t n;

  for (; bytes > 0; host += n, bytes -= n) {
    n = min64 (bytes, PIECE);
    if (storage_write_zeros (r->image->file, host, n) == -1 || advance (r, n) == -1)
      return -1;
  }
  return 0;
}

/* Allocates N clusters that read as zeros, with space for them. */
static int
reserve (struct resize *r, uint64_t n, uint64_t *host)
{
  struct storage *file = r->image->file;
  const uint64_t bytes = n << r->h->cluster_bits;
  const enum preallocation how = r->options->preallocation;

  if (shadow_take_zeros (r->s, n, host) == -1)
    return -1;
  if (storage_is_regular (file) && how == PREALLOCATION_FULL)
    return fill_with_zeros (r, *host, bytes);
  if (storage_is_regular (file) && how == PREALLOCATION_FALLOC &&
      storage_allocate (file, *host, bytes) == -1)
    return -1;
  return advance (r, bytes);
}

/* Sets entries [FROM, TO) of the table in r->l2; KIND and HOST as for entry_encode. */
static void
set_entries (struct resize *r, uint64_t from, uint64_t to, enum run_kind kind,
             uint64_t host)
{
  const unsigned shift = r->h->cluster_bits - entry_unit_bits (r->h);

  entry_encode (r->h, r->l2, from << shift, (to - from) << shift, kind, host);
}

/* Sets the new entries [FROM, TO) of the table in r->l2, whose first guest cluster is
 * FIRST. Returns 1, 0 if all of them stay empty, or -1. */
static int
fill_entries (struct resize *r, uint64_t first, uint64_t from, uint64_t to)
{
  const bool encrypted = r->h->crypt_method != QCOW2_CRYPT_NONE;
  uint64_t host;

  if (from >= to)
    return 0;
  if (image_data_is_raw (r->image)) {
    set_entries (r, from, to, RUN_NORMAL, (first + from) << r->h->cluster_bits);
    return 1;
  }
  if (r->options->preallocation == PREALLOCATION_OFF) {
    if (first + from >= r->hidden)
      return 0;
    to = min64 (to, r->hidden - first);
  }
  if (needs_clusters (r->image, r->options)) {
    if (reserve (r, to - from, &host) == -1)
      return -1;
    set_entries (r, from, to, RUN_NORMAL, host);
    if (encrypted)
      set_entries (r, from, to, RUN_ZERO_ALLOC, 0);
  }
  else
    set_entries (r, from, to, RUN_ZERO, 0);
  return 1;
}

/* --- tables --- */

/* Changes table I, some or all of whose entries lie past those that stay. */
static int
change_table (struct resize *r, uint64_t i)
{
  const uint64_t first = i * r->per_table;
  const uint64_t from = r->keep > first ? r->keep - first : 0;
  const uint64_t to = r->fill > first ? min64 (r->fill - first, r->per_table) : 0;
  const uint64_t table = get64 (r->l1[i]) & QCOW2_L1_OFFSET_MASK;
  struct be64 *const rest = r->l2 + from * entry_words (r->h);
  const uint64_t rest_bytes = (r->per_table - from) * r->h->l2_entry_size;
  bool changed = false;
  int filled;

  if (table != 0) {
    if (shadow_read_l2 (r->s, table, r->l2) == -1 ||
        (r->image->data == NULL &&
         shadow_drop_l2 (r->s, r->l2, from, r->per_table) == -1))
      return -1;
    changed = from == 0 || !bytes_are_zero (rest, rest_bytes);
    memset (rest, 0, rest_bytes);
  }
  else
    memset (r->l2, 0, r->h->cluster_size);
  filled = fill_entries (r, first, from, to);
  if (filled == -1)
    return -1;
  if (!changed && !filled)
    return 0;
  r->changed = true;
  if (table != 0 && shadow_drop (r->s, table >> r->h->cluster_bits, 1) == -1)
    return -1;
  if (from == 0 && !filled) {
    r->l1[i] = put64 (0);
    return 0;
  }
  return shadow_replace_l2 (r->s, r->l2, &r->l1[i]);
}

/* The entries of table I stay as they are. */
static int
move_table (struct resize *r, uint64_t i)
{
  const uint64_t table = get64 (r->l1[i]) & QCOW2_L1_OFFSET_MASK;

  if (table < r->end)
    return 0;
  r->changed = true;
  return shadow_read_l2 (r->s, table, r->l2) == -1 ||
    shadow_drop (r->s, table >> r->h->cluster_bits, 1) == -1
    ? -1 : shadow_replace_l2 (r->s, r->l2, &r->l1[i]);
}

static int
write_l1 (struct resize *r, struct shadow_header *sh)
{
  if (shadow_drop_range (r->s, r->h->l1_offset, r->h->l1_entries * sizeof *r->l1) == -1)
    return -1;
  sh->l1_entries = r->n;
  return shadow_write_l1 (r->s, r->l1, r->n, &sh->l1_offset);
}

static int
do_gather (struct resize *r)
{
  struct shadow_header sh;

  shadow_get_header (r->s, &sh);
  for (uint64_t i = 0; i < r->n; i++)
    if (move_table (r, i) == -1)
      return -1;
  if ((r->changed || r->h->l1_offset >= r->end) && write_l1 (r, &sh) == -1)
    return -1;
  return shadow_move_refcounts (r->s, r->end) == -1 ? -1 : shadow_commit (r->s, &sh);
}

static int
do_resize (struct resize *r)
{
  const struct header *h = r->h;
  struct shadow_header sh;
  uint64_t i;

  if (prepare_data_file (r) == -1)
    return -1;
  shadow_get_header (r->s, &sh);
  sh.size = r->options->size;
  for (i = r->keep / r->per_table; i < max64 (r->old_n, r->n); i++) {
    shadow_expect (r->s, r->l1, i, r->old_n);
    if (change_table (r, i) == -1)
      return -1;
  }
  if ((r->changed || r->n > h->l1_entries ||
       (r->n < h->l1_entries && sh.size < h->size)) && write_l1 (r, &sh) == -1)
    return -1;
  if (resize_bitmaps (r->image, r->options, r->s, &sh) == -1)
    return -1;
  return shadow_commit (r->s, &sh);
}

/* MAKE: do_resize or do_gather. */
static int
change (struct resize *r, bool discard, int (*make) (struct resize *),
        struct shadow **done)
{
  int result = -1;

  r->s = shadow_new (r->image, discard);
  if (r->s == NULL)
    return -1;
  r->l2 = malloc (r->h->cluster_size);
  if (r->l2 == NULL)
    report_error ("%s: resize: %m", storage_path (r->image->file));
  else if ((r->l1 = shadow_read_l1 (r->s, r->h->l1_offset, r->old_n,
                                    max64 (r->old_n, r->n))) != NULL)
    result = make (r);
  KEEP_ERRNO_FOR_BLOCK;
  if (result == 0)
    *done = r->s;
  else
    shadow_free (r->s);
  free (r->l1);
  free (r->l2);
  return result;
}

int
resize_image (const struct image *image, const struct resize_options *o,
              struct shadow **done)
{
  const struct header *h = &image->header;
  const uint64_t cs = h->cluster_size;
  struct resize r = {
    .image = image, .options = o, .h = h,
    .per_table = UINT64_C (1) << h->l2_bits,
    .old_n = h->l1_entries, .n = l1_needed (h, o->size),
    .keep = div_up (min64 (h->size, o->size), cs),
    .fill = div_up (o->size, cs),
    .hidden = div_up (min64 (o->backing_size, o->size), cs),
  };

  return change (&r, o->discard, do_resize, done);
}

int
resize_gather (const struct image *image, uint64_t end, bool discard,
               struct shadow **done)
{
  const struct header *h = &image->header;
  struct resize r = {
    .image = image, .h = h, .old_n = h->l1_entries, .n = h->l1_entries, .end = end,
  };

  return change (&r, discard, do_gather, done);
}
