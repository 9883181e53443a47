/* SPDX-License-Identifier: BSD-3-Clause
 *
 * While a slow request runs, clusters that other requests free must not be reused.  This
 * must not trigger checkpoints, which would not help, nor use memory without limit.
 */

#include <config.h>

#include <inttypes.h>
#include <pthread.h>
#include <semaphore.h>
#include <string.h>

#include "disk/export.h"
#include "change/create.h"
#include "lib/images.h"
#include "lib/stubs.h"

#define MIB (UINT64_C (1) << 20)
#define SIZE (1024 * MIB)
#define CACHE MIB

static struct disk *d;
static struct export *client;

/* --- a read that takes as long as we like --- */

static sem_t held, released;
static _Thread_local bool hold_me;

static int
hold (void *opaque, const char *path, enum storage_op op,
      const struct iovec *iov, int niov, uint64_t offset, uint64_t count,
      bool dsync)
{
  (void) opaque; (void) path; (void) iov; (void) niov; (void) offset;
  (void) count; (void) dsync;
  if (op == STORAGE_OP_READ && hold_me) {
    hold_me = false;
    sem_post (&held);
    while (sem_wait (&released) == -1)
      ;
  }
  return op == STORAGE_OP_SYNC;        /* these are left out */
}

static void
read_end (void)
{
  static char mine[65536];

  CHECK (export_read (client, mine, sizeof mine, SIZE - sizeof mine) == 0);
}

static void *
read_slowly (void *arg)
{
  (void) arg;
  hold_me = true;
  read_end ();
  return NULL;
}

static pthread_t
begin_read (void)
{
  pthread_t t;

  /* Data is slow, and not the table: others may need what is read with the slice. */
  read_end ();
  CHECK (pthread_create (&t, NULL, read_slowly, NULL) == 0);
  while (sem_wait (&held) == -1)
    ;
  return t;
}

static void
end_read (pthread_t t)
{
  sem_post (&released);
  CHECK (pthread_join (t, NULL) == 0);
}

/* --- images --- */

static char *
open_image (const char *name, uint64_t cluster_size)
{
  static const struct storage_hooks hooks = { .before = hold };
  char *path = images_path (name);
  const struct create_options options = {
    .path = path,
    .image = {
      .size = SIZE, .cluster_size = cluster_size, .version = 3,
      .refcount_bits = 16, .preallocation = PREALLOCATION_METADATA,
    },
  };
  const struct disk_options serve = {
    .path = path, .l2_cache = CACHE, .l2_slice = 4096, .discard = true,
    .lock = true, .hooks = &hooks,
  };
  struct created *created;

  CHECK (create_image (&options, &created) == 0);
  created_keep (created);
  CHECK (disk_open (&serve, &d) == 0);
  CHECK ((client = export_open (d, "", true)) && export_is_writable (client));
  return path;
}

static void
close_image (const char *name, char *path)
{
  CHECK (export_close (client) == 0);
  CHECK (disk_close (d) == 0);
  CHECK (image_check (name) == 0);
  remove (name);
  free (path);
}

static struct disk_stats
stats (void)
{
  struct disk_stats s;

  disk_get_stats (d, &s);
  return s;
}

/* --- tests --- */

static void
test_checkpoints (void)
{
  char *path = open_image ("a.qcow2", 65536);
  const pthread_t reader = begin_read ();
  uint64_t runs;

  CHECK (export_trim (client, 512 * MIB, 0, false) == 0);
  CHECK (export_flush (client) == 0);
  runs = stats ().checkpoint.runs;
  for (uint64_t i = 0; i < 100; i++)
    CHECK (export_trim (client, 65536, 600 * MIB + i * 2 * 65536, false) == 0);
  printf ("%" PRIu64 " checkpoints for 100 small trims\n",
          stats ().checkpoint.runs - runs);
  CHECK (stats ().checkpoint.runs - runs <= 1);
  CHECK (stats ().alloc.punched == 0);
  end_read (reader);
  CHECK (export_flush (client) == 0);
  CHECK (stats ().alloc.punched > 512 * MIB / 65536);
  close_image ("a.qcow2", path);
}

/* Isolated clusters: each needs an item of its own. */
static void
test_memory (void)
{
  const uint64_t n = 100000;
  char *path = open_image ("b.qcow2", 512);
  const pthread_t reader = begin_read ();
  static char buf[512];
  uint64_t i, size, held_back;

  for (i = 0; i < n; i++)
    CHECK (export_trim (client, 512, i * 1024, false) == 0);
  CHECK (export_flush (client) == 0);
  held_back = stats ().map.bytes;
  printf ("%" PRIu64 " KiB for %" PRIu64 " runs that wait\n", held_back >> 10, n);
  CHECK (held_back <= 3 * CACHE);
  CHECK (stats ().alloc.punched == 0);
  size = stats ().alloc.extended;

  /* Nothing of that is handed out. */
  memset (buf, 7, sizeof buf);
  for (i = 0; i < 100; i++)
    CHECK (export_write (client, buf, sizeof buf, i * 1024, false) == 0);
  CHECK (stats ().alloc.extended > size);

  /* Then all of it can be. */
  end_read (reader);
  CHECK (export_flush (client) == 0);
  CHECK (stats ().alloc.punched > 0);
  size = stats ().alloc.extended;
  for (; i < n; i++)
    CHECK (export_write (client, buf, sizeof buf, i * 1024, false) == 0);
  printf ("%" PRIu64 " new clusters for %" PRIu64 " that were free\n",
          stats ().alloc.extended - size, n);
  CHECK (stats ().alloc.extended - size < n / 10);
  close_image ("b.qcow2", path);
}

int
main (void)
{
  CHECK (sem_init (&held, 0, 0) == 0 && sem_init (&released, 0, 0) == 0);
  images_enter ("slow-request");
  test_checkpoints ();
  test_memory ();
  images_leave ();
  return 0;
}
