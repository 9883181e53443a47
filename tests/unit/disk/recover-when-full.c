/* SPDX-License-Identifier: BSD-3-Clause
 *
 * An image that was not closed properly, on a host that is full: it cannot be put in
 * order, and clients may only read it.  When there is space again the next client may
 * write, without a restart.  This is so whichever operation finds no space.
 */

#include <config.h>

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "format/format.h"
#include "disk/export.h"
#include "lib/images.h"
#include "lib/stubs.h"

#define IMAGE "disk.qcow2"
#define SIZE (1 << 20)

static unsigned after;          /* so many changes have space */
static bool full;

static int
before (void *opaque, const char *path, enum storage_op op, const struct iovec *iov,
        int niov, uint64_t offset, uint64_t count, bool dsync)
{
  (void) opaque, (void) path, (void) iov, (void) niov, (void) offset, (void) count;
  (void) dsync;
  if (op == STORAGE_OP_SYNC)
    return 1;
  if (op == STORAGE_OP_READ || !full || after-- > 0)
    return 0;
  after = 0;
  errno = ENOSPC;
  return -1;
}

static const struct storage_hooks hooks = { .before = before };

static struct export *
come (struct disk *d, const struct blob *contents)
{
  struct export *e = export_open (d, "", true);
  static char buf[SIZE];

  CHECK (e != NULL);
  CHECK (export_read (e, buf, SIZE, 0) == 0 && memcmp (buf, contents->data, SIZE) == 0);
  return e;
}

/* Header bit BIT, at this offset, says that UNCLOSED was not closed.  There is space for
 * K changes.  Returns false if that is enough. */
static bool
test (const struct blob *unclosed, const struct blob *contents, uint64_t at, uint64_t bit,
      unsigned k)
{
  struct disk_options options = {
    .path = images_path (IMAGE), .l2_slice = 4096, .backing = BACKING_FOLLOW,
    .hooks = &hooks,
  };
  struct export *first, *second;
  struct disk *d;
  struct blob b;
  bool enough;

  blob_save (IMAGE, unclosed);
  CHECK (disk_open (&options, &d) == 0);
  after = k;
  full = true;
  quiet_errors = true;
  first = come (d, contents);
  enough = export_is_writable (first);
  if (!enough) {
    CHECK (strstr (disk_why_readonly (d), "no space"));
    after = k;
    second = come (d, contents);
    CHECK (!export_is_writable (second) || k > 0);
    CHECK (export_close (second) == 0);
  }
  full = false;
  quiet_errors = false;
  second = come (d, contents);
  CHECK (export_is_writable (second) && disk_why_readonly (d) == NULL);
  CHECK (export_close (first) == 0 && export_close (second) == 0 && disk_close (d) == 0);

  blob_load (IMAGE, &b);
  CHECK ((blob_get (&b, at, 8) & bit) == 0);
  blob_free (&b);
  CHECK (image_check (IMAGE) == 0);
  CHECK (image_shows (IMAGE, NULL, contents));
  free ((char *) options.path);
  return !enough;
}

static void
test_bit (uint64_t at, uint64_t bit)
{
  struct blob unclosed, contents;
  unsigned k = 0;

  blob_load (IMAGE, &unclosed);
  image_contents (IMAGE, NULL, &contents);
  blob_put (&unclosed, at, blob_get (&unclosed, at, 8) | bit, 8);
  /* The count of a cluster behind the end: a leak. */
  blob_put (&unclosed, blob_get (&unclosed, blob_get (&unclosed, 48, 8), 8) +
            unclosed.len / 4096 * 2, 1, 2);
  while (test (&unclosed, &contents, at, bit, k))
    k++;
  CHECK (k > 1);
  blob_free (&contents);
  blob_free (&unclosed);
}

int
main (void)
{
  const struct image_spec spec = {
    .version = 3, .cluster_size = 4096, .refcount_bits = 16, .size = SIZE,
  };
  struct rng rng;
  struct blob b;

  images_enter ("recover-when-full");
  rng_init (&rng, 1, 0);
  image_create (IMAGE, &spec);
  image_fill (IMAGE, &spec, &rng, 5);
  blob_load (IMAGE, &b);
  test_bit (72, QCOW2_INCOMPAT_DIRTY);
  blob_save (IMAGE, &b);
  test_bit (88, QCOW2_AUTOCLEAR_IN_USE);
  blob_free (&b);
  images_leave ();
  return 0;
}
