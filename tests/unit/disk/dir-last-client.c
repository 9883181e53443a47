/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The last client of an image in a directory leaves, or the server ends while there are
 * clients (whose connections nbdkit then does not close), perhaps while the host is full.
 * What clients have written is not lost: the next one finds it, and it is in the image
 * when that is closed, which then has no faults; its bitmaps have recorded it.  Only if
 * there is no space at the end, what was written since the last flush is lost: the server
 * says that, and only then.
 */

#include <config.h>

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "util/epoch.h"
#include "request/bitmap.h"
#include "disk/dir.h"
#include "lib/images.h"
#include "lib/simdisk.h"
#include "lib/stubs.h"

#define IMAGE "a.qcow2"
#define OTHER "b.qcow2"         /* on a host that is never full */
#define SIZE (UINT64_C (16) << 20)
#define CLUSTER 4096
#define LOST ": the changes since the last flush are lost: there was no space"

struct client {
  struct dir_image *image;
  struct export *e;
};

static struct dir *dir;
static struct simdisk *sim;
static struct client writer, reader, other;
static struct disk_inside inside;       /* of the writer's disk */
static struct epoch_section section;
static char data[65536];
static unsigned bitmaps;
static bool is_full;
static bool is_flushed;

static void
come (struct client *c, const char *name, bool writes)
{
  const char *rest;

  CHECK ((c->image = dir_enter (dir, name, &rest)));
  CHECK ((c->e = export_open (dir_disk (c->image), rest, writes)));
  CHECK (export_is_writable (c->e) == writes);
}

/* --- steps --- */

static void
writer_comes (void)
{
  come (&writer, IMAGE, true);
  inside = disk_inside (dir_disk (writer.image));
}

static void
writer_leaves (void)
{
  export_close (writer.e);
  writer.e = NULL;
  dir_leave (dir, writer.image);
}

static void
reader_comes (void)
{
  come (&reader, IMAGE, false);
}

static void
reader_leaves (void)
{
  CHECK (export_close (reader.e) == 0);
  dir_leave (dir, reader.image);
}

static void
other_comes_and_writes (void)
{
  come (&other, OTHER, true);
  CHECK (export_write (other.e, data, sizeof data, 100, false) == 0);
}

static void
writes (void)
{
  CHECK (export_write (writer.e, data, CLUSTER, 0, false) == 0);
  is_flushed = false;
}

/* (Its clusters were allocated ahead.) */
static void
writes_elsewhere (void)
{
  CHECK (export_write (writer.e, data, CLUSTER, SIZE / 2, false) == 0);
  is_flushed = false;
}

static void
flushes (void)
{
  CHECK (export_flush (writer.e) == 0);
  is_flushed = true;
}

static void
host_is_full (void)
{
  static const struct fault full = {
    .ops = 1 << STORAGE_OP_WRITE | 1 << STORAGE_OP_TRUNCATE | 1 << STORAGE_OP_ALLOCATE,
    .times = UINT64_MAX, .err = ENOSPC,
  };

  simdisk_fault (sim, &full);
  is_full = true;
}

/* What it has written can be stored, but there is no cluster for the bitmaps. */
static void
writes_all_there_is (void)
{
  static const struct fault no_growth = {
    .ops = 1 << STORAGE_OP_TRUNCATE | 1 << STORAGE_OP_ALLOCATE,
    .times = UINT64_MAX, .err = ENOSPC,
  };

  simdisk_fault (sim, &no_growth);
  is_full = true;
  for (unsigned at = CLUSTER; export_write (writer.e, data, CLUSTER, at, false) == 0;
       at += CLUSTER)
    CHECK (at + CLUSTER < SIZE);
  flushes ();
}

static void
host_has_space (void)
{
  simdisk_fault (sim, NULL);
  is_full = false;
}

static void
timer_has_stored (void)
{
  while (checkpoint_has_changes (inside.view->w->checkpoint))
    usleep (1000);
}

static void
reads (void)
{
  static char found[CLUSTER];

  CHECK (export_read (writer.e, found, CLUSTER, 0) == 0);
  CHECK (memcmp (found, data, CLUSTER) == 0);
}

static void
request_of_reader_begins (void)
{
  section = epoch_enter (inside.epoch);
}

static void
request_of_reader_ends (void)
{
  epoch_leave (inside.epoch, section);
}

static void
trims (void)
{
  CHECK (export_trim (writer.e, CLUSTER, CLUSTER, false) == 0);
}

/* (Opens and closes images, too.) */
static void
statistics_are_asked (void)
{
  struct disk_stats stats;

  dir_get_stats (dir, &stats);
  CHECK (stats.alloc.allocated > 0);
}

static void
bitmap_has_recorded (void)
{
  struct disk_options options = { .l2_cache = 1 << 20, .l2_slice = 4096 };
  struct dirtyset *set;
  uint64_t len = CLUSTER;
  struct disk *d;
  char *path;

  options.path = path = images_path (IMAGE);
  CHECK (disk_open (&options, &d) == 0);
  CHECK (bitmap_freeze (disk_bitmaps (d), 0, &set) == 0);
  CHECK (dirtyset_find (set, 0, &len));
  dirtyset_free (set);
  CHECK (disk_close (d) == 0);
  free (path);
}

static void
image_is_closed (void)
{
  struct rng rng;
  struct blob b;
  int faults;

  /* (Otherwise the file may just have become shorter.) */
  CHECK (bitmaps == 0 || simdisk_is_durable (sim, false));
  rng_init (&rng, 1, 1);
  blob_save (IMAGE, simdisk_cut (sim, &rng, CUT_NOTHING));
  faults = image_check (IMAGE);
  CHECK (is_full ? faults != 2 : faults == 0);
  image_contents (IMAGE, NULL, &b);
  CHECK (memcmp (b.data, data, CLUSTER) == 0);
  blob_free (&b);
  if (bitmaps > 0)
    bitmap_has_recorded ();
}

static void
server_ends (void)
{
  struct blob b;

  clear_last_error ();
  CHECK (dir_close (dir) == (is_full ? -1 : 0));        /* (perhaps only for counts) */
  CHECK ((strstr (last_error (), IMAGE LOST) != NULL) == (is_full && !is_flushed));
  image_is_closed ();
  if (other.e) {
    CHECK (image_check (OTHER) == 0);
    image_contents (OTHER, NULL, &b);
    CHECK (memcmp (b.data + 100, data, sizeof data) == 0);
    blob_free (&b);
  }
  free (writer.e);              /* (There is nothing to leave any more.) */
  free (other.e);
  writer.e = other.e = NULL;
}

/* --- cases --- */

enum timers {                   /* of checkpoints */
  NO_TIMER = 1, TIMER, BOTH
};

static const struct story {
  const char *name;
  int version;
  unsigned bitmaps;
  enum timers timers;
  void (*steps[14]) (void);     /* then the server ends */
} stories[] = {
  { "the host is full, then it has space, and the server ends", 3, 1, BOTH,
    { writer_comes, writes, host_is_full, writer_leaves, statistics_are_asked,
      host_has_space } },
  { "the same, and only a bitmap was left", 3, 1, BOTH,
    { writer_comes, writes, writes_all_there_is, writer_leaves, statistics_are_asked,
      host_has_space } },
  { "the host is full, then it has space, and another client leaves", 3, 1, BOTH,
    { writer_comes, writes, host_is_full, writer_leaves, statistics_are_asked,
      writer_comes, reads, writer_leaves, writer_comes, host_has_space, writer_leaves,
      image_is_closed, statistics_are_asked } },
  /* (If the host were full when it leaves, there might be a cluster for the bitmap.) */
  { "the same, and only a bitmap was left", 3, 1, BOTH,
    { writer_comes, writes, writes_all_there_is, writer_leaves, statistics_are_asked,
      writer_comes, reads, host_has_space, writer_leaves, image_is_closed,
      statistics_are_asked } },
  /* If it was closed now, it would have leaks, in version 2 for good. */
  { "all is stored, but the host is full again when a reader leaves", 2, 0, TIMER,
    { writer_comes, writes, host_is_full, writer_leaves, host_has_space,
      timer_has_stored, host_is_full, reader_comes, reader_leaves, host_has_space } },
  { "the same, in version 3", 3, 0, TIMER,
    { writer_comes, writes, host_is_full, writer_leaves, host_has_space,
      timer_has_stored, host_is_full, reader_comes, reader_leaves, host_has_space } },
  /* More bitmaps than the cluster that is about to be freed has space for. */
  { "a reader's request delays what is freed, and leaves last", 3, 3, NO_TIMER,
    { writer_comes, reader_comes, writes, writes_all_there_is, request_of_reader_begins,
      trims, writer_leaves, request_of_reader_ends, reader_leaves, host_has_space } },
  { "the host is full at the end", 3, 0, NO_TIMER,
    { writer_comes, writes, flushes, writes_elsewhere, host_is_full, writer_leaves } },
  { "the host is full at the end, and all was flushed", 3, 0, NO_TIMER,
    { writer_comes, writes, flushes, host_is_full, writer_leaves } },
  { "the server ends while there are clients", 3, 0, NO_TIMER,
    { writer_comes, writes, other_comes_and_writes } },
};

static void
test (const struct story *story, unsigned interval_ms)
{
  const struct image_spec spec = {
    .version = story->version, .cluster_size = CLUSTER, .refcount_bits = 16, .size = SIZE,
  };
  struct disk_options options = {
    .l2_cache = 1 << 20, .l2_slice = 4096, .discard = true, .lock = true,
    .checkpoint_interval_ms = interval_ms,
  };
  char *path, *directory;

  fprintf (stderr, "%s (%u ms)\n", story->name, interval_ms);
  options.path = directory = images_path (".");
  path = images_path ("./" IMAGE);
  image_create (IMAGE, &spec);
  image_create (OTHER, &spec);
  bitmaps = story->bitmaps;
  for (unsigned i = 0; i < bitmaps; i++)
    image_bitmap (IMAGE, (const char *[]) { "b", "c", "d" }[i], 0);
  sim = simdisk_new (path, 1);
  options.hooks = simdisk_hooks (sim);
  host_has_space ();
  CHECK (dir_open (&options, &dir) == 0);
  for (unsigned i = 0; story->steps[i]; i++)
    story->steps[i] ();
  server_ends ();
  simdisk_free (sim);
  free (path);
  free (directory);
}

int
main (void)
{
  const unsigned rounds = long_suite () ? 5 : 1;

  images_enter ("dir-last-client");
  quiet_errors = true;
  memset (data, 'a', sizeof data);
  for (unsigned r = 0; r < rounds; r++)
    for (unsigned i = 0; i < sizeof stories / sizeof *stories; i++)
      for (unsigned ms = 0; ms <= 1; ms++)
        if (stories[i].timers & 1u << ms)
          test (&stories[i], ms);
  images_leave ();
  return 0;
}
