/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Bitmaps that survive a crash, when they are narrowed at a bad moment:
 *
 *   - between the look of a request whether a region is awake, and its setting bits
 *   there:
 *     the file has the bit, and no longer all of the region
 *   - between the count of cells that lack a cluster, and their allocation, a request
 *   makes
 *     one of them full: it gets none, and none is leaked
 */

#include <config.h>

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <string.h>

#include "disk/export.h"
#include "space/alloc.h"
#include "lib/checker.h"
#include "lib/images.h"

static void at_set (void);
static int at_yield (void);
static int at_reserve (struct alloc *, uint64_t n, struct alloc_run *);

#undef atomic_fetch_or
#define atomic_fetch_or(bits, mask) \
  (at_set (), atomic_fetch_or_explicit (bits, mask, memory_order_seq_cst))
#define sched_yield at_yield
#define alloc_reserve at_reserve
#include "request/bitmaplog.c"
#include "request/bitmapstore.c"
#undef sched_yield
#undef alloc_reserve

#define IMAGE "disk.qcow2"
#define MiB (UINT64_C (1) << 20)

static struct disk *d;
static struct export *client;
static bool sets, reserves;     /* the next call meets what the test has for it */
static atomic_bool waits, ended;
static pthread_t narrower;

static void
open_image (uint64_t cluster_size, uint64_t size, unsigned granularity_bits)
{
  const struct image_spec spec = {
    .version = 3, .cluster_size = cluster_size, .refcount_bits = 16, .size = size,
  };
  struct disk_options options = {
    .l2_cache = 1 << 20, .l2_slice = 512, .bitmap_durable = true,
  };

  image_create (IMAGE, &spec);
  image_bitmap (IMAGE, "b", granularity_bits);
  options.path = images_path (IMAGE);
  CHECK (disk_open (&options, &d) == 0);
  free ((char *) options.path);
  client = export_open (d, "", true);
  CHECK (client && export_is_writable (client));
}

static void
close_image (void)
{
  CHECK (export_close (client) == 0 && disk_close (d) == 0);
  CHECK (image_check (IMAGE) == 0);
}

static void
write_at (uint64_t at, uint64_t count)
{
  char *data = calloc (count, 1);

  CHECK (data != NULL);
  memset (data, 'x', count);
  CHECK (export_write (client, data, count, at, false) == 0);
  free (data);
}

/* How many of the first COUNT sectors are marked in the file?  LAST: and which is the
 * last one? */
static uint64_t
count_marked (uint64_t count, uint64_t *last)
{
  unsigned char *sectors = calloc (count, 1);
  struct checked_bitmap b;
  struct blob file;
  uint64_t n = 0;

  CHECK (sectors != NULL);
  blob_load (IMAGE, &file);
  CHECK (checker_bitmap (&file, "b", &b, sectors) && !b.in_use);
  blob_free (&file);
  for (uint64_t i = 0; i < count; i++)
    if (sectors[i]) {
      *last = i;
      n++;
    }
  free (sectors);
  return n;
}

/* --- a request is about to set bits --- */

/* From the second time on, regions that are not used close. */
static void *
narrow (void *opaque)
{
  for (unsigned i = 0; i < 3; i++)
    bitmap_narrow (disk_bitmaps (d));
  ended = true;
  return opaque;
}

static void
at_set (void)
{
  if (!sets)
    return;
  sets = false;
  CHECK (pthread_create (&narrower, NULL, narrow, NULL) == 0);
  while (!waits && !ended)
    (sched_yield) ();
}

static int
at_yield (void)
{
  waits = true;
  return (sched_yield) ();
}

static void
test_setter (void)
{
  uint64_t last;

  open_image (65536, 64 * MiB, 16);
  write_at (0, 512);
  CHECK (count_marked (64 * MiB / 512, &last) >= 4 * MiB / 512);
  sets = true;
  write_at (MiB, 512);
  CHECK (pthread_join (narrower, NULL) == 0);
  CHECK (count_marked (64 * MiB / 512, &last) == 2 * 128);
  CHECK (last == MiB / 512 + 127);
  close_image ();
}

/* --- a cell becomes full --- */

#define CELL (UINT64_C (8) * 512 * 512)  /* bytes of the disk */

static int
at_reserve (struct alloc *a, uint64_t n, struct alloc_run *run)
{
  if (reserves) {
    reserves = false;
    write_at (CELL - 512, 512);
  }
  return alloc_reserve (a, n, run);
}

static void
test_full (void)
{
  uint64_t last;

  open_image (512, 2 * CELL, 9);
  write_at (0, CELL - 512);
  reserves = true;
  bitmap_narrow (disk_bitmaps (d));
  CHECK (!reserves);
  close_image ();
  CHECK (count_marked (2 * CELL / 512, &last) == CELL / 512 && last == CELL / 512 - 1);
}

int
main (void)
{
  images_enter ("bitmap-races");
  test_setter ();
  test_full ();
  images_leave ();
  return 0;
}
