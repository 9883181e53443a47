/* SPDX-License-Identifier: BSD-3-Clause
 *
 * However many changes are made to an image, it is locked only once, together with its
 * external data file, in the same way as QEMU locks them, and nothing is written without
 * these locks.
 */

#include <config.h>

#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "disk/disk.h"
#include "disk/export.h"
#include "change/bitmapedit.h"
#include "change/edit.h"
#include "change/rebase.h"
#include "lib/images.h"

#define SIZE (UINT64_C (1) << 20)

/* Bits: which bytes are locked.  FORMAT of QEMU's locks: 100+i: it uses permission i,
 * 200+i: it does not share it; 0 read, 1 write, 2 write unchanged, 3 resize. */
#define USED(i) (1u << (i))
#define UNSHARED(i) (1u << (4 + (i)))

#define READER (USED (0) | UNSHARED (1) | UNSHARED (3))
#define WRITER (USED (0) | USED (1) | USED (3) | UNSHARED (1) | UNSHARED (3))
#define DATA_READER (USED (0) | UNSHARED (3))
#define DATA_WRITER (USED (0) | USED (1) | USED (3) | UNSHARED (3))

static char *image_path, *data_path;    /* data_path: NULL: there is none */
static unsigned changes;                /* of the files */
static bool locked;                     /* as by a writer, before */

static unsigned
held (const char *path)
{
  const int fd = open (path, O_RDWR | O_CLOEXEC);
  unsigned mask = 0, i;

  CHECK (fd != -1);
  for (i = 0; i < 8; i++) {
    struct flock fl = {
      .l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = (i < 4 ? 100 : 196) + i,
      .l_len = 1,
    };

    CHECK (fcntl (fd, F_OFD_GETLK, &fl) == 0);
    if (fl.l_type != F_UNLCK)
      mask |= 1u << i;
  }
  close (fd);
  return mask;
}

static int
before (void *opaque, const char *path, enum storage_op op, const struct iovec *iov,
        int niov, uint64_t offset, uint64_t count, bool dsync)
{
  unsigned image, data;

  (void) opaque, (void) iov, (void) niov, (void) offset, (void) count, (void) dsync;
  if (strcmp (path, image_path) != 0 && (!data_path || strcmp (path, data_path) != 0))
    return 0;                   /* a backing file */
  image = held (image_path);
  data = data_path ? held (data_path) : 0;
  if (op != STORAGE_OP_READ)
    changes++;
  if (op != STORAGE_OP_READ || locked) {
    CHECK (image == WRITER);
    CHECK (data == (data_path ? DATA_WRITER : 0));
  }
  locked = image == WRITER;
  return 0;
}

static const struct storage_hooks hooks = { .before = before };

static struct disk_options
options_for (const char *name, const char *data)
{
  locked = false;
  changes = 0;
  image_path = images_path (name);
  data_path = data ? images_path (data) : NULL;
  return (struct disk_options) {
    .path = image_path, .l2_cache = 1 << 20, .l2_slice = 4096, .discard = true,
    .lock = true, .hooks = &hooks,
  };
}

static void
end (struct disk *disk)
{
  CHECK (changes > 0);
  disk_unlock (disk);
  CHECK (held (image_path) == READER);
  CHECK (data_path == NULL || held (data_path) == DATA_READER);
  CHECK (disk_close (disk) == 0);
  CHECK (held (image_path) == 0 && (data_path == NULL || held (data_path) == 0));
  free (image_path);
  free (data_path);
}

/* All kinds of changes.  The sizes end within clusters, so that disks are made, too. */
static void
test_all (void)
{
  static const struct edit edits[] = {
    { .kind = EDIT_SNAPSHOT_CREATE, .name = "one" },
    { .kind = EDIT_RESIZE, .size = SIZE + 3 * 512 },
    { .kind = EDIT_RESIZE, .sign = 1, .size = 5 * 512 },
    { .kind = EDIT_SNAPSHOT_APPLY, .name = "one" },
    { .kind = EDIT_RESIZE, .sign = -1, .size = 7 * 512 },
    { .kind = EDIT_SNAPSHOT_DELETE, .name = "one" },
  };
  const struct edit_options edit_options = { .shrink = true };
  struct image_spec spec = {
    .version = 3, .cluster_size = 4096, .refcount_bits = 16, .size = SIZE,
  };
  const struct rebase nothing = { .name = "" };
  struct bitmapedit bitmap = { .what = BITMAP_ADD, .name = "day" };
  struct disk_options options;
  const struct header *h;
  struct disk *disk;
  struct blob below;
  struct rng rng = { 1 };
  uint64_t copied;

  image_over_raw (&spec, &rng, SIZE, 4, &below);
  image_create ("a.qcow2", &spec);
  options = options_for ("a.qcow2", NULL);
  CHECK (disk_open (&options, &disk) == 0 && held (image_path) == READER);
  CHECK (edit_disk (disk, &edit_options, edits, 6) == 0);
  CHECK (held (image_path) == WRITER);
  CHECK (rebase_disk (disk, &options.secret, &nothing, NULL, &copied) == 0 && copied > 0);
  CHECK (bitmapedit_disk (disk, &bitmap, 1, NULL) == 0);
  bitmap.what = BITMAP_CLEAR;
  CHECK (bitmapedit_disk (disk, &bitmap, 1, NULL) == 0);
  h = &disk_inside (disk).view->image->header;
  CHECK (h->size == SIZE - 7 * 512 && h->bitmaps.count == 1);
  CHECK (h->nb_snapshots == 0 && h->backing_file == NULL);
  end (disk);
  CHECK (image_check ("a.qcow2") == 0);
  below.len = SIZE - 7 * 512;
  CHECK (image_shows ("a.qcow2", NULL, &below));
  blob_free (&below);
}

static void
test_data_file (void)
{
  static const struct edit edits[] = {
    { .kind = EDIT_RESIZE, .sign = 1, .size = 512 },
    { .kind = EDIT_RESIZE, .sign = 1, .size = SIZE },
  };
  const struct edit_options edit_options = { .shrink = false };
  const struct image_spec spec = {
    .version = 3, .cluster_size = 65536, .refcount_bits = 16, .size = SIZE,
    .data_file = "data",
  };
  const struct bitmapedit bitmap = { .what = BITMAP_ADD, .name = "day" };
  struct disk_options options;
  struct disk *disk;

  image_create ("b.qcow2", &spec);
  options = options_for ("b.qcow2", "data");
  CHECK (disk_open (&options, &disk) == 0);
  CHECK (held (image_path) == READER && held (data_path) == DATA_READER);
  CHECK (edit_disk (disk, &edit_options, edits, 2) == 0);
  CHECK (held (image_path) == WRITER && held (data_path) == DATA_WRITER);
  CHECK (bitmapedit_disk (disk, &bitmap, 1, NULL) == 0);
  end (disk);
  CHECK (image_check ("b.qcow2") == 0);
}

/* Somebody reads the data file: then the image is not locked either. */
static void
test_both_or_neither (void)
{
  const struct storage_options file_options = { .lock = true, .data_file = true };
  const struct edit edit = { .kind = EDIT_RESIZE, .sign = 1, .size = SIZE };
  const struct edit_options edit_options = { .shrink = false };
  struct disk_options options = options_for ("b.qcow2", "data");
  struct disk *disk;
  struct storage *other;

  CHECK (disk_open (&options, &disk) == 0);
  CHECK (storage_open (data_path, &file_options, &other) == 0);
  quiet_errors = true;
  CHECK (edit_disk (disk, &edit_options, &edit, 1) == -1);
  quiet_errors = false;
  CHECK (held (image_path) == READER && held (data_path) == DATA_READER);
  CHECK (changes == 0);
  storage_close (other);
  CHECK (edit_disk (disk, &edit_options, &edit, 1) == 0);
  end (disk);
}

/* The disk is closed, and another one is opened on the image, which stays open.  (The
 * header of the first one is freed: AddressSanitizer sees who still uses it.) */
static void
test_opened_again (void)
{
  struct disk_options options = options_for ("b.qcow2", "data");
  struct disk *disk;
  struct image *image;
  struct export *e;

  CHECK (disk_open (&options, &disk) == 0);
  CHECK (disk_lock (disk) == 0);
  image = image_again (disk_inside (disk).view->image);
  CHECK (image != NULL && disk_close (disk) == 0);
  CHECK (disk_open_on (&options, image, &disk) == 0);
  image_close (image);
  e = export_open (disk, "", true);
  CHECK (e != NULL && export_is_writable (e));
  CHECK (export_write (e, "x", 1, 12345, true) == 0);
  CHECK (export_close (e) == 0 && disk_close (disk) == 0);
  CHECK (image_check ("b.qcow2") == 0);
  free (image_path);
  free (data_path);
}

int
main (void)
{
  images_enter ("one-lock");
  test_all ();
  test_data_file ();
  test_both_or_neither ();
  test_opened_again ();
  images_leave ();
  return 0;
}
