/* SPDX-License-Identifier: BSD-3-Clause
 *
 * When the memory for mappings is used up, a miss often reads only the requested entries,
 * not the whole slice.  The disk must look the same.  The test reads a disk, and its
 * snapshots, without memory for mappings, and compares the data with QEMU's, and the
 * extents with those of a disk with plenty of memory.  Images have all features that QEMU
 * supports.
 */

#include <config.h>

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "disk/export.h"
#include "lib/mixture.h"
#include "lib/trials.h"

#define IMAGE "disk.qcow2"
#define REQUESTS 3000
#define MOST (128 << 10)

/* Many small slices; nothing is peeked in those of 64 entries or less. */
#define SLICE 1024

static uint64_t misses, peeks;
static char buf[MOST];

/* --- extents, as a type for each sector --- */

struct painting {
  uint64_t begin;
  uint64_t painted;             /* bytes */
  unsigned char types[MOST / 512 + 2];
};

static int
paint (void *opaque, uint64_t offset, uint64_t len, enum extent_type type)
{
  struct painting *p = opaque;

  CHECK (offset == p->begin + p->painted && len > 0);
  for (uint64_t at = offset; at < offset + len && at < p->begin + MOST; at += 512)
    p->types[(at - p->begin) / 512] = 1 + type;
  p->painted += len;
  return 0;
}

/* --- two disks --- */

/* A disk and its client. */
struct served {
  struct disk *disk;
  struct export *export;
};

struct both {
  struct served small, large;
  const struct blob *contents;
};

/* Those that are written use other tables: only such a disk has L2 slices for the top
 * image, which peek, too. */
static struct served
open_disk (const struct mixture *m, uint64_t l2_cache, bool writable)
{
  char *path = images_path (m->name);
  const struct disk_options options = {
    .path = path, .backing = BACKING_FOLLOW, .l2_cache = l2_cache,
    .l2_slice = m->spec.cluster_size < SLICE ? 512 : SLICE,
    .secret = { .passphrase = IMAGES_SECRET, .len = strlen (IMAGES_SECRET) },
  };
  struct served s;

  if (disk_open (&options, &s.disk) == -1 ||
      (s.export = export_open (s.disk, "", writable)) == NULL)
    FAIL ("can't be opened: %m");
  free (path);
  return s;
}

static void
close_disk (struct served s)
{
  CHECK (export_close (s.export) == 0);
  CHECK (disk_close (s.disk) == 0);
}

static void
random_range (struct rng *rng, uint64_t size, uint64_t *offset, uint64_t *len)
{
  const uint64_t most = rng_below (rng, 8) ? 8192 : MOST;

  *offset = rng_below (rng, size);
  *len = 1 + rng_below (rng, most);
  if (rng_below (rng, 2)) {
    *offset &= ~UINT64_C (511);
    *len = (*len + 511) & ~UINT64_C (511);
  }
  if (*len > size - *offset)
    *len = size - *offset;
}

static void
compare_reads (const struct both *b, struct rng *rng)
{
  uint64_t offset, len;

  for (int i = 0; i < REQUESTS; i++) {
    random_range (rng, b->contents->len, &offset, &len);
    memset (buf, 0xee, len);
    if (export_read (b->small.export, buf, len, offset) == -1)
      FAIL ("read of %" PRIu64 " at %" PRIu64 ": %m", len, offset);
    if (memcmp (buf, b->contents->data + offset, len) != 0)
      FAIL ("%" PRIu64 " bytes at %" PRIu64 " are not what QEMU reads", len, offset);
  }
}

static void
compare_extents (const struct both *b, struct rng *rng)
{
  static struct painting small, large;
  uint64_t offset, len;

  for (int i = 0; i < REQUESTS / 4; i++) {
    const bool one = rng_below (rng, 2);

    random_range (rng, b->contents->len, &offset, &len);
    offset &= ~UINT64_C (511);  /* borders are at sectors */
    memset (&small, 0, sizeof small);
    memset (&large, 0, sizeof large);
    small.begin = large.begin = offset;
    if (export_extents (b->small.export, len, offset, one, paint, &small) == -1 ||
        export_extents (b->large.export, len, offset, false, paint, &large) == -1)
      FAIL ("extents of %" PRIu64 " at %" PRIu64 ": %m", len, offset);
    for (size_t k = 0; k < MOST / 512 && small.types[k]; k++)
      if (small.types[k] != large.types[k])
        FAIL ("sector %zu behind %" PRIu64 " is of another type", k, offset);
    CHECK (small.painted > 0 && (one || small.painted >= len));
  }
}

static void
compare_snapshots (const struct mixture *m, struct disk *d, struct rng *rng)
{
  uint64_t offset, len;

  for (unsigned i = 0; i < m->nr_snapshots; i++) {
    const struct blob *is = &m->snapshots[i];
    struct export *e = export_open (d, mixture_snapshot_names[i], false);

    CHECK (e != NULL && export_size (e) == is->len);
    for (int k = 0; k < REQUESTS / 4; k++) {
      random_range (rng, is->len, &offset, &len);
      if (export_read (e, buf, len, offset) == -1)
        FAIL ("snapshot %u, read of %" PRIu64 " at %" PRIu64 ": %m", i, len, offset);
      if (memcmp (buf, is->data + offset, len) != 0)
        FAIL ("snapshot %u: %" PRIu64 " bytes at %" PRIu64 " are not what QEMU reads",
              i, len, offset);
    }
    CHECK (export_close (e) == 0);
  }
}

static void
one_image (struct rng *rng)
{
  struct disk_stats stats;
  struct mixture m;
  struct blob contents;
  struct both b = { .contents = &contents };
  const bool writable = rng_below (rng, 2);

  mixture_make (&m, IMAGE, rng);
  image_contents (IMAGE, NULL, &contents);
  printf ("%u: ", trials_number);
  mixture_print (&m);
  printf ("%s\n", writable ? "; written" : "");
  fflush (stdout);

  b.small = open_disk (&m, 0, writable);
  b.large = open_disk (&m, 32 << 20, false);
  compare_reads (&b, rng);
  compare_extents (&b, rng);
  compare_snapshots (&m, b.small.disk, rng);
  disk_get_stats (b.small.disk, &stats);
  misses += stats.map.misses;
  peeks += stats.map.peeks;
  CHECK (m.spec.cluster_size == 512 || stats.map.misses < 1000 || stats.map.peeks > 0);
  close_disk (b.small);
  close_disk (b.large);
  blob_free (&contents);
  mixture_free (&m);
}

int
main (void)
{
  const unsigned done = trials_run ("peeks-equal-loads", 3, 5, one_image);

  printf ("%u images, %" PRIu64 " misses, %" PRIu64 " peeks\n", done, misses, peeks);
  return 0;
}
