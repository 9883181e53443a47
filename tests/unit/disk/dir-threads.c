/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Many clients connect to the images of a directory, write, read and leave, all at the
 * same time: each reads what it wrote, images are opened and closed all the time, and are
 * clean at the end.  The statistics of all images together never decrease.
 *
 * Environment: SEED, SECONDS (4).
 */

#include <config.h>

#include <errno.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "disk/dir.h"
#include "lib/changes.h"
#include "lib/images.h"

#define IMAGES 3
#define THREADS 4
#define SIZE (UINT64_C (4) << 20)
#define AREA (SIZE / THREADS)

static struct dir *dir;
static _Atomic unsigned visits, refused, writes;
static time_t deadline;

struct client {
  struct rng rng;
  unsigned number;
  struct disk_stats stats;      /* when it looked last */
  /* What was written where, by this client: one byte for each piece, 0 is nothing. */
  unsigned char written[IMAGES][AREA / 4096];
};

struct marks {
  struct export *export;
  uint64_t at;
  bool frozen;
};

/* Where a bitmap is not marked there are zeros.  (Layer 0 changes at any time.) */
static int
look (void *opaque, uint64_t offset, uint64_t len, enum extent_type type)
{
  static const char zeros[4096];
  struct marks *m = opaque;
  char buf[4096];

  CHECK (offset == m->at && len > 0);
  m->at += len;
  CHECK (export_read (m->export, buf, sizeof buf,
                      offset + len - sizeof buf) == 0);
  CHECK (!m->frozen || type != EXTENT_HOLE ||
         memcmp (buf, zeros, sizeof buf) == 0);
  return 0;
}

static void
read_other (struct disk *d, struct rng *rng)
{
  static const char *const names[] = {
    "bitmap:day", "layer:0", "bitmap:none", "layer:1",
  };
  const unsigned which = rng_below (rng, 4);
  struct marks m = {
    .export = export_open (d, names[which], true), .frozen = which == 0,
  };

  CHECK ((m.export != NULL) == (which < 2));
  if (m.export == NULL)
    return;
  CHECK (!export_is_writable (m.export));
  CHECK (export_size (m.export) == SIZE);
  CHECK (export_extents (m.export, SIZE, 0, false, look, &m) == 0);
  CHECK (m.at == SIZE);
  CHECK (export_close (m.export) == 0);
}

static void
use (struct client *c, struct export *e, unsigned image)
{
  char buf[4096];

  for (unsigned n = rng_below (&c->rng, 6); n > 0; n--) {
    const unsigned piece = rng_below (&c->rng, AREA / 4096);
    const uint64_t at = c->number * AREA + piece * 4096;
    unsigned char *w = &c->written[image][piece];

    CHECK (export_read (e, buf, sizeof buf, at) == 0);
    CHECK (buf[0] == (char) *w && memcmp (buf, buf + 1, sizeof buf - 1) == 0);
    if (!export_is_writable (e))
      continue;
    *w = 1 + rng_below (&c->rng, 255);
    memset (buf, *w, sizeof buf);
    CHECK (export_write (e, buf, sizeof buf, at, rng_below (&c->rng, 4) == 0) == 0);
    writes++;
  }
}

static void
look_at_stats (struct client *c)
{
  struct disk_stats now;

  dir_get_stats (dir, &now);
  CHECK (now.alloc.allocated >= c->stats.alloc.allocated);
  CHECK (now.checkpoint.runs >= c->stats.checkpoint.runs);
  CHECK (now.checkpoint.syncs >= c->stats.checkpoint.syncs);
  c->stats = now;
}

static void *
client (void *opaque)
{
  struct client *c = opaque;

  /* (On a busy machine, until something has happened.) */
  while (time (NULL) < deadline || writes == 0) {
    const unsigned image = rng_below (&c->rng, IMAGES);
    char name[16];
    const bool writable = rng_below (&c->rng, 3) != 0;
    struct dir_image *entered;
    struct export *e;
    const char *rest;

    snprintf (name, sizeof name, "%u.qcow2", image);
    if (rng_below (&c->rng, 16) == 0) {
      CHECK (dir_enter (dir, "nonesuch.qcow2", &rest) == NULL);
      CHECK (dir_enter (dir, "broken.qcow2", &rest) == NULL);
      refused++;
    }
    entered = dir_enter (dir, name, &rest);
    CHECK (entered);
    CHECK ((e = export_open (dir_disk (entered), rest, writable)));
    CHECK (export_is_writable (e) == writable);
    use (c, e, image);
    if (rng_below (&c->rng, 2))
      read_other (dir_disk (entered), &c->rng);
    if (rng_below (&c->rng, 2) == 0)
      look_at_stats (c);
    CHECK (export_close (e) == 0);
    dir_leave (dir, entered);
    visits++;
  }
  return NULL;
}

int
main (void)
{
  static struct client clients[THREADS];
  const struct image_spec spec = {
    .version = 3, .cluster_size = 4096, .refcount_bits = 16, .size = SIZE,
  };
  struct disk_options options = {
    .l2_cache = 64 << 10, .l2_slice = 512, .discard = true, .lock = true,
  };
  const char *sec = getenv ("SECONDS");
  const uint64_t seed = seed_from_env ();
  const struct blob broken = { (unsigned char *) "QFI\373broken", 10 };
  struct disk_stats stats;
  char *path, name[16];

  quiet_errors = true;
  images_enter ("dir-threads");
  for (unsigned i = 0; i < IMAGES; i++) {
    struct bitmapedit add = { .what = BITMAP_ADD, .name = "day", .granularity_bits = 12 };

    snprintf (name, sizeof name, "%u.qcow2", i);
    image_create (name, &spec);
    options.path = path = images_path (name);
    CHECK (change_bitmaps (&options, &add, 1, NULL) == 0);
    free (path);
  }
  blob_save ("broken.qcow2", &broken);
  options.path = path = images_path (".");
  CHECK (dir_open (&options, &dir) == 0);
  deadline = time (NULL) + (sec ? atoi (sec) : 4);
  for (unsigned i = 0; i < THREADS; i++) {
    clients[i].number = i;
    rng_init (&clients[i].rng, seed, i);
  }
  run_threads (client, clients, sizeof clients[0], THREADS);
  dir_get_stats (dir, &stats);
  CHECK (stats.alloc.allocated > 0);
  CHECK (dir_close (dir) == 0);
  for (unsigned i = 0; i < IMAGES; i++) {
    snprintf (name, sizeof name, "%u.qcow2", i);
    CHECK (image_check (name) == 0);
  }
  free (path);
  images_leave ();
  printf ("%u visits, %u refused, %" PRIu64 " bytes of mappings at most\n", visits,
          refused, stats.map.peak_bytes);
  return 0;
}
