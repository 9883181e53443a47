/* SPDX-License-Identifier: BSD-3-Clause
 *
 * newimage.c: the size of a fully allocated image is what "qemu-img measure" says, for
 * all cluster sizes, refcount widths and sizes of disks, also where the format has no
 * refcount table for it; and a preallocated image has it.
 *
 * Environment: SEED repeats a run; ITERATIONS: how many comparisons (default 120).
 */

#include <config.h>

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "util/bytes.h"
#include "change/newimage.h"
#include "lib/images.h"
#include "lib/trials.h"

/* What qemu-img says; 0: that it is not possible. */
static uint64_t
measure (const struct newimage_options *o)
{
  char line[200], *command, *at;
  uint64_t full = 0;
  FILE *fp;

  CHECK (asprintf (&command, "qemu-img measure --output=json --size %" PRIu64 " -O qcow2 "
                   "-o compat=%s,cluster_size=%" PRIu64 ",refcount_bits=%u%s 2>/dev/null",
                   o->size, o->version == 2 ? "0.10" : "1.1", o->cluster_size,
                   o->refcount_bits, o->extended_l2 ? ",extended_l2=on" : "") > 0);
  fp = popen (command, "r");
  CHECK (fp != NULL);
  while (fgets (line, sizeof line, fp))
    if ((at = strstr (line, "\"fully-allocated\": ")) != NULL)
      full = strtoull (at + strlen ("\"fully-allocated\": "), NULL, 10);
  pclose (fp);
  free (command);
  return full;
}

static struct newimage_options
random_options (struct rng *rng)
{
  struct newimage_options o = {
    .version = 2 + (rng_below (rng, 4) != 0), .refcount_bits = 16,
    .cluster_size = UINT64_C (512) << rng_below (rng, 13),
  };
  /* An L1 table of up to 4M entries. */
  const unsigned bits = __builtin_ctzll (o.cluster_size);

  if (o.version == 3) {
    o.refcount_bits = 1u << rng_below (rng, 7);
    o.extended_l2 = o.cluster_size >= 16384 && rng_below (rng, 2);
  }
  o.size = rng_next (rng) >> (64 - rng_below (rng, min64 (2 * bits - 4 + 22, 60)) - 1);
  o.size = round_up (o.size, 512);
  return o;
}

int
main (void)
{
  const char *const iterations = getenv ("ITERATIONS");
  const unsigned n = iterations ? atoi (iterations) : 120;
  const struct newimage_options known = {
    .version = 3, .refcount_bits = 16, .cluster_size = 65536,
    .size = UINT64_C (10) << 30,
  };
  struct newimage_options o;
  unsigned compared = 0;
  struct newimage plan;
  uint64_t full, qemu;
  struct rng rng;

  rng_init (&rng, seed_from_env (), 0);
  if (measure (&known) == 0) {
    printf ("skipped: qemu-img measure does not work\n");
    return 77;
  }
  quiet_errors = true;
  for (unsigned i = 0; i < n; i++) {
    o = random_options (&rng);
    full = newimage_full_size (&o);
    qemu = measure (&o);
    if (qemu == 0)
      continue;
    o.preallocation = PREALLOCATION_METADATA;
    if (newimage_plan (&o, &plan) == 0)
      CHECK (plan.file_size == full);
    if (full != qemu)
      FAIL ("%" PRIu64 " bytes, clusters of %" PRIu64 ", %u bits%s: %" PRIu64
            ", but qemu-img says %" PRIu64, o.size, o.cluster_size, o.refcount_bits,
            o.extended_l2 ? ", extended" : "", full, qemu);
    compared++;
  }
  printf ("%u of %u compared\n", compared, n);
  CHECK (compared > n / 3);
  return 0;
}
