/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Which window comes next, when references reach beyond the one that is counted?
 *
 * The first of those that have references; a range may begin in one and end in another.
 */

#include <config.h>

#include "check/refwindow.h"
#include "lib/stubs.h"

#define BITS 16

static int
no_fault (void *opaque, enum finding_kind kind, uint64_t times, uint64_t offset,
          const char *fmt, ...)
{
  (void) opaque, (void) kind, (void) times, (void) offset, (void) fmt;
  abort ();
}

static void
begin (struct refwindow *t, uint64_t first)
{
  CHECK (refwindow_begin (t, first, (struct refwindow_judge) { .fault = no_fault }) == 0);
  CHECK (t->next == UINT64_MAX);
}

static void
refer (struct refwindow *t, uint64_t cluster, uint64_t n)
{
  CHECK (refwindow_add (t, cluster << BITS, n << BITS, ROLE_DATA, 1, "data") == 1);
}

static uint32_t
count (struct refwindow *t, uint64_t cluster)
{
  bool shared;

  return refwindow_count (t, cluster, &shared);
}

int
main (void)
{
  const uint64_t w = REFWINDOW_CLUSTERS;
  struct refwindow t = { .cluster_bits = BITS, .clusters = 4 * w };

  /* Across the end of the window. */
  begin (&t, 0);
  refer (&t, w - 1, 3);
  CHECK (t.next == w && count (&t, w - 1) == 1 && refwindow_end (&t) == w);

  /* Windows between are left out. */
  begin (&t, 0);
  refer (&t, 3 * w + 5, 2);
  CHECK (t.next == 3 * w && refwindow_end (&t) == 0);
  refer (&t, 2 * w - 1, 1);
  CHECK (t.next == w);
  refer (&t, 2 * w, 1);
  CHECK (t.next == w);

  /* What lies before the window, or ends in it, needs no other. */
  begin (&t, w);
  refer (&t, 0, 1);
  refer (&t, w - 1, 2);
  CHECK (t.next == UINT64_MAX && count (&t, w) == 1 && count (&t, w - 1) == 0);
  refer (&t, 2 * w - 1, w + 1);
  CHECK (t.next == 2 * w && count (&t, 2 * w - 1) == 1);
  refwindow_free (&t);
  CHECK (error_count () == 0);
  return 0;
}
