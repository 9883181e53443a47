/* SPDX-License-Identifier: BSD-3-Clause
 *
 * A map that cannot be written: the report ends with one message that says why, also if
 * that happens in the middle of a long one.
 */

#include <config.h>

#include <errno.h>
#include <string.h>

#include "disk/disk.h"
#include "disk/mapreport.h"
#include "lib/images.h"
#include "lib/stubs.h"

#define IMAGE "disk.qcow2"

static void
fails (const char *image)
{
  struct disk_options options = {
    .path = images_path (image), .l2_slice = 512, .backing = BACKING_FOLLOW,
  };
  unsigned long errors;
  struct disk *d;

  CHECK (disk_open (&options, &d) == 0);
  errors = error_count ();
  quiet_errors = true;
  errno = 0;
  CHECK (mapreport_write ("/dev/full", disk_inside (d).view->layers, NULL) == -1);
  CHECK (errno == ENOSPC && error_count () == errors + 1);
  CHECK (strstr (last_error (), "/dev/full") && strstr (last_error (), strerror (ENOSPC)));
  quiet_errors = false;
  CHECK (disk_close (d) == 0);
  free ((char *) options.path);
}

int
main (void)
{
  struct image_spec spec = {
    .version = 3, .cluster_size = 512, .refcount_bits = 16, .size = 1 << 20,
  };
  struct command c = { .n = 0 };

  images_enter ("map-to-full-device");
  image_create ("empty.qcow2", &spec);
  fails ("empty.qcow2");
  image_create (IMAGE, &spec);
  command_words (&c, "qemu-io -f qcow2 -t unsafe");
  for (unsigned i = 0; i < 34; i++) {
    command_add (&c, "-c");
    command_add (&c, "write -q %u 512", i * 4096);
  }
  command_add (&c, IMAGE);
  command_must (&c);
  /* Raw layers have holes. */
  spec = (struct image_spec) { .raw = true, .size = 8 << 20 };
  image_create ("below", &spec);
  c.n = 0;
  command_words (&c, "qemu-io -f raw -t unsafe");
  for (unsigned i = 0; i < 35; i++) {
    command_add (&c, "-c");
    command_add (&c, "write -q %uk 64k", i * 192);
  }
  command_add (&c, "below");
  command_must (&c);
  spec = (struct image_spec) {
    .version = 3, .cluster_size = 65536, .refcount_bits = 16, .size = 8 << 20,
    .backing = "below", .backing_raw = true,
  };
  image_create ("over.qcow2", &spec);
  fails (IMAGE);
  fails ("over.qcow2");
  images_leave ();
  return 0;
}
