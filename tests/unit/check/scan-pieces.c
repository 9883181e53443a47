/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Does a full check read each part of a file, however many there are, and does it end if
 * a disk is failing?
 *
 * The file has data and holes in turn: more parts than the check hands to its threads at
 * once.  All data is read, once.  If reads fail, each is a finding, and after a few the
 * check gives up.
 */

#include <config.h>

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

#include "check/scan.h"
#include "lib/images.h"

#define FILE_NAME "parts.raw"
#define PARTS 2500
#define DATA UINT64_C (4096)    /* a block of the host */
#define EACH (2 * DATA)

static atomic_uchar reads[PARTS];
static atomic_uint nr_reads;
static atomic_uint failing_from = PARTS;        /* reads of this part and later ones
                                                   fail */

static int
before (void *opaque, const char *path, enum storage_op op, const struct iovec *iov,
        int niov, uint64_t offset, uint64_t count, bool dsync)
{
  (void) opaque, (void) path, (void) iov, (void) niov, (void) dsync;
  if (op != STORAGE_OP_READ)
    return 0;
  nr_reads++;
  for (uint64_t part = offset / EACH; part * EACH < offset + count; part++)
    if (part * EACH >= offset && part * EACH + DATA <= offset + count)
      reads[part]++;
  if (offset / EACH < failing_from)
    return 0;
  errno = EIO;
  return -1;
}

static const struct storage_hooks hooks = { .before = before };

/* Returns what scan_raw does; *N: parts that it could not read. */
static int
scan (uint64_t *n)
{
  const struct storage_options options = { .hooks = &hooks };
  struct findings *findings = findings_new (100);
  char *path = images_path (FILE_NAME);
  struct storage *file;
  int r, err;

  CHECK (findings != NULL && storage_open (path, &options, &file) == 0);
  errno = 0;
  r = scan_raw (file, findings, NULL);
  err = errno;
  *n = findings_count (findings, FINDING_UNREADABLE);
  CHECK (findings_corruptions (findings) == *n);
  storage_close (file);
  findings_free (findings);
  free (path);
  errno = err;
  return r;
}

static void
make (void)
{
  static char data[DATA];
  const int fd = open (FILE_NAME, O_WRONLY | O_CREAT | O_EXCL, 0600);

  memset (data, 1, sizeof data);
  CHECK (fd >= 0);
  for (unsigned i = 0; i < PARTS; i++)
    CHECK (pwrite (fd, data, sizeof data, i * EACH) == (ssize_t) sizeof data);
  CHECK (fsync (fd) == 0);
  close (fd);
}

int
main (void)
{
  uint64_t n;

  images_enter ("scan-pieces");
  make ();
  CHECK (scan (&n) == 0 && n == 0);
  for (unsigned i = 0; i < PARTS; i++)
    CHECK (reads[i] == 1);
  if (nr_reads < PARTS) {
    printf ("skipped: the file system does not tell of holes\n");
    images_leave ();
    return 77;
  }

  quiet_errors = true;
  failing_from = PARTS - 3;
  CHECK (scan (&n) == 0 && n == 3);
  failing_from = 100;
  CHECK (scan (&n) == -1 && errno == EIO && n > 16 && n < 100);
  images_leave ();
  return 0;
}
