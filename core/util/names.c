/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Which of many items has this name?
 *
 * An image may have 65,536 snapshots and as many bitmaps, with any names, which need not
 * be unique.  The numbers of the items are sorted by name, and those with the same name
 * by number, so that a binary search finds a name, and always the first item that has
 * it.
 *
 * Locks: none; an index does not change.
 */

#include <config.h>

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "util/memory.h"
#include "util/names.h"

struct names {
  const char *(*name) (const void *opaque, size_t i);
  const void *opaque;
  size_t n;
  uint32_t order[];             /* numbers of items, sorted by name */
};

static int
compare (const void *a, const void *b, void *opaque)
{
  const struct names *x = opaque;
  const uint32_t i = *(const uint32_t *) a, j = *(const uint32_t *) b;
  const int r = strcmp (x->name (x->opaque, i), x->name (x->opaque, j));

  return r ? r : (i > j) - (i < j);
}

struct names *
names_new (size_t n, const char *(*name) (const void *opaque, size_t i),
           const void *opaque)
{
  struct names *x = memory_get (sizeof *x + n * sizeof x->order[0]);

  if (x == NULL)
    return NULL;
  x->name = name;
  x->opaque = opaque;
  x->n = n;
  for (size_t i = 0; i < n; i++)
    x->order[i] = i;
  qsort_r (x->order, n, sizeof x->order[0], compare, x);
  return x;
}

void
names_free (struct names *x)
{
  free (x);
}

size_t
names_find (const struct names *x, const char *name)
{
  size_t low = 0, high = x->n;

  while (low < high) {          /* finds the first one that is not before NAME */
    const size_t middle = low + (high - low) / 2;

    if (strcmp (x->name (x->opaque, x->order[middle]), name) < 0)
      low = middle + 1;
    else
      high = middle;
  }
  return low < x->n && strcmp (x->name (x->opaque, x->order[low]), name) == 0
    ? x->order[low] : SIZE_MAX;
}
