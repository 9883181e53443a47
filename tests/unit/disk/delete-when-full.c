/* SPDX-License-Identifier: BSD-3-Clause
 *
 * While an internal snapshot is deleted, copies of tables take the last free space.  A
 * client that needs some of it waits until the change is made, or fails, instead of being
 * told that there is none.
 */

#include <config.h>

#include <errno.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#include "util/cleanup.h"
#include "change/edit.h"
#include "disk/export.h"
#include "lib/images.h"
#include "lib/stubs.h"
#include "lib/trials.h"

#define SIZE (UINT64_C (16) << 20)
#define CLUSTER 512
#define TABLES (SIZE / CLUSTER * 8)     /* bytes */
#define LEFT (UINT64_C (48) << 10)      /* besides copies of them */
#define PIECE 4096
#define PIECES 40               /* more than is left */

static struct disk *disk;
static struct export *client;

static sem_t held, released;
static _Thread_local bool changes;
static bool holds;              /* one thread */
static atomic_bool written;
static uint64_t limit = UINT64_MAX;     /* set while there is one thread */

static int
before (void *opaque, const char *path, enum storage_op op, const struct iovec *iov,
        int niov, uint64_t offset, uint64_t count, bool dsync)
{
  (void) opaque, (void) path, (void) iov, (void) niov, (void) dsync;
  if ((op == STORAGE_OP_WRITE || op == STORAGE_OP_TRUNCATE || op == STORAGE_OP_ALLOCATE) &&
      offset + count > limit) {
    errno = ENOSPC;
    return -1;
  }
  if (op == STORAGE_OP_WRITE && changes && !holds && count >= TABLES / 2) {
    holds = true;
    sem_post (&held);
    while (sem_wait (&released) == -1)
      ;
  }
  return 0;
}

static int
change_snapshot (enum edit_kind kind)
{
  const struct edit_options options = { .shrink = false };
  const struct edit edit = { .kind = kind, .name = "s" };

  return edit_disk (disk, &options, &edit, 1);
}

/* (It may fail.) */
static void *
delete_snapshot (void *unused)
{
  (void) unused;
  changes = true;
  printf ("deleted: %d\n", change_snapshot (EDIT_SNAPSHOT_DELETE));
  if (!holds)
    sem_post (&held);
  return NULL;
}

/* All of these need new clusters. */
static void *
write_all (void *unused)
{
  static unsigned char buf[PIECE];

  (void) unused;
  memset (buf, 'b', sizeof buf);
  for (unsigned i = 0; i < PIECES; i++)
    if (export_write (client, buf, PIECE, i * PIECE, false) == -1)
      FAIL ("piece %u cannot be written: %s", i, last_error ());
  written = true;
  return NULL;
}

/* Until a request waits for space. */
static void
await_request (void)
{
  const struct timespec moment = { .tv_nsec = 1000000 };
  struct disk_stats stats;

  do {
    CHECK (!written);
    nanosleep (&moment, NULL);
    disk_get_stats (disk, &stats);
  } while (stats.space.waiting == 0);
}

static void
check_contents (void)
{
  struct blob b;

  image_contents ("a.qcow2", NULL, &b);
  CHECK (b.len == SIZE);
  for (uint64_t i = 0; i < b.len; i++)
    if (b.data[i] != (i < PIECES * PIECE ? 'b' : 'a'))
      FAIL ("the disk shows %02x at %" PRIu64, b.data[i], i);
  blob_free (&b);
}

int
main (void)
{
  static const struct storage_hooks hooks = { .before = before };
  static unsigned char all[SIZE];
  const struct image_spec spec = {
    .version = 3, .cluster_size = CLUSTER, .refcount_bits = 16, .size = SIZE,
  };
  struct disk_options options = {
    .l2_cache = 1 << 20, .l2_slice = 512, .lock = true, .discard = true, .hooks = &hooks,
  };
  CLEANUP_FREE char *path = NULL;
  struct disk_stats stats;
  pthread_t changer, writer;
  struct stat st;

  CHECK (sem_init (&held, 0, 0) == 0 && sem_init (&released, 0, 0) == 0);
  images_enter ("delete-when-full");
  image_create ("a.qcow2", &spec);
  options.path = path = images_path ("a.qcow2");
  CHECK (disk_open (&options, &disk) == 0);
  client = export_open (disk, "", true);
  CHECK (client && export_is_writable (client));
  memset (all, 'a', sizeof all);
  CHECK (export_write (client, all, SIZE, 0, false) == 0 && export_flush (client) == 0);
  CHECK (change_snapshot (EDIT_SNAPSHOT_CREATE) == 0);

  quiet_errors = true;
  CHECK (stat (path, &st) == 0);
  limit = st.st_size + TABLES + LEFT;
  CHECK (pthread_create (&changer, NULL, delete_snapshot, NULL) == 0);
  while (sem_wait (&held) == -1)
    ;
  CHECK (holds);
  CHECK (pthread_create (&writer, NULL, write_all, NULL) == 0);
  await_request ();
  sem_post (&released);
  CHECK (pthread_join (writer, NULL) == 0 && pthread_join (changer, NULL) == 0);
  quiet_errors = false;
  disk_get_stats (disk, &stats);
  CHECK (stats.space.waiting == 0 && stats.space.pauses > 0);

  CHECK (export_close (client) == 0 && disk_close (disk) == 0);
  CHECK (image_check ("a.qcow2") == 0);
  check_contents ();
  images_leave ();
  return 0;
}
