/* SPDX-License-Identifier: BSD-3-Clause
 *
 * A mirror goes on while others change the disk as a whole (ThreadSanitizer and
 * AddressSanitizer: it uses nothing of a generation that has gone), and its target is the
 * disk at the end.
 */

#include <config.h>

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#include "util/cleanup.h"
#include "change/edit.h"
#include "change/mirror.h"
#include "disk/export.h"
#include "lib/images.h"
#include "lib/stubs.h"

#define MIB (UINT64_C (1) << 20)
#define SIZE (4 * MIB)
#define PIECE 65536
#define ROUNDS 40

static struct disk *disk;
static struct mirror *mirror;
static unsigned char model[SIZE];
static atomic_bool ends;

static void *
follow (void *unused)
{
  uint64_t copied, done, left;

  (void) unused;
  while (!ends) {
    CHECK (follow_step (mirror_follow (mirror), PIECE, &copied) >= 0);
    follow_progress (mirror_follow (mirror), &done, &left);
  }
  return NULL;
}

static void
change_snapshot (enum edit_kind kind)
{
  const struct edit_options options = { .shrink = false };
  const struct edit edit = { .kind = kind, .name = "s" };

  while (edit_disk (disk, &options, &edit, 1) == -1)     /* a request takes long */
    CHECK (errno == EBUSY);
}

static struct storage *
make_target (void)
{
  CLEANUP_FREE char *path = images_path ("target.raw");
  const struct storage_options o = { .try_writable = true, .lock = true };
  struct blob b = { .data = model, .len = SIZE };
  struct storage *raw;

  blob_save ("target.raw", &b);
  CHECK (storage_open (path, &o, &raw) == 0);
  return raw;
}

int
main (void)
{
  const struct image_spec spec = {
    .version = 3, .cluster_size = PIECE, .refcount_bits = 16, .size = SIZE,
  };
  CLEANUP_FREE char *path = NULL;
  struct disk_options options = { .l2_cache = MIB, .l2_slice = 4096, .lock = true };
  struct mirror_options o = { .sync = MIRROR_FULL };
  struct export *client;
  struct blob copy;
  pthread_t follower;
  uint64_t copied;

  images_enter ("mirror-amid-changes");
  image_create ("a.qcow2", &spec);
  options.path = path = images_path ("a.qcow2");
  CHECK (disk_open (&options, &disk) == 0);
  client = export_open (disk, "", true);
  CHECK (client && export_is_writable (client));
  o.target.raw = make_target ();
  CHECK (mirror_begin (disk, &o, &mirror) == 0);

  CHECK (pthread_create (&follower, NULL, follow, NULL) == 0);
  for (unsigned i = 0; i < ROUNDS; i++) {
    const uint64_t at = i * 7 % (SIZE / PIECE) * PIECE;

    change_snapshot (EDIT_SNAPSHOT_CREATE);
    memset (model + at, 1 + i, PIECE);
    CHECK (export_write (client, model + at, PIECE, at, false) == 0);
    change_snapshot (EDIT_SNAPSHOT_DELETE);
  }
  ends = true;
  CHECK (pthread_join (follower, NULL) == 0);
  while (follow_near (mirror_follow (mirror)) != 0)     /* (within a round) */
    CHECK (follow_step (mirror_follow (mirror), MIB, &copied) >= 0);
  CHECK (mirror_finish (mirror) == 0);
  mirror_end (mirror);
  storage_close (o.target.raw);
  blob_load ("target.raw", &copy);
  CHECK (copy.len == SIZE && memcmp (copy.data, model, SIZE) == 0);
  blob_free (&copy);

  CHECK (export_close (client) == 0);
  CHECK (disk_close (disk) == 0);
  CHECK (image_check ("a.qcow2") == 0);
  images_leave ();
  return 0;
}
