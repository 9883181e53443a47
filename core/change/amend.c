/* SPDX-License-Identifier: BSD-3-Clause
 *
 * How does an image come to have another version, or other features?
 *
 * Specification: "Header", "Snapshots", "Standard Cluster Descriptor".
 *
 * All changes are in the header, and become visible together (shadow.c); if refcounts get
 * another width, all of them are written anew (shadowwidth.c).  Version 3 can
 * express all that version 2 can, but requires that each snapshot tells the size of its
 * disk.  The other way, an image that has anything of version 3 is refused, with two
 * exceptions.  Lazy refcounts, names of features and unknown compatible or autoclear
 * features go, which does no harm.  And zero clusters are replaced (amendzero.c).
 *
 * The snapshot table is written anew.  In version 2 its entries keep their extra data,
 * which later programs read; an old program knows only the rest of an entry, so that has
 * to be right without it.
 *
 * Locks: none; one thread.
 */

#include <config.h>

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "util/bytes.h"
#include "util/cleanup.h"
#include "util/memory.h"
#include "util/remedy.h"
#include "util/report.h"
#include "format/format.h"
#include "format/header.h"
#include "image/snaptable.h"
#include "change/amend-impl.h"

/* --- is it possible? --- */

static int
refuse_downgrade (const struct image *image, unsigned version, const char *why)
{
  return report_refusal (EPERM, "%s: the image cannot be changed to version %u: %s",
                         storage_path (image->file), version, why);
}

/* What of version 3 is in use, and cannot be replaced?  NULL: nothing.  REFCOUNT_ORDER is
 * the new one. */
static const char *
used_of_3 (const struct header *h, unsigned refcount_order)
{
  return refcount_order != QCOW2_V2_REFCOUNT_ORDER
      ? "its refcounts do not have 16 bits"
    : h->incompatible & QCOW2_INCOMPAT_DATA_FILE ? "it has an external data file"
    : h->incompatible & QCOW2_INCOMPAT_EXTENDED_L2 ? "it has subclusters"
    : h->incompatible & QCOW2_INCOMPAT_COMPRESSION
      ? "its compression type is not zlib"
    : h->incompatible != 0 ? "it has features of version 3"
    : h->has_bitmaps ? "it has persistent bitmaps"
    : h->header_length > sizeof (struct qcow2_header) ? "its header has unknown fields"
    : NULL;
}

/* Version 2 cannot say all about a snapshot that version 3 can. */
static const char *
snapshot_uses_3 (const struct image *image)
{
  for (uint32_t i = 0; i < image->snapshots.n; i++) {
    const struct snapshot *s = &image->snapshots.list[i];

    if (s->disk_size != image->header.size)
      return "an internal snapshot is of a disk of another size";
    if (s->vm_state_size > UINT32_MAX)
      return "an internal snapshot has a VM state of 4 GiB or more";
  }
  return NULL;
}

static int
check_version (const struct image *image, unsigned version, unsigned refcount_order)
{
  const struct header *h = &image->header;

  if (version < h->version && used_of_3 (h, refcount_order))
    return refuse_downgrade (image, version, used_of_3 (h, refcount_order));
  if (version < h->version && snapshot_uses_3 (image))
    return refuse_downgrade (image, version, snapshot_uses_3 (image));
  return shadow_check_version (image, version);
}

static int
check_features (const struct image *image, const struct amend *a, unsigned version)
{
  const char *why = NULL, *cure = "";

  if (a->lazy_refcounts == AMEND_ON && version < 3)
    why = "lazy refcounts require version 3", cure = remedy (REMEDY_VERSION_3);
  else if (a->refcount_bits != 0 && a->refcount_bits != 16 && version < 3)
    why = "refcounts of another width than 16 bits require version 3",
      cure = remedy (REMEDY_VERSION_3);
  else if (a->refcount_bits != 0 &&
           (!is_power_of_2 (a->refcount_bits) ||
            a->refcount_bits > 1 << QCOW2_MAX_REFCOUNT_ORDER))
    why = "the width of refcounts must be a power of two, up to 64";
  else if (a->data_file_raw == AMEND_ON && !image_data_is_raw (image))
    why = "only a new image can get a raw data file: the data file would have to contain "
      "the same bytes as the disk";
  else if (a->data_file && image->data == NULL)
    why = "it has no external data file that could have another name";
  else if (a->data_file && strlen (a->data_file) > min64 (image->header.cluster_size,
                                                          QCOW2_MAX_DATA_FILE_NAME))
    why = "the name of the data file is too long";
  else if (a->data_file && header_find_control (a->data_file, strlen (a->data_file)))
    why = "the name of the data file contains a control character";
  if (why == NULL)
    return 0;
  return report_refusal (EPERM, "%s: %s%s%s", storage_path (image->file), why,
                         cure[0] ? ": " : "", cure);
}

/* --- the snapshot table --- */

/* Appends the entry at FROM, with its L1 table at L1_OFFSET.  One without the size of the
 * disk gets it: the disk could not be resized.  Returns the bytes of the old one, or 0
 * (reported). */
static uint64_t
convert_entry (const struct snapshot *s, const uint8_t *from, uint64_t l1_offset,
               struct snaptable *to)
{
  const struct qcow2_snapshot_extra known = {
    put64 (s->vm_state_size), put64 (s->disk_size), put64 (QCOW2_NO_ICOUNT),
  };
  const uint8_t *const extra = from + sizeof (struct qcow2_snapshot);
  struct qcow2_snapshot raw;
  uint64_t was, bytes;
  bool lacks;

  memcpy (&raw, from, sizeof raw);
  was = get32 (raw.extra_size);
  bytes = snaptable_bytes (&raw);
  lacks = was < QCOW2_V3_SNAPSHOT_EXTRA;
  if (lacks)
    raw.extra_size = put32 (sizeof known);
  raw.l1_table_offset = put64 (l1_offset);
  if (s->vm_state_size <= UINT32_MAX)
    raw.vm_state_size = put32 (s->vm_state_size);
  return snaptable_append (to, &raw, lacks ? (const void *) &known : extra,
                           extra + was) == -1 ? 0 : bytes;
}

static int
convert_entries (const struct image *image, const uint8_t *from, const uint64_t *places,
                 struct snaptable *to)
{
  uint64_t bytes;

  for (uint32_t i = 0; i < image->snapshots.n; i++, from += bytes) {
    bytes = convert_entry (&image->snapshots.list[i], from, places[i], to);
    if (bytes == 0)
      return -1;
  }
  if (to->size <= QCOW2_MAX_SNAPSHOT_TABLE)
    return 0;
  return report_refusal (EFBIG, "%s: the snapshot table would be too large",
                         storage_path (image->file));
}

/* Writes the snapshot table anew, in which the L1 tables have these PLACES. */
static int
convert_snapshots (const struct image *image, struct shadow *s, const uint64_t *places,
                   struct shadow_header *sh)
{
  const uint64_t old = image->snapshots.table_bytes;
  CLEANUP_FREE uint8_t *from = memory_get (old);
  struct snaptable to = { .n = 0 };
  const int r = from == NULL ||
    storage_read (image->file, from, old, sh->snapshots_offset) == -1 ||
    convert_entries (image, from, places, &to) == -1 ||
    shadow_drop_range (s, sh->snapshots_offset, old) == -1
    ? -1 : shadow_write (s, to.bytes, to.size, &sh->snapshots_offset);

  free (to.bytes);
  return r;
}

/* Writes what the versions express in different ways. */
static int
convert (const struct image *image, const struct disk_options *d, struct shadow *s,
         struct shadow_header *sh)
{
  const bool hides = image->header.backing_file || d->backing == BACKING_PATH;
  const uint32_t n = image->snapshots.n;
  CLEANUP_FREE uint64_t *places = memory_new (n + 1, sizeof *places);

  if (places == NULL)
    return -1;
  for (uint32_t i = 0; i < n; i++)
    places[i] = image->snapshots.list[i].l1_offset;
  if (sh->version < image->header.version &&
      amend_replace_zeros (image, hides, s, sh, places) == -1)
    return -1;
  return n == 0 ? 0 : convert_snapshots (image, s, places, sh);
}

/* --- the whole change --- */

static void
choose (bool *feature, enum amend_choice choice)
{
  if (choice != AMEND_KEEP)
    *feature = choice == AMEND_ON;
}

static int
change (const struct image *image, const struct disk_options *d, const struct amend *a,
        unsigned version, unsigned refcount_order, struct shadow *s)
{
  struct shadow_header sh;

  shadow_get_header (s, &sh);
  sh.version = version;
  sh.refcount_order = refcount_order;
  choose (&sh.lazy_refcounts, a->lazy_refcounts);
  choose (&sh.data_file_raw, a->data_file_raw);
  sh.data_file = a->data_file;
  if (version != image->header.version && convert (image, d, s, &sh) == -1)
    return -1;
  return shadow_commit (s, &sh);
}

struct amending {
  const struct disk_options *d;
  const struct amend *amend;
  struct shadow *done;
};

static int
make (void *opaque, struct image *image)
{
  struct amending *am = opaque;
  const struct amend *a = am->amend;
  const unsigned version = a->version ? a->version : image->header.version;
  const unsigned refcount_order = a->refcount_bits
    ? (unsigned) __builtin_ctz (a->refcount_bits) : image->header.refcount_order;
  struct shadow *s;

  if (check_features (image, a, version) == -1 ||
      check_version (image, version, refcount_order) == -1)
    return -1;
  s = shadow_new (image, am->d->discard);
  if (s == NULL)
    return -1;
  if (change (image, am->d, a, version, refcount_order, s) == 0) {
    am->done = s;
    return 0;
  }
  shadow_free (s);
  return -1;
}

static void
release (void *opaque, struct alloc *alloc)
{
  shadow_release (((struct amending *) opaque)->done, alloc);
}

int
amend_disk (struct disk *d, const struct amend *a)
{
  struct amending am = { .d = disk_get_options (d), .amend = a };
  const struct disk_change c = {
    .opaque = &am, .make = make, .release = release, .data_file = true,
  };
  const int r = disk_change (d, &c);

  shadow_free (am.done);
  return r;
}
