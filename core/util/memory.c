/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Memory, or a message that there is none: see memory.h.
 *
 * Locks: none.
 */

#include <config.h>

#include "util/memory.h"
#include "util/report.h"

static void *
checked (void *p, size_t n, size_t size)
{
  if (p == NULL)
    report_error ("cannot allocate %zu times %zu bytes: %m", n, size);
  return p;
}

void *
memory_new (size_t n, size_t size)
{
  return checked (calloc (n, size), n, size);
}

void *
memory_get (size_t bytes)
{
  return checked (malloc (bytes), 1, bytes);
}

void *
memory_resize (void *array, size_t n, size_t size)
{
  return checked (reallocarray (array, n, size), n, size);
}
