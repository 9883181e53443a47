/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What does the passphrase unlock?  See secret.c.
 */

#ifndef QCOW2_SECRET_H
#define QCOW2_SECRET_H

#include <stddef.h>
#include <stdint.h>

#include "storage/storage.h"
#include "format/crypt.h"
#include "format/header.h"

/* For all images of a chain that are encrypted. */
struct image_secret {
  const char *passphrase;       /* NULL: none was given */
  size_t len;
  uint64_t most_rounds;         /* of hashing that trying it on an image may take; 0:
                                   LUKS_MAX_ROUNDS */
};

/* *CIPHER (to be freed) for the guest data of the image in FILE; NULL if it is not
 * encrypted.  0, or -1 (reported; EACCES: a passphrase is needed). */
extern int secret_unlock (const struct image_secret *, struct storage *file,
                          const struct header *, struct crypt_cipher **cipher);

#endif /* QCOW2_SECRET_H */
