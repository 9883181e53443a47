/* SPDX-License-Identifier: BSD-3-Clause
 *
 * on-enospc=wait: requests that find no space wait until there is some, of whatever kind
 * they are; other threads are served meanwhile, and free space for those that wait.
 * Nothing is reported but that waiting begins and ends.  If no client waits any more, the
 * request fails with ENOSPC.
 *
 * Environment: SEED repeats a run.
 */

#include <config.h>

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "disk/export.h"
#include "change/create.h"
#include "lib/images.h"
#include "lib/simdisk.h"

#define SIZE (UINT64_C (8) << 20)
#define THREADS 6

static struct disk *served;
static struct export *client;
static struct simdisk *sim;
static atomic_bool client_gone;
static atomic_uint news;

static bool
client_waits (void)
{
  return !client_gone;
}

static void
note_news (void)
{
  news++;
}

static struct spacewait_stats
space_stats (void)
{
  struct disk_stats stats;

  disk_get_stats (served, &stats);
  return stats.space;
}

static void
until_waiting (unsigned n)
{
  while (space_stats ().waiting < n)
    usleep (1000);
}

static char *
make_image (void)
{
  const struct create_options options = {
    .path = images_path ("a.qcow2"),
    .image = { .size = SIZE, .cluster_size = 4096, .version = 3, .refcount_bits = 16 },
  };
  struct created *created;

  remove ("a.qcow2");
  CHECK (create_image (&options, &created) == 0);
  created_keep (created);
  return (char *) options.path;
}

/* The image can grow by no more than ROOM bytes. */
static void
open_disk (const char *path, uint64_t seed, uint64_t room, bool waits)
{
  struct disk_options options = {
    .path = path, .l2_cache = 1 << 20, .l2_slice = 4096, .discard = true,
    .client_waits = client_waits, .wait_for_space = waits, .news = note_news,
  };

  sim = simdisk_new (path, seed);
  simdisk_limit (sim, simdisk_size (sim) + room);
  options.hooks = simdisk_hooks (sim);
  client_gone = false;
  CHECK (disk_open (&options, &served) == 0);
  CHECK ((client = export_open (served, "", true)) && export_is_writable (client));
}

/* The image is clean. */
static void
close_disk (void)
{
  struct rng rng;

  CHECK (export_close (client) == 0 && disk_close (served) == 0);
  rng_init (&rng, 1, 1);
  blob_save ("closed.qcow2", simdisk_cut (sim, &rng, CUT_NOTHING));
  CHECK (image_check ("closed.qcow2") == 0);
  simdisk_free (sim);
}

/* --- requests of each kind --- */

struct request {
  uint64_t offset, count;
  int result, err;
};

static void *
write_range (void *opaque)
{
  struct request *q = opaque;
  char *buf = malloc (q->count);

  CHECK (buf != NULL);
  memset (buf, 1 + q->offset / q->count % 200, q->count);
  q->result = export_write (client, buf, q->count, q->offset, q->offset % 3 == 0);
  q->err = errno;
  free (buf);
  return NULL;
}

static void
check_range (const struct request *q)
{
  char *buf = malloc (q->count);

  CHECK (buf && export_read (client, buf, q->count, q->offset) == 0);
  for (uint64_t i = 0; i < q->count; i++)
    CHECK (buf[i] == (char) (1 + q->offset / q->count % 200));
  free (buf);
}

/* Writes wait together.  Meanwhile others are served; then there is space. */
static void
test_writes (const char *path, uint64_t seed)
{
  const unsigned long errors = error_count ();
  struct request requests[THREADS], small = { .offset = 0, .count = 4096 };
  pthread_t threads[THREADS];

  open_disk (path, seed, 1 << 20, true);
  news = 0;
  write_range (&small);
  CHECK (small.result == 0 && space_stats ().pauses == 0);
  for (unsigned i = 0; i < THREADS; i++) {
    requests[i] = (struct request) { (1 + i) << 20, 1 << 20, 0, 0 };
    CHECK (pthread_create (&threads[i], NULL, write_range, &requests[i]) == 0);
  }
  until_waiting (THREADS);
  write_range (&small);
  check_range (&small);
  CHECK (small.result == 0 && space_stats ().waiting == THREADS);
  simdisk_limit (sim, UINT64_MAX);
  for (unsigned i = 0; i < THREADS; i++) {
    CHECK (pthread_join (threads[i], NULL) == 0 && requests[i].result == 0);
    check_range (&requests[i]);
  }
  CHECK (space_stats ().waiting == 0 && space_stats ().pauses == 1);
  CHECK (space_stats ().requests == THREADS && news == 2);
  CHECK (error_count () == errors + 2);
  close_disk ();
}

/* What another client trims is space for those that wait. */
static void
test_trim (const char *path, uint64_t seed)
{
  struct request first = { .offset = 0, .count = 2 << 20 };
  struct request second = { .offset = 4 << 20, .count = 2 << 20 };
  pthread_t thread;

  open_disk (path, seed, 3 << 20, true);
  write_range (&first);
  CHECK (first.result == 0);
  CHECK (pthread_create (&thread, NULL, write_range, &second) == 0);
  until_waiting (1);
  CHECK (export_trim (client, first.count, first.offset, false) == 0);
  CHECK (export_flush (client) == 0);
  CHECK (pthread_join (thread, NULL) == 0 && second.result == 0);
  check_range (&second);
  close_disk ();
}

static void *
flush (void *opaque)
{
  struct request *q = opaque;

  q->result = export_flush (client);
  return NULL;
}

static void *
zero (void *opaque)
{
  struct request *q = opaque;

  q->result = export_zero (client, q->count, q->offset, 0, true);
  return NULL;
}

/* A flush whose metadata finds no space, and zeros that are written. */
static void
test_others (const char *path, uint64_t seed)
{
  const struct fault full = {
    .ops = 1 << STORAGE_OP_WRITE, .times = UINT64_MAX, .err = ENOSPC, .partial = true,
  };
  void *(*const kinds[]) (void *) = { flush, zero, write_range };

  for (unsigned i = 0; i < 3; i++) {
    struct request before = { .offset = 8192, .count = 65536 };
    struct request q = { .offset = 1000, .count = 5000 };
    pthread_t thread;

    open_disk (path, seed, UINT64_MAX / 2, true);
    write_range (&before);
    simdisk_fault (sim, &full);
    CHECK (pthread_create (&thread, NULL, kinds[i], &q) == 0);
    until_waiting (1);
    simdisk_fault (sim, NULL);
    CHECK (pthread_join (thread, NULL) == 0 && q.result == 0);
    close_disk ();
  }
}

static void *
trim (void *opaque)
{
  struct request *q = opaque;

  q->result = export_trim (client, q->count, q->offset, false);
  return NULL;
}

/* A trim that needs a table of its own: a snapshot has the one that is there. */
static void
test_trim_waits (const char *path, uint64_t seed)
{
  const struct fault full = {
    .ops = 1 << STORAGE_OP_WRITE | 1 << STORAGE_OP_TRUNCATE | 1 << STORAGE_OP_ALLOCATE,
    .times = UINT64_MAX, .err = ENOSPC,
  };
  struct request q = { .offset = 0, .count = 65536 };
  char *with_snapshot;
  pthread_t thread;

  open_disk (path, seed, UINT64_MAX / 2, true);
  write_range (&q);
  close_disk ();
  image_snapshot ("closed.qcow2", "s");
  with_snapshot = images_path ("closed.qcow2");
  open_disk (with_snapshot, seed, UINT64_MAX / 2, true);
  simdisk_fault (sim, &full);
  CHECK (pthread_create (&thread, NULL, trim, &q) == 0);
  until_waiting (1);
  simdisk_fault (sim, NULL);
  CHECK (pthread_join (thread, NULL) == 0 && q.result == 0);
  close_disk ();
  free (with_snapshot);
}

/* Nobody waits for it, or nobody wants to. */
static void
test_ends (const char *path, uint64_t seed)
{
  struct request q = { .offset = 0, .count = 4 << 20 };
  pthread_t thread;

  quiet_errors = true;
  open_disk (path, seed, 1 << 20, true);
  CHECK (pthread_create (&thread, NULL, write_range, &q) == 0);
  until_waiting (1);
  client_gone = true;
  CHECK (pthread_join (thread, NULL) == 0 && q.result == -1 && q.err == ENOSPC);
  CHECK (space_stats ().waiting == 0);
  close_disk ();

  open_disk (path, seed, 1 << 20, false);
  write_range (&q);
  CHECK (q.result == -1 && q.err == ENOSPC && space_stats ().pauses == 0);
  close_disk ();
  quiet_errors = false;
}

int
main (void)
{
  const uint64_t seed = seed_from_env ();
  char *path;

  images_enter ("waits-for-space");
  path = make_image ();
  test_writes (path, seed);
  test_trim (path, seed);
  test_others (path, seed);
  test_trim_waits (path, seed);
  test_ends (path, seed);
  free (path);
  images_leave ();
  return 0;
}
