/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Memory, or a message that there is none: see memory.h.
 *
 * Locks: none.
 */

#include <config.h>

#include <errno.h>
#include <stdint.h>
#include <string.h>

#include "util/bytes.h"
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

/* malloc places large blocks 16 bytes behind the beginning of a page.  To read to there,
 * and to write from there, takes one more copy (aliasing.c and wholesectors.c in
 * storage/). */
void *
memory_pages (size_t bytes)
{
  const size_t page = 4096;

  if (bytes > SIZE_MAX - page) {
    errno = ENOMEM;
    return checked (NULL, 1, bytes);
  }
  return checked (aligned_alloc (page, round_up (bytes, page)), 1, bytes);
}

void *
memory_resize (void *array, size_t n, size_t size)
{
  return checked (reallocarray (array, n, size), n, size);
}

/* Full with 0, 1, 2, 4 ... elements. */
int
memory_append (void *array, size_t n, size_t size)
{
  void *p;

  if ((n & (n - 1)) != 0)
    return 0;
  memcpy (&p, array, sizeof p);
  p = memory_resize (p, n > 0 ? 2 * n : 1, size);
  if (p == NULL)
    return -1;
  memcpy (array, &p, sizeof p);
  return 0;
}

char *
memory_text (const char *s)
{
  return checked (strdup (s), 1, strlen (s) + 1);
}
