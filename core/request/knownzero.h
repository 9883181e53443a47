/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Which host clusters contain zeros where no data is mapped?  See knownzero.c.
 */

#ifndef QCOW2_KNOWNZERO_H
#define QCOW2_KNOWNZERO_H

#include <stdbool.h>
#include <stdint.h>

struct knownzero;

extern struct knownzero *knownzero_new (void);  /* NULL on ENOMEM (reported) */
extern void knownzero_free (struct knownzero *);  /* accepts NULL */

/* Host clusters, by number.  The caller has claimed the guest clusters that use them, or
 * that it is about to map to them. */
extern void knownzero_add (struct knownzero *, uint64_t cluster);
extern void knownzero_remove (struct knownzero *, uint64_t first, uint64_t n);
extern bool knownzero_has (const struct knownzero *, uint64_t first, uint64_t n);

#endif /* QCOW2_KNOWNZERO_H */
