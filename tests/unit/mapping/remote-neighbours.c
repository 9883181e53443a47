/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Slices of an image behind an NBD server are loaded together.  If the server cannot read
 * them all, each is loaded when it is needed, and nobody notices.  If it cannot read the
 * one that is needed, the request fails with EIO, and succeeds the next time.
 *
 * (unit/mapping/neighbours has the same for files.)
 */

#include <config.h>

#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "disk/export.h"
#include "lib/images.h"
#include "lib/reach.h"
#include "lib/stubs.h"

#define IMAGE "disk.qcow2"
#define CLUSTER UINT64_C (65536)
#define SLICE 4096
#define SPAN (SLICE / 8 * CLUSTER)      /* guest bytes that a slice describes */
#define SLICES 32
#define DATA 512                        /* bytes of a request: no table is read in
                                           these */

static atomic_ullong most;              /* longer reads of the server fail; 0: none */
static atomic_uint faults;

static int
before (void *opaque, const char *path, enum storage_op op, const struct iovec *iov,
        int niov, uint64_t offset, uint64_t bytes, bool dsync)
{
  (void) opaque; (void) path; (void) iov; (void) niov; (void) offset; (void) dsync;
  if (op != STORAGE_OP_READ || most == 0 || bytes <= most)
    return 0;
  faults++;
  errno = EIO;
  return -1;
}

static const struct storage_hooks hooks = { .before = before };

static struct disk *disk;
static struct export *export;

static void
open_disk (const struct disk_options *options)
{
  CHECK (reach_open (options, &disk) == 0);
  CHECK ((export = export_open (disk, "", false)) != NULL);
  faults = 0;
}

static void
close_disk (void)
{
  most = 0;
  CHECK (export_close (export) == 0 && disk_close (disk) == 0);
}

static int
read_at (uint64_t offset)
{
  char buf[DATA];

  return export_read (export, buf, sizeof buf, offset);
}

int
main (void)
{
  const struct image_spec spec = {
    .version = 3, .cluster_size = CLUSTER, .refcount_bits = 16, .size = SLICES * SPAN,
    .preallocation = "metadata",
  };
  struct disk_options options = {
    .l2_cache = 32 << 20, .l2_slice = SLICE, .backing = BACKING_FOLLOW, .hooks = &hooks,
  };

  setenv ("QCOW2_TEST_STORAGE", "nbd", true);
  images_enter ("remote-neighbours");
  image_create (IMAGE, &spec);
  options.path = images_path (IMAGE);

  /* In no order, so that nothing is loaded ahead. */
  quiet_errors = true;          /* the server's */
  open_disk (&options);
  most = SLICE;
  for (unsigned i = 0; i < SLICES; i++)
    CHECK (read_at (i * 13 % SLICES * SPAN) == 0);
  CHECK (faults > 0);
  close_disk ();

  open_disk (&options);
  most = DATA;
  errno = 0;
  CHECK (read_at (7 * SPAN) == -1 && errno == EIO && faults > 0);
  CHECK (strstr (last_error (), "nbd+unix:") != NULL);
  most = 0;
  CHECK (read_at (7 * SPAN) == 0);
  close_disk ();
  quiet_errors = false;
  free ((char *) options.path);
  images_leave ();
  return 0;
}
