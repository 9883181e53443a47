/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Which of many items has this name?  See names.c.
 */

#ifndef QCOW2_NAMES_H
#define QCOW2_NAMES_H

#include <stddef.h>

struct names;

/* An index of N things; NAME returns the name of number I, which does not change while
 * the index is in use.  NULL on ENOMEM (reported). */
extern struct names *names_new (size_t n,
                                const char *(*name) (const void *opaque, size_t i),
                                const void *opaque);
extern void names_free (struct names *);        /* NULL is fine */

/* The first thing (the lowest number) of that name, or SIZE_MAX. */
extern size_t names_find (const struct names *, const char *name);

#endif /* QCOW2_NAMES_H */
