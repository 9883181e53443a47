/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What is known about one opened image, and which programs are kept out of it?
 *
 * Specification: "Header", "Header extensions" (external data file name).
 *
 * An image consists of its file, its external data file, its header, and what the header
 * leads to: the places of its metadata (overlap, which is read once from the L1 table and
 * the refcount table; the tables are checked and not kept), its snapshots, and access to
 * its guest data.  It is opened in steps, because its contents are trusted step by step:
 * a check also handles images with an invalid header, and an image that is refused is
 * refused before more of it is read.
 *
 * The file is locked as by a reader before any of its contents are trusted.  Callers that
 * change it lock it as writers.  For both roles, QEMU locks the data file differently
 * from the image: image_lock is the only function that knows how.
 *
 * An external data file is always raw, so it needs no format.
 *
 * The image of a disk that changes as a whole is read anew: each generation is a struct
 * image of its own, and those that are in use share what lasts (the base).
 *
 * Locks: none.  One thread at a time opens, loads and locks an image (that which takes
 * the steps of the disk to which it belongs; or if a commit writes it, the end of the
 * commit: see commit.c); requests only read the fields.  Owners and the role are atomic.
 */

#include <config.h>

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "util/bytes.h"
#include "util/cleanup.h"
#include "util/memory.h"
#include "util/publicname.h"
#include "util/remedy.h"
#include "util/report.h"
#include "util/sparse.h"
#include "format/compress.h"
#include "format/format.h"
#include "format/otherformat.h"
#include "image/filename.h"
#include "image/image.h"

/* What lasts. */
struct image_base {
  struct storage *file, *data;
  struct crypt_cipher *cipher;
  struct health *health;        /* NULL: not loaded yet */
  uint64_t most_places;         /* 0, or the limit */
  bool is_durable;              /* storage_forget_cache was called */
  bool locked;                  /* if not, no program is kept out */
  _Atomic enum image_role role;
  unsigned owners;              /* generations; atomic */
};

/* --- the file and its header --- */

/* A generation of it, of which nothing has been read.  NULL: reported. */
static struct image *
new_generation (struct image_base *base)
{
  struct image *im = memory_new (1, sizeof *im);

  if (im == NULL)
    return NULL;
  __atomic_add_fetch (&base->owners, 1, __ATOMIC_RELAXED);
  im->owners = 1;
  im->base = base;
  im->file = base->file;
  im->data = base->data;
  im->cipher = base->cipher;
  im->health = base->health;
  return im;
}

static void
free_base (struct image_base *base)
{
  health_free (base->health);
  crypt_free (base->cipher);
  storage_close (base->data);
  storage_close (base->file);
  free (base);
}

struct image *
image_open_file (const char *path, const struct storage_options *options)
{
  struct image_base *base = memory_new (1, sizeof *base);
  struct image *im;

  if (base == NULL)
    return NULL;
  base->locked = options->lock;
  base->role = IMAGE_READER;
  if (storage_open (path, options, &base->file) == -1) {
    free (base);
    return NULL;
  }
  im = new_generation (base);
  if (im == NULL)
    free_base (base);
  return im;
}

/* A first read of this length contains the first cluster of most images. */
#define FIRST_READ (UINT64_C (64) << 10)

/* The size of the first cluster, which is in the first bytes.  BUF contains the first N
 * bytes. */
static uint64_t
header_length (const void *buf, uint64_t n)
{
  struct qcow2_header h = { .cluster_bits = put32 (0) };
  unsigned bits;

  memcpy (&h, buf, min64 (n, sizeof h));
  bits = get32 (h.cluster_bits);
  if (bits < QCOW2_MIN_CLUSTER_BITS || bits > QCOW2_MAX_CLUSTER_BITS)
    bits = QCOW2_MIN_CLUSTER_BITS;      /* header_parse will refuse it */
  return UINT64_C (1) << bits;
}

/* Reads what the header can use, *LEN bytes: the first cluster, as far as it is in the
 * file, or FILLED up with zeros.  The caller frees it.  NULL: reported. */
static void *
read_first_cluster (const struct image *im, bool filled, uint64_t *len)
{
  const uint64_t size = storage_size (im->file), first = min64 (size, FIRST_READ);
  char *buf = memory_get (first), *all;
  uint64_t cluster, there;

  if (buf && storage_read (im->file, buf, first, 0) == 0) {
    cluster = header_length (buf, first);
    there = min64 (size, cluster);
    *len = filled ? cluster : there;
    if (*len <= first)
      return buf;
    all = memory_resize (buf, *len, 1);
    buf = all ? all : buf;
    if (all && (there <= first ||
                storage_read (im->file, buf + first, there - first, first) == 0)) {
      memset (buf + there, 0, *len - there);
      return buf;
    }
  }
  KEEP_ERRNO_FOR_BLOCK;
  free (buf);
  return NULL;
}

/* Says what the file is, as far as that is known. */
static int
refuse_other (const struct image *im)
{
  const uint64_t len = min64 (storage_size (im->file), OTHERFORMAT_BYTES);
  CLEANUP_FREE void *buf = malloc (len);
  const char *other;

  if (buf && storage_read (im->file, buf, len, 0) == -1)
    return -1;
  other = buf ? otherformat_name (buf, len) : NULL;
  if (other)
    report_error ("%s: not a qcow2 image, but %s", storage_path (im->file), other);
  else
    report_error ("%s: not a qcow2 image: %s", storage_path (im->file), len == 0
                  ? "the file is empty" : "it begins like no known format; if it is a raw "
                  "disk, nbdkit's file plugin serves it");
  errno = EINVAL;
  return -1;
}

/* CUT: as image_read_cut_header.  While somebody writes the image (this server, if the
 * image is opened by name to see what it is, or others, if it is not locked), the file
 * may grow before the header names what is at its end: what counts is the size
 * afterwards. */
static int
read_header (struct image *im, bool cut)
{
  CLEANUP_FREE void *buf = NULL;
  const char *path = storage_path (im->file);
  uint64_t len;

  if (storage_size (im->file) == 0)
    return refuse_other (im);
  buf = read_first_cluster (im, cut && storage_size (im->file) >= QCOW2_V3_HEADER_MIN,
                            &len);
  if (buf == NULL)
    return -1;
  if (!header_is_qcow2 (buf, len))
    return refuse_other (im);
  return header_parse (path, buf, len, cut ? QCOW2_MAX_HOST_OFFSET
                       : storage_size_now (im->file, false), &im->header);
}

/* Was the image not closed properly? */
static bool
is_marked (const struct image *im)
{
  return (im->header.incompatible & QCOW2_INCOMPAT_DIRTY) ||
    (im->header.autoclear & QCOW2_AUTOCLEAR_IN_USE);
}

/* If an image was not closed properly, perhaps the host could not write some of the last
 * changes.  They may still be in its cache, but must not be believed then: refcounts that
 * are corrected according to them would be wrong after a power cut. */
int
image_read_header_to_check (struct image *im)
{
  if (read_header (im, false) == -1)
    return -1;
  if (im->base->is_durable || !is_marked (im))
    return 0;
  storage_forget_cache (im->file);
  im->base->is_durable = true;
  header_free (&im->header);
  return read_header (im, false);
}

/* Can more be done with the image than to check and repair it? */
static int
need_usable (const struct image *im)
{
  const struct header *h = &im->header;

  if (h->reftable_clusters > 0 && h->nb_snapshots <= QCOW2_MAX_SNAPSHOTS)
    return 0;
  if (h->reftable_clusters == 0)
    report_error ("%s: the image has no refcount table; a repair can make a new one",
                  storage_path (im->file));
  else
    report_error ("%s: the image has %" PRIu32 " snapshots, more than %d; a repair removes "
                  "the last ones", storage_path (im->file), h->nb_snapshots,
                  QCOW2_MAX_SNAPSHOTS);
  errno = EINVAL;
  return -1;
}

int
image_read_header (struct image *im)
{
  return image_read_header_to_check (im) == -1 || need_usable (im) == -1 ? -1 : 0;
}

int
image_read_cut_header (struct image *im)
{
  return read_header (im, true) == -1 || need_usable (im) == -1 ? -1 : 0;
}

/* Refuses features that this plugin does not support, by name. */
static int
check_features (const char *path, const struct header *h)
{
  const char *what = NULL;

  if ((h->incompatible & QCOW2_INCOMPAT_DATA_FILE) && h->nb_snapshots > 0)
    what = "internal snapshots together with an external data file";
  else if (!compress_supported (h->compression_type))
    what = "zstd compression, for which this plugin was not built";

  if (what)
    return report_refusal (ENOTSUP, "%s: the image uses %s: not supported", path, what);
  return 0;
}

struct image *
image_open (const char *path, const struct image_options *options)
{
  struct image *im = image_open_file (path, &options->file);

  if (im == NULL)
    return NULL;
  image_limit_places (im, options->most_places);
  if (image_read_header (im) == 0 && check_features (path, &im->header) == 0 &&
      secret_unlock (&options->secret, im->file, &im->header,
                     &im->base->cipher) == 0) {
    im->cipher = im->base->cipher;
    return im;
  }
  image_close (im);
  return NULL;
}

/* --- the external data file --- */

/* Sets *PATH, which the caller frees; NULL if there is no data file. */
static int
find_data (const struct image *im, const struct image_options *options, char **path)
{
  const char *overlay = storage_path (im->file);
  const struct header *h = &im->header;
  const bool replaced = options->data_file == DATA_FILE_PATH && !options->below_top;

  *path = NULL;
  errno = EINVAL;
  if (!(h->incompatible & QCOW2_INCOMPAT_DATA_FILE)) {
    if (!replaced)
      return 0;
    report_error ("%s: the image has no external data file that %s could be", overlay,
                  options->data_file_path);
    return -1;
  }
  if (options->data_file == DATA_FILE_DENY) {
    CLEANUP_FREE char *shown = publicname (h->data_file ? h->data_file : "");

    return report_refusal (EPERM, "%s: the image has an external data file (\"%s\"), "
                           "which must not be opened", overlay, publicname_or (shown));
  }
  if (!replaced && h->data_file == NULL) {
    report_error ("%s: the image has an external data file, but does not say "
                  "where it is%s%s", overlay, options->below_top ? "" : ": ",
                  options->below_top ? "" : remedy (REMEDY_DATA_FILE));
    return -1;
  }

  if (!replaced) {
    *path = filename_of_data (overlay, h->data_file, &options->rules);
    return *path == NULL ? -1
      : filename_check_there (*path, "external data file", overlay, options->below_top
                              ? NULL : remedy (REMEDY_DATA_FILE));
  }
  *path = strdup (options->data_file_path);
  if (*path == NULL)
    report_error ("%s: opening the external data file: %m", overlay);
  return *path ? 0 : -1;
}

int
image_open_data (struct image *im, const struct image_options *options)
{
  struct storage_options file_options = options->file;
  CLEANUP_FREE char *path = NULL;

  if (find_data (im, options, &path) == -1)
    return -1;
  if (path == NULL)
    return 0;
  file_options.in_dir.name = NULL;     /* it has a path */
  file_options.data_file = true;
  if (storage_open (path, &file_options, &im->base->data) == -1)
    return -1;
  im->data = im->base->data;
  if (im->base->is_durable)
    storage_forget_cache (im->data);
  if (!storage_same (im->file, im->data))
    return 0;
  image_data_in_use (im, im->file);
  return -1;
}

void
image_data_in_use (const struct image *im, const struct storage *as)
{
  report_error ("%s: the external data file of %s is already used as %s",
                storage_path (im->data), storage_path (im->file),
                storage_path (as));
  errno = ELOOP;
}

bool
image_data_is_raw (const struct image *im)
{
  return im->data && (im->header.autoclear & QCOW2_AUTOCLEAR_RAW_DATA_FILE);
}

/* --- places of metadata and guest data --- */

/* Bytes of a table that are read at a time. */
#define TABLE_PIECE (UINT64_C (1) << 20)
/* An L1 table of up to this many bytes is kept if each read of it would take long. */
#define MOST_L1_KEPT (UINT64_C (1) << 20)

/* A table of host offsets. */
struct table {
  uint64_t offset, bytes;       /* in the file */
  uint64_t mask;                /* of an entry: the offset */
  enum overlap_kind kind;       /* of the clusters that it points to */
  struct be64 *keep;            /* NULL, or where a copy goes */
  struct be64 *buf;             /* for one piece */
};

static uint64_t
piece_length (const struct table *t, uint64_t at)
{
  return min64 (t->bytes - at, TABLE_PIECE);
}

/* Registers the clusters that the piece at AT points to, which is in the buffer. */
static int
register_piece (struct image *im, const struct table *t, uint64_t at)
{
  const uint64_t cs = im->header.cluster_size, len = piece_length (t, at);
  uint64_t i, offset;

  if (t->keep)
    sparse_copy ((char *) t->keep + at, t->buf, len);
  for (i = 0; i < len / sizeof *t->buf; i++) {
    offset = get64 (t->buf[i]) & t->mask;
    if (offset != 0 && (offset & (cs - 1)) == 0 &&
        offset < storage_size (im->file) &&
        overlap_add (im->overlap, offset, cs, t->kind) == -1)
      return -1;
  }
  return 0;
}

/* The same for the whole table.  The first piece is in the buffer. */
static int
register_table (struct image *im, const struct table *t)
{
  uint64_t at, n = piece_length (t, 0);

  if (register_piece (im, t, 0) == -1)
    return -1;
  for (at = n; at < t->bytes; at += n) {
    n = piece_length (t, at);
    if (storage_read (im->file, t->buf, n, t->offset + at) == -1 ||
        register_piece (im, t, at) == -1)
      return -1;
  }
  return 0;
}

/* The first pieces are read together; they contain most tables as a whole. */
static int
register_tables (struct image *im, struct table *a, struct table *b)
{
  CLEANUP_FREE struct be64 *a_buf = memory_get (piece_length (a, 0) + 1);
  CLEANUP_FREE struct be64 *b_buf = a_buf ? memory_get (piece_length (b, 0) + 1) : NULL;
  struct storage_range first[] = {
    { .storage = im->file, .buf = a_buf, .count = piece_length (a, 0),
      .offset = a->offset },
    { .storage = im->file, .buf = b_buf, .count = piece_length (b, 0),
      .offset = b->offset },
  };

  if (a_buf == NULL || b_buf == NULL)
    return -1;
  a->buf = a_buf;
  b->buf = b_buf;
  return storage_read_many (first, 2) == -1 || register_table (im, a) == -1 ||
    register_table (im, b) == -1 ? -1 : 0;
}

/* Makes room for a copy of the L1 table, if there is to be one. */
static int
prepare_l1 (struct image *im)
{
  const uint64_t bytes = im->header.l1_needed * sizeof *im->l1;

  if (!storage_is_remote (im->file) || bytes == 0 || bytes > MOST_L1_KEPT)
    return 0;
  im->l1 = sparse_new (bytes);
  if (im->l1 == NULL)
    report_error ("L1 table: %m");
  return im->l1 ? 0 : -1;
}

static int
new_overlap (struct image *im)
{
  im->overlap = overlap_new (im->header.cluster_bits);
  if (im->overlap == NULL) {
    report_error ("overlap_new: %m");
    return -1;
  }
  if (im->base->most_places > 0)
    overlap_limit (im->overlap, im->base->most_places);
  return 0;
}

void
image_limit_places (struct image *im, uint64_t most)
{
  im->base->most_places = most;
}

/* Returns R, what registering metadata has returned; reports that the limit of places was
 * the reason if it failed. */
static int
explain_limit (const struct image *im, int r)
{
  if (r == -1 && errno == E2BIG) {
    report_error ("%s: the image has more than %" PRIu64 " L2 tables and other clusters "
                  "of metadata, more than an untrusted image may have",
                  storage_path (im->file), im->base->most_places);
    errno = EPERM;
  }
  return r;
}

static int
register_metadata (struct image *im)
{
  const struct header *h = &im->header;
  struct table blocks = {
    .offset = h->reftable_offset, .bytes = h->reftable_clusters * h->cluster_size,
    .mask = QCOW2_REFTABLE_OFFSET_MASK, .kind = OVERLAP_REFBLOCK,
  };
  struct table tables = {
    .offset = h->l1_offset, .bytes = h->l1_needed * sizeof (struct be64),
    .mask = QCOW2_L1_OFFSET_MASK, .kind = OVERLAP_L2,
  };

  if (new_overlap (im) == -1 || prepare_l1 (im) == -1)
    return -1;
  tables.keep = im->l1;
  if (overlap_add (im->overlap, h->l1_offset, h->l1_entries * UINT64_C (8),
                   OVERLAP_L1) == -1 ||
      overlap_add (im->overlap, h->reftable_offset,
                   h->reftable_clusters * h->cluster_size, OVERLAP_REFTABLE) == -1 ||
      /* Refcount blocks first, so that an L1 entry that points to one is found wrong. */
      register_tables (im, &blocks, &tables) == -1)
    return -1;
  return h->has_crypto &&
    overlap_add (im->overlap, h->crypto.offset, h->crypto.length,
                 OVERLAP_CRYPTO) == -1 ? -1 : 0;
}

int
image_load (struct image *im)
{
  if (explain_limit (im, register_metadata (im)) == -1)
    return -1;
  im->guestdata = guestdata_new (im->data ? im->data : im->file, im->cipher,
                                 im->header.crypt_method == QCOW2_CRYPT_AES
                                 ? GUESTDATA_GUEST_SECTORS : GUESTDATA_HOST_SECTORS);
  if (im->base->health == NULL)
    im->base->health = health_new (im->file, &im->header);
  im->health = im->base->health;
  return im->guestdata && im->health ? 0 : -1;
}

int
image_read_snapshots (struct image *im)
{
  if (im->overlap == NULL && new_overlap (im) == -1)
    return -1;
  return explain_limit (im, snapshots_read (im->file, &im->header, im->overlap,
                                            &im->snapshots));
}

struct image *
image_again (const struct image *old)
{
  struct image *im = new_generation (old->base);

  if (im == NULL)
    return NULL;
  if (image_read_header (im) == 0 && image_load (im) == 0 && image_read_snapshots (im) == 0)
    return im;
  image_close (im);
  return NULL;
}

void
image_adopt (struct image *im)
{
  health_adopt (im->health, &im->header);
}

/* --- locks and owners --- */

static const char *
why_readonly (const struct storage *s, const char *otherwise)
{
  const char *why = storage_why_readonly (s);

  return storage_is_writable (s) ? NULL : why ? why : otherwise;
}

const char *
image_why_readonly (const struct image *im)
{
  const char *why = why_readonly (im->file, "the file is not writable");

  return why || im->data == NULL ? why
    : why_readonly (im->data, "the external data file is not writable");
}

bool
image_is_alone (const struct image *im)
{
  return __atomic_load_n (&im->base->owners, __ATOMIC_ACQUIRE) == 1;
}

/* (The L1 table is read in pieces.) */
int
image_is_empty (const struct image *image)
{
  const struct header *const h = &image->header;
  const uint64_t bytes = h->l1_entries * sizeof (struct be64);
  char buf[4096];

  for (uint64_t n, at = 0; at < bytes; at += n) {
    n = min64 (bytes - at, sizeof buf);
    if (storage_read (image->file, buf, n, h->l1_offset + at) == -1)
      return -1;
    if (!bytes_are_zero (buf, n))
      return 0;
  }
  return 1;
}

int
image_become_writable (struct image *im)
{
  return storage_become_writable (im->file) == -1 ||
    (im->data && storage_become_writable (im->data) == -1) ? -1 : 0;
}

static int
lock_file (struct image *im, enum image_role role)
{
  return storage_lock (im->file, role == IMAGE_WRITER ? STORAGE_WRITER
                       : STORAGE_READER);
}

/* The locks of the image keep writers of the data file apart.  In the data file, only the
 * size must not be changed by other programs. */
static int
lock_data (struct image *im, enum image_role role)
{
  return im->data == NULL ? 0
    : storage_lock (im->data, role == IMAGE_WRITER ? STORAGE_DATA_WRITER
                    : STORAGE_DATA_READER);
}

enum image_role
image_role (const struct image *im)
{
  return im->base->role;
}

int
image_lock (struct image *im, enum image_role role)
{
  if (role == im->base->role)
    return 0;
  if (im->base->locked && lock_file (im, role) == -1)
    return -1;
  if (im->base->locked && lock_data (im, role) == -1) {
    KEEP_ERRNO_FOR_BLOCK;

    lock_file (im, im->base->role);
    return -1;
  }
  im->base->role = role;
  return 0;
}

void
image_disconnect (struct image *im)
{
  storage_disconnect (im->file);
  if (im->data)
    storage_disconnect (im->data);
}

struct image *
image_ref (struct image *im)
{
  __atomic_add_fetch (&im->owners, 1, __ATOMIC_RELAXED);
  return im;
}

void
image_close (struct image *im)
{
  struct image_base *base;
  KEEP_ERRNO_FOR_BLOCK;

  if (im == NULL || __atomic_sub_fetch (&im->owners, 1, __ATOMIC_ACQ_REL) > 0)
    return;
  base = im->base;
  snapshots_free (&im->snapshots);
  guestdata_free (im->guestdata);
  overlap_free (im->overlap);
  if (im->l1)
    sparse_free (im->l1, im->header.l1_needed * sizeof *im->l1);
  header_free (&im->header);
  free (im);
  if (__atomic_sub_fetch (&base->owners, 1, __ATOMIC_ACQ_REL) == 0)
    free_base (base);
}
