/* SPDX-License-Identifier: BSD-3-Clause
 *
 * A stream refuses an image whose snapshots may show the layers that go, and one with an
 * external data file.  It does not store the missing subclusters of a cluster that has
 * other references, or seems to.  If the disk gets another size or a snapshot meanwhile,
 * neither the copying nor the change goes on, and the image keeps its chain.
 */

#include <config.h>

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "change/edit.h"
#include "change/stream.h"
#include "disk/export.h"
#include "lib/changes.h"
#include "lib/images.h"
#include "lib/stubs.h"

#define MIB (UINT64_C (1) << 20)
#define SIZE (2 * MIB)

static struct disk_options options = { .l2_cache = MIB, .l2_slice = 4096, .lock = true };
static struct export *client;
static char *path;              /* while the disk is open */

static void
make (const char *name, const char *backing, const char *data_file)
{
  const struct image_spec spec = {
    .version = 3, .cluster_size = 65536, .refcount_bits = 16, .size = SIZE,
    .backing = backing, .data_file = data_file,
  };

  image_create (name, &spec);
}

/* A chain of three, with data in the lower ones. */
static void
make_chain (const char *name, const char *data_file)
{
  struct rng r = { 1 };
  const struct image_spec spec = {
    .version = 3, .cluster_size = 65536, .refcount_bits = 16, .size = SIZE,
  };

  make ("base.qcow2", NULL, NULL);
  image_fill ("base.qcow2", &spec, &r, 20);
  make ("middle.qcow2", "base.qcow2", NULL);
  image_fill ("middle.qcow2", &spec, &r, 20);
  make (name, "middle.qcow2", data_file);
}

static struct disk *
open_disk (const char *name)
{
  struct disk *disk;

  options.path = path = images_path (name);
  CHECK (disk_open (&options, &disk) == 0);
  client = export_open (disk, "", true);
  CHECK (client && export_is_writable (client));
  return disk;
}

static void
close_disk (struct disk *disk)
{
  CHECK (export_close (client) == 0);
  CHECK (disk_close (disk) == 0);
  free (path);
}

static void
refuse (struct disk *disk, unsigned base, const char *why)
{
  clear_last_error ();
  CHECK (stream_new (disk, 0, base, NULL) == NULL && errno == EPERM);
  CHECK (strstr (last_error (), why));
}

static void
change_meanwhile (const struct edit *edit)
{
  const struct stream_watch watch = { .step = stream_goes_on, .fails = stream_fails };
  const struct edit_options none = { .shrink = false };
  struct disk *disk;
  struct stream *s;

  make_chain ("a.qcow2", NULL);
  disk = open_disk ("a.qcow2");
  s = stream_new (disk, 0, 2, NULL);
  CHECK (s && !stream_is_done (s));
  CHECK (edit_disk (disk, &none, edit, 1) == 0);
  clear_last_error ();
  CHECK (stream_copy (s, &watch) == -1 && errno == EPERM);
  CHECK (strstr (last_error (), "the disk has changed meanwhile"));
  clear_last_error ();
  CHECK (stream_finish (s) == -1 && errno == EPERM);
  CHECK (strstr (last_error (), "the disk has changed meanwhile"));
  stream_free (s);
  CHECK (layers_count (disk_inside (disk).view->layers) == 3);
  close_disk (disk);
  CHECK (image_check ("a.qcow2") == 0);
}

/* An entry says that its cluster is not its own. */
static void
shared_cluster (void)
{
  const struct stream_watch watch = { .step = stream_goes_on, .fails = stream_fails };
  const struct image_spec spec = {
    .version = 3, .cluster_size = 65536, .refcount_bits = 16, .size = SIZE,
    .backing = "base.raw", .backing_raw = true, .extended = true,
  };
  struct blob b = { malloc (SIZE), SIZE };
  unsigned char sub[2048] = { 1 };
  struct disk *disk;
  struct stream *s;
  uint64_t l2;

  CHECK (b.data != NULL);
  memset (b.data, 0x55, SIZE);
  blob_save ("base.raw", &b);
  blob_free (&b);
  image_create ("c.qcow2", &spec);
  disk = open_disk ("c.qcow2");
  CHECK (export_write (client, sub, sizeof sub, 0, false) == 0);
  close_disk (disk);
  blob_load ("c.qcow2", &b);
  l2 = blob_get (&b, blob_get (&b, 40, 8), 8) & INT64_MAX;
  CHECK (b.data[l2] & 0x80);
  b.data[l2] &= 0x7f;           /* QCOW2_OFLAG_COPIED */
  blob_save ("c.qcow2", &b);
  blob_free (&b);

  disk = open_disk ("c.qcow2");
  CHECK ((s = stream_new (disk, 0, 0, NULL)) != NULL);
  clear_last_error ();
  CHECK (stream_copy (s, &watch) == -1 && errno == ENOTSUP);
  CHECK (strstr (last_error (), "the guest offset 2048 contains only some of its subclusters, "
                 "and has other references"));
  stream_free (s);
  close_disk (disk);
}

int
main (void)
{
  const struct edit larger = { .kind = EDIT_RESIZE, .size = 2 * SIZE };
  const struct edit snapshot = { .kind = EDIT_SNAPSHOT_CREATE, .name = "s" };
  struct disk *disk;

  quiet_errors = true;
  images_enter ("stream-refused");

  make_chain ("a.qcow2", NULL);
  image_snapshot ("a.qcow2", "s");
  disk = open_disk ("a.qcow2");
  refuse (disk, 2, "internal snapshots, which may show the files that go");
  refuse (disk, 0, "an internal snapshot needs them: s");
  close_disk (disk);

  make_chain ("b.qcow2", "b.raw");
  disk = open_disk ("b.qcow2");
  refuse (disk, 0, "external data file");
  close_disk (disk);

  shared_cluster ();
  change_meanwhile (&larger);
  change_meanwhile (&snapshot);
  images_leave ();
  return 0;
}
