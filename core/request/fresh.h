/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Which host clusters contain zeros where no data is mapped?  See fresh.c.
 */

#ifndef QCOW2_FRESH_H
#define QCOW2_FRESH_H

#include <stdbool.h>
#include <stdint.h>

struct fresh;

extern struct fresh *fresh_new (void);  /* NULL on ENOMEM (reported) */
extern void fresh_free (struct fresh *);  /* accepts NULL */

/* Host clusters, by number.  The caller has claimed the guest clusters that use them, or
 * that it is about to map to them. */
extern void fresh_add (struct fresh *, uint64_t cluster);
extern void fresh_remove (struct fresh *, uint64_t first, uint64_t n);
extern bool fresh_has (const struct fresh *, uint64_t first, uint64_t n);

#endif /* QCOW2_FRESH_H */
