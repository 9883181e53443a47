/* SPDX-License-Identifier: BSD-3-Clause
 *
 * A flush of an image of version 2 moves the refcount table.  When it has ended, the file
 * says that the clusters of the old table are free: no start would give them back.
 */

#include <config.h>

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "util/bytes.h"
#include "disk/export.h"
#include "lib/checker.h"
#include "lib/images.h"
#include "lib/trials.h"

#define IMAGE "a.qcow2"
#define CLUSTER UINT64_C (512)
#define SIZE (UINT64_C (64) << 20)
/* The first table, of one cluster, counts 64 blocks of 256 clusters: 8M. */
#define WRITTEN (UINT64_C (9) << 20)

struct table {
  uint64_t offset, clusters;
};

static uint64_t
number (const struct blob *b, uint64_t at, unsigned bytes)
{
  uint64_t v = 0;

  CHECK (at + bytes <= b->len);
  while (bytes-- > 0)
    v = v << 8 | b->data[at++];
  return v;
}

static struct table
table_of (const struct blob *b)
{
  return (struct table) { number (b, 48, 8), number (b, 56, 4) };
}

static uint64_t
count_of (const struct blob *b, uint64_t offset)
{
  const uint64_t cluster = offset / CLUSTER, in_block = CLUSTER / 2;
  const uint64_t block =
    number (b, table_of (b).offset + cluster / in_block * 8, 8);

  return number (b, block + cluster % in_block * 2, 2);
}

int
main (void)
{
  static const struct image_spec spec = {
    .version = 2, .cluster_size = CLUSTER, .refcount_bits = 16, .size = SIZE,
  };
  struct disk_options options = {
    .l2_cache = 1 << 20, .l2_slice = CLUSTER,
  };
  static char buf[WRITTEN];
  struct check_result report;
  struct export *client;
  struct table old;
  struct disk *d;
  struct blob b;
  char *path;

  images_enter ("table-moved");
  options.path = path = images_path (IMAGE);
  image_create (IMAGE, &spec);
  blob_load (IMAGE, &b);
  old = table_of (&b);
  CHECK (old.clusters == 1 && count_of (&b, old.offset) == 1);
  blob_free (&b);

  CHECK (disk_open (&options, &d) == 0);
  CHECK ((client = export_open (d, "", true)) != NULL);
  memset (buf, 'a', sizeof buf);
  CHECK (export_write (client, buf, sizeof buf, 0, false) == 0);
  CHECK (export_flush (client) == 0);

  blob_load (IMAGE, &b);
  checker_check (&b, &report);
  if (report.corruptions > 0)
    FAIL ("%s", report.first);
  CHECK (table_of (&b).offset != old.offset);
  if (count_of (&b, old.offset) != 0)
    FAIL ("the old table at %" PRIu64 " is in use", old.offset);
  blob_free (&b);

  CHECK (export_close (client) == 0);
  CHECK (disk_close (d) == 0);
  blob_load (IMAGE, &b);
  checker_check (&b, &report);
  CHECK (report.corruptions == 0 && report.leaks == 0);
  blob_free (&b);
  free (path);
  images_leave ();
  return 0;
}
