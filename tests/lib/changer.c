/* SPDX-License-Identifier: BSD-3-Clause
 *
 * A thread that changes a disk as a whole, again and again, while others use it.
 */

#include <config.h>

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "util/bytes.h"
#include "util/cleanup.h"
#include "disk/export.h"
#include "change/amend.h"
#include "change/bitmapedit.h"
#include "change/create.h"
#include "change/edit.h"
#include "change/keyedit.h"
#include "change/overlay.h"
#include "change/relink.h"
#include "change/stream.h"
#include "lib/changer.h"
#include "lib/changes.h"
#include "lib/stubs.h"
#include "lib/trials.h"

/* It puts no image on top of so many. */
#define MOST_LAYERS 6

/* Counts a change that had result R.  Not all are possible with each image. */
static bool
changed (struct changer *c, int r)
{
  static const int expected[] = {
    EPERM, EACCES, EINVAL, EBUSY, ENOTSUP, EOVERFLOW,
  };
  size_t i = 0;

  while (r == -1 && i < sizeof expected / sizeof expected[0] && errno != expected[i])
    i++;
  if (i == sizeof expected / sizeof expected[0])
    FAIL ("a change of the disk: %m (%s)", last_error ());
  c->changes++;
  c->refused += r == -1;
  return r == 0;
}

static bool
edit (struct changer *c, const struct edit *edit)
{
  const struct edit_options options = { .preallocation = PREALLOCATION_OFF };

  return changed (c, edit_disk (c->disk, &options, edit, 1));
}

/* --- the snapshot --- */

/* What the snapshot shows, or the beginning of it. */
static void
read_snapshot (struct changer *c, unsigned char **buf, uint64_t *len)
{
  struct export *e = export_open (c->disk, "live", false);

  CHECK (e != NULL);
  *len = min64 (export_size (e), UINT64_C (1) << 20);
  *buf = malloc (*len);
  CHECK (*buf != NULL && export_read (e, *buf, *len, 0) == 0);
  CHECK (export_close (e) == 0);
}

static void
check_snapshot (struct changer *c)
{
  unsigned char *now;
  uint64_t len;

  read_snapshot (c, &now, &len);
  if (len != c->len || memcmp (now, c->shown, len) != 0)
    FAIL ("the snapshot shows something else than when it was taken");
  free (now);
}

static void
change_snapshot (struct changer *c)
{
  static const struct edit create = { .kind = EDIT_SNAPSHOT_CREATE, .name = "live" };
  static const struct edit delete = { .kind = EDIT_SNAPSHOT_DELETE, .name = "live" };
  struct export *e;

  if (!c->has_snapshot) {
    c->has_snapshot = edit (c, &create);
    if (c->has_snapshot)
      read_snapshot (c, &c->shown, &c->len);
    return;
  }
  check_snapshot (c);
  /* Not while a client uses it. */
  e = export_open (c->disk, "live", false);
  CHECK (e != NULL && !edit (c, &delete) && errno == EBUSY);
  CHECK (export_close (e) == 0);
  while (!edit (c, &delete))    /* a request that had begun takes long */
    CHECK (errno == EBUSY);
  c->has_snapshot = false;
  free (c->shown);
}

/* --- bitmaps --- */

/* Makes these changes in one step; now and then the snapshot is taken in the same one. */
static bool
edit_bitmaps (struct changer *c, const struct bitmapedit *edits, size_t n)
{
  const bool snapshot = !c->has_snapshot && rng_below (&c->rng, 2) == 0;

  if (!changed (c, bitmapedit_with_snapshot (c->disk, snapshot ? "live" : NULL, edits, n,
                                             NULL)))
    return false;
  if (snapshot) {
    c->has_snapshot = true;
    read_snapshot (c, &c->shown, &c->len);
  }
  return true;
}

static void
try_bitmaps (struct changer *c)
{
  static const struct bitmapedit
    add = { .what = BITMAP_ADD, .name = "live" },
    clear = { .what = BITMAP_CLEAR, .name = "live" },
    remove = { .what = BITMAP_REMOVE, .name = "live" },
    /* As a backup begins, and as one that failed ends. */
    divide[] = {
      { .what = BITMAP_DISABLE, .name = "live" }, { .what = BITMAP_ADD, .name = "next" },
    },
    join[] = {
      { .what = BITMAP_ENABLE, .name = "live" },
      { .what = BITMAP_MERGE, .name = "live", .merged = "next" },
      { .what = BITMAP_REMOVE, .name = "next" },
    };

  if (!c->has_bitmap)
    c->has_bitmap = edit_bitmaps (c, &add, 1);
  else if (c->is_divided)
    c->is_divided = !edit_bitmaps (c, join, 3);
  else if (rng_below (&c->rng, 3) == 0)
    c->is_divided = edit_bitmaps (c, divide, 2);
  else if (rng_below (&c->rng, 2) == 0)
    edit_bitmaps (c, &clear, 1);
  else
    c->has_bitmap = !edit_bitmaps (c, &remove, 1);
}

static void
remove_bitmaps (struct changer *c)
{
  static const struct bitmapedit both[] = {
    { .what = BITMAP_REMOVE, .name = "live" }, { .what = BITMAP_REMOVE, .name = "next" },
  };

  while (c->has_bitmap &&
         !changed (c, bitmapedit_disk (c->disk, both, c->is_divided ? 2 : 1, NULL)))
    CHECK (errno == EBUSY);
  c->has_bitmap = c->is_divided = false;
}

/* --- other changes --- */

static void
grow (struct changer *c)
{
  const struct edit more = {
    .kind = EDIT_RESIZE, .sign = 1, .size = 512 * (1 + rng_below (&c->rng, 300)),
  };

  if (c->grows && edit (c, &more))
    c->grown += more.size;
}

static void
amend (struct changer *c)
{
  const struct amend a = {
    .refcount_bits = c->keeps_counts || rng_below (&c->rng, 2)
      ? 0 : 16u << rng_below (&c->rng, 3),
    .lazy_refcounts = c->lazy && rng_below (&c->rng, 2) ? AMEND_ON : AMEND_OFF,
  };

  changed (c, amend_disk (c->disk, &a));
}

/* The second passphrase comes and goes; the first one opens the image all the time. */
static void
try_keys (struct changer *c)
{
  const struct keyedit e = {
    KEYEDIT_NONE, .add = c->has_key ? NULL : "live", .erase = c->has_key ? "live" : NULL,
    .iter_ms = 1,
  };

  if (changed (c, keyedit_disk (c->disk, &e)))
    c->has_key = !c->has_key;
}

/* Another name for the same file, or the first one again; to be freed.  NULL: there is no
 * other one. */
static char *
choose_name (const char *now)
{
  char *name = NULL;

  if (now == NULL)
    return strdup ("");
  if (strncmp (now, "./", 2) == 0)
    return strdup (now + 2);
  if (now[0] != '/' && strchr (now, ':') == NULL)
    CHECK (asprintf (&name, "./%s", now) > 0);
  return name;
}

static void
change_names (struct changer *c)
{
  CLEANUP_FREE char *name = NULL;
  bool encrypted;
  {
    DISK_SECTION_FOR_BLOCK now = disk_enter (c->disk);
    const struct header *const h = &now.view->image->header;

    encrypted = h->crypt_method == QCOW2_CRYPT_LUKS;
    name = choose_name (h->backing_file);
  }
  if (encrypted && rng_below (&c->rng, 3))
    try_keys (c);
  else if (name)
    changed (c, relink_disk (c->disk, name));
}

/* --- layers --- */

/* Only this thread changes them. */
static const struct layers *
layers_of (const struct changer *c)
{
  return disk_inside (c->disk).view->layers;
}

static const char *
name_of (const struct layers *l, unsigned i)
{
  return strrchr (storage_path (layers_file (l, i)), '/') + 1;
}

/* A name that no layer has.  There is no such file. */
static const char *
choose_file (const struct changer *c)
{
  static const char *const names[MOST_LAYERS + 1] = { "a", "b", "c", "d", "e", "f", "g" };
  const struct layers *l = layers_of (c);
  const char *const *name = names;

  for (unsigned i = 0; i < layers_count (l); i++)
    if (strcmp (name_of (l, i), *name) == 0) {
      name++;
      i = -1;
    }
  unlink (*name);
  return *name;
}

/* QEMU's tools are told what they are. */
static void
remember_layers (struct changer *c)
{
  static const char *const methods[] = { NULL, "aes", "luks" };
  const struct layers *l = layers_of (c);
  const unsigned n = layers_count (l);

  c->alone = n == 1;
  for (unsigned i = c->moves ? n : 0; i-- > 0; ) {
    const struct header *h = layers_header (l, i);
    const struct image_spec spec = {
      .raw = h == NULL, .encrypt = h ? methods[h->crypt_method] : NULL,
      .backing = i + 1 < n ? name_of (l, i + 1) : NULL,
    };

    image_remember (name_of (l, i), &spec);
  }
  if (c->moves)
    snprintf (c->top, sizeof c->top, "%s", name_of (l, 0));
}

static void
changed_layers (struct changer *c, int r)
{
  if (changed (c, r))
    remember_layers (c);
}

/* Copies all that is below one of them into it. */
static void
stream (struct changer *c)
{
  static const struct stream_watch watch = { .step = stream_goes_on, .fails = stream_fails };
  const unsigned layer = c->moves ? rng_below (&c->rng, layers_count (layers_of (c))) : 0;
  bool writable = true;
  struct stream *s;
  int r = -1;

  CHECK (disk_connect (c->disk, &writable) == 0 && writable);
  s = stream_new (c->disk, layer, 0, NULL);
  if (s && stream_copy (s, &watch) == 0)
    r = stream_finish (s);
  stream_free (s);
  changed_layers (c, r);
  CHECK (disk_disconnect (c->disk, true) == 0);
}

static void
put_on_top (struct changer *c)
{
  CLEANUP_FREE char *path = images_path (choose_file (c));
  const struct overlay o = { .path = path, .create = true };

  if (layers_count (layers_of (c)) < MOST_LAYERS)
    changed_layers (c, overlay_disk (c->disk, &o));
}

/* The image on top stays. */
static void
commit_middle (struct changer *c)
{
  const unsigned n = layers_count (layers_of (c));
  struct commit_layers layers = { .top = 1 };
  uint64_t copied;

  if (n < 3)
    return;
  layers.top += rng_below (&c->rng, n - 2);
  layers.base = layers.top + 1 + rng_below (&c->rng, n - layers.top - 1);
  changed_layers (c, commit_disk (c->disk, &layers, NULL, &copied));
}

static int
pivot_down (void *opaque)
{
  return commit_pivot (opaque);
}

/* (To a larger one, it would grow.) */
static void
move_down (struct changer *c)
{
  const struct layers *l = layers_of (c);
  struct commit_layers layers = { .base = 1, .follows = true };
  struct commit *commit;

  if (layers_count (l) == 1)
    return;
  layers.base += rng_below (&c->rng, layers_count (l) - 1);
  if (layers_size (l, layers.base) > layers_size (l, 0))
    return;
  commit = commit_new (c->disk, &layers);
  changed_layers (c, commit && commit_begin (commit) == 0
                  ? change_follow (commit_follow (commit), pivot_down, commit) : -1);
  commit_free (commit);
}

/* Alone, or to lie over the same layers.  Those who know where trims end know the size of
 * its clusters. */
static void
create_target (struct changer *c, const char *path, bool alone)
{
  const struct layers *l = layers_of (c);
  const struct header *h = layers_header (l, 0);
  const struct create_options o = {
    .path = path, .unsafe = true,
    .image = {
      .version = 3, .size = h->size, .cluster_size = h->cluster_size, .refcount_bits = 16,
      .backing_file = alone ? NULL : storage_path (layers_file (l, 1)),
      .backing_format = alone ? NULL : layers_image (l, 1) ? "qcow2" : "raw",
    },
  };
  struct created *created;

  CHECK (create_image (&o, &created) == 0);
  created_keep (created);
}

static int
pivot (void *opaque)
{
  return mirror_pivot (opaque);
}

/* (The image that stays behind may have snapshots, which need the layers as they are.) */
static void
move (struct changer *c)
{
  const struct layers *l = layers_of (c);
  const bool alone = layers_count (l) == 1 || layers_header (l, 0)->nb_snapshots > 0 ||
    rng_below (&c->rng, 2);
  struct mirror_options o = {
    .sync = alone ? MIRROR_FULL : MIRROR_TOP,
    .target.backing = alone ? BACKING_IGNORE : BACKING_FOLLOW,
  };
  CLEANUP_FREE char *path = images_path (choose_file (c));
  struct mirror *m = NULL;
  int r;

  create_target (c, path, alone);
  o.target.image = change_open_target (disk_get_options (c->disk), path);
  CHECK (o.target.image != NULL);
  r = mirror_begin (c->disk, &o, &m);
  if (r == 0)
    r = change_follow (mirror_follow (m), pivot, m);
  changed_layers (c, r);
  if (r == 0)
    mirror_end (m);
  image_close (o.target.image);
}

/* --- the thread --- */

/* Takes away what was put into the image. */
static void
clean (struct changer *c)
{
  if (c->has_snapshot)
    change_snapshot (c);
  remove_bitmaps (c);
  if (c->has_key)
    try_keys (c);
}

static void
change_layers (struct changer *c)
{
  if (rng_below (&c->rng, 4) == 0) {
    commit_middle (c);
    return;
  }
  clean (c);                    /* another image becomes the disk */
  switch (rng_below (&c->rng, 3)) {
  case 0: put_on_top (c); break;
  case 1: move_down (c); break;
  default: move (c);
  }
}

static void *
change (void *opaque)
{
  struct changer *c = opaque;

  while (!c->ends) {
    switch (rng_below (&c->rng, c->moves ? 8 : 5)) {
    case 0: change_snapshot (c); break;
    case 1: try_bitmaps (c); break;
    case 2: grow (c); break;
    case 3:
      if (c->streams && rng_below (&c->rng, 3) == 0)
        stream (c);
      else
        change_names (c);
      break;
    case 4: amend (c); break;
    default: change_layers (c);
    }
    if (c->has_snapshot)
      check_snapshot (c);
    usleep (rng_below (&c->rng, 4000));
  }
  clean (c);
  return NULL;
}

void
changer_start (struct changer *c)
{
  quiet_errors = true;          /* of changes that are not possible */
  remember_layers (c);
  CHECK (pthread_create (&c->thread, NULL, change, c) == 0);
}

void
changer_stop (struct changer *c)
{
  c->ends = true;
  CHECK (pthread_join (c->thread, NULL) == 0);
  quiet_errors = false;
}
