/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What happens to an image when clients leave while the host is full, or while another
 * client is slow; and when another program changes it while it is being opened?
 */

#include <config.h>

#include <errno.h>
#include <pthread.h>
#include <semaphore.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "disk/export.h"
#include "lib/images.h"
#include "lib/stubs.h"

#define MIB (1u << 20)

static char buf[MIB];

/* --- the host is full --- */

static bool full;

static int
no_space (void *opaque, const char *path, enum storage_op op,
          const struct iovec *iov, int niov, uint64_t offset, uint64_t count,
          bool dsync)
{
  (void) opaque; (void) path; (void) iov; (void) niov; (void) offset;
  (void) count; (void) dsync;
  if (full && op == STORAGE_OP_WRITE) {
    errno = ENOSPC;
    return -1;
  }
  return 0;
}

/* The last client leaves while there is no space for its changes; then there is, and
 * the server ends.  The data are not lost. */
static void
test_full_when_leaving (const char *path)
{
  const struct storage_hooks hooks = { .before = no_space };
  const struct disk_options options = {
    .path = path, .l2_cache = MIB, .l2_slice = 4096, .discard = true,
    .lock = true, .hooks = &hooks,
  };
  struct export *e;
  struct disk *d;

  CHECK (disk_open (&options, &d) == 0);
  CHECK ((e = export_open (d, "", true)) && export_is_writable (e));
  memset (buf, 7, sizeof buf);
  CHECK (export_write (e, buf, sizeof buf, 0, false) == 0);
  full = true;
  CHECK (export_flush (e) == -1 && errno == ENOSPC);
  CHECK (export_close (e) == -1);
  full = false;
  CHECK (disk_close (d) == 0);
  CHECK (image_check ("a.qcow2") == 0);

  CHECK (disk_open (&options, &d) == 0);
  CHECK ((e = export_open (d, "", false)) && !export_is_writable (e));
  memset (buf, 0, sizeof buf);
  CHECK (export_read (e, buf, sizeof buf, 0) == 0);
  for (size_t i = 0; i < sizeof buf; i++)
    CHECK (buf[i] == 7);
  CHECK (export_close (e) == 0);
  CHECK (disk_close (d) == 0);
}

/* --- the last client leaves --- */

/* The timer for checkpoints does not delay that. */
static void
test_timer_ends (const char *path)
{
  const struct timespec moment = { .tv_nsec = 20000000 };
  const struct disk_options options = {
    .path = path, .l2_cache = MIB, .l2_slice = 4096, .lock = true,
    .checkpoint_interval_ms = 3600 * 1000,
  };
  struct export *e;
  struct disk *d;

  CHECK (disk_open (&options, &d) == 0);
  CHECK ((e = export_open (d, "", true)) && export_is_writable (e));
  CHECK (export_write (e, buf, sizeof buf, 0, false) == 0);
  nanosleep (&moment, NULL);    /* until it waits, most likely */
  CHECK (export_close (e) == 0);
  CHECK (disk_close (d) == 0);
}

/* --- somebody else is there --- */

static int resized = -1;

static int
resize_now (void *opaque, const char *path, enum storage_op op,
            const struct iovec *iov, int niov, uint64_t offset, uint64_t count,
            bool dsync)
{
  (void) opaque; (void) iov; (void) niov; (void) offset; (void) count;
  (void) dsync;
  if (op == STORAGE_OP_READ && resized == -1) {
    struct command c = { .n = 0 };

    command_words (&c, "qemu-img resize -q");
    command_add (&c, "%s", path);
    command_add (&c, "200M");
    resized = command_run (&c);
  }
  return 0;
}

/* The lock comes before the first look at the file: nobody can change the header that
 * we have read. */
static void
test_lock_comes_first (const char *path)
{
  const struct storage_hooks hooks = { .before = resize_now };
  const struct disk_options options = {
    .path = path, .l2_cache = MIB, .l2_slice = 4096, .discard = true,
    .lock = true, .hooks = &hooks,
  };
  struct disk *d;

  CHECK (disk_open (&options, &d) == 0);
  CHECK (resized > 0);          /* it was tried, and refused */
  CHECK (disk_inside (d).view->size == 100 * MIB);
  CHECK (disk_close (d) == 0);
}

/* --- a reader outlasts the last writer --- */

static sem_t held, released;
static _Thread_local bool hold_me;

static int
hold (void *opaque, const char *path, enum storage_op op,
      const struct iovec *iov, int niov, uint64_t offset, uint64_t count,
      bool dsync)
{
  (void) opaque; (void) path; (void) op; (void) iov; (void) niov;
  (void) offset; (void) count; (void) dsync;
  if (hold_me) {
    hold_me = false;
    sem_post (&held);
    while (sem_wait (&released) == -1)
      ;
  }
  return 0;
}

static void *
read_slowly (void *e)
{
  static char mine[65536];

  hold_me = true;
  CHECK (export_read (e, mine, sizeof mine, 0) == 0);
  return NULL;
}

static void
make_lazy (const char *name)
{
  struct command c = { .n = 0 };

  command_words (&c, "qemu-img create -q -f qcow2 -o lazy_refcounts=on");
  command_add (&c, "%s", name);
  command_add (&c, "4M");
  command_must (&c);
}

/* What it holds back is given back when the disk is closed; the dirty bit that lazy
 * refcounts bring goes, too. */
static void
test_slow_reader (const char *path)
{
  const struct storage_hooks hooks = { .before = hold };
  const struct disk_options options = {
    .path = path, .l2_cache = MIB, .l2_slice = 4096, .discard = true,
    .lock = true, .hooks = &hooks,
  };
  struct export *e, *reader;
  struct disk *d;
  pthread_t t;
  struct blob blob;

  CHECK (sem_init (&held, 0, 0) == 0 && sem_init (&released, 0, 0) == 0);
  CHECK (disk_open (&options, &d) == 0);
  CHECK ((e = export_open (d, "", true)) && export_is_writable (e));
  CHECK (export_write (e, buf, sizeof buf, 0, true) == 0);
  CHECK ((reader = export_open (d, "", false)));
  CHECK (pthread_create (&t, NULL, read_slowly, reader) == 0);
  while (sem_wait (&held) == -1)
    ;
  CHECK (export_trim (e, sizeof buf, 0, false) == 0);
  CHECK (export_close (e) == -1);
  sem_post (&released);
  CHECK (pthread_join (t, NULL) == 0);
  CHECK (export_close (reader) == 0);
  CHECK (disk_close (d) == 0);
  CHECK (image_check ("lazy.qcow2") == 0);
  blob_load ("lazy.qcow2", &blob);
  CHECK ((blob.data[79] & 1) == 0);     /* not dirty */
  blob_free (&blob);
}

int
main (void)
{
  const struct image_spec spec = {
    .version = 3, .cluster_size = 65536, .refcount_bits = 16,
    .size = 100 * MIB,
  };
  char *path;

  images_enter ("disk-life");
  quiet_errors = true;
  image_create ("a.qcow2", &spec);
  path = images_path ("a.qcow2");
  test_full_when_leaving (path);
  test_timer_ends (path);
  test_lock_comes_first (path);
  free (path);

  make_lazy ("lazy.qcow2");
  path = images_path ("lazy.qcow2");
  test_slow_reader (path);
  free (path);
  images_leave ();
  return 0;
}
