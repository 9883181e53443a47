/* SPDX-License-Identifier: BSD-3-Clause
 *
 * hostfile.c: which writes are durable at which time; a failed sync, or a lost write, is
 * not forgotten, and what the page cache has then is dropped; cache=unsafe waits for
 * nothing; and data that must not stay in the page cache does not.
 */

#include <config.h>

#include <sys/mman.h>
#include <sys/statfs.h>

#include "lib/hostcalls.h"

#define TMPFS_MAGIC_NUMBER 0x01021994

static void
test_dsync (void)
{
  static uint8_t buf[4096];
  const struct iovec iov = { buf, sizeof buf };
  struct storage *f = fresh (&rw);

  calm_host ();
  CHECK (storage_writev (f, &iov, 1, 0, true) == 0);
  CHECK (host.dsyncs == 1 && host.syncs == 0);

  /* The host doesn't know the flag: written and synced; asked once only. */
  calm_host ();
  host.dsync_errno = EOPNOTSUPP;
  CHECK (storage_writev (f, &iov, 1, 0, true) == 0);
  CHECK (storage_writev (f, &iov, 1, 4096, true) == 0);
  CHECK (host.dsyncs == 1 && host.syncs == 2 && host.writes == 2);
  CHECK (storage_size (f) == 8192);

  /* That sync's failure is not forgotten when the next one succeeds. */
  host.sync_errno = EIO;
  CHECK_FAILS (storage_writev (f, &iov, 1, 0, true), EIO, "cannot write");
  calm_host ();
  CHECK_FAILS (storage_sync (f), EIO, "fdatasync");
  CHECK_FAILS (storage_sync (f), EIO, "fdatasync");
  storage_close (f);

  /* Nor that of a durable write, which may tell of other writes. */
  f = fresh (&rw);
  host.dsync_errno = EIO;
  CHECK_FAILS (storage_writev (f, &iov, 1, 0, true), EIO, "cannot write");
  calm_host ();
  CHECK_FAILS (storage_sync (f), EIO, "fdatasync");
  storage_close (f);

  /* Full: nothing was lost.  Not full after all: something else was. */
  f = fresh (&rw);
  host.dsync_errno = host.write_errno = ENOSPC;
  CHECK_FAILS (storage_writev (f, &iov, 1, 0, true), ENOSPC, "cannot write");
  calm_host ();
  CHECK (storage_sync (f) == 0);
  host.dsync_errno = ENOSPC;
  CHECK_FAILS (storage_writev (f, &iov, 1, 0, true), ENOSPC, "cannot write");
  calm_host ();
  CHECK_FAILS (storage_sync (f), EIO, "fdatasync");
  storage_close (f);

  /* Longer than a file may be: nothing was written, and nothing lost. */
  f = fresh (&rw);
  host.dsync_errno = EFBIG;
  CHECK_FAILS (storage_writev (f, &iov, 1, 0, true), ENOSPC, "cannot write");
  calm_host ();
  CHECK (storage_sync (f) == 0);
  storage_close (f);

  /* A kernel without memory has begun: who knows what is durable?  (Memory that the
   * plugin lacks is ENOMEM.) */
  f = fresh (&rw);
  CHECK (storage_write (f, buf, sizeof buf, 0) == 0);
  host.sync_errno = ENOMEM;
  CHECK_FAILS (storage_sync (f), EIO, "fdatasync");
  calm_host ();
  storage_close (f);
}

/* How many of the first N pages of the file are in the page cache? */
static unsigned
resident (unsigned n)
{
  const size_t page = sysconf (_SC_PAGESIZE);
  unsigned char vec[1024];
  unsigned count = 0;
  int fd = open (path, O_RDONLY | O_CLOEXEC);
  void *p;

  CHECK (fd >= 0 && n <= sizeof vec);
  p = mmap (NULL, n * page, PROT_READ, MAP_SHARED, fd, 0);
  CHECK (p != MAP_FAILED);
  CHECK (mincore (p, n * page, vec) == 0);
  for (unsigned i = 0; i < n; i++)
    count += vec[i] & 1;
  munmap (p, n * page);
  close (fd);
  return count;
}

static void
test_drop_cache (void)
{
  enum { PAGES = 512 };
  const struct storage_options none = {
    .try_writable = true, .cache = STORAGE_CACHE_NONE
  };
  const size_t page = sysconf (_SC_PAGESIZE);
  uint8_t *buf = calloc (PAGES, page);
  struct storage *f;
  struct statfs fs;

  CHECK (buf != NULL);
  f = fresh (&none);
  for (unsigned i = 0; i < PAGES; i++)
    CHECK (storage_write (f, buf + i * page, page, i * page) == 0);
  CHECK (storage_sync (f) == 0);
  CHECK (statfs (path, &fs) == 0);
  if (fs.f_type == TMPFS_MAGIC_NUMBER)
    printf ("skipped: a file system in memory drops nothing\n");
  else {
    CHECK (resident (PAGES) < PAGES / 4);
    CHECK (storage_read (f, buf, PAGES * page, 0) == 0);
    CHECK (resident (PAGES) < PAGES / 4);
  }

  /* A lost write, of which only the wait for an old window knows. */
  host.range_errno = EIO;
  for (unsigned i = 0; i < 100; i++)
    CHECK (storage_write (f, buf, page, i * page) == 0);
  calm_host ();
  CHECK_FAILS (storage_writev (f, &(struct iovec) { buf, page }, 1, 0, true), EIO,
               "write");
  CHECK_FAILS (storage_sync (f), EIO, "fdatasync");
  storage_close (f);

  /* A host that can't do it has lost nothing. */
  f = fresh (&none);
  host.range_errno = ESPIPE;
  for (unsigned i = 0; i < 100; i++)
    CHECK (storage_write (f, buf, page, i * page) == 0);
  CHECK (storage_sync (f) == 0);
  calm_host ();
  storage_close (f);
  free (buf);
}

/* A sync only where there is something to sync. */
static void
test_sync_changes (void)
{
  struct storage *f = fresh (&rw);
  uint8_t buf[512] = { 0 };
  const struct iovec iov = { buf, sizeof buf };

  calm_host ();
  CHECK (storage_sync_changes (f) == 0);
  CHECK (storage_write (f, buf, 512, 0) == 0);
  CHECK (storage_sync_changes (f) == 1);
  CHECK (storage_sync_changes (f) == 0);
  CHECK (storage_writev (f, &iov, 1, 512, true) == 0);
  CHECK (storage_sync_changes (f) == 0);
  CHECK (storage_punch (f, 0, 512) >= 0);
  CHECK (storage_sync_changes (f) == 1);
  CHECK (storage_truncate (f, 4096) == 0);
  CHECK (storage_sync_changes (f) == 1);
  CHECK (storage_write (f, buf, 512, 0) == 0);
  CHECK (storage_sync (f) == 0);
  CHECK (storage_sync_changes (f) == 0);

  /* One that fails leaves everything to be synced. */
  CHECK (storage_write (f, buf, 512, 0) == 0);
  host.sync_errno = EIO;
  CHECK_FAILS (storage_sync_changes (f), EIO, "fdatasync");
  host.sync_errno = 0;
  CHECK (storage_sync_changes (f) == 1);
  storage_close (f);
}

/* With cache=unsafe nobody waits for the host. */
static void
test_unsafe (void)
{
  const struct storage_options unsafe = {
    .try_writable = true, .cache = STORAGE_CACHE_UNSAFE
  };
  uint8_t buf[512] = { 0 };
  const struct iovec iov = { buf, sizeof buf };
  struct storage *f = fresh (&unsafe);

  calm_host ();
  CHECK (storage_writev (f, &iov, 1, 0, true) == 0);
  CHECK (storage_sync_changes (f) == 1);
  CHECK (storage_sync_changes (f) == 0);
  CHECK (storage_sync (f) == 0);
  CHECK (host.writes == 1 && host.dsyncs == 0 && host.syncs == 0);
  storage_close (f);
}

/* Opens a file, writes, and syncs, which fails with ERR if it is not 0.  Returns how
 * often the page cache is dropped when it is closed. */
static unsigned
forgets_after (const struct storage_options *options, int err)
{
  struct storage *f = fresh (options);

  CHECK (storage_write (f, "data", 4, 0) == 0);
  if (err) {
    host.sync_errno = err;
    CHECK_FAILS (storage_sync (f), EIO, "fdatasync");
  }
  else
    CHECK (storage_sync (f) == 0);
  calm_host ();
  storage_close (f);
  return host.forgets;
}

/* What the page cache has after a failed sync is for this session only. */
static void
test_forget (void)
{
  const struct storage_options unsafe = { .try_writable = true,
                                          .cache = STORAGE_CACHE_UNSAFE };
  const struct iovec iov = { "data", 4 };
  struct storage *f;

  CHECK (forgets_after (&rw, EIO) == 1 && forgets_after (&rw, ENOSPC) == 1);
  CHECK (forgets_after (&rw, 0) == 0 && forgets_after (&unsafe, 0) == 0);

  f = fresh (&rw);
  host.dsync_errno = EIO;
  CHECK_FAILS (storage_writev (f, &iov, 1, 0, true), EIO, "cannot write");
  calm_host ();
  storage_close (f);
  CHECK (host.forgets == 1);

  /* For what an earlier one left: its errors are of no interest any more. */
  f = fresh (&rw);
  calm_host ();
  host.sync_errno = EIO;
  storage_forget_cache (f);
  CHECK (host.syncs == 1 && host.forgets == 1);
  calm_host ();
  CHECK (storage_sync (f) == 0);
  storage_close (f);
  CHECK (host.forgets == 0);
}

int
main (void)
{
  host_begin (seed_from_env ());
  test_dsync ();
  test_drop_cache ();
  test_sync_changes ();
  test_unsafe ();
  test_forget ();
  host_end ();
  return 0;
}
