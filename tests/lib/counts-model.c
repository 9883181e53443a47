/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What refcounts should an image have?
 *
 * qemu-img creates the image.  A model follows how the test changes its counts, and where
 * refcount.c has placed the metadata that count them.
 */

#include <config.h>

#include <errno.h>
#include <string.h>

#include "lib/counts-model.h"

uint64_t model[MAX_MODEL];
uint64_t model_end;
uint64_t promised;

static uint64_t table_first, table_n;   /* a new table, not written yet */

/* Clusters reserved for the next refcount blocks, as the allocator does. */
static bool set_aside;
static uint64_t spare_first, spare_n;

void
create_counts (unsigned cluster_size, unsigned refcount_bits)
{
  const struct image_spec spec = {
    .version = 3, .cluster_size = cluster_size, .refcount_bits = refcount_bits,
    .size = 1 << 20,
  };

  image_create (IMAGE, &spec);
}

void
check_counts_image (const char *name)
{
  const int status = image_check (name);

  CHECK (status == 0 || status == 3);
}

void
read_model (void)
{
  CHECK (refcount_end (refcounts, &model_end) == 0);
  CHECK (model_end < MAX_MODEL);
  spare_n = 0;
  for (uint64_t i = 0; i < model_end; i++)
    CHECK (refcount_get (refcounts, i, &model[i]) == 0);
  memset (model + model_end, 0, (MAX_MODEL - model_end) * sizeof model[0]);
}

void
compare_model (void)
{
  uint64_t value, last = 0, end;

  for (uint64_t i = 0; i < MAX_MODEL; i++) {
    CHECK (refcount_get (refcounts, i, &value) == 0);
    CHECK (value == model[i]);
    if (value)
      last = i + 1;
  }
  CHECK (refcount_end (refcounts, &end) == 0);
  CHECK (end == last);
}

/* Adds new metadata in the clusters from PLACE on. */
static void
note_metadata (uint64_t place, uint64_t n)
{
  for (uint64_t i = 0; i < n; i++) {
    const enum overlap_kind kind =
      overlap_find (overlap, (place + i) << bits, 1);

    CHECK (kind == OVERLAP_REFTABLE || kind == OVERLAP_REFBLOCK);
    if (i == 0 && kind == OVERLAP_REFTABLE) {
      /* It replaces a table that was never written. */
      for (uint64_t k = 0; k < table_n; k++)
        model[table_first + k]--;
      table_first = place;
      table_n = 0;
    }
    table_n += kind == OVERLAP_REFTABLE;
    model[place + i] = 1;
  }
}

uint64_t
grow (uint64_t n)
{
  uint64_t used, first, place = spare_n > 0 ? spare_first : model_end;

  if (set_aside)
    n += rng_below (&rng, 200);
  CHECK (model_end + n < MAX_MODEL);
  CHECK (refcount_extend_cost (refcounts, place, model_end, n, &used) == 0);
  if (place < model_end && used > spare_n)
    place = model_end;
  CHECK (refcount_extend (refcounts, place, model_end, n, &used) == 0);
  CHECK (model_end + used + n < MAX_MODEL);
  note_metadata (place, used);
  first = place == model_end ? model_end + used : model_end;
  CHECK (refcount_claim (refcounts, first, n) == 0);
  for (uint64_t i = 0; i < n; i++)
    model[first + i] = 1;
  model_end = first + n;
  if (set_aside) {
    spare_n = rng_below (&rng, n);
    spare_first = model_end - spare_n;
  }
  return first;
}

int
model_write (void)
{
  struct refcount_moved moved;
  uint64_t end = model_end;

  if (refcount_write (refcounts, &moved) == -1)
    return -1;
  promised = end;
  table_n = 0;
  CHECK (storage_sync (file) == 0);
  if (moved.n > 0) {
    overlap_remove (overlap, moved.first << bits, moved.n << bits);
    CHECK (refcount_dec (refcounts, moved.first, moved.n, NULL, NULL) == 0);
    for (uint64_t i = 0; i < moved.n; i++)
      model[moved.first + i]--;
  }
  return 0;
}

void
model_write_all (void)
{
  while (refcount_is_dirty (refcounts))
    CHECK (model_write () == 0);
}

void
scenario (void)
{
  static const uint64_t steps[] = { 10, 700, 1, 4000, 9000, 100 };

  set_aside = rng_below (&rng, 2);
  for (size_t i = 0; i < sizeof steps / sizeof steps[0]; i++) {
    grow (steps[i]);
    if (i == 3)                 /* twice without a write in between */
      grow (5000);
    while (model_write () == -1)
      CHECK (errno == ENOSPC);
  }
  /* The table is long enough now: new blocks are counted by new blocks. */
  for (int i = 0; i < 12; i++) {
    grow (300 + rng_below (&rng, 900));
    while (model_write () == -1)
      CHECK (errno == ENOSPC);
  }
  model_write_all ();
  set_aside = false;
}
