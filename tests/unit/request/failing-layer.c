/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Tables of a layer below, or of the image, cannot be read while the disk is written: the
 * request that needed them fails with EIO; the same request succeeds the next time; the
 * disk has the right contents, and the image no faults.
 *
 * All memory for mappings is in use, so that requests read tables again.  Zeros and data
 * are written compressed and otherwise, also to a part of a cluster that has another part
 * of it, zeros are wanted at once, and what is read is copied.
 */

#include <config.h>

#include <errno.h>
#include <string.h>

#include "mapping/map.h"
#include "disk/disk.h"
#include "disk/export.h"
#include "lib/images.h"
#include "lib/stubs.h"

#define BELOW "below.qcow2"
#define TOP "top.qcow2"
#define CLUSTER 4096u
#define SIZE (UINT64_C (4) << 20)
#define BOTH (129 * CLUSTER)    /* both files have data here; and BELOW behind it */

/* --- reads that fail --- */

static const char *failing_path;
static unsigned countdown;      /* 0: none fails */

static int
before (void *opaque, const char *path, enum storage_op op, const struct iovec *iov,
        int niov, uint64_t offset, uint64_t count, bool dsync)
{
  (void) opaque, (void) iov, (void) niov, (void) offset, (void) count, (void) dsync;
  if (op == STORAGE_OP_READ && countdown > 0 && strcmp (path, failing_path) == 0 &&
      --countdown == 0) {
    errno = EIO;
    return -1;
  }
  return op == STORAGE_OP_SYNC;
}

static const struct storage_hooks hooks = { .before = before };

/* --- the disk --- */

static unsigned char model[SIZE], buf[SIZE];
static struct export *client;
static unsigned failures;

static const struct request {
  enum { WRITE, ZEROS, ZERO, FREE, FAST, READ } kind;
  uint64_t offset, count;
} requests[] = {
  { ZEROS, 0, 4 * CLUSTER }, { WRITE, 8 * CLUSTER, 3 * CLUSTER },
  { ZEROS, 8 * CLUSTER, 2 * CLUSTER }, { WRITE, 1 << 20, 100 }, { ZERO, 100, 5 * CLUSTER },
  { FAST, 2 << 20, 8 * CLUSTER }, { FAST, (2 << 20) + 100, 200 },
  { FAST, 1 << 20, 4 * CLUSTER }, { ZEROS, 3 << 20, 16 * CLUSTER },
  { READ, 0, 6 * CLUSTER }, { READ, 32 * CLUSTER, 4 * CLUSTER },
  { READ, 0, 512 }, { READ, 65 * CLUSTER, 512 }, { READ, 97 * CLUSTER, 2 * CLUSTER },
  { FREE, BOTH, CLUSTER }, { WRITE, BOTH + CLUSTER + 100, 100 },
};
#define NR_REQUESTS (sizeof requests / sizeof requests[0])

static int
execute (const struct request *q)
{
  int r;

  if (q->kind == READ) {
    if (export_read (client, buf, q->count, q->offset) == -1)
      return -1;
    CHECK (memcmp (buf, model + q->offset, q->count) == 0);
    return 0;
  }
  memset (buf, q->kind == WRITE ? 'w' : 0, q->count);
  r = q->kind == WRITE || q->kind == ZEROS
    ? export_write (client, buf, q->count, q->offset, false)
    : export_zero (client, q->count, q->offset, q->kind == FAST ? REQUEST_FAST
                   : q->kind == FREE ? REQUEST_MAY_TRIM : 0, false);
  if (r == -1 && q->kind == FAST && errno == ENOTSUP)
    return 0;                   /* and nothing has changed */
  if (r == 0)
    memset (model + q->offset, q->kind == WRITE ? 'w' : 0, q->count);
  return r;
}

/* Other slices take the place of those that were used last. */
static void
use_others (void)
{
  static unsigned char other[512];

  for (uint64_t at = 0; at < SIZE; at += 64 * CLUSTER)
    CHECK (export_read (client, other, sizeof other, at + 63 * CLUSTER) == 0);
}

/* Read number K of the request fails.  Returns whether there was one. */
static bool
run (const struct request *q, unsigned k)
{
  bool met;

  CHECK (export_flush (client) == 0);
  use_others ();
  countdown = k;
  errno = 0;
  if (execute (q) == -1) {
    CHECK (errno == EIO && countdown == 0);
    failures++;
    CHECK (execute (q) == 0);
  }
  met = countdown == 0;
  countdown = 0;
  return met;
}

/* The same with a new image. */
static bool
run_session (const struct blob *top, const char *failing, bool compress,
             const struct request *q, unsigned k)
{
  struct disk_options options = {
    .path = images_path (TOP), .l2_slice = 512, .backing = BACKING_FOLLOW,
    .compress = compress, .copy_on_read = true, .discard = true, .hooks = &hooks,
  };
  char *path = images_path (failing);
  struct disk *d;
  bool met;

  failing_path = path;
  blob_save (TOP, top);
  CHECK (disk_open (&options, &d) == 0);
  CHECK ((client = export_open (d, "", true)) && export_is_writable (client));
  budget_hold (map_budget (disk_inside (d).map), UINT64_C (1) << 40);
  met = run (q, k);
  CHECK (export_read (client, buf, SIZE, 0) == 0 && memcmp (buf, model, SIZE) == 0);
  CHECK (export_close (client) == 0 && disk_close (d) == 0);
  CHECK (met || image_check (TOP) == 0);
  free ((char *) options.path);
  free (path);
  return met;
}

static void
test (const struct image_spec *spec)
{
  static const char *const files[] = { TOP, BELOW };
  struct command c = { .n = 0 };
  struct blob top, contents;
  unsigned k;

  image_create (TOP, spec);
  command_words (&c, "qemu-io -f qcow2 -t unsafe");
  for (uint64_t at = 0; at < SIZE; at += 64 * CLUSTER) {
    command_add (&c, "-c");
    command_add (&c, "write -q -P 99 %u 512", (unsigned) at + 63 * CLUSTER);
  }
  command_add (&c, "-c");
  command_add (&c, "write -q -P 98 %u %u", BOTH, CLUSTER);
  command_add (&c, TOP);
  command_must (&c);
  image_contents (TOP, NULL, &contents);
  blob_load (TOP, &top);
  for (unsigned i = 0; i < 4 * NR_REQUESTS; i++) {
    k = 0;
    do
      memcpy (model, contents.data, SIZE);
    while (run_session (&top, files[i & 1], i & 2, &requests[i / 4], ++k));
  }
  blob_free (&top);
  blob_free (&contents);
}

int
main (void)
{
  const struct image_spec spec = {
    .version = 3, .cluster_size = CLUSTER, .refcount_bits = 16, .size = SIZE,
  };
  struct image_spec top = {
    .version = 2, .cluster_size = CLUSTER, .refcount_bits = 16, .size = SIZE,
    .backing = BELOW,
  };
  struct command c = { .n = 0 };

  images_enter ("failing-layer");
  image_create (BELOW, &spec);
  command_words (&c, "qemu-io -f qcow2 -t unsafe");
  for (unsigned i = 0; i < 30; i++) {
    command_add (&c, "-c");
    command_add (&c, "write -q -P %u %uk 6k", i + 1, i * 129);
  }
  command_add (&c, BELOW);
  command_must (&c);
  quiet_errors = true;
  test (&top);
  top.version = 3;
  test (&top);
  top.cluster_size = 4 * CLUSTER;
  top.extended = true;
  test (&top);
  quiet_errors = false;
  printf ("%u requests failed\n", failures);
  CHECK (failures > 10);
  images_leave ();
  return 0;
}
