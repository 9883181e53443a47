/* SPDX-License-Identifier: BSD-3-Clause
 *
 * folios.c: the first small writes to each part of a file, and one after many more and a
 * while, look whether the folio is large; once one was, they ask the host to split it.
 * That is so if the file is on ext4 of a new kernel, and cached, and the page clean.
 * Larger writes do neither, nor do those to new clusters, and those with cache=none.  A
 * host that refuses is asked no more.
 *
 * The host's part is played here.  (hostfile-folios-split has the real one.)
 */

#include <config.h>

#include <stdarg.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <sys/vfs.h>
#include <time.h>
#include <linux/magic.h>

#include "storage/folios.h"
#include "storage/hostfile.h"
#include "lib/hostcalls.h"

enum { PAGE = 4096, PART = 1 << 20, PARTS = 16, SIZE = PARTS * PART };

enum call { NONE, CACHESTAT, MMAP, POPULATE, COLD };

/* What the host is. */
static long fs_type;
static const char *release;
static bool large;              /* a write makes all pages of its part dirty */
static bool cached, dirty, writeback, dirty_before;     /* until it comes */
static bool dirty_far, absent_far;
static enum call fails;
static time_t time_now;         /* seconds */

/* The write that there is. */
static off_t page;              /* where it begins */
static unsigned writes;         /* host.writes before it */

/* What the host was asked for. */
static unsigned mappings;       /* that there are */
static unsigned turns;          /* times that it was asked for the page of a write */
static unsigned looked, asked;  /* after a write; for splits */
static off_t at;                /* where the last split was */
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

/* The page far from the one that is written. */
static off_t
far_page (void)
{
  const off_t start = page / PART * PART;

  return page - start < PART / 2 ? start + PART - sysconf (_SC_PAGESIZE) : start;
}

/* cachestat */
static long
tell (const uint64_t *range, uint64_t *pages)
{
  const off_t offset = range[0];
  bool is_dirty;

  CHECK (range[1] == (uint64_t) sysconf (_SC_PAGESIZE));
  if (host.writes != writes) {
    CHECK (offset == far_page ());
    looked++;
    is_dirty = large;
  }
  else if (offset == page) {
    turns++;
    is_dirty = dirty;
  }
  else if (offset == page - PART)
    is_dirty = dirty_before;
  else {
    CHECK (offset == far_page ());
    is_dirty = dirty_far;
  }
  pages[0] = cached && !(absent_far && offset == far_page ());
  pages[1] = cached && is_dirty;
  pages[2] = cached && writeback;
  if (fails != CACHESTAT)
    return 0;
  errno = ENOSYS;
  return -1;
}

long
syscall (long number, ...)
{
  long words[4];
  va_list list;

  va_start (list, number);
  for (unsigned i = 0; i < 4; i++)
    words[i] = va_arg (list, long);
  va_end (list);
  if (number == SYS_openat2)
    return REAL (syscall, syscall) (number, words[0], words[1], words[2], words[3]);
  CHECK (fcntl ((int) words[0], F_GETFD) >= 0 && (unsigned) words[3] == 0);
  return tell ((const uint64_t *) words[1], (uint64_t *) words[2]);
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
  return played (POPULATE, MMAP, EFAULT);
}

static char bytes[SIZE];

static void
calm (void)
{
  fs_type = EXT4_SUPER_MAGIC;
  release = "6.16.0-rc1";
  large = cached = true;
  dirty = writeback = dirty_before = dirty_far = absent_far = false;
  fails = NONE;
  time_now = 40000;             /* a period of part 0 begins */
  turns = looked = asked = 0;
}

/* A file of SIZE. */
static struct storage *
full_file (const struct storage_options *opts)
{
  struct storage *f = fresh (opts);

  CHECK (storage_write (f, bytes, SIZE, 0) == 0);
  CHECK (turns == 0);
  return f;
}

static void
change (struct storage *f, uint64_t count, uint64_t offset)
{
  const uint64_t size = sysconf (_SC_PAGESIZE);

  memset (bytes + offset, bytes[offset] + 1, count);
  page = offset / size * size;
  writes = host.writes;
  CHECK (storage_write (f, bytes + offset, count, offset) == 0);
  CHECK (mappings == 0);
}

/* The first writes to the last two parts look. */
static void
look (struct storage *f)
{
  change (f, 512, SIZE - PART);
  change (f, 512, SIZE - 2 * PART);
  CHECK (turns == 2 && looked == 2 && asked == 0);
  turns = looked = 0;
}

/* The file's folios have been found to be large. */
static struct storage *
large_file (void)
{
  struct storage *f = full_file (&rw);

  look (f);
  return f;
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
  const off_t size = sysconf (_SC_PAGESIZE);

  look (f);
  for (unsigned part = 0; part < PARTS - 2; part++) {
    const off_t offset = part * PART + part * size;

    change (f, FOLIOS_SMALL, offset);
    CHECK (asked == part + 1 && at == offset / size * size);
    change (f, 512, offset + 1);
    change (f, PAGE, offset);
    CHECK (asked == part + 1);
  }
  CHECK (looked == 0);
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

/* How many of 2N small writes, N to each of the first two parts, have their turn. */
static unsigned
turns_of (struct storage *f, unsigned n)
{
  const unsigned before = turns;

  for (unsigned i = 0; i < 2 * n; i++)
    change (f, 512, 512 * (i % 100) + i % 2 * PART);
  return turns - before;
}

/* Would the second write be done before the first one has asked, it would be too late. */
static void
test_second_one (void)
{
  file = large_file ();
  for (unsigned i = 0; i < 2; i++) {
    asked = 0;
    meanwhile = write_page;
    change (file, PAGE, 0);
    CHECK (asked == 2);
    change (file, PAGE, 0);
    CHECK (asked == 2);
    turns_of (file, 126);
    next_period ();
  }
  turns_of (file, 2);
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
    CHECK (turns_of (f, 1) == 2);
    CHECK (turns_of (f, 127) == 0);
    time_now += 2;
    CHECK (turns_of (f, 200) == 0);
    time_now++;
    CHECK (turns_of (f, 200) == 1); /* part 1 */
    time_now++;
    CHECK (turns_of (f, 200) == 1);
    next_period ();
  }
  for (unsigned i = 0; i < 127; i++) {
    next_period ();
    CHECK (turns_of (f, 1) == (i == 0 ? 2 : 0));
  }
  CHECK (turns_of (f, 1) == 0);
  CHECK (turns_of (f, 1) == 2);

  CHECK (turns_of (f, 200) == 0);
  for (unsigned i = 0; i < 256; i++)
    next_period ();
  CHECK (turns_of (f, 1) == 0);     /* as if no time had passed */
  next_period ();
  CHECK (turns_of (f, 1) == 2);
  end (f);
}

static void
small_writes (struct storage *f, uint64_t count)
{
  for (unsigned i = 0; i < 128 * PARTS; i++)
    change (f, count, 512 * (i % 100) + i % PARTS * PART);
}

/* One of them to each part is new. */
static void
check_turns (struct storage *f, uint64_t count, unsigned n, unsigned looks, unsigned asks)
{
  turns = looked = asked = 0;
  next_period ();
  small_writes (f, count);
  CHECK (turns == n && looked == looks && asked == asks);
}

/* This host is not asked. */
static void
test_never (const struct storage_options *opts, uint64_t count)
{
  struct storage *f = full_file (opts);

  check_turns (f, count, 0, 0, 0);
  end (f);
}

/* CALL fails once, and there are no more. */
static void
test_refused (enum call call)
{
  struct storage *f = large_file ();

  fails = call;
  check_turns (f, PAGE, 1, 0, call == COLD);
  fails = NONE;
  check_turns (f, PAGE, 0, 0, 0);
  end (f);
}

static void
test_not_now (void)
{
  static bool *const reasons[] = { &dirty, &writeback };
  struct storage *f = large_file ();

  small_writes (f, PAGE);
  cached = false;
  check_turns (f, PAGE, PARTS, 0, 0);
  cached = true;
  for (unsigned i = 0; i < 2; i++) {
    *reasons[i] = true;
    check_turns (f, PAGE, PARTS, 0, 0);
    *reasons[i] = false;
  }
  fails = POPULATE;
  check_turns (f, PAGE, PARTS, 0, 0);
  fails = NONE;
  check_turns (f, PAGE, PARTS, 0, PARTS);
  end (f);
}

static void
test_looks (void)
{
  struct storage *f = full_file (&rw);

  large = false;
  check_turns (f, PAGE, PARTS, PARTS, 0);
  check_turns (f, FOLIOS_SMALL, PARTS, PARTS - 1, 0);
  dirty_before = true;          /* as if the writes were in order */
  check_turns (f, FOLIOS_SMALL, PARTS, 0, 0);
  check_turns (f, PAGE, PARTS, PARTS, 0);
  check_turns (f, PART / 64, PARTS, PARTS, 0);
  check_turns (f, PART / 64 + 512, PARTS, 0, 0);
  dirty_far = true;
  check_turns (f, PAGE, PARTS, 0, 0);
  dirty_far = false;
  absent_far = true;
  check_turns (f, PAGE, PARTS, 0, 0);
  absent_far = false;
  host.write_errno = EIO;
  next_period ();
  looked = 0;
  page = PART;
  writes = host.writes;
  CHECK (storage_write (f, bytes, PAGE, PART) == -1);
  CHECK (looked == 0);
  host.write_errno = 0;
  large = true;
  check_turns (f, PAGE, PARTS, 2, PARTS - 2);
  end (f);
}

/* A write to the middle of a part that has its turn.  Does it look? */
static bool
looks (struct folios *folios, unsigned part)
{
  const uint64_t offset = (uint64_t) part * PART + (part % 3 + 2) * PART / 8;
  const unsigned before = turns + asked;
  uint64_t far;

  page = offset;
  writes = host.writes;
  far = folios_before_write (folios, offset, FOLIOS_SMALL);
  if (far == FOLIOS_NOWHERE) {
    CHECK (turns + asked == before + 2);
    return false;
  }
  CHECK (turns + asked == before + 1 && far == (uint64_t) far_page ());
  writes--;
  folios_after_write (folios, far);
  return true;
}

/* Where folios are large, one of 4096 parts looks, if neither it nor its neighbour had a
 * turn. */
static void
test_some_look (void)
{
  const int fd = open ("/dev/null", O_RDWR | O_CLOEXEC);
  struct folios *folios = folios_new (fd, UINT64_MAX);
  unsigned n = 0;

  CHECK (fd >= 0 && folios != NULL);
  CHECK (looks (folios, 2));
  large = false;
  CHECK (looks (folios, 4));
  large = true;
  CHECK (looks (folios, 6) && looks (folios, 8));
  for (unsigned part = 10; part < 4 * 4096; part += 2)
    n += looks (folios, part);
  CHECK (n == 4);
  for (unsigned part = 1; part < 4 * 4096; part += 2)
    CHECK (!looks (folios, part));
  for (unsigned part = 4 * 4096 + 1; part < 6 * 4096; part += 2)
    CHECK (!looks (folios, part));
  for (unsigned part = 4 * 4096; part < 6 * 4096; part += 2)
    CHECK (!looks (folios, part));

  dirty_before = true;
  for (unsigned part = 6 * 4096; part < 7 * 4096; part++)
    CHECK (!looks (folios, part));
  dirty_before = false;

  /* They are large no more. */
  large = false;
  for (unsigned part = 7 * 4096; part < 7 * 4096 + 2048; part += 2)
    CHECK (!looks (folios, part));
  for (unsigned part = 7 * 4096 + 2048; part < 8 * 4096; part += 2)
    CHECK (looks (folios, part));
  large = true;
  CHECK (looks (folios, 32768) && looks (folios, 32770) && !looks (folios, 32772));
  cached = false;               /* when it looks */
  writes = host.writes - 1;
  folios_after_write (folios, far_page ());
  cached = true;
  CHECK (looks (folios, 32774) && looks (folios, 32776) && !looks (folios, 32778));
  folios_free (folios);
  close (fd);
  calm ();
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
change_as (struct storage *f, uint64_t offset, enum storage_writing how)
{
  const struct iovec iov = { bytes + offset, PAGE };

  page = offset;
  writes = host.writes;
  CHECK (storage_writev (f, &iov, 1, offset, how) == 0);
}

static void
test_unseen (void)
{
  struct storage *f = full_file (&rw);

  for (unsigned i = 0; i < 1000; i++)
    change_as (f, i % PARTS * PART, STORAGE_UNSEEN);
  CHECK (turns == 0);
  end (f);
}

/* Afterwards, all pages are clean. */
static void
test_durable (void)
{
  struct storage *f = large_file ();

  change_as (f, 0, STORAGE_DURABLE);
  CHECK (asked == 1);
  end (f);
  f = full_file (&rw);
  change_as (f, 0, STORAGE_DURABLE);
  CHECK (turns == 1 && looked == 0);
  end (f);
}

static void
test_errno (void)
{
  struct folios *folios;
  const int fd = open ("/dev/null", O_RDWR | O_CLOEXEC);

  CHECK (fd >= 0);
  writes = host.writes;
  for (fails = NONE; fails <= COLD; fails++) {
    page = PART;
    folios = folios_new (fd, UINT64_MAX);
    CHECK (folios != NULL);
    errno = ENOSPC;
    folios_before_write (folios, PART, PAGE);
    writes--;
    folios_after_write (folios, far_page ());
    writes++;
    page = INT64_MAX / sysconf (_SC_PAGESIZE) * sysconf (_SC_PAGESIZE);
    folios_before_write (folios, INT64_MAX, PAGE);
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
  test_looks ();
  test_some_look ();
  test_refused (CACHESTAT);
  test_refused (MMAP);
  test_refused (COLD);
  test_errno ();
  test_unseen ();
  test_durable ();

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
