/* SPDX-License-Identifier: BSD-3-Clause
 *
 * A hole of an encrypted data file does not decrypt to zeros.  No client may read one:
 * not a reader that looked up the data before it was discarded, not after a crash, not
 * after new writes to the same place.  But the space must be freed.
 */

#include <config.h>

#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

#include "util/bytes.h"
#include "disk/export.h"
#include "lib/images.h"
#include "lib/stubs.h"

#define IMAGE "a.qcow2"
#define DATA "a.data"
#define CRASHED "crashed.qcow2"
#define CRASHED_DATA "crashed.data"
#define CLUSTER (64u << 10)
#define MIB (1u << 20)
#define SECTOR 512

static char *image, *data;
/* A disk and its client. */
struct served {
  struct disk *disk;
  struct export *export;
};

static struct served d;
static unsigned char buf[MIB];

/* --- the host --- */

static atomic_ulong punched;                    /* bytes */
static _Thread_local bool held;                 /* this thread's reads wait */
static sem_t reads, go_on;

static int
before (void *opaque, const char *path, enum storage_op op, const struct iovec *iov,
        int niov, uint64_t offset, uint64_t count, bool dsync)
{
  (void) opaque, (void) iov, (void) niov, (void) offset, (void) dsync;
  if (strcmp (path, data) != 0)
    return 0;
  if (op == STORAGE_OP_PUNCH)
    punched += count;
  if (op == STORAGE_OP_READ && held) {
    sem_post (&reads);
    CHECK (sem_wait (&go_on) == 0);
  }
  return op == STORAGE_OP_SYNC;
}

static const struct storage_hooks hooks = { .before = before };

static struct served
open_disk (const char *name, const char *data_file)
{
  const struct disk_options options = {
    .path = name, .l2_cache = MIB, .l2_slice = 4096, .discard = true,
    .data_file = data_file ? DATA_FILE_PATH : DATA_FILE_FOLLOW,
    .data_file_path = data_file,
    .secret = { .passphrase = IMAGES_SECRET, .len = strlen (IMAGES_SECRET) },
    .hooks = &hooks,
  };
  struct served s;

  CHECK (disk_open (&options, &s.disk) == 0);
  s.export = export_open (s.disk, "", true);
  CHECK (s.export && export_is_writable (s.export));
  return s;
}

static void
close_disk (struct served s)
{
  CHECK (export_close (s.export) == 0);
  CHECK (disk_close (s.disk) == 0);
}

/* --- the guest --- */

static void
put (uint64_t offset, uint64_t count, int byte)
{
  memset (buf, byte, count);
  CHECK (export_write (d.export, buf, count, offset, false) == 0);
}

static void
erase (uint64_t offset, uint64_t count, bool zero)
{
  CHECK ((zero ? export_zero (d.export, count, offset, REQUEST_MAY_TRIM, false)
          : export_trim (d.export, count, offset, false)) == 0);
}

static bool
all_are (const unsigned char *p, uint64_t n, int byte)
{
  return p[0] == byte && memcmp (p, p + 1, n - 1) == 0;
}

static void
check (struct served s, uint64_t offset, uint64_t count, int byte)
{
  memset (buf, byte + 1, count);
  CHECK (export_read (s.export, buf, count, offset) == 0);
  CHECK (all_are (buf, count, byte));
}

/* --- readers --- */

struct reader {
  pthread_t thread;
  uint64_t offset;
  unsigned char buf[CLUSTER];
};

static void *
read_slowly (void *opaque)
{
  struct reader *r = opaque;

  held = true;
  CHECK (export_read (d.export, r->buf, CLUSTER, r->offset) == 0);
  return NULL;
}

/* It has looked up where the data are, and is about to read them. */
static void
begin_read (struct reader *r, uint64_t offset)
{
  r->offset = offset;
  CHECK (pthread_create (&r->thread, NULL, read_slowly, r) == 0);
  CHECK (sem_wait (&reads) == 0);
}

static void
end_read (struct reader *r)
{
  sem_post (&go_on);
  CHECK (pthread_join (r->thread, NULL) == 0);
}

static void
test_reader (bool zero)
{
  struct reader r;

  put (0, MIB, 'A');
  CHECK (export_flush (d.export) == 0);
  punched = 0;
  begin_read (&r, CLUSTER);
  erase (CLUSTER, CLUSTER, zero);
  CHECK (export_flush (d.export) == 0);
  CHECK (punched == 0);
  check (d, CLUSTER, CLUSTER, 0);
  end_read (&r);
  CHECK (all_are (r.buf, CLUSTER, 'A'));
  CHECK (export_flush (d.export) == 0);
  CHECK (punched == CLUSTER);
}

/* What is waiting to be punched is written: that is no hole any more. */
static void
test_written_again (void)
{
  struct reader r;

  put (0, MIB, 'A');
  begin_read (&r, 0);
  erase (0, MIB, false);
  CHECK (export_flush (d.export) == 0);
  put (3 * CLUSTER + 1000, 5000, 'B');
  put (7 * CLUSTER, 2 * CLUSTER, 'C');
  /* And erased again: that has to wait for its own checkpoint. */
  put (12 * CLUSTER, CLUSTER, 'D');
  erase (12 * CLUSTER, CLUSTER, true);
  punched = 0;
  end_read (&r);
  CHECK (all_are (r.buf, CLUSTER, 'A'));
  put (2 * MIB, SECTOR, 'E');   /* who changes something looks after it */
  CHECK (punched == MIB - 4 * CLUSTER);
  CHECK (export_flush (d.export) == 0);
  CHECK (punched == MIB - 3 * CLUSTER);
  check (d, 0, 3 * CLUSTER + 1000, 0);
  check (d, 3 * CLUSTER + 1000, 5000, 'B');
  check (d, 3 * CLUSTER + 6000, 4 * CLUSTER - 6000, 0);
  check (d, 7 * CLUSTER, 2 * CLUSTER, 'C');
  check (d, 9 * CLUSTER, 7 * CLUSTER, 0);
}

/* --- crashes --- */

static void
copy (const char *from, const char *to)
{
  struct blob b;

  blob_load (from, &b);
  blob_save (to, &b);
  blob_free (&b);
}

/* The server is killed: what it wrote so far is there. */
static void
test_killed (bool zero)
{
  char *crashed = images_path (CRASHED), *crashed_data = images_path (CRASHED_DATA);
  struct served left;

  put (0, MIB, 'A');
  CHECK (export_flush (d.export) == 0);
  erase (0, 4 * CLUSTER, zero);
  copy (IMAGE, CRASHED);
  copy (DATA, CRASHED_DATA);
  left = open_disk (crashed, crashed_data);
  check (left, 0, MIB, 'A');
  close_disk (left);

  CHECK (export_flush (d.export) == 0);
  copy (IMAGE, CRASHED);
  copy (DATA, CRASHED_DATA);
  left = open_disk (crashed, crashed_data);
  check (left, 0, 4 * CLUSTER, 0);
  check (left, 4 * CLUSTER, MIB - 4 * CLUSTER, 'A');
  close_disk (left);
  free (crashed);
  free (crashed_data);
}

/* Nobody flushes: when the last writer has left at the latest. */
static void
test_space_comes_back (void)
{
  put (0, MIB, 'A');
  put (MIB, MIB, 'A');
  CHECK (export_flush (d.export) == 0);
  punched = 0;
  erase (0, MIB, false);
  erase (MIB + CLUSTER, MIB - CLUSTER, true);
  close_disk (d);
  CHECK (punched == 2 * MIB - CLUSTER);
  CHECK (image_check (IMAGE) == 0);
  d = open_disk (image, NULL);
  check (d, MIB, CLUSTER, 'A');
}

/* --- all at once --- */

#define ROUNDS 300

static atomic_bool ended;

static void *
read_all_the_time (void *opaque)
{
  static unsigned char mine[4 * CLUSTER];

  (void) opaque;
  while (!atomic_load (&ended)) {
    CHECK (export_read (d.export, mine, sizeof mine, 0) == 0);
    for (unsigned at = 0; at < sizeof mine; at += SECTOR)
      CHECK (all_are (mine + at, SECTOR, mine[at]));
  }
  return NULL;
}

static void
test_threads (void)
{
  pthread_t reader;
  unsigned i;

  put (0, MIB, 1);
  CHECK (pthread_create (&reader, NULL, read_all_the_time, NULL) == 0);
  for (i = 0; i < ROUNDS; i++) {
    put (i % 3 * CLUSTER, 2 * CLUSTER, 1 + i % 250);
    erase (i % 4 * CLUSTER, CLUSTER, i % 2);
    if (i % 8 == 7)
      CHECK (export_flush (d.export) == 0);
  }
  atomic_store (&ended, true);
  CHECK (pthread_join (reader, NULL) == 0);
}

int
main (void)
{
  const struct image_spec spec = {
    .version = 3, .cluster_size = CLUSTER, .refcount_bits = 16, .size = 4 * MIB,
    .data_file = DATA, .encrypt = "luks",
  };

  images_enter ("encrypted-holes");
  CHECK (sem_init (&reads, 0, 0) == 0 && sem_init (&go_on, 0, 0) == 0);
  image = images_path (IMAGE);
  data = images_path (DATA);
  image_create (IMAGE, &spec);
  image_remember (CRASHED, &spec);
  d = open_disk (image, NULL);
  test_reader (false);
  test_reader (true);
  test_written_again ();
  test_killed (false);
  test_killed (true);
  test_space_comes_back ();
  test_threads ();
  close_disk (d);
  CHECK (image_check (IMAGE) == 0);
  free (image);
  free (data);
  images_leave ();
  return 0;
}
