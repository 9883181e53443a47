/* SPDX-License-Identifier: BSD-3-Clause
 *
 * A client that may write, and only reads, changes nothing in the image; unless
 * copy-on-read=true was given, there is something below the image, and its data is in the
 * image itself: then what it has read is in the image afterwards.
 */

#include <config.h>

#include <string.h>

#include "disk/export.h"
#include "lib/images.h"
#include "lib/stubs.h"

#define IMAGE "top.qcow2"
#define SIZE (1u << 20)

static void
test (bool asked, bool below, bool data_file)
{
  static unsigned char buf[SIZE];
  struct image_spec spec = {
    .version = 3, .cluster_size = 4096, .refcount_bits = 16, .size = SIZE,
    .data_file = data_file ? "top.data" : NULL,
  };
  struct disk_options options = {
    .path = images_path (IMAGE), .l2_slice = 4096, .backing = BACKING_FOLLOW,
    .copy_on_read = asked, .hooks = &without_sync,
  };
  struct blob raw = { NULL, 0 }, contents, before, after;
  struct export *e;
  struct disk *d;
  struct rng rng;

  rng_init (&rng, 1, 0);
  if (below)
    image_over_raw (&spec, &rng, SIZE, 8, &raw);
  image_create (IMAGE, &spec);
  image_fill (IMAGE, &spec, &rng, 2);
  image_contents (IMAGE, NULL, &contents);
  blob_load (IMAGE, &before);
  CHECK (disk_open (&options, &d) == 0);
  CHECK ((e = export_open (d, "", true)) && export_is_writable (e));
  CHECK (export_read (e, buf, SIZE, 0) == 0 && memcmp (buf, contents.data, SIZE) == 0);
  CHECK (export_close (e) == 0 && disk_close (d) == 0);
  blob_load (IMAGE, &after);
  CHECK (blob_same (&before, &after) == !(asked && below && !data_file));
  CHECK (image_check (IMAGE) == 0 && image_shows (IMAGE, NULL, &contents));
  blob_free (&raw);
  blob_free (&contents);
  blob_free (&before);
  blob_free (&after);
  free ((char *) options.path);
}

int
main (void)
{
  images_enter ("reads-that-copy");
  for (unsigned i = 0; i < 8; i++)
    test (i & 1, i & 2, i & 4);
  images_leave ();
  return 0;
}
