/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Which host clusters are zeros where no data are mapped?  See fresh.c.
 */

#ifndef QCOW2_FRESH_H
#define QCOW2_FRESH_H

#include <stdbool.h>
#include <stdint.h>

struct fresh;

extern struct fresh *fresh_new (void);  /* NULL on ENOMEM (reported) */
extern void fresh_free (struct fresh *);  /* NULL is fine */

/* Host clusters, by number.  The caller has claimed the guest clusters that they
 * belong to, or is about to give them to. */
extern void fresh_add (struct fresh *, uint64_t cluster);
extern void fresh_remove (struct fresh *, uint64_t first, uint64_t n);
extern bool fresh_has (const struct fresh *, uint64_t first, uint64_t n);

#endif /* QCOW2_FRESH_H */
