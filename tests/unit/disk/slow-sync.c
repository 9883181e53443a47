/* SPDX-License-Identifier: BSD-3-Clause
 *
 * A sync may take longer than a disk waits for readers: before a change, and after the
 * last writer, it still waits for a request that reads what was freed, and then neither
 * is the change refused nor are clusters left behind.
 *
 * The test has its own clock, which a sync sets forward, and the request goes on as soon
 * as somebody waits for it.
 */

#include <config.h>

#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "util/cleanup.h"
#include "change/edit.h"
#include "disk/export.h"
#include "lib/images.h"
#include "lib/stubs.h"

#define MIB (UINT64_C (1) << 20)
#define CLUSTER 65536
#define SLOW 3600               /* seconds; a sync takes that once */

static struct disk *disk;

static sem_t held, released;
static _Thread_local bool hold_me;
static atomic_bool slow, holds;
static atomic_int later;        /* seconds that the clock is fast */

/* --- instead of those of the C library --- */

int
clock_gettime (clockid_t clock, struct timespec *now)
{
  const int r = syscall (SYS_clock_gettime, clock, now);

  now->tv_sec += later;
  return r;
}

int
nanosleep (const struct timespec *wanted, struct timespec *left)
{
  if (atomic_exchange (&holds, false))
    sem_post (&released);
  return syscall (SYS_nanosleep, wanted, left);
}

/* --- a slow sync, and a reader --- */

static int
before (void *opaque, const char *path, enum storage_op op, const struct iovec *iov,
        int niov, uint64_t offset, uint64_t count, bool dsync)
{
  (void) opaque, (void) path, (void) iov, (void) niov, (void) offset, (void) count;
  (void) dsync;
  if (op == STORAGE_OP_SYNC && atomic_exchange (&slow, false))
    later += SLOW;
  if (op == STORAGE_OP_READ && hold_me) {
    hold_me = false;
    holds = true;
    sem_post (&held);
    while (sem_wait (&released) == -1)
      ;
  }
  return 0;
}

static void *
read_slowly (void *opaque)
{
  static unsigned char mine[CLUSTER];

  hold_me = true;
  CHECK (export_read (opaque, mine, CLUSTER, 0) == 0);
  CHECK (!hold_me && mine[0] == 'a');
  return NULL;
}

/* Something is freed while READER reads. */
static pthread_t
free_some (struct export *client, struct export *reader)
{
  pthread_t t;

  CHECK (pthread_create (&t, NULL, read_slowly, reader) == 0);
  while (sem_wait (&held) == -1)
    ;
  CHECK (export_trim (client, MIB, 2 * MIB, false) == 0);
  slow = true;
  return t;
}

/* --- tests --- */

static struct export *
open_export (bool writable)
{
  struct export *e = export_open (disk, "", writable);

  CHECK (e && (!writable || export_is_writable (e)));
  return e;
}

static void
fill (struct export *e)
{
  static unsigned char buf[4 * MIB];

  memset (buf, 'a', sizeof buf);
  CHECK (export_write (e, buf, sizeof buf, 0, false) == 0 && export_flush (e) == 0);
}

int
main (void)
{
  static const struct storage_hooks hooks = { .before = before };
  const struct image_spec spec = {
    .version = 3, .cluster_size = CLUSTER, .refcount_bits = 16, .size = 8 * MIB,
  };
  struct disk_options options = {
    .l2_cache = MIB, .l2_slice = 4096, .lock = true, .discard = true, .hooks = &hooks,
  };
  const struct edit edit = { .kind = EDIT_SNAPSHOT_CREATE, .name = "s" };
  CLEANUP_FREE char *path = NULL;
  struct export *client, *reader;
  pthread_t t;

  CHECK (sem_init (&held, 0, 0) == 0 && sem_init (&released, 0, 0) == 0);
  images_enter ("slow-sync");
  image_create ("a.qcow2", &spec);
  options.path = path = images_path ("a.qcow2");
  CHECK (disk_open (&options, &disk) == 0);
  client = open_export (true);
  reader = open_export (false);
  fill (client);

  t = free_some (client, reader);
  CHECK (edit_disk (disk, &(struct edit_options) { .shrink = false }, &edit, 1) == 0);
  CHECK (!slow && !holds && pthread_join (t, NULL) == 0);

  fill (client);
  t = free_some (client, reader);
  CHECK (export_close (client) == 0);
  CHECK (!slow && !holds && pthread_join (t, NULL) == 0);

  CHECK (export_close (reader) == 0 && disk_close (disk) == 0);
  CHECK (image_check ("a.qcow2") == 0);
  images_leave ();
  return 0;
}
