/* SPDX-License-Identifier: BSD-3-Clause
 *
 * wholesectors.c: a server that is killed leaves each sector of a file old or new.  No
 * system call writes a sector from two pages, however the data lies in memory; and a
 * process that is killed while the kernel waits for a page of the data has not written a
 * part of a sector.  What is aligned is not copied.
 */

#include <config.h>

#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>
#include <linux/userfaultfd.h>

#include "storage/storage.h"
#include "lib/realcalls.h"

enum { PAGE = 4096, SECTOR = 512, SIZE = 1 << 20 };

static char path[] = "whole-sectors-XXXXXX";
static const struct storage_options rw = { .try_writable = true };
static char *source;            /* SIZE + PAGE bytes, beginning with a page */
static bool copied;             /* something else was written from */

/* The page that byte I of a write at OFFSET comes from, for all of a sector. */
static void
check_sectors (const struct iovec *iov, int niov, uint64_t offset)
{
  uintptr_t page = 0, at;
  uint64_t sector = UINT64_MAX;

  for (int i = 0; i < niov; i++)
    for (size_t j = 0; j < iov[i].iov_len; j++, offset++) {
      at = (uintptr_t) iov[i].iov_base + j;
      CHECK (offset / SECTOR != sector || at / PAGE == page);
      sector = offset / SECTOR;
      page = at / PAGE;
      copied |= at - (uintptr_t) source >= SIZE + PAGE;
    }
}

ssize_t
pwritev2 (int fd, const struct iovec *iov, int niov, off_t offset, int flags)
{
  CHECK (niov > 0 && niov <= IOV_MAX);
  check_sectors (iov, niov, offset);
  return REAL (pwritev2, pwritev64v2) (fd, iov, niov, offset, flags);
}

static void
test_random (struct rng *rng)
{
  enum { MAX = 40 };
  static char model[2 * SIZE], back[2 * SIZE];
  struct iovec iov[MAX];
  struct storage *f;
  uint64_t offset, end;
  int n;

  CHECK (storage_open (path, &rw, &f) == 0);
  CHECK (storage_truncate (f, sizeof model) == 0);
  for (int round = 0; round < 300; round++) {
    const size_t most = UINT64_C (1) << (4 + rng_below (rng, 15));

    offset = end = rng_below (rng, SIZE) & (rng_below (rng, 2) ? -1 : -SECTOR);
    n = rng_below (rng, 4) == 0 ? 1 + rng_below (rng, MAX) : 1;
    for (int i = 0; i < n; i++) {
      iov[i].iov_len = rng_below (rng, (n > 1 ? most / 8 : most) + 1);
      iov[i].iov_base = source + rng_below (rng, SIZE - most);
      memcpy (model + end, iov[i].iov_base, iov[i].iov_len);
      end += iov[i].iov_len;
    }
    CHECK (storage_writev (f, iov, n, offset, false) == 0);
  }
  CHECK (storage_read (f, back, sizeof back, 0) == 0);
  CHECK (memcmp (model, back, sizeof back) == 0);

  /* As buffers of nbdkit are: large ones too.  And aligned ones. */
  CHECK (storage_write (f, source + 16, SIZE - 16, 0) == 0);
  CHECK (storage_read (f, back, SIZE - 16, 0) == 0);
  CHECK (memcmp (source + 16, back, SIZE - 16) == 0);
  copied = false;
  for (size_t shift = 0; shift < PAGE; shift += 48)
    CHECK (storage_write (f, source + shift, SIZE, PAGE + shift) == 0);
  CHECK (storage_write (f, source + SECTOR, SIZE, 0) == 0);
  CHECK (storage_write (f, source + 16, 100, 7) == 0);
  CHECK (!copied);
  storage_close (f);
}

static void *
kill_at_fault (void *opaque)
{
  struct uffd_msg message;

  CHECK (read (*(int *) opaque, &message, sizeof message) == sizeof message);
  kill (getpid (), SIGKILL);
  return NULL;
}

/* The child writes SIZE bytes, SHIFT bytes into a page, and is killed when the page after
 * the first N is missed.  Returns 77 if the host does not let it wait for that. */
static int
write_and_die (size_t shift, unsigned n)
{
  struct uffdio_api api = { .api = UFFD_API };
  struct uffdio_register all = {
    .range = { (uintptr_t) source, SIZE + PAGE }, .mode = UFFDIO_REGISTER_MODE_MISSING,
  };
  int fd = syscall (SYS_userfaultfd, O_CLOEXEC);
  struct storage *f;
  pthread_t thread;

  if (fd == -1 || ioctl (fd, UFFDIO_API, &api) == -1 ||
      ioctl (fd, UFFDIO_REGISTER, &all) == -1)
    return 77;
  CHECK (storage_open (path, &rw, &f) == 0);
  memset (source, 'n', n * PAGE);
  CHECK (madvise (source + n * PAGE, SIZE + PAGE - n * PAGE, MADV_DONTNEED) == 0);
  CHECK (pthread_create (&thread, NULL, kill_at_fault, &fd) == 0);
  storage_write (f, source + shift, SIZE, 0);
  return 1;
}

static void
test_killed (void)
{
  static char back[SIZE];
  struct storage *f;
  size_t same;
  pid_t child;
  int status;

  for (size_t shift = 0; shift < PAGE; shift += 16) {
    memset (back, 'o', SIZE);
    CHECK (storage_open (path, &rw, &f) == 0);
    CHECK (storage_write (f, back, SIZE, 0) == 0);
    child = fork ();
    CHECK (child >= 0);
    if (child == 0)
      _exit (write_and_die (shift, 1 + shift / 16 % 5));
    CHECK (waitpid (child, &status, 0) == child);
    if (WIFEXITED (status) && WEXITSTATUS (status) == 77) {
      printf ("userfaultfd: not permitted, so nobody was killed\n");
      storage_close (f);
      return;
    }
    CHECK (WIFSIGNALED (status) && WTERMSIG (status) == SIGKILL);
    CHECK (storage_read (f, back, SIZE, 0) == 0);
    storage_close (f);
    for (size_t at = 0; at < SIZE; at += SECTOR) {
      for (same = 1; same < SECTOR && back[at + same] == back[at]; same++)
        ;
      CHECK (same == SECTOR);
    }
  }
}

int
main (void)
{
  struct rng rng;
  int fd = mkstemp (path);

  CHECK (fd >= 0 && close (fd) == 0);
  rng_init (&rng, seed_from_env (), 0);
  source = mmap (NULL, SIZE + PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,
                 -1, 0);
  CHECK (source != MAP_FAILED);
  for (size_t i = 0; i < SIZE + PAGE; i++)
    source[i] = rng_next (&rng);
  test_random (&rng);
  test_killed ();
  CHECK (unlink (path) == 0);
  return 0;
}
