/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Which of many items has this name?  See names.c.
 */

#ifndef QCOW2_NAMES_H
#define QCOW2_NAMES_H

#include <stddef.h>

struct names;

/* An index of N items.  NAME returns the name of item I, which must not change while the
 * index is in use.  NULL on ENOMEM (reported). */
extern struct names *names_new (size_t n,
                                const char *(*name) (const void *opaque, size_t i),
                                const void *opaque);
extern void names_free (struct names *);        /* accepts NULL */

/* Returns the first item (the lowest number) with that name, or SIZE_MAX. */
extern size_t names_find (const struct names *, const char *name);

#endif /* QCOW2_NAMES_H */
