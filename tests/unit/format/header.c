/* SPDX-License-Identifier: BSD-3-Clause
 *
 * header.c: a valid header, changed in one or two fields at a time, is accepted, or
 * refused with the correct message.
 */

#include <config.h>

#include <errno.h>
#include <string.h>

#include "format/header.h"
#include "lib/header-image.h"
#include "lib/stubs.h"

#define CS IMAGE_CLUSTER
#define AT(name) offsetof (struct qcow2_header, name)
#define F8(name, value) { AT (name), 1, (value) }
#define F32(name, value) { AT (name), 4, (value) }
#define F64(name, value) { AT (name), 8, (value) }

struct change {
  size_t offset, bytes;         /* bytes 0: none */
  uint64_t value;
};

static const struct {
  const char *refused;          /* part of the message; NULL if accepted */
  struct change changes[4];
  uint64_t file_size;           /* 0: IMAGE_FILE_SIZE */
} cases[] = {
  { NULL, { { 0 } }, 0 },

  { "not a qcow2 image", { F32 (magic, 0x514649fc) }, 0 },
  { "offset 4: version is 1,", { F32 (version, 1) }, 0 },
  { "offset 4: version is 4,", { F32 (version, 4) }, 0 },
  { "offset 20: cluster_bits is 8,", { F32 (cluster_bits, 8) }, 0 },
  { "offset 20: cluster_bits is 22,", { F32 (cluster_bits, 22) }, 0 },
  { "offset 20: cluster_bits is 4294967295,",
    { F32 (cluster_bits, UINT32_MAX) }, 0 },
  { "the file ends within its first cluster", { F32 (cluster_bits, 17) }, 0 },

  { "offset 100: header_length is 103,", { F32 (header_length, 103) }, 0 },
  { "offset 100: header_length is 65537,", { F32 (header_length, CS + 1) }, 0 },
  { "name is at 4096, within the header", { F32 (header_length, CS) }, 0 },
  { NULL, { F32 (header_length, CS), F64 (backing_file_offset, 0) }, 0 },
  { NULL, { F32 (header_length, CS - 8), F64 (backing_file_offset, 0) }, 0 },
  { "offset 65532: a header extension does not fit",
    { F32 (header_length, CS - 4), F64 (backing_file_offset, 0) }, 0 },

  { "bit 5", { F64 (incompatible_features, 1 << 5) }, 0 },
  { "not supported: bit 6, bit 63",
    { F64 (incompatible_features, UINT64_C (1) << 63 | 1 << 6 | 1) }, 0 },
  { NULL, { F64 (incompatible_features, 7) }, 0 },
  { NULL, { F64 (compatible_features, UINT64_MAX) }, 0 },
  { NULL, { F64 (autoclear_features, ~UINT64_C (2)) }, 0 },
  { "offset 88: the image says that its external data file is raw, but has none",
    { F64 (autoclear_features, 2) }, 0 },
  { NULL, { F64 (autoclear_features, UINT64_MAX), F64 (incompatible_features, 4) }, 0 },
  { NULL, { F64 (incompatible_features, 1 << 4), F32 (l1_size, 4) }, 0 },
  { "offset 20: cluster_bits is 13, but extended",
    { F64 (incompatible_features, 1 << 4), F32 (cluster_bits, 13) }, 0 },
  { "offset 104: compression type is 1, but",
    { F8 (compression_type, 1) }, 0 },
  { "offset 104: compression type is 0, but",
    { F64 (incompatible_features, 1 << 3) }, 0 },
  { NULL,
    { F64 (incompatible_features, 1 << 3), F8 (compression_type, 1) }, 0 },
  { "unknown compression type 2",
    { F64 (incompatible_features, 1 << 3), F8 (compression_type, 2) }, 0 },
  /* The field is not there in a short header. */
  { NULL, { F32 (header_length, 104), { 104, 8, 0 } }, 0 },
  { "offset 96: refcount_order is 7,", { F32 (refcount_order, 7) }, 0 },
  { NULL, { F32 (refcount_order, 6) }, 0 },
  { NULL, { F32 (refcount_order, 0) }, 0 },
  { NULL, { F32 (crypt_method, 1) }, 0 },
  { "offset 32: unknown encryption method 3", { F32 (crypt_method, 3) }, 0 },
  { "offset 32: the image is encrypted with LUKS, but",
    { F32 (crypt_method, 2) }, 0 },

  /* The disk and its L1 table.  An entry maps 512 MiB. */
  { NULL, { F64 (size, (1 << 30) - 1) }, 0 },
  { "offset 36: the L1 table has 2 entries, but a disk of 1073741825 bytes "
    "needs 3", { F64 (size, (1 << 30) + 1) }, 0 },
  { NULL, { F64 (size, (1 << 30) + 511), F32 (l1_size, 3) }, 0 },
  { "offset 36: the L1 table has 2 entries, but a disk of 1073742336 bytes "
    "needs 3", { F64 (size, (1 << 30) + 512) }, 0 },
  { "needs 34359738368", { F64 (size, UINT64_MAX) }, 0 },
  { "has 1 entries", { F32 (l1_size, 1) }, 0 },
  { NULL, { F32 (l1_size, 16384) }, 0 },
  { "the snapshot table at 327680 overlaps the L1 table at 196608",
    { F32 (l1_size, 16385) }, 0 },
  { "offset 36: the L1 table has 4194305 entries",
    { F32 (l1_size, (4 << 20) + 1) }, 0 },
  { NULL, { F32 (l1_size, 0), F64 (size, 0) }, 0 },
  { "has 0 entries", { F32 (l1_size, 0), F64 (size, 511) }, 0 },
  { NULL, { F32 (l1_size, 0), F64 (size, 0), F64 (l1_table_offset, 0) }, 0 },
  { "has 0 entries", { F32 (l1_size, 0) }, 0 },
  { "offset 40: the L1 table is at 0, in the header's",
    { F64 (l1_table_offset, 0) }, 0 },
  { "offset 40: the L1 table is at 196609, which is not a multiple",
    { F64 (l1_table_offset, 3 * CS + 1) }, 0 },
  { "the L1 table, 16 bytes at 1048576, lies beyond the end of the file, which "
    "has 1048576", { F64 (l1_table_offset, IMAGE_FILE_SIZE) }, 0 },
  { "more than the format allows",
    { F64 (l1_table_offset, UINT64_C (1) << 56) }, UINT64_C (1) << 60 },
  { "more than the format allows", { F64 (l1_table_offset, -CS) }, 0 },
  /* A fresh image ends with the last entry of its L1 table. */
  { NULL, { F64 (l1_table_offset, 15 * CS) }, 15 * CS + 16 },
  { "the L1 table, 16 bytes", { F64 (l1_table_offset, 15 * CS) }, 15 * CS + 15 },

  { "offset 48: the refcount table is at 0,",
    { F64 (refcount_table_offset, 0) }, 0 },
  { "the refcount table is at 65537,",
    { F64 (refcount_table_offset, CS + 1) }, 0 },
  { "the refcount table, 65536 bytes at 1048576, lies beyond",
    { F64 (refcount_table_offset, 16 * CS) }, 0 },
  { NULL, { F32 (refcount_table_clusters, 0), F64 (refcount_table_offset, 0) }, 0 },
  { "offset 56: the refcount table has 129 clusters, not 1..128",
    { F32 (refcount_table_clusters, 129) }, 0 },
  { NULL, { F32 (refcount_table_clusters, 128),
            F64 (refcount_table_offset, 16 * CS) }, 144 * CS },
  { NULL, { F32 (refcount_table_clusters, 2) }, 0 },
  { "the refcount table at 65536 overlaps the L1 table at 196608",
    { F32 (refcount_table_clusters, 3) }, 0 },
  { "offset 48: the refcount table at 196608 overlaps the L1 table",
    { F64 (refcount_table_offset, 3 * CS) }, 0 },

  { "offset 64: the snapshot table, 2621480 bytes",
    { F32 (nb_snapshots, 65537), F64 (snapshots_offset, 16 * CS) }, 56 * CS },
  { NULL, { F32 (nb_snapshots, 65536), F64 (snapshots_offset, 16 * CS) },
    64 * CS },
  { "the snapshot table, 2621440 bytes",
    { F32 (nb_snapshots, 65536), F64 (snapshots_offset, 16 * CS) }, 56 * CS - 1 },
  { NULL, { F32 (nb_snapshots, 0), F64 (snapshots_offset, 0) }, 0 },
  { NULL, { F32 (nb_snapshots, 0), F64 (snapshots_offset, 100 * CS) }, 0 },
  { "offset 64: the snapshot table is at 1, ",
    { F32 (nb_snapshots, 0), F64 (snapshots_offset, 1) }, 0 },
  { "offset 64: the snapshot table is at 0,", { F64 (snapshots_offset, 0) }, 0 },
  { "the snapshot table at 196608 overlaps the L1 table",
    { F64 (snapshots_offset, 3 * CS) }, 0 },

  /* The backing file's name, at 4096. */
  { "offset 8: the backing file's name is at 65537",
    { F64 (backing_file_offset, CS + 1) }, 0 },
  { "offset 16: the backing file's name has 1024", { F32 (backing_file_size, 1024) },
    0 },
  { NULL, { F32 (backing_file_size, 1023) }, 0 },
  { "offset 16: the backing file's name has 9", { F64 (backing_file_offset, CS - 8),
    F32 (backing_file_size, 9) }, 0 },
  { "within the header itself", { F64 (backing_file_offset, 104) }, 0 },
  { NULL, { F64 (backing_file_offset, CS), F32 (backing_file_size, 0) }, 0 },
  /* Extensions may not reach into it. */
  { "offset 112: header extension 0xe2792aca has 3 bytes, which do not fit "
    "before 120", { F64 (backing_file_offset, 120) }, 0 },
  { "which do not fit before 4096", { { 116, 4, 4096 } }, 0 },
  { "which do not fit before 4096", { { 116, 4, UINT32_MAX } }, 0 },
  { "the backing file's format has a name of 16 bytes", { { 116, 4, 16 } }, 0 },
  { NULL, { { 112, 4, 0x12345678 } }, 0 },
  /* The end mark has a length, too. */
  { "header extension 0x00000000 has 4096 bytes, which do not fit before 4096",
    { { 112, 4, 0 }, { 116, 4, 4096 } }, 0 },
  { NULL, { { 112, 4, 0 }, { 116, 4, 16 } }, 0 },

  /* Version 2 has no features; what would be its features are extensions. */
  { NULL, { F32 (version, 2), F64 (incompatible_features, 0) }, 0 },
};

static uint8_t buf[IMAGE_CLUSTER];

static void
apply (const struct change *c)
{
  for (size_t i = 0; i < c->bytes; i++)
    buf[c->offset + i] = c->value >> 8 * (c->bytes - 1 - i);
}

/* What front ends are told, which do not look at the text. */
static enum header_fault
fault_of (const char *text)
{
  static const struct { const char *part; enum header_fault fault; } faults[] = {
    { "not a qcow2 image", HEADER_NOT_QCOW2 }, { "version is ", HEADER_VERSION },
    { "features that are not supported", HEADER_FEATURE },
    { "the L1 table has ", HEADER_SIZES }, { "the refcount table has ", HEADER_SIZES },
    { "the file ends within", HEADER_CUT },
  };

  for (size_t i = 0; i < sizeof faults / sizeof faults[0]; i++)
    if (strstr (text, faults[i].part))
      return faults[i].fault;
  return HEADER_INVALID;
}

/* Parses buf; must be refused with TEXT, or accepted if that is NULL. */
static void
parse (uint64_t file_size, const char *text, struct header *h)
{
  unsigned long errors = error_count ();
  int r;

  clear_last_error ();
  quiet_errors = true;
  errno = 0;
  r = header_parse ("/a/disk", buf, sizeof buf, file_size, h);
  quiet_errors = false;
  if (text == NULL) {
    if (r != 0)
      fprintf (stderr, "refused: %s\n", last_error ());
    CHECK (r == 0 && error_count () == errors);
    return;
  }
  if (r == 0 || strstr (last_error (), text) == NULL) {
    fprintf (stderr, "expected \"%s\", got \"%s\"\n", text, last_error ());
    abort ();
  }
  CHECK (errno == EINVAL);
  CHECK (h->fault == fault_of (last_error ()));
  CHECK (error_count () == errors + 1);
  CHECK (strncmp (last_error (), "/a/disk: ", 9) == 0);
}

static void
test_cases (void)
{
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    struct header h;

    image_build (buf);
    for (int j = 0; j < 4; j++)
      apply (&cases[i].changes[j]);
    parse (cases[i].file_size ? cases[i].file_size : IMAGE_FILE_SIZE,
           cases[i].refused, &h);
    if (cases[i].refused == NULL)
      header_free (&h);
  }
}

static void
test_values (void)
{
  struct header h;

  image_build (buf);
  CHECK (header_is_qcow2 (buf, 4) && !header_is_qcow2 (buf, 3));
  apply (&(struct change) F64 (compatible_features, 0x11));
  parse (IMAGE_FILE_SIZE, NULL, &h);
  CHECK (h.version == 3 && h.cluster_bits == 16 && h.cluster_size == CS);
  CHECK (h.size == 1 << 30 && h.crypt_method == 0);
  CHECK (h.l1_entries == 2 && h.l1_offset == 3 * CS && h.l1_needed == 2);
  CHECK (h.reftable_offset == CS && h.reftable_clusters == 1);
  CHECK (h.nb_snapshots == 1 && h.snapshots_offset == 5 * CS);
  CHECK (h.incompatible == 0 && h.compatible == 0x11 && h.autoclear == 0);
  CHECK (h.refcount_order == 4 && h.header_length == 112);
  CHECK (h.l2_entry_size == 8 && h.l2_bits == 13 && h.compression_type == 0);
  CHECK (strcmp (h.backing_file, "base.img") == 0);
  CHECK (strcmp (h.backing_format, "raw") == 0);
  CHECK (h.data_file == NULL && !h.has_bitmaps && !h.has_crypto);
  header_free (&h);
  header_free (&h);             /* harmless */

  /* Extended L2 entries: half as many in a table. */
  apply (&(struct change) F64 (incompatible_features, 1 << 4));
  apply (&(struct change) F32 (l1_size, 4));
  parse (IMAGE_FILE_SIZE, NULL, &h);
  CHECK (h.l2_entry_size == 16 && h.l2_bits == 12 && h.l1_needed == 4);
  header_free (&h);

  /* Version 2: nothing of version 3 is looked at. */
  image_build (buf);
  memset (buf + 72, 0xff, 40);
  apply (&(struct change) F32 (version, 2));
  apply (&(struct change) { 72, 8, 0 });        /* no extensions */
  parse (IMAGE_FILE_SIZE, NULL, &h);
  CHECK (h.version == 2 && h.header_length == 72 && h.refcount_order == 4);
  CHECK (h.incompatible == 0 && h.compatible == 0 && h.autoclear == 0);
  CHECK (h.compression_type == 0 && h.l2_entry_size == 8);
  CHECK (h.backing_format == NULL);
  header_free (&h);

  /* Names end at their first NUL; empty names are none. */
  image_build (buf);
  buf[4096 + 4] = '\0';
  buf[120 + 1] = '\0';
  parse (IMAGE_FILE_SIZE, NULL, &h);
  CHECK (strcmp (h.backing_file, "base") == 0);
  CHECK (strcmp (h.backing_format, "r") == 0);
  header_free (&h);
  buf[4096] = buf[120] = '\0';
  parse (IMAGE_FILE_SIZE, NULL, &h);
  CHECK (h.backing_file == NULL && h.backing_format == NULL);
  header_free (&h);

  quiet_errors = true;
  for (size_t len = 0; len < CS; len += len < 200 ? 1 : 999)
    CHECK (header_parse ("short", buf, len, len, &h) == -1);
  quiet_errors = false;
}

static void
test_feature_names (void)
{
  struct qcow2_feature_name rows[3] = {
    { 1, 7, "not this" }, { 0, 7, "evil\x1b[2J\n" }, { 0, 9, "" },
  };
  struct header h;
  size_t pos = image_build (buf);

  memset (rows[2].name, 'x', sizeof rows[2].name);      /* no NUL */
  image_extension (buf, &pos, QCOW2_EXT_FEATURE_NAMES, rows, sizeof rows);
  apply (&(struct change) F64 (incompatible_features, 0x380));
  parse (IMAGE_FILE_SIZE, "bit 7 (\"evil\\x1b[2J\\x0a\"), bit 8, bit 9 (\"xxx",
         &h);
  CHECK (strstr (last_error (), "xxx\")") != NULL);

  /* All of them, with the longest of names, and a table that is cut off. */
  apply (&(struct change) F64 (incompatible_features, UINT64_MAX));
  parse (IMAGE_FILE_SIZE, "bit 5, bit 6, bit 7 (\"", &h);
  apply (&(struct change) F64 (backing_file_offset, pos - 8));
  parse (IMAGE_FILE_SIZE, "bit 5, bit 6, bit 7, bit 8", &h);
}

static void
test_bitmaps (void)
{
  const struct qcow2_ext_bitmaps good = {
    put32 (3), put32 (0), put64 (100), put64 (7 * CS)
  };
  struct qcow2_ext_bitmaps bad;
  struct header h;
  size_t pos;

#define BUILD(ext, autoclear)                                           \
  pos = image_build (buf);                                              \
  image_extension (buf, &pos, QCOW2_EXT_BITMAPS, &(ext), sizeof (ext)); \
  apply (&(struct change) F64 (autoclear_features, (autoclear)))

  BUILD (good, 1);
  parse (IMAGE_FILE_SIZE, NULL, &h);
  CHECK (h.has_bitmaps && h.bitmaps.count == 3);
  CHECK (h.bitmaps.dir_size == 100 && h.bitmaps.dir_offset == 7 * CS);
  header_free (&h);

  /* Out of date, whatever they say. */
  bad = good;
  bad.nb_bitmaps = put32 (0);
  BUILD (bad, 0);
  parse (IMAGE_FILE_SIZE, NULL, &h);
  CHECK (!h.has_bitmaps && h.bitmaps.count == 0);
  header_free (&h);

  BUILD (bad, 1);
  parse (IMAGE_FILE_SIZE, "0 bitmaps, not 1..65535", &h);
  bad.nb_bitmaps = put32 (65536);
  BUILD (bad, 1);
  parse (IMAGE_FILE_SIZE, "65536 bitmaps", &h);
  bad = good;
  bad.reserved = put32 (1);
  BUILD (bad, 1);
  parse (IMAGE_FILE_SIZE, "reserved field", &h);
  bad = good;
  bad.directory_offset = put64 (7 * CS + 8);
  BUILD (bad, 1);
  parse (IMAGE_FILE_SIZE, "the bitmap directory is at", &h);
  bad.directory_offset = put64 (100 * CS);
  BUILD (bad, 1);
  parse (IMAGE_FILE_SIZE, "the bitmap directory, 100 bytes", &h);
  bad.directory_offset = put64 (5 * CS);
  BUILD (bad, 1);
  parse (IMAGE_FILE_SIZE, "the bitmap directory at 327680 overlaps the "
         "snapshot table", &h);
  bad = good;
  bad.directory_size = put64 (UINT64_MAX);
  BUILD (bad, 1);
  parse (IMAGE_FILE_SIZE, "the bitmap directory has", &h);

  BUILD (good, 1);
  image_extension (buf, &pos, QCOW2_EXT_BITMAPS, &good, sizeof good);
  parse (IMAGE_FILE_SIZE, "header extension 0x23852875 appears twice", &h);
  pos = image_build (buf);
  image_extension (buf, &pos, QCOW2_EXT_BITMAPS, &good, 23);
  parse (IMAGE_FILE_SIZE, "the bitmaps extension has 23 bytes", &h);
}

static void
test_crypto (void)
{
  struct qcow2_ext_crypto ext = { put64 (6 * CS), put64 (CS + 1) };
  struct header h;
  size_t pos;

#define BUILD_CRYPTO(method)                                            \
  pos = image_build (buf);                                              \
  image_extension (buf, &pos, QCOW2_EXT_CRYPTO, &ext, sizeof ext);      \
  apply (&(struct change) F32 (crypt_method, (method)))

  BUILD_CRYPTO (2);
  parse (IMAGE_FILE_SIZE, NULL, &h);
  CHECK (h.has_crypto);
  CHECK (h.crypto.offset == 6 * CS && h.crypto.length == CS + 1);
  header_free (&h);
  BUILD_CRYPTO (0);
  parse (IMAGE_FILE_SIZE, "the encryption method is 0, not 2", &h);
  BUILD_CRYPTO (1);
  parse (IMAGE_FILE_SIZE, "the encryption method is 1, not 2", &h);
  ext.length = put64 (0);
  BUILD_CRYPTO (2);
  parse (IMAGE_FILE_SIZE, "the encryption header has a length of 0", &h);
  ext.length = put64 (11 * CS);
  BUILD_CRYPTO (2);
  parse (IMAGE_FILE_SIZE, "the encryption header, 720896 bytes at 393216, lies "
         "beyond", &h);
  ext = (struct qcow2_ext_crypto) { put64 (2 * CS), put64 (CS + 1) };
  BUILD_CRYPTO (2);
  parse (IMAGE_FILE_SIZE, "the encryption header at 131072 overlaps the L1",
         &h);
  apply (&(struct change) { 132, 4, 15 });
  parse (IMAGE_FILE_SIZE, "the encryption extension has 15 bytes", &h);
}

static void
test_data_file (void)
{
  static char name[4096];
  struct header h;
  size_t pos = image_build (buf);

  apply (&(struct change) F64 (backing_file_offset, 0));
  memset (name, 'n', sizeof name);
  image_extension (buf, &pos, QCOW2_EXT_DATA_FILE, name, 4095);
  parse (IMAGE_FILE_SIZE, NULL, &h);
  CHECK (strlen (h.data_file) == 4095 && h.backing_file == NULL);
  header_free (&h);

  pos = image_build (buf);
  apply (&(struct change) F64 (backing_file_offset, 0));
  image_extension (buf, &pos, QCOW2_EXT_DATA_FILE, name, 4096);
  parse (IMAGE_FILE_SIZE, "the data file's name has 4096 bytes", &h);
}

int
main (void)
{
  test_cases ();
  test_values ();
  test_feature_names ();
  test_bitmaps ();
  test_crypto ();
  test_data_file ();
  return 0;
}
