/* SPDX-License-Identifier: BSD-3-Clause
 *
 * hostfile.c: holes, zeros and allocated space, on hosts that support all of these, some
 * of them, or none.
 */

#include <config.h>

#include <sys/stat.h>

#include "lib/hostcalls.h"

static void
test_space (void)
{
  enum { MIB = 1 << 20 };
  static uint8_t buf[MIB], zeros[MIB];
  struct storage *f = fresh (&rw);
  uint64_t len, allocated;
  int r;

  memset (buf, 0xaa, sizeof buf);
  CHECK (storage_truncate (f, 8 * MIB) == 0);
  CHECK (storage_write (f, buf, MIB, 2 * MIB) == 0);
  CHECK (storage_sync (f) == 0);
  CHECK (storage_size (f) == 8 * MIB);
  allocated = storage_allocated (f);
  CHECK (allocated >= MIB);

  r = storage_punch (f, 2 * MIB, MIB / 2);
  CHECK (r == 0 || r == 1);
  if (r == 1) {
    CHECK (storage_allocated (f) < allocated);
    CHECK (storage_read (f, buf, MIB, 2 * MIB) == 0);
    CHECK (memcmp (buf, zeros, MIB / 2) == 0);
    CHECK (buf[MIB / 2] == 0xaa);
    CHECK (storage_punch (f, 0, 0) == 1);
    CHECK (storage_punch (f, 100 * MIB, MIB) == 1);
    CHECK (storage_size (f) == 8 * MIB);
  }

  /* Holes and data follow each other. */
  len = 8 * MIB;
  if (storage_hole (f, 0, &len)) {
    CHECK (len == (r == 1 ? 2 * MIB + MIB / 2 : 2 * MIB));
    len = MIB;
    CHECK (storage_hole (f, 1000, &len) && len == MIB);
    len = 100 * MIB;
    CHECK (!storage_hole (f, 2 * MIB + MIB / 2, &len) && len == MIB / 2);
    len = 1000;
    CHECK (!storage_hole (f, 2 * MIB + MIB / 2, &len) && len == 1000);
    len = 100 * MIB;
    CHECK (storage_hole (f, 3 * MIB, &len) && len == 100 * MIB);
  }
  else
    printf ("skipped: the file system does not tell of holes\n");
  len = 1234;
  CHECK (storage_hole (f, 8 * MIB, &len) && len == 1234);
  CHECK (storage_hole (f, UINT64_C (1) << 63, &len) && len == 1234);

  /* Hosts that can't are asked once; real errors are errors. */
  host.punch_errno = EPERM;
  CHECK_FAILS (storage_punch (f, 0, 512), EPERM,
               "cannot punch a hole of 512 bytes at offset 0");
  host.punch_errno = EOPNOTSUPP;
  host.punches = 0;
  CHECK (storage_punch (f, 0, 512) == 0);
  host.punch_errno = 0;
  CHECK (storage_punch (f, 0, 512) == 0);
  CHECK (host.punches == 1);
  calm_host ();

  /* Zeros without writing or freeing, where the host has them. */
  memset (buf, 0xbb, 4096);
  CHECK (storage_write (f, buf, 4096, 0) == 0);
  host.punch_errno = EIO;
  CHECK_FAILS (storage_zero (f, 0, 512), EIO,
               "cannot zero 512 bytes at offset 0");
  host.punch_errno = 0;
  r = storage_zero (f, 100, 1000);
  CHECK (r == 0 || r == 1);
  CHECK (storage_read (f, buf, 4096, 0) == 0);
  for (int i = 0; i < 4096; i++)
    CHECK (buf[i] == (r == 1 && i >= 100 && i < 1100 ? 0 : 0xbb));
  host.punch_errno = EOPNOTSUPP;
  CHECK (storage_zero (f, 0, 512) == 0);
  host.punches = 0;
  CHECK (storage_zero (f, 0, 512) == 0);
  CHECK (host.punches == 0);
  calm_host ();
  CHECK_FAILS (storage_truncate (f, UINT64_C (1) << 63), EOVERFLOW,
               "cannot set the size");
  CHECK (storage_size (f) == 8 * MIB);
  storage_close (f);
}

/* Hosts that have holes, but no zeros: a hole with space, or nothing at all. */
static void
test_zero_by_hole (void)
{
  enum { MIB = 1 << 20 };
  static uint8_t buf[MIB];
  struct storage *f = fresh (&rw);
  uint64_t len = MIB;

  calm_host ();
  memset (buf, 0xcc, sizeof buf);
  CHECK (storage_write (f, buf, MIB, 0) == 0);
  CHECK (storage_sync (f) == 0);
  if (storage_punch (f, MIB, MIB) != 1 || storage_allocate (f, MIB, 1) == -1 ||
      storage_cannot_allocate (f)) {
    printf ("skipped: the file system can't punch holes, or set space aside\n");
    storage_close (f);
    return;
  }
  host.zero_range_errno = EOPNOTSUPP;
  CHECK (storage_zero (f, 4096, MIB / 2) == 1);
  CHECK (storage_allocated (f) >= MIB);
  CHECK (storage_read (f, buf, MIB, 0) == 0);
  for (int i = 0; i < MIB; i++)
    CHECK (buf[i] == (i >= 4096 && i < 4096 + MIB / 2 ? 0 : 0xcc));
  CHECK (!storage_hole (f, 4096, &len) || len == MIB / 2);
  host.allocate_errno = ENOSPC;
  CHECK_FAILS (storage_zero (f, 0, 512), ENOSPC, "cannot allocate");

  /* Neither: nothing has changed, and the caller writes. */
  host.allocate_errno = EOPNOTSUPP;
  CHECK (storage_zero (f, 0, 4096) == 0);
  CHECK (storage_read (f, buf, 4096, 0) == 0);
  for (int i = 0; i < 4096; i++)
    CHECK (buf[i] == 0xcc);
  host.punches = 0;
  CHECK (storage_zero (f, 0, 4096) == 0);
  CHECK (host.punches == 0);
  calm_host ();
  storage_close (f);
}

static atomic_uint ends_found;

off_t
lseek (int fd, off_t offset, int whence)
{
  ends_found += whence == SEEK_HOLE;
  return REAL (lseek, lseek64) (fd, offset, whence);
}

/* The host looks for the end of data once, and again when there may be another one. */
static void
test_end_of_data (void)
{
  enum { MIB = 1 << 20 };
  static uint8_t buf[4 * MIB];
  struct storage *f = fresh (&rw);
  uint64_t len;

  memset (buf, 0xcc, sizeof buf);
  CHECK (storage_truncate (f, 8 * MIB) == 0);
  CHECK (storage_write (f, buf, 4 * MIB, 0) == 0 && storage_sync (f) == 0);
  len = 8 * MIB;
  if (storage_hole (f, 0, &len) || len != 4 * MIB || storage_punch (f, 7 * MIB, MIB) != 1) {
    printf ("skipped: the file system does not tell of holes\n");
    storage_close (f);
    return;
  }
  ends_found = 0;
  for (int at = 0; at < 4; at++) {
    len = 8 * MIB;
    CHECK (!storage_hole (f, at * MIB, &len) && len == (4 - at) * (uint64_t) MIB);
  }
  CHECK (ends_found == 1);
  len = 8 * MIB;
  CHECK (storage_hole (f, 4 * MIB, &len) && len == 8 * MIB);

  CHECK (storage_punch (f, 2 * MIB, MIB) == 1);
  len = 8 * MIB;
  CHECK (!storage_hole (f, MIB, &len) && len == MIB);
  len = 8 * MIB;
  CHECK (storage_hole (f, 2 * MIB, &len) && len == MIB);
  CHECK (storage_truncate (f, MIB) == 0 && storage_truncate (f, 8 * MIB) == 0);
  len = 8 * MIB;
  CHECK (storage_hole (f, MIB, &len) && len == 8 * MIB);
  storage_close (f);
}

int
main (void)
{
  host_begin (seed_from_env ());
  test_space ();
  test_end_of_data ();
  test_zero_by_hole ();
  host_end ();
  return 0;
}
