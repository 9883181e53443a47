/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What does the first cluster of an image contain, and is it valid?
 *
 * This module reads no file and keeps no state: bytes go in, and a struct header with
 * checked contents comes out, or an error that names the field, its offset and what was
 * found.  An attacker may have chosen the bytes.  These are true for a header that was
 * accepted:
 *
 * - All numbers are within the limits in format.h, so products and sums of
 *   table sizes and offsets fit into 64 bits.
 * - The L1 table, the refcount table, the snapshot table (what is known of its
 *   size), the encryption header and the bitmap directory lie within
 *   the file, on cluster boundaries, and share no cluster with each other or with
 *   the header (R5 begins here).
 * - The L1 table covers the disk.
 * - All incompatible features are known to this file, which does not mean that
 *   the caller can serve them.
 *
 * A table beyond the end of the file would read as zeros, so an image that was cut off
 * would look like an empty disk.  That is why it is refused.
 */

#include <config.h>

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "util/bytes.h"
#include "util/cleanup.h"
#include "util/printable.h"
#include "util/publicname.h"
#include "util/report.h"
#include "format/header.h"

#define MAX_BACKING_FORMAT 15
#define MAX_BITMAP_DIRECTORY (UINT64_C (1024) * QCOW2_MAX_BITMAPS)

/* The state of header_parse.  (What is refused is invalid, unless a `fault' was set.) */
struct parse {
  const char *path;
  const uint8_t *buf;           /* at least the first cluster, see check_basics */
  size_t len;
  uint64_t file_size;
  struct qcow2_header raw;      /* zeros where the header is shorter */
  struct header *h;
  enum header_fault fault;
};

#define FIELD(name) offsetof (struct qcow2_header, name)

/* Reports that something at OFFSET of the header is wrong.  Returns -1. */
#define refuse_header(p, offset, fmt, ...)                                      \
  report_refusal (EINVAL, "%s: qcow2 header: offset %" PRIu64 ": " fmt, (p)->path, \
                  (uint64_t) (offset), ##__VA_ARGS__)

bool
header_is_qcow2 (const void *buf, size_t len)
{
  struct be32 magic;

  if (len < sizeof magic)
    return false;
  memcpy (&magic, buf, sizeof magic);
  return get32 (magic) == QCOW2_MAGIC;
}

void
header_free (struct header *h)
{
  free (h->backing_file);
  free (h->backing_format);
  free (h->data_file);
  free (h->overlay);
  free (h->origin);
  memset (h, 0, sizeof *h);
}

/* (Names appear in messages, where one could forge lines and move the cursor of a
 * terminal.) */
const char *
header_find_control (const char *name, size_t len)
{
  for (const char *p = name; p < name + len && *p; p++)
    if ((unsigned char) *p < 0x20 || *p == 0x7f)
      return p;
  return NULL;
}

/* --- fields --- */

/* Checks magic, version, cluster size and header length, on which everything else
 * depends. */
static int
check_basics (struct parse *p)
{
  struct header *h = p->h;

  if (!header_is_qcow2 (p->buf, p->len)) {
    p->fault = HEADER_NOT_QCOW2;
    return report_refusal (EINVAL, "%s: not a qcow2 image: it does not begin with "
                           "\"QFI\\xfb\"", p->path);
  }
  p->fault = HEADER_CUT;
  if (p->len < QCOW2_V2_HEADER_SIZE)
    return refuse_header (p, p->len, "the file ends within the header");
  memcpy (&p->raw, p->buf, QCOW2_V2_HEADER_SIZE);

  p->fault = HEADER_VERSION;
  h->version = get32 (p->raw.version);
  if (h->version != 2 && h->version != 3)
    return refuse_header (p, FIELD (version), "version is %u, not 2 or 3", h->version);

  p->fault = HEADER_INVALID;
  h->cluster_bits = get32 (p->raw.cluster_bits);
  if (h->cluster_bits < QCOW2_MIN_CLUSTER_BITS ||
      h->cluster_bits > QCOW2_MAX_CLUSTER_BITS)
    return refuse_header (p, FIELD (cluster_bits), "cluster_bits is %u, not %d..%d",
                          h->cluster_bits, QCOW2_MIN_CLUSTER_BITS,
                          QCOW2_MAX_CLUSTER_BITS);
  h->cluster_size = UINT64_C (1) << h->cluster_bits;
  p->fault = HEADER_CUT;
  if (p->len < h->cluster_size)
    return refuse_header (p, p->len, "the file ends within its first cluster "
                          "of %" PRIu64 " bytes", h->cluster_size);

  p->fault = HEADER_INVALID;
  if (h->version == 2) {
    h->header_length = QCOW2_V2_HEADER_SIZE;
    return 0;
  }
  memcpy (&p->raw, p->buf, QCOW2_V3_HEADER_MIN);
  h->header_length = get32 (p->raw.header_length);
  if (h->header_length < QCOW2_V3_HEADER_MIN ||
      h->header_length > h->cluster_size)
    return refuse_header (p, FIELD (header_length),
                          "header_length is %" PRIu32 ", not %d..%" PRIu64,
                          h->header_length, QCOW2_V3_HEADER_MIN, h->cluster_size);
  memcpy (&p->raw, p->buf, min64 (h->header_length, sizeof p->raw));
  return 0;
}

/* Where the extensions end: at the name of the backing file, or at the end of the
 * cluster. */
static uint64_t
extensions_end (const struct parse *p)
{
  uint64_t backing = get64 (p->raw.backing_file_offset);

  return backing ? min64 (backing, p->h->cluster_size) : p->h->cluster_size;
}

/* Looks for the name that the image itself gives incompatible feature BIT, and writes it,
 * in printable form, to NAME ("" if there is none).  The extensions have not been checked
 * yet: stops where they are invalid. */
static void
find_feature_name (const struct parse *p, unsigned bit, char *name, size_t size)
{
  uint64_t pos = p->h->header_length, end = extensions_end (p);
  struct qcow2_extension ext;
  struct qcow2_feature_name row;

  name[0] = '\0';
  while (range_within (pos, sizeof ext, end)) {
    memcpy (&ext, p->buf + pos, sizeof ext);
    pos += sizeof ext;
    if (get32 (ext.type) == QCOW2_EXT_END ||
        !range_within (pos, get32 (ext.len), end))
      return;
    if (get32 (ext.type) == QCOW2_EXT_FEATURE_NAMES)
      for (uint64_t i = 0; i + sizeof row <= get32 (ext.len); i += sizeof row) {
        memcpy (&row, p->buf + pos + i, sizeof row);
        if (row.kind == 0 && row.bit == bit) {
          printable (row.name, sizeof row.name, name, size);
          return;
        }
      }
    pos += round_up (get32 (ext.len), 8);
  }
}

/* Refuses the image, and names all incompatible features that the plugin does not
 * know. */
static int
refuse_features (const struct parse *p, uint64_t unknown)
{
  char name[PRINTABLE_SIZE (46)], list[400] = "";
  size_t used = 0;

  for (unsigned bit = 0; bit < 64 && used < sizeof list; bit++) {
    if (!(unknown & UINT64_C (1) << bit))
      continue;
    find_feature_name (p, bit, name, sizeof name);
    used += snprintf (list + used, sizeof list - used, "%sbit %u%s%s%s",
                      used ? ", " : "", bit,
                      name[0] ? " (\"" : "", name, name[0] ? "\")" : "");
  }
  return refuse_header (p, FIELD (incompatible_features),
                        "the image needs features that are not supported: %s", list);
}

static int
check_features (struct parse *p)
{
  struct header *h = p->h;
  bool has_compression;

  h->refcount_order = QCOW2_V2_REFCOUNT_ORDER;
  if (h->version >= 3) {
    h->incompatible = get64 (p->raw.incompatible_features);
    h->compatible = get64 (p->raw.compatible_features);
    h->autoclear = get64 (p->raw.autoclear_features);
    h->refcount_order = get32 (p->raw.refcount_order);
    h->compression_type = p->raw.compression_type;
  }

  p->fault = HEADER_FEATURE;
  if (h->incompatible & ~QCOW2_INCOMPAT_KNOWN)
    return refuse_features (p, h->incompatible & ~QCOW2_INCOMPAT_KNOWN);
  p->fault = HEADER_INVALID;
  if (h->refcount_order > QCOW2_MAX_REFCOUNT_ORDER)
    return refuse_header (p, FIELD (refcount_order), "refcount_order is %u, "
                          "more than %d", h->refcount_order, QCOW2_MAX_REFCOUNT_ORDER);

  has_compression = (h->incompatible & QCOW2_INCOMPAT_COMPRESSION) != 0;
  if (h->compression_type > QCOW2_COMPRESSION_ZSTD)
    return refuse_header (p, FIELD (compression_type),
                          "unknown compression type %u", h->compression_type);
  if (has_compression != (h->compression_type != QCOW2_COMPRESSION_DEFLATE))
    return refuse_header (p, FIELD (compression_type), "compression type is %u, but "
                          "its incompatible feature bit is %s",
                          h->compression_type, has_compression ? "set" : "not set");

  if ((h->autoclear & QCOW2_AUTOCLEAR_RAW_DATA_FILE) &&
      !(h->incompatible & QCOW2_INCOMPAT_DATA_FILE))
    return refuse_header (p, FIELD (autoclear_features), "the image says that its "
                          "external data file is raw, but has none");

  h->crypt_method = get32 (p->raw.crypt_method);
  if (h->crypt_method > QCOW2_CRYPT_LUKS)
    return refuse_header (p, FIELD (crypt_method),
                          "unknown encryption method %u", h->crypt_method);

  h->l2_entry_size = sizeof (struct be64);
  if (h->incompatible & QCOW2_INCOMPAT_EXTENDED_L2) {
    if (h->cluster_bits < QCOW2_MIN_EXTENDED_CLUSTER_BITS)
      return refuse_header (p, FIELD (cluster_bits), "cluster_bits is %u, but extended "
                            "L2 entries need at least %d", h->cluster_bits,
                            QCOW2_MIN_EXTENDED_CLUSTER_BITS);
    h->l2_entry_size = sizeof (struct qcow2_extended_entry);
  }
  h->l2_bits = h->cluster_bits - __builtin_ctz (h->l2_entry_size);
  return 0;
}

/* --- tables --- */

/* Checks the offset of a table.  If LEN is 0, checks only its alignment. */
static int
check_place (const struct parse *p, uint64_t field, const char *name,
             uint64_t offset, uint64_t len)
{
  if (offset & (p->h->cluster_size - 1))
    return refuse_header (p, field, "the %s is at %" PRIu64 ", which is not a "
                          "multiple of the cluster size", name, offset);
  if (len == 0)
    return 0;
  if (offset < p->h->cluster_size)
    return refuse_header (p, field, "the %s is at %" PRIu64 ", in the header's cluster",
                          name, offset);
  if (!range_within (offset, len, QCOW2_MAX_HOST_OFFSET))
    return refuse_header (p, field, "the %s is at %" PRIu64 ", which is more than "
                          "the format allows", name, offset);
  if (!range_within (offset, len, p->file_size))
    return refuse_header (p, field, "the %s, %" PRIu64 " bytes at %" PRIu64 ", lies "
                          "beyond the end of the file, which has %" PRIu64 " bytes",
                          name, len, offset, p->file_size);
  return 0;
}

static int
check_tables (struct parse *p)
{
  struct header *h = p->h;
  const uint64_t bytes = get64 (p->raw.size);
  uint64_t covered;             /* log2 of the bytes that an L1 entry maps: <= 39 */

  h->size = round_down (bytes, 512);
  h->l1_entries = get32 (p->raw.l1_size);
  h->l1_offset = get64 (p->raw.l1_table_offset);
  h->reftable_offset = get64 (p->raw.refcount_table_offset);
  h->reftable_clusters = get32 (p->raw.refcount_table_clusters);
  h->nb_snapshots = get32 (p->raw.nb_snapshots);
  h->snapshots_offset = get64 (p->raw.snapshots_offset);

  p->fault = HEADER_SIZES;
  covered = h->cluster_bits + h->l2_bits;
  h->l1_needed = div_up (h->size, UINT64_C (1) << covered);
  if (h->l1_entries > QCOW2_MAX_L1_BYTES / sizeof (uint64_t))
    return refuse_header (p, FIELD (l1_size), "the L1 table has %" PRIu32 " entries, "
                          "more than %zu", h->l1_entries,
                          QCOW2_MAX_L1_BYTES / sizeof (uint64_t));
  /* Bytes beyond the last whole sector are not part of the disk, but count here: QEMU
   * does not open such an image either. */
  if (h->l1_entries < div_up (bytes, UINT64_C (1) << covered))
    return refuse_header (p, FIELD (l1_size), "the L1 table has %" PRIu32 " entries, "
                          "but a disk of %" PRIu64 " bytes needs %" PRIu64,
                          h->l1_entries, bytes, div_up (bytes, UINT64_C (1) << covered));
  p->fault = HEADER_INVALID;
  if (check_place (p, FIELD (l1_table_offset), "L1 table", h->l1_offset,
                   h->l1_entries * sizeof (uint64_t)) == -1)
    return -1;

  /* 0: only a repair can use the image. */
  p->fault = HEADER_SIZES;
  if (h->reftable_clusters > QCOW2_MAX_REFTABLE_BYTES >> h->cluster_bits)
    return refuse_header (p, FIELD (refcount_table_clusters),
                          "the refcount table has %" PRIu32 " clusters, not 1..%u",
                          h->reftable_clusters,
                          QCOW2_MAX_REFTABLE_BYTES >> h->cluster_bits);
  p->fault = HEADER_INVALID;
  if (check_place (p, FIELD (refcount_table_offset), "refcount table",
                   h->reftable_offset,
                   h->reftable_clusters * h->cluster_size) == -1)
    return -1;

  /* Only the entries determine the length of the table: this checks the minimum.  (More
   * than QCOW2_MAX_SNAPSHOTS: likewise, only a repair can use the image.) */
  return check_place (p, FIELD (snapshots_offset), "snapshot table",
                      h->snapshots_offset,
                      h->nb_snapshots * (uint64_t) sizeof (struct qcow2_snapshot));
}

/* No two tables may share a cluster. */
static int
check_overlaps (const struct parse *p)
{
  const struct header *h = p->h;
  const struct {
    const char *name;
    uint64_t field, offset, len;
  } tables[] = {
    { "L1 table", FIELD (l1_table_offset),
      h->l1_offset, h->l1_entries * sizeof (uint64_t) },
    { "refcount table", FIELD (refcount_table_offset),
      h->reftable_offset, h->reftable_clusters * h->cluster_size },
    { "snapshot table", FIELD (snapshots_offset),
      h->snapshots_offset, h->nb_snapshots * (uint64_t) sizeof (struct qcow2_snapshot) },
    { "encryption header", 0, h->crypto.offset, h->crypto.length },
    { "bitmap directory", 0, h->bitmaps.dir_offset, h->bitmaps.dir_size },
  };
  const size_t n = sizeof tables / sizeof tables[0];

  /* They begin on cluster boundaries, so sharing a cluster is sharing bytes. */
  for (size_t i = 0; i < n; i++)
    for (size_t j = 0; j < i; j++)
      if (tables[i].len > 0 && tables[j].len > 0 &&
          ranges_overlap (tables[i].offset, tables[i].len,
                          tables[j].offset, tables[j].len))
        return refuse_header (p, tables[i].field ? tables[i].field : tables[j].field,
                              "the %s at %" PRIu64 " overlaps the %s at %" PRIu64,
                              tables[i].name, tables[i].offset,
                              tables[j].name, tables[j].offset);
  return 0;
}

/* --- names and extensions --- */

/* Copies a name of LEN bytes at OFFSET, up to its first NUL, to *RESULT.  An empty name
 * is the same as none. */
static int
copy_name (const struct parse *p, uint64_t offset, uint64_t len, char **result)
{
  const char *name = (const char *) p->buf + offset, *control;

  len = strnlen (name, len);
  if (len == 0)
    return 0;
  control = header_find_control (name, len);
  if (control)
    return refuse_header (p, offset + (control - name), "the name or format of a file "
                          "contains the control character 0x%02x",
                          (unsigned char) *control);
  *result = strndup (name, len);
  if (*result == NULL) {
    report_error ("%s: qcow2 header: %m", p->path);
    return -1;
  }
  return 0;
}

static int
check_backing (struct parse *p)
{
  uint64_t offset = get64 (p->raw.backing_file_offset);
  uint32_t len = get32 (p->raw.backing_file_size);

  if (offset == 0)
    return 0;
  if (offset > p->h->cluster_size)
    return refuse_header (p, FIELD (backing_file_offset), "the backing file's name is "
                          "at %" PRIu64 ", not in the first cluster", offset);
  if (len == 0)
    return 0;
  if (offset < p->h->header_length)
    return refuse_header (p, FIELD (backing_file_offset), "the backing file's name is "
                          "at %" PRIu64 ", within the header itself", offset);
  if (len > QCOW2_MAX_BACKING_NAME ||
      !range_within (offset, len, p->h->cluster_size))
    return refuse_header (p, FIELD (backing_file_size), "the backing file's name has "
                          "%" PRIu32 " bytes, more than %d or than there are in the "
                          "first cluster", len, QCOW2_MAX_BACKING_NAME);
  return copy_name (p, offset, len, &p->h->backing_file);
}

static int
parse_bitmaps (struct parse *p, uint64_t pos, uint32_t len)
{
  struct header *h = p->h;
  struct qcow2_ext_bitmaps ext;

  if (len != sizeof ext)
    return refuse_header (p, pos, "the bitmaps extension has %" PRIu32 " bytes, "
                          "not %zu", len, sizeof ext);
  if (!(h->autoclear & QCOW2_AUTOCLEAR_BITMAPS)) {
    /* A program that does not know bitmaps has changed the disk. */
    report_debug ("%s: the bitmaps of the image are outdated and are ignored",
                  p->path);
    return 0;
  }
  memcpy (&ext, p->buf + pos, sizeof ext);
  h->bitmaps.count = get32 (ext.nb_bitmaps);
  h->bitmaps.dir_size = get64 (ext.directory_size);
  h->bitmaps.dir_offset = get64 (ext.directory_offset);
  if (h->bitmaps.count == 0 || h->bitmaps.count > QCOW2_MAX_BITMAPS)
    return refuse_header (p, pos, "%" PRIu32 " bitmaps, not 1..%d",
                          h->bitmaps.count, QCOW2_MAX_BITMAPS);
  if (get32 (ext.reserved) != 0)
    return refuse_header (p, pos + 4, "a reserved field of the bitmaps extension "
                          "is %" PRIu32 ", not 0", get32 (ext.reserved));
  if (h->bitmaps.dir_size == 0 || h->bitmaps.dir_size > MAX_BITMAP_DIRECTORY)
    return refuse_header (p, pos + 8, "the bitmap directory has %" PRIu64 " bytes, "
                          "not 1..%" PRIu64, h->bitmaps.dir_size, MAX_BITMAP_DIRECTORY);
  h->has_bitmaps = true;
  return check_place (p, pos + 16, "bitmap directory", h->bitmaps.dir_offset,
                      h->bitmaps.dir_size);
}

static int
parse_crypto (struct parse *p, uint64_t pos, uint32_t len)
{
  struct header *h = p->h;
  struct qcow2_ext_crypto ext;

  if (h->crypt_method != QCOW2_CRYPT_LUKS)
    return refuse_header (p, pos, "there is an encryption header, but the encryption "
                          "method is %u, not %d", h->crypt_method, QCOW2_CRYPT_LUKS);
  if (len != sizeof ext)
    return refuse_header (p, pos, "the encryption extension has %" PRIu32 " bytes, "
                          "not %zu", len, sizeof ext);
  memcpy (&ext, p->buf + pos, sizeof ext);
  h->crypto.offset = get64 (ext.offset);
  h->crypto.length = get64 (ext.length);
  h->has_crypto = true;
  if (h->crypto.length == 0)
    return refuse_header (p, pos + 8, "the encryption header has a length of 0");
  return check_place (p, pos, "encryption header", h->crypto.offset,
                      h->crypto.length);
}

/* (See overlayref.c.) */
static int
parse_move (struct parse *p, uint64_t pos, uint32_t len, const char *what, char **name,
            uint64_t *move)
{
  const uint64_t end = strnlen ((const char *) p->buf + pos, len) + 1;
  struct be64 number;

  if (len > QCOW2_MAX_OVERLAY_NAME)
    return refuse_header (p, pos, "the %s's name has %" PRIu32 " bytes, more than %d", what,
                          len, QCOW2_MAX_OVERLAY_NAME);
  if (len == end + sizeof number) {
    memcpy (&number, p->buf + pos + end, sizeof number);
    *move = get64 (number);
  }
  return copy_name (p, pos, len, name);
}

static int
parse_extension (struct parse *p, uint32_t type, uint64_t pos, uint32_t len)
{
  struct header *h = p->h;

  switch (type) {
  case QCOW2_EXT_BACKING_FORMAT:
    if (len > MAX_BACKING_FORMAT)
      return refuse_header (p, pos, "the backing file's format has a name of "
                            "%" PRIu32 " bytes, more than %d", len, MAX_BACKING_FORMAT);
    /* The last one counts, as in QEMU. */
    free (h->backing_format);
    h->backing_format = NULL;
    return copy_name (p, pos, len, &h->backing_format);
  case QCOW2_EXT_DATA_FILE:
    if (len > QCOW2_MAX_DATA_FILE_NAME)
      return refuse_header (p, pos, "the data file's name has %" PRIu32 " bytes, "
                            "more than %d", len, QCOW2_MAX_DATA_FILE_NAME);
    return copy_name (p, pos, len, &h->data_file);
  case QCOW2_EXT_OVERLAY:
    return parse_move (p, pos, len, "overlay", &h->overlay, &h->overlay_move);
  case QCOW2_EXT_ORIGIN:
    return parse_move (p, pos, len, "origin", &h->origin, &h->origin_move);
  case QCOW2_EXT_BITMAPS:
    return parse_bitmaps (p, pos, len);
  case QCOW2_EXT_CRYPTO:
    return parse_crypto (p, pos, len);
  default:
    return 0;                   /* feature names, or an unknown extension */
  }
}

/* Each of these may appear only once: two would contradict each other. */
static unsigned
extension_bit (uint32_t type)
{
  switch (type) {
  case QCOW2_EXT_FEATURE_NAMES: return 1 << 0;
  case QCOW2_EXT_BITMAPS: return 1 << 1;
  case QCOW2_EXT_CRYPTO: return 1 << 2;
  case QCOW2_EXT_DATA_FILE: return 1 << 3;
  case QCOW2_EXT_OVERLAY: return 1 << 4;
  case QCOW2_EXT_ORIGIN: return 1 << 5;
  default: return 0;
  }
}

static int
parse_extensions (struct parse *p)
{
  uint64_t pos = p->h->header_length, end = extensions_end (p);
  struct qcow2_extension ext;
  unsigned seen = 0, bit;
  uint32_t type, len;

  while (pos < end) {
    if (!range_within (pos, sizeof ext, end))
      return refuse_header (p, pos, "a header extension does not fit before %" PRIu64,
                            end);
    memcpy (&ext, p->buf + pos, sizeof ext);
    type = get32 (ext.type);
    len = get32 (ext.len);
    /* The end marker may not be too long either, as in QEMU. */
    if (!range_within (pos + sizeof ext, len, end))
      return refuse_header (p, pos, "header extension 0x%08" PRIx32 " has %" PRIu32
                            " bytes, which do not fit before %" PRIu64, type, len, end);
    if (type == QCOW2_EXT_END)
      break;
    bit = extension_bit (type);
    if (seen & bit)
      return refuse_header (p, pos, "header extension 0x%08" PRIx32 " appears twice",
                            type);
    seen |= bit;
    if (parse_extension (p, type, pos + sizeof ext, len) == -1)
      return -1;
    pos += sizeof ext + round_up (len, 8);
  }

  if (p->h->crypt_method == QCOW2_CRYPT_LUKS && !p->h->has_crypto)
    return refuse_header (p, FIELD (crypt_method), "the image is encrypted with LUKS, "
                          "but no extension names the encryption header");
  if ((p->h->autoclear & QCOW2_AUTOCLEAR_BITMAPS) && !(seen &
      extension_bit (QCOW2_EXT_BITMAPS)))
    report_debug ("%s: the image claims to have bitmaps, but has none",
                  p->path);
  return 0;
}

int
header_parse (const char *path, const void *buf, size_t len,
              uint64_t file_size, struct header *h)
{
  struct parse p = {
    .path = path, .buf = buf, .len = len, .file_size = file_size, .h = h,
  };
  CLEANUP_FREE char *backing = NULL;
  char shown[PRINTABLE_SIZE (256)];

  memset (h, 0, sizeof *h);
  if (check_basics (&p) == -1 ||
      check_features (&p) == -1 ||
      check_tables (&p) == -1 ||
      check_backing (&p) == -1 ||
      parse_extensions (&p) == -1 ||
      check_overlaps (&p) == -1) {
    KEEP_ERRNO_FOR_BLOCK;

    header_free (h);
    h->fault = p.fault;
    return -1;
  }

  backing = publicname (h->backing_file ? h->backing_file : "");
  report_debug ("%s: qcow2 version %u, %" PRIu64 " bytes, clusters of %" PRIu64
                ", %u refcount bits, %" PRIu32 " snapshots, features %" PRIx64
                "/%" PRIx64 "/%" PRIx64 ", backing file \"%s\"",
                path, h->version, h->size, h->cluster_size,
                1u << h->refcount_order, h->nb_snapshots,
                h->incompatible, h->compatible, h->autoclear,
                printable (publicname_or (backing), 256, shown, sizeof shown));
  return 0;
}
