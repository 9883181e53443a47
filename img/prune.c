/* SPDX-License-Identifier: BSD-3-Clause
 *
 * How do old generations go, without the others?
 *
 * Those below one that is complete by itself at once: their files are removed.  Otherwise
 * the oldest one first: the next one lies over it, and is merged into it:
 *
 *   1  the manifest drops the oldest generation, and what it knows of files that are
 *      about to change; its file stays
 *   2  what the next one contains is written into that file (commit.c in the core):
 *      meanwhile the next one shows what it did, because it hides what changes below it
 *   3  the header of the one after that names the file that both are in now
 *   4  so does the manifest
 *   5  the file that is not needed any more is removed
 *
 * If that is cut off anywhere, the manifest shows that the oldest generation lies over
 * something, and it begins again with 2.
 *
 * Locks: those of the images: no restore runs meanwhile.
 */

#include <config.h>

#include <stdlib.h>
#include <string.h>

#include "util/cleanup.h"
#include "change/commit.h"
#include "change/rebase.h"
#include "img/change.h"
#include "img/generationfile.h"
#include "img/progress.h"
#include "img/prune.h"

static const struct chunks_watch watch = { .step = progress_step };

static int
commit_one (void *opaque, struct disk *disk)
{
  const struct commit_layers layers = { .base = 1, .keep = true };
  uint64_t copied;

  (void) opaque;
  return commit_disk (disk, &layers, &watch, &copied);
}

static int
name_below (void *opaque, struct disk *disk)
{
  const struct repository_generation *g = opaque;
  const struct image_secret none = { .passphrase = NULL };
  const struct rebase rebase = {
    .name = g->backing, .format = g->raw_backing ? "raw" : "qcow2", .unsafe = true,
  };
  uint64_t copied;

  return rebase_disk (disk, &none, &rebase, NULL, &copied);
}

/* Calls FN with the image of a generation. */
static int
change (const struct arguments *a, const struct repository *r, const char *file, bool chain,
        int (*fn) (void *, struct disk *), void *opaque)
{
  CLEANUP_FREE char *path = repository_path (r, file);
  struct imagefile *f = path ? imagefile_new (a, path, "qcow2", NULL) : NULL;
  const int result = f ? change_image (f, chain, fn, opaque) : -1;

  imagefile_free (f);
  return result;
}

/* What is known of the file that G is in now. */
static int
measure (const struct repository *r, const char *file, bool sum,
         struct repository_generation *g, struct generationfile *f)
{
  if (generationfile_measure (r, file, sum, f) == -1)
    return -1;
  g->file_size = f->size;
  g->sum = f->sum[0] ? f->sum : NULL;
  return 0;
}

/* The oldest generation gets into the file below it.  (To read that again would take as
 * long as the first backup.) */
static int
merge (const struct arguments *a, struct repository *r, bool sum)
{
  struct repository_generation g = repository_get (r, 0), next = { .backing = NULL };
  struct generationfile base, other;

  if (repository_count (r) > 1)
    next = repository_get (r, 1);
  if (generationfile_check (r, 0, false) == -1 ||
      change (a, r, g.file, true, commit_one, NULL) == -1 ||
      measure (r, g.backing, sum, &g, &base) == -1)
    return -1;
  if (next.backing && (change (a, r, next.file, false, name_below, &g) == -1 ||
                       measure (r, next.file, true, &next, &other) == -1))
    return -1;
  return repository_merge (r, &g, next.backing ? &next : NULL);
}

/* What is damaged is not mixed with what is not. */
static int
forget (struct repository *r)
{
  return generationfile_check (r, 1, false) == -1 ? -1 : repository_forget (r, 1);
}

/* How many can go at once, because the next one needs none of them? */
static unsigned
count_spare (const struct repository *r, uint64_t keep)
{
  const unsigned n = repository_count (r);
  unsigned spare = n > keep ? n - keep : 0;

  while (spare > 0 && repository_get (r, spare).backing)
    spare--;
  return spare;
}

int
prune (const struct arguments *a, struct repository *r, uint64_t keep, bool sum,
       unsigned *removed)
{
  const unsigned before = repository_count (r);
  unsigned spare;
  int result = 0;

  while (result == 0) {
    spare = count_spare (r, keep);
    if (spare > 0)
      result = repository_forget (r, spare);
    else if (repository_get (r, 0).backing)
      result = merge (a, r, sum);
    else if (repository_count (r) > keep)
      result = forget (r);
    else
      break;
    if (result == 0)
      result = repository_sweep (r);
  }
  *removed = before - repository_count (r);
  return result;
}
