/* SPDX-License-Identifier: BSD-3-Clause
 *
 * How do tests get encrypted images quickly, and read them?
 *
 * qemu-img takes seconds to create an image with LUKS, because it measures how fast the
 * machine is.  So create.c makes them, with a weak key that is tested quickly.
 * serve/create-luks.sh tests whether other programs accept such images.
 */

#include <config.h>

#include <string.h>

#include "util/bytes.h"
#include "image/image.h"
#include "change/create.h"
#include "lib/encrypted.h"
#include "lib/reach.h"

static const struct image_secret secret = {
  .passphrase = IMAGES_SECRET, .len = sizeof IMAGES_SECRET - 1,
};

void
encrypted_create (const char *name, const struct image_spec *spec)
{
  struct create_options o = {
    .path = images_path (name), .encrypt = true, .iter_ms = 1, .secret = secret,
    .image = {
      .size = spec->size, .cluster_size = spec->cluster_size,
      .version = spec->version, .refcount_bits = spec->refcount_bits,
      .extended_l2 = spec->extended,
      .backing_format = spec->backing_raw ? "raw" : "qcow2",
      .preallocation =
        spec->preallocation == NULL ? PREALLOCATION_OFF
        : strcmp (spec->preallocation, "metadata") == 0 ? PREALLOCATION_METADATA
        : PREALLOCATION_FALLOC,
    },
  };
  struct created *created;
  char *backing = spec->backing ? reach_backing_in_header (spec->backing) : NULL;
  char *data_file = spec->data_file ? reach_data_file_in_header (spec->data_file) : NULL;

  o.image.backing_file = backing;
  o.image.data_file = data_file;
  o.rules = reach_rules ();
  remove (name);
  if (spec->data_file) {
    remove (spec->data_file);
    o.data_path = images_path (spec->data_file);
  }
  CHECK (!spec->data_file_raw); /* not supported here */
  CHECK (create_image (&o, &created) == 0);
  created_keep (created);
  free ((char *) o.path);
  free ((char *) o.data_path);
  free (backing);
  free (data_file);
}

struct crypt_cipher *
encrypted_cipher (const char *name)
{
  const struct storage_options options = { .lock = false };
  char *path = images_path (name);
  struct image *image = image_open_file (path, &options);
  struct crypt_cipher *cipher;

  CHECK (image != NULL && image_read_header (image) == 0);
  CHECK (secret_unlock (&secret, image->file, &image->header, &cipher) == 0);
  image_close (image);
  free (path);
  return cipher;
}

bool
encrypted_opens (const struct disk_options *options, const char *passphrase)
{
  struct disk_options o = *options;
  struct disk *disk;

  o.hooks = NULL;
  o.secret = (struct image_secret) {
    .passphrase = passphrase, .len = strlen (passphrase),
  };
  if (disk_open (&o, &disk) == -1)
    return false;
  CHECK (disk_close (disk) == 0);
  return true;
}

void
encrypted_plain (struct crypt_cipher *cipher, const struct blob *file,
                 struct blob *plain)
{
  plain->len = round_up (file->len, CRYPT_SECTOR);
  plain->data = realloc (plain->data, plain->len + 1);
  CHECK (plain->data != NULL);
  memset (plain->data + file->len, 0, plain->len - file->len);
  memcpy (plain->data, file->data, file->len);
  CHECK (crypt_decrypt (cipher, 0, plain->data, plain->data, plain->len) == 0);
}
