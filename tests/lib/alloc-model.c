/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Which clusters has the allocator allocated, and which may it allocate?
 *
 * A model of all clusters.  No cluster may be allocated twice, none that contains
 * metadata, and none before the removal of its last pointer is durable and all earlier
 * requests have ended.  A cluster that is said to read as zeros must do so.
 */

#include <config.h>

#include <stdlib.h>
#include <string.h>

#include "lib/alloc-model.h"

#define MAX_CLUSTERS 60000
static struct cluster {
  enum state state;
  uint64_t freed;               /* when the removal became durable */
  bool used;                    /* was ever allocated */
} clusters[MAX_CLUSTERS];
static uint64_t durable;        /* the last mark that was settled */
static bool is_table[MAX_RUNS];

struct alloc_run runs[MAX_RUNS];
size_t nruns;
struct model_section sections[MAX_SECTIONS];
size_t nr_sections;
uint64_t now;

void
reset_model (void)
{
  memset (clusters, 0, sizeof clusters);
  nruns = nr_sections = 0;
  now = durable = 0;
}

static bool
reads_zero (uint64_t offset, uint64_t count)
{
  unsigned char *buf = malloc (count);
  bool zero;

  CHECK (buf && storage_read (file, buf, count, offset) == 0);
  zero = buf[0] == 0 && memcmp (buf, buf + 1, count - 1) == 0;
  free (buf);
  return zero;
}

static void
check_allocated (const struct alloc_run *run, enum state state)
{
  const uint64_t first = run->host >> bits;

  CHECK ((run->host & ((UINT64_C (1) << bits) - 1)) == 0);
  CHECK (first > 0 && run->clusters > 0);
  CHECK (first + run->clusters <= MAX_CLUSTERS);
  for (uint64_t c = first; c < first + run->clusters; c++) {
    uint64_t count;

    CHECK (clusters[c].state == FREE || clusters[c].state == WAITING);
    if (clusters[c].state == WAITING)
      for (size_t i = 0; i < nr_sections; i++)
        CHECK (sections[i].since > clusters[c].freed);      /* R4 (b) */
    CHECK (overlap_find (overlap, c << bits, 1) ==
           (state == TABLE ? OVERLAP_L2 : OVERLAP_NONE));
    CHECK (refcount_get (refcounts, c, &count) == 0 && count == (state != ASIDE));
    CHECK (!run->settled || (!clusters[c].used && c < durable));
    clusters[c].state = state;
    clusters[c].used = true;
  }
}

void
set_aside (uint64_t n)
{
  struct alloc_run run;

  CHECK (alloc_set_aside (alloc, n, &run) == 0);
  check_allocated (&run, ASIDE);
  CHECK (storage_write (file, "x", 1, run.host + (run.clusters << bits) - 1) == 0);
}

void
end_aside (void)
{
  alloc_end_aside (alloc);
  for (uint64_t c = 0; c < MAX_CLUSTERS; c++)
    if (clusters[c].state == ASIDE)
      clusters[c].state = FREE;
}

void
handed_out (const struct alloc_run *run, enum state state)
{
  check_allocated (run, state);
  CHECK (run->zeroed || !run->settled);
  if (run->zeroed)
    CHECK (reads_zero (run->host, run->clusters << bits));
  if (run->settled)
    CHECK (run->host + (run->clusters << bits) <= storage_size (file));
  for (uint64_t c = 0; c < run->clusters; c++)
    CHECK (storage_write (file, "x", 1,
                          run->host + (c << bits) + 100) == 0);
  CHECK (nruns < MAX_RUNS);
  is_table[nruns] = state == TABLE;
  runs[nruns++] = *run;
}

void
set_state (const struct alloc_run *run, enum state from, enum state to)
{
  for (uint64_t c = run->host >> bits;
       c < (run->host >> bits) + run->clusters; c++) {
    CHECK (clusters[c].state == from);
    clusters[c].state = to;
    clusters[c].freed = now;
  }
}

struct alloc_run
take_run (bool *table)
{
  const size_t i = rng_below (&rng, nruns);
  struct alloc_run run = runs[i];
  const uint64_t cut = rng_below (&rng, run.clusters);

  *table = is_table[i];
  if (cut > 0 && rng_below (&rng, 2)) {
    runs[i].clusters = cut;
    run.host += cut << bits;
    run.clusters -= cut;
  }
  else {
    runs[i] = runs[--nruns];
    is_table[i] = is_table[nruns];
  }
  return run;
}

void
free_some (unsigned n)
{
  unsigned unused = 0;

  CHECK (alloc_free_begin (alloc, n + 2) == 0);
  for (unsigned i = 0; i < n; i++)
    if (nruns > 0) {
      bool table;
      const struct alloc_run run = take_run (&table);

      alloc_free_run (alloc, run.host, run.clusters);
      set_state (&run, table ? TABLE : OWNED, PENDING);
    }
    else
      unused++;
  alloc_free_end (alloc, unused + 2);
}

void
release (const struct alloc_run *run)
{
  CHECK (alloc_free_begin (alloc, 1) == 0);
  alloc_free_run (alloc, run->host, run->clusters);
  set_state (run, OWNED, PENDING);
}

void
checkpoint (bool ok)
{
  struct alloc_frees *frees = alloc_take_frees (alloc);
  const uint64_t mark = alloc_top_up (alloc);

  if (!ok) {
    CHECK (alloc_frees_done (alloc, frees, false) == 0);
    return;
  }
  write_counts ();
  alloc_settle (alloc, mark);
  durable = mark;
  now++;
  CHECK (alloc_frees_done (alloc, frees, true) == 0);
  for (uint64_t c = 0; c < MAX_CLUSTERS; c++)
    if (clusters[c].state == PENDING) {
      clusters[c].state = WAITING;
      clusters[c].freed = now;
    }
}

/* The counts of the test's clusters and of metadata are 1, all others 0.  (A reserve must
 * have been given back.) */
static void
compare_counts (void)
{
  for (uint64_t c = 0; c < MAX_CLUSTERS; c++) {
    const bool mine = clusters[c].state == OWNED ||
      clusters[c].state == TABLE || clusters[c].state == PENDING;
    uint64_t count;

    CHECK (refcount_get (refcounts, c, &count) == 0);
    CHECK (count ==
           (mine || overlap_find (overlap, c << bits, 1) != OVERLAP_NONE));
  }
}

void
quiesce (void)
{
  uint64_t end;

  while (nr_sections > 0)
    epoch_leave (epoch, sections[--nr_sections].section);
  checkpoint (true);
  end_session ();
  durable = 0;
  compare_counts ();
  CHECK (refcount_end (refcounts, &end) == 0);
  CHECK (storage_size (file) >= end << bits);
  for (uint64_t c = 0; c < MAX_CLUSTERS; c++)
    if (c << bits >= storage_size (file)) {
      CHECK (clusters[c].state != OWNED && clusters[c].state != TABLE &&
             clusters[c].state != ASIDE);
      clusters[c].used = false; /* cut off, so like new */
    }
}
