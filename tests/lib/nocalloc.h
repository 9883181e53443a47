/* SPDX-License-Identifier: BSD-3-Clause
 *
 * No memory for arrays: for a test that is linked with --wrap=calloc.
 */

#ifndef TEST_NOCALLOC_H
#define TEST_NOCALLOC_H

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>

static bool no_memory;

extern void *__real_calloc (size_t, size_t);
extern void *__wrap_calloc (size_t, size_t);

void *
__wrap_calloc (size_t n, size_t size)
{
  if (no_memory) {
    errno = ENOMEM;
    return NULL;
  }
  return __real_calloc (n, size);
}

#endif /* TEST_NOCALLOC_H */
