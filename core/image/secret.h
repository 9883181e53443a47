/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Unlocks encrypted images with a passphrase.  See secret.c.
 */

#ifndef QCOW2_SECRET_H
#define QCOW2_SECRET_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "storage/storage.h"
#include "format/crypt.h"
#include "format/header.h"

/* For the encrypted images of a chain. */
struct image_secret {
  const char *passphrase;       /* of the first one from the top; NULL: none was given */
  size_t len;
  const char *const *more;      /* of those below it; the last passphrase is for all
                                   others */
  size_t nr_more;
  bool inherited;               /* it has opened an image, and is tried on another one */
  bool unneeded;                /* guest data is not read: nothing is unlocked */
  uint64_t most_rounds;         /* limit of hash rounds to test it on one image;
                                   0: LUKS_MAX_ROUNDS */
};

/* Sets *CIPHER, for the guest data of the image in FILE, which the caller frees; NULL if
 * it is not encrypted, or the secret is not needed.  Returns 0, or -1 (reported; EACCES:
 * a passphrase is needed). */
extern int secret_unlock (const struct image_secret *, struct storage *file,
                          const struct header *, struct crypt_cipher **cipher);

/* For the images below that with this header (NULL: a raw one). */
extern struct image_secret secret_below (const struct image_secret *,
                                         const struct header *);

#endif /* QCOW2_SECRET_H */
