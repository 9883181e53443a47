/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The passphrase that an object of QEMU's type `secret' describes.  See passphrase.c.
 */

#ifndef QCOW2_PASSPHRASE_H
#define QCOW2_PASSPHRASE_H

#include <stdbool.h>

/* Either DATA, or what the FILE of that name contains; the other one is NULL.  BASE64: it
 * is encoded.  WHAT: how messages call the object.  The caller frees it with
 * passphrase_free.  NULL: reported. */
extern char *passphrase_read (const char *what, const char *data, const char *file,
                              bool base64);
/* Wipes it.  Accepts NULL. */
extern void passphrase_free (char *);

#endif /* QCOW2_PASSPHRASE_H */
