/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What does a new image contain, and where?
 *
 * Specification: all of it.  Where it leaves a choice, the image is like QEMU's for the
 * same options.
 *
 *   header | refcount table | refcount blocks | L1 table | LUKS | L2 tables | data
 *
 * A few numbers determine everything: each kind of table lies in one piece, in order, and
 * guest clusters follow in guest order.  So an entry of any table is computed from its
 * position alone, and newimage_fill computes any part of the file without the rest.  This
 * makes small clusters fast, and later readers of the mapping find one single run.
 *
 * Preallocated clusters of an encrypted disk are marked as zeros: their contents were
 * never encrypted, and would decrypt to noise.  With extended L2 entries this mark is not
 * needed: no subcluster is allocated, so a backing file also shows through (which is why
 * preallocation and backing files can be combined only then).  Only with a raw data file
 * are subclusters allocated, because there the contents of the file are the disk.
 *
 * Pure: no files, no state.
 */

#include <config.h>

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "util/bytes.h"
#include "util/report.h"
#include "format/entry.h"
#include "format/format.h"
#include "format/header.h"
#include "space/refblock.h"
#include "space/reflayout.h"
#include "change/newimage.h"

#define MAX_BACKING_FORMAT 15
/* QEMU writes names of features only with clusters of at least this size. */
#define MIN_CLUSTER_OF_NAMES 4097
#define SUBCLUSTERS_ALLOCATED UINT64_C (0xffffffff)

static const struct qcow2_feature_name feature_names[] = {
  { 0, 0, "dirty bit" },
  { 0, 1, "corrupt bit" },
  { 0, 2, "external data file" },
  { 0, 3, "compression type" },
  { 0, 4, "extended L2 entries" },
  { 1, 0, "lazy refcounts" },
  { 2, 0, "bitmaps" },
  { 2, 1, "raw external data" },
};

/* The name of the option's value, as users write it. */
static const char *
preallocation_name (enum preallocation p)
{
  static const char *const names[] = { "off", "metadata", "falloc", "full" };

  return names[p];
}

#define refuse_image(...) report_refusal (EINVAL, __VA_ARGS__)

/* --- which options can be combined --- */

static int
check_version (const struct newimage_options *o)
{
  const char *what = NULL;

  if (o->version >= 3)
    return 0;
  if (o->refcount_bits != 16)
    what = "refcounts of another width than 16 bits require";
  else if (o->lazy_refcounts)
    what = "lazy refcounts require";
  else if (o->extended_l2)
    what = "extended L2 entries require";
  else if (o->compression_type != QCOW2_COMPRESSION_DEFLATE)
    what = "another compression type than zlib requires";
  else if (o->data_file)
    what = "an external data file requires";
  else if (o->luks_bytes && o->preallocation != PREALLOCATION_OFF)
    what = "preallocation of an encrypted image requires";
  return what ? refuse_image ("%s version 3 (compat 1.1)", what) : 0;
}

static int
check_options (const struct newimage_options *o)
{
  const char *const preallocation = preallocation_name (o->preallocation);

  if (!is_power_of_2 (o->cluster_size) ||
      o->cluster_size < UINT64_C (1) << QCOW2_MIN_CLUSTER_BITS ||
      o->cluster_size > UINT64_C (1) << QCOW2_MAX_CLUSTER_BITS)
    return refuse_image ("the cluster size must be a power of two between 512 and 2M, "
                         "not %" PRIu64, o->cluster_size);
  if (!is_power_of_2 (o->refcount_bits) ||
      o->refcount_bits > 1 << QCOW2_MAX_REFCOUNT_ORDER)
    return refuse_image ("the width of refcounts must be a power of two, up to 64, not "
                         "%u", o->refcount_bits);
  if (check_version (o) == -1)
    return -1;
  if (o->extended_l2 &&
      o->cluster_size < UINT64_C (1) << QCOW2_MIN_EXTENDED_CLUSTER_BITS)
    return refuse_image ("extended L2 entries require clusters of 16K or more");
  if (o->data_file_raw && !o->data_file)
    return refuse_image ("only an external data file can be raw");
  if (o->data_file_raw && o->backing_file)
    return refuse_image ("an image with a raw data file has no backing file");
  if (o->data_file_raw && o->luks_bytes)
    return refuse_image ("an encrypted image has no raw data file: that would contain "
                         "encrypted data, not the disk");
  if (o->backing_file && o->preallocation != PREALLOCATION_OFF && !o->extended_l2)
    return refuse_image ("preallocation (%s) over a backing file requires extended L2 "
                         "entries", preallocation);
  return 0;
}

/* --- names --- */

static uint64_t
extension_bytes (uint64_t len)
{
  return sizeof (struct qcow2_extension) + round_up (len, 8);
}

static bool
has_feature_names (const struct newimage *n)
{
  return n->options.version >= 3 && n->cluster_size >= MIN_CLUSTER_OF_NAMES;
}

static int
check_name (const char *what, const char *name, size_t most)
{
  const char *control = header_find_control (name, strlen (name));

  if (name[0] == '\0')
    return refuse_image ("the name of the %s is empty", what);
  if (strlen (name) > most)
    return refuse_image ("the name of the %s has %zu bytes, more than %zu", what,
                         strlen (name), most);
  return control == NULL ? 0
    : refuse_image ("the name of the %s contains the control character 0x%02x", what,
                    (unsigned char) *control);
}

/* Are the names valid in a header, and do they fit into its cluster? */
static int
check_names (const struct newimage *n)
{
  const struct newimage_options *o = &n->options;
  uint64_t bytes = sizeof (struct qcow2_header) + extension_bytes (0);

  if (o->backing_file) {
    if (check_name ("backing file", o->backing_file, QCOW2_MAX_BACKING_NAME) == -1 ||
        check_name ("backing file's format", o->backing_format, MAX_BACKING_FORMAT) == -1)
      return -1;
    bytes += strlen (o->backing_file) + extension_bytes (strlen (o->backing_format));
  }
  if (o->data_file) {
    if (check_name ("data file", o->data_file, QCOW2_MAX_DATA_FILE_NAME) == -1)
      return -1;
    bytes += extension_bytes (strlen (o->data_file));
  }
  if (o->luks_bytes)
    bytes += extension_bytes (sizeof (struct qcow2_ext_crypto));
  if (has_feature_names (n))
    bytes += extension_bytes (sizeof feature_names);
  if (bytes > n->cluster_size)
    return refuse_image ("the name of the %s is too long for the first cluster: the "
                         "header would have %" PRIu64 " bytes, the cluster has %" PRIu64,
                         o->data_file ? "data file" : "backing file", bytes,
                         n->cluster_size);
  return 0;
}

/* --- places --- */

/* Computes the number of refcount blocks, and of clusters of the refcount table, for
 * OTHERS clusters and for themselves.  -1 (not reported): ERANGE or EFBIG, see
 * reflayout.h. */
static int
count_refcounts (struct newimage *n, uint64_t others)
{
  const unsigned cluster_bits = __builtin_ctzll (n->cluster_size);
  const struct reflayout layout = {
    .cluster_bits = cluster_bits,
    .block_bits = refblock_bits (cluster_bits, n->refcount_order),
    .n = others, .unlimited = n->unlimited,
  };
  struct reflayout_size size;

  if (reflayout_find (&layout, &size) == -1)
    return -1;
  n->reftable_clusters = size.table;
  n->refblocks = size.blocks;
  return 0;
}

static int
report_too_large (const struct newimage *n)
{
  const char *const preallocation = preallocation_name (n->options.preallocation);

  if (errno == ERANGE)
    return refuse_image ("preallocation (%s): the refcount table would exceed %u MiB: "
                         "larger clusters need less", preallocation,
                         QCOW2_MAX_REFTABLE_BYTES >> 20);
  return refuse_image ("preallocation (%s): the file would be larger than the format "
                       "allows", preallocation);
}

/* Fails as count_refcounts does. */
static int
place_tables (struct newimage *n)
{
  const struct newimage_options *o = &n->options;
  const uint64_t cs = n->cluster_size;
  /* Offsets in the image file.  All are less than 2^56. */
  const uint64_t data = n->mapped && !o->data_file ? n->data_clusters : 0;
  uint64_t at;

  n->l1_clusters = div_up (n->l1_entries * sizeof (struct be64), cs);
  n->luks_clusters = div_up (o->luks_bytes, cs);
  n->l2_tables = n->mapped ? n->l1_entries : 0;
  if (count_refcounts (n, 1 + n->l1_clusters + n->luks_clusters + n->l2_tables +
                       data) == -1)
    return -1;

  at = cs;
  n->reftable_offset = at;
  at += n->reftable_clusters * cs;
  n->refblocks_offset = at;
  at += n->refblocks * cs;
  n->l1_offset = n->l1_clusters ? at : 0;
  at += n->l1_clusters * cs;
  n->luks_offset = n->luks_clusters ? at : 0;
  at += n->luks_clusters * cs;
  n->l2_offset = at;
  at += n->l2_tables * cs;
  n->metadata_end = at;
  n->data_offset = o->data_file ? 0 : at;
  n->file_size = at + data * cs;
  return 0;
}

/* Sets what follows from the cluster size and the widths.  Returns how many bytes of the
 * guest an L2 table covers: at most 2^21 * 2^18. */
static uint64_t
set_units (struct newimage *n)
{
  const struct newimage_options *o = &n->options;

  n->cluster_size = o->cluster_size;
  n->refcount_order = __builtin_ctz (o->refcount_bits);
  n->l2_entry_size = o->extended_l2 ? sizeof (struct qcow2_extended_entry)
    : sizeof (struct be64);
  return n->cluster_size / n->l2_entry_size * n->cluster_size;
}

uint64_t
newimage_full_size (const struct newimage_options *options)
{
  struct newimage n = { .options = *options, .mapped = true, .unlimited = true };
  const uint64_t covered = set_units (&n);

  n.data_clusters = div_up (options->size, n.cluster_size);
  n.l1_entries = div_up (options->size, covered);
  place_tables (&n);
  return n.file_size;
}

uint64_t
newimage_full_size_of (const struct header *h)
{
  return newimage_full_size (&(struct newimage_options) {
      .size = h->size, .cluster_size = h->cluster_size, .version = h->version,
      .refcount_bits = 1u << h->refcount_order, .extended_l2 = entry_is_extended (h),
      .luks_bytes = h->has_crypto ? h->crypto.length : 0,
      .data_file = h->incompatible & QCOW2_INCOMPAT_DATA_FILE ? "" : NULL,
    });
}

int
newimage_plan (const struct newimage_options *options, struct newimage *n)
{
  struct newimage_options *const o = &n->options;
  uint64_t covered;

  memset (n, 0, sizeof *n);
  *o = *options;
  if (check_options (o) == -1)
    return -1;
  covered = set_units (n);
  if (check_names (n) == -1)
    return -1;

  if (o->size > INT64_MAX ||
      div_up (o->size, covered) > QCOW2_MAX_L1_BYTES / sizeof (struct be64))
    return refuse_image ("a disk of %" PRIu64 " bytes is too large: the maximum with "
                         "clusters of %" PRIu64 " bytes is %" PRIu64, o->size,
                         n->cluster_size,
                         covered * (QCOW2_MAX_L1_BYTES / sizeof (struct be64)));
  o->size = round_up (o->size, 512);
  n->data_clusters = div_up (o->size, n->cluster_size);
  n->l1_entries = div_up (o->size, covered);
  /* With a raw data file, changes of that file must be visible through the image, so it
   * needs L2 tables. */
  n->mapped = o->preallocation != PREALLOCATION_OFF || o->data_file_raw;
  return place_tables (n) == 0 ? 0 : report_too_large (n);
}

/* --- contents --- */

/* Appends LEN bytes to the header.  The caller has made sure that they fit. */
static void
append (uint8_t *buf, size_t *at, const void *bytes, size_t len)
{
  memcpy (buf + *at, bytes, len);
  *at += len;
}

static void
append_extension (uint8_t *buf, size_t *at, uint32_t type, const void *bytes,
                  size_t len)
{
  const struct qcow2_extension ext = { put32 (type), put32 (len) };

  append (buf, at, &ext, sizeof ext);
  append (buf, at, bytes, len);
  *at = round_up (*at, 8);
}

static void
fill_fields (const struct newimage *n, struct qcow2_header *h)
{
  const struct newimage_options *o = &n->options;
  uint64_t incompatible = 0;

  h->magic = put32 (QCOW2_MAGIC);
  h->version = put32 (o->version);
  h->cluster_bits = put32 (__builtin_ctzll (n->cluster_size));
  h->size = put64 (o->size);
  h->crypt_method = put32 (o->luks_bytes ? QCOW2_CRYPT_LUKS : QCOW2_CRYPT_NONE);
  h->l1_size = put32 (n->l1_entries);
  h->l1_table_offset = put64 (n->l1_offset);
  h->refcount_table_offset = put64 (n->reftable_offset);
  h->refcount_table_clusters = put32 (n->reftable_clusters);
  if (o->version < 3)
    return;

  if (o->data_file)
    incompatible |= QCOW2_INCOMPAT_DATA_FILE;
  if (o->compression_type != QCOW2_COMPRESSION_DEFLATE)
    incompatible |= QCOW2_INCOMPAT_COMPRESSION;
  if (o->extended_l2)
    incompatible |= QCOW2_INCOMPAT_EXTENDED_L2;
  h->incompatible_features = put64 (incompatible);
  h->compatible_features =
    put64 (o->lazy_refcounts ? QCOW2_COMPAT_LAZY_REFCOUNTS : 0);
  h->autoclear_features =
    put64 (o->data_file_raw ? QCOW2_AUTOCLEAR_RAW_DATA_FILE : 0);
  h->refcount_order = put32 (n->refcount_order);
  h->header_length = put32 (sizeof *h);
  h->compression_type = o->compression_type;
}

/* Makes the header's cluster, without the zeros at its end: at most MAX_HEADER bytes.
 * Returns how many. */
#define MAX_HEADER 8192

static size_t
make_header (const struct newimage *n, uint8_t buf[MAX_HEADER])
{
  const struct newimage_options *o = &n->options;
  const struct qcow2_ext_crypto crypto = {
    put64 (n->luks_offset), put64 (o->luks_bytes),
  };
  const size_t room = extension_bytes (QCOW2_MAX_OVERLAY_NAME);
  struct qcow2_header h = { 0 };
  size_t at = o->version < 3 ? QCOW2_V2_HEADER_SIZE : sizeof h;

  memset (buf, 0, MAX_HEADER);
  if (o->backing_file)
    append_extension (buf, &at, QCOW2_EXT_BACKING_FORMAT, o->backing_format,
                      strlen (o->backing_format));
  if (o->data_file)
    append_extension (buf, &at, QCOW2_EXT_DATA_FILE, o->data_file,
                      strlen (o->data_file));
  if (o->luks_bytes)
    append_extension (buf, &at, QCOW2_EXT_CRYPTO, &crypto, sizeof crypto);
  if (has_feature_names (n))
    append_extension (buf, &at, QCOW2_EXT_FEATURE_NAMES, feature_names,
                      sizeof feature_names);
  append_extension (buf, &at, QCOW2_EXT_END, "", 0);

  fill_fields (n, &h);
  if (o->backing_file) {
    if (o->overlay_room &&
        range_within (at + room, strlen (o->backing_file), n->cluster_size))
      at += room;
    h.backing_file_offset = put64 (at);
    h.backing_file_size = put32 (strlen (o->backing_file));
    append (buf, &at, o->backing_file, strlen (o->backing_file));
  }
  memcpy (buf, &h, o->version < 3 ? QCOW2_V2_HEADER_SIZE : sizeof h);
  return at;
}

_Static_assert (sizeof (struct qcow2_header) + 7 * sizeof (struct qcow2_extension) +
                QCOW2_MAX_BACKING_NAME + MAX_BACKING_FORMAT + QCOW2_MAX_DATA_FILE_NAME +
                QCOW2_MAX_OVERLAY_NAME +
                sizeof (struct qcow2_ext_crypto) + sizeof feature_names +
                7 * 8 <= MAX_HEADER, "the largest header");

/* Each of the next functions fills in the bytes [FROM, TO) of one table.  BUF contains
 * zeros before. */

static void
fill_header (const struct newimage *n, uint64_t from, uint64_t to, uint8_t *buf)
{
  uint8_t header[MAX_HEADER];
  const size_t len = make_header (n, header);

  if (from < len)
    memcpy (buf, header + from, min64 (to, len) - from);
}

static void
fill_reftable (const struct newimage *n, uint64_t from, uint64_t to, uint8_t *buf)
{
  struct be64 *const entries = (void *) buf;
  const uint64_t first = from / sizeof *entries;
  const uint64_t end = min64 (to / sizeof *entries, n->refblocks);

  for (uint64_t i = first; i < end; i++)
    entries[i - first] = put64 (n->refblocks_offset + i * n->cluster_size);
}

/* Refcounts are 1 for all clusters of the file, and 0 for those past its end. */
static void
fill_refblocks (const struct newimage *n, uint64_t from, uint64_t to, uint8_t *buf)
{
  const unsigned bits = n->options.refcount_bits;
  const uint64_t clusters = n->file_size / n->cluster_size;
  /* All refcounts in bytes before this one are 1. */
  const uint64_t end = min64 (to, clusters * bits / 8);

  if (bits < 8) {
    static const uint8_t ones[] = { [1] = 0xff, [2] = 0x55, [4] = 0x11 };
    const unsigned rest = clusters * bits % 8;

    if (end > from)
      memset (buf, ones[bits], end - from);
    /* The lowest bits are those of the first clusters. */
    if (rest && end >= from && end < to)
      buf[end - from] = ones[bits] & ((1u << rest) - 1);
    return;
  }
  for (uint64_t i = from; i < end; i += bits / 8)
    buf[i + bits / 8 - 1 - from] = 1;
}

static void
fill_l1 (const struct newimage *n, uint64_t from, uint64_t to, uint8_t *buf)
{
  struct be64 *const entries = (void *) buf;
  const uint64_t first = from / sizeof *entries;
  const uint64_t end = min64 (to / sizeof *entries, n->l2_tables);

  for (uint64_t i = first; i < end; i++)
    entries[i - first] = put64 ((n->l2_offset + i * n->cluster_size) |
                                QCOW2_OFLAG_COPIED);
}

static void
fill_l2 (const struct newimage *n, uint64_t from, uint64_t to, uint8_t *buf)
{
  const bool allocated = n->options.extended_l2 && n->options.data_file_raw;
  const uint64_t first = from / n->l2_entry_size;
  const uint64_t end = min64 (to / n->l2_entry_size, n->data_clusters);
  uint64_t value = (n->data_offset + first * n->cluster_size) | QCOW2_OFLAG_COPIED;

  if (n->options.luks_bytes && !n->options.extended_l2)
    value |= QCOW2_OFLAG_ZERO;
  for (uint64_t i = first; i < end; i++) {
    struct be64 *const entry = (void *) buf;

    entry[0] = put64 (value);
    if (allocated)
      entry[1] = put64 (SUBCLUSTERS_ALLOCATED);
    buf += n->l2_entry_size;
    value += n->cluster_size;
  }
}

void
newimage_fill (const struct newimage *n, uint64_t offset, void *buf, size_t len)
{
  const struct {
    uint64_t offset, clusters;
    void (*fill) (const struct newimage *, uint64_t, uint64_t, uint8_t *);
  } tables[] = {
    { 0, 1, fill_header },
    { n->reftable_offset, n->reftable_clusters, fill_reftable },
    { n->refblocks_offset, n->refblocks, fill_refblocks },
    { n->l1_offset, n->l1_clusters, fill_l1 },
    { n->l2_offset, n->l2_tables, fill_l2 },
  };

  assert (offset % 512 == 0 && len % 512 == 0);
  memset (buf, 0, len);
  for (size_t i = 0; i < sizeof tables / sizeof tables[0]; i++) {
    const uint64_t start = tables[i].offset;
    const uint64_t from = max64 (offset, start);
    const uint64_t to = min64 (offset + len, start + tables[i].clusters *
                               n->cluster_size);

    if (from < to)
      tables[i].fill (n, from - start, to - start, (uint8_t *) buf + (from - offset));
  }
}
