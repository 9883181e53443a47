/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Which key slot gets a new passphrase?
 *
 * The first free one, or the one that is asked for; never one that is in use, and none if
 * all are.
 */

#include <config.h>

#include <string.h>

#include "lib/changes.h"
#include "lib/encrypted.h"
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
  return encrypted_opens (&options, passphrase);
}

static int
change (const struct keyedit *edit)
{
  return change_keys (&options, edit);
}

static int
add (const char *passphrase, int slot)
{
  return change (&(struct keyedit) {
    .add = passphrase, .add_slot = slot, .erase_slot = -1, .iter_ms = 1 });
}

static int
erase (const char *passphrase, int slot)
{
  return change (&(struct keyedit) {
    .erase = passphrase, .add_slot = -1, .erase_slot = slot });
}

/* Exactly those whose bit is set. */
static void
check_opens (unsigned set)
{
  for (int i = 0; i < SLOTS; i++)
    CHECK (opens (words[i]) == !!(set & 1u << i));
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
    CHECK (add (words[i], -1) == 0);
    check_opens ((2u << i) - 1);
  }
  CHECK (add ("another", -1) == -1);
  CHECK (strstr (last_error (), "all of its key slots are in use") != NULL);

  /* The slot that is free is not the last one. */
  CHECK (erase (NULL, 5) == 0);
  CHECK (add ("another", -1) == 0);
  check_opens (0xdf);
  CHECK (opens ("another"));

  /* One that is in use stays as it is. */
  CHECK (add ("more", 5) == -1);
  CHECK (strstr (last_error (), "is in use: erase it first") != NULL);
  CHECK (!opens ("more"));
  CHECK (opens ("another"));

  /* With a passphrase and a number, both must agree; a passphrase alone is erased from
   * all slots that it opens. */
  CHECK (erase ("another", 4) == -1);
  CHECK (strstr (last_error (), "does not open the key slot to be erased") != NULL);
  CHECK (erase (NULL, 3) == 0);
  CHECK (erase (NULL, 2) == 0);
  CHECK (add ("another", 3) == 0);
  CHECK (erase ("another", 5) == 0);
  check_opens (0xd3);
  CHECK (opens ("another"));

  /* The chosen one, though others before it are free. */
  CHECK (add (words[5], 5) == 0);
  CHECK (erase (NULL, 5) == 0);
  check_opens (0xd3);
  CHECK (add (words[2], -1) == 0);
  CHECK (erase (NULL, 2) == 0);
  check_opens (0xd3);
  free ((char *) options.path);
  images_leave ();
  return 0;
}
