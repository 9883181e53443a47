/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Can a disk become smaller while clients use it?
 *
 * Not while a client has the active disk, whether it writes or only reads; nor can it go
 * back to a snapshot.  Whoever has another export meanwhile knows the old size: requests
 * past the new end fail, and others work.
 */

#include <config.h>

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "change/edit.h"
#include "disk/export.h"
#include "lib/images.h"
#include "lib/stubs.h"

#define MIB (UINT64_C (1) << 20)

static char buf[65536];

static int
edit (struct disk *d, enum edit_kind kind, const char *name, uint64_t size)
{
  const struct edit_options options = { .shrink = true };
  const struct edit edit = { .kind = kind, .name = name, .size = size };

  return edit_disk (d, &options, &edit, 1);
}

static void
check_refused (struct disk *d)
{
  CHECK (edit (d, EDIT_RESIZE, NULL, MIB) == -1 && errno == EBUSY);
  CHECK (edit (d, EDIT_SNAPSHOT_APPLY, "s", 0) == -1 && errno == EBUSY);
}

int
main (void)
{
  static const struct image_spec spec = {
    .version = 3, .cluster_size = 65536, .refcount_bits = 16, .size = 4 * MIB,
  };
  struct disk_options options = {
    .l2_cache = MIB, .l2_slice = 4096, .lock = true, .discard = true,
  };
  struct export *e, *layer;
  struct disk *d;

  images_enter ("smaller-disk");
  image_create ("s.qcow2", &spec);
  options.path = images_path ("s.qcow2");
  CHECK (disk_open (&options, &d) == 0);
  CHECK (edit (d, EDIT_SNAPSHOT_CREATE, "s", 0) == 0);

  quiet_errors = true;
  CHECK ((e = export_open (d, "", true)) && export_is_writable (e));
  memset (buf, 7, sizeof buf);
  CHECK (export_write (e, buf, sizeof buf, 0, false) == 0);
  CHECK (export_write (e, buf, sizeof buf, 3 * MIB, false) == 0);
  check_refused (d);
  CHECK (export_write (e, buf, sizeof buf, 2 * MIB, false) == 0);
  CHECK (export_close (e) == 0);
  CHECK ((e = export_open (d, "", false)) != NULL);
  check_refused (d);
  CHECK (export_close (e) == 0);

  CHECK ((layer = export_open (d, "layer:0", false)) != NULL);
  CHECK (edit (d, EDIT_RESIZE, NULL, MIB) == 0);
  CHECK (export_size (layer) == 4 * MIB);
  CHECK (export_read (layer, buf, sizeof buf, 0) == 0 && buf[0] == 7);
  CHECK (export_read (layer, buf, sizeof buf, 3 * MIB) == -1 && errno == EINVAL);
  CHECK (export_read (layer, buf, 4096, MIB - 2048) == -1 && errno == EINVAL);
  CHECK (export_cache (layer, 4 * MIB, 0) == -1 && errno == EINVAL);
  CHECK (export_close (layer) == 0);

  CHECK ((e = export_open (d, "", false)) != NULL);
  CHECK (export_size (e) == MIB);
  CHECK (export_close (e) == 0);
  CHECK (edit (d, EDIT_SNAPSHOT_APPLY, "s", 0) == 0);
  CHECK (disk_close (d) == 0);
  CHECK (image_check ("s.qcow2") == 0);
  free ((char *) options.path);
  images_leave ();
  return 0;
}
