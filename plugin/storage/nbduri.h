/* SPDX-License-Identifier: BSD-3-Clause
 *
 * NBD URIs: see nbduri.c.
 */

#ifndef QCOW2_NBDURI_H
#define QCOW2_NBDURI_H

#include <stdbool.h>

/* Does NAME begin with a scheme of NBD URIs?  (It need not be a valid one.) */
extern bool nbduri_is (const char *name);

/* URI in the one form that we pass on: to be freed.  SECRETS: with user and keys, else
 * for messages and comparisons.  NULL: EINVAL, and WHY says what is wrong with it; or
 * ENOMEM. */
extern char *nbduri_normal (const char *uri, bool secrets, const char **why);

/* A URI in normal form: SOCKET (a path) or HOST and PORT (NULL: the default); EXPORT as it
 * is.  NULL: EINVAL or ENOMEM. */
extern char *nbduri_make (const char *host, const char *port, const char *socket,
                          const char *export);
/* The same from QEMU's old names: nbd:HOST:PORT[:exportname=E], nbd:unix:PATH[:...]. */
extern bool nbduri_is_old (const char *name);
extern char *nbduri_from_old (const char *name);

/* The valid URI with the secrets of FROM, in normal form.  NULL: ENOMEM. */
extern char *nbduri_add_secrets (const char *uri, const char *from);

/* Do valid URIs name the same export of the same server, as far as names tell? */
extern bool nbduri_same (const char *a, const char *b);

/* Is the valid URI below the valid PREFIX: the same server, and an export whose name is
 * the prefix's, or has that and a slash before it? */
extern bool nbduri_is_below (const char *uri, const char *prefix);

#endif /* QCOW2_NBDURI_H */
