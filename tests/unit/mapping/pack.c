/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Whatever runs a slice is packed from, every unit unpacks to its old value; runs are as
 * long as possible; and slices of typical images become small.
 */

#include <config.h>

#include <inttypes.h>
#include <string.h>

#include "mapping/pack.h"
#include "lib/stubs.h"

struct unit {
  uint64_t host;
  uint16_t layer;
  uint8_t kind;
  bool copied;
};

static uint64_t
step_of (enum run_kind kind, struct pack_shape shape)
{
  return run_host_advances (kind) ? UINT64_C (1) << shape.unit_bits : 0;
}

static bool
continues (const struct unit *a, const struct unit *b, uint64_t distance,
           struct pack_shape shape)
{
  return a->kind == b->kind && a->copied == b->copied && a->layer == b->layer &&
         a->host + distance * step_of (a->kind, shape) == b->host;
}

/* Packs the units; calls pack_add for PIECE units at most. */
static struct pack *
pack_units (const struct unit *u, struct pack_shape shape, unsigned piece)
{
  struct pack_builder b;
  struct pack *p;
  unsigned i, n;

  pack_begin (&b, shape);
  for (i = 0; i < shape.units; i += n) {
    for (n = 1; n < piece && i + n < shape.units; n++)
      if (!continues (&u[i], &u[i + n], n, shape))
        break;
    CHECK (pack_add (&b, n, u[i].kind, u[i].copied, u[i].layer, u[i].host) == 0);
  }
  p = pack_build (&b);
  CHECK (p != NULL);
  pack_end (&b);
  return p;
}

static void
check_at (const struct pack *p, const struct unit *u, struct pack_shape shape,
          unsigned unit, unsigned max)
{
  struct run run;
  unsigned n = pack_find (p, shape, unit, max, &run);
  const struct unit found = {
    .host = run.host, .layer = run.layer, .kind = run.kind, .copied = run.copied
  };

  CHECK (n >= 1 && n <= max);
  for (unsigned i = 0; i < n; i++)
    CHECK (continues (&found, &u[unit + i], i, shape));
  /* Only very long runs may come in pieces. */
  if (n < max && n < 4096)
    CHECK (!continues (&found, &u[unit + n], n, shape));
}

static void
check_all (const struct pack *p, const struct unit *u, struct pack_shape shape,
           struct rng *rng)
{
  for (unsigned i = 0; i < shape.units; i++) {
    check_at (p, u, shape, i, 1);
    check_at (p, u, shape, i, 1 + rng_below (rng, shape.units - i));
  }
  for (unsigned i = 0; i < shape.units;) {
    struct run run;

    i += pack_find (p, shape, i, shape.units - i, &run);
  }
  check_at (p, u, shape, 0, shape.units);
}

/* Packs, checks, and returns the bytes it took. */
static size_t
check_units (const struct unit *u, struct pack_shape shape, struct rng *rng,
             const char *what)
{
  struct pack *p = pack_units (u, shape, 1 + rng_below (rng, shape.units));
  const size_t size = pack_size (p);

  check_all (p, u, shape, rng);
  if (what)
    printf ("%-44s %5u units: %6zu bytes, %5.2f per unit (%s)\n", what,
            shape.units, size, (double) size / shape.units, pack_form (p));
  free (p);
  return size;
}

/* --- any runs at all --- */

static const enum run_kind all_kinds[] = {
  RUN_UNALLOCATED, RUN_ZERO, RUN_ZERO_ALLOC, RUN_NORMAL, RUN_COMPRESSED,
  RUN_RESERVED, RUN_CORRUPT,
};

static void
random_units (struct unit *u, struct pack_shape shape, struct rng *rng)
{
  /* What this slice is like. */
  const unsigned kinds = 1 + rng_below (rng, 7);
  const unsigned layers = rng_below (rng, 4) ? 1 : 1 + rng_below (rng, 200);
  const unsigned longest = 1 + rng_below (rng, rng_below (rng, 2) ? 4 : 100);
  const unsigned span = 1 + rng_below (rng, 40);
  const unsigned align = rng_below (rng, 3) ? shape.unit_bits
                                            : rng_below (rng, 24);
  const uint64_t base = rng_next (rng) >> (8 + rng_below (rng, 40));
  unsigned i, n;
  struct unit r;

  for (i = 0; i < shape.units; i += n) {
    memset (&r, 0, sizeof r);
    r.kind = all_kinds[rng_below (rng, kinds)];
    r.copied = rng_below (rng, 2);
    r.layer = rng_below (rng, layers) * 300;
    if (run_host_advances (r.kind))
      r.host = (base & ~((UINT64_C (1) << align) - 1))
               + (rng_below (rng, UINT64_C (1) << span) << align);
    else if (r.kind == RUN_COMPRESSED)
      r.host = (base >> 8) + rng_below (rng, UINT64_C (1) << span)
               + (rng_below (rng, 1 + (span & 0xff)) << 54);
    else if (r.kind == RUN_CORRUPT)
      r.host = rng_below (rng, 2) ? rng_next (rng) : UINT64_MAX;

    n = 1 + rng_below (rng, longest);
    for (unsigned j = 0; j < n && i + j < shape.units; j++) {
      u[i + j] = r;
      r.host += step_of (r.kind, shape);
    }
  }
}

static void
test_random (struct rng *rng)
{
  unsigned forms[3] = { 0 };

  for (unsigned round = 0; round < 3000; round++) {
    const struct pack_shape shape = {
      .unit_bits = 9 + rng_below (rng, 13),
      .units = 1u << rng_below (rng, 9),
    };
    struct unit *u = calloc (shape.units, sizeof *u);
    struct pack *p;

    CHECK (u);
    random_units (u, shape, rng);
    p = pack_units (u, shape, 1 + rng_below (rng, shape.units));
    check_all (p, u, shape, rng);
    forms[pack_form (p)[0] == 'r' ? 0 : pack_form (p)[0] == 'l' ? 1 : 2]++;
    free (p);
    free (u);
  }
  printf ("random slices: %u runs, %u list, %u array\n",
          forms[0], forms[1], forms[2]);
  /* All forms were tried. */
  CHECK (forms[0] > 50 && forms[1] > 50 && forms[2] > 50);
}

/* --- values that an image would have to be made for --- */

static void
test_extremes (struct rng *rng)
{
  const struct pack_shape shape = { .unit_bits = 16, .units = 512 };
  struct unit u[512];
  unsigned i;

  /* All 64 bits, both ends of the range. */
  memset (u, 0, sizeof u);
  for (i = 0; i < 512; i++) {
    u[i].kind = i % 3 ? RUN_CORRUPT : RUN_NORMAL;
    u[i].host = u[i].kind == RUN_NORMAL ? (uint64_t) i << 47
                : i % 2 ? UINT64_MAX : i % 5;
  }
  check_units (u, shape, rng, NULL);

  /* Neighbours with the same host cluster are no run ... */
  for (i = 0; i < 512; i++)
    u[i] = (struct unit) { .kind = RUN_NORMAL, .host = 0x70000 };
  check_units (u, shape, rng, NULL);
  /* ... nor are those that lie further apart than a cluster. */
  for (i = 0; i < 512; i++)
    u[i].host = (uint64_t) i << 20;
  check_units (u, shape, rng, NULL);
  /* One tag ends where the other begins. */
  for (i = 0; i < 512; i++)
    u[i] = (struct unit) {
      .kind = RUN_NORMAL, .copied = i >= 256, .host = (uint64_t) i << 16
    };
  check_units (u, shape, rng, NULL);
  for (i = 0; i < 512; i++)
    u[i] = (struct unit) {
      .kind = RUN_NORMAL, .copied = i / 2 % 2, .host = (i % 256) << 16
    };
  check_units (u, shape, rng, NULL);

  /* Host offsets that wrap round. */
  for (i = 0; i < 512; i++)
    u[i] = (struct unit) {
      .kind = RUN_NORMAL, .host = UINT64_MAX - 0x3ffff + ((uint64_t) (i % 8) << 16)
    };
  check_units (u, shape, rng, NULL);

  /* More layers than tags. */
  for (i = 0; i < 512; i++)
    u[i] = (struct unit) {
      .kind = RUN_NORMAL, .layer = i, .host = rng_below (rng, 1000) << 16
    };
  check_units (u, shape, rng, NULL);

  /* A host range for which the codes are exactly as wide as they may be, and
   * just too wide. */
  for (unsigned bits = 54; bits < 64; bits++) {
    for (i = 0; i < 512; i++)
      u[i] = (struct unit) {
        .kind = RUN_CORRUPT, .host = rng_next (rng) >> (64 - bits)
      };
    u[7].host = (UINT64_C (1) << bits) - 1;
    u[8].host = 0;
    check_units (u, shape, rng, NULL);
  }
}

static void
test_large (struct rng *rng)
{
  const struct pack_shape shape = { .unit_bits = 21, .units = 1 << 18 };
  struct unit *u = calloc (shape.units, sizeof *u);
  struct pack *p;

  CHECK (u);
  for (unsigned i = 0; i < shape.units; i++)
    u[i] = (struct unit) {
      .kind = RUN_NORMAL,
      .host = i < 1000 ? rng_below (rng, 1 << 20) << 21
                       : (uint64_t) i << 21,
    };
  p = pack_units (u, shape, shape.units);
  for (unsigned i = 0; i < 2000; i++)
    check_at (p, u, shape, i, shape.units - i);
  for (unsigned i = 0; i < 100; i++) {
    const unsigned unit = rng_below (rng, shape.units);

    check_at (p, u, shape, unit, shape.units - unit);
  }
  free (p);
  free (u);
}

/* --- how small? --- */

static void
test_density (struct rng *rng)
{
  const struct pack_shape shape = { .unit_bits = 16, .units = 512 };
  const uint64_t clusters = UINT64_C (1) << 20;         /* 64 GiB of 64K */
  struct unit u[512];
  unsigned i;
  uint64_t at;

  memset (u, 0, sizeof u);
  CHECK (check_units (u, shape, rng, "nothing allocated") <= 24);

  for (i = 0; i < 512; i++)
    u[i] = (struct unit) {
      .kind = RUN_NORMAL, .copied = true, .host = (i + 77) << 16
    };
  CHECK (check_units (u, shape, rng, "written in order") <= 24);

  for (i = 0; i < 512; i++)
    u[i].host = rng_below (rng, clusters) << 16;
  CHECK (check_units (u, shape, rng, "written at random, 64 GiB") <= 512 * 26 / 10);

  for (i = 0; i < 512; i++)
    u[i].host = rng_below (rng, clusters / 16) << 16;
  CHECK (check_units (u, shape, rng, "written at random, 4 GiB") <= 512 * 22 / 10);

  for (i = 0; i < 512; i++)
    if (rng_below (rng, 2))
      u[i] = (struct unit) { .kind = RUN_UNALLOCATED };
  CHECK (check_units (u, shape, rng, "half of that, the rest holes")
         <= 512 * 22 / 10);

  for (i = 0; i < 512; i++)
    u[i] = (struct unit) {
      .kind = RUN_NORMAL, .copied = true,
      .host = (i / 16 * 1000 % 997 * 16 + i % 16) << 16
    };
  CHECK (check_units (u, shape, rng, "pieces of 1 MiB") <= 160);

  /* Descriptors as for 64K clusters: sectors - 1 from bit 54 up. */
  for (i = 0, at = 0x123456789; i < 512; i++) {
    const uint64_t len = 20000 + rng_below (rng, 30000);

    u[i] = (struct unit) {
      .kind = RUN_COMPRESSED, .host = at | (at % 512 + len) / 512 << 54
    };
    at += len;
  }
  CHECK (check_units (u, shape, rng, "compressed, in order") <= 512 * 45 / 10);

  for (i = 0; i < 512; i++)
    u[i].host = rng_below (rng, UINT64_C (1) << 36) | rng_below (rng, 128) << 54;
  CHECK (check_units (u, shape, rng, "compressed, at random, 64 GiB")
         <= 512 * 56 / 10);

  for (i = 0; i < 512; i++)
    u[i] = (struct unit) {
      .kind = RUN_NORMAL, .layer = rng_below (rng, 10),
      .host = rng_below (rng, clusters / 16) << 16
    };
  CHECK (check_units (u, shape, rng, "at random from 10 layers of 4 GiB")
         <= 512 * 32 / 10);
}

int
main (void)
{
  struct rng rng;

  rng_init (&rng, seed_from_env (), 0);
  test_density (&rng);
  test_extremes (&rng);
  test_random (&rng);
  test_large (&rng);
  return 0;
}
