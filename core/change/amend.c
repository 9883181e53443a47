/* SPDX-License-Identifier: BSD-3-Clause
 *
 * How does an image come to have another version, or other features?
 *
 * Specification: "Header", "Snapshots", "Standard Cluster Descriptor".
 *
 * All changes are in the header, and become visible together (shadow.c); if refcounts get
 * another width, all of them are written anew (shadowwidth.c).  Version 3 can
 * express all that version 2 can.  The other way, an image that has anything of version 3
 * is refused, with two exceptions.  Lazy refcounts, names of features and unknown
 * compatible or autoclear features go, which does no harm.  And zero clusters are
 * replaced, in copies of their L2 tables: by unallocated ones if there is no backing
 * file, otherwise by clusters that contain zeros, as QEMU does.
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
#include "util/remedy.h"
#include "util/report.h"
#include "format/format.h"
#include "change/amend.h"
#include "change/shadow.h"

/* --- is it possible? --- */

static int
refuse (const struct image *image, unsigned version, const char *why)
{
  report_error ("%s: the image cannot be changed to version %u: %s",
                storage_path (image->file), version, why);
  errno = EPERM;
  return -1;
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
    : h->nb_snapshots > 0 ? "it has internal snapshots"
    : h->header_length > sizeof (struct qcow2_header) ? "its header has unknown fields"
    : NULL;
}

/* Version 2 has less to say about snapshots. */
static int
check_snapshots (const struct image *image)
{
  const uint64_t bytes = image->snapshots.table_bytes;
  CLEANUP_FREE uint8_t *table = malloc (bytes + 1);
  struct qcow2_snapshot raw;
  uint64_t at = 0;

  if (table == NULL) {
    report_error ("%s: snapshot table: %m", storage_path (image->file));
    return -1;
  }
  if (storage_read (image->file, table, bytes, image->header.snapshots_offset) == -1)
    return -1;
  for (uint32_t i = 0; i < image->snapshots.n; i++) {
    memcpy (&raw, table + at, sizeof raw);
    if (get32 (raw.extra_size) < QCOW2_V3_SNAPSHOT_EXTRA)
      return refuse (image, 3, "a snapshot does not say which size the disk had: an old "
                     "program took it");
    at += round_up (sizeof raw + get32 (raw.extra_size) + get16 (raw.id_size) +
                    get16 (raw.name_size), 8);
  }
  return 0;
}

static int
check_version (const struct image *image, unsigned version, unsigned refcount_order)
{
  const struct header *h = &image->header;

  if (version < h->version && used_of_3 (h, refcount_order))
    return refuse (image, version, used_of_3 (h, refcount_order));
  if (version > h->version && image->snapshots.n > 0 && check_snapshots (image) == -1)
    return -1;
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
  if (why == NULL)
    return 0;
  report_error ("%s: %s%s%s", storage_path (image->file), why, cure[0] ? ": " : "", cure);
  errno = EPERM;
  return -1;
}

/* --- zero clusters --- */

struct removal {
  struct shadow *s;
  const struct image *image;
  bool hides;                   /* zero clusters may hide data of a backing file */
  struct be64 *l2;
};

static bool
is_zero_cluster (struct be64 entry)
{
  return !(get64 (entry) & QCOW2_OFLAG_COMPRESSED) && (get64 (entry) & QCOW2_OFLAG_ZERO);
}

/* Sets entries [FROM, TO) of r->l2, all of which are zero clusters. */
static int
replace_entries (struct removal *r, uint64_t from, uint64_t to)
{
  const unsigned bits = r->image->header.cluster_bits;
  uint64_t host = 0;

  if (shadow_drop_l2 (r->s, r->l2, from, to) == -1)
    return -1;
  if (r->hides && r->image->cipher)
    return refuse (r->image, 2, "it is encrypted, and has zero clusters over a backing "
                   "file");
  if (r->hides && shadow_take_zeros (r->s, to - from, &host) == -1)
    return -1;
  for (; from < to; from++) {
    r->l2[from] = put64 (r->hides ? host | QCOW2_OFLAG_COPIED : 0);
    host += UINT64_C (1) << bits;
  }
  return 0;
}

/* Replaces the zero clusters of the table to which the L1 entry points. */
static int
replace_in_table (struct removal *r, struct be64 *l1_entry)
{
  const struct header *h = &r->image->header;
  const uint64_t table = get64 (*l1_entry) & QCOW2_L1_OFFSET_MASK;
  const uint64_t n = UINT64_C (1) << h->l2_bits;
  bool changed = false;
  uint64_t from, to;

  if (table == 0)
    return 0;
  if (shadow_read_l2 (r->s, table, r->l2) == -1)
    return -1;
  for (from = 0; from < n; from = to) {
    for (to = from; to < n && is_zero_cluster (r->l2[to]); to++)
      ;
    if (to > from && replace_entries (r, from, to) == -1)
      return -1;
    changed |= to > from;
    to += to == from;
  }
  if (!changed)
    return 0;
  if (shadow_drop (r->s, table >> h->cluster_bits, 1) == -1)
    return -1;
  if (!bytes_are_zero (r->l2, h->cluster_size))
    return shadow_replace_l2 (r->s, r->l2, l1_entry);
  *l1_entry = put64 (0);
  return 0;
}

static int
replace_all (struct removal *r, struct shadow_header *sh)
{
  const struct header *h = &r->image->header;
  const uint64_t n = max64 (1, h->l1_entries);
  CLEANUP_FREE struct be64 *l1 = shadow_read_l1 (r->s, h->l1_offset, h->l1_entries, n);

  if (l1 == NULL)
    return -1;
  for (uint64_t i = 0; i < h->l1_entries; i++) {
    shadow_expect (r->s, l1, i, h->l1_entries);
    if (replace_in_table (r, &l1[i]) == -1)
      return -1;
  }
  sh->l1_entries = n;
  return shadow_drop_range (r->s, h->l1_offset, h->l1_entries * sizeof *l1) == -1 ? -1
    : shadow_write_l1 (r->s, l1, n, &sh->l1_offset);
}

static int
replace_zero_clusters (const struct image *image, const struct disk_options *d,
                       struct shadow *s, struct shadow_header *sh)
{
  CLEANUP_FREE struct be64 *l2 = malloc (image->header.cluster_size);
  struct removal r = {
    .s = s, .image = image, .l2 = l2,
    .hides = image->header.backing_file || d->backing == BACKING_PATH,
  };

  if (l2 == NULL) {
    report_error ("%s: L2 table: %m", storage_path (image->file));
    return -1;
  }
  return replace_all (&r, sh);
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
  if (version < image->header.version &&
      replace_zero_clusters (image, d, s, &sh) == -1)
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
release (void *opaque)
{
  shadow_release (((struct amending *) opaque)->done);
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
