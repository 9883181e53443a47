/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Is an image called clean of which a part cannot be read?
 *
 * Each read of a scan fails in turn.  The scan ends with that error.
 */

#include <config.h>

#include <errno.h>
#include <string.h>

#include "image/image.h"
#include "check/scan.h"
#include "lib/images.h"

#define IMAGE "tables.qcow2"

static unsigned reads, fail_at;

static int
before (void *opaque, const char *path, enum storage_op op, const struct iovec *iov,
        int niov, uint64_t offset, uint64_t count, bool dsync)
{
  (void) opaque, (void) path, (void) iov, (void) niov, (void) offset, (void) count;
  (void) dsync;
  if (op != STORAGE_OP_READ || ++reads != fail_at)
    return 0;
  errno = EIO;
  return -1;
}

static const struct storage_hooks hooks = { .before = before };

/* Snapshots, bitmaps, compressed clusters. */
static void
make (void)
{
  const struct image_spec spec = {
    .version = 3, .cluster_size = 4096, .refcount_bits = 16, .size = 8 << 20,
  };
  static const char *const commands[] = {
    "qemu-img bitmap --add " IMAGE " one",
    "qemu-img bitmap --add -g 4096 " IMAGE " two",
    "qemu-img snapshot -c one " IMAGE,
    "qemu-img snapshot -c two " IMAGE,
  };
  struct command c = { .n = 0 };

  image_create (IMAGE, &spec);
  for (unsigned i = 0; i < sizeof commands / sizeof commands[0]; i++) {
    command_words (&c, commands[i]);
    command_must (&c);
  }
  command_words (&c, "qemu-io -t unsafe -f qcow2 -c");
  command_add (&c, "write 0 200k");
  command_words (&c, "-c");
  command_add (&c, "write -c 1M 64k");
  command_add (&c, IMAGE);
  command_must (&c);
}

static int
scan (struct findings **findings, unsigned n)
{
  const struct scan_options metadata = { .full = false };
  const struct storage_options options = { .hooks = &hooks };
  char *path = images_path (IMAGE);
  struct image *image = image_open_file (path, &options);
  struct scan_stats stats;
  int r, err;

  *findings = findings_new (100);
  CHECK (*findings != NULL && image != NULL);
  CHECK (image_read_header (image) == 0);
  reads = 0;
  fail_at = n;
  quiet_errors = true;
  errno = 0;
  r = scan_image (image->file, &image->header, metadata, *findings, &stats);
  err = errno;
  quiet_errors = false;
  fail_at = 0;
  image_close (image);
  free (path);
  errno = err;
  return r;
}

int
main (void)
{
  struct findings *f;
  unsigned all;

  images_enter ("unreadable");
  make ();
  CHECK (scan (&f, 0) == 0 && findings_corruptions (f) == 0);
  findings_free (f);
  all = reads;
  printf ("%u reads\n", all);
  CHECK (all > 8);
  for (unsigned n = 1; n <= all; n++) {
    CHECK (scan (&f, n) == -1 && errno == EIO);
    findings_free (f);
  }
  images_leave ();
  return 0;
}
