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
 * a part of it, which is mapped, will not be needed soon (MADV_COLD), as long as it is
 * clean: so before the first write.  To ask for that takes 9 us, and 50 while other
 * threads keep other processors busy, which are interrupted twice; 0.1 ms more if a folio
 * of 2M is split.  Afterwards large reads have 0.9 times the speed.  In small folios,
 * nothing is gained; and the kernel does not tell how large they are.
 *
 * But a folio is dirty as a whole, and to ask whether a page is (cachestat) takes 0.2 us.
 * So the first small write to a region of a file looks whether it makes a page far away
 * dirty, too.  Once two in a row have, the folios of the file are taken for large: the
 * first small writes to other regions ask for splits, if their page is clean and cached
 * (and so do the second ones, if another thread may be about to ask for the same folio).
 * A few still look, in case others are not large: only where nothing can have been split.
 *
 * After many more small writes to a region, the next one that comes in another period
 * asks or looks again, because the folio may have been dirty, or dropped and read anew.
 * One that is dirty each time stays large.
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
#include <sys/syscall.h>
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

/* Linux 6.5.  Most architectures have the same numbers. */
#if !defined __NR_cachestat && defined __NR_openat2
#if __NR_openat2 == 437
#define __NR_cachestat 451
#endif
#endif

/* In bytes.  Folios of this size and more are large.  (A write to one of 256K or 512K
 * takes 4 or 7 us: they are left alone.) */
#define REGION (UINT64_C (1) << 20)

/* How many regions have a mark of their own, of two bytes: at least, because files grow,
 * and at most.  Others share them, and then only one of them may ask. */
#define MIN_MARKS (UINT64_C (1) << 16)
#define MAX_MARKS (UINT64_C (1) << 21)

/* In seconds; how many small writes to a region come before one has its turn again; of
 * how many regions one looks while the others ask. */
enum { PERIOD = 4, WRITES = 128, LOOKS = 4096 };

/* A single look may be misled by another write. */
#define LARGE 2

/* More writes in order at the same time could mislead those that look. */
#define IN_FLIGHT 64

struct folios {
  int fd;                       /* fixed; belongs to the caller */
  uint64_t page_size, nmarks;   /* fixed */
  atomic_bool refused;          /* this host does not do it: it is asked no more */
  atomic_uchar large;           /* looks in a row that found a large folio, up to LARGE */
  atomic_uint asking;           /* threads that may ask now, or are about to */
  /* Of each region: 0 before its first small write; then 256 times the period in which
   * one last had its turn, plus the number of small writes since then, that one
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
  struct folios *f = NULL;

  if (large_folios (fd))
    f = calloc (1, sizeof *f + n * sizeof f->marks[0]);
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

/* Is it the turn of this small write to ask, or to look?  Then the caller is counted
 * among the threads that may ask, and FIRST is set to whether nothing can have been split
 * there. */
static bool
has_turn (struct folios *f, uint64_t region, bool *first)
{
  atomic_ushort *const mark = &f->marks[region % f->nmarks];
  const unsigned last = atomic_load_explicit (mark, memory_order_acquire);
  unsigned period = last / 256, n = last % 256;
  bool has;

  if (f->refused || (n == WRITES && period == period_now (region)))
    return false;
  if (n == 0 || n == WRITES) {
    period = period_now (region);
    n = 0;
  }
  has = n == 0 || (n == 1 && f->asking > 0);
  if (has)
    f->asking++;                /* before a second one can see the mark */
  atomic_store_explicit (mark, 256 * period + n + 1, memory_order_release);
  /* Folios of 2M are two regions. */
  *first = last == 0 && f->marks[(region ^ 1) % f->nmarks] == 0;
  return has;
}

enum page { UNKNOWN, ABSENT, CLEAN, DIRTY };

/* What the host says of the page at OFFSET. */
static enum page
page_at (const struct folios *f, uint64_t offset)
{
#ifdef __NR_cachestat
  const struct { uint64_t offset, size; } range = { offset, f->page_size };
  struct { uint64_t cached, dirty, writeback, evicted, recently; } pages = { 0 };

  _Static_assert (sizeof range == 16 && sizeof pages == 40, "as the kernel has them");
  if (syscall (__NR_cachestat, f->fd, &range, &pages, 0) == 0)
    return pages.dirty + pages.writeback > 0 ? DIRTY : pages.cached > 0 ? CLEAN : ABSENT;
#else
  (void) f;
  (void) offset;
#endif
  return UNKNOWN;
}

/* Returns a page to be looked at after the write of COUNT bytes, or FOLIOS_NOWHERE: it is
 * in the folio of this one, if that is large, and probably no other write is on its way
 * there. */
static uint64_t
look_far_from (const struct folios *f, uint64_t page, uint64_t count)
{
  const uint64_t start = round_down (page, REGION);
  const uint64_t far =
    page - start < REGION / 2 ? start + REGION - f->page_size : start;
  const bool near = count > REGION / IN_FLIGHT;

  if (near && (page < REGION || page_at (f, page - REGION) == DIRTY))
    return FOLIOS_NOWHERE;      /* the writes may be in order */
  return page_at (f, far) == CLEAN ? far : FOLIOS_NOWHERE;
}

/* For the folio of this page, which is cached.  Returns whether the host can do it, now
 * or later. */
static bool
ask (const struct folios *f, uint64_t page)
{
  const uint64_t size = f->page_size;
  void *const p = mmap (NULL, size, PROT_READ, MAP_SHARED, f->fd, page);
  bool can;

  if (p == MAP_FAILED)
    return false;
  /* If it must be read after all, no others are. */
  madvise (p, size, MADV_RANDOM);
  can = madvise (p, size, MADV_POPULATE_READ) == -1 || madvise (p, size, MADV_COLD) == 0;
  munmap (p, size);
  return can;
}

uint64_t
folios_before_write (struct folios *f, uint64_t offset, uint64_t count)
{
  const uint64_t page = round_down (offset, f->page_size), region = offset / REGION;
  uint64_t look = FOLIOS_NOWHERE;
  enum page is;
  bool first;

  if (!has_turn (f, region, &first))
    return look;
  KEEP_ERRNO_FOR_BLOCK;
  is = page_at (f, page);
  if (is == CLEAN && (f->large < LARGE || (first && region % LOOKS == LOOKS / 2)))
    look = look_far_from (f, page, count);
  if (is == UNKNOWN ||
      (is == CLEAN && f->large == LARGE && look == FOLIOS_NOWHERE && !ask (f, page)))
    f->refused = true;
  f->asking--;
  return look;
}

void
folios_after_write (struct folios *f, uint64_t look)
{
  KEEP_ERRNO_FOR_BLOCK;
  const unsigned before = f->large;

  f->large = page_at (f, look) != DIRTY ? 0 : before < LARGE ? before + 1 : LARGE;
}
