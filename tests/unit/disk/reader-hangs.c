/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Do clients wait for a reader that hangs while the disk changes as a whole?
 *
 * A request is about to read an L2 table, and hangs.  Then a snapshot is deleted, which
 * replaces this table.  Other clients read and write as soon as the change is made, and
 * get new clusters; but not that of the table, nor is it punched, until the request goes
 * on: it still finds its data.  Clients that write come and leave meanwhile.  Another
 * change is refused, because that table is in the way.  The first one ends without the
 * request.
 */

#include <config.h>

#include <errno.h>
#include <pthread.h>
#include <semaphore.h>
#include <string.h>

#include "util/cleanup.h"
#include "change/edit.h"
#include "disk/export.h"
#include "lib/images.h"
#include "lib/stubs.h"

#define MIB (UINT64_C (1) << 20)
#define HALF (4 * MIB)          /* of the disk */
#define CLUSTER 4096
#define PIECE 65536
#define L1_OFFSET_END 48        /* in the header */

static struct disk *disk;
static struct export *client;
static unsigned char model[2 * HALF], seen[2 * HALF];

static sem_t held, released, closed;
static _Thread_local bool hold_me, changes;

static int
hold (void *opaque, const char *path, enum storage_op op, const struct iovec *iov,
      int niov, uint64_t offset, uint64_t count, bool dsync)
{
  (void) opaque, (void) path, (void) iov, (void) niov, (void) count, (void) dsync;
  /* The gate: the pointer to the L1 table changes behind it, other parts of the header
   * before. */
  if (op == STORAGE_OP_WRITE && offset < L1_OFFSET_END && changes) {
    changes = false;
    sem_post (&closed);
  }
  if (op == STORAGE_OP_READ && hold_me) {
    hold_me = false;
    sem_post (&held);
    while (sem_wait (&released) == -1)
      ;
  }
  return 0;
}

static void *
read_slowly (void *unused)
{
  static unsigned char mine[PIECE];

  (void) unused;
  hold_me = true;
  CHECK (export_read (client, mine, PIECE, PIECE) == 0);
  CHECK (!hold_me && memcmp (mine, model + PIECE, PIECE) == 0);
  return NULL;
}

static void
change_snapshot (enum edit_kind kind)
{
  const struct edit_options options = { .shrink = false };
  const struct edit edit = { .kind = kind, .name = "s" };

  CHECK (edit_disk (disk, &options, &edit, 1) == 0);
}

static void *
delete_snapshot (void *unused)
{
  (void) unused;
  changes = true;
  change_snapshot (EDIT_SNAPSHOT_DELETE);
  return NULL;
}

/* (A single cluster is taken wherever there is one.) */
static void
fill (uint64_t from)
{
  for (uint64_t at = from; at < from + HALF; at += CLUSTER) {
    memset (model + at, 1 + at / PIECE, CLUSTER);
    CHECK (export_write (client, model + at, CLUSTER, at, false) == 0);
  }
  CHECK (export_flush (client) == 0);
}

int
main (void)
{
  static const struct storage_hooks hooks = { .before = hold };
  const struct image_spec spec = {
    .version = 3, .cluster_size = CLUSTER, .refcount_bits = 16, .size = 2 * HALF,
  };
  CLEANUP_FREE char *path = NULL;
  struct disk_options options = {
    .l2_cache = MIB, .l2_slice = 4096, .lock = true, .discard = true, .hooks = &hooks,
  };
  pthread_t reader, changer;
  struct export *other;

  CHECK (sem_init (&held, 0, 0) == 0 && sem_init (&released, 0, 0) == 0 &&
         sem_init (&closed, 0, 0) == 0);
  images_enter ("reader-hangs");
  image_create ("a.qcow2", &spec);
  options.path = path = images_path ("a.qcow2");
  CHECK (disk_open (&options, &disk) == 0);
  client = export_open (disk, "", true);
  CHECK (client && export_is_writable (client));
  fill (0);
  change_snapshot (EDIT_SNAPSHOT_CREATE);

  CHECK (pthread_create (&reader, NULL, read_slowly, NULL) == 0);
  while (sem_wait (&held) == -1)
    ;
  CHECK (pthread_create (&changer, NULL, delete_snapshot, NULL) == 0);
  while (sem_wait (&closed) == -1)
    ;
  fill (HALF);
  CHECK (export_read (client, seen, sizeof seen, 0) == 0);
  CHECK (memcmp (seen, model, sizeof seen) == 0);
  other = export_open (disk, "", true);
  CHECK (other && export_is_writable (other) && export_close (other) == 0);
  quiet_errors = true;
  CHECK (edit_disk (disk, &(struct edit_options) { .shrink = false },
                    &(struct edit) { .kind = EDIT_SNAPSHOT_CREATE, .name = "t" }, 1) == -1);
  quiet_errors = false;
  CHECK (errno == EBUSY);
  CHECK (pthread_join (changer, NULL) == 0);
  sem_post (&released);
  CHECK (pthread_join (reader, NULL) == 0);

  CHECK (export_close (client) == 0);
  CHECK (disk_close (disk) == 0);
  CHECK (image_check ("a.qcow2") == 0);
  images_leave ();
  return 0;
}
