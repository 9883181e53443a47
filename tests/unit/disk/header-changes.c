/* SPDX-License-Identifier: BSD-3-Clause
 *
 * While clients write, the header in memory changes: the refcount table moves when it
 * becomes too small, and a feature bit says that the image is in use.  Others read the
 * same fields at any time: extents look at the refcounts of an image whose file has
 * holes, and the state of the disk at the features.  (ThreadSanitizer finds a field that
 * both use without care.)
 */

#include <config.h>

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "util/cleanup.h"
#include "disk/export.h"
#include "lib/images.h"
#include "lib/stubs.h"

#define SIZE (UINT64_C (4) << 20)
#define PIECE (UINT64_C (64) << 10)
#define ROUNDS 10

static struct disk *disk;
static struct export *client;
static unsigned char data[SIZE];
static pthread_barrier_t start;

static void *
write_all (void *unused)
{
  (void) unused;
  pthread_barrier_wait (&start);
  for (uint64_t at = PIECE; at < SIZE; at += PIECE) {
    CHECK (export_write (client, data + at, PIECE, at, false) == 0);
    CHECK (export_flush (client) == 0);
  }
  return NULL;
}

static int
check_data (void *opaque, uint64_t offset, uint64_t len, enum extent_type type)
{
  uint64_t *end = opaque;

  CHECK (offset == *end && (offset >= PIECE || type == EXTENT_DATA));
  *end = offset + len;
  return 0;
}

static void *
look (void *unused)
{
  struct disk_state state;
  uint64_t end = 0;

  (void) unused;
  pthread_barrier_wait (&start);
  CHECK (export_extents (client, PIECE, 0, false, check_data, &end) == 0 && end == PIECE);
  disk_get_state (disk, &state);
  CHECK (state.size == SIZE && state.health == DISK_WRITABLE);
  return NULL;
}

static uint64_t
find_table (void)
{
  struct blob file;
  uint64_t at = 0;

  blob_load ("a.qcow2", &file);
  for (unsigned i = 48; i < 56; i++)
    at = at << 8 | ((const unsigned char *) file.data)[i];
  blob_free (&file);
  return at;
}

/* The dirty bit is set only with lazy refcounts. */
static void
make (void)
{
  static const struct image_spec spec = { .version = 3, .size = SIZE };
  struct command c = { .n = 0 };

  command_words (&c, "qemu-img create -q -f qcow2 -o lazy_refcounts=on,cluster_size=512,"
                     "refcount_bits=64 a.qcow2 4M");
  command_must (&c);
  image_remember ("a.qcow2", &spec);
  CHECK (truncate ("a.qcow2", SIZE) == 0);
}

static void
test (void)
{
  CLEANUP_FREE char *path = images_path ("a.qcow2");
  const struct disk_options options = {
    .path = path, .l2_cache = 1 << 20, .l2_slice = 4096, .lock = true,
  };
  const struct blob expected = { data, SIZE };
  pthread_t threads[2];
  uint64_t table;

  make ();
  table = find_table ();
  CHECK (disk_open (&options, &disk) == 0);
  CHECK ((client = export_open (disk, "", true)) && export_is_writable (client));
  CHECK (export_write (client, data, PIECE, 0, false) == 0);
  CHECK (pthread_create (&threads[0], NULL, write_all, NULL) == 0);
  CHECK (pthread_create (&threads[1], NULL, look, NULL) == 0);
  for (int i = 0; i < 2; i++)
    CHECK (pthread_join (threads[i], NULL) == 0);
  CHECK (export_close (client) == 0);
  CHECK (disk_close (disk) == 0);
  CHECK (find_table () != table);
  CHECK (image_check ("a.qcow2") == 0);
  CHECK (image_shows ("a.qcow2", NULL, &expected));
  remove ("a.qcow2");
}

int
main (void)
{
  images_enter ("header-changes");
  for (uint64_t i = 0; i < SIZE; i++)
    data[i] = 1 + i / 512 % 251;
  CHECK (pthread_barrier_init (&start, NULL, 2) == 0);
  for (int i = 0; i < ROUNDS; i++)
    test ();
  pthread_barrier_destroy (&start);
  images_leave ();
  return 0;
}
