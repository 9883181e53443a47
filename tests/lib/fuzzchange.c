/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Does the image stay sound, and the disk the same, when it is changed between servers?
 *
 * The script chooses a change that the core makes, as nbdkit-qcow2-img does, and whether
 * the image is described and mapped.  Here only errors are judged; the next server shows
 * whether the image is still sound and its disks are what the models know.
 */

#include <config.h>

#include <string.h>

#include "disk/chaininfo.h"
#include "disk/chainmap.h"
#include "lib/changes.h"
#include "lib/fuzzserver-impl.h"
#include "lib/stubs.h"

static const char *
name_bitmap (uint8_t b)
{
  return b & 1 ? "x" : "y";
}

/* Some changes of bitmaps, all of which happen or none. */
static int
change_some_bitmaps (struct fuzz_script *s, const struct disk_options *o)
{
  static const enum bitmapedit_what whats[] = {
    BITMAP_ADD, BITMAP_REMOVE, BITMAP_CLEAR, BITMAP_ENABLE, BITMAP_DISABLE, BITMAP_MERGE,
    BITMAP_MERGE, BITMAP_MERGE,
  };
  struct bitmapedit edits[4];
  unsigned n = 0;

  do {
    const uint8_t b = fuzz_byte (s);

    edits[n++] = (struct bitmapedit) {
      .what = whats[b & 7], .name = name_bitmap (b >> 3), .merged = name_bitmap (b >> 4),
      .granularity_bits = b >> 5 == 0 ? 0 : 8 + (b >> 5),
    };
  } while (n < COUNT (edits) && fuzz_byte (s) & 1);
  return change_bitmaps (o, edits, n, NULL);
}

/* What never changes what the disk shows. */
static int
change_once (struct fuzz_script *s, const struct disk_options *o)
{
  static const char *const formats[] = { NULL, NULL, "raw", "qcow2" };
  struct disk_options denied = *o;
  const uint8_t kind = fuzz_byte (s), b = fuzz_byte (s);
  const struct rebase below = {
    .name = FUZZSERVER_BELOW, .format = b & 1 ? "raw" : "qcow2",
  };
  const struct amend amend = {
    .version = b & 1 ? 2 + (b >> 1 & 1) : 0, .refcount_bits = b & 4 ? 1 << (b >> 5) : 0,
    .lazy_refcounts = (b >> 3 & 3) % 3,
  };
  struct keyedit keys = { KEYEDIT_NONE, .iter_ms = 1 };
  uint64_t copied;

  switch (kind % 6) {
  case 0:
    denied.backing_format = formats[b >> 1 & 3];
    return change_commit (&denied, b & 1, NULL, &copied);
  case 1:
    return change_rebase (o, &below, NULL, &copied);
  case 2:
    return change_flatten (o, NULL, &copied);
  case 3:
    return change_amend (o, &amend);
  case 4:
    keys.add = b & 1 ? "another" : NULL;
    keys.add_slot = keys.add && b & 2 ? b >> 5 : -1;
    keys.erase = !keys.add || b & 4 ? b & 8 ? "another" : PASSPHRASE : NULL;
    return change_keys (o, &keys);
  default:
    return change_some_bitmaps (s, o);
  }
}

void
fuzz_change (struct fuzz_script *s)
{
  const struct disk_options options = {
    .path = fuzz.image, .l2_cache = 1 << 20, .l2_slice = 4096, .backing = BACKING_FOLLOW,
    .lock = true, .discard = true, .checkpoint_interval_ms = 5000,
    .secret = {
      .passphrase = fuzz.passphrase,
      .len = fuzz.passphrase ? strlen (fuzz.passphrase) : 0,
    },
  };

  fuzz.told = false;
  fuzz_show ("change", "", 0, 0);
  fuzz_heard (change_once (s, &options));
}

/* Entries follow on each other; that of an empty disk is empty. */
static int
map_entry (void *opaque, const struct map_entry *e)
{
  uint64_t *const next = opaque;

  CHECK (e->start == *next && (e->length > 0 || e->start == 0));
  *next += e->length;
  return 0;
}

/* Of the disk, or of the first snapshot. */
static int
map_image (struct image *i, struct layers *layers, bool of_snapshot)
{
  const struct snapshot *s = of_snapshot && i->snapshots.n ? i->snapshots.list : NULL;
  uint64_t next = 0;

  if (s && snapshot_check_table (fuzz.image, &i->header, s) == -1)
    return -1;
  return chainmap_each (layers, s, map_entry, &next);
}

void
fuzz_describe_and_map (bool of_snapshot)
{
  const struct disk_options options = {
    .path = fuzz.image, .l2_cache = 1 << 20, .l2_slice = 4096, .backing = BACKING_FOLLOW,
    .secret.unneeded = true,
  };
  json_t *info = chaininfo_describe (&options, FUZZSERVER_IMAGE, true);
  struct layers *layers = NULL;
  struct image *i;

  fuzz.told = false;
  fuzz_heard (info ? 0 : -1);
  json_decref (info);
  i = disk_open_image (&options);
  if (i && image_load (i) == 0 && (!of_snapshot || image_read_snapshots (i) == 0))
    layers = disk_open_layers (&options, i);
  fuzz_heard (layers && map_image (i, layers, of_snapshot) == 0 ? 0 : -1);
  layers_free (layers);
  image_close (i);
}
