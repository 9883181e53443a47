/* SPDX-License-Identifier: BSD-3-Clause
 *
 * A request that trims or zeros a large range takes checkpoints while it runs, reuses and
 * gives back what it has freed, keeps to its share of memory, and ends when no client
 * waits for it any more.
 */

#include <config.h>

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "format/format.h"
#include "disk/export.h"
#include "change/create.h"
#include "lib/images.h"
#include "lib/stubs.h"

#define MIB (UINT64_C (1) << 20)
#define SIZE (1024 * MIB)
#define CACHE MIB

/* --- what is asked between two pieces --- */

static struct disk *served;
static struct export *client;
static unsigned asked, patience;        /* false after PATIENCE times; 0: never */
static uint64_t linger_ms;
static uint64_t punched;                /* clusters, when asked last */

static bool
client_waits (void)
{
  struct disk_stats stats;

  asked++;
  disk_get_stats (served, &stats);
  punched = stats.alloc.punched;
  return patience == 0 || asked < patience;
}

static void
open_disk (const char *path)
{
  const struct disk_options options = {
    .path = path, .l2_cache = CACHE, .l2_slice = 4096, .discard = true,
    .lock = true, .hooks = &without_sync, .client_waits = client_waits,
    .linger_ms = linger_ms,
  };

  asked = 0;
  CHECK (disk_open (&options, &served) == 0);
  CHECK ((client = export_open (served, "", true)) && export_is_writable (client));
}

static void
close_disk (const char *name)
{
  CHECK (export_close (client) == 0);
  CHECK (disk_close (served) == 0);
  CHECK (image_check (name) == 0);
}

static char *
make_image (const char *name, uint64_t cluster_size)
{
  const struct create_options options = {
    .path = images_path (name),
    .image = {
      .size = SIZE, .cluster_size = cluster_size, .version = 3,
      .refcount_bits = 16, .preallocation = PREALLOCATION_METADATA,
    },
  };

  struct created *created;

  remove (name);
  CHECK (create_image (&options, &created) == 0);
  created_keep (created);
  return (char *) options.path;
}

/* --- bounded --- */

static void
test_bounded (bool zero)
{
  char *path = make_image ("a.qcow2", 512);
  struct disk_stats stats;

  open_disk (path);
  /* Neither end is that of a piece, or of a cluster. */
  if (zero)
    CHECK (export_zero (client, SIZE - 1000, 100, REQUEST_MAY_TRIM, false) == 0);
  else
    CHECK (export_trim (client, SIZE - 1000, 100, false) == 0);
  disk_get_stats (served, &stats);
  printf ("%s: %u pieces, %" PRIu64 " checkpoints, %" PRIu64 " KiB of mappings at "
          "most\n", zero ? "zero" : "trim", asked + 1, stats.checkpoint.runs,
          stats.map.peak_bytes >> 10);
  /* 16 MiB of tables change, of which half of the cache may wait. */
  CHECK (stats.checkpoint.runs >= 20);
  CHECK (stats.map.peak_bytes <= 2 * CACHE);
  /* What the beginning of the request has freed is given back before its end. */
  CHECK (punched * 512 >= SIZE / 2);
  close_disk ("a.qcow2");
  free (path);
}

/* --- given up --- */

static int
ignore_extent (void *opaque, uint64_t offset, uint64_t len, enum extent_type type)
{
  (void) offset; (void) type;
  *(uint64_t *) opaque += len;
  return 0;
}

static void
test_given_up (void)
{
  char *path = make_image ("a.qcow2", 65536);
  static char buf[65536];
  uint64_t told = 0;

  open_disk (path);
  memset (buf, 7, sizeof buf);
  CHECK (export_write (client, buf, sizeof buf, 0, false) == 0);
  CHECK (export_write (client, buf, sizeof buf, SIZE - sizeof buf, false) == 0);
  CHECK (asked == 0);           /* one piece: nobody has to be asked */

  patience = 3;
  CHECK (export_extents (client, SIZE, 0, false, ignore_extent, &told) == -1);
  CHECK (errno == ESHUTDOWN && asked == 3 && told > 0 && told < SIZE);
  asked = 0;
  CHECK (export_cache (client, SIZE, 0) == -1 && errno == ESHUTDOWN && asked == 3);
  asked = 0;
  CHECK (export_zero (client, SIZE, 0, REQUEST_FAST, false) == -1);
  CHECK (errno == ESHUTDOWN && asked == 3);
  CHECK (export_read (client, buf, sizeof buf, 0) == 0);
  CHECK (buf[0] == 7);          /* it was still being looked at */
  asked = 0;
  CHECK (export_trim (client, SIZE, 0, true) == -1);
  CHECK (errno == ESHUTDOWN && asked == 3);
  CHECK (export_read (client, buf, sizeof buf, 0) == 0);
  CHECK (buf[0] == 0);
  CHECK (export_read (client, buf, sizeof buf, SIZE - sizeof buf) == 0);
  CHECK (buf[0] == 7);
  patience = 0;
  close_disk ("a.qcow2");
  free (path);
}

/* A client that will send nothing more, but waits for what it has sent. */
static void
test_ends_in_time (void)
{
  char *path = make_image ("a.qcow2", 65536);
  static char buf[65536];

  linger_ms = 3600000;
  open_disk (path);
  memset (buf, 7, sizeof buf);
  CHECK (export_write (client, buf, sizeof buf, SIZE - sizeof buf, false) == 0);
  patience = 2;
  CHECK (export_trim (client, SIZE, 0, true) == 0);
  CHECK (asked == 2);           /* and no more once it had gone */
  CHECK (export_read (client, buf, sizeof buf, SIZE - sizeof buf) == 0);
  CHECK (buf[0] == 0);
  patience = linger_ms = 0;
  close_disk ("a.qcow2");
  free (path);
}

int
main (void)
{
  images_enter ("long-requests");
  test_bounded (false);
  test_bounded (true);
  test_given_up ();
  test_ends_in_time ();
  images_leave ();
  return 0;
}
