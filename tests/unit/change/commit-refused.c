/* SPDX-License-Identifier: BSD-3-Clause
 *
 * A commit below the top is refused before anything is written, if the header that would
 * have to name the base cannot change, or if a layer that is to go has a snapshot.  If
 * the chain changes meanwhile, the commit fails at its end, and the disk shows the same.
 */

#include <config.h>

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "change/commit.h"
#include "change/stream.h"
#include "disk/export.h"
#include "lib/changes.h"
#include "lib/images.h"
#include "lib/stubs.h"

#define MIB (UINT64_C (1) << 20)
#define SIZE (2 * MIB)
#define LAYERS 4
#define INCOMPATIBLE 72         /* in the header */

static const char *const names[LAYERS] = { "0.qcow2", "1.qcow2", "2.qcow2", "3.qcow2" };
static struct disk *disk;
static struct export *client;
static char *path;
static struct blob base;

static void
make_chain (void)
{
  struct rng r = { 1 };

  for (unsigned i = LAYERS; i-- > 0; ) {
    const struct image_spec spec = {
      .version = 3, .cluster_size = 65536, .refcount_bits = 16, .size = SIZE,
      .backing = i + 1 < LAYERS ? names[i + 1] : NULL,
    };

    image_create (names[i], &spec);
    image_fill (names[i], &spec, &r, 20);
  }
  blob_load (names[LAYERS - 1], &base);
}

static void
open_disk (void)
{
  struct disk_options options = { .l2_cache = MIB, .l2_slice = 4096, .lock = true };

  options.path = path = images_path (names[0]);
  CHECK (disk_open (&options, &disk) == 0);
  client = export_open (disk, "", true);
  CHECK (client && export_is_writable (client));
}

static void
close_disk (void)
{
  CHECK (export_close (client) == 0);
  CHECK (disk_close (disk) == 0);
  free (path);
}

/* Layer TOP into the lowest one. */
static void
refuse (unsigned top, const char *why)
{
  const struct commit_layers what = { .top = top, .base = LAYERS - 1 };
  struct blob after;

  open_disk ();
  clear_last_error ();
  CHECK (commit_new (disk, &what) == NULL && errno == EPERM);
  CHECK (strstr (last_error (), why));
  close_disk ();
  blob_load (names[LAYERS - 1], &after);
  CHECK (blob_same (&base, &after));
  blob_free (&after);
}

static void
mark_corrupt (const char *name, bool is)
{
  struct blob b;

  blob_load (name, &b);
  blob_put (&b, INCOMPATIBLE, is ? 2 : 0, 8);
  blob_save (name, &b);
  blob_free (&b);
}

/* Layer 2 goes, while it is being copied into layer 3. */
static void
change_meanwhile (void)
{
  const struct commit_layers what = { .top = 2, .base = 3 };
  const struct stream_watch watch = { .step = stream_goes_on };
  struct blob before;
  struct commit *c;
  struct stream *s;
  uint64_t copied;

  image_contents (names[0], NULL, &before);
  open_disk ();
  c = commit_new (disk, &what);
  CHECK (c && commit_range (c, 0, commit_size (c), &copied, NULL) == 0);
  s = stream_new (disk, 0, 3, NULL);
  CHECK (s && stream_copy (s, &watch) == 0 && stream_finish (s) == 0);
  stream_free (s);
  clear_last_error ();
  CHECK (commit_finish (c) == -1 && errno == EBUSY);
  CHECK (strstr (last_error (), "the backing chain has changed meanwhile"));
  commit_free (c);
  close_disk ();
  CHECK (image_shows (names[0], NULL, &before));
  CHECK (image_check (names[0]) == 0 && image_check (names[3]) == 0);
  blob_free (&before);
}

int
main (void)
{
  quiet_errors = true;
  images_enter ("commit-refused");
  make_chain ();
  mark_corrupt (names[1], true);
  refuse (2, "its header cannot be changed: with a remedy");
  mark_corrupt (names[1], false);
  change_meanwhile ();

  blob_free (&base);
  make_chain ();
  image_snapshot (names[2], "s");
  refuse (2, "it has internal snapshots");
  blob_free (&base);
  images_leave ();
  return 0;
}
