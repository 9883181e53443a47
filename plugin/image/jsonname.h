/* SPDX-License-Identifier: BSD-3-Clause
 *
 * "json:{...}" names, as QEMU writes them: see jsonname.c.
 */

#ifndef QCOW2_JSONNAME_H
#define QCOW2_JSONNAME_H

#include <stdbool.h>
#include <stddef.h>

#define JSONNAME_WHY 200

/* What such a name says. */
struct jsonname {
  char *name;                   /* of a file, perhaps relative, or an NBD URI; to be freed */
  const char *format;           /* "qcow2", "raw"; NULL: not said */
};

/* Does NAME begin with "json:"? */
extern bool jsonname_is (const char *name);
/* -1: EINVAL, ENOTSUP, or ENOMEM, and WHY says what is the matter. */
extern int jsonname_parse (const char *name, struct jsonname *, char why[JSONNAME_WHY]);

#endif /* QCOW2_JSONNAME_H */
