/* SPDX-License-Identifier: BSD-3-Clause
 *
 * folios.c: the first small writes to each part of a file, and one after many more and a
 * while, ask the host to split the folio, if the file is on ext4 of a new kernel, and
 * cached.  Larger writes do not, nor do those to new clusters, and those with cache=none.
 * A host that refuses is asked no more.
 *
 * The host's part is played here.  (hostfile-folios-split has the real one.)
 */

#include <config.h>

#include <stdlib.h>
#include <sys/mman.h>
#include <sys/utsname.h>
#include <sys/vfs.h>
#include <time.h>
#include <linux/magic.h>

#include "storage/folios.h"
#include "storage/hostfile.h"
#include "lib/hostcalls.h"

enum { PAGE = 4096, PART = 1 << 20, PARTS = 16, SIZE = PARTS * PART };

enum call { NONE, MMAP, MINCORE, POPULATE, COLD };

/* What the host is. */
static long fs_type;
static const char *release;
static bool cached;
static enum call fails;
static time_t time_now = 40000; /* seconds: a period of part 0 begins */

/* What it was asked for. */
static unsigned mappings;       /* that there are */
static unsigned tries, asked;   /* mappings that there were, and splits */
static off_t at;                /* where the last one was */
static enum call last;
static char *mapping;

/* Called once, while a thread asks. */
static void (*meanwhile) (void);

int
fstatfs (int fd, struct statfs *fs)
{
  CHECK (fd >= 0);
  memset (fs, 0, sizeof *fs);
  fs->f_type = fs_type;
  return 0;
}

int
uname (struct utsname *host_name)
{
  memset (host_name, 0, sizeof *host_name);
  strcpy (host_name->release, release);
  return 0;
}

int
clock_gettime (clockid_t clock, struct timespec *now)
{
  (void) clock;                 /* all show the same */
  now->tv_sec = time_now;
  now->tv_nsec = 999999999;
  return 0;
}

static int
played (enum call call, enum call before, int err)
{
  CHECK (last == before);
  last = call;
  if (fails != call)
    return 0;
  errno = err;
  return -1;
}

static bool
is_mapping (const void *p, size_t size)
{
  return mapping != NULL && p == mapping && size == (size_t) sysconf (_SC_PAGESIZE);
}

void *
mmap (void *p, size_t size, int protection, int flags, int fd, off_t offset)
{
  if (fd < 0)
    return REAL (mmap, mmap64) (p, size, protection, flags, fd, offset);
  CHECK (size == (size_t) sysconf (_SC_PAGESIZE) && offset % size == 0);
  CHECK (protection == PROT_READ && flags == MAP_SHARED && mappings == 0);
  if (meanwhile) {
    void (*f) (void) = meanwhile;

    meanwhile = NULL;
    f ();
  }
  tries++;
  at = offset;
  if (played (MMAP, NONE, ENOMEM) == -1) {
    last = NONE;
    return MAP_FAILED;
  }
  mapping = REAL (mmap, mmap64) (NULL, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  CHECK (mapping != MAP_FAILED);
  mappings++;
  return mapping;
}

int
munmap (void *p, size_t size)
{
  if (is_mapping (p, size)) {
    mapping = NULL;
    mappings--;
    last = NONE;
  }
  return REAL (munmap, munmap) (p, size);
}

int
mincore (void *p, size_t size, unsigned char *answer)
{
  CHECK (is_mapping (p, size));
  *answer = 2 | cached;         /* only the lowest bit means something */
  return played (MINCORE, MMAP, EPERM);
}

int
madvise (void *p, size_t size, int advice)
{
  static bool random_reads;

  if (!is_mapping (p, size))
    return REAL (madvise, madvise) (p, size, advice);
  CHECK (advice == MADV_RANDOM || advice == 22 /* MADV_POPULATE_READ */ ||
         advice == MADV_COLD);
  if (advice == MADV_RANDOM) {
    random_reads = true;
    return 0;
  }
  if (advice == MADV_COLD) {
    asked++;
    return played (COLD, POPULATE, EINVAL);
  }
  CHECK (random_reads);
  random_reads = false;
  return played (POPULATE, MINCORE, EFAULT);
}

static char bytes[SIZE];

static void
calm (void)
{
  fs_type = EXT4_SUPER_MAGIC;
  release = "6.16.0-rc1";
  cached = true;
  fails = NONE;
  tries = asked = 0;
}

/* A file of SIZE. */
static struct storage *
full_file (const struct storage_options *opts)
{
  struct storage *f = fresh (opts);

  CHECK (storage_write (f, bytes, SIZE, 0) == 0);
  CHECK (tries == 0);
  return f;
}

static void
change (struct storage *f, uint64_t count, uint64_t offset)
{
  memset (bytes + offset, bytes[offset] + 1, count);
  CHECK (storage_write (f, bytes + offset, count, offset) == 0);
  CHECK (mappings == 0);
}

static void
end (struct storage *f)
{
  static char now[SIZE];

  CHECK (storage_read (f, now, SIZE, 0) == 0);
  CHECK (memcmp (now, bytes, SIZE) == 0);
  storage_close (f);
  calm ();
}

/* One small write to each part asks. */
static void
check_asks (struct storage *f)
{
  const off_t page = sysconf (_SC_PAGESIZE);

  for (unsigned part = 0; part < PARTS; part++) {
    const off_t offset = part * PART + part * PAGE;

    change (f, FOLIOS_SMALL, offset);
    CHECK (asked == part + 1 && at == offset / page * page);
    change (f, 512, offset + 1);
    change (f, PAGE, offset);
    CHECK (asked == part + 1);
  }
}

static struct storage *file;

static void
write_page (void)
{
  change (file, PAGE, PAGE);
}

static void
next_period (void)
{
  time_now += 4;
}

/* How many of 2N small writes, N to each of the first two parts, ask. */
static unsigned
asks (struct storage *f, unsigned n)
{
  const unsigned before = tries;

  for (unsigned i = 0; i < 2 * n; i++)
    change (f, 512, 512 * (i % 100) + i % 2 * PART);
  return tries - before;
}

/* Would the second write be done before the first one has asked, it would be too late. */
static void
test_second_one (void)
{
  file = full_file (&rw);
  for (unsigned i = 0; i < 2; i++) {
    asked = 0;
    meanwhile = write_page;
    change (file, PAGE, 0);
    CHECK (asked == 2);
    change (file, PAGE, 0);
    CHECK (asked == 2);
    asks (file, 126);
    next_period ();
  }
  asks (file, 2);
  asked = 0;
  meanwhile = write_page;       /* the third one */
  change (file, PAGE, 2 * PART);
  CHECK (asked == 1);
  end (file);
}

static void
test_later_ones (void)
{
  struct storage *f = full_file (&rw);

  for (unsigned i = 0; i < 300; i++) {
    CHECK (asks (f, 1) == 2);
    CHECK (asks (f, 127) == 0);
    time_now += 2;
    CHECK (asks (f, 200) == 0);
    time_now++;
    CHECK (asks (f, 200) == 1); /* part 1 */
    time_now++;
    CHECK (asks (f, 200) == 1);
    next_period ();
  }
  for (unsigned i = 0; i < 127; i++) {
    next_period ();
    CHECK (asks (f, 1) == (i == 0 ? 2 : 0));
  }
  CHECK (asks (f, 1) == 0);
  CHECK (asks (f, 1) == 2);

  CHECK (asks (f, 200) == 0);
  for (unsigned i = 0; i < 256; i++)
    next_period ();
  CHECK (asks (f, 1) == 0);     /* as if no time had passed */
  next_period ();
  CHECK (asks (f, 1) == 2);
  end (f);
}

static void
small_writes (struct storage *f, uint64_t count)
{
  for (unsigned i = 0; i < 128 * PARTS; i++)
    change (f, count, 512 * (i % 100) + i % PARTS * PART);
}

/* This host is not asked. */
static void
test_never (const struct storage_options *opts, uint64_t count)
{
  struct storage *f = full_file (opts);

  small_writes (f, count);
  CHECK (tries == 0);
  end (f);
}

/* CALL fails once, and there are no more. */
static void
test_refused (enum call call)
{
  struct storage *f = full_file (&rw);

  fails = call;
  small_writes (f, PAGE);
  CHECK (tries == 1);
  fails = NONE;
  small_writes (f, PAGE);
  CHECK (tries == 1);
  end (f);
}

static void
test_not_now (void)
{
  struct storage *f = full_file (&rw);

  cached = false;
  small_writes (f, PAGE);
  CHECK (tries == PARTS && asked == 0);
  cached = true;
  fails = POPULATE;
  next_period ();
  small_writes (f, PAGE);
  CHECK (tries == 2 * PARTS && asked == 0);
  fails = NONE;
  next_period ();
  small_writes (f, PAGE);
  CHECK (asked == PARTS);
  end (f);
}

/* Files that become writable later, and those that are handed over. */
static void
test_other_files (void)
{
  static const struct storage_options ro;
  struct storage *f = full_file (&rw);

  storage_close (f);
  CHECK (storage_open (path, &ro, &f) == 0);
  CHECK (storage_become_writable (f) == 0);
  check_asks (f);
  end (f);

  CHECK (hostfile_adopt (path, open (path, O_RDWR | O_CLOEXEC), &rw, &f) == 0);
  check_asks (f);
  end (f);
}

static void
test_unseen (void)
{
  struct storage *f = full_file (&rw);

  for (unsigned i = 0; i < 1000; i++) {
    const uint64_t offset = i % PARTS * PART;
    const struct iovec iov = { bytes + offset, PAGE };

    CHECK (storage_writev (f, &iov, 1, offset, STORAGE_UNSEEN) == 0);
  }
  CHECK (tries == 0);
  end (f);
}

static void
test_errno (void)
{
  struct folios *folios;
  const int fd = open ("/dev/null", O_RDWR | O_CLOEXEC);

  CHECK (fd >= 0);
  for (fails = NONE; fails <= COLD; fails++) {
    folios = folios_new (fd, UINT64_MAX);
    CHECK (folios != NULL);
    errno = ENOSPC;
    folios_before_write (folios, INT64_MAX);
    CHECK (errno == ENOSPC && mappings == 0);
    folios_free (folios);
  }
  close (fd);
  calm ();
}

int
main (void)
{
  static const struct storage_options none =
    { .try_writable = true, .cache = STORAGE_CACHE_NONE };
  struct storage *f;

  host_begin (seed_from_env ());
  calm ();
  f = full_file (&rw);
  check_asks (f);
  end (f);
  test_second_one ();
  test_later_ones ();
  test_other_files ();
  test_not_now ();
  test_refused (MMAP);
  test_refused (MINCORE);
  test_refused (COLD);
  test_errno ();
  test_unseen ();

  test_never (&rw, FOLIOS_SMALL + 512);
  test_never (&none, PAGE);
  fs_type = XFS_SUPER_MAGIC;
  test_never (&rw, PAGE);
  release = "6.15.11-amd64";
  test_never (&rw, PAGE);
  release = "5.20.0";
  test_never (&rw, PAGE);
  release = "new";
  test_never (&rw, PAGE);
  release = "7.0";
  f = full_file (&rw);
  check_asks (f);
  end (f);
  host_end ();
  return 0;
}
