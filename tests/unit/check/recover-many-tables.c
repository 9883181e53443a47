/* SPDX-License-Identifier: BSD-3-Clause
 *
 * An image was not closed, so its refcounts are to be computed; it has more L2 tables
 * than are walked together, and the first ones lie beyond the end of the file.  The image
 * is served read-only, and no byte of it changes.
 */

#include <config.h>

#include <string.h>

#include "format/format.h"
#include "disk/export.h"
#include "lib/images.h"
#include "lib/stubs.h"

#define IMAGE "disk.qcow2"
#define CLUSTER 512
#define TABLES ((UINT64_C (1) << 20) + 1000)    /* more than WALK_TABLES */

static bool
may_write (const struct disk_options *options)
{
  struct export *e;
  struct disk *d;
  bool writable;

  CHECK (disk_open (options, &d) == 0);
  e = export_open (d, "", true);
  CHECK (e != NULL);
  writable = export_is_writable (e);
  if (!writable)
    CHECK (strstr (disk_why_readonly (d), "could not be repaired") != NULL);
  CHECK (export_close (e) == 0 && disk_close (d) == 0);
  return writable;
}

int
main (void)
{
  const struct image_spec spec = {
    .version = 3, .cluster_size = CLUSTER, .refcount_bits = 16,
    .size = TABLES * CLUSTER / 8 * CLUSTER,
  };
  struct disk_options options;
  struct blob sound, damaged, now;
  uint64_t l1;

  images_enter ("recover-many-tables");
  image_create (IMAGE, &spec);
  options = (struct disk_options) {
    .path = images_path (IMAGE), .l2_slice = CLUSTER, .hooks = &without_sync,
  };
  blob_load (IMAGE, &sound);
  blob_put (&sound, 72, blob_get (&sound, 72, 8) | QCOW2_INCOMPAT_DIRTY, 8);
  damaged = blob_copy (&sound);
  CHECK (blob_get (&damaged, 36, 4) == TABLES);
  l1 = blob_get (&damaged, 40, 8);
  for (uint64_t i = 0; i < TABLES; i++)
    blob_put (&damaged, l1 + 8 * i, (UINT64_C (1) << 40) + i * CLUSTER, 8);
  blob_save (IMAGE, &damaged);
  quiet_errors = true;
  CHECK (!may_write (&options));
  quiet_errors = false;
  CHECK (strstr (last_error (), "L2 table at 1099511627776") != NULL);
  blob_load (IMAGE, &now);
  CHECK (blob_same (&damaged, &now));
  blob_free (&now);

  blob_save (IMAGE, &sound);
  CHECK (may_write (&options) && image_check (IMAGE) == 0);
  blob_free (&sound);
  blob_free (&damaged);
  free ((char *) options.path);
  images_leave ();
  return 0;
}
