/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What clients never flush is durable after checkpoint-interval=, and not only in the
 * page cache: writes that allocate, writes to clusters that are there, in the image and
 * in an external data file, what is written after the host was full, however long that
 * was, and what was written before that by a client that has left.  With 0, nothing is
 * durable before a flush.  A full host does not fill the log.
 *
 * The clock stands still until the test lets time pass, so all this is exact: at the end
 * of the interval the write is on the simulated disk, and QEMU reads it there.
 *
 * Environment: SEED repeats a run.
 */

#include <config.h>

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "disk/export.h"
#include "lib/images.h"
#include "lib/simdisk.h"
#include "lib/stillclock.h"

#define IMAGE "a.qcow2"
#define DATA "a.data"
#define SIZE (UINT64_C (1) << 20)
#define CLUSTER 4096
#define STEPS 8                 /* of an interval */

static uint64_t seed;
static struct simdisk *sim;
static struct disk *served;
static struct export *client;
static struct blob written;     /* what the disk has to contain */
static unsigned interval_ms;

static void
open_disk (unsigned interval, bool data_file)
{
  const struct image_spec spec = {
    .version = 3, .cluster_size = CLUSTER, .refcount_bits = 16, .size = SIZE,
    .data_file = data_file ? DATA : NULL,
  };
  char *const path = images_path (IMAGE), *const data = images_path (DATA);
  struct disk_options options = {
    .path = path, .l2_cache = 1 << 20, .l2_slice = 4096, .discard = true,
    .data_file = DATA_FILE_FOLLOW, .checkpoint_interval_ms = interval,
  };

  image_create (IMAGE, &spec);
  sim = simdisk_new (path, seed);
  if (data_file)
    simdisk_add (sim, data);
  options.hooks = simdisk_hooks (sim);
  interval_ms = interval;
  written = (struct blob) { calloc (1, SIZE), SIZE };
  CHECK (written.data != NULL);
  CHECK (disk_open (&options, &served) == 0);
  CHECK ((client = export_open (served, "", true)) && export_is_writable (client));
  free (path);
  free (data);
}

static uint64_t
timed (void)
{
  struct disk_stats stats;

  disk_get_stats (served, &stats);
  return stats.checkpoint.timed;
}

static void
close_disk (void)
{
  CHECK (export_close (client) == 0 && disk_close (served) == 0);
  simdisk_free (sim);
  blob_free (&written);
}

static void
write_cluster (unsigned n, int byte)
{
  memset (written.data + n * CLUSTER, byte, CLUSTER);
  CHECK (export_write (client, written.data + n * CLUSTER, CLUSTER, n * CLUSTER,
                       false) == 0);
}

/* Only while no thread uses the disk.  Is everything there after a power cut? */
static bool
is_durable (void)
{
  const struct blob *left;
  struct rng rng;

  if (!simdisk_is_durable (sim, false))
    return false;
  rng_init (&rng, seed, 1);
  left = simdisk_cut (sim, &rng, CUT_NOTHING);
  blob_save (IMAGE, left);
  if ((left = simdisk_data_cut (sim))->data)
    blob_save (DATA, left);
  return image_shows (IMAGE, NULL, &written);
}

static void
pass_steps (unsigned n)
{
  while (n-- > 0)
    stillclock_pass (interval_ms / STEPS);
}

/* What was just written is durable in time, whenever it was written. */
static void
must_become_durable (void)
{
  pass_steps (STEPS);
  CHECK (is_durable ());
}

/* --- writes --- */

static void
test_writes (unsigned interval, bool data_file)
{
  open_disk (interval, data_file);
  for (unsigned i = 0; i < STEPS; i++) {
    write_cluster (i, 'a');     /* allocates */
    must_become_durable ();
    pass_steps (i);
    write_cluster (i, 'b');     /* does not */
    must_become_durable ();
  }
  CHECK (timed () >= 2 * STEPS);
  close_disk ();
}

/* No client writes: there is nothing to be done. */
static void
test_idle (void)
{
  uint64_t checkpoints, syncs;

  open_disk (1000, false);
  write_cluster (0, 'a');
  must_become_durable ();
  checkpoints = timed ();
  syncs = simdisk_operations (sim, 1 << STORAGE_OP_SYNC);
  pass_steps (20 * STEPS);
  CHECK (timed () == checkpoints);
  CHECK (simdisk_operations (sim, 1 << STORAGE_OP_SYNC) == syncs);
  write_cluster (1, 'a');
  must_become_durable ();
  close_disk ();
}

/* --- the host is full --- */

static const struct fault full = {
  .ops = 1 << STORAGE_OP_WRITE | 1 << STORAGE_OP_TRUNCATE | 1 << STORAGE_OP_ALLOCATE,
  .times = UINT64_MAX, .err = ENOSPC,
};

enum after { AT_ONCE, AFTER_FLUSH, AFTER_FLUSH_AND_PAUSE };

/* The host is full for that many intervals; then there is space, and ... */
static void
test_full (unsigned intervals, enum after after)
{
  unsigned long errors = error_count ();

  open_disk (1000, false);
  write_cluster (0, 'a');
  simdisk_fault (sim, &full);
  pass_steps (intervals * STEPS);
  CHECK (!is_durable ());
  /* Reported at once, and then less and less often, at least once a minute. */
  CHECK (error_count () > errors);
  CHECK (error_count () - errors <= 7 + intervals / 60);
  errors = error_count ();
  pass_steps (61 * STEPS);
  CHECK (error_count () > errors);
  simdisk_fault (sim, NULL);
  if (after != AT_ONCE)
    CHECK (export_flush (client) == 0);
  if (after == AFTER_FLUSH_AND_PAUSE)
    pass_steps (STEPS);
  write_cluster (0, 'b');
  write_cluster (1, 'c');
  must_become_durable ();

  /* If that happens again, it is news. */
  write_cluster (2, 'd');
  simdisk_fault (sim, &full);
  errors = error_count ();
  pass_steps (2 * STEPS);
  CHECK (error_count () == errors + 1);
  simdisk_fault (sim, NULL);
  must_become_durable ();
  close_disk ();
}

/* The client leaves while the host is full.  Nobody comes, but there is space again; then
 * another client comes, and it is as if nothing had happened. */
static void
test_left (unsigned intervals)
{
  open_disk (1000, false);
  write_cluster (0, 'a');
  simdisk_fault (sim, &full);
  CHECK (export_close (client) == -1);
  pass_steps (intervals * STEPS);
  CHECK (!is_durable ());
  simdisk_fault (sim, NULL);
  must_become_durable ();
  CHECK ((client = export_open (served, "", true)) && export_is_writable (client));
  write_cluster (1, 'b');
  must_become_durable ();
  close_disk ();
}

/* --- no interval --- */

static void
test_never (bool data_file)
{
  open_disk (0, data_file);
  write_cluster (0, 'a');
  stillclock.ms += 3600 * 1000;
  CHECK (!is_durable ());
  CHECK (export_flush (client) == 0);
  CHECK (is_durable ());
  write_cluster (0, 'b');
  stillclock.ms += 3600 * 1000;
  CHECK (!is_durable () && timed () == 0);
  CHECK (export_flush (client) == 0);
  CHECK (is_durable ());
  close_disk ();
}

int
main (void)
{
  seed = seed_from_env ();
  images_enter ("checkpoint-interval");
  for (unsigned i = 0; i < 2; i++) {
    test_writes (1000, i);
    test_writes (5000, i);
    test_never (i);
  }
  test_idle ();
  quiet_errors = true;
  test_full (1, AFTER_FLUSH);
  test_full (36, AFTER_FLUSH);
  test_full (36, AFTER_FLUSH_AND_PAUSE);
  test_full (36, AT_ONCE);
  test_full (200, AT_ONCE);
  test_left (1);
  test_left (36);
  images_leave ();
  return 0;
}
