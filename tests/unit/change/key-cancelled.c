/* SPDX-License-Identifier: BSD-3-Clause
 *
 * A change of passphrases can be ended before each key slot that is tested: then no
 * further key is derived, and the image is as before.
 */

#include <config.h>

#include <errno.h>
#include <string.h>

#include "lib/changes.h"
#include "lib/images.h"

#define IMAGE "keys.qcow2"

static unsigned steps, most;

static int
step (void *opaque)
{
  CHECK (opaque == &steps);
  steps++;
  errno = ECANCELED;
  return steps > most ? -1 : 0;
}

int
main (void)
{
  const struct image_spec spec = {
    .version = 3, .cluster_size = 65536, .refcount_bits = 16, .size = 1 << 20,
    .encrypt = "luks",
  };
  const struct keyedit add = { .add = "new", KEYEDIT_NONE, .iter_ms = 1 };
  const struct keyedit exchange = {
    .add = "newer", .erase = "new", KEYEDIT_NONE, .iter_ms = 1, .step = step,
    .opaque = &steps,
  };
  struct disk_options options;
  struct blob file, now;

  images_enter ("key-cancelled");
  image_create (IMAGE, &spec);
  options = (struct disk_options) {
    .path = images_path (IMAGE), .l2_cache = 1 << 20, .l2_slice = 4096,
    .secret = { .passphrase = IMAGES_SECRET, .len = strlen (IMAGES_SECRET) },
  };
  CHECK (change_keys (&options, &add) == 0);
  blob_load (IMAGE, &file);
  /* Two slots are tested for the old passphrase, and three for the new one. */
  for (most = 0; most < 5; most++) {
    steps = 0;
    CHECK (change_keys (&options, &exchange) == -1 && errno == ECANCELED);
    CHECK (steps == most + 1);
    blob_load (IMAGE, &now);
    CHECK (blob_same (&now, &file));
    blob_free (&now);
  }
  steps = 0;
  CHECK (change_keys (&options, &exchange) == 0 && steps == 5);
  CHECK (image_check (IMAGE) == 0);
  blob_free (&file);
  free ((char *) options.path);
  images_leave ();
  return 0;
}
