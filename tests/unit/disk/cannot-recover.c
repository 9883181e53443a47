/* SPDX-License-Identifier: BSD-3-Clause
 *
 * An image that was not closed properly, and cannot be repaired: it is served read-only
 * until the server ends, also when the host has recovered, and no byte of it changes.
 */

#include <config.h>

#include <errno.h>
#include <string.h>

#include "format/format.h"
#include "disk/export.h"
#include "lib/images.h"
#include "lib/stubs.h"

#define IMAGE "disk.qcow2"

static int fail_changes;        /* errno, or 0 */

static int
before (void *opaque, const char *path, enum storage_op op, const struct iovec *iov,
        int niov, uint64_t offset, uint64_t count, bool dsync)
{
  (void) opaque, (void) path, (void) iov, (void) niov, (void) offset, (void) count;
  (void) dsync;
  if (fail_changes && op != STORAGE_OP_READ) {
    errno = fail_changes;
    return -1;
  }
  return op == STORAGE_OP_SYNC;
}

static const struct storage_hooks hooks = { .before = before };

static bool
may_write (struct disk *d)
{
  struct export *e = export_open (d, "", true);
  bool writable;

  CHECK (e != NULL);
  writable = export_is_writable (e);
  CHECK (export_close (e) == 0);
  return writable;
}

/* Header bit BIT, at this offset, says that it was not closed. */
static void
test_bit (uint64_t at, uint64_t bit)
{
  struct disk_options options = {
    .path = images_path (IMAGE), .l2_slice = 4096, .backing = BACKING_FOLLOW,
    .hooks = &hooks,
  };
  struct blob unclosed, now;
  struct disk *d;

  blob_load (IMAGE, &unclosed);
  blob_put (&unclosed, at, blob_get (&unclosed, at, 8) | bit, 8);
  blob_save (IMAGE, &unclosed);
  CHECK (disk_open (&options, &d) == 0);
  CHECK (disk_why_readonly (d) == NULL);
  fail_changes = EIO;
  quiet_errors = true;
  CHECK (!may_write (d));
  CHECK (strstr (disk_why_readonly (d), "could not be repaired"));
  fail_changes = 0;
  CHECK (!may_write (d));
  quiet_errors = false;
  CHECK (disk_close (d) == 0);
  blob_load (IMAGE, &now);
  CHECK (blob_same (&unclosed, &now));
  blob_free (&now);

  /* The next server finds a host that works. */
  CHECK (disk_open (&options, &d) == 0 && may_write (d) && disk_close (d) == 0);
  blob_load (IMAGE, &now);
  CHECK ((blob_get (&now, at, 8) & bit) == 0);
  blob_free (&now);
  blob_free (&unclosed);
  CHECK (image_check (IMAGE) == 0);
  free ((char *) options.path);
}

int
main (void)
{
  const struct image_spec spec = {
    .version = 3, .cluster_size = 4096, .refcount_bits = 16, .size = 1 << 20,
  };
  struct rng rng;

  images_enter ("cannot-recover");
  rng_init (&rng, 1, 0);
  image_create (IMAGE, &spec);
  image_fill (IMAGE, &spec, &rng, 5);
  test_bit (72, QCOW2_INCOMPAT_DIRTY);
  test_bit (88, QCOW2_AUTOCLEAR_IN_USE);
  images_leave ();
  return 0;
}
