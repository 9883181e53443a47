/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What L2 entries mean, and that entries which must not be followed are seen.
 */

#include <config.h>

#include <string.h>

#include "entry.h"
#include "stubs.h"

#define CS 65536
#define OFFSET(n) ((uint64_t) (n) * CS)

static struct header header = {
  .version = 3, .cluster_bits = 16, .cluster_size = CS, .l2_entry_size = 8,
  .l2_bits = 13,
};

static void
expect (struct overlap *o, uint64_t entry, enum run_kind kind, uint64_t host,
        bool copied)
{
  const struct be64 raw = put64 (entry);
  struct run run;

  memset (&run, 0xff, sizeof run);
  CHECK (entry_decode (&header, o, &raw, 0, 1, &run) == 1);
  if (run.kind != kind)
    fprintf (stderr, "entry 0x%llx: kind %d, expected %d\n",
             (unsigned long long) entry, run.kind, kind);
  CHECK (run.kind == kind);
  CHECK (run.layer == 0);
  if (kind != RUN_ZERO && kind != RUN_UNALLOCATED)
    CHECK (run.host == host);
  CHECK (run.copied == copied);
}

static void
test_kinds (struct overlap *o)
{
  const uint64_t desc = QCOW2_OFLAG_COMPRESSED | OFFSET (9) | 17;

  expect (o, 0, RUN_UNALLOCATED, 0, false);
  expect (o, QCOW2_OFLAG_COPIED, RUN_UNALLOCATED, 0, false);
  expect (o, ENTRY_ZERO, RUN_ZERO, 0, false);
  expect (o, OFFSET (5), RUN_NORMAL, OFFSET (5), false);
  expect (o, entry_normal (OFFSET (5)), RUN_NORMAL, OFFSET (5), true);
  expect (o, entry_zero_alloc (OFFSET (5), true), RUN_ZERO_ALLOC, OFFSET (5), true);
  expect (o, entry_zero_alloc (OFFSET (5), false), RUN_ZERO_ALLOC, OFFSET (5), false);
  expect (o, desc, RUN_COMPRESSED, desc & ~QCOW2_OFLAG_COMPRESSED, false);

  /* Reserved bits are ignored. */
  expect (o, OFFSET (5) | (UINT64_C (1) << 61) | 0x1e, RUN_NORMAL, OFFSET (5), false);
}

static void
test_faults (struct overlap *o)
{
  const uint64_t unaligned = OFFSET (5) + 512;
  const uint64_t compressed = QCOW2_OFLAG_COMPRESSED | (OFFSET (2) + 100);

  expect (o, unaligned, RUN_CORRUPT, unaligned, false);
  CHECK (strstr (entry_fault (&header, o, unaligned), "aligned"));

  /* Clusters 2 and 3 are an L2 table and a refcount block. */
  expect (o, entry_normal (OFFSET (2)), RUN_CORRUPT, entry_normal (OFFSET (2)), false);
  CHECK (strstr (entry_fault (&header, o, OFFSET (2)), "L2 table"));
  expect (o, OFFSET (3) | ENTRY_ZERO, RUN_CORRUPT, OFFSET (3) | ENTRY_ZERO, false);
  expect (o, compressed, RUN_CORRUPT, compressed, false);
  /* It begins before the table and reaches into it. */
  expect (o, QCOW2_OFLAG_COMPRESSED | (UINT64_C (2) << 54) | (OFFSET (2) - 512),
          RUN_CORRUPT,
          QCOW2_OFLAG_COMPRESSED | (UINT64_C (2) << 54) | (OFFSET (2) - 512), false);

  header.version = 2;
  expect (o, ENTRY_ZERO, RUN_CORRUPT, ENTRY_ZERO, false);
  CHECK (strstr (entry_fault (&header, o, ENTRY_ZERO), "version 2"));
  expect (o, OFFSET (5), RUN_NORMAL, OFFSET (5), false);
  header.version = 3;
}

static void
test_runs (struct overlap *o)
{
  struct be64 raw[8];
  struct run run;
  unsigned i;

  for (i = 0; i < 8; i++)
    raw[i] = put64 (entry_normal (OFFSET (10 + i)));
  CHECK (entry_decode (&header, o, raw, 0, 8, &run) == 8);
  CHECK (entry_decode (&header, o, raw, 3, 2, &run) == 2);
  CHECK (run.host == OFFSET (13));

  raw[4] = put64 (OFFSET (14));         /* no longer COPIED */
  CHECK (entry_decode (&header, o, raw, 0, 8, &run) == 4);
  CHECK (entry_decode (&header, o, raw, 4, 4, &run) == 1);

  raw[2] = put64 (entry_normal (OFFSET (13)));
  CHECK (entry_decode (&header, o, raw, 0, 8, &run) == 2);

  memset (raw, 0, sizeof raw);
  CHECK (entry_decode (&header, o, raw, 0, 8, &run) == 8);
  for (i = 0; i < 8; i++)
    raw[i] = put64 (ENTRY_ZERO);
  CHECK (entry_decode (&header, o, raw, 0, 8, &run) == 8);
  raw[7] = put64 (0);
  CHECK (entry_decode (&header, o, raw, 0, 8, &run) == 7);

  /* Each compressed cluster is a run of its own, even if two are equal. */
  for (i = 0; i < 8; i++)
    raw[i] = put64 (QCOW2_OFLAG_COMPRESSED | OFFSET (20));
  CHECK (entry_decode (&header, o, raw, 0, 8, &run) == 1);
}

static void
test_l1 (void)
{
  CHECK (entry_l1_fault (&header, OFFSET (10), 0) == NULL);
  CHECK (entry_l1_fault (&header, OFFSET (10), OFFSET (9)) == NULL);
  CHECK (entry_l1_fault (&header, OFFSET (10), entry_normal (OFFSET (9))) == NULL);
  CHECK (strstr (entry_l1_fault (&header, OFFSET (10), OFFSET (10)), "beyond"));
  CHECK (strstr (entry_l1_fault (&header, OFFSET (10), OFFSET (1) + 512), "aligned"));
}

int
main (void)
{
  struct overlap *o = overlap_new (16);

  CHECK (o != NULL);
  CHECK (overlap_add (o, OFFSET (2), CS, OVERLAP_L2) == 0);
  CHECK (overlap_add (o, OFFSET (3), CS, OVERLAP_REFBLOCK) == 0);
  test_kinds (o);
  test_faults (o);
  test_runs (o);
  test_l1 ();
  overlap_free (o);
  return 0;
}
