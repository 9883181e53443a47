/* SPDX-License-Identifier: BSD-3-Clause
 *
 * How are clusters found and freed that a crash has left allocated?
 *
 * Clusters are allocated in the file before a pointer to them is written (R1), a batch at
 * a time, and freed after the pointer is gone (R4).  So a crash leaves refcounts that are
 * too high, and nothing else wrong.  All references are counted (recount.c), and
 * refcounts that are higher are lowered in place:
 *
 *   1  sync                            what the recount reads is then durable, so that no
 *                                      power cut brings back a pointer to a free cluster
 *   2  recount, lower counts           in any order: each is valid by itself
 *   3  sync
 *
 * A cluster that two had used, by their counts, and that has one reference has to be
 * flagged COPIED, too (a program that crashed as it deleted a snapshot leaves such).
 * That is made durable before the count is lowered: afterwards, nothing would show that
 * it is missing.
 *
 * A count that is too low, or a cluster with two uses, was not left by a crash.  Then the
 * image must not be changed, because a cluster in use might be allocated a second time.
 *
 * The contents of the freed clusters stay until they are allocated again.
 *
 * Locks: none; runs before any other thread can write.
 */

#include <config.h>

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "util/bytes.h"
#include "util/cleanup.h"
#include "util/remedy.h"
#include "util/report.h"
#include "space/refblock.h"
#include "check/recount.h"
#include "check/copiedflags.h"
#include "check/leaks.h"

/* Each window costs a walk over all metadata.  Larger files keep their leaks. */
#define MAX_WINDOWS UINT64_C (256)

struct leaks {
  struct storage *file;
  const struct header *h;
  struct recount *recount;
  unsigned block_bits;          /* log2 of the clusters that a block covers */
  unsigned char *block;         /* a buffer */
  unsigned char *cluster;       /* another one */
  uint64_t window;              /* that was counted last */
  bool alone;                   /* a cluster in it has one reference left */
  bool corrected;               /* and the flags in it are right */
  uint64_t freed;               /* references */
};

static int
refuse_leaks (struct leaks *l, const char *why)
{
  return report_refusal (EUCLEAN, "%s: the image was not closed properly and cannot be "
                         "changed: %s; %s", storage_path (l->file), why,
                         remedy (REMEDY_REPAIR));
}

static int
refuse_count (struct leaks *l, uint64_t cluster, uint64_t count, uint64_t references)
{
  char why[128];

  snprintf (why, sizeof why, "the cluster at offset %" PRIu64 " has %" PRIu64
            " references but its refcount is %" PRIu64,
            cluster << l->h->cluster_bits, references, count);
  return refuse_leaks (l, why);
}

static int
take (struct leaks *l, uint64_t window)
{
  const char *why;

  if (l->window != window)
    l->alone = l->corrected = false;
  l->window = window;
  if (recount_window (l->recount, window) == 0)
    return 0;
  why = recount_fault (l->recount);
  return why ? refuse_leaks (l, why) : -1;
}

/* Lowers the counts of clusters from FIRST on in l->block, which has counts for them from
 * index 0 on.  Sets [*LO, *HI) to the changed ones. */
static int
lower (struct leaks *l, uint64_t first, uint64_t n, uint64_t *lo, uint64_t *hi)
{
  const unsigned order = l->h->refcount_order;
  uint64_t i, count, references;

  *lo = n;
  *hi = 0;
  for (i = 0; i < n; i++) {
    count = refblock_get (l->block, order, i);
    references = recount_get (l->recount, first + i);
    if (count == references || references >= REFWINDOW_MAX)
      continue;
    if (count < references)
      return refuse_count (l, first + i, count, references);
    refblock_set (l->block, order, i, references);
    l->alone |= references == 1;
    l->freed += count - references;
    *lo = min64 (*lo, i);
    *hi = i + 1;
  }
  return 0;
}

/* The clusters [FIRST, END) have no refcount block. */
static int
check_unused (struct leaks *l, uint64_t first, uint64_t end)
{
  uint64_t c;

  for (c = first; c < end; c++)
    if (recount_get (l->recount, c) > 0)
      return refuse_count (l, c, 0, recount_get (l->recount, c));
  return 0;
}

static int
correct_flags (struct leaks *l)
{
  if (!l->alone || l->corrected)
    return 0;
  l->corrected = true;
  return copiedflags_correct (l->file, l->h, l->recount, l->cluster) == -1 ? -1
    : storage_sync (l->file);
}

/* One refcount block.  Clusters past the end of the file have no references. */
static int
free_in_block (struct leaks *l, uint64_t index, uint64_t clusters)
{
  const uint64_t offset = walk_refblock (recount_walk (l->recount), index);
  const uint64_t first = index << l->block_bits;
  const uint64_t n = UINT64_C (1) << l->block_bits;
  const unsigned order = l->h->refcount_order;
  uint64_t lo, hi;

  if (offset == 0)
    return check_unused (l, first, min64 (first + n, clusters));
  if (storage_read (l->file, l->block, l->h->cluster_size, offset) == -1 ||
      lower (l, first, n, &lo, &hi) == -1)
    return -1;
  if (lo >= hi)
    return 0;
  if (correct_flags (l) == -1)
    return -1;
  /* Whole bytes: several counts of less than 8 bits share one. */
  lo = (lo << order) / 8;
  hi = div_up (hi << order, 8);
  return storage_write (l->file, l->block + lo, hi - lo, offset + lo);
}

static int
free_all (struct leaks *l)
{
  const uint64_t clusters = div_up (storage_size (l->file), l->h->cluster_size);
  uint64_t i, blocks, first;

  walk_reftable (recount_walk (l->recount), &blocks);
  blocks = max64 (blocks, div_up (clusters, UINT64_C (1) << l->block_bits));
  for (i = 0; i < blocks; i++) {
    first = i << l->block_bits;
    if (first < clusters && take (l, round_down (first, REFWINDOW_CLUSTERS)) == -1)
      return -1;
    if (free_in_block (l, i, clusters) == -1)
      return -1;
  }
  return 0;
}

static int
free_durably (struct leaks *l)
{
  return storage_sync (l->file) == -1 || free_all (l) == -1 ||
    storage_sync (l->file) == -1 ? -1 : 0;
}

int
leaks_free (struct image *image)
{
  const struct header *h = &image->header;
  CLEANUP_FREE unsigned char *block = malloc (h->cluster_size);
  CLEANUP_FREE unsigned char *cluster = malloc (h->cluster_size);
  struct leaks l = {
    .file = image->file, .h = h, .block = block, .cluster = cluster, .window = UINT64_MAX,
    .block_bits = refblock_bits (h->cluster_bits, h->refcount_order),
  };
  int r;

  if (storage_size (image->file) >> h->cluster_bits > MAX_WINDOWS * REFWINDOW_CLUSTERS) {
    report_event (EVENT_DAMAGED, storage_path (image->file), "the image was not closed "
                  "properly, and has too many clusters to look for leaked ones");
    return 0;
  }
  if (block == NULL || cluster == NULL) {
    report_error ("%s: freeing leaked clusters: %m", storage_path (image->file));
    return -1;
  }
  l.recount = recount_new (image->file, h, 1);
  if (l.recount == NULL)
    return -1;
  r = free_durably (&l);
  KEEP_ERRNO_FOR_BLOCK;
  recount_free (l.recount);
  if (r == 0)
    report_event (EVENT_RECOVERED, storage_path (image->file), "the image was not closed "
                  "properly: %" PRIu64 " leaked clusters were freed", l.freed);
  return r;
}
