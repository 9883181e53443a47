/* SPDX-License-Identifier: BSD-3-Clause
 *
 * hostfile.c: whole transfers over a host that does short ones, zeros past the
 * end, the size, durable writes, holes, the hooks, and what is refused.
 *
 * The system calls that hostfile.c makes are replaced by those below, which can
 * be told to do less than they are asked, or to fail.
 */

#include <config.h>

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include "storage/hostfile.h"
#include "lib/stubs.h"

#define TMPFS_MAGIC_NUMBER 0x01021994

/* --- a host that misbehaves --- */

static struct {
  bool short_transfers;         /* EINTR, or less than was asked for */
  struct rng rng;
  int write_errno;              /* plain writes fail so after .. */
  uint64_t write_room;          /* .. this many bytes more */
  bool write_nothing;           /* writes return 0 */
  int dsync_errno;              /* RWF_DSYNC writes fail so */
  int sync_errno;               /* fdatasync fails so */
  int range_errno;              /* waiting sync_file_range fails so */
  int punch_errno;              /* all kinds of fallocate fail so */
  int zero_range_errno, allocate_errno;
  atomic_uint writes, dsyncs, syncs, punches;
} host;

/* How much of COUNT this call does; 0 for EINTR. */
static size_t
some (size_t count)
{
  if (!host.short_transfers)
    return count;
  if (rng_below (&host.rng, 4) == 0)
    return 0;
  return 1 + rng_below (&host.rng, count);
}

ssize_t
pread (int fd, void *buf, size_t count, off_t offset)
{
  size_t n = some (count);

  if (n == 0 && count > 0) {
    errno = EINTR;
    return -1;
  }
  return syscall (SYS_pread64, fd, buf, n, offset);
}

ssize_t
pwritev2 (int fd, const struct iovec *iov, int niov, off_t offset, int flags)
{
  struct iovec part = iov[0];

  CHECK (niov > 0 && niov <= IOV_MAX);
  if (flags & RWF_DSYNC) {
    host.dsyncs++;
    if (host.dsync_errno) {
      errno = host.dsync_errno;
      return -1;
    }
  }
  host.writes++;
  if (host.write_nothing)
    return 0;
  if (host.write_errno) {
    if (host.write_room == 0) {
      errno = host.write_errno;
      return -1;
    }
    if (part.iov_len > host.write_room)
      part.iov_len = host.write_room;
    host.write_room -= part.iov_len;
    return syscall (SYS_pwritev2, fd, &part, 1L, offset, 0L, flags);
  }
  if (host.short_transfers) {
    part.iov_len = some (part.iov_len);
    if (part.iov_len == 0) {
      errno = EINTR;
      return -1;
    }
    return syscall (SYS_pwritev2, fd, &part, 1L, offset, 0L, flags);
  }
  return syscall (SYS_pwritev2, fd, iov, (long) niov, offset, 0L, flags);
}

int
fdatasync (int fd)
{
  host.syncs++;
  if (host.sync_errno) {
    errno = host.sync_errno;
    return -1;
  }
  return syscall (SYS_fdatasync, fd);
}

int
sync_file_range (int fd, off_t offset, off_t count, unsigned flags)
{
  if (host.range_errno && (flags & SYNC_FILE_RANGE_WAIT_AFTER)) {
    errno = host.range_errno;
    return -1;
  }
  return syscall (SYS_sync_file_range, fd, offset, count, flags);
}

int
fallocate (int fd, int mode, off_t offset, off_t len)
{
  host.punches++;
  CHECK (mode & FALLOC_FL_KEEP_SIZE);
  errno = host.punch_errno ? host.punch_errno
    : mode & FALLOC_FL_ZERO_RANGE ? host.zero_range_errno
    : mode & FALLOC_FL_PUNCH_HOLE ? 0 : host.allocate_errno;
  if (errno)
    return -1;
  return syscall (SYS_fallocate, fd, mode, offset, len);
}

static void
calm_host (void)
{
  struct rng rng = host.rng;

  memset (&host, 0, sizeof host);
  host.rng = rng;
}

/* --- helpers --- */

static char dir[] = "hostfile-XXXXXX";
static char path[PATH_MAX];

static const struct hostfile_options rw = { .try_writable = true };

/* An empty file of its own for each test. */
static struct hostfile *
fresh (const struct hostfile_options *opts)
{
  struct hostfile *f;
  int fd = open (path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);

  CHECK (fd >= 0);
  close (fd);
  CHECK (hostfile_open (path, opts, &f) == 0);
  CHECK (hostfile_size (f) == 0);
  return f;
}

static void
fill (struct rng *rng, uint8_t *buf, size_t n)
{
  for (size_t i = 0; i < n; i++)
    buf[i] = rng_next (rng);
}

/* R is -1, errno ERR, and the message has TEXT in it. */
#define CHECK_FAILS(r, err, text)                                       \
  do {                                                                  \
    unsigned long before_ = error_count ();                             \
    quiet_errors = true;                                                \
    errno = 0;                                                          \
    CHECK ((r) == -1);                                                  \
    CHECK (errno == (err));                                             \
    quiet_errors = false;                                               \
    CHECK (error_count () == before_ + 1);      /* reported once */     \
    if (strstr (last_error (), (text)) == NULL) {                       \
      fprintf (stderr, "not in \"%s\": %s\n", last_error (), (text));   \
      abort ();                                                         \
    }                                                                   \
  } while (0)

/* --- tests --- */

static void
test_open (void)
{
  struct hostfile *f, *g;
  char name[PATH_MAX];

  alarm (20);                   /* nothing here may wait for anyone */
  snprintf (name, sizeof name, "%s/fifo", dir);
  CHECK (mkfifo (name, 0600) == 0);
  CHECK_FAILS (hostfile_open (name, &rw, &f), EINVAL, "fifo: cannot open: is a FIFO");
  CHECK_FAILS (hostfile_open (name, &(struct hostfile_options) { 0 }, &f),
               EINVAL, "is a FIFO");
  unlink (name);
  alarm (0);

  CHECK_FAILS (hostfile_open (dir, &rw, &f), EINVAL, "is a directory");
  CHECK_FAILS (hostfile_open ("/dev/null", &rw, &f), EINVAL,
               "/dev/null: cannot open: is a character device");
  snprintf (name, sizeof name, "%s/missing", dir);
  CHECK_FAILS (hostfile_open (name, &rw, &f), ENOENT, "missing: cannot open");

  /* A program that is running cannot be written, not even by root. */
  CHECK (hostfile_open ("/proc/self/exe", &rw, &f) == 0);
  CHECK (!hostfile_is_writable (f));
  CHECK (hostfile_is_regular (f));
  CHECK (hostfile_size (f) > 0);
  hostfile_close (f);

  f = fresh (&rw);
  CHECK (hostfile_is_writable (f));
  CHECK (strcmp (hostfile_path (f), path) == 0);
  CHECK (hostfile_open (path, &(struct hostfile_options) { 0 }, &g) == 0);
  CHECK (!hostfile_is_writable (g));
  CHECK (hostfile_same (f, g));
  hostfile_close (g);
  CHECK (hostfile_open ("/proc/self/exe", &rw, &g) == 0);
  CHECK (!hostfile_same (f, g));
  hostfile_close (g);
  hostfile_close (f);
  hostfile_close (NULL);
}

static void
test_transfers (uint64_t seed, bool short_transfers, bool drop_cache)
{
  enum { SIZE = 300000 };
  static uint8_t model[SIZE], buf[SIZE], zeros[SIZE];
  const struct hostfile_options opts = {
    .try_writable = true, .drop_cache = drop_cache
  };
  struct hostfile *f = fresh (&opts);
  uint64_t size = 0;
  struct rng rng;

  rng_init (&rng, seed, 1);
  memset (model, 0, sizeof model);
  host.short_transfers = short_transfers;

  for (int i = 0; i < 300; i++) {
    uint64_t offset = rng_below (&rng, SIZE - 20000);
    uint64_t count = rng_below (&rng, 20000);

    if (rng_below (&rng, 2)) {
      fill (&rng, buf, count);
      memcpy (model + offset, buf, count);
      CHECK (hostfile_write (f, buf, count, offset) == 0);
      if (count > 0 && offset + count > size)
        size = offset + count;
    }
    else {
      memset (buf, 0x55, count + 1);
      CHECK (hostfile_read (f, buf, count, offset) == 0);
      CHECK (memcmp (buf, model + offset, count) == 0);
      CHECK (buf[count] == 0x55);
    }
    CHECK (hostfile_size (f) == size);
    if (i % 100 == 0)
      CHECK (hostfile_sync (f) == 0);
  }

  /* Across the end, and beyond it. */
  CHECK (hostfile_truncate (f, 1000) == 0);
  CHECK (hostfile_size (f) == 1000);
  memset (buf, 0x55, SIZE);
  CHECK (hostfile_read (f, buf, 2000, 500) == 0);
  CHECK (memcmp (buf, model + 500, 500) == 0);
  CHECK (memcmp (buf + 500, zeros, 1500) == 0);
  CHECK (buf[2000] == 0x55);
  CHECK (hostfile_read (f, buf, 3000, 1 << 30) == 0);
  CHECK (memcmp (buf, zeros, 3000) == 0);
  CHECK (hostfile_size (f) == 1000);

  calm_host ();
  hostfile_prefetch (f, 0, 1000);
  CHECK_FAILS (hostfile_read (f, buf, 512, UINT64_C (1) << 63), EOVERFLOW,
               "cannot read 512 bytes at offset 9223372036854775808");
  hostfile_close (f);
}

/* More buffers than one system call takes, empty ones among them. */
static void
test_writev (uint64_t seed, bool short_transfers, bool dsync)
{
  enum { MAX_N = 3000, MAX = 17 };
  static uint8_t data[MAX_N * MAX], back[MAX_N * MAX];
  static struct iovec iov[MAX_N], copy[MAX_N];
  const int n = short_transfers && dsync ? 50 : MAX_N;  /* slow */
  struct hostfile *f = fresh (&rw);
  struct rng rng;
  size_t total = 0;

  rng_init (&rng, seed, 2);
  for (int i = 0; i < n; i++) {
    size_t len = i < n / 2 || i == n - 1 ? 0 : rng_below (&rng, MAX);

    iov[i] = (struct iovec) { data + total, len };
    total += len;
  }
  fill (&rng, data, total);
  memcpy (copy, iov, sizeof iov);

  host.short_transfers = short_transfers;
  CHECK (hostfile_writev (f, iov, n, 12345, dsync) == 0);
  CHECK ((host.dsyncs > 0) == dsync);
  CHECK (memcmp (copy, iov, sizeof iov) == 0);
  CHECK (hostfile_size (f) == 12345 + total);
  CHECK (hostfile_read (f, back, total, 12345) == 0);
  CHECK (memcmp (data, back, total) == 0);

  CHECK (hostfile_writev (f, iov, 0, 0, dsync) == 0);
  CHECK (hostfile_writev (f, iov, 1, 1 << 20, dsync) == 0);     /* empty */
  CHECK (hostfile_size (f) == 12345 + total);
  calm_host ();
  hostfile_close (f);
}

static void
test_failing_writes (void)
{
  static uint8_t buf[8192];
  struct hostfile *f = fresh (&rw);

  /* What was written before the disk was full counts. */
  host.write_errno = ENOSPC;
  host.write_room = 3000;
  CHECK_FAILS (hostfile_write (f, buf, 8192, 512), ENOSPC,
               "cannot write 8192 bytes at offset 512");
  CHECK (hostfile_size (f) == 3512);
  calm_host ();
  CHECK (hostfile_write (f, buf, 8192, 512) == 0);
  CHECK (hostfile_size (f) == 8704);
  CHECK (hostfile_sync (f) == 0);

  host.write_nothing = true;
  CHECK_FAILS (hostfile_write (f, buf, 1, 0), ENOSPC, "cannot write 1 bytes");
  calm_host ();

  host.sync_errno = EIO;
  CHECK_FAILS (hostfile_sync (f), EIO, "fdatasync");
  calm_host ();
  CHECK (hostfile_sync (f) == 0);
  hostfile_close (f);

  /* A file that cannot be written. */
  CHECK (hostfile_open (path, &(struct hostfile_options) { 0 }, &f) == 0);
  CHECK_FAILS (hostfile_write (f, buf, 1, 0), EBADF, "cannot write");
  hostfile_close (f);
}

static void
test_dsync (void)
{
  static uint8_t buf[4096];
  const struct iovec iov = { buf, sizeof buf };
  struct hostfile *f = fresh (&rw);

  calm_host ();
  CHECK (hostfile_writev (f, &iov, 1, 0, true) == 0);
  CHECK (host.dsyncs == 1 && host.syncs == 0);

  /* The host doesn't know the flag: written and synced; asked once only. */
  calm_host ();
  host.dsync_errno = EOPNOTSUPP;
  CHECK (hostfile_writev (f, &iov, 1, 0, true) == 0);
  CHECK (hostfile_writev (f, &iov, 1, 4096, true) == 0);
  CHECK (host.dsyncs == 1 && host.syncs == 2 && host.writes == 2);
  CHECK (hostfile_size (f) == 8192);

  /* That sync's failure is not forgotten when the next one succeeds. */
  host.sync_errno = EIO;
  CHECK_FAILS (hostfile_writev (f, &iov, 1, 0, true), EIO, "cannot write");
  calm_host ();
  CHECK_FAILS (hostfile_sync (f), EIO, "fdatasync");
  CHECK_FAILS (hostfile_sync (f), EIO, "fdatasync");
  hostfile_close (f);

  /* Nor that of a durable write, which may tell of other writes. */
  f = fresh (&rw);
  host.dsync_errno = EIO;
  CHECK_FAILS (hostfile_writev (f, &iov, 1, 0, true), EIO, "cannot write");
  calm_host ();
  CHECK_FAILS (hostfile_sync (f), EIO, "fdatasync");
  hostfile_close (f);

  /* Full: nothing was lost.  Not full after all: something else was. */
  f = fresh (&rw);
  host.dsync_errno = host.write_errno = ENOSPC;
  CHECK_FAILS (hostfile_writev (f, &iov, 1, 0, true), ENOSPC, "cannot write");
  calm_host ();
  CHECK (hostfile_sync (f) == 0);
  host.dsync_errno = ENOSPC;
  CHECK_FAILS (hostfile_writev (f, &iov, 1, 0, true), ENOSPC, "cannot write");
  calm_host ();
  CHECK_FAILS (hostfile_sync (f), ENOSPC, "fdatasync");
  hostfile_close (f);
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
  const struct hostfile_options none = {
    .try_writable = true, .drop_cache = true
  };
  const size_t page = sysconf (_SC_PAGESIZE);
  uint8_t *buf = calloc (PAGES, page);
  struct hostfile *f;
  struct statfs fs;

  CHECK (buf != NULL);
  f = fresh (&none);
  for (unsigned i = 0; i < PAGES; i++)
    CHECK (hostfile_write (f, buf + i * page, page, i * page) == 0);
  CHECK (hostfile_sync (f) == 0);
  CHECK (statfs (path, &fs) == 0);
  if (fs.f_type == TMPFS_MAGIC_NUMBER)
    printf ("skipped: a file system in memory drops nothing\n");
  else {
    CHECK (resident (PAGES) < PAGES / 4);
    CHECK (hostfile_read (f, buf, PAGES * page, 0) == 0);
    CHECK (resident (PAGES) < PAGES / 4);
  }

  /* A lost write, of which only the wait for an old window knows. */
  host.range_errno = EIO;
  for (unsigned i = 0; i < 100; i++)
    CHECK (hostfile_write (f, buf, page, i * page) == 0);
  calm_host ();
  CHECK_FAILS (hostfile_sync (f), EIO, "fdatasync");
  hostfile_close (f);

  /* A host that can't do it has lost nothing. */
  f = fresh (&none);
  host.range_errno = ESPIPE;
  for (unsigned i = 0; i < 100; i++)
    CHECK (hostfile_write (f, buf, page, i * page) == 0);
  CHECK (hostfile_sync (f) == 0);
  calm_host ();
  hostfile_close (f);
  free (buf);
}

static void
test_space (void)
{
  enum { MIB = 1 << 20 };
  static uint8_t buf[MIB], zeros[MIB];
  struct hostfile *f = fresh (&rw);
  uint64_t len, allocated;
  bool hole;
  int r;

  memset (buf, 0xaa, sizeof buf);
  CHECK (hostfile_truncate (f, 8 * MIB) == 0);
  CHECK (hostfile_write (f, buf, MIB, 2 * MIB) == 0);
  CHECK (hostfile_sync (f) == 0);
  CHECK (hostfile_size (f) == 8 * MIB);
  allocated = hostfile_allocated (f);
  CHECK (allocated >= MIB);

  r = hostfile_punch (f, 2 * MIB, MIB / 2);
  CHECK (r == 0 || r == 1);
  if (r == 1) {
    CHECK (hostfile_allocated (f) < allocated);
    CHECK (hostfile_read (f, buf, MIB, 2 * MIB) == 0);
    CHECK (memcmp (buf, zeros, MIB / 2) == 0);
    CHECK (buf[MIB / 2] == 0xaa);
    CHECK (hostfile_punch (f, 0, 0) == 1);
    CHECK (hostfile_punch (f, 100 * MIB, MIB) == 1);
    CHECK (hostfile_size (f) == 8 * MIB);
  }

  /* Holes and data follow each other. */
  len = 8 * MIB;
  CHECK (hostfile_hole (f, 0, &len, &hole) == 0);
  if (hole) {
    CHECK (len == (r == 1 ? 2 * MIB + MIB / 2 : 2 * MIB));
    len = MIB;
    CHECK (hostfile_hole (f, 1000, &len, &hole) == 0);
    CHECK (hole && len == MIB);
    len = 100 * MIB;
    CHECK (hostfile_hole (f, 2 * MIB + MIB / 2, &len, &hole) == 0);
    CHECK (!hole && len == MIB / 2);
    len = 1000;
    CHECK (hostfile_hole (f, 2 * MIB + MIB / 2, &len, &hole) == 0);
    CHECK (!hole && len == 1000);
    len = 100 * MIB;
    CHECK (hostfile_hole (f, 3 * MIB, &len, &hole) == 0);
    CHECK (hole && len == 100 * MIB);
  }
  else
    printf ("skipped: the file system does not tell of holes\n");
  len = 1234;
  CHECK (hostfile_hole (f, 8 * MIB, &len, &hole) == 0);
  CHECK (hole && len == 1234);
  CHECK (hostfile_hole (f, UINT64_C (1) << 63, &len, &hole) == 0);
  CHECK (hole && len == 1234);

  /* Hosts that can't are asked once; real errors are errors. */
  host.punch_errno = EPERM;
  CHECK_FAILS (hostfile_punch (f, 0, 512), EPERM,
               "cannot punch a hole of 512 bytes at offset 0");
  host.punch_errno = EOPNOTSUPP;
  host.punches = 0;
  CHECK (hostfile_punch (f, 0, 512) == 0);
  host.punch_errno = 0;
  CHECK (hostfile_punch (f, 0, 512) == 0);
  CHECK (host.punches == 1);
  calm_host ();

  /* Zeros without writing or freeing, where the host has them. */
  memset (buf, 0xbb, 4096);
  CHECK (hostfile_write (f, buf, 4096, 0) == 0);
  host.punch_errno = EIO;
  CHECK_FAILS (hostfile_zero (f, 0, 512), EIO,
               "cannot zero 512 bytes at offset 0");
  host.punch_errno = 0;
  r = hostfile_zero (f, 100, 1000);
  CHECK (r == 0 || r == 1);
  CHECK (hostfile_read (f, buf, 4096, 0) == 0);
  for (int i = 0; i < 4096; i++)
    CHECK (buf[i] == (r == 1 && i >= 100 && i < 1100 ? 0 : 0xbb));
  host.punch_errno = EOPNOTSUPP;
  CHECK (hostfile_zero (f, 0, 512) == 0);
  host.punches = 0;
  CHECK (hostfile_zero (f, 0, 512) == 0);
  CHECK (host.punches == 0);
  calm_host ();
  CHECK_FAILS (hostfile_truncate (f, UINT64_C (1) << 63), EOVERFLOW,
               "cannot set the size");
  CHECK (hostfile_size (f) == 8 * MIB);
  hostfile_close (f);
}

/* Hosts that have holes, but no zeros: a hole with space, or nothing at all. */
static void
test_zero_by_hole (void)
{
  enum { MIB = 1 << 20 };
  static uint8_t buf[MIB];
  struct hostfile *f = fresh (&rw);
  uint64_t len = MIB;
  bool hole;

  calm_host ();
  memset (buf, 0xcc, sizeof buf);
  CHECK (hostfile_write (f, buf, MIB, 0) == 0);
  CHECK (hostfile_sync (f) == 0);
  if (hostfile_punch (f, MIB, MIB) != 1 || hostfile_allocate (f, MIB, 1) == -1 ||
      hostfile_cannot_allocate (f)) {
    printf ("skipped: the file system can't punch holes, or set space aside\n");
    hostfile_close (f);
    return;
  }
  host.zero_range_errno = EOPNOTSUPP;
  CHECK (hostfile_zero (f, 4096, MIB / 2) == 1);
  CHECK (hostfile_allocated (f) >= MIB);
  CHECK (hostfile_read (f, buf, MIB, 0) == 0);
  for (int i = 0; i < MIB; i++)
    CHECK (buf[i] == (i >= 4096 && i < 4096 + MIB / 2 ? 0 : 0xcc));
  CHECK (hostfile_hole (f, 4096, &len, &hole) == 0);
  CHECK (!hole || len == MIB / 2);
  host.allocate_errno = ENOSPC;
  CHECK_FAILS (hostfile_zero (f, 0, 512), ENOSPC, "cannot allocate");

  /* Neither: nothing has changed, and the caller writes. */
  host.allocate_errno = EOPNOTSUPP;
  CHECK (hostfile_zero (f, 0, 4096) == 0);
  CHECK (hostfile_read (f, buf, 4096, 0) == 0);
  for (int i = 0; i < 4096; i++)
    CHECK (buf[i] == 0xcc);
  host.punches = 0;
  CHECK (hostfile_zero (f, 0, 4096) == 0);
  CHECK (host.punches == 0);
  calm_host ();
  hostfile_close (f);
}

/* A sync only where there is something to sync. */
static void
test_sync_changes (void)
{
  struct hostfile *f = fresh (&rw);
  uint8_t buf[512] = { 0 };
  const struct iovec iov = { buf, sizeof buf };

  calm_host ();
  CHECK (hostfile_sync_changes (f) == 0);
  CHECK (hostfile_write (f, buf, 512, 0) == 0);
  CHECK (hostfile_sync_changes (f) == 1);
  CHECK (hostfile_sync_changes (f) == 0);
  CHECK (hostfile_writev (f, &iov, 1, 512, true) == 0);
  CHECK (hostfile_sync_changes (f) == 0);
  CHECK (hostfile_punch (f, 0, 512) >= 0);
  CHECK (hostfile_sync_changes (f) == 1);
  CHECK (hostfile_truncate (f, 4096) == 0);
  CHECK (hostfile_sync_changes (f) == 1);
  CHECK (hostfile_write (f, buf, 512, 0) == 0);
  CHECK (hostfile_sync (f) == 0);
  CHECK (hostfile_sync_changes (f) == 0);

  /* One that fails leaves everything to be synced. */
  CHECK (hostfile_write (f, buf, 512, 0) == 0);
  host.sync_errno = EIO;
  CHECK_FAILS (hostfile_sync_changes (f), EIO, "fdatasync");
  host.sync_errno = 0;
  CHECK (hostfile_sync_changes (f) == 1);
  hostfile_close (f);
}

/* --- hooks --- */

static struct {
  int answer;                   /* what the hook returns */
  int err;
  unsigned calls;
  enum hostfile_op op;
  uint64_t offset, count;
  bool dsync;
  uint8_t first;                /* the first byte of a write */
} hook;

static int
before (void *opaque, const char *name, enum hostfile_op op,
        const struct iovec *iov, int niov, uint64_t offset, uint64_t count,
        bool dsync)
{
  CHECK (opaque == &hook);
  CHECK (strcmp (name, path) == 0);
  CHECK ((niov > 0) == (op == HOSTFILE_OP_READ || op == HOSTFILE_OP_WRITE));
  hook.calls++;
  hook.op = op;
  hook.offset = offset;
  hook.count = count;
  hook.dsync = dsync;
  if (op == HOSTFILE_OP_WRITE)
    hook.first = *(uint8_t *) iov[0].iov_base;
  if (hook.answer == 1 && op == HOSTFILE_OP_READ)
    memset (iov[0].iov_base, 0x77, iov[0].iov_len);
  errno = hook.err;
  return hook.answer;
}

#define CHECK_HOOK(op_, offset_, count_)                                \
  CHECK (hook.calls == 1 && hook.op == (op_) &&                         \
         hook.offset == (offset_) && hook.count == (count_));           \
  hook.calls = 0

static void
test_hooks (void)
{
  static const struct hostfile_hooks hooks = { before, &hook };
  const struct hostfile_options opts = {
    .try_writable = true, .hooks = &hooks
  };
  struct hostfile *f = fresh (&opts);
  uint8_t buf[512];
  struct iovec iov = { buf, sizeof buf };
  uint64_t len = 100;
  bool hole;

  memset (buf, 0x11, sizeof buf);
  hook.answer = 0;
  CHECK (hostfile_writev (f, &iov, 1, 1024, true) == 0);
  CHECK (hook.dsync && hook.first == 0x11);
  CHECK_HOOK (HOSTFILE_OP_WRITE, 1024, 512);
  CHECK (hostfile_read (f, buf, 512, 1024) == 0);
  CHECK (buf[0] == 0x11);
  CHECK_HOOK (HOSTFILE_OP_READ, 1024, 512);
  CHECK (hostfile_hole (f, 1536, &len, &hole) == 0 && hole);

  hook.answer = -1;
  hook.err = ENOMEM;
  CHECK_FAILS (hostfile_write (f, buf, 512, 4096), ENOMEM, "cannot write");
  CHECK_HOOK (HOSTFILE_OP_WRITE, 4096, 512);
  CHECK_FAILS (hostfile_read (f, buf, 10, 20), ENOMEM, "cannot read 10 bytes");
  CHECK_HOOK (HOSTFILE_OP_READ, 20, 10);
  CHECK_FAILS (hostfile_sync (f), ENOMEM, "fdatasync");
  CHECK_HOOK (HOSTFILE_OP_SYNC, 0, 0);
  CHECK_FAILS (hostfile_punch (f, 0, 512), ENOMEM, "cannot punch");
  CHECK_HOOK (HOSTFILE_OP_PUNCH, 0, 512);
  CHECK_FAILS (hostfile_truncate (f, 99), ENOMEM, "cannot set the size");
  CHECK_HOOK (HOSTFILE_OP_TRUNCATE, 99, 0);
  CHECK (hostfile_size (f) == 1536);

  /* Done by the hook: nothing happens, and all goes on as if it had. */
  hook.answer = 1;
  hook.err = 0;
  calm_host ();
  memset (buf, 0x22, sizeof buf);
  CHECK (hostfile_writev (f, &iov, 1, 1 << 20, true) == 0);
  CHECK_HOOK (HOSTFILE_OP_WRITE, 1 << 20, 512);
  CHECK (hostfile_size (f) == (1 << 20) + 512);
  CHECK (hostfile_sync (f) == 0);
  CHECK_HOOK (HOSTFILE_OP_SYNC, 0, 0);
  CHECK (hostfile_punch (f, 1024, 512) == 1);
  CHECK_HOOK (HOSTFILE_OP_PUNCH, 1024, 512);
  CHECK (hostfile_read (f, buf, 512, 0) == 0);
  CHECK (buf[0] == 0x77 && buf[511] == 0x77);
  CHECK_HOOK (HOSTFILE_OP_READ, 0, 512);
  CHECK (hostfile_truncate (f, 2 << 20) == 0);
  CHECK_HOOK (HOSTFILE_OP_TRUNCATE, 2 << 20, 0);
  CHECK (hostfile_size (f) == 2 << 20);
  CHECK (host.writes == 0 && host.syncs == 0 && host.punches == 0);

  /* The host can no longer tell what is a hole. */
  CHECK (hostfile_hole (f, 1 << 20, &len, &hole) == 0 && !hole);

  hook.answer = 0;
  CHECK (hostfile_read (f, buf, 512, 1024) == 0);
  CHECK (buf[0] == 0x11);
  hostfile_close (f);
}

/* --- threads --- */

struct worker {
  struct hostfile *f;
  unsigned number;
};

static void *
work (void *arg)
{
  struct worker *w = arg;
  uint8_t buf[256], back[256];

  for (unsigned i = 0; i < 300; i++) {
    uint64_t offset = (i * 4 + w->number) * sizeof buf;

    memset (buf, i + w->number, sizeof buf);
    CHECK (hostfile_write (w->f, buf, sizeof buf, offset) == 0);
    CHECK (hostfile_size (w->f) >= offset + sizeof buf);
    CHECK (hostfile_read (w->f, back, sizeof back, offset) == 0);
    CHECK (memcmp (buf, back, sizeof buf) == 0);
    if (i % 100 == 0)
      CHECK (hostfile_sync (w->f) == 0);
  }
  return NULL;
}

static void
test_threads (bool drop_cache)
{
  const struct hostfile_options opts = {
    .try_writable = true, .drop_cache = drop_cache
  };
  struct hostfile *f = fresh (&opts);
  struct worker workers[4];
  struct stat st;

  for (unsigned i = 0; i < 4; i++)
    workers[i] = (struct worker) { f, i };
  run_threads (work, workers, sizeof workers[0], 4);
  CHECK (stat (path, &st) == 0);
  CHECK (hostfile_size (f) == (uint64_t) st.st_size);
  CHECK (hostfile_size (f) == 300 * 4 * 256);
  hostfile_close (f);
}

int
main (void)
{
  uint64_t seed = seed_from_env ();
  char cwd[PATH_MAX / 2];

  if (sizeof (long) < 8) {
    printf ("skipped: the replaced system calls are written for 64 bits\n");
    return 77;
  }
  rng_init (&host.rng, seed, 0);
  CHECK (mkdtemp (dir) != NULL);
  CHECK (getcwd (cwd, sizeof cwd) != NULL);
  snprintf (path, sizeof path, "%s/%s/file", cwd, dir);

  test_open ();
  test_transfers (seed, false, false);
  test_transfers (seed, true, false);
  test_transfers (seed, true, true);
  test_writev (seed, false, false);
  test_writev (seed, true, false);
  test_writev (seed, false, true);
  test_writev (seed, true, true);
  test_failing_writes ();
  test_dsync ();
  test_drop_cache ();
  test_space ();
  test_zero_by_hole ();
  test_sync_changes ();
  test_hooks ();
  test_threads (false);
  test_threads (true);

  unlink (path);
  CHECK (rmdir (dir) == 0);
  return 0;
}
