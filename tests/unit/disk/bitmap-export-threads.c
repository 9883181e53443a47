/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What does the export bitmap:NAME contain, and which clients does it block, while other
 * clients write, connect and leave?
 *
 * While the host delays the read of a bitmap's bits, other clients connect, make the
 * first change since the bitmaps were stored, read a layer, leave (which stores the
 * bitmaps) and connect again.  Only clients of the same bitmap wait, and earlier changes
 * are marked.  If the read fails, the next client tries it again.
 *
 * Then several threads write, connect and leave, so that bits move from memory to the
 * file all the time, while others open the bitmap: all earlier changes are marked.
 *
 * Environment: SEED, SECONDS (2).
 */

#include <config.h>

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <time.h>

#include "disk/export.h"
#include "lib/checker.h"
#include "lib/images.h"

#define IMAGE "top.qcow2"
#define NAME "b"
#define SIZE (UINT64_C (16) << 20)
#define SECTORS (SIZE / 512)

/* --- a host that does not answer --- */

static struct {
  pthread_mutex_t lock;
  pthread_cond_t changed;
  uint64_t offset;              /* of the read; 0: none is held */
  bool held, answer;
  int err;                      /* of the answer */
} host = { .lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER };

static int
before_operation (void *opaque, const char *path, enum storage_op op,
                  const struct iovec *iov, int niov, uint64_t offset,
                  uint64_t count, bool dsync)
{
  int err = 0;

  (void) opaque, (void) path, (void) iov, (void) niov, (void) count, (void) dsync;
  if (op == STORAGE_OP_SYNC)
    return 1;                   /* nobody will cut the power */
  if (op != STORAGE_OP_READ)
    return 0;
  pthread_mutex_lock (&host.lock);
  if (offset == host.offset && offset != 0) {
    host.offset = 0;            /* only once */
    host.held = true;
    pthread_cond_broadcast (&host.changed);
    while (!host.answer)
      pthread_cond_wait (&host.changed, &host.lock);
    err = host.err;
  }
  pthread_mutex_unlock (&host.lock);
  errno = err;
  return err == 0 ? 0 : -1;
}

static const struct storage_hooks hooks = { .before = before_operation };

static void
hold (uint64_t offset)
{
  pthread_mutex_lock (&host.lock);
  host.offset = offset;
  host.held = host.answer = false;
  pthread_mutex_unlock (&host.lock);
}

static void
wait_until_held (void)
{
  pthread_mutex_lock (&host.lock);
  while (!host.held)
    pthread_cond_wait (&host.changed, &host.lock);
  pthread_mutex_unlock (&host.lock);
}

static void
let_go (int err)
{
  pthread_mutex_lock (&host.lock);
  host.answer = true;
  host.err = err;
  pthread_cond_broadcast (&host.changed);
  pthread_mutex_unlock (&host.lock);
}

/* --- the disk --- */

static struct disk *
open_image (const char *path)
{
  const struct disk_options options = {
    .path = path, .l2_cache = 1 << 20, .l2_slice = 4096, .hooks = &hooks,
  };
  struct disk *d;

  CHECK (disk_open (&options, &d) == 0);
  return d;
}

static struct export *
come (struct disk *d)
{
  struct export *e = export_open (d, "", true);

  CHECK (e && export_is_writable (e));
  return e;
}

/* A byte for each sector. */
static int
note (void *opaque, uint64_t offset, uint64_t len, enum extent_type type)
{
  memset ((unsigned char *) opaque + offset / 512, type == EXTENT_DATA, len / 512);
  return 0;
}

static void
read_marks (struct export *e, unsigned char *marks)
{
  CHECK (export_extents (e, SIZE, 0, false, note, marks) == 0);
}

/* --- while bits are being read --- */

struct visit {
  struct disk *disk;
  struct export *export;
};

static void *
open_bitmap (void *opaque)
{
  struct visit *v = opaque;

  v->export = export_open (v->disk, "bitmap:" NAME, true);
  return NULL;
}

static void *
live_on (void *opaque)
{
  struct disk *d = opaque;
  struct export *e, *layer;
  struct disk_stats stats;

  for (int i = 0; i < 3; i++) {
    e = come (d);
    CHECK (export_write (e, "x", 1, 4096 * i, false) == 0);
    CHECK (export_flush (e) == 0);
    layer = export_open (d, "layer:0", true);
    CHECK (layer);
    CHECK (export_close (layer) == 0);
    disk_get_stats (d, &stats);
    CHECK (export_close (e) == 0);
  }
  return NULL;
}

/* CELL: where bits are in the file, which say that sector MARKED was changed.  RECORDING:
 * there are bits in memory, and they go to the file meanwhile, where they have no cell
 * yet. */
static void
test_nobody_waits (const char *path, uint64_t cell, uint64_t marked, bool recording,
                   int err)
{
  struct disk *d = open_image (path);
  struct visit first = { d, NULL }, second = { d, NULL }, third = { d, NULL };
  const struct visit *const all[] = { &first, &second, &third };
  unsigned char *marks = calloc (1, SECTORS), *others = calloc (1, SECTORS);
  static uint64_t unmarked = SECTORS;
  struct export *writer = NULL;
  pthread_t a, b, c;

  CHECK (marks && others);
  if (recording) {
    writer = come (d);
    CHECK (export_write (writer, "x", 1, 0, false) == 0);
  }
  hold (cell);
  CHECK (pthread_create (&a, NULL, open_bitmap, &first) == 0);
  wait_until_held ();
  CHECK (pthread_create (&b, NULL, open_bitmap, &second) == 0);
  CHECK (pthread_create (&c, NULL, live_on, d) == 0);
  pthread_join (c, NULL);       /* it does not wait for the bits */
  if (recording)
    CHECK (export_close (writer) == 0);
  quiet_errors = err != 0;
  let_go (err);
  pthread_join (a, NULL);
  pthread_join (b, NULL);
  quiet_errors = false;

  CHECK ((first.export == NULL) == (err != 0) && second.export);
  read_marks (second.export, marks);
  CHECK (marks[marked] && !marks[--unmarked]);
  CHECK (!recording || marks[0]);
  /* Whoever comes while there are clients sees the same bits, the oldest. */
  writer = come (d);
  CHECK (export_write (writer, "x", 1, unmarked * 512, false) == 0);
  open_bitmap (&third);
  for (unsigned i = 0; i < 3; i++)
    if (all[i]->export) {
      read_marks (all[i]->export, others);
      CHECK (memcmp (marks, others, SECTORS) == 0);
    }
  for (unsigned i = 0; i < 3; i++)
    if (all[i]->export)
      CHECK (export_close (all[i]->export) == 0);
  /* The next one sees what was changed meanwhile. */
  open_bitmap (&third);
  read_marks (third.export, others);
  CHECK (others[unmarked]);
  CHECK (export_close (third.export) == 0 && export_close (writer) == 0);
  CHECK (disk_close (d) == 0);
  free (marks);
  free (others);
}

/* --- while bits move --- */

static struct disk *shared;
static _Atomic unsigned char done[SECTORS];
static _Atomic unsigned nr_stores, nr_opened;
static time_t deadline;

/* On a busy machine, until something has happened. */
static bool
goes_on (void)
{
  return time (NULL) < deadline || nr_stores == 0 || nr_opened == 0;
}

static void *
write_and_leave (void *opaque)
{
  struct rng *rng = opaque;
  struct export *e;

  while (goes_on ()) {
    e = come (shared);
    for (unsigned n = rng_below (rng, 20); n > 0; n--) {
      const uint64_t sector = rng_below (rng, SECTORS);

      CHECK (export_write (e, "yy", 2, sector * 512, false) == 0);
      done[sector] = 1;
    }
    CHECK (export_close (e) == 0);
    nr_stores++;
  }
  return NULL;
}

static void *
open_and_look (void *opaque)
{
  unsigned char *before = malloc (SECTORS), *marks = malloc (SECTORS);
  struct export *e;

  (void) opaque;
  CHECK (before && marks);
  while (goes_on ()) {
    for (uint64_t i = 0; i < SECTORS; i++)
      before[i] = done[i];
    e = export_open (shared, "bitmap:" NAME, true);
    CHECK (e);
    read_marks (e, marks);
    CHECK (export_close (e) == 0);
    for (uint64_t i = 0; i < SECTORS; i++)
      if (before[i] && !marks[i]) {
        fprintf (stderr, "sector %" PRIu64 " is not marked\n", i);
        exit (1);
      }
    nr_opened++;
  }
  free (before);
  free (marks);
  return NULL;
}

static void
test_nothing_is_missed (const char *path, uint64_t seed)
{
  const char *seconds = getenv ("SECONDS");
  struct rng rng[2];
  pthread_t threads[3];

  shared = open_image (path);
  deadline = time (NULL) + (seconds ? atoi (seconds) : 2);
  for (unsigned i = 0; i < 2; i++) {
    rng_init (&rng[i], seed, i);
    CHECK (pthread_create (&threads[i], NULL, write_and_leave, &rng[i]) == 0);
  }
  CHECK (pthread_create (&threads[2], NULL, open_and_look, NULL) == 0);
  for (unsigned i = 0; i < 3; i++)
    pthread_join (threads[i], NULL);
  CHECK (disk_close (shared) == 0);
  printf ("%u writers left, %u bitmaps looked at\n", nr_stores, nr_opened);
}

int
main (void)
{
  /* A cell has the bits of 512 * 8 * 512 bytes. */
  const struct image_spec spec = {
    .version = 3, .cluster_size = 512, .refcount_bits = 16, .size = SIZE,
  };
  const uint64_t seed = seed_from_env (), marked = SECTORS / 2 + 5;
  struct checked_bitmap bitmap;
  struct blob b;
  struct export *e;
  struct disk *d;
  uint64_t cell;
  char *path;

  images_enter ("bitmap-export-threads");
  image_create (IMAGE, &spec);
  image_bitmap (IMAGE, NAME, 9);
  path = images_path (IMAGE);
  d = open_image (path);
  e = come (d);
  CHECK (export_write (e, "z", 1, marked * 512, false) == 0);
  CHECK (export_close (e) == 0);
  CHECK (disk_close (d) == 0);
  blob_load (IMAGE, &b);
  CHECK (checker_bitmap (&b, NAME, &bitmap, NULL));
  cell = blob_get (&b, bitmap.table + marked / 4096 * 8, 8);
  blob_free (&b);
  CHECK (cell > 1);

  test_nobody_waits (path, cell, marked, true, 0);
  test_nobody_waits (path, cell, marked, false, 0);
  test_nobody_waits (path, cell, marked, false, EIO);
  test_nothing_is_missed (path, seed);
  CHECK (image_check (IMAGE) == 0);
  free (path);
  images_leave ();
  return 0;
}
