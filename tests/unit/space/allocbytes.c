/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Bytes for compressed clusters: no byte is allocated twice, nor again before the removal
 * of all data in its cluster is durable and all earlier requests have ended; each host
 * cluster has exactly one reference for each piece that touches it; at the end nothing is
 * leaked.
 */

#include <config.h>

#include <string.h>

#include "util/bytes.h"
#include "lib/alloc-image.h"

/* --- the model --- */

#define MAX_BYTES (UINT64_C (16) << 20)
#define MAX_CLUSTERS (MAX_BYTES >> 9)
static unsigned char used[MAX_BYTES];   /* since its cluster was taken last */
static struct cluster {
  unsigned users;               /* pieces, also those whose removal isn't durable */
  bool plain;                   /* or a whole cluster of ours */
  uint64_t freed;               /* when it lost the last user */
} clusters[MAX_CLUSTERS];
static uint64_t now;

#define MAX_LIVE 3000
static struct alloc_piece live[MAX_LIVE], pending[MAX_LIVE];
static unsigned nr_live, nr_pending;
static struct alloc_run plain[MAX_LIVE];
static unsigned nr_plain;

#define MAX_SECTIONS 6
static struct { struct epoch_section section; uint64_t since; } sections[MAX_SECTIONS];
static unsigned nr_sections;

static void
check_count (uint64_t c)
{
  uint64_t count;

  CHECK (refcount_get (refcounts, c, &count) == 0);
  CHECK (count == clusters[c].users + clusters[c].plain);
}

/* An unused cluster gets a user. */
static void
taken (uint64_t c)
{
  unsigned i;

  for (i = 0; i < nr_sections; i++)
    CHECK (sections[i].since > clusters[c].freed);  /* R4 (b) */
  memset (used + (c << bits), 0, UINT64_C (1) << bits);
  CHECK (overlap_find (overlap, c << bits, 1) == OVERLAP_NONE && c > 0);
}

static void
pieces_in (const struct alloc_piece *p, unsigned n)
{
  uint64_t c, b;
  unsigned i;

  for (i = 0; i < n; i++) {
    CHECK (p[i].host + p[i].bytes <= min64 (MAX_BYTES, storage_size (file)));
    for (c = p[i].host >> bits; c <= (p[i].host + p[i].bytes - 1) >> bits; c++) {
      CHECK (!clusters[c].plain);
      if (clusters[c].users++ == 0)
        taken (c);
      CHECK (clusters[c].users <= refcount_max (refcounts));
    }
    for (b = p[i].host; b < p[i].host + p[i].bytes; b++)
      CHECK (!used[b]++);
  }
  for (i = 0; i < n; i++)
    for (c = p[i].host >> bits; c <= (p[i].host + p[i].bytes - 1) >> bits; c++)
      check_count (c);
}

static void
piece_out (const struct alloc_piece *p)
{
  uint64_t c;

  for (c = p->host >> bits; c <= (p->host + p->bytes - 1) >> bits; c++) {
    CHECK (clusters[c].users > 0);
    clusters[c].users--;
    clusters[c].freed = now;
  }
}

static void
pack (void)
{
  const uint64_t cs = UINT64_C (1) << bits;
  struct alloc_piece p[16];
  const unsigned n = 1 + rng_below (&rng, 16);
  unsigned i;

  if (nr_live + n > MAX_LIVE)
    return;
  for (i = 0; i < n; i++)
    p[i].bytes = 1 + rng_below (&rng, rng_below (&rng, 4) ? cs / 3 : cs);
  CHECK (alloc_bytes (alloc, p, n) == 0);
  pieces_in (p, n);
  if (rng_below (&rng, 4) == 0) {
    alloc_abort_bytes (alloc, p, n);
    now++;
    for (i = 0; i < n; i++)
      piece_out (&p[i]);
    for (i = 0; i < n; i++)
      check_count (p[i].host >> bits);
  }
  else
    for (i = 0; i < n; i++)
      live[nr_live++] = p[i];
}

static void
free_some (unsigned n)
{
  for (; n > 0 && nr_live > 0 && nr_pending < MAX_LIVE; n--) {
    const unsigned i = rng_below (&rng, nr_live);
    const uint64_t first = live[i].host >> bits;
    const uint64_t last = (live[i].host + live[i].bytes - 1) >> bits;

    CHECK (alloc_free_begin (alloc, 1) == 0);
    alloc_free_run (alloc, first << bits, last - first + 1);
    alloc_free_end (alloc, 0);
    pending[nr_pending++] = live[i];
    live[i] = live[--nr_live];
  }
}

static void
checkpoint (void)
{
  struct alloc_frees *frees = alloc_take_frees (alloc);
  const uint64_t mark = alloc_top_up (alloc);

  write_counts ();
  alloc_settle (alloc, mark);
  now++;
  CHECK (alloc_frees_done (alloc, frees, true) == 0);
  while (nr_pending > 0)
    piece_out (&pending[--nr_pending]);
}

/* Clusters that are not shared, between the others. */
static void
reserve_plain (void)
{
  struct alloc_run run;
  uint64_t c;

  if (nr_plain == MAX_LIVE)
    return;
  CHECK (alloc_reserve (alloc, 1 + rng_below (&rng, 3), &run) == 0);
  for (c = run.host >> bits; c < (run.host >> bits) + run.clusters; c++) {
    CHECK (clusters[c].users == 0 && !clusters[c].plain);
    taken (c);
    clusters[c].plain = true;
    check_count (c);
  }
  plain[nr_plain++] = run;
}

static void
abort_plain (void)
{
  struct alloc_run run;
  uint64_t c;

  if (nr_plain == 0)
    return;
  run = plain[--nr_plain];
  alloc_abort (alloc, &run);
  for (c = run.host >> bits; c < (run.host >> bits) + run.clusters; c++)
    clusters[c].plain = false;
}

static void
enter_or_leave (void)
{
  if (nr_sections < MAX_SECTIONS && rng_below (&rng, 2)) {
    now++;
    sections[nr_sections].section = epoch_enter (epoch);
    sections[nr_sections++].since = now;
  }
  else if (nr_sections > 0) {
    const unsigned i = rng_below (&rng, nr_sections);

    epoch_leave (epoch, sections[i].section);
    sections[i] = sections[--nr_sections];
  }
}

static void
quiesce (void)
{
  uint64_t c;

  while (nr_sections > 0)
    epoch_leave (epoch, sections[--nr_sections].section);
  checkpoint ();
  end_session ();
  for (c = 0; c < MAX_BYTES >> bits; c++) {
    uint64_t count;

    CHECK (refcount_get (refcounts, c, &count) == 0);
    CHECK (count == clusters[c].users + clusters[c].plain +
           (c == 0 || overlap_find (overlap, c << bits, 1) != OVERLAP_NONE));
  }
}

static void
test_model (unsigned cluster_bits, unsigned order)
{
  unsigned i;

  make_alloc_image (cluster_bits, order);
  open_image (true, &without_sync);
  memset (used, 0, sizeof used);
  memset (clusters, 0, sizeof clusters);
  nr_live = nr_pending = nr_plain = nr_sections = 0;
  now = 0;
  for (i = 0; i < 3000; i++)
    switch (rng_below (&rng, 16)) {
    case 0: case 1: case 2: case 3: case 4:
      pack ();
      break;
    case 5: case 6: case 7: case 8:
      free_some (rng_below (&rng, nr_live > 200 ? 60 : 16));
      break;
    case 9:
      reserve_plain ();
      break;
    case 10:
      abort_plain ();
      break;
    case 11:
      checkpoint ();
      break;
    case 12:
      CHECK (alloc_reap (alloc) == 0);
      break;
    case 13: case 14:
      enter_or_leave ();
      break;
    default:
      if (rng_below (&rng, 20) == 0)
        quiesce ();
    }
  free_some (nr_live);
  quiesce ();
  close_image ();
}

/* As many as the count allows share a cluster, one behind the other. */
static void
test_sharing (unsigned order, uint64_t max)
{
  struct alloc_piece p[300];
  unsigned i;

  make_alloc_image (16, order);
  open_image (true, &without_sync);
  for (i = 0; i < 300; i++)
    p[i].bytes = 100;
  CHECK (alloc_bytes (alloc, p, 300) == 0);
  for (i = 1; i < 300; i++)
    CHECK ((p[i].host == p[i-1].host + 100) == (i % max != 0));
  alloc_abort_bytes (alloc, p, 300);
  close_image ();
}

int
main (void)
{
  rng_init (&rng, seed_from_env (), 0);
  image_begin ("allocbytes");

  test_sharing (0, 1);
  test_sharing (1, 3);
  test_sharing (2, 15);
  test_sharing (4, 65535);
  test_model (12, 4);
  test_model (12, 0);
  test_model (12, 1);
  test_model (9, 2);
  test_model (9, 4);

  image_end ();
  return 0;
}
