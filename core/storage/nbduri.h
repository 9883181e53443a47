/* SPDX-License-Identifier: BSD-3-Clause
 *
 * NBD URIs.  See nbduri.c.
 */

#ifndef QCOW2_NBDURI_H
#define QCOW2_NBDURI_H

#include <stdbool.h>

/* Does NAME begin with a scheme of NBD URIs?  (It need not be a valid URI.) */
extern bool nbduri_is (const char *name);

/* Returns URI in its normal form; the caller frees it.  SECRETS: with user and keys;
 * otherwise without, for messages and comparisons.  NULL on EINVAL or ENOMEM, and *WHY
 * says what is wrong. */
extern char *nbduri_normal (const char *uri, bool secrets, const char **why);

/* Makes a URI in normal form from SOCKET (a path), or from HOST and PORT (NULL: the
 * default).  EXPORT is the plain name (not percent-encoded).  NULL on EINVAL or
 * ENOMEM. */
extern char *nbduri_make (const char *host, const char *port, const char *socket,
                          const char *export);
/* The same for QEMU's old names: nbd:HOST:PORT[:exportname=E], nbd:unix:PATH[:...]. */
extern bool nbduri_is_old (const char *name);
extern char *nbduri_from_old (const char *name);

/* Does the valid URI have a user or keys? */
extern bool nbduri_has_secrets (const char *uri);

/* Returns the valid URI with the secrets of FROM, in normal form.  NULL on ENOMEM. */
extern char *nbduri_add_secrets (const char *uri, const char *from);

/* Returns URI for another export (its plain name) of the same server, in normal form,
 * with secrets.  NULL on EINVAL or ENOMEM. */
extern char *nbduri_with_export (const char *uri, const char *export);

/* Do these valid URIs name the same export of the same server?  (Only names are
 * compared.) */
extern bool nbduri_same (const char *a, const char *b);

/* Is the valid URI below the valid PREFIX: on the same server, with the same export name,
 * or one that continues PREFIX's behind a slash? */
extern bool nbduri_is_below (const char *uri, const char *prefix);

#endif /* QCOW2_NBDURI_H */
