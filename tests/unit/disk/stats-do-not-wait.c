/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Statistics of a disk do not ask the host for the size of its file, which might take
 * long: others wait for them.
 */

#include <config.h>

#include "util/cleanup.h"
#include "disk/disk.h"
#include "lib/images.h"
#include "lib/stubs.h"

static unsigned nr_asked;

static uint64_t
size (void *opaque, const char *path, uint64_t size)
{
  (void) opaque, (void) path;
  nr_asked++;
  return size;
}

static void
test (bool writable)
{
  static const struct storage_hooks hooks = { .size = size };
  CLEANUP_FREE char *path = images_path ("a.qcow2");
  const struct disk_options options = {
    .path = path, .l2_cache = 1 << 20, .l2_slice = 4096, .lock = true,
    .untrusted = !writable, .hooks = &hooks,
  };
  struct disk_stats stats;
  struct disk *disk;
  struct blob file;
  unsigned before;

  CHECK (disk_open (&options, &disk) == 0);
  before = nr_asked;
  CHECK (before > 0);
  disk_get_stats (disk, &stats);
  CHECK (nr_asked == before);
  blob_load ("a.qcow2", &file);
  CHECK (stats.file_size == file.len && !stats.is_device);
  blob_free (&file);
  CHECK (disk_close (disk) == 0);
}

int
main (void)
{
  const struct image_spec spec = {
    .version = 3, .cluster_size = 65536, .refcount_bits = 16, .size = 1 << 20,
  };

  images_enter ("stats-do-not-wait");
  image_create ("a.qcow2", &spec);
  test (true);
  test (false);
  images_leave ();
  return 0;
}
