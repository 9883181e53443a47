/* SPDX-License-Identifier: BSD-3-Clause
 *
 * untrusted=true limits what an image makes the server keep in memory: an image with one
 * more than that is refused (EPERM, with one message that says what it has), and served
 * without the option; what is within the limit is served.  What counts of L1 and refcount
 * tables, also of snapshots, is what they name, and not their length.
 */

#include <config.h>

#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "util/bytes.h"
#include "format/format.h"
#include "disk/disk.h"
#include "lib/images.h"
#include "lib/stubs.h"

#define IMAGE "disk.qcow2"
#define CLUSTER 65536u
#define PLACE (UINT64_C (4) << 20)      /* of new tables: behind all that the image has */
#define LENGTH (UINT64_C (16) << 20)

/* Clusters of metadata.  Where there are so many, they are small, and follow LENGTH. */
#define MOST_PLACES (3u << 18)
#define SMALL 512u

static struct blob made;        /* by QEMU */
static uint64_t longer;         /* 0, or the file gets that many bytes */

/* 0, or errno. */
static int
open_image (const struct blob *b, bool untrusted)
{
  struct disk_options options = {
    .path = images_path (IMAGE), .l2_slice = 4096, .backing = BACKING_FOLLOW,
    .untrusted = untrusted,
  };
  struct disk *d;
  int err = 0;

  blob_save (IMAGE, b);
  if (longer > 0)
    CHECK (truncate (options.path, longer) == 0);
  if (disk_open (&options, &d) == -1)
    err = errno;
  else
    CHECK (disk_close (d) == 0);
  free ((char *) options.path);
  return err;
}

static void
check (uint64_t amount, void (*change) (struct blob *, uint64_t amount), const char *what)
{
  const unsigned long errors = error_count ();
  struct blob within = blob_resized (&made, LENGTH);
  struct blob beyond = blob_resized (&made, LENGTH);

  change (&within, amount);
  CHECK (open_image (&within, true) == 0);
  change (&beyond, amount + 1);
  CHECK (open_image (&beyond, false) == 0);
  CHECK (error_count () == errors);
  quiet_errors = true;
  CHECK (open_image (&beyond, true) == EPERM && error_count () == errors + 1);
  CHECK (strstr (last_error (), what) && strstr (last_error (), "untrusted image may have"));
  quiet_errors = false;
  blob_free (&within);
  blob_free (&beyond);
}

/* Writes the table at PLACE: N entries that name clusters behind LENGTH. */
static void
name_clusters (struct blob *b, uint64_t n)
{
  for (uint64_t i = 0; i < n; i++)
    blob_put (b, PLACE + 8 * i, LENGTH + i * SMALL, 8);
}

/* In the next three, the image has MANY clusters of metadata in all.  A table of many
 * clusters is one range, which does not count. */

/* The image has its header, refcount table and block, too. */
static void
add_l2_tables (struct blob *b, uint64_t many)
{
  name_clusters (b, many - 3);
  blob_put (b, 24, (many - 3) * (SMALL / 8) * SMALL, 8);
  blob_put (b, 36, many - 3, 4);
  blob_put (b, 40, PLACE, 8);
}

/* ... its header, and L1 table ... */
static void
add_refcount_blocks (struct blob *b, uint64_t many)
{
  name_clusters (b, many - 2);
  blob_put (b, 48, PLACE, 8);
  blob_put (b, 56, (8 << 20) / SMALL, 4);
}

/* ... all four, and a table of two snapshots, which share the others. */
static void
add_snapshot_tables (struct blob *b, uint64_t many)
{
  const uint64_t table = LENGTH - SMALL;

  name_clusters (b, many - 5);
  blob_put (b, 60, 2, 4);
  blob_put (b, 64, table, 8);
  for (unsigned i = 0; i < 2; i++) {
    const uint64_t at = table + i * 64;

    blob_put (b, at, PLACE, 8);
    blob_put (b, at + 8, many - 5, 4);
    blob_put (b, at + 12, 1, 2);
    blob_put (b, at + 14, 1, 2);
    blob_put (b, at + 36, 16, 4);
    blob_put (b, at + 48, blob_get (b, 24, 8), 8);
    blob_put (b, at + 56, 0x3161 + i * 0x101, 2);     /* "1a", "2b" */
  }
}

/* N snapshots, whose entries have BYTES bytes (the last one: MORE); each has the name of
 * its number. */
static void
add_snapshots (struct blob *b, unsigned n, uint64_t bytes, uint64_t more)
{
  uint64_t at = PLACE;
  char name[20];

  blob_put (b, 60, n, 4);
  blob_put (b, 64, PLACE, 8);
  for (unsigned i = 0; i < n; i++) {
    const uint64_t length = i == n - 1 ? more : bytes;
    const uint64_t id = min64 (length - 56 - 8, 65528);

    snprintf (name, sizeof name, "%08u", i);
    blob_put (b, at, blob_get (b, 40, 8), 8);   /* the L1 table of the active disk */
    blob_put (b, at + 8, blob_get (b, 36, 4), 4);
    blob_put (b, at + 12, id, 2);
    blob_put (b, at + 14, length - 56 - id, 2);
    blob_put (b, at + 36, 16, 4);               /* extra data: */
    blob_put (b, at + 48, blob_get (b, 24, 8), 8);      /* the size */
    memset (b->data + at + 56, 'x', length - 56);
    memcpy (b->data + at + 56, name, 8);
    memcpy (b->data + at + 56 + id, name, 8);
    at += length;
  }
}

static void
add_many_snapshots (struct blob *b, uint64_t n)
{
  add_snapshots (b, n, 56 + 16, 56 + 16);
}

/* The padding to 8 bytes counts. */
static void
add_long_snapshots (struct blob *b, uint64_t bytes)
{
  add_snapshots (b, 16, 65536, round_up (bytes - 15 * 65536, 8));
}

static void
enlarge_bitmap_directory (struct blob *b, uint64_t bytes)
{
  const unsigned char *ext =
    memmem (b->data + 104, 4000, "\x23\x85\x28\x75\0\0\0\x18", 8);

  CHECK (ext != NULL);
  blob_put (b, ext - b->data + 16, bytes, 8);
}

int
main (void)
{
  const struct image_spec spec = {
    .version = 3, .cluster_size = CLUSTER, .refcount_bits = 16, .size = 1 << 20,
  };
  const struct image_spec small = {
    .version = 3, .cluster_size = SMALL, .refcount_bits = 16, .size = 1 << 20,
  };

  images_enter ("untrusted-limits");
  image_create (IMAGE, &spec);
  blob_load (IMAGE, &made);
  CHECK (made.len <= PLACE);
  check (256, add_many_snapshots, "more than 256 snapshots");
  check (1 << 20, add_long_snapshots, "a snapshot table of more than 1 MiB");
  blob_save (IMAGE, &made);
  blob_free (&made);
  image_bitmap (IMAGE, "b", 0);
  blob_load (IMAGE, &made);
  check (1 << 20, enlarge_bitmap_directory, "a bitmap directory of more than 1 MiB");
  blob_free (&made);

  CHECK (unlink (IMAGE) == 0);
  image_create (IMAGE, &small);
  blob_load (IMAGE, &made);
  CHECK (made.len <= PLACE && blob_get (&made, 56, 4) == 1);
  longer = LENGTH + (MOST_PLACES + UINT64_C (1)) * SMALL;
  check (MOST_PLACES, add_l2_tables, "more than 786432 L2 tables");
  check (MOST_PLACES, add_refcount_blocks, "more than 786432 L2 tables");
  check (MOST_PLACES, add_snapshot_tables, "more than 786432 L2 tables");
  blob_free (&made);
  images_leave ();
  return 0;
}
