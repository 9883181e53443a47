/* SPDX-License-Identifier: BSD-3-Clause
 *
 * A file is so long that its clusters cannot be counted with refcounts of another width,
 * or that no more can be counted with those that it has: the change is refused, and the
 * image is as before.
 *
 * Clusters have 512 bytes, and the file is nearly all hole.  The longest refcount table
 * is enough for 32 GiB with 64 bits, and for 128 GiB with 16.
 */

#include <config.h>

#include <errno.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lib/changes.h"
#include "lib/images.h"

#define IMAGE "long.qcow2"
#define LONG (UINT64_C (33) << 30)

/* From FROM bits to TO. */
static void
test (unsigned from, unsigned to, int err, const char *why)
{
  const struct image_spec spec = {
    .version = 3, .cluster_size = 512, .refcount_bits = from, .size = 1 << 20,
  };
  const struct amend amend = { .refcount_bits = to };
  const struct disk_options options = {
    .path = images_path (IMAGE), .l2_cache = 1 << 20, .l2_slice = 512,
    .hooks = &without_sync,
  };
  const unsigned long errors = error_count ();
  struct blob before, now;
  struct stat st;
  struct rng rng;

  rng_init (&rng, 1, 0);
  unlink (IMAGE);
  image_create (IMAGE, &spec);
  image_fill (IMAGE, &spec, &rng, 3);
  blob_load (IMAGE, &before);
  CHECK (truncate (IMAGE, LONG) == 0);
  errno = 0;
  quiet_errors = true;
  CHECK (change_amend (&options, &amend) == -1 && errno == err);
  quiet_errors = false;
  CHECK (error_count () == errors + 1 && strstr (last_error (), why) != NULL);
  CHECK (stat (IMAGE, &st) == 0 && st.st_size == (off_t) LONG);
  CHECK (truncate (IMAGE, before.len) == 0);
  blob_load (IMAGE, &now);
  CHECK (blob_same (&now, &before));
  blob_free (&now);
  blob_free (&before);

  /* Without the hole it is possible. */
  CHECK (change_amend (&options, &amend) == 0 && image_check (IMAGE) == 0);
  free ((char *) options.path);
}

int
main (void)
{
  images_enter ("width-too-long");
  test (64, 16, ENOSPC, "larger than a refcount table can describe");
  test (16, 64, ERANGE, "more clusters than refcounts of 64 bits can count");
  images_leave ();
  return 0;
}
