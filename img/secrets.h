/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The passphrases that the user gives.  See secrets.c.
 */

#ifndef QCOW2_IMG_SECRETS_H
#define QCOW2_IMG_SECRETS_H

#include "img/command.h"

struct secrets;

/* What --object defines.  NULL: reported. */
extern struct secrets *secrets_read (const struct arguments *);
/* Wipes them.  NULL is allowed. */
extern void secrets_free (struct secrets *);

/* The passphrase with that id, which belongs to the secrets.  NULL: reported. */
extern const char *secrets_get (const struct secrets *, const char *id);
/* If there is one only: the passphrase of images that do not name theirs.  Or NULL. */
extern const char *secrets_only (const struct secrets *);

#endif /* QCOW2_IMG_SECRETS_H */
