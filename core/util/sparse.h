/* SPDX-License-Identifier: BSD-3-Clause
 *
 * How can a large table use no more memory than its used part needs?  See sparse.c.
 */

#ifndef QCOW2_SPARSE_H
#define QCOW2_SPARSE_H

#include <stddef.h>

/* Returns BYTES (> 0) of zeros, aligned as by malloc.  NULL: ENOMEM (not reported). */
extern void *sparse_new (size_t bytes);
/* P is NULL or has that many bytes. */
extern void sparse_free (void *p, size_t bytes);
/* Like realloc: P has OLD bytes, and the result BYTES >= OLD, of which the new ones are
 * zeros.  NULL: ENOMEM (not reported), and P is unchanged. */
extern void *sparse_grow (void *p, size_t old, size_t bytes);

/* Like memcpy, to memory that still contains zeros: zeros in FROM use no memory there. */
extern void sparse_copy (void *to, const void *from, size_t bytes);

#endif /* QCOW2_SPARSE_H */
