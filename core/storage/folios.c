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
 * first write.  It tells neither that a folio is large, nor that it has split one.  To
 * ask for it takes 9 us, and 50 while other threads keep other processors busy, which are
 * interrupted twice.  So the first small write to each region of a file asks (and the
 * second, if another thread may be about to ask for the same folio).  After many more,
 * the next one that comes in another period asks again, because the folio may have been
 * dirty, or dropped and read anew.  One that is dirty each time stays large.
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
#include <time.h>
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

/* How many regions have a mark of their own, of two bytes: at least, because files grow,
 * and at most.  Others share them, and then only one of them may ask. */
#define MIN_MARKS (UINT64_C (1) << 16)
#define MAX_MARKS (UINT64_C (1) << 21)

/* In seconds; and how many small writes to a region come before it asks again. */
enum { PERIOD = 4, WRITES = 128 };

struct folios {
  int fd;                       /* fixed; belongs to the caller */
  uint64_t page_size, nmarks;   /* fixed */
  atomic_bool refused;          /* this host does not do it: it is asked no more */
  atomic_uint asking;           /* threads that ask now, or are about to */
  /* Of each region: 0 before its first small write; then 256 times the period in which
   * one last had its turn to ask, plus the number of small writes since then, that one
   * included, up to WRITES.  Some may be lost. */
  atomic_ushort marks[];
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
  const uint64_t n = max64 (MIN_MARKS, min64 (MAX_MARKS, size / REGION));
  struct folios *const f = large_folios (fd) ? calloc (1, sizeof *f + n * 2) : NULL;

  if (f != NULL) {
    f->fd = fd;
    f->page_size = sysconf (_SC_PAGESIZE);
    f->nmarks = n;
  }
  return f;
}

void
folios_free (struct folios *f)
{
  free (f);
}

/* Regions that are neighbours change it at different times.  It is a byte: what was 17
 * minutes ago, or a multiple, is taken for the same period. */
static unsigned
period_now (uint64_t region)
{
  struct timespec now;

  clock_gettime (CLOCK_MONOTONIC_COARSE, &now);
  return (now.tv_sec + region) / PERIOD % 256;
}

/* If so, the caller is counted among the threads that ask. */
static bool
shall_ask (struct folios *f, uint64_t offset)
{
  const uint64_t region = offset / REGION;
  atomic_ushort *const mark = &f->marks[region % f->nmarks];
  const unsigned last = atomic_load_explicit (mark, memory_order_acquire);
  unsigned period = last / 256, n = last % 256;
  bool shall;

  if (f->refused || (n == WRITES && period == period_now (region)))
    return false;
  if (n == 0 || n == WRITES) {
    period = period_now (region);
    n = 0;
  }
  shall = n == 0 || (n == 1 && f->asking > 0);
  if (shall)
    f->asking++;                /* before a second one can see the mark */
  atomic_store_explicit (mark, 256 * period + n + 1, memory_order_release);
  return shall;
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
  p = mmap (NULL, f->page_size, PROT_READ, MAP_SHARED, f->fd,
            round_down (offset, f->page_size));
  if (p == MAP_FAILED || !ask (p, f->page_size))
    atomic_store_explicit (&f->refused, true, memory_order_relaxed);
  if (p != MAP_FAILED)
    munmap (p, f->page_size);
  f->asking--;
}
