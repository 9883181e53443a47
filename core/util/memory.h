/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Memory, or a message that there is none.
 *
 * NULL: reported (ENOMEM).  N * SIZE may overflow.  What they return is freed with free.
 */

#ifndef QCOW2_MEMORY_H
#define QCOW2_MEMORY_H

#include <stdlib.h>

/* N elements of SIZE bytes, all zeros. */
extern void *memory_new (size_t n, size_t size)
  __attribute__ ((malloc, alloc_size (1, 2)));
/* Uninitialized. */
extern void *memory_get (size_t bytes) __attribute__ ((malloc, alloc_size (1)));
/* The same, from the beginning of a page on: for long copies, not for each request,
 * because what such blocks leave behind fragments the heap. */
extern void *memory_pages (size_t bytes) __attribute__ ((malloc, alloc_size (1)));
/* ARRAY with N elements of SIZE bytes.  NULL: it is as before. */
extern void *memory_resize (void *array, size_t n, size_t size)
  __attribute__ ((warn_unused_result, alloc_size (2, 3)));
/* Makes space behind the N elements of ARRAY, a pointer that grows only by this (NULL at
 * first; there may be fewer elements again).  -1: it is as before. */
#define MEMORY_APPEND(array, n) memory_append (&(array), n, sizeof *(array))
extern int memory_append (void *array, size_t n, size_t size)
  __attribute__ ((warn_unused_result));
/* A copy of the string. */
extern char *memory_text (const char *) __attribute__ ((malloc));

#endif /* QCOW2_MEMORY_H */
