/* SPDX-License-Identifier: BSD-3-Clause
 *
 * compress=on, seen in the file: which data is compressed and which is not; compressed
 * clusters share host clusters, also those of two successive clients; zeros cover a
 * backing file; a failed write leaves nothing behind, nor does one for which there is no
 * space; and old data of a host cluster that is reused is never shown.
 */

#include <config.h>

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "util/bytes.h"
#include "disk/export.h"
#include "lib/checker.h"
#include "lib/images.h"
#include "lib/stubs.h"

#define CS (UINT64_C (64) << 10)
#define SIZE (64 * CS + 512)
#define LONG (8 * CS)

static unsigned char buf[LONG], back[LONG];
static uint64_t fail_after = UINT64_MAX;        /* writes */
static unsigned nr_writes;
static bool full;               /* the file cannot grow */

static int
count_writes (void *opaque, const char *path, enum storage_op op,
              const struct iovec *iov, int niov, uint64_t offset,
              uint64_t count, bool dsync)
{
  (void) opaque; (void) path; (void) iov; (void) niov; (void) offset;
  (void) count; (void) dsync;
  if (full && (op == STORAGE_OP_TRUNCATE || op == STORAGE_OP_ALLOCATE)) {
    errno = ENOSPC;
    return -1;
  }
  if (op != STORAGE_OP_WRITE)
    return 0;
  nr_writes++;
  if (fail_after > 0) {
    fail_after--;
    return 0;
  }
  errno = ENOSPC;
  return -1;
}

static const struct storage_hooks hooks = { .before = count_writes };

/* --- contents --- */

/* Compress well, to the same size for each value of X. */
static void
fill_small (unsigned char *p, uint64_t n, unsigned char x)
{
  uint64_t i;

  for (i = 0; i < n; i++)
    p[i] = i % 64 ? x : x + 1;
}

static void
fill_random (unsigned char *p, uint64_t n)
{
  static struct rng rng;
  uint64_t i;

  if (rng.s == 0)
    rng_init (&rng, 1, 0);
  for (i = 0; i < n; i++)
    p[i] = rng_next (&rng) >> 24;
}

/* --- the image --- */

static struct disk *disk;
static struct export *client;
static char *path;

static void
come (void)
{
  CHECK ((client = export_open (disk, "", true)) && export_is_writable (client));
}

static enum compress compress = COMPRESS_ON;

static void
open_spec (const struct image_spec *spec)
{
  const struct disk_options options = {
    .path = path, .l2_cache = 1 << 20, .l2_slice = 4096, .discard = true,
    .lock = false, .compress = compress, .backing = BACKING_FOLLOW, .hooks = &hooks,
  };

  image_create ("a.qcow2", spec);
  CHECK (disk_open (&options, &disk) == 0);
  come ();
}

static void
open_new (unsigned version, unsigned refcount_bits)
{
  const struct image_spec spec = {
    .version = version, .cluster_size = CS, .refcount_bits = refcount_bits,
    .size = SIZE,
  };

  open_spec (&spec);
}

static void
close_clean (void)
{
  struct check_result r;
  struct blob b;

  CHECK (export_close (client) == 0);
  CHECK (disk_close (disk) == 0);
  CHECK (image_check ("a.qcow2") == 0);
  blob_load ("a.qcow2", &b);
  checker_check (&b, &r);
  CHECK (r.corruptions == 0 && r.leaks == 0);
  blob_free (&b);
}

static void
put (uint64_t offset, uint64_t n)
{
  CHECK (export_write (client, buf, n, offset, false) == 0);
  CHECK (export_read (client, back, n, offset) == 0);
  CHECK (memcmp (buf, back, n) == 0);
}

/* Host bytes in use by clusters, the file as it is now. */
static uint64_t
allocated (void)
{
  struct disk_stats s;

  CHECK (export_flush (client) == 0);
  disk_get_stats (disk, &s);
  return s.alloc.allocated;
}

static uint64_t
host_end (void)
{
  struct check_result r;
  struct blob b;

  blob_load ("a.qcow2", &b);
  checker_check (&b, &r);
  blob_free (&b);
  return r.allocated_end;
}

/* --- tests --- */

/* Eight clusters take less than one, and one call writes them. */
static void
test_packed (void)
{
  open_new (3, 16);
  fill_small (buf, LONG, 7);
  nr_writes = 0;
  put (0, LONG);
  CHECK (nr_writes == 1);
  CHECK (export_close (client) == 0);
  /* Header, refcount table and block, L1; L2 table; all the data. */
  CHECK (host_end () <= 6 * CS);
  /* The next client goes on in the same host cluster. */
  come ();
  put (LONG, LONG);
  CHECK (export_close (client) == 0);
  CHECK (host_end () <= 6 * CS);
  come ();
  close_clean ();
}

/* With counts of one bit nothing can be shared. */
static void
test_no_sharing (void)
{
  open_new (3, 1);
  fill_small (buf, LONG, 7);
  put (0, LONG);
  CHECK (export_close (client) == 0);
  CHECK (host_end () > 12 * CS);
  come ();
  close_clean ();
}

/* What does not get smaller is stored as it is, between what does. */
static void
test_mixed (void)
{
  uint64_t before;

  open_new (3, 16);
  fill_small (buf, LONG, 7);
  fill_random (buf + 2 * CS, CS);
  fill_random (buf + 5 * CS, 2 * CS);
  put (0, LONG);
  before = allocated ();
  /* The three are written in place, the others get a cluster each. */
  fill_random (buf, LONG);
  put (0, LONG);
  CHECK (allocated () == before + 5);
  close_clean ();
}

/* Zeros take nothing where zeros are; the edges of a request are not compressed; the last
 * cluster of the disk is whole though it is short. */
static void
test_edges (unsigned version)
{
  struct blob b;

  open_new (version, 16);
  memset (buf, 0, LONG);
  put (0, LONG);
  CHECK (allocated () == 0);
  fill_small (buf, LONG, 9);
  put (CS / 2, 3 * CS);         /* two edges, two clusters */
  put (SIZE - 512, 512);
  put (20 * CS + 1, CS - 2);    /* none */
  put (30 * CS - 1, CS + 2);    /* one in the middle */
  CHECK (export_close (client) == 0);
  image_contents ("a.qcow2", NULL, &b);
  CHECK (memcmp (b.data + CS / 2, buf, 3 * CS) == 0);
  CHECK (memcmp (b.data + SIZE - 512, buf, 512) == 0);
  blob_free (&b);
  come ();
  /* In all of these a few bytes change. */
  fill_small (buf, LONG, 11);
  put (CS, 700);
  put (2 * CS, CS);
  put (SIZE - 300, 300);
  put (30 * CS - 100, LONG);
  close_clean ();
}

/* Zeros cover what is below them, and take no space, between clusters that do. */
static void
test_zeros_over_data (void)
{
  const struct image_spec spec = {
    .version = 3, .cluster_size = CS, .refcount_bits = 16, .size = SIZE,
    .backing = "below", .backing_raw = true,
  };
  struct blob b = { .data = malloc (SIZE), .len = SIZE };

  CHECK (b.data != NULL);
  memset (b.data, 5, SIZE);
  blob_save ("below", &b);
  blob_free (&b);
  open_spec (&spec);
  fill_small (buf, LONG, 9);
  memset (buf + CS, 0, 2 * CS);
  put (4 * CS, LONG);
  CHECK (export_close (client) == 0);
  image_contents ("a.qcow2", NULL, &b);
  CHECK (memcmp (b.data + 4 * CS, buf, LONG) == 0 && b.data[4 * CS - 1] == 5 &&
         b.data[4 * CS + LONG] == 5);
  blob_free (&b);
  come ();
  close_clean ();
}

/* If all is to be compressed, zeros are stored where zeros are, too.  A zero request
 * still stores nothing. */
static void
test_zeros_as_data (unsigned version)
{
  bool *own = malloc (SIZE);
  struct blob b;

  compress = COMPRESS_ALL;
  open_new (version, 16);
  memset (buf, 0, LONG);
  put (0, LONG);
  CHECK (export_zero (client, LONG, 2 * LONG, 0, false) == 0);
  CHECK (export_flush (client) == 0);
  blob_load ("a.qcow2", &b);
  CHECK (own && checker_own (&b, own, SIZE) == 0);
  for (uint64_t i = 0; i < SIZE; i++)
    CHECK (own[i] == (i < LONG));
  blob_free (&b);
  free (own);
  close_clean ();
  compress = COMPRESS_ON;
}

/* The descriptors of one life and the next are equal; the contents are not. */
static void
test_forgotten (void)
{
  unsigned i;

  open_new (3, 16);
  for (i = 1; i < 60; i++) {
    fill_small (buf, CS, i);
    CHECK (export_write (client, buf, CS, 0, false) == 0);
    /* A part, so that it is kept. */
    CHECK (export_read (client, back, 512, 1024) == 0);
    CHECK (memcmp (back, buf + 1024, 512) == 0);
    CHECK (export_trim (client, CS, 0, false) == 0);
    CHECK (export_flush (client) == 0);
  }
  close_clean ();
}

/* Any write to the file fails once, for lack of space: nothing is left behind, and
 * then it goes well. */
static void
test_failed_writes (void)
{
  uint64_t k;
  bool failed;

  quiet_errors = true;
  for (k = 0; k < 40; k++) {
    open_new (3, 16);
    fill_small (buf, LONG, 3);
    put (3 * CS, CS);           /* they share its host cluster */
    fill_random (buf + 2 * CS, CS);
    fail_after = k;
    failed = export_write (client, buf, LONG, 8 * CS, false) == -1;
    if (failed)
      CHECK (errno == ENOSPC);
    failed = (export_flush (client) == -1) || failed;
    fail_after = UINT64_MAX;
    put (8 * CS, LONG);
    fill_small (buf, LONG, 3);
    CHECK (export_read (client, back, CS, 3 * CS) == 0);
    CHECK (memcmp (buf, back, CS) == 0);
    close_clean ();
    if (!failed)
      break;
  }
  CHECK (k > 2 && k < 40);
  quiet_errors = false;
}

/* There is space for the first streams of a request only: none of it is written, and the
 * same request succeeds when the file can grow. */
static void
test_full (void)
{
  open_new (3, 16);
  fill_small (buf, LONG, 3);
  put (0, LONG);
  /* Without the space that was allocated ahead; the last cluster has room for more. */
  CHECK (export_close (client) == 0);
  come ();
  full = true;
  for (uint64_t i = 0; i < LONG; i += CS)
    fill_random (buf + i, CS / 4);
  quiet_errors = true;
  errno = 0;
  CHECK (export_write (client, buf, LONG, LONG, false) == -1 && errno == ENOSPC);
  quiet_errors = false;
  CHECK (export_read (client, back, LONG, LONG) == 0);
  for (uint64_t i = 0; i < LONG; i++)
    CHECK (back[i] == 0);
  full = false;
  put (LONG, LONG);
  close_clean ();
}

int
main (void)
{
  images_enter ("compressed");
  path = images_path ("a.qcow2");
  test_packed ();
  test_no_sharing ();
  test_mixed ();
  test_edges (3);
  test_edges (2);
  test_zeros_over_data ();
  test_zeros_as_data (3);
  test_zeros_as_data (2);
  test_forgotten ();
  test_failed_writes ();
  test_full ();
  free (path);
  images_leave ();
  return 0;
}
