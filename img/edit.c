/* SPDX-License-Identifier: BSD-3-Clause
 *
 * bitmap, resize and snapshot: changes of an image, each of which happens as a whole or
 * not at all.
 *
 * The core makes them (edit.c and bitmapedit.c there), of a disk that is opened without
 * its backing files, unless they matter.
 *
 * Locks: none.
 */

#include <config.h>

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "util/bytes.h"
#include "util/cleanup.h"
#include "util/jsontext.h"
#include "util/memory.h"
#include "util/report.h"
#include "format/format.h"
#include "image/health.h"
#include "change/bitmapedit.h"
#include "change/edit.h"
#include "img/change.h"
#include "img/info.h"
#include "img/live.h"
#include "img/newoptions.h"
#include "img/progress.h"
#include "img/rawsize.h"
#include "img/values.h"

/* The format allows longer names, but QEMU's tools do not create them. */
#define MAX_SNAPSHOT_NAME 255

/* --- opening, for all commands that change an image --- */

int
change_image (struct imagefile *f, bool chain, int (*fn) (void *opaque, struct disk *),
              void *opaque)
{
  struct disk_options options = f->options;
  struct disk *disk;
  int r;

  if (!chain && options.backing == BACKING_FOLLOW)
    options.backing = BACKING_IGNORE;
  if (disk_open (&options, &disk) == -1)
    return -1;
  r = fn (opaque, disk);
  /* (What was changed may not be readable now: that was reported.) */
  if (r == 0 && health_check (disk_inside (disk).view->image->health) == 0) {
    disk_unlock (disk);
    return disk_close (disk);
  }
  KEEP_ERRNO_FOR_BLOCK;
  disk_close (disk);
  return -1;
}

int
change_command (const struct arguments *a, const char *what,
                int (*fn) (const struct arguments *, struct imagefile *,
                           const struct secrets *))
{
  struct secrets *secrets = secrets_read (a);
  struct imagefile *f = secrets == NULL ? NULL
    : imagefile_named (a, a->operands[0], value_of (a, &option_format), secrets);
  int r = -1;

  if (f && (what == NULL || imagefile_need_qcow2 (f, what) == 0)) {
    imagefile_will_write (f);
    r = fn (a, f, secrets);
  }
  imagefile_free (f);
  secrets_free (secrets);
  return r == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}

/* --- snapshots and the size --- */

struct editing {
  struct edit edit;
  struct edit_options options;
};

static int
edit (void *opaque, struct disk *disk)
{
  const struct editing *e = opaque;

  return edit_disk (disk, &e->options, &e->edit, 1);
}

/* --- resize --- */

static const struct option
  option_shrink = {
    0, "shrink", NULL, "allow the disk to become smaller; what is beyond the new size is lost"
  },
  option_preallocation = {
    0, "preallocation", "off|metadata|falloc|full",
    "how space for the new part is allocated (default off)"
  };

static int
resize_raw (struct imagefile *f, const struct editing *e)
{
  const struct storage_options options = {
    .try_writable = true, .lock = f->options.lock, .link = &f->options.link
  };
  struct storage *s;
  const char *why;
  uint64_t size;
  int r = -1;

  if (f->uri) {
    report_error ("%s: the size of an NBD export cannot be changed", f->given);
    return -1;
  }
  if (storage_open (f->path, &options, &s) == -1)
    return -1;
  why = edit_choose_size (&e->edit, &e->options, storage_size (s), &size);
  if (!storage_is_writable (s))
    why = "it cannot be written";
  else if (why == NULL && size < storage_size (s) &&
           e->options.preallocation != PREALLOCATION_OFF)
    why = "--preallocation cannot be used when a disk becomes smaller";
  if (why)
    report_error ("%s: cannot resize: %s", f->given, why);
  else
    r = storage_lock (s, STORAGE_WRITER) == -1 ? -1
      : rawsize_set (s, size, e->options.preallocation);
  storage_close (s);
  return r;
}

static int
resize (const struct arguments *a, struct imagefile *f, const struct secrets *secrets)
{
  static const struct chunks_watch watch = { .step = progress_step };
  const char *preallocation = value_of (a, &option_preallocation);
  struct editing e = {
    .edit = { .kind = EDIT_RESIZE },
    .options = { .shrink = is_given (a, &option_shrink), .watch = &watch },
  };
  int r;

  (void) secrets;
  if (parse_signed_size ("size", a->operands[1], &e.edit.sign, &e.edit.size) == -1 ||
      (preallocation &&
       parse_preallocation ("--preallocation", preallocation,
                            &e.options.preallocation) == -1))
    return -1;
  progress_begin (a, false);
  r = f->raw ? resize_raw (f, &e) : change_image (f, true, edit, &e);
  progress_end (r == 0);
  if (r == 0 && !is_given (a, &option_quiet))
    puts ("Image resized.");
  return r;
}

static int
run_resize (const struct arguments *a)
{
  return change_command (a, NULL, resize);
}

static int
resize_live (const struct arguments *a, struct live *l)
{
  const json_t *image = live_image (l);
  const uint64_t size = json_integer_value (json_object_get (image, "virtual-size"));
  const struct edit_options options = { .shrink = is_given (a, &option_shrink) };
  struct edit e = { .kind = EDIT_RESIZE };
  const char *why;
  uint64_t wanted;

  if (image == NULL || parse_signed_size ("size", a->operands[1], &e.sign, &e.size) == -1)
    return -1;
  why = edit_choose_size (&e, &options, size, &wanted);
  if (why) {
    report_error ("%s: cannot resize: %s", live_device (l), why);
    return -1;
  }
  if (live_do (l, "block_resize", jsontext_object (
        { "node-name", json_incref (json_object_get (live_inserted (l), "node-name")) },
        { "size", jsontext_number (wanted) })) == -1)
    return -1;
  if (!is_given (a, &option_quiet))
    puts ("Image resized.");
  return 0;
}

static const struct option *const live_resize_options[] = {
  &option_format, &option_quiet, &option_progress, &option_shrink, NULL
};

static const struct option *const resize_options[] = {
  &option_format, &option_quiet, &option_progress, &option_shrink, &option_preallocation,
  IMAGE_OPTIONS, NULL
};

const struct command resize_command = {
  "resize", "IMAGE [+|-]SIZE",
  "Change the size of the disk in an image: to SIZE, or by SIZE.",
  resize_options, 2, 2, .last_is_operand = true, .run = run_resize,
  .live = resize_live, .live_options = live_resize_options
};

/* --- snapshot --- */

static const struct option
  option_list = { 'l', "list", NULL, "list the snapshots (the default)" },
  option_apply = { 'a', "apply", "SNAPSHOT", "revert the disk to this snapshot" },
  option_create = { 'c', "create", "NAME", "take a snapshot" },
  option_delete = { 'd', "delete", "SNAPSHOT", "delete this snapshot" };

static int
list_snapshots (const struct imagefile *f)
{
  json_t *info = f->raw ? json_object () : info_describe (f, false);

  if (info == NULL)
    return -1;
  info_print_snapshots (info);
  json_decref (info);
  return 0;
}

/* Without a name, the snapshots are to be listed. */
static int
parse_snapshot_edit (const struct arguments *a, struct edit *e)
{
  static const struct { const struct option *option; enum edit_kind kind; } kinds[] = {
    { &option_apply, EDIT_SNAPSHOT_APPLY }, { &option_create, EDIT_SNAPSHOT_CREATE },
    { &option_delete, EDIT_SNAPSHOT_DELETE },
  };
  unsigned n = 0;

  *e = (struct edit) { .name = NULL };
  for (unsigned i = 0; i < a->nr_given; i++) {
    n += a->given[i].option == &option_list;
    for (size_t k = 0; k < sizeof kinds / sizeof kinds[0]; k++)
      if (a->given[i].option == kinds[k].option) {
        *e = (struct edit) { .kind = kinds[k].kind, .name = a->given[i].value };
        n++;
      }
  }
  if (n > 1) {
    report_error ("only one of -l, -a, -c and -d can be given");
    return -1;
  }
  return e->name && e->kind == EDIT_SNAPSHOT_CREATE
    ? parse_new_name ("-c", e->name, MAX_SNAPSHOT_NAME) : 0;
}

static int
snapshot (const struct arguments *a, struct imagefile *f, const struct secrets *secrets)
{
  struct editing e = { .options = { .shrink = false } };

  (void) secrets;
  if (parse_snapshot_edit (a, &e.edit) == -1)
    return -1;
  if (e.edit.name == NULL)
    return list_snapshots (f);
  return imagefile_need_qcow2 (f, "internal snapshots") == -1 ? -1
    : change_image (f, false, edit, &e);
}

/* Which snapshot NAME means: by name, or else by id, as without a server.  (It tells
 * nothing of an image that is not in use.) */
static json_t *
name_snapshot (const struct live *l, const char *name)
{
  const json_t *list = live_is_known (l)
    ? json_object_get (live_image (l), "snapshots") : NULL, *s;
  size_t i;

  for (unsigned by_id = 0; by_id < 2; by_id++)
    json_array_foreach (list, i, s) {
      const char *there =
        json_string_value (json_object_get (s, by_id ? "id" : "name"));

      if (there && strcmp (there, name) == 0)
        return jsontext_object (
          { "id", json_incref (json_object_get (s, "id")) },
          { "name", json_incref (json_object_get (s, "name")) });
    }
  return jsontext_object ({ "name", jsontext_string (name) });
}

static int
snapshot_live (const struct arguments *a, struct live *l)
{
  struct edit e;
  const json_t *image;

  if (parse_snapshot_edit (a, &e) == -1)
    return -1;
  if (e.name == NULL) {
    image = live_image (l);
    if (image)
      info_print_snapshots (image);
    return image ? 0 : -1;
  }
  if (e.kind == EDIT_SNAPSHOT_APPLY) {
    report_error ("-a cannot be used with --control: clients would lose what they know");
    return -1;
  }
  if (e.kind == EDIT_SNAPSHOT_CREATE)
    return live_do (l, "blockdev-snapshot-internal-sync", jsontext_object (
      { "device", jsontext_string (live_device (l)) }, { "name", jsontext_string (e.name) }));
  return live_do (l, "blockdev-snapshot-delete-internal-sync", jsontext_add (
    name_snapshot (l, e.name), { "device", jsontext_string (live_device (l)) }));
}

static const struct option *const live_snapshot_options[] = {
  &option_format, &option_quiet, &option_force_share, &option_list, &option_apply,
  &option_create, &option_delete, NULL
};

static int
run_snapshot (const struct arguments *a)
{
  return change_command (a, NULL, snapshot);
}

static const struct option *const snapshot_options[] = {
  &option_format, &option_quiet, &option_force_share, &option_list, &option_apply,
  &option_create, &option_delete, IMAGE_OPTIONS, NULL
};

const struct command snapshot_command = {
  "snapshot", "IMAGE",
  "List or change the internal snapshots of an image.  SNAPSHOT is a name or an id.",
  snapshot_options, 1, 1, .run = run_snapshot,
  .live = snapshot_live, .live_options = live_snapshot_options
};

/* --- bitmap --- */

static const struct option
  option_add = { 0, "add", NULL, "add the bitmap; it records changes from then on" },
  option_remove = { 0, "remove", NULL, "remove the bitmap" },
  option_clear = { 0, "clear", NULL, "remove all marks from the bitmap" },
  option_enable = { 0, "enable", NULL, "have it record changes" },
  option_disable = { 0, "disable", NULL, "have it record changes no more" },
  option_merge = {
    0, "merge", "SOURCE", "mark what is marked in this other bitmap"
  },
  option_granularity = {
    'g', "granularity", "SIZE", "the granularity of a bitmap that is added"
  },
  option_source = {
    'b', "source-file", "FILE", "the image with the bitmaps SOURCE (default IMAGE)"
  },
  option_source_format = { 'F', "source-format", "FORMAT", "the format of FILE" };

static const struct {
  const struct option *option;
  enum bitmapedit_what what;
  const char *command;          /* of QMP */
} actions[] = {
  { &option_add, BITMAP_ADD, "block-dirty-bitmap-add" },
  { &option_remove, BITMAP_REMOVE, "block-dirty-bitmap-remove" },
  { &option_clear, BITMAP_CLEAR, "block-dirty-bitmap-clear" },
  { &option_enable, BITMAP_ENABLE, "block-dirty-bitmap-enable" },
  { &option_disable, BITMAP_DISABLE, "block-dirty-bitmap-disable" },
  { &option_merge, BITMAP_MERGE, "block-dirty-bitmap-merge" },
};

struct bitmap_change {
  struct bitmapedit *list;
  unsigned n;
  const char *source;
};

static int
parse_granularity (const struct arguments *a, unsigned *bits)
{
  const char *text = value_of (a, &option_granularity);
  uint64_t size;

  *bits = 0;
  if (text == NULL)
    return 0;
  if (parse_size ("-g", text, &size) == -1)
    return -1;
  if (!is_power_of_2 (size) || size < UINT64_C (1) << QCOW2_MIN_BITMAP_GRANULARITY ||
      size > UINT64_C (1) << QCOW2_MAX_BITMAP_GRANULARITY)
    return bad_value ("-g", text, "must be a power of two between 512 and 2G");
  *bits = __builtin_ctzll (size);
  return 0;
}

/* In the order in which they were given. */
static int
collect (const struct arguments *a, struct bitmap_change *c)
{
  unsigned bits;

  if (parse_granularity (a, &bits) == -1)
    return -1;
  c->list = memory_new (a->nr_given + 1, sizeof *c->list);
  if (c->list == NULL)
    return -1;
  for (unsigned i = 0; i < a->nr_given; i++)
    for (size_t k = 0; k < sizeof actions / sizeof actions[0]; k++)
      if (a->given[i].option == actions[k].option)
        c->list[c->n++] = (struct bitmapedit) {
          .what = actions[k].what, .name = a->operands[1], .granularity_bits = bits,
          .merged = a->given[i].value,
        };
  return is_given (a, &option_add)
    ? parse_new_name ("bitmap", a->operands[1], QCOW2_MAX_BITMAP_NAME) : 0;
}

static int
check_actions (const struct arguments *a, const struct bitmap_change *c)
{
  const char *why = c->n == 0 ? "at least one of --add, --remove, --clear, --enable, "
    "--disable and --merge is required"
    : is_given (a, &option_granularity) && !is_given (a, &option_add) ? "-g requires --add"
    : is_given (a, &option_source) && !is_given (a, &option_merge) ? "-b requires --merge"
    : is_given (a, &option_source_format) && !is_given (a, &option_source) ? "-F requires -b"
    : NULL;

  if (why == NULL)
    return 0;
  return report_refusal (EINVAL, "%s", why);
}

static int
edit_bitmaps (void *opaque, struct disk *disk)
{
  const struct bitmap_change *c = opaque;

  return bitmapedit_disk (disk, c->list, c->n, c->source);
}

/* *SOURCE: the image of -b, or NULL. */
static int
open_source (const struct arguments *a, const struct secrets *s, struct imagefile **source)
{
  const char *name = value_of (a, &option_source);

  *source = NULL;
  if (name == NULL)
    return 0;
  *source = imagefile_other (a, name, value_of (a, &option_source_format), s);
  return *source ? imagefile_need_qcow2 (*source, "persistent bitmaps") : -1;
}

static int
bitmap (const struct arguments *a, struct imagefile *f, const struct secrets *s)
{
  struct bitmap_change c = { .n = 0 };
  struct imagefile *source = NULL;
  int r = collect (a, &c);

  if (r == 0 && check_actions (a, &c) == 0 && open_source (a, s, &source) == 0) {
    c.source = source && strcmp (source->path, f->path) != 0 ? source->path : NULL;
    r = change_image (f, false, edit_bitmaps, &c);
  }
  else
    r = -1;
  imagefile_free (source);
  free (c.list);
  return r;
}

static int
run_bitmap (const struct arguments *a)
{
  return change_command (a, "persistent bitmaps", bitmap);
}

json_t *
change_bitmap_action (const char *device, const struct bitmapedit *e)
{
  const bool merges = e->what == BITMAP_MERGE;
  json_t *data = jsontext_object (
    { "node", jsontext_string (device) },
    { merges ? "target" : "name", jsontext_string (e->name) });
  size_t k = 0;

  while (actions[k].what != e->what)
    k++;
  if (merges)
    data = jsontext_add (data, { "bitmaps", jsontext_append (
      json_array (), jsontext_string (e->merged)) });
  if (e->what == BITMAP_ADD)
    data = jsontext_add (data, { "persistent", json_true () });
  if (e->what == BITMAP_ADD && e->granularity_bits)
    data = jsontext_add (data, { "granularity", jsontext_number (
      UINT64_C (1) << e->granularity_bits) });
  return jsontext_object ({ "type", jsontext_string (actions[k].command) },
                          { "data", data });
}

static int
bitmap_live (const struct arguments *a, struct live *l)
{
  struct bitmap_change c = { .n = 0 };
  json_t *list = json_array ();
  int r = collect (a, &c);

  if (r == 0)
    r = check_actions (a, &c);
  for (unsigned i = 0; i < c.n; i++)
    list = jsontext_append (list, change_bitmap_action (live_device (l), &c.list[i]));
  if (r == 0)
    r = live_do (l, "transaction", jsontext_object ({ "actions", json_incref (list) }));
  json_decref (list);
  free (c.list);
  return r;
}

static const struct option *const live_bitmap_options[] = {
  &option_format, &option_add, &option_remove, &option_clear, &option_enable,
  &option_disable, &option_merge, &option_granularity, NULL
};

static const struct option *const bitmap_options[] = {
  &option_format, &option_add, &option_remove, &option_clear, &option_enable,
  &option_disable, &option_merge, &option_granularity, &option_source,
  &option_source_format, IMAGE_OPTIONS, NULL
};

const struct command bitmap_command = {
  "bitmap", "IMAGE BITMAP",
  "Change a persistent bitmap of an image.  All actions happen, in the order given, or "
  "none.",
  bitmap_options, 2, 2, .run = run_bitmap,
  .live = bitmap_live, .live_options = live_bitmap_options
};
