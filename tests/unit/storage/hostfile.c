/* SPDX-License-Identifier: BSD-3-Clause
 *
 * hostfile.c: transfers are complete on a host that does short ones; zeros past the end,
 * the size, the hooks, errors of the host, and what is refused.
 */

#include <config.h>

#include <signal.h>
#include <spawn.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "lib/hostcalls.h"

static void
fill (struct rng *rng, uint8_t *buf, size_t n)
{
  for (size_t i = 0; i < n; i++)
    buf[i] = rng_next (rng);
}

/* A program that is running cannot be written, not even by root.  (What an emulator shows
 * as /proc/self/exe is none.) */
static void
test_running (void)
{
  char *const argv[] = { "sleep", "60", NULL };
  struct storage *f;
  char name[PATH_MAX];
  pid_t pid;

  CHECK (posix_spawnp (&pid, "sleep", NULL, NULL, argv, environ) == 0);
  snprintf (name, sizeof name, "/proc/%d/exe", (int) pid);
  CHECK (storage_open (name, &rw, &f) == 0);
  CHECK (!storage_is_writable (f));
  CHECK (storage_is_regular (f));
  CHECK (storage_size (f) > 0);
  storage_close (f);
  CHECK (kill (pid, SIGKILL) == 0 && waitpid (pid, NULL, 0) == pid);
}

static void
test_open (void)
{
  struct storage *f, *g;
  char name[PATH_MAX];

  /* Nothing here waits for anyone. */
  snprintf (name, sizeof name, "%s/fifo", dir);
  CHECK (mkfifo (name, 0600) == 0);
  CHECK_FAILS (storage_open (name, &rw, &f), EINVAL, "fifo: cannot open: is a FIFO");
  CHECK_FAILS (storage_open (name, &(struct storage_options) { 0 }, &f),
               EINVAL, "is a FIFO");
  unlink (name);

  CHECK_FAILS (storage_open (dir, &rw, &f), EINVAL, "is a directory");
  CHECK_FAILS (storage_open ("/dev/null", &rw, &f), EINVAL,
               "/dev/null: cannot open: is a character device");
  snprintf (name, sizeof name, "%s/missing", dir);
  CHECK_FAILS (storage_open (name, &rw, &f), ENOENT, "missing: cannot open");

  f = fresh (&rw);
  CHECK (storage_is_writable (f));
  CHECK (strcmp (storage_path (f), path) == 0);
  CHECK (storage_open (path, &(struct storage_options) { 0 }, &g) == 0);
  CHECK (!storage_is_writable (g));
  CHECK (storage_same (f, g));
  storage_close (g);
  CHECK (storage_open ("/proc/self/exe", &rw, &g) == 0);
  CHECK (!storage_same (f, g));
  storage_close (g);
  storage_close (f);
  storage_close (NULL);
}

static void
test_transfers (uint64_t seed, bool short_transfers, enum storage_cache cache)
{
  enum { SIZE = 300000 };
  static uint8_t model[SIZE], buf[SIZE], zeros[SIZE];
  const struct storage_options opts = {
    .try_writable = true, .cache = cache
  };
  struct storage *f = fresh (&opts);
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
      CHECK (storage_write (f, buf, count, offset) == 0);
      if (count > 0 && offset + count > size)
        size = offset + count;
    }
    else {
      memset (buf, 0x55, count + 1);
      CHECK (storage_read (f, buf, count, offset) == 0);
      CHECK (memcmp (buf, model + offset, count) == 0);
      CHECK (buf[count] == 0x55);
    }
    CHECK (storage_size (f) == size);
    if (i % 100 == 0)
      CHECK (storage_sync (f) == 0);
  }

  /* Across the end, and beyond it. */
  CHECK (storage_truncate (f, 1000) == 0);
  CHECK (storage_size (f) == 1000);
  memset (buf, 0x55, SIZE);
  CHECK (storage_read (f, buf, 2000, 500) == 0);
  CHECK (memcmp (buf, model + 500, 500) == 0);
  CHECK (memcmp (buf + 500, zeros, 1500) == 0);
  CHECK (buf[2000] == 0x55);
  CHECK (storage_read (f, buf, 3000, 1 << 30) == 0);
  CHECK (memcmp (buf, zeros, 3000) == 0);
  CHECK (storage_size (f) == 1000);

  calm_host ();
  storage_prefetch (f, 0, 1000);
  CHECK_FAILS (storage_read (f, buf, 512, UINT64_C (1) << 63), EOVERFLOW,
               "cannot read 512 bytes at offset 9223372036854775808");
  storage_close (f);
}

/* More buffers than one system call takes, empty ones among them. */
static void
test_writev (uint64_t seed, bool short_transfers, bool dsync)
{
  enum { MAX_N = 3000, MAX = 17 };
  static uint8_t data[MAX_N * MAX], back[MAX_N * MAX];
  static struct iovec iov[MAX_N], copy[MAX_N];
  const int n = short_transfers && dsync ? 50 : MAX_N;  /* slow */
  struct storage *f = fresh (&rw);
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
  CHECK (storage_writev (f, iov, n, 12345, dsync) == 0);
  CHECK ((host.dsyncs > 0) == dsync);
  CHECK (memcmp (copy, iov, sizeof iov) == 0);
  CHECK (storage_size (f) == 12345 + total);
  CHECK (storage_read (f, back, total, 12345) == 0);
  CHECK (memcmp (data, back, total) == 0);

  CHECK (storage_writev (f, iov, 0, 0, dsync) == 0);
  CHECK (storage_writev (f, iov, 1, 1 << 20, dsync) == 0);     /* empty */
  CHECK (storage_size (f) == 12345 + total);
  calm_host ();
  storage_close (f);
}

static void
test_failing_writes (void)
{
  static uint8_t buf[8192];
  struct storage *f = fresh (&rw);

  /* What was written before the disk was full counts. */
  host.write_errno = ENOSPC;
  host.write_room = 3000;
  CHECK_FAILS (storage_write (f, buf, 8192, 512), ENOSPC,
               "cannot write 8192 bytes at offset 512");
  CHECK (storage_size (f) == 3512);
  calm_host ();
  CHECK (storage_write (f, buf, 8192, 512) == 0);
  CHECK (storage_size (f) == 8704);
  CHECK (storage_sync (f) == 0);

  host.write_nothing = true;
  CHECK_FAILS (storage_write (f, buf, 1, 0), ENOSPC, "cannot write 1 bytes");
  calm_host ();

  /* The kernel had no memory, but may have begun. */
  host.sync_errno = ENOMEM;
  CHECK_FAILS (storage_sync (f), EIO, "fdatasync");
  host.sync_errno = EIO;
  CHECK_FAILS (storage_sync (f), EIO, "fdatasync");
  calm_host ();
  host.read_errno = EIO;
  CHECK_FAILS (storage_read (f, buf, 100, 512), EIO,
               "cannot read 100 bytes at offset 512");
  /* A file system that shuts the host out does not say so to clients. */
  host.read_errno = host.write_errno = host.allocate_errno = ESHUTDOWN;
  CHECK_FAILS (storage_read (f, buf, 100, 512), EIO, "endpoint shutdown");
  CHECK_FAILS (storage_write (f, buf, 100, 512), EIO, "endpoint shutdown");
  CHECK_FAILS (storage_extend (f, 0, 0, 100), EIO, "endpoint shutdown");
  calm_host ();
  CHECK (storage_sync (f) == 0);
  storage_close (f);

  /* A file that cannot be written. */
  CHECK (storage_open (path, &(struct storage_options) { 0 }, &f) == 0);
  CHECK_FAILS (storage_write (f, buf, 1, 0), EBADF, "cannot write");
  storage_close (f);
}

/* --- hooks --- */

static struct {
  int answer;                   /* what the hook returns */
  int err;
  unsigned calls;
  enum storage_op op;
  uint64_t offset, count;
  bool dsync;
  uint8_t first;                /* the first byte of a write */
} hook;

static int
before (void *opaque, const char *name, enum storage_op op,
        const struct iovec *iov, int niov, uint64_t offset, uint64_t count,
        bool dsync)
{
  CHECK (opaque == &hook);
  CHECK (strcmp (name, path) == 0);
  CHECK ((niov > 0) == (op == STORAGE_OP_READ || op == STORAGE_OP_WRITE));
  hook.calls++;
  hook.op = op;
  hook.offset = offset;
  hook.count = count;
  hook.dsync = dsync;
  if (op == STORAGE_OP_WRITE)
    hook.first = *(uint8_t *) iov[0].iov_base;
  if (hook.answer == 1 && op == STORAGE_OP_READ)
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
  static const struct storage_hooks hooks = { .before = before, .opaque = &hook };
  const struct storage_options opts = {
    .try_writable = true, .hooks = &hooks
  };
  struct storage *f = fresh (&opts);
  uint8_t buf[512];
  struct iovec iov = { buf, sizeof buf };
  uint64_t len = 100;

  memset (buf, 0x11, sizeof buf);
  hook.answer = 0;
  CHECK (storage_writev (f, &iov, 1, 1024, true) == 0);
  CHECK (hook.dsync && hook.first == 0x11);
  CHECK_HOOK (STORAGE_OP_WRITE, 1024, 512);
  CHECK (storage_read (f, buf, 512, 1024) == 0);
  CHECK (buf[0] == 0x11);
  CHECK_HOOK (STORAGE_OP_READ, 1024, 512);
  CHECK (storage_hole (f, 1536, &len));

  hook.answer = -1;
  hook.err = ENOMEM;
  CHECK_FAILS (storage_write (f, buf, 512, 4096), ENOMEM, "cannot write");
  CHECK_HOOK (STORAGE_OP_WRITE, 4096, 512);
  CHECK_FAILS (storage_read (f, buf, 10, 20), ENOMEM, "cannot read 10 bytes");
  CHECK_HOOK (STORAGE_OP_READ, 20, 10);
  CHECK_FAILS (storage_sync (f), ENOMEM, "fdatasync");
  CHECK_HOOK (STORAGE_OP_SYNC, 0, 0);
  CHECK_FAILS (storage_punch (f, 0, 512), ENOMEM, "cannot punch");
  CHECK_HOOK (STORAGE_OP_PUNCH, 0, 512);
  CHECK_FAILS (storage_truncate (f, 99), ENOMEM, "cannot set the size");
  CHECK_HOOK (STORAGE_OP_TRUNCATE, 99, 0);
  CHECK (storage_size (f) == 1536);

  /* Done by the hook: nothing happens, and all goes on as if it had. */
  hook.answer = 1;
  hook.err = 0;
  calm_host ();
  memset (buf, 0x22, sizeof buf);
  CHECK (storage_writev (f, &iov, 1, 1 << 20, true) == 0);
  CHECK_HOOK (STORAGE_OP_WRITE, 1 << 20, 512);
  CHECK (storage_size (f) == (1 << 20) + 512);
  CHECK (storage_sync (f) == 0);
  CHECK_HOOK (STORAGE_OP_SYNC, 0, 0);
  CHECK (storage_punch (f, 1024, 512) == 1);
  CHECK_HOOK (STORAGE_OP_PUNCH, 1024, 512);
  CHECK (storage_read (f, buf, 512, 0) == 0);
  CHECK (buf[0] == 0x77 && buf[511] == 0x77);
  CHECK_HOOK (STORAGE_OP_READ, 0, 512);
  CHECK (storage_truncate (f, 2 << 20) == 0);
  CHECK_HOOK (STORAGE_OP_TRUNCATE, 2 << 20, 0);
  CHECK (storage_size (f) == 2 << 20);
  CHECK (host.writes == 0 && host.syncs == 0 && host.punches == 0);

  /* The host can no longer tell what is a hole. */
  CHECK (!storage_hole (f, 1 << 20, &len));

  hook.answer = 0;
  CHECK (storage_read (f, buf, 512, 1024) == 0);
  CHECK (buf[0] == 0x11);
  storage_close (f);
}

int
main (void)
{
  const uint64_t seed = seed_from_env ();

  host_begin (seed);
  test_open ();
  test_running ();
  test_transfers (seed, false, STORAGE_CACHE_DEFAULT);
  test_transfers (seed, true, STORAGE_CACHE_UNSAFE);
  test_transfers (seed, true, STORAGE_CACHE_NONE);
  test_writev (seed, false, false);
  test_writev (seed, true, false);
  test_writev (seed, false, true);
  test_writev (seed, true, true);
  test_failing_writes ();
  test_hooks ();
  host_end ();
  return 0;
}
