/* SPDX-License-Identifier: BSD-3-Clause
 *
 * How can a large table use no more memory than its used part needs?
 *
 * Tables of the format are as large as a cluster, which may be 2M, and nearly empty in
 * most images.  The host provides memory for a mapping page by page, when the page is
 * first written.  Memory that is unmapped goes back to the host at once; memory that is
 * freed may not.  So everything that is not small gets a mapping of its own.  (Huge
 * pages would undo this.)
 *
 * No locks, no state.
 */

#include <config.h>

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "util/bytes.h"
#include "util/cleanup.h"
#include "util/sparse.h"

/* Smaller blocks come from malloc, because mappings are expensive. */
#define MIN_MAPPING (size_t) (64u << 10)
#define PAGE (size_t) 4096u     /* unit of the search for zeros; any size would do */

void *
sparse_new (size_t bytes)
{
  void *p;

  if (bytes < MIN_MAPPING)
    return calloc (1, bytes);
  p = mmap (NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,
            -1, 0);
  if (p == MAP_FAILED) {
    errno = ENOMEM;
    return NULL;
  }
  madvise (p, bytes, MADV_NOHUGEPAGE);  /* fails if there are no huge pages */
  return p;
}

void
sparse_free (void *p, size_t bytes)
{
  KEEP_ERRNO_FOR_BLOCK;

  if (bytes < MIN_MAPPING)
    free (p);
  else if (p)
    munmap (p, bytes);
}

void *
sparse_grow (void *p, size_t old, size_t bytes)
{
  void *new = sparse_new (bytes);

  if (new == NULL)
    return NULL;
  if (old > 0)
    sparse_copy (new, p, old);
  sparse_free (p, old);
  return new;
}

void
sparse_copy (void *to, const void *from, size_t bytes)
{
  size_t at, n;

  for (at = 0; at < bytes; at += n) {
    n = min64 (PAGE, bytes - at);
    if (!bytes_are_zero ((const char *) from + at, n))
      memcpy ((char *) to + at, (const char *) from + at, n);
  }
}
