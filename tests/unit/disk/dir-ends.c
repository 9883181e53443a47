/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The server of a directory ends while clients are connected, whose connections nbdkit
 * then does not close: the images contain what the clients wrote, and have no faults.
 */

#include <config.h>

#include <string.h>

#include "disk/dir.h"
#include "lib/images.h"

#define IMAGES 2
#define SIZE (UINT64_C (1) << 20)

static char buf[65536];

int
main (void)
{
  const struct image_spec spec = {
    .version = 3, .cluster_size = 4096, .refcount_bits = 16, .size = SIZE,
  };
  struct disk_options options = {
    .l2_cache = 1 << 20, .l2_slice = 4096, .discard = true, .lock = true,
  };
  struct export *clients[IMAGES];
  struct dir_image *image;
  const char *rest;
  struct dir *dir;
  struct blob b;
  char name[16], *path;

  images_enter ("dir-ends");
  options.path = path = images_path (".");
  CHECK (dir_open (&options, &dir) == 0);
  for (int i = 0; i < IMAGES; i++) {
    snprintf (name, sizeof name, "%d.qcow2", i);
    image_create (name, &spec);
    CHECK ((image = dir_enter (dir, name, &rest)));
    CHECK ((clients[i] = export_open (dir_disk (image), rest, true)));
    memset (buf, 'a' + i, sizeof buf);
    CHECK (export_write (clients[i], buf, sizeof buf, 100, false) == 0);
  }
  CHECK (dir_close (dir) == 0);
  for (int i = 0; i < IMAGES; i++) {
    snprintf (name, sizeof name, "%d.qcow2", i);
    CHECK (image_check (name) == 0);
    image_contents (name, NULL, &b);
    memset (buf, 'a' + i, sizeof buf);
    CHECK (memcmp (b.data + 100, buf, sizeof buf) == 0);
    blob_free (&b);
    free (clients[i]);          /* (there is nothing to leave any more) */
  }
  free (path);
  images_leave ();
  return 0;
}
