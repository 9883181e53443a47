/* SPDX-License-Identifier: BSD-3-Clause
 *
 * How are small writes kept from being slow where the host caches a file in large folios?
 *
 * Linux 6.16 and later cache files of ext4 in folios of up to 2M, and a write looks at
 * the state of each block of its folio, with the file locked.  Random writes of 4K to 1G
 * took 30 us each in folios of 2M, 13 in those of 1M, 4 in those of 256K, and 1.4 in
 * those of 4K, without any server (6.18).  What was written or read in order is in large
 * ones.
 *
 * No call splits a folio.  But the kernel splits one into pages when it is told that only
 * a part of it, which is mapped, will not be needed soon (MADV_COLD).  For 2M this takes
 * 0.1 ms; afterwards, large reads have 0.9 times the speed.
 *
 * The kernel does that only as long as the folio is clean, so it has to come before the
 * first write.  It tells neither that a folio is large, nor that it has split one, and
 * to ask for it takes 5 to 10 us.  So the first in so many small writes to each region of
 * a file asks (and the second, if another thread may be about to ask for the same folio).
 * Later ones ask again: the folio may have been dirty, or dropped and read anew.  Under
 * many writes without a sync, folios that were dirty stay large.
 *
 * All of this is advice to the kernel; no bytes of the file depend on it.  The mapping is
 * never used, so that a file that shrinks, or a bad disk, raises no signal.
 *
 * Locks: none; atomics.
 */

#include <config.h>

#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/utsname.h>
#include <sys/vfs.h>
#include <unistd.h>
#include <linux/magic.h>

#include "util/bytes.h"
#include "util/cleanup.h"
#include "storage/folios.h"

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#endif

/* In bytes.  Of smaller folios, many in a region, most are left alone: they gain less. */
#define REGION (UINT64_C (1) << 20)

/* How many regions have a count of their own, which is a byte: at least, because files
 * grow, and at most. */
#define MIN_COUNTS (UINT64_C (1) << 16)
#define MAX_COUNTS (UINT64_C (1) << 21)

/* Out of so many small writes to a region, one asks. */
enum { PERIOD = 128 };

struct folios {
  int fd;                       /* fixed; belongs to the caller */
  uint64_t page_size, ncounts;  /* fixed */
  atomic_bool refused;          /* this host does not do it: it is asked no more */
  atomic_uint asking;           /* threads that ask now */
  /* Small writes to each region.  Some may be lost. */
  atomic_uchar counts[];
};

/* Of ext4 (its older versions have the same number). */
static bool
large_folios (int fd)
{
  struct statfs fs;
  struct utsname host;
  unsigned major, minor;

  return fstatfs (fd, &fs) == 0 && fs.f_type == EXT4_SUPER_MAGIC &&
    uname (&host) == 0 && sscanf (host.release, "%u.%u", &major, &minor) == 2 &&
    (major > 6 || (major == 6 && minor >= 16));
}

struct folios *
folios_new (int fd, uint64_t size)
{
  const uint64_t n = max64 (MIN_COUNTS, min64 (MAX_COUNTS, size / REGION));
  struct folios *const f = large_folios (fd) ? calloc (1, sizeof *f + n) : NULL;

  if (f != NULL) {
    f->fd = fd;
    f->page_size = sysconf (_SC_PAGESIZE);
    f->ncounts = n;
  }
  return f;
}

void
folios_free (struct folios *f)
{
  free (f);
}

static bool
shall_ask (struct folios *f, uint64_t offset)
{
  atomic_uchar *const count = &f->counts[offset / REGION % f->ncounts];
  const unsigned char n = atomic_load_explicit (count, memory_order_relaxed);

  atomic_store_explicit (count, n + 1, memory_order_relaxed);
  return !atomic_load_explicit (&f->refused, memory_order_relaxed) &&
    (n % PERIOD == 0 ||
     (n % PERIOD == 1 && atomic_load_explicit (&f->asking, memory_order_relaxed) > 0));
}

/* P is mapped.  Returns whether the host can do it, now or later. */
static bool
ask (void *p, uint64_t size)
{
  unsigned char cached;

  if (mincore (p, size, &cached) == -1)
    return false;
  if ((cached & 1) == 0)        /* to read it would take long */
    return true;
  /* That it is cached, the host also tells whoever may not open the file for writing (any
   * more).  So if the page must be read after all, no others are. */
  madvise (p, size, MADV_RANDOM);
  return madvise (p, size, MADV_POPULATE_READ) == -1 || madvise (p, size, MADV_COLD) == 0;
}

void
folios_before_write (struct folios *f, uint64_t offset)
{
  void *p;

  if (!shall_ask (f, offset))
    return;
  KEEP_ERRNO_FOR_BLOCK;
  f->asking++;
  p = mmap (NULL, f->page_size, PROT_READ, MAP_SHARED, f->fd,
            round_down (offset, f->page_size));
  if (p == MAP_FAILED || !ask (p, f->page_size))
    atomic_store_explicit (&f->refused, true, memory_order_relaxed);
  if (p != MAP_FAILED)
    munmap (p, f->page_size);
  f->asking--;
}
