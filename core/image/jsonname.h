/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Parses "json:{...}" names, as QEMU writes them.  See jsonname.c.
 */

#ifndef QCOW2_JSONNAME_H
#define QCOW2_JSONNAME_H

#include <stdbool.h>
#include <stddef.h>

#define JSONNAME_WHY 200

/* The meaning of such a name. */
struct jsonname {
  char *name;                   /* path of a file, may be relative, or an NBD URI;
                                   the caller frees it */
  const char *format;           /* "qcow2", "raw"; NULL: not stated */
};

/* Does NAME begin with "json:"? */
extern bool jsonname_is (const char *name);
/* Returns 0; or -1 with EINVAL, ENOTSUP or ENOMEM, and WHY says why. */
extern int jsonname_parse (const char *name, struct jsonname *, char why[JSONNAME_WHY]);

#endif /* QCOW2_JSONNAME_H */
