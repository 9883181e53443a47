/* SPDX-License-Identifier: BSD-3-Clause
 *
 * A client discards a cluster, and its count cannot be lowered, as its refcount block
 * cannot be read.  That is tried once more.  If it fails again, the flush fails, the
 * cluster stays allocated, and everything else goes on.
 */

#include <config.h>

#include <errno.h>
#include <stdatomic.h>

#include "disk/export.h"
#include "lib/checker.h"
#include "lib/images.h"
#include "lib/stubs.h"
#include "lib/trials.h"

#define IMAGE "disk.qcow2"
#define CLUSTER 512
#define SIZE (UINT64_C (1) << 20)       /* many refcount blocks */

static atomic_int failing;      /* so many reads */

static int
before (void *opaque, const char *path, enum storage_op op, const struct iovec *iov,
        int niov, uint64_t offset, uint64_t count, bool dsync)
{
  (void) opaque, (void) path, (void) iov, (void) niov, (void) offset, (void) count;
  (void) dsync;
  if (op == STORAGE_OP_READ && failing > 0) {
    failing--;
    errno = EIO;
    return -1;
  }
  return op == STORAGE_OP_SYNC;
}

static const struct storage_hooks hooks = { .before = before };

/* So many reads fail as the cluster at this offset is freed. */
static void
serve (uint64_t at, int fail)
{
  struct disk_options options = {
    .path = images_path (IMAGE), .l2_slice = CLUSTER, .discard = true, .hooks = &hooks,
  };
  struct export *client;
  struct disk *disk;

  CHECK (disk_open (&options, &disk) == 0);
  client = export_open (disk, "", true);
  CHECK (client && export_is_writable (client));
  CHECK (export_trim (client, CLUSTER, at, false) == 0);
  quiet_errors = true;
  failing = fail;
  if (export_flush (client) == 0 ? fail > 1 : fail == 1 || errno != EIO)
    FAIL ("the flush, during which %d reads fail: %s", fail, last_error ());
  CHECK (failing == 0);
  quiet_errors = false;
  CHECK (export_flush (client) == 0);
  CHECK (export_close (client) == 0 && disk_close (disk) == 0);
  free ((char *) options.path);
}

static void
expect (unsigned long leaks)
{
  struct check_result r;
  struct blob b;

  blob_load (IMAGE, &b);
  checker_check (&b, &r);
  if (r.corruptions > 0 || r.leaks != leaks)
    FAIL ("%lu corruptions, %lu leaks: %s", r.corruptions, r.leaks, r.first);
  CHECK (blob_get (&b, 88, 8) == 0);    /* it was closed properly */
  blob_free (&b);
}

int
main (void)
{
  const struct image_spec spec = {
    .version = 3, .cluster_size = CLUSTER, .refcount_bits = 64, .size = SIZE,
    .preallocation = "full",
  };

  images_enter ("count-read-again");
  image_create (IMAGE, &spec);
  serve (SIZE / 2, 1);
  expect (0);
  serve (SIZE / 4, 2);
  expect (1);
  images_leave ();
  return 0;
}
