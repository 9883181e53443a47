/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Refcounts are compared with a model, for all widths; wrong refcounts in a file cause an
 * error, and nothing worse.  qemu-img makes the images and judges them: leaks are allowed
 * here (nothing points to the clusters that we count), corruption is not.
 */

#include <config.h>

#include <errno.h>
#include <string.h>

#include "util/bytes.h"
#include "space/refblock.h"
#include "lib/counts-model.h"

/* Without, and with, a count that is too low. */
static void
test_drop_as (unsigned order)
{
  const uint64_t n = 4096 >> order, max = refblock_max (order);
  unsigned char from[512], raw[512], want[512];
  const uint64_t bad = rng_below (&rng, n);

  for (uint64_t i = 0; i < n; i++) {
    const uint64_t count = rng_next (&rng) & max;
    const uint64_t by = rng_below (&rng, 2) ? 0 : rng_next (&rng) & max;

    refblock_set (from, order, i, count);
    refblock_set (raw, order, i, max - min64 (by, count));
    refblock_set (want, order, i, count - min64 (by, count));
  }
  CHECK (refblock_drop_as (raw, from, order, n) == n);
  CHECK (memcmp (raw, want, sizeof raw) == 0);

  memset (raw, 0xff, sizeof raw);
  refblock_set (from, order, bad, rng_next (&rng) & (max >> 1));
  refblock_set (raw, order, bad, max - refblock_get (from, order, bad) - 1);
  CHECK (refblock_drop_as (raw, from, order, n) == bad);
}

static void
test_bits (void)
{
  unsigned char raw[512];
  uint64_t values[4096];

  for (unsigned order = 0; order <= 6; order++) {
    const unsigned n = 4096 >> order;
    const uint64_t max = order == 6 ? UINT64_MAX
                                    : (UINT64_C (1) << (1 << order)) - 1;
    uint64_t i, zero, last = 0;

    memset (raw, 0, sizeof raw);
    memset (values, 0, sizeof values);
    CHECK (refblock_end (raw, order, sizeof raw) == 0);
    for (unsigned k = 0; k < n * 2; k++) {
      i = rng_below (&rng, n);
      values[i] = rng_next (&rng) & max;
      refblock_set (raw, order, i, values[i]);
    }
    for (i = 0; i < n; i++) {
      CHECK (refblock_get (raw, order, i) == values[i]);
      if (values[i])
        last = i + 1;
    }
    CHECK (refblock_end (raw, order, sizeof raw) == last);
    for (i = 0; i < n; i++) {
      for (zero = i; zero < n && values[zero] != 0; zero++)
        ;
      CHECK (refblock_find_zero (raw, order, i, n) == zero);
    }
    memset (raw, 0xff, sizeof raw);
    CHECK (refblock_find_zero (raw, order, 0, n) == n);
    refblock_set (raw, order, n - 1, 0);
    CHECK (refblock_find_zero (raw, order, 3, n) == n - 1);
  }

  for (unsigned order = 0; order <= 6; order++)
    test_drop_as (order);

  /* The layout in the file: lowest index in the lowest bits, then big-endian. */
  memset (raw, 0, sizeof raw);
  refblock_set (raw, 0, 9, 1);
  CHECK (raw[1] == 0x02);
  refblock_set (raw, 2, 4, 0xa);
  refblock_set (raw, 2, 5, 0x5);
  CHECK (raw[2] == 0x5a);
  refblock_set (raw, 4, 4, 0x1234);
  CHECK (raw[8] == 0x12 && raw[9] == 0x34);
}

static uint64_t freed_first[MAX_MODEL], freed_n[MAX_MODEL];
static size_t nfreed;

static void
freed (void *opaque, uint64_t first, uint64_t n)
{
  (void) opaque;
  freed_first[nfreed] = first;
  freed_n[nfreed++] = n;
}

static void
random_step (uint64_t base)
{
  const uint64_t max = refcount_max (refcounts);
  const uint64_t first = base + rng_below (&rng, model_end - base);
  const uint64_t n = 1 + rng_below (&rng, min64 (200, model_end - first));
  bool fits = true;
  uint64_t i, found, len, next;
  int r;

  switch (rng_below (&rng, 8)) {
  case 0: case 1: case 2:
    for (i = 0; i < n; i++)
      fits &= model[first + i] < max;
    r = refcount_inc (refcounts, first, n);
    CHECK (r == 0 ? fits : (!fits && errno == EOVERFLOW));
    for (i = 0; r == 0 && i < n; i++)
      model[first + i]++;
    break;
  case 3: case 4: case 5:
    for (i = 0; i < n; i++)
      fits &= model[first + i] > 0 &&
        overlap_find (overlap, (first + i) << bits, 1) == OVERLAP_NONE;
    if (!fits && rng_below (&rng, 2))
      break;
    for (i = 0; i < n; i++)     /* never touch metadata */
      if (overlap_find (overlap, (first + i) << bits, 1) != OVERLAP_NONE)
        return;
    nfreed = 0;
    r = refcount_dec (refcounts, first, n, freed, NULL);
    CHECK (r == 0 ? fits : (!fits && errno == EUCLEAN && nfreed == 0));
    for (i = 0; r == 0 && i < n; i++)
      model[first + i]--;
    /* The parts that became free, each as long as can be. */
    for (i = 0; i < nfreed; i++) {
      const uint64_t end = freed_first[i] + freed_n[i];

      for (uint64_t c = freed_first[i]; c < end; c++)
        CHECK (model[c] == 0);
      CHECK (freed_first[i] == first || model[freed_first[i] - 1] != 0);
      CHECK (end == first + n || model[end] != 0);
    }
    break;
  case 6:
    r = refcount_find_free (refcounts, first, model_end, 50, &found, &len,
                            &next);
    CHECK (r >= 0 && next > first && next <= model_end);
    for (i = first; i < (r ? found : next); i++)
      CHECK (model[i] != 0 ||
             overlap_find (overlap, i << bits, 1) != OVERLAP_NONE);
    for (i = 0; r == 1 && i < len; i++)
      CHECK (model[found + i] == 0);
    break;
  case 7:
    if (rng_below (&rng, 4) == 0)
      CHECK (model_write () == 0);
    else if (model_end < 30000)
      grow (1 + rng_below (&rng, 300));
    break;
  }
}

static void
test_widths (void)
{
  static const unsigned sizes[] = { 512, 4096, 65536 };

  for (unsigned s = 0; s < 3; s++)
    for (unsigned order = 0; order <= 6; order++) {
      uint64_t base, used;

      create_counts (sizes[s], 1 << order);
      open_counts (IMAGE, &without_sync);
      read_model ();
      base = grow (1000);
      for (int i = 0; i < 500; i++)
        random_step (base);
      if (s == 0)
        grow (20000);
      model_write_all ();
      compare_model ();
      CHECK (storage_truncate (file, model_end << bits) == 0);
      close_counts ();

      check_counts_image (IMAGE);
      open_counts (IMAGE, &without_sync);
      compare_model ();
      /* Nothing to do for what can be counted already; too much is refused. */
      CHECK (refcount_extend (refcounts, model_end - 1, model_end - 1, 1,
                              &used) == 0 && used == 0);
      CHECK (refcount_extend (refcounts, model_end, model_end,
                              UINT64_C (1) << 57, &used) == -1);
      CHECK (errno == ENOSPC && !refcount_is_dirty (refcounts));
      close_counts ();
    }
}

/* A corrupt refcount structure is an error, nothing worse. */
static void
test_corrupt (void)
{
  static const struct { uint64_t entry; const char *text; } bad[] = {
    { 0x10200, "not aligned" },
    { 0x20001, "reserved bits" },
    { 0x40000000, "beyond the end" },
    { 0x30000, "L1 table" },
    { 0x10000, "refcount table" },
  };
  uint64_t value;

  for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
    const struct be64 entry = put64 (bad[i].entry);

    create_counts (65536, 16);
    open_counts (IMAGE, &without_sync);
    CHECK (storage_write (file, &entry, 8, header.reftable_offset) == 0);
    close_counts ();
    open_counts (IMAGE, &without_sync);
    quiet_errors = true;
    CHECK (refcount_get (refcounts, 5, &value) == -1 && errno == EUCLEAN);
    CHECK (strstr (last_error (), bad[i].text));
    CHECK (refcount_inc (refcounts, 5, 1) == -1 && errno == EUCLEAN);
    quiet_errors = false;
    /* Clusters that it does not count are not concerned. */
    CHECK (refcount_get (refcounts, 40000, &value) == 0 && value == 0);
    close_counts ();
  }

  /* Two entries that name the same block. */
  create_counts (65536, 16);
  open_counts (IMAGE, &without_sync);
  {
    struct be64 entries[2];

    CHECK (storage_read (file, entries, 8, header.reftable_offset) == 0);
    entries[1] = entries[0];
    CHECK (storage_write (file, entries, 16,
                          header.reftable_offset) == 0);
  }
  quiet_errors = true;
  CHECK (refcount_open (file, &header, overlap) == NULL);
  CHECK (errno == EUCLEAN);
  /* Inc without a block, dec of 0, claim of what is in use. */
  CHECK (refcount_inc (refcounts, 100000, 1) == -1 && errno == EUCLEAN);
  CHECK (refcount_dec (refcounts, 100, 1, NULL, NULL) == -1 &&
         errno == EUCLEAN);
  CHECK (refcount_claim (refcounts, 0, 1) == -1 && errno == EUCLEAN);
  CHECK (!refcount_is_dirty (refcounts));
  quiet_errors = false;
  close_counts ();
}

int
main (void)
{
  rng_init (&rng, seed_from_env (), 0);
  test_bits ();
  images_enter ("refcount");
  quiet_errors = true;
  test_widths ();
  quiet_errors = false;
  test_corrupt ();
  images_leave ();
  return 0;
}
