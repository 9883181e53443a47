/* SPDX-License-Identifier: BSD-3-Clause
 *
 * While there is plenty of memory for mappings, a miss reads the slices around it too, in
 * one read of 64K at most.  So the first random reads of a large disk need few reads of
 * tables.  If memory is short, nothing more is read than before.  A neighbour that cannot
 * be read, or makes no sense, does not disturb a request for other slices.
 *
 * Hooks count and judge reads.  All of the disk is allocated, so that each request reads
 * its data with one read; all others are of tables.
 */

#include <config.h>

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "disk/export.h"
#include "lib/images.h"
#include "lib/stubs.h"

#define IMAGE "disk.qcow2"
#define SLICE 4096
#define DATA 512                /* bytes of a request: no table is read in such a piece */
#define PLENTY (32u << 20)

/* --- what is read --- */

static struct {
  bool counting;
  uint64_t reads, bytes;        /* of tables */
  uint64_t most;                /* no read of tables may be longer; 0: any */
  uint64_t faults;              /* how many were */
} seen;

static int
look (void *opaque, const char *path, enum storage_op op, const struct iovec *iov,
      int niov, uint64_t offset, uint64_t bytes, bool dsync)
{
  (void) opaque; (void) path; (void) iov; (void) niov; (void) offset; (void) dsync;
  if (!seen.counting || op != STORAGE_OP_READ || bytes <= DATA)
    return 0;
  if (seen.most && bytes > seen.most) {
    seen.faults++;
    errno = EIO;
    return -1;
  }
  seen.reads++;
  seen.bytes += bytes;
  return 0;
}

static const struct storage_hooks hooks = { .before = look };

/* --- the disk --- */

static struct disk *disk;
static struct export *export;

static void
open_disk (uint64_t l2_cache, bool writable)
{
  char *path = images_path (IMAGE);
  const struct disk_options options = {
    .path = path, .l2_cache = l2_cache, .l2_slice = SLICE, .lock = true,
    .backing = BACKING_FOLLOW, .hooks = &hooks,
  };

  CHECK (disk_open (&options, &disk) == 0);
  CHECK ((export = export_open (disk, "", writable)) != NULL);
  free (path);
  memset (&seen, 0, sizeof seen);
  seen.counting = true;
}

static void
close_disk (void)
{
  seen.counting = false;
  CHECK (export_close (export) == 0);
  CHECK (disk_close (disk) == 0);
}

static void
create (uint64_t cluster_size, uint64_t size)
{
  const struct image_spec spec = {
    .version = 3, .cluster_size = cluster_size, .refcount_bits = 16, .size = size,
    .preallocation = "metadata",
  };

  image_create (IMAGE, &spec);
}

static void
read_at (uint64_t offset)
{
  char buf[DATA];

  CHECK (export_read (export, buf, sizeof buf, offset) == 0);
}

/* Reads something that each of N slices describes, in a random order; SPAN guest bytes
 * per slice. */
static void
read_each (struct rng *rng, unsigned n, uint64_t span)
{
  unsigned order[512];

  CHECK (n <= 512);
  for (unsigned i = 0; i < n; i++) {
    const unsigned j = rng_below (rng, i + 1);

    order[i] = order[j];
    order[j] = i;
  }
  for (unsigned i = 0; i < n; i++)
    read_at (order[i] * span + rng_below (rng, span / DATA) * DATA);
}

/* --- the tests --- */

static void
test_counts (struct rng *rng, uint64_t cluster_size, bool writable)
{
  const uint64_t span = SLICE / 8 * cluster_size;
  const uint64_t together = cluster_size < 65536 ? cluster_size : 65536;
  const unsigned groups = 3, n = groups * (together / SLICE);
  struct disk_stats stats;

  create (cluster_size, n * span);
  open_disk (PLENTY, writable);
  read_at (span / 2 / DATA * DATA);
  CHECK (seen.reads == 1 && seen.bytes <= together);
  read_each (rng, n, span);
  disk_get_stats (disk, &stats);
  printf ("clusters of %" PRIu64 ", %s: %u slices, %" PRIu64 " reads\n", cluster_size,
          writable ? "writable" : "read-only", n, seen.reads);
  CHECK (seen.reads == groups && seen.bytes == groups * together);
  CHECK (stats.map.loads == groups && stats.map.loaded == n);
  close_disk ();

  /* Without memory to spare: a slice at a time, or a few entries. */
  open_disk (0, writable);
  seen.most = SLICE;
  for (int i = 0; i < 3; i++)
    read_each (rng, n, span);
  disk_get_stats (disk, &stats);
  CHECK (seen.faults == 0);
  CHECK (stats.map.loads == stats.map.loaded);
  close_disk ();
}

/* A disk that needs less than a group: nothing beyond it is loaded. */
static void
test_small (bool writable)
{
  struct disk_stats stats;

  create (65536, 40 << 20);     /* two slices */
  open_disk (PLENTY, writable);
  read_at (0);
  read_at (33 << 20);
  disk_get_stats (disk, &stats);
  CHECK (seen.reads == 1 && seen.bytes <= 2 * SLICE && stats.map.loaded == 2);
  close_disk ();
}

/* All reads of more than a slice fail: nobody notices. */
static void
test_faults (struct rng *rng, bool writable)
{
  const uint64_t span = SLICE / 8 * 65536;
  const unsigned n = 32;
  const unsigned long errors = error_count ();

  create (65536, n * span);
  open_disk (PLENTY, writable);
  seen.most = SLICE;
  read_each (rng, n, span);
  CHECK (seen.faults > 0 && seen.reads == n && error_count () == errors);
  close_disk ();
}

/* An entry that cannot be right disturbs only those who ask for it. */
static void
test_hostile (bool writable)
{
  const uint64_t span = SLICE / 8 * 65536;
  unsigned long errors;
  struct blob b;
  char buf[DATA];
  uint64_t table;

  create (65536, 16 * span);
  blob_load (IMAGE, &b);
  table = blob_get (&b, blob_get (&b, 40, 8), 8) << 1 >> 1;     /* without COPIED */
  blob_put (&b, table + 5 * SLICE, UINT64_C (0x80fffffffffffe00), 8);
  blob_save (IMAGE, &b);
  blob_free (&b);

  open_disk (PLENTY, writable);
  errors = error_count ();
  for (unsigned i = 0; i < 16; i++)
    read_at (i * span + (i == 5 ? 65536 : 0));
  CHECK (seen.reads == 1 && error_count () == errors);
  quiet_errors = true;
  CHECK (export_read (export, buf, sizeof buf, 5 * span) == -1 && errno == EIO);
  CHECK (error_count () > errors);
  /* A writable image is now marked corrupt, and cannot be brought to rest. */
  seen.counting = false;
  CHECK (export_close (export) == (writable ? -1 : 0));
  CHECK (disk_close (disk) == (writable ? -1 : 0));
  quiet_errors = false;
}

int
main (void)
{
  struct rng rng;

  rng_init (&rng, seed_from_env (), 0);
  images_enter ("neighbours");
  for (int writable = 0; writable < 2; writable++) {
    test_counts (&rng, 65536, writable);
    test_counts (&rng, 16384, writable);
    test_counts (&rng, 2 << 20, writable);
    test_small (writable);
    test_faults (&rng, writable);
    test_hostile (writable);
  }
  images_leave ();
  return 0;
}
