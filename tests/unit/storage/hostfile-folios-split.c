/* SPDX-License-Identifier: BSD-3-Clause
 *
 * folios.c: small writes leave no part of the file that had them in a large folio of this
 * host's page cache (or few); parts that had large writes, or none, still are.
 *
 * The judge is the kernel (/proc/kpageflags).
 */

#include <config.h>

#include <stdlib.h>
#include <sys/mman.h>
#include <sys/vfs.h>
#include <linux/kernel-page-flags.h>
#include <linux/magic.h>

#include "storage/folios.h"
#include "storage/storage.h"
#include "lib/hostcalls.h"

enum { PART = 1 << 20, PARTS = 32, SIZE = PARTS * PART };

/* Aligned, so that one system call writes all of it. */
static char bytes[SIZE] __attribute__ ((aligned (65536)));
static char now[SIZE];

static uint64_t
number_at (const char *name, uint64_t n)
{
  uint64_t number = 0;
  const int fd = open (name, O_RDONLY | O_CLOEXEC);

  if (fd >= 0) {
    if (REAL (pread, pread64) (fd, &number, sizeof number, n * sizeof number) == -1)
      number = 0;
    close (fd);
  }
  return number;
}

/* Whether the page at OFFSET is in a large folio.  If that cannot be found out, it seems
 * to be in a small one. */
static bool
in_large_folio (uint64_t offset)
{
  const uint64_t page = sysconf (_SC_PAGESIZE);
  const int fd = open (path, O_RDONLY | O_CLOEXEC);
  char *p;
  uint64_t frame, flags;

  CHECK (fd >= 0);
  p = mmap (NULL, page, PROT_READ, MAP_SHARED, fd, offset);
  CHECK (p != MAP_FAILED);
  CHECK (*(volatile char *) p == bytes[offset]);
  frame = number_at ("/proc/self/pagemap", (uintptr_t) p / page) & ((UINT64_C (1) << 55) - 1);
  flags = frame == 0 ? 0 : number_at ("/proc/kpageflags", frame);
  munmap (p, page);
  close (fd);
  return (flags >> KPF_COMPOUND_HEAD | flags >> KPF_COMPOUND_TAIL) & 1;
}

/* How many parts of the file have pages in large folios. */
static unsigned
large_parts (void)
{
  unsigned n = 0;

  for (unsigned part = 0; part < PARTS; part++)
    n += in_large_folio (part * PART);
  return n;
}

static void
skip (struct storage *f, const char *why)
{
  storage_close (f);
  host_end ();
  printf ("SKIP: %s\n", why);
  exit (77);
}

/* What one call writes is cached in large folios. */
static struct storage *
cached_file (void)
{
  struct storage *f = fresh (&rw);
  struct statfs fs;
  int fd;

  CHECK (storage_write (f, bytes, SIZE, 0) == 0);
  CHECK (storage_sync (f) == 0);
  fd = open (path, O_RDONLY | O_CLOEXEC);
  CHECK (fd >= 0 && fstatfs (fd, &fs) == 0);
  close (fd);
  if (fs.f_type != EXT4_SUPER_MAGIC)
    skip (f, "this is not ext4");
  if (large_parts () < PARTS / 2)
    skip (f, "this kernel caches files in small folios, or does not tell");
  return f;
}

static void
write_parts (struct storage *f, uint64_t count)
{
  for (unsigned part = 0; part < PARTS; part++) {
    memset (bytes + part * PART, part + 1, count);
    CHECK (storage_write (f, bytes + part * PART, count, part * PART) == 0);
  }
  CHECK (storage_read (f, now, SIZE, 0) == 0 && memcmp (now, bytes, SIZE) == 0);
}

int
main (void)
{
  struct storage *f;

  host_begin (seed_from_env ());
  for (size_t i = 0; i < SIZE; i++)
    bytes[i] = rng_next (&host.rng);
  f = cached_file ();
  write_parts (f, FOLIOS_SMALL + 4096);
  CHECK (large_parts () >= PARTS / 4);
  storage_close (f);

  f = cached_file ();
  write_parts (f, 4096);
  /* Another program may have held some for a moment. */
  CHECK (large_parts () < PARTS / 4);
  storage_close (f);
  host_end ();
  return 0;
}
