/* SPDX-License-Identifier: BSD-3-Clause
 *
 * A mirror refuses targets that would harm the disk, or that it cannot fill; the disk
 * does not move to a target that cannot take its place; and a disk that has another size
 * meanwhile is not copied.  The messages say why.
 */

#include <config.h>

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "util/cleanup.h"
#include "change/edit.h"
#include "change/mirror.h"
#include "disk/export.h"
#include "lib/images.h"
#include "lib/stubs.h"

#define MIB (UINT64_C (1) << 20)
#define SIZE (2 * MIB)

static struct disk_options options = { .l2_cache = MIB, .l2_slice = 4096, .lock = true };
static struct disk *disk;

static void
make (const char *name, uint64_t size, const char *backing, const char *data_file)
{
  const struct image_spec spec = {
    .version = 3, .cluster_size = 65536, .refcount_bits = 16, .size = size,
    .backing = backing, .data_file = data_file,
  };

  image_create (name, &spec);
}

static struct storage *
open_raw (const char *name, bool writable)
{
  CLEANUP_FREE char *path = images_path (name);
  const struct storage_options o = { .try_writable = writable, .lock = true };
  struct storage *raw;

  CHECK (storage_open (path, &o, &raw) == 0);
  return raw;
}

static struct image *
open_image (const char *name)
{
  struct disk_options o = options;
  CLEANUP_FREE char *path = images_path (name);
  struct image *image;

  o.path = path;
  image = disk_open_image (&o);
  CHECK (image && image_load (image) == 0 && image_read_snapshots (image) == 0);
  return image;
}

static void
refuse (const struct mirror_options *o, int err, const char *why)
{
  struct mirror *m;

  clear_last_error ();
  CHECK (mirror_begin (disk, o, &m) == -1 && errno == err);
  CHECK (strstr (last_error (), why));
}

static void
refuse_raw (const char *name, bool writable, int err, const char *why)
{
  struct mirror_options o = { .target.raw = open_raw (name, writable) };

  refuse (&o, err, why);
  storage_close (o.target.raw);
}

/* It can be copied there, but the disk stays where it is. */
static void
stay (const char *name, enum backing_policy backing, enum mirror_sync sync,
      const char *why)
{
  struct mirror_options o = {
    .target = { .image = open_image (name), .backing = backing }, .sync = sync,
  };
  struct mirror *m;

  CHECK (mirror_begin (disk, &o, &m) == 0);
  CHECK (mirror_why_no_pivot (m) && strstr (mirror_why_no_pivot (m), why));
  clear_last_error ();
  CHECK (mirror_pivot (m) == -1 && errno == ENOTSUP && strstr (last_error (), why));
  mirror_end (m);
  image_close (o.target.image);
}

static void
become_larger (void)
{
  struct mirror_options o = { .target.raw = open_raw ("target.raw", true) };
  const struct edit_options none = { .shrink = false };
  const struct edit edit = { .kind = EDIT_RESIZE, .size = 2 * SIZE };
  struct mirror *m;
  uint64_t copied;

  CHECK (mirror_begin (disk, &o, &m) == 0);
  refuse (&o, EBUSY, "");       /* (It is locked.) */
  while (follow_step (mirror_follow (m), MIB, &copied) == 1)
    ;
  CHECK (edit_disk (disk, &none, &edit, 1) == 0);
  clear_last_error ();
  CHECK (follow_step (mirror_follow (m), MIB, &copied) == -1 && errno == EINVAL);
  CHECK (strstr (last_error (), "another size now"));
  CHECK (mirror_finish (m) == -1 && errno == EINVAL);
  mirror_end (m);
  storage_close (o.target.raw);
}

static void
follow_twice (void)
{
  struct mirror_options o = { .target.raw = open_raw ("target.raw", true) };
  struct mirror_options other = { .target.image = open_image ("target.qcow2") };
  struct mirror *m;

  CHECK (mirror_begin (disk, &o, &m) == 0);
  refuse (&other, EBUSY, "another job follows the disk already");
  mirror_end (m);
  storage_close (o.target.raw);
  image_close (other.target.image);
}

int
main (void)
{
  CLEANUP_FREE char *path = NULL;
  struct blob raw = { .len = SIZE };

  quiet_errors = true;
  images_enter ("mirror-refused");
  raw.data = calloc (1, SIZE);
  CHECK (raw.data);
  blob_save ("target.raw", &raw);
  raw.len /= 2;
  blob_save ("small.raw", &raw);
  blob_free (&raw);
  make ("base.qcow2", SIZE, NULL, NULL);
  make ("a.qcow2", SIZE, "base.qcow2", NULL);
  make ("target.qcow2", SIZE, "base.qcow2", NULL);
  make ("data.qcow2", SIZE, NULL, "data.raw");
  make ("other.qcow2", SIZE, NULL, NULL);
  options.path = path = images_path ("a.qcow2");
  CHECK (disk_open (&options, &disk) == 0);

  refuse_raw ("base.qcow2", false, EBUSY, "it is a file of the disk");
  refuse_raw ("a.qcow2", false, EBUSY, "it is a file of the disk");
  refuse_raw ("target.raw", false, EROFS, "it is read-only");
  refuse_raw ("small.raw", true, EINVAL, "different sizes");
  stay ("data.qcow2", BACKING_FOLLOW, MIRROR_FULL, "external data file");
  stay ("target.qcow2", BACKING_IGNORE, MIRROR_FULL, "names a backing file");
  stay ("target.qcow2", BACKING_FOLLOW, MIRROR_NONE, "does not contain all");
  stay ("other.qcow2", BACKING_FOLLOW, MIRROR_TOP, "does not lie over the files");
  follow_twice ();
  become_larger ();

  CHECK (disk_close (disk) == 0);
  CHECK (image_check ("a.qcow2") == 0);
  images_leave ();
  return 0;
}
