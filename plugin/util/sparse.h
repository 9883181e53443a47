/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Memory that costs only what is used of it.  See sparse.c.
 */

#ifndef QCOW2_SPARSE_H
#define QCOW2_SPARSE_H

#include <stddef.h>

/* BYTES (> 0) of zeros, aligned as by malloc.  NULL: ENOMEM (not reported). */
extern void *sparse_new (size_t bytes);
/* P is NULL or has that many bytes. */
extern void sparse_free (void *p, size_t bytes);
/* As realloc:  P has OLD bytes, and gets BYTES >= OLD; what is new is zeros.  NULL:
 * ENOMEM, and P is as it was. */
extern void *sparse_grow (void *p, size_t old, size_t bytes);

/* As memcpy, into memory that is still zeros: what is zeros in FROM takes none. */
extern void sparse_copy (void *to, const void *from, size_t bytes);

#endif /* QCOW2_SPARSE_H */
