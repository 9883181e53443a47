/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Bitmaps, when refcounts cannot be read as the first writer comes, and when there is no
 * memory, or no space, to store many new clusters of bits as the last one leaves: that
 * fails, the next one succeeds, and then no bit that was recorded is missing.
 */

#include <config.h>

#include <errno.h>
#include <string.h>

#include "disk/export.h"
#include "lib/allocations.h"
#include "lib/images.h"
#include "lib/shortage.h"

#define IMAGE "disk.qcow2"
#define CLUSTER 512u
#define SPAN (UINT64_C (8) * CLUSTER * 512)     /* of the disk, for a cluster of bits */
#define CELLS 300u

static unsigned failing_read;   /* from 1; 0: none */
static bool full;

static int
before (void *opaque, const char *path, enum storage_op op, const struct iovec *iov,
        int niov, uint64_t offset, uint64_t count, bool dsync)
{
  (void) opaque, (void) path, (void) iov, (void) niov, (void) offset, (void) count;
  (void) dsync;
  if (op == STORAGE_OP_READ && failing_read > 0 && --failing_read == 0) {
    errno = EIO;
    return -1;
  }
  if (op == STORAGE_OP_TRUNCATE && full) {
    errno = ENOSPC;
    return -1;
  }
  return op == STORAGE_OP_SYNC;
}

static const struct storage_hooks hooks = { .before = before };
static struct blob made;
static struct disk *d;

static void
open_disk (void)
{
  struct disk_options options = {
    .path = images_path (IMAGE), .l2_cache = 1 << 20, .l2_slice = CLUSTER,
    .backing = BACKING_FOLLOW, .hooks = &hooks,
  };

  blob_save (IMAGE, &made);
  CHECK (disk_open (&options, &d) == 0);
  free ((char *) options.path);
}

static struct export *
come (void)
{
  struct export *e = SHORTAGE_MEETS (export_open (d, "", true));

  CHECK (e == NULL || export_is_writable (e));
  return e;
}

static int
count_dirty (void *opaque, uint64_t offset, uint64_t len, enum extent_type type)
{
  (void) offset;
  if (type == EXTENT_DATA)
    *(uint64_t *) opaque += len;
  return 0;
}

/* How many bytes does the bitmap say have changed?  (As a new reader finds them.) */
static uint64_t
dirty_bytes (void)
{
  struct export *e = export_open (d, "bitmap:b", false);
  uint64_t n = 0;

  CHECK (e != NULL);
  CHECK (export_extents (e, export_size (e), 0, false, count_dirty, &n) == 0);
  CHECK (export_close (e) == 0);
  return n;
}

static void
close_disk (uint64_t dirty)
{
  CHECK (disk_close (d) == 0);
  blob_save ("kept", &made);
  blob_free (&made);
  blob_load (IMAGE, &made);
  open_disk ();
  CHECK (dirty_bytes () == dirty);
  CHECK (disk_close (d) == 0);
  CHECK (image_check (IMAGE) == 0);
  blob_free (&made);
  blob_load ("kept", &made);
}

/* --- the last one leaves --- */

static struct export *
write_everywhere (void)
{
  static const char data[CLUSTER] = "x";
  struct export *e = come ();

  CHECK (e != NULL);
  for (unsigned i = 0; i < CELLS; i++)
    CHECK (export_write (e, data, CLUSTER, i * SPAN, false) == 0);
  return e;
}

/* Returns whether it failed, with ERR. */
static bool
leave (struct export *e, int err)
{
  errno = 0;
  if (SHORTAGE_MEETS (export_close (e)) == 0)
    return false;
  CHECK (errno == err);
  return true;
}

static void
test_leaving (void)
{
  const struct image_spec spec = {
    .version = 3, .cluster_size = CLUSTER, .refcount_bits = 16, .size = CELLS * SPAN,
  };
  struct export *e;
  uint64_t *which;
  unsigned failures = 0;
  struct rng rng;
  size_t n;

  image_create (IMAGE, &spec);
  image_bitmap (IMAGE, "b", 9);
  blob_load (IMAGE, &made);
  open_disk ();
  e = write_everywhere ();
  full = true;
  quiet_errors = true;
  CHECK (leave (e, ENOSPC));
  full = false;
  CHECK ((e = come ()) && !leave (e, 0));
  close_disk (CELLS * CLUSTER);

  open_disk ();
  e = write_everywhere ();
  shortage_begin (SHORTAGE_NONE);
  CHECK (!leave (e, 0));
  shortage_end ();
  CHECK (disk_close (d) == 0);
  rng_init (&rng, seed_from_env (), 0);
  which = shortage_choose (&rng, 60, &n);
  for (size_t i = 0; i < n; i++) {
    open_disk ();
    e = write_everywhere ();
    shortage_begin ((struct shortage) { which[i], 1 });
    if (leave (e, ENOMEM)) {
      failures++;
      CHECK ((e = come ()) && !leave (e, 0));
    }
    shortage_end ();
    close_disk (CELLS * CLUSTER);
  }
  quiet_errors = false;
  printf ("%zu allocations failed, %u times a client could not leave\n", n, failures);
  CHECK (failures > 2);
  free (which);
  blob_free (&made);
}

/* --- the first writer comes --- */

/* The bitmap's clusters are counted by many blocks. */
static void
test_reads (void)
{
  const struct image_spec spec = {
    .version = 3, .cluster_size = CLUSTER, .refcount_bits = 64, .size = CELLS * SPAN,
  };
  unsigned failures = 0;
  struct export *e;

  image_create (IMAGE, &spec);
  image_bitmap (IMAGE, "b", 9);
  blob_load (IMAGE, &made);
  open_disk ();
  CHECK (!leave (write_everywhere (), 0));
  CHECK (disk_close (d) == 0);
  blob_free (&made);
  blob_load (IMAGE, &made);
  quiet_errors = true;
  for (unsigned k = 1, met = 1; met; k++) {
    open_disk ();
    failing_read = k;
    errno = 0;
    e = come ();
    met = failing_read == 0;
    failing_read = 0;
    if (e == NULL) {
      CHECK (met && errno == EIO);
      failures++;
      CHECK ((e = come ()) != NULL);
    }
    CHECK (export_close (e) == 0);
    close_disk (CELLS * CLUSTER);
  }
  quiet_errors = false;
  CHECK (failures > 3);
  blob_free (&made);
}

int
main (void)
{
  shortage_spare (true);
  images_enter ("bitmap-faults");
  test_reads ();
  test_leaving ();
  images_leave ();
  return 0;
}
