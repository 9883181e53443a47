/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Is a change refused, and the image left as it was, if the header or the table of
 * snapshots has no room for it?
 *
 * The first cluster is full to the last byte, with an unknown extension that has the one
 * of bitmaps lie across two sectors; or it has room for a header of version 2 only; or
 * the table of snapshots is as long as it may be.
 */

#include <config.h>

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "util/bytes.h"
#include "format/format.h"
#include "lib/changes.h"
#include "lib/images.h"

#define IMAGE "full.qcow2"
#define BELOW "below"
#define UNKNOWN 0x12345678

static struct disk_options options;

/* A name of N bytes for BELOW. */
static void
put_name (struct blob *b, uint64_t at, uint64_t n)
{
  const char *const name = "/" BELOW;

  memset (b->data + at, '.', n);
  for (uint64_t i = 1; i < n; i += 2)
    b->data[at + i] = '/';
  CHECK (n % 2 == strlen (name) % 2);
  memcpy (b->data + at + n - strlen (name), name, strlen (name));
  blob_put (b, 8, at, 8);
  blob_put (b, 16, n, 4);
}

/* Expects that the change was refused with WHY. */
static void
refused (int r, const struct blob *before, int err, const char *why)
{
  struct blob now;

  printf ("%d: %s\n", r, last_error ());
  fflush (stdout);
  CHECK (r == -1 && errno == err);
  CHECK (strstr (last_error (), why) != NULL);
  blob_load (IMAGE, &now);
  CHECK (blob_same (before, &now));
  blob_free (&now);
}

static void
make (unsigned version, uint64_t cluster_size, bool bitmap)
{
  const struct image_spec below = { .raw = true, .size = 1 << 20 };
  const struct image_spec spec = {
    .version = version, .cluster_size = cluster_size, .refcount_bits = 16,
    .size = 4 << 20, .backing = BELOW, .backing_raw = true,
  };

  image_create (BELOW, &below);
  image_create (IMAGE, &spec);
  if (bitmap)
    image_bitmap (IMAGE, "b", 9);
}

static uint64_t
find_extension (const struct blob *b, uint32_t type)
{
  uint64_t at = blob_get (b, 100, 4);

  while (blob_get (b, at, 4) != type) {
    CHECK (blob_get (b, at, 4) != 0);
    at += 8 + round_up (blob_get (b, at + 4, 4), 8);
  }
  return at;
}

/* Clusters of 1024 bytes; the extension of bitmaps lies across the two sectors. */
static void
fill_header (struct blob *b)
{
  const uint64_t start = blob_get (b, 100, 4), from = find_extension (b, QCOW2_EXT_BITMAPS);
  unsigned char bitmaps[8 + sizeof (struct qcow2_ext_bitmaps)];
  uint64_t at = 496;

  memcpy (bitmaps, b->data + from, sizeof bitmaps);
  memset (b->data + start, 0, 1024 - start);
  blob_put (b, start, UNKNOWN, 4);
  blob_put (b, start + 4, at - start - 8, 4);
  memset (b->data + start + 8, 0xab, at - start - 8);
  memcpy (b->data + at, bitmaps, sizeof bitmaps);
  at += sizeof bitmaps;
  blob_put (b, at, QCOW2_EXT_BACKING_FORMAT, 4);
  blob_put (b, at + 4, 3, 4);
  memcpy (b->data + at + 8, "raw", 3);
  at += 24;                     /* with the end mark */
  put_name (b, at, 1024 - at);
}

static int
edit (struct edit e)
{
  return change_edit (&options, &(struct edit_options) { .shrink = true }, &e);
}

static void
test_bitmaps (void)
{
  static const struct bitmapedit clear = { .what = BITMAP_CLEAR, .name = "b" };
  static const struct bitmapedit without = { .what = BITMAP_REMOVE, .name = "b" };
  struct blob b;

  make (3, 1024, true);
  blob_load (IMAGE, &b);
  fill_header (&b);
  blob_save (IMAGE, &b);
  CHECK (image_check (IMAGE) == 0);
  refused (edit ((struct edit) { .kind = EDIT_RESIZE, .size = 8 << 20 }), &b, ENOTSUP,
           "no space for the bitmaps extension");
  refused (change_bitmaps (&options, &clear, 1, NULL), &b, ENOTSUP,
           "no space for the bitmaps extension");
  /* Nothing has to fit: a feature says that what is left there means nothing. */
  CHECK (change_bitmaps (&options, &without, 1, NULL) == 0);
  CHECK (image_check (IMAGE) == 0);
  blob_free (&b);
}

static void
test_version (void)
{
  struct blob b;

  make (2, 512, false);
  blob_load (IMAGE, &b);
  put_name (&b, 100, 412);
  blob_save (IMAGE, &b);
  CHECK (image_check (IMAGE) == 0);
  refused (change_amend (&options, &(const struct amend) { .version = 3 }), &b, ENOTSUP,
           "no space for a change to version 3");
  blob_free (&b);
}

/* Of entries with long names, and the last one such that the table has BYTES. */
static void
make_table (struct blob *b, uint64_t bytes)
{
  const uint64_t start = round_up (b->len, 65536);
  struct blob longer = blob_resized (b, start + bytes);
  uint64_t n = 0, at = start, name;

  for (; at < start + bytes; n++) {
    const uint64_t left = start + bytes - at;

    name = min64 (left, 65528) - 40 - 16 - 8;
    blob_put (&longer, at + 12, 8, 2);          /* lengths of id and name */
    blob_put (&longer, at + 14, name, 2);
    blob_put (&longer, at + 36, 16, 4);         /* extra data */
    blob_put (&longer, at + 48, 4 << 20, 8);    /* the size of the disk */
    snprintf ((char *) longer.data + at + 56, 8, "%07" PRIu64, n);
    longer.data[at + 63] = 'i';
    memset (longer.data + at + 64, 'n', name);
    snprintf ((char *) longer.data + at + 64, 8, "%07" PRIu64, n);
    at += 64 + name;
  }
  CHECK (at == start + bytes);
  blob_put (&longer, 60, n, 4);
  blob_put (&longer, 64, start, 8);
  blob_free (b);
  *b = longer;
}

static void
test_snapshots (void)
{
  const struct edit create = { .kind = EDIT_SNAPSHOT_CREATE, .name = "one more" };
  char name[300] = { 0 };
  struct blob b;

  make (3, 65536, false);
  blob_load (IMAGE, &b);
  memset (name, 'n', 256);
  refused (edit ((struct edit) { .kind = EDIT_SNAPSHOT_CREATE, .name = name }), &b,
           EINVAL, "must have 1 to");
  refused (edit ((struct edit) { .kind = EDIT_SNAPSHOT_CREATE, .name = "" }), &b,
           EINVAL, "must have 1 to");
  make_table (&b, QCOW2_MAX_SNAPSHOT_TABLE - 1016);
  blob_save (IMAGE, &b);
  refused (edit (create), &b, EFBIG, "already has the maximum");
  blob_free (&b);
}

int
main (void)
{
  images_enter ("no-room");
  options = (struct disk_options) {
    .path = images_path (IMAGE), .l2_cache = 1 << 20, .l2_slice = 512,
    .backing = BACKING_FOLLOW,
  };
  test_bitmaps ();
  test_version ();
  test_snapshots ();
  free ((char *) options.path);
  images_leave ();
  return 0;
}
