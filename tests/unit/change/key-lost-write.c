/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Is a new passphrase tested before an old one is erased?
 *
 * The disk loses what is written to a key slot, and says nothing.  The change fails, and
 * the old passphrase still opens the image.
 */

#include <config.h>

#include <errno.h>
#include <string.h>

#include "lib/changes.h"
#include "lib/encrypted.h"
#include "lib/images.h"

#define IMAGE "keys.qcow2"
#define MATERIAL (64u << 10)    /* a write that is longer has key material */

static unsigned lost;

static int
before (void *opaque, const char *path, enum storage_op op, const struct iovec *iov,
        int niov, uint64_t offset, uint64_t count, bool dsync)
{
  (void) opaque, (void) path, (void) iov, (void) niov, (void) offset, (void) dsync;
  if (op != STORAGE_OP_WRITE || count < MATERIAL)
    return 0;
  lost++;
  return 1;
}

static const struct storage_hooks hooks = { .before = before };

int
main (void)
{
  const struct image_spec spec = {
    .version = 3, .cluster_size = 65536, .refcount_bits = 16, .size = 1 << 20,
    .encrypt = "luks",
  };
  const struct keyedit exchange = {
    .add = "new", .erase = IMAGES_SECRET, KEYEDIT_NONE, .iter_ms = 1,
  };
  struct disk_options options;

  images_enter ("key-lost-write");
  image_create (IMAGE, &spec);
  options = (struct disk_options) {
    .path = images_path (IMAGE), .l2_cache = 1 << 20, .l2_slice = 4096, .hooks = &hooks,
    .secret = { .passphrase = IMAGES_SECRET, .len = strlen (IMAGES_SECRET) },
  };
  CHECK (change_keys (&options, &exchange) == -1);
  CHECK (errno == EIO && lost == 1);
  CHECK (strstr (last_error (), "does not open the key slot") != NULL);
  CHECK (encrypted_opens (&options, IMAGES_SECRET) && !encrypted_opens (&options, "new"));

  options.hooks = NULL;
  CHECK (change_keys (&options, &exchange) == 0);
  CHECK (!encrypted_opens (&options, IMAGES_SECRET) && encrypted_opens (&options, "new"));
  free ((char *) options.path);
  images_leave ();
  return 0;
}
