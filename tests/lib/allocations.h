/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Allocations that can fail: those of the whole process, also in libraries.
 *
 * The functions below replace those of the C library, or of a sanitizer, so a program can
 * include this in only one source file.  lib/shortage decides which allocations fail.
 */

#ifndef TEST_ALLOCATIONS_H
#define TEST_ALLOCATIONS_H

#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "lib/shortage.h"

#if defined __SANITIZE_ADDRESS__ || __has_feature (address_sanitizer) || TRACES_THREADS
#define ALLOCATIONS_REAL(name) __interceptor_##name
#else
#define ALLOCATIONS_REAL(name) __libc_##name
#endif

/* Libraries find them, too. */
#define ALLOCATIONS_FUNCTION __attribute__ ((visibility ("default"))) NO_TRACING

/* REAL (a call of one of the functions below), or NULL. */
#define ALLOCATIONS_OR_NULL(real) \
  (shortage_hits (__builtin_return_address (0)) ? NULL : (real))

extern void *ALLOCATIONS_REAL (malloc) (size_t);
extern void *ALLOCATIONS_REAL (calloc) (size_t, size_t);
extern void *ALLOCATIONS_REAL (realloc) (void *, size_t);
extern void *ALLOCATIONS_REAL (memalign) (size_t, size_t);

ALLOCATIONS_FUNCTION void *
malloc (size_t size)
{
  return ALLOCATIONS_OR_NULL (ALLOCATIONS_REAL (malloc) (size));
}

ALLOCATIONS_FUNCTION void *
calloc (size_t n, size_t size)
{
  return ALLOCATIONS_OR_NULL (ALLOCATIONS_REAL (calloc) (n, size));
}

ALLOCATIONS_FUNCTION void *
realloc (void *p, size_t size)
{
  return ALLOCATIONS_OR_NULL (ALLOCATIONS_REAL (realloc) (p, size));
}

ALLOCATIONS_FUNCTION void *
reallocarray (void *p, size_t n, size_t size)
{
  size_t total;

  if (__builtin_mul_overflow (n, size, &total)) {
    errno = ENOMEM;
    return NULL;
  }
  return ALLOCATIONS_OR_NULL (ALLOCATIONS_REAL (realloc) (p, total));
}

ALLOCATIONS_FUNCTION void *
aligned_alloc (size_t alignment, size_t size)
{
  return ALLOCATIONS_OR_NULL (ALLOCATIONS_REAL (memalign) (alignment, size));
}

ALLOCATIONS_FUNCTION int
posix_memalign (void **p, size_t alignment, size_t size)
{
  void *q = ALLOCATIONS_OR_NULL (ALLOCATIONS_REAL (memalign) (alignment, size));

  if (q == NULL)
    return ENOMEM;
  *p = q;
  return 0;
}

/* (Those of a sanitizer do not call malloc.)  P: LEN + 1 bytes, or NULL. */
static NO_TRACING char *
allocations_text (char *p, const char *s, size_t len)
{
  if (p) {
    memcpy (p, s, len);
    p[len] = '\0';
  }
  return p;
}

ALLOCATIONS_FUNCTION char *
strndup (const char *s, size_t most)
{
  const size_t len = strnlen (s, most);

  return allocations_text (ALLOCATIONS_OR_NULL (ALLOCATIONS_REAL (malloc) (len + 1)), s,
                           len);
}

ALLOCATIONS_FUNCTION char *
strdup (const char *s)
{
  const size_t len = strlen (s);

  return allocations_text (ALLOCATIONS_OR_NULL (ALLOCATIONS_REAL (malloc) (len + 1)), s,
                           len);
}

/* Those of util/sparse.  (Elsewhere this is another name of mmap64.) */
#ifdef __LP64__
ALLOCATIONS_FUNCTION void *
mmap (void *at, size_t size, int protection, int flags, int fd, off_t offset)
{
  return shortage_hits (__builtin_return_address (0)) ? MAP_FAILED
    : mmap64 (at, size, protection, flags, fd, offset);
}
#endif

#endif /* TEST_ALLOCATIONS_H */
