/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Encrypted images for tests.  See encrypted.c.
 */

#ifndef TEST_ENCRYPTED_H
#define TEST_ENCRYPTED_H

#include "format/crypt.h"
#include "disk/disk.h"
#include "lib/images.h"

/* Does what image_create does, if SPEC->encrypt is "luks". */
extern void encrypted_create (const char *name, const struct image_spec *);
/* The cipher of an image's disk; NULL if it is not encrypted.  The caller frees it with
 * crypt_free. */
extern struct crypt_cipher *encrypted_cipher (const char *name);
/* Does this passphrase open the disk? */
extern bool encrypted_opens (const struct disk_options *, const char *passphrase);
/* FILE is an image with LUKS, or an external data file.  PLAIN receives the decrypted
 * guest data at the same offsets; the rest of it is meaningless.  Its memory is
 * reused. */
extern void encrypted_plain (struct crypt_cipher *, const struct blob *file,
                             struct blob *plain);

#endif /* TEST_ENCRYPTED_H */
