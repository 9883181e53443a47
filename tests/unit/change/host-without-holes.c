/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Do ranges become zeros on a host that can neither punch holes nor zero ranges?
 *
 * A commit writes the zeros of an image to its raw backing file, and a disk grows into
 * the part of its raw data file that has old contents.  If a write of zeros fails, the
 * change fails, and the disk is as before.
 */

#include <config.h>

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "util/bytes.h"
#include "lib/changes.h"
#include "lib/images.h"

#define IMAGE "top.qcow2"
#define OTHER "other"           /* the backing file, or the data file */
#define MIB (UINT64_C (1) << 20)

/* The host. */
int
fallocate (int fd, int mode, off_t offset, off_t len)
{
  (void) fd, (void) mode, (void) offset, (void) len;
  errno = EOPNOTSUPP;
  return -1;
}

static bool failing;            /* writes to the other file fail, if they are long */

static int
before (void *opaque, const char *path, enum storage_op op, const struct iovec *iov,
        int niov, uint64_t offset, uint64_t count, bool dsync)
{
  (void) opaque, (void) iov, (void) niov, (void) offset, (void) dsync;
  if (!failing || op != STORAGE_OP_WRITE || count < MIB / 4 ||
      strcmp (strrchr (path, '/') + 1, OTHER) != 0)
    return 0;
  errno = EIO;
  return -1;
}

static const struct storage_hooks hooks = { .before = before };
static struct disk_options options;

static int
commit (void)
{
  uint64_t copied;

  return change_commit (&options, false, NULL, &copied);
}

static int
grow (void)
{
  const struct edit edit = { .kind = EDIT_RESIZE, .size = 8 * MIB };
  const struct edit_options how = { .shrink = false };

  return change_edit (&options, &how, &edit);
}

/* The other file contains bytes of 0xee, 8 MiB. */
static void
fill_other (void)
{
  struct blob b = { malloc (8 * MIB), 8 * MIB };

  CHECK (b.data != NULL);
  memset (b.data, 0xee, b.len);
  blob_save (OTHER, &b);
  blob_free (&b);
}

static void
make_zeros_over_raw (void)
{
  const struct image_spec below = { .raw = true, .size = 8 * MIB };
  const struct image_spec spec = {
    .version = 3, .cluster_size = 65536, .refcount_bits = 16, .size = 8 * MIB,
    .backing = OTHER, .backing_raw = true,
  };
  struct command c = { .n = 0 };

  image_create (OTHER, &below);
  fill_other ();
  image_create (IMAGE, &spec);
  command_words (&c, "qemu-io -t unsafe -f qcow2 -c");
  command_add (&c, "write -z 1M 5M");
  command_add (&c, IMAGE);
  command_must (&c);
}

/* Of 2 MiB, in a data file that is longer. */
static void
make_data_file (void)
{
  const struct image_spec spec = {
    .version = 3, .cluster_size = 65536, .refcount_bits = 16, .size = 2 * MIB,
    .data_file = OTHER, .data_file_raw = true,
  };

  image_create (IMAGE, &spec);
  fill_other ();
}

static void
test (void (*make) (void), int (*change) (void), uint64_t from, uint64_t to)
{
  struct blob old, now;

  make ();
  image_contents (IMAGE, NULL, &old);
  failing = true;
  quiet_errors = true;
  CHECK (change () == -1 && errno == EIO);
  quiet_errors = false;
  failing = false;
  CHECK (image_check (IMAGE) == 0 && image_shows (IMAGE, NULL, &old));

  CHECK (change () == 0);
  CHECK (image_check (IMAGE) == 0);
  image_contents (IMAGE, NULL, &now);
  blob_free (&old);
  blob_load (OTHER, &old);
  CHECK (now.len == 8 * MIB && blob_same (&now, &old));
  for (uint64_t i = 0; i < now.len; i++)
    CHECK (now.data[i] == (i >= from && i < to ? 0 : 0xee));
  blob_free (&old);
  blob_free (&now);
}

int
main (void)
{
  images_enter ("host-without-holes");
  options = (struct disk_options) {
    .path = images_path (IMAGE), .l2_cache = 1 << 20, .l2_slice = 4096,
    .backing = BACKING_FOLLOW, .hooks = &hooks,
  };
  for (int discard = 0; discard < 2; discard++) {
    options.discard = discard;
    test (make_zeros_over_raw, commit, MIB, 6 * MIB);
  }
  test (make_data_file, grow, 2 * MIB, 8 * MIB);
  free ((char *) options.path);
  images_leave ();
  return 0;
}
