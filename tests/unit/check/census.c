/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Does the census count what QEMU counts?
 *
 * qemu-img and qemu-io make images with all that can hold references: snapshots,
 * compressed clusters, bitmaps, subclusters, an external data file, encryption.  In an
 * image that qemu-img check finds clean, each refcount must be what the census says.
 */

#include <config.h>

#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <unistd.h>

#include "util/bytes.h"
#include "format/overlap.h"
#include "image/snapshot.h"
#include "space/refcount.h"
#include "check/census.h"
#include "lib/images.h"

#define IMAGE "census.qcow2"

/* An image as the census wants it. */
struct image {
  char *path;
  struct hostfile *file;
  struct header header;
  struct overlap *overlap;
  struct snapshots snapshots;
};

static void
open_image (struct image *image)
{
  const struct hostfile_options options = { .hooks = NULL };
  unsigned char *buf = malloc (HEADER_READ_SIZE);
  uint64_t len;

  CHECK (buf != NULL);
  image->path = images_path (IMAGE);
  CHECK (hostfile_open (image->path, &options, &image->file) == 0);
  len = min64 (hostfile_size (image->file), HEADER_READ_SIZE);
  CHECK (hostfile_read (image->file, buf, len, 0) == 0);
  CHECK (header_parse (image->path, buf, len, hostfile_size (image->file),
                       &image->header) == 0);
  image->overlap = overlap_new (image->header.cluster_bits);
  CHECK (image->overlap != NULL);
  CHECK (snapshots_read (image->file, &image->header, image->overlap,
                         &image->snapshots) == 0);
  free (buf);
}

static void
close_image (struct image *image)
{
  snapshots_free (&image->snapshots);
  overlap_free (image->overlap);
  header_free (&image->header);
  hostfile_close (image->file);
  free (image->path);
}

static void
compare (const char *what)
{
  struct image image;
  struct refcounts *refcounts;
  struct census *census;
  uint64_t c, end, count, value, total = 0;

  /* It can't be checked without its passphrase. */
  CHECK (strcmp (what, "LUKS") == 0 || image_check (IMAGE) == 0);
  open_image (&image);
  refcounts = refcount_open (image.file, &image.header, image.overlap);
  CHECK (refcounts != NULL);
  census = census_new (image.file, &image.header, &image.snapshots, true);
  CHECK (census != NULL);
  if (census_take (census, 0) == -1) {
    fprintf (stderr, "%s: %s\n", what, census_fault (census));
    CHECK (false);
  }
  CHECK (census_fault (census) == NULL && census_next (census) == UINT64_MAX);
  CHECK (refcount_end (refcounts, &end) == 0);
  CHECK (census_end (census) == end);
  for (c = 0; c < end + 10; c++) {
    CHECK (refcount_get (refcounts, c, &value) == 0);
    count = census_count (census, c);
    if (value != count)
      fprintf (stderr, "%s: cluster %" PRIu64 ": QEMU counts %" PRIu64
               ", the census %" PRIu64 "\n", what, c, value, count);
    CHECK (value == count);
    total += count;
  }
  printf ("%s: %" PRIu64 " clusters, %" PRIu64 " references\n", what, end,
          total);

  /* Without the refcounts, and in a window where nothing is. */
  census_free (census);
  census = census_new (image.file, &image.header, &image.snapshots, false);
  CHECK (census_take (census, 0) == 0);
  CHECK (census_count (census, image.header.reftable_offset >>
                       image.header.cluster_bits) == 0);
  CHECK (census_count (census, 0) == 1);
  CHECK (census_take (census, CENSUS_WINDOW) == 0);
  CHECK (census_count (census, 0) == 0);
  CHECK (census_end (census) == end);
  CHECK (census_next (census) == UINT64_MAX);
  census_free (census);
  refcount_close (refcounts);
  close_image (&image);
}

/* The census finds fault with it, and says so in a text with MESSAGE. */
static void
expect_fault (const char *message)
{
  struct image image;
  struct census *census;

  open_image (&image);
  census = census_new (image.file, &image.header, &image.snapshots, true);
  CHECK (census != NULL);
  CHECK (census_take (census, 0) == -1 && errno == EUCLEAN);
  CHECK (census_fault (census) != NULL);
  printf ("fault: %s\n", census_fault (census));
  CHECK (strstr (census_fault (census), message) != NULL);
  census_free (census);
  close_image (&image);
}

static int
try_create (const char *options, const char *more)
{
  struct command c = { .n = 0 };
  char word[300];
  const char *end;

  command_add (&c, "qemu-img");
  command_add (&c, "create");
  command_add (&c, "-q");
  command_add (&c, "-f");
  command_add (&c, "qcow2");
  command_add (&c, "-o");
  command_add (&c, "%s", options);
  for (; more && *more; more = *end ? end + 1 : end) {
    end = strchrnul (more, ' ');
    snprintf (word, sizeof word, "%.*s", (int) (end - more), more);
    command_add (&c, "%s", word);
  }
  command_add (&c, IMAGE);
  command_add (&c, "8M");
  return command_run (&c);
}

static void
create (const char *options)
{
  unlink (IMAGE);
  CHECK (try_create (options, NULL) == 0);
}

static void
io (const char *request)
{
  struct command c = { .n = 0 };

  command_add (&c, "qemu-io");
  command_add (&c, "-t");
  command_add (&c, "unsafe");
  command_add (&c, "-d");
  command_add (&c, "unmap");
  command_add (&c, "-f");
  command_add (&c, "qcow2");
  command_add (&c, "-c");
  command_add (&c, "%s", request);
  command_add (&c, IMAGE);
  command_must (&c);
}

static void
bitmap (const char *name, const char *granularity)
{
  struct command c = { .n = 0 };

  command_add (&c, "qemu-img");
  command_add (&c, "bitmap");
  command_add (&c, "--add");
  command_add (&c, "-g");
  command_add (&c, "%s", granularity);
  command_add (&c, IMAGE);
  command_add (&c, "%s", name);
  command_must (&c);
}

static void
some_writes (void)
{
  io ("write 0 300k");
  io ("write -z 1M 1M");
  io ("write 1500k 33k");
  io ("discard 64k 64k");
  io ("write 7M 512");
}

static void
patch (uint64_t offset, uint64_t value)
{
  struct blob b;
  const struct be64 x = put64 (value);

  blob_load (IMAGE, &b);
  CHECK (offset + 8 <= b.len);
  memcpy (b.data + offset, &x, 8);
  blob_save (IMAGE, &b);
  blob_free (&b);
}

static uint64_t
peek (uint64_t offset)
{
  struct blob b;
  struct be64 x;

  blob_load (IMAGE, &b);
  CHECK (offset + 8 <= b.len);
  memcpy (&x, b.data + offset, 8);
  blob_free (&b);
  return get64 (x);
}

static void
faults (void)
{
  uint64_t l1, l2;

  create ("cluster_size=4k");
  io ("write 0 64k");
  l1 = peek (40);
  l2 = peek (l1) & QCOW2_L1_OFFSET_MASK;
  patch (l2 + 8 * 100, l2 | QCOW2_OFLAG_COPIED);
  expect_fault ("overlaps an L2 table");
  patch (l2 + 8 * 100, l1);
  expect_fault ("overlaps a table");
  patch (l2 + 8 * 100, peek (48));
  expect_fault ("overlaps a part of the refcounts");
  patch (l2 + 8 * 100, peek (l2) + 512);
  expect_fault ("is not aligned");
  patch (l2 + 8 * 100, UINT64_C (1) << 40);
  expect_fault ("beyond the end");
  patch (l2 + 8 * 100, QCOW2_OFLAG_COMPRESSED | UINT64_C (1) << 45);
  expect_fault ("beyond the end");
  patch (l2 + 8 * 100, QCOW2_OFLAG_COMPRESSED | UINT64_C (1) << 57);
  expect_fault ("beyond the end");
  patch (l2 + 8 * 100, 0);
  patch (l1, l2 + 1024);
  expect_fault ("is not aligned");
  patch (l1, UINT64_C (1) << 50);
  expect_fault ("beyond the end");
  patch (l1, l2);
  patch (peek (48) + 8, 12345 * 512);
  expect_fault ("refcount block");
}

int
main (void)
{
  static const char *const sizes[] = {
    "cluster_size=512,refcount_bits=64", "cluster_size=4k,refcount_bits=8",
    "cluster_size=64k",
  };
  unsigned i;

  images_enter ("census");
  for (i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
    create (sizes[i]);
    compare ("empty");
    some_writes ();
    compare ("written");
    image_snapshot (IMAGE, "one");
    compare ("a snapshot");
    io ("write 40k 200k");
    image_snapshot (IMAGE, "two");
    io ("write 6M 100k");
    compare ("two snapshots");
    bitmap ("fine", "512");
    bitmap ("coarse", "64k");
    compare ("bitmaps");
    io ("write 5M 64k");
    compare ("bitmaps with bits");
  }

  create ("cluster_size=4k");
  io ("write -c -P 1 0 64k");
  io ("write -c 256k 64k");
  compare ("compressed");
  image_snapshot (IMAGE, "one");
  io ("write -P 3 0 32k");
  compare ("compressed, with a snapshot");

  create ("extended_l2=on,cluster_size=16k");
  some_writes ();
  image_snapshot (IMAGE, "one");
  io ("write 2k 2k");
  compare ("subclusters");

  create ("data_file=census.raw");
  some_writes ();
  compare ("an external data file");

  /* Fails now and then on a busy machine, for want of a measure of time. */
  unlink (IMAGE);
  for (i = 0; i < 5; i++)
    if (try_create ("encrypt.format=luks,encrypt.key-secret=s,"
                    "encrypt.iter-time=10",
                    "--object secret,id=s,data=x") == 0) {
      compare ("LUKS");
      break;
    }

  faults ();
  images_leave ();
  return 0;
}
