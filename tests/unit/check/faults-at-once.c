/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Several threads find a fault at the same time: a recount ends, and tells one of them,
 * in words that are not mixed with those of another.
 */

#include <config.h>

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <string.h>

#include "format/format.h"
#include "image/image.h"
#include "check/recount.h"
#include "lib/images.h"

#define IMAGE "disk.qcow2"
#define CLUSTER 512
#define TABLES 256              /* each of them is for 32 KiB */
#define BEYOND (UINT64_C (1) << 40)

static uint64_t tables[TABLES];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static unsigned arrived;        /* threads that read a table */
static _Thread_local bool has_arrived;

/* A thread that reads a table waits until another one does. */
static int
before (void *opaque, const char *path, enum storage_op op, const struct iovec *iov,
        int niov, uint64_t offset, uint64_t count, bool dsync)
{
  bool is_table = false;

  (void) opaque, (void) path, (void) iov, (void) niov, (void) count, (void) dsync;
  for (unsigned i = 0; i < TABLES; i++)
    is_table |= offset == tables[i];
  if (op != STORAGE_OP_READ || !is_table || has_arrived)
    return 0;
  has_arrived = true;
  pthread_mutex_lock (&lock);
  arrived++;
  pthread_cond_broadcast (&changed);
  while (arrived < 2)
    pthread_cond_wait (&changed, &lock);
  pthread_mutex_unlock (&lock);
  return 0;
}

static const struct storage_hooks hooks = { .before = before };

/* The first entry of each table is wrong, each in another way. */
static void
make_image (void)
{
  const struct image_spec spec = {
    .version = 3, .cluster_size = CLUSTER, .refcount_bits = 16,
    .size = TABLES * (CLUSTER / 8) * CLUSTER, .preallocation = "metadata",
  };
  struct blob b;

  image_create (IMAGE, &spec);
  blob_load (IMAGE, &b);
  for (unsigned i = 0; i < TABLES; i++) {
    tables[i] = blob_get (&b, blob_get (&b, 40, 8) + 8 * i, 8) & QCOW2_L1_OFFSET_MASK;
    CHECK (tables[i] != 0);
    blob_put (&b, tables[i], BEYOND + i * CLUSTER, 8);
  }
  blob_save (IMAGE, &b);
  blob_free (&b);
}

int
main (void)
{
  const struct storage_options options = { .hooks = &hooks };
  struct image *image;
  struct recount *recount;
  unsigned told = 0;
  char place[40];
  char *path;

  images_enter ("faults-at-once");
  make_image ();
  path = images_path (IMAGE);
  image = image_open_file (path, &options);
  CHECK (image != NULL && image_read_header (image) == 0);
  recount = recount_new (image->file, &image->header, 0);
  CHECK (recount != NULL);
  CHECK (recount_window (recount, 0) == -1 && errno == EUCLEAN);
  CHECK (arrived >= 2);
  printf ("%s\n", recount_fault (recount));
  for (unsigned i = 0; i < TABLES; i++) {
    snprintf (place, sizeof place, " at %" PRIu64 " ", BEYOND + i * CLUSTER);
    told += strstr (recount_fault (recount), place) != NULL;
  }
  CHECK (told == 1 &&
         strstr (recount_fault (recount), " lies beyond the end of the file"));
  recount_free (recount);
  image_close (image);
  free (path);
  images_leave ();
  return 0;
}
