/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Do bitmaps find clusters in a row for their tables if those that are free are
 * scattered?
 *
 * Every other cluster of a disk has been trimmed: they are passed over.
 */

#include <config.h>

#include <string.h>

#include "disk/export.h"
#include "lib/changes.h"
#include "lib/images.h"

#define IMAGE "scattered.qcow2"
#define CLUSTER UINT64_C (512)
#define BITMAPS 30

static struct disk_options options;

/* N holes. */
static void
make (unsigned n)
{
  const struct image_spec spec = {
    .version = 3, .cluster_size = CLUSTER, .refcount_bits = 16, .size = 300 << 20,
  };
  const uint64_t bytes = 2 * n * CLUSTER;
  char *data = malloc (bytes);
  struct export *e;
  struct disk *d;

  image_create (IMAGE, &spec);
  CHECK (data != NULL && disk_open (&options, &d) == 0);
  memset (data, 1, bytes);
  e = export_open (d, "", true);
  CHECK (e != NULL && export_is_writable (e));
  CHECK (export_write (e, data, bytes, 0, false) == 0);
  for (unsigned i = 0; i < n; i++)
    CHECK (export_trim (e, CLUSTER, 2 * i * CLUSTER, false) == 0);
  CHECK (export_close (e) == 0 && disk_close (d) == 0);
  free (data);
}

/* Several, because what is free becomes known little by little.  The table of each needs
 * three clusters. */
static int
add_bitmaps (void)
{
  static char names[BITMAPS][8];
  struct bitmapedit add[BITMAPS];

  for (unsigned i = 0; i < BITMAPS; i++) {
    snprintf (names[i], sizeof names[i], "b%u", i);
    add[i] = (struct bitmapedit) {
      .what = BITMAP_ADD, .name = names[i], .granularity_bits = 9,
    };
  }
  return change_bitmaps (&options, add, BITMAPS, NULL);
}

int
main (void)
{
  images_enter ("bitmap-fragmented");
  options = (struct disk_options) {
    .path = images_path (IMAGE), .l2_cache = 4 << 20, .l2_slice = 512, .discard = true,
    .hooks = &without_sync,
  };
  make (100);
  CHECK (add_bitmaps () == 0 && image_check (IMAGE) == 0);
  make (7000);
  CHECK (add_bitmaps () == 0 && image_check (IMAGE) == 0);
  free ((char *) options.path);
  images_leave ();
  return 0;
}
