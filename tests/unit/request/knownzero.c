/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The record of host clusters that contain zeros between their subclusters: it saves
 * writes of zeros, and is forgotten when it is no longer true.
 */

#include <config.h>

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "request/knownzero.h"
#include "disk/export.h"
#include "lib/images.h"
#include "lib/stubs.h"

#define IMAGE "a.qcow2"
#define CLUSTER (64u << 10)
#define SUB (CLUSTER / 32)

static void
test_table (void)
{
  struct knownzero *f = knownzero_new ();

  CHECK (f != NULL);
  CHECK (!knownzero_has (f, 7, 1));
  knownzero_add (f, 7);
  knownzero_add (f, 8);
  CHECK (knownzero_has (f, 7, 2) && !knownzero_has (f, 7, 3) && !knownzero_has (f, 6, 2));
  knownzero_remove (f, 8, 4);
  CHECK (knownzero_has (f, 7, 1) && !knownzero_has (f, 8, 1));
  /* The newer one keeps the place; the older one can't remove it. */
  knownzero_add (f, 7 + (UINT64_C (1) << 40));
  CHECK (!knownzero_has (f, 7, 1));
  knownzero_remove (f, 7, 1);
  CHECK (knownzero_has (f, 7 + (UINT64_C (1) << 40), 1));
  knownzero_free (f);
}

/* --- with a disk --- */

static struct disk *d;
static struct export *client;
static unsigned char buf[CLUSTER], want[CLUSTER];

/* The last write of data. */
static uint64_t written_at, written;
static bool writes_fail;

static int
observe (void *opaque, const char *path, enum storage_op op,
         const struct iovec *iov, int niov, uint64_t offset, uint64_t count,
         bool dsync)
{
  (void) opaque; (void) niov; (void) dsync;
  if (op == STORAGE_OP_PUNCH) {
    errno = EOPNOTSUPP;         /* what is freed keeps its bytes */
    return -1;
  }
  if (op != STORAGE_OP_WRITE)
    return 0;
  written_at = offset;
  written = count;
  if (writes_fail) {
    /* Half of it gets there. */
    int fd = open (path, O_WRONLY | O_CLOEXEC);

    CHECK (fd >= 0);
    CHECK (pwrite (fd, iov[0].iov_base, iov[0].iov_len / 2, offset) ==
           (ssize_t) iov[0].iov_len / 2);
    close (fd);
    errno = ENOSPC;
    return -1;
  }
  return 0;
}

static int
put (uint64_t offset, uint64_t count, int byte)
{
  memset (buf, byte, count);
  return export_write (client, buf, count, offset, false);
}

/* The subcluster at OFFSET has N bytes of this kind, then zeros. */
static void
check_sub (uint64_t offset, size_t n, int byte)
{
  memset (want, 0, SUB);
  memset (want, byte, n);
  CHECK (export_read (client, buf, SUB, offset) == 0);
  CHECK (memcmp (buf, want, SUB) == 0);
}

static void
test_disk (void)
{
  const struct image_spec spec = {
    .version = 3, .cluster_size = CLUSTER, .refcount_bits = 16, .extended = true,
    .size = 4 << 20,
  };
  const struct storage_hooks hooks = { .before = observe };
  char *path = images_path (IMAGE);
  const struct disk_options options = {
    .path = path, .l2_cache = 1 << 20, .l2_slice = 4096, .discard = true,
    .hooks = &hooks,
  };
  const uint64_t a = CLUSTER, b = 2 * CLUSTER, c = 3 * CLUSTER;
  uint64_t host;

  image_create (IMAGE, &spec);
  CHECK (disk_open (&options, &d) == 0);
  CHECK ((client = export_open (d, "", true)) && export_is_writable (client));
  /* From now on there is a settled reserve. */
  CHECK (put (0, CLUSTER, 9) == 0 && export_flush (client) == 0);

  /* Only what is new is written, between zeros. */
  CHECK (put (a, SUB, 1) == 0);
  host = written_at;
  CHECK (put (a + 5 * SUB, 100, 1) == 0);
  CHECK (written == 100 && written_at == host + 5 * SUB);
  check_sub (a + 5 * SUB, 100, 1);
  CHECK (put (a + 5 * SUB, SUB, 1) == 0);

  /* The host cluster is freed with its bytes, and used again. */
  CHECK (export_trim (client, CLUSTER, a, false) == 0);
  CHECK (export_flush (client) == 0 && export_flush (client) == 0);
  CHECK (put (b, SUB, 2) == 0);
  CHECK (written_at == host);
  CHECK (put (b + 5 * SUB, 100, 2) == 0);
  check_sub (b + 5 * SUB, 100, 2);
  check_sub (a + 5 * SUB, 0, 0);

  /* A write fails half-way. */
  CHECK (put (c, SUB, 3) == 0);
  writes_fail = true;
  CHECK (put (c + 2 * SUB, SUB, 4) == -1);
  writes_fail = false;
  check_sub (c + 2 * SUB, 0, 0);
  CHECK (put (c + 2 * SUB, 100, 3) == 0);
  check_sub (c + 2 * SUB, 100, 3);

  CHECK (export_close (client) == 0);
  CHECK (disk_close (d) == 0);
  CHECK (image_check (IMAGE) == 0);
  free (path);
}

int
main (void)
{
  test_table ();
  images_enter ("knownzero");
  test_disk ();
  images_leave ();
  return 0;
}
