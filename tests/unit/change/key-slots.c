/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Which key slot gets a new passphrase?
 *
 * The first free one; never one that is in use, and none if all are.
 */

#include <config.h>

#include <string.h>

#include "lib/changes.h"
#include "lib/images.h"

#define IMAGE "keys.qcow2"
#define SLOTS 8

static const char *const words[SLOTS] = {
  IMAGES_SECRET, "one", "two", "three", "four", "five", "six", "seven",
};
static struct disk_options options;

static bool
opens (const char *passphrase)
{
  struct disk *disk;
  bool r;

  options.secret = (struct image_secret) {
    .passphrase = passphrase, .len = strlen (passphrase),
  };
  r = disk_open (&options, &disk) == 0;
  if (r)
    CHECK (disk_close (disk) == 0);
  options.secret = (struct image_secret) {
    .passphrase = IMAGES_SECRET, .len = strlen (IMAGES_SECRET),
  };
  return r;
}

static int
change (const char *add, int erase_slot)
{
  const struct keyedit edit = { .add = add, .erase_slot = erase_slot, .iter_ms = 1 };

  return change_keys (&options, &edit);
}

int
main (void)
{
  const struct image_spec spec = {
    .version = 3, .cluster_size = 65536, .refcount_bits = 16, .size = 1 << 20,
    .encrypt = "luks",
  };

  images_enter ("key-slots");
  image_create (IMAGE, &spec);
  options = (struct disk_options) {
    .path = images_path (IMAGE), .l2_cache = 1 << 20, .l2_slice = 4096,
    .secret = { .passphrase = IMAGES_SECRET, .len = strlen (IMAGES_SECRET) },
  };
  for (int i = 1; i < SLOTS; i++) {
    CHECK (change (words[i], -1) == 0);
    for (int j = 0; j < SLOTS; j++)
      CHECK (opens (words[j]) == (j <= i));
  }
  CHECK (change ("another", -1) == -1);
  CHECK (strstr (last_error (), "all of its key slots are in use") != NULL);

  /* The slot that is free is not the last one. */
  CHECK (change (NULL, 5) == 0);
  CHECK (change ("another", -1) == 0);
  for (int j = 0; j < SLOTS; j++)
    CHECK (opens (words[j]) == (j != 5));
  CHECK (opens ("another"));
  free ((char *) options.path);
  images_leave ();
  return 0;
}
