/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Large tables use memory only for the parts in use, keep these when they grow, and give
 * the memory back.  One for which there is no room fails with ENOMEM.
 */

#include <config.h>

#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "util/sparse.h"
#include "lib/stubs.h"

#define LARGE (size_t) (64u << 20)

/* KiB of anonymous memory, or 0 if the host does not tell. */
static long
held (void)
{
  FILE *fp = fopen ("/proc/self/status", "r");
  char line[200];
  long kib = 0;

  while (fp && fgets (line, sizeof line, fp))
    if (sscanf (line, "RssAnon: %ld", &kib) == 1)
      break;
  if (fp)
    fclose (fp);
  return kib;
}

static void
test_size (size_t size)
{
  char *from = calloc (1, size), *to = sparse_new (size), *grown;
  const size_t at = size / 2 + 1;

  CHECK (from && to);
  from[0] = from[at] = from[size - 1] = 'x';
  sparse_copy (to, from, size);
  CHECK (memcmp (from, to, size) == 0);
  grown = sparse_grow (to, size, 3 * size);
  CHECK (grown && memcmp (from, grown, size) == 0);
  for (size_t i = size; i < 3 * size; i++)
    CHECK (grown[i] == 0);
  sparse_free (grown, 3 * size);
  free (from);
}

static void
test_memory (void)
{
  const long before = held ();
  char *p = sparse_new (LARGE), piece[65536] = { 0 };

  CHECK (p);
  for (size_t at = 0; at < LARGE; at += sizeof piece)
    sparse_copy (p + at, piece, sizeof piece);
  p[LARGE / 2] = 'x';
  CHECK (p[LARGE - 1] == 0);
  CHECK (held () < before + 4096);
  memset (p, 'x', LARGE);
  sparse_free (p, LARGE);
  CHECK (held () < before + 4096);
}

static void
test_no_room (void)
{
  const size_t most = SIZE_MAX - 0xffff;
  char *p = sparse_new (LARGE);

  CHECK (p);
  errno = 0;
  CHECK (sparse_new (most) == NULL && errno == ENOMEM);
  p[LARGE - 1] = 'x';
  errno = 0;
  CHECK (sparse_grow (p, LARGE, most) == NULL && errno == ENOMEM);
  CHECK (p[LARGE - 1] == 'x');
  sparse_free (p, LARGE);
}

int
main (void)
{
  sparse_free (NULL, 0);
  sparse_free (NULL, LARGE);
  for (size_t size = 2; size <= 1 << 20; size = size * 2 + 1)
    test_size (size);
  test_memory ();
  test_no_room ();
  return 0;
}
