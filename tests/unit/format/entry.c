/* SPDX-License-Identifier: BSD-3-Clause
 *
 * L2 entries are parsed correctly, and invalid entries are detected; entries that are
 * written have the intended meaning, and no other entry changes.
 */

#include <config.h>

#include <string.h>

#include "format/entry.h"
#include "lib/stubs.h"

#define CS 65536
#define OFFSET(n) ((uint64_t) (n) * CS)

static struct header header = {
  .version = 3, .cluster_bits = 16, .cluster_size = CS, .l2_entry_size = 8,
  .l2_bits = 13,
};

static uint64_t
normal (uint64_t host)
{
  return host | QCOW2_OFLAG_COPIED;
}

static uint64_t
zero_alloc (uint64_t host, bool copied)
{
  return host | QCOW2_OFLAG_ZERO | (copied ? QCOW2_OFLAG_COPIED : 0);
}

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
  expect (o, QCOW2_OFLAG_ZERO, RUN_ZERO, 0, false);
  expect (o, OFFSET (5), RUN_NORMAL, OFFSET (5), false);
  expect (o, normal (OFFSET (5)), RUN_NORMAL, OFFSET (5), true);
  expect (o, zero_alloc (OFFSET (5), true), RUN_ZERO_ALLOC, OFFSET (5), true);
  expect (o, zero_alloc (OFFSET (5), false), RUN_ZERO_ALLOC, OFFSET (5), false);
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
  expect (o, normal (OFFSET (2)), RUN_CORRUPT, normal (OFFSET (2)), false);
  CHECK (strstr (entry_fault (&header, o, OFFSET (2)), "L2 table"));
  expect (o, OFFSET (3) | QCOW2_OFLAG_ZERO, RUN_CORRUPT, OFFSET (3) | QCOW2_OFLAG_ZERO, false);
  expect (o, compressed, RUN_CORRUPT, compressed, false);
  /* It begins before the table and reaches into it. */
  expect (o, QCOW2_OFLAG_COMPRESSED | (UINT64_C (2) << 54) | (OFFSET (2) - 512),
          RUN_CORRUPT,
          QCOW2_OFLAG_COMPRESSED | (UINT64_C (2) << 54) | (OFFSET (2) - 512), false);

  header.version = 2;
  expect (o, QCOW2_OFLAG_ZERO, RUN_CORRUPT, QCOW2_OFLAG_ZERO, false);
  CHECK (strstr (entry_fault (&header, o, QCOW2_OFLAG_ZERO), "version 2"));
  expect (o, OFFSET (5), RUN_NORMAL, OFFSET (5), false);
  header.version = 3;
}

/* An external data file: COPIED makes offset 0 a place, metadata are elsewhere, and there
 * is nothing compressed. */
static void
test_external (struct overlap *o)
{
  const uint64_t compressed = QCOW2_OFLAG_COMPRESSED | OFFSET (9);
  struct be64 raw[4];
  struct run run;
  unsigned i;

  header.incompatible = QCOW2_INCOMPAT_DATA_FILE;
  expect (o, 0, RUN_UNALLOCATED, 0, false);
  expect (o, QCOW2_OFLAG_ZERO, RUN_ZERO, 0, false);
  expect (o, normal (0), RUN_NORMAL, 0, true);
  expect (o, zero_alloc (0, true), RUN_ZERO, 0, false);      /* anywhere, as for QEMU */
  expect (o, normal (OFFSET (2)), RUN_NORMAL, OFFSET (2), true);
  expect (o, OFFSET (3), RUN_NORMAL, OFFSET (3), true);
  expect (o, OFFSET (3) + 512, RUN_CORRUPT, OFFSET (3) + 512, false);
  expect (o, compressed, RUN_CORRUPT, compressed, false);
  CHECK (strstr (entry_fault (&header, o, compressed), "external data file"));
  CHECK (strstr (entry_fault (&header, o, OFFSET (5)), "not the guest offset"));
  for (i = 0; i < 4; i++)
    raw[i] = put64 (normal (OFFSET (i)));
  CHECK (entry_decode (&header, o, raw, 0, 4, &run) == 4);
  header.incompatible = 0;
}

static void
test_runs (struct overlap *o)
{
  struct be64 raw[8];
  struct run run;
  unsigned i;

  for (i = 0; i < 8; i++)
    raw[i] = put64 (normal (OFFSET (10 + i)));
  CHECK (entry_decode (&header, o, raw, 0, 8, &run) == 8);
  CHECK (entry_decode (&header, o, raw, 3, 2, &run) == 2);
  CHECK (run.host == OFFSET (13));

  raw[4] = put64 (OFFSET (14));         /* no longer COPIED */
  CHECK (entry_decode (&header, o, raw, 0, 8, &run) == 4);
  CHECK (entry_decode (&header, o, raw, 4, 4, &run) == 1);

  raw[2] = put64 (normal (OFFSET (13)));
  CHECK (entry_decode (&header, o, raw, 0, 8, &run) == 2);

  memset (raw, 0, sizeof raw);
  CHECK (entry_decode (&header, o, raw, 0, 8, &run) == 8);
  for (i = 0; i < 8; i++)
    raw[i] = put64 (QCOW2_OFLAG_ZERO);
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
  CHECK (entry_l1_fault (&header, OFFSET (10), normal (OFFSET (9))) == NULL);
  CHECK (strstr (entry_l1_fault (&header, OFFSET (10), OFFSET (10)), "beyond"));
  CHECK (strstr (entry_l1_fault (&header, OFFSET (10), OFFSET (1) + 512), "aligned"));
}

static void
test_encode (void)
{
  struct be64 raw[4] = { put64 (7), put64 (OFFSET (5)), put64 (0), put64 (7) };

  entry_encode (&header, raw, 1, 2, RUN_ZERO_ALLOC, 0);
  CHECK (get64 (raw[1]) == zero_alloc (OFFSET (5), false));
  CHECK (get64 (raw[2]) == QCOW2_OFLAG_ZERO);
  entry_encode (&header, raw, 1, 2, RUN_NORMAL, OFFSET (8));
  CHECK (get64 (raw[1]) == normal (OFFSET (8)));
  CHECK (get64 (raw[2]) == normal (OFFSET (9)));
  entry_encode (&header, raw, 1, 2, RUN_ZERO, 0);
  CHECK (get64 (raw[1]) == QCOW2_OFLAG_ZERO && raw[2].be == raw[1].be);
  entry_encode (&header, raw, 2, 1, RUN_UNALLOCATED, 0);
  CHECK (get64 (raw[2]) == 0);
  entry_encode (&header, raw, 2, 1, RUN_COMPRESSED, 12345);
  CHECK (get64 (raw[2]) == (QCOW2_OFLAG_COMPRESSED | 12345));
  CHECK (get64 (raw[0]) == 7 && get64 (raw[3]) == 7);
}

/* --- extended entries --- */

#define SC (CS / 32)
#define ENTRIES 6
#define UNITS (ENTRIES * 32)

static const struct header extended = {
  .version = 3, .cluster_bits = 16, .cluster_size = CS, .l2_entry_size = 16,
  .l2_bits = 12,
};

/* What unit UNIT of the table is, said in another way. */
static struct run
expected (const struct qcow2_extended_entry *table, unsigned unit)
{
  const uint64_t entry = get64 (table[unit / 32].entry);
  const uint64_t bitmap = get64 (table[unit / 32].bitmap);
  const uint64_t offset = entry & QCOW2_L2_OFFSET_MASK;
  const bool alloc = bitmap >> (unit % 32) & 1;
  const bool zero = bitmap >> (32 + unit % 32) & 1;
  struct run run = { .kind = RUN_CORRUPT, .host = entry };

  if (entry & QCOW2_OFLAG_COMPRESSED) {
    run.kind = RUN_COMPRESSED;
    run.host &= ~QCOW2_OFLAG_COMPRESSED;
    return run;
  }
  /* Clusters 2 and 3 are metadata. */
  if (offset % CS != 0 || offset == OFFSET (2) || offset == OFFSET (3) ||
      (bitmap & 0xffffffff & bitmap >> 32) != 0 ||
      (offset == 0 && (bitmap & 0xffffffff) != 0))
    return run;
  run.host = 0;
  if (offset == 0) {
    run.kind = zero ? RUN_ZERO : RUN_UNALLOCATED;
    return run;
  }
  run.kind = zero ? RUN_ZERO_ALLOC : alloc ? RUN_NORMAL : RUN_RESERVED;
  run.host = offset + unit % 32 * SC;
  run.copied = (entry & QCOW2_OFLAG_COPIED) != 0;
  return run;
}

static bool
same (const struct run *a, const struct run *b)
{
  return a->kind == b->kind && a->copied == b->copied &&
    ((!run_host_advances (a->kind) && !run_host_constant (a->kind)) ||
     a->host == b->host);
}

/* Does unit N + 1 of a run continue what unit N is? */
static bool
continues (struct run a, const struct run *b, bool same_entry)
{
  if (run_host_constant (a.kind) && !same_entry)
    return false;
  if (run_host_advances (a.kind))
    a.host += SC;
  return same (&a, b);
}

/* Bits that are often the same as their neighbours. */
static uint32_t
random_bits (struct rng *rng)
{
  const uint32_t blocks = UINT32_MAX << rng_below (rng, 32);

  switch (rng_below (rng, 6)) {
  case 0: return 0;
  case 1: return UINT32_MAX;
  case 2: return rng_next (rng);
  case 3: return UINT32_C (1) << rng_below (rng, 32);
  case 4: return ~blocks;
  default: return blocks ^ UINT32_MAX << rng_below (rng, 32);
  }
}

static struct qcow2_extended_entry
random_entry (struct rng *rng, const struct qcow2_extended_entry *before)
{
  uint32_t alloc = random_bits (rng), zero = random_bits (rng);
  uint64_t entry;

  switch (rng_below (rng, 8)) {
  case 0: case 1: entry = 0; break;
  case 2: entry = QCOW2_OFLAG_COMPRESSED | OFFSET (9) | rng_below (rng, 2000); break;
  case 3: entry = OFFSET (rng_below (rng, 6)) + rng_below (rng, 2) * 512; break;
  case 4: entry = OFFSET (100 + rng_below (rng, 100)); break;
  default:
    entry = before ? get64 (before->entry) + CS : normal (OFFSET (50));
  }
  if (rng_below (rng, 8) != 0)
    alloc &= ~zero;
  if (entry == 0 && rng_below (rng, 8) != 0)
    alloc = 0;
  return (struct qcow2_extended_entry) {
    put64 (entry), put64 ((uint64_t) zero << 32 | alloc),
  };
}

static void
random_table (struct rng *rng, struct qcow2_extended_entry *table)
{
  for (unsigned i = 0; i < ENTRIES; i++)
    table[i] = random_entry (rng, i ? &table[i - 1] : NULL);
}

/* Every run that can be asked for. */
static void
check_runs (struct overlap *o, struct rng *rng,
            const struct qcow2_extended_entry *table)
{
  unsigned unit, max, n, i;

  for (unit = 0; unit < UNITS; unit++) {
    const struct run first = expected (table, unit);
    struct run run, last = first, next;

    memset (&run, 0xff, sizeof run);
    max = 1 + rng_below (rng, UNITS - unit);
    n = entry_decode (&extended, o, table, unit, max, &run);
    CHECK (n >= 1 && n <= max && run.layer == 0 && same (&run, &first));
    for (i = 1; i <= n && i < max; i++) {
      next = expected (table, unit + i);
      CHECK (continues (last, &next, (unit + i) % 32 != 0) == (i < n));
      last = next;
    }
    if (run.kind == RUN_CORRUPT)
      CHECK (strcmp (entry_fault (&extended, o, run.host), "unknown fault") != 0);
  }
}

/* A change, and what has become of all units. */
static void
check_encode (struct rng *rng, struct qcow2_extended_entry *table)
{
  static const enum run_kind kinds[] = {
    RUN_NORMAL, RUN_NORMAL, RUN_ZERO_ALLOC, RUN_ZERO, RUN_UNALLOCATED,
    RUN_COMPRESSED,
  };
  const enum run_kind kind = kinds[rng_below (rng, 6)];
  unsigned unit = rng_below (rng, UNITS), n = 1 + rng_below (rng, UNITS - unit), i;
  /* Where the host cluster of the first entry will be. */
  const uint64_t host = OFFSET (300);
  struct qcow2_extended_entry old[ENTRIES];

  if (kind != RUN_NORMAL && kind != RUN_ZERO_ALLOC) {
    unit = unit / 32 * 32;
    n = (n + 31) / 32 * 32;
  }
  for (i = unit / 32; i <= (unit + n - 1) / 32; i++) {
    const struct run was = expected (table, i * 32);

    /* Nobody may ask for that. */
    if (was.kind == RUN_CORRUPT ||
        (was.kind == RUN_COMPRESSED &&
         (kind == RUN_ZERO_ALLOC || unit > i * 32 || unit + n < (i + 1) * 32)))
      return;
  }
  memcpy (old, table, sizeof old);
  entry_encode (&extended, table, unit, n, kind,
                kind == RUN_NORMAL ? host + unit % 32 * SC : OFFSET (9));

  for (i = 0; i < UNITS; i++) {
    const bool named = i >= unit && i < unit + n;
    const bool moved = kind == RUN_NORMAL && i / 32 >= unit / 32 &&
      i / 32 <= (unit + n - 1) / 32;
    struct run want = expected (old, i), is = expected (table, i);

    if (named)
      want.kind = kind != RUN_ZERO_ALLOC || run_host_advances (want.kind)
        ? kind : RUN_ZERO;
    if (moved) {
      want.host = host + i * SC - unit / 32 * CS;
      want.copied = true;
      if (!named && want.kind == RUN_UNALLOCATED)
        want.kind = RUN_RESERVED;
      if (!named && want.kind == RUN_ZERO)
        want.kind = RUN_ZERO_ALLOC;
    }
    else if (named && kind != RUN_ZERO_ALLOC) {
      want.host = OFFSET (9);
      want.copied = false;
    }
    CHECK (same (&is, &want));
  }
}

static void
test_extended (struct overlap *o)
{
  struct qcow2_extended_entry table[ENTRIES] = { { .entry = put64 (0) } };
  struct run run;
  struct rng rng;
  unsigned i;

  rng_init (&rng, seed_from_env (), 0);
  CHECK (entry_unit_bits (&extended) == 11 && entry_unit_bits (&header) == 16);

  /* All of a fresh table is one run, and so is one that was written in order. */
  CHECK (entry_decode (&extended, o, table, 5, UNITS - 5, &run) == UNITS - 5);
  CHECK (run.kind == RUN_UNALLOCATED);
  entry_encode (&extended, table, 0, UNITS, RUN_NORMAL, OFFSET (70));
  CHECK (entry_decode (&extended, o, table, 5, UNITS - 5, &run) == UNITS - 5);
  CHECK (run.kind == RUN_NORMAL && run.host == OFFSET (70) + 5 * SC && run.copied);

  /* The zero flag means nothing here; the bitmap of a compressed cluster neither. */
  table[0].entry = put64 (normal (OFFSET (70)) | QCOW2_OFLAG_ZERO);
  CHECK (entry_decode (&extended, o, table, 0, 1, &run) == 1);
  CHECK (run.kind == RUN_NORMAL && run.host == OFFSET (70));

  CHECK (strstr (entry_fault (&extended, o, OFFSET (70)), "both"));
  CHECK (strstr (entry_fault (&extended, o, 0), "no host cluster"));
  CHECK (strstr (entry_fault (&extended, o, OFFSET (2)), "L2 table"));

  for (i = 0; i < 20000; i++) {
    random_table (&rng, table);
    check_runs (o, &rng, table);
    check_encode (&rng, table);
  }
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
  test_external (o);
  test_runs (o);
  test_l1 ();
  test_encode ();
  test_extended (o);
  overlap_free (o);
  return 0;
}
