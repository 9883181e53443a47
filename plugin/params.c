/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What does the user want?
 *
 * The parameters of the command line, one function a parameter where there is something to
 * check.  Each error names the parameter.  Paths are made absolute, since the
 * server changes to another directory.
 *
 * The passphrase is kept until the image is open, and wiped then.
 *
 * Locks: none; nbdkit configures plugins before there are threads.
 */

#include <config.h>

#include <stdlib.h>
#include <string.h>

#define NBDKIT_API_VERSION 2
#include <nbdkit-plugin.h>

#include "bytes.h"
#include "params.h"
#include "paramvalue.h"

#define MIN_SLICE 512
#define MAX_SLICE (2 << 20)

void
params_forget_passphrase (struct params *p)
{
  if (p->passphrase)
    explicit_bzero (p->passphrase, strlen (p->passphrase));
  free (p->passphrase);
  p->passphrase = NULL;
  p->options.secret = (struct chain_secret) { NULL, 0 };
}

void
params_free (struct params *p)
{
  params_forget_passphrase (p);
  free (p->path);
  free (p->dir);
  free (p->stats);
  free (p->backing_path);
  free (p->data_file_path);
  free (p->bitmaps);
  free (p->edits);
  free (p->report);
}

static int
set_file (struct params *p, const char *value)
{
  if (p->path) {
    nbdkit_error ("file= was given twice");
    return -1;
  }
  /* Not the real path: a relative backing file is looked for next to the name
   * that was given. */
  p->path = nbdkit_absolute_path (value);
  p->options.path = p->path;
  return p->path ? 0 : -1;
}

static int
set_dir (struct params *p, const char *value)
{
  if (p->dir) {
    nbdkit_error ("dir= was given twice");
    return -1;
  }
  p->dir = nbdkit_absolute_path (value);
  return p->dir ? 0 : -1;
}

static int
set_slice (struct params *p, const char *key, const char *value)
{
  if (parse_bytes (key, value, &p->options.l2_slice) == -1)
    return -1;
  if (!is_power_of_2 (p->options.l2_slice) || p->options.l2_slice < MIN_SLICE ||
      p->options.l2_slice > MAX_SLICE) {
    nbdkit_error ("%s=%s: must be a power of two between %d and %d",
                  key, value, MIN_SLICE, MAX_SLICE);
    return -1;
  }
  return 0;
}

static int
set_backing (struct params *p, const char *value)
{
  if (p->backing_set) {
    nbdkit_error ("backing= was given twice");
    return -1;
  }
  p->backing_set = true;
  if (strcmp (value, "follow") == 0)
    p->options.backing = BACKING_FOLLOW;
  else if (strcmp (value, "deny") == 0)
    p->options.backing = BACKING_DENY;
  else {
    p->options.backing = BACKING_PATH;
    p->backing_path = nbdkit_absolute_path (value);
    p->options.backing_path = p->backing_path;
    if (p->backing_path == NULL)
      return -1;
  }
  return 0;
}

static int
set_data_file (struct params *p, const char *value)
{
  if (p->data_file_set) {
    nbdkit_error ("data-file= was given twice");
    return -1;
  }
  p->data_file_set = true;
  if (strcmp (value, "follow") == 0)
    p->options.data_file = DATA_FILE_FOLLOW;
  else if (strcmp (value, "deny") == 0)
    p->options.data_file = DATA_FILE_DENY;
  else {
    p->options.data_file = DATA_FILE_PATH;
    p->data_file_path = nbdkit_absolute_path (value);
    p->options.data_file_path = p->data_file_path;
    p->create.data_file = value;
    p->create.options.data_path = p->data_file_path;
    if (p->data_file_path == NULL)
      return -1;
  }
  return 0;
}

static int
set_report (struct params *p, const char *value)
{
  if (p->report) {
    nbdkit_error ("check-report= was given twice");
    return -1;
  }
  p->report = nbdkit_absolute_path (value);
  p->check.report = p->report;
  return p->report ? 0 : -1;
}

/* qcow2-passphrase= is the same for those who put nbdkit's luks filter on top, which takes
 * passphrase= for itself. */
static int
set_passphrase (struct params *p, const char *value)
{
  params_forget_passphrase (p);
  if (nbdkit_read_password (value, &p->passphrase) == -1)
    return -1;
  p->options.secret.passphrase = p->passphrase;
  p->options.secret.len = strlen (p->passphrase);
  return 0;
}

static int
add_bitmap (struct params *p, enum bitmapedit_what what, const char *name)
{
  struct bitmapedit *list =
    realloc (p->bitmaps, (p->nr_bitmaps + 1) * sizeof *list);

  if (list == NULL) {
    nbdkit_error ("realloc: %m");
    return -1;
  }
  p->bitmaps = list;
  list[p->nr_bitmaps++] = (struct bitmapedit) { .what = what, .name = name };
  return 0;
}

static int
set_granularity (struct params *p, const char *key, const char *value)
{
  uint64_t size;

  if (parse_bytes (key, value, &size) == -1)
    return -1;
  if (!is_power_of_2 (size) ||
      size < UINT64_C (1) << QCOW2_MIN_BITMAP_GRANULARITY ||
      size > UINT64_C (1) << QCOW2_MAX_BITMAP_GRANULARITY) {
    nbdkit_error ("%s=%s: must be a power of two between 512 and 2G", key, value);
    return -1;
  }
  p->bitmap_granularity_bits = __builtin_ctzll (size);
  return 0;
}

static int
add_edit (struct params *p, const struct edit *edit)
{
  struct edit *edits = reallocarray (p->edits, p->nr_edits + 1, sizeof *edits);

  if (edits == NULL) {
    nbdkit_error ("realloc: %m");
    return -1;
  }
  p->edits = edits;
  p->edits[p->nr_edits++] = *edit;
  return 0;
}

/* nbdkit keeps what VALUE points to. */
static int
add_snapshot_edit (struct params *p, enum edit_kind kind, const char *value)
{
  return add_edit (p, &(struct edit) { .kind = kind, .name = value });
}

/* SIZE, +SIZE or -SIZE. */
static int
add_resize (struct params *p, const char *key, const char *value)
{
  struct edit edit = { .kind = EDIT_RESIZE };

  if (value[0] == '+' || value[0] == '-')
    edit.sign = value[0] == '+' ? 1 : -1;
  if (parse_bytes (key, edit.sign ? value + 1 : value, &edit.size) == -1)
    return -1;
  return add_edit (p, &edit);
}

int
params_set (struct params *p, const char *key, const char *value)
{
  static const struct choice formats[] = {
    { "qcow2", 0 }, { "raw", 1 }, { NULL, 0 }
  };
  static const struct choice discards[] = {
    { "unmap", true }, { "ignore", false }, { NULL, 0 }
  };
  static const struct choice detects[] = {
    { "off", DETECT_ZEROES_OFF }, { "on", DETECT_ZEROES_ON },
    { "unmap", DETECT_ZEROES_UNMAP }, { NULL, 0 }
  };
  static const struct choice switches[] = {
    { "off", false }, { "on", true }, { NULL, 0 }
  };
  static const struct choice caches[] = {
    { "default", false }, { "none", true }, { NULL, 0 }
  };
  static const struct choice preallocations[] = {
    { "off", PREALLOCATION_OFF }, { "metadata", PREALLOCATION_METADATA },
    { "falloc", PREALLOCATION_FALLOC }, { "full", PREALLOCATION_FULL },
    { NULL, 0 }
  };
  static const struct choice checks[] = {
    { "off", CHECK_OFF }, { "quick", CHECK_QUICK }, { "full", CHECK_FULL },
    { "repair", CHECK_REPAIR }, { NULL, 0 }
  };
  int choice;

  choice = createparams_set (&p->create, key, value);
  if (choice != 0)
    return choice == 1 ? 0 : -1;
  if (strcmp (key, "file") == 0)
    return set_file (p, value);
  if (strcmp (key, "dir") == 0)
    return set_dir (p, value);
  if (strcmp (key, "stats") == 0) {
    free (p->stats);
    p->stats = nbdkit_absolute_path (value);
    return p->stats ? 0 : -1;
  }
  if (strcmp (key, "l2-cache") == 0)
    return parse_bytes (key, value, &p->options.l2_cache);
  if (strcmp (key, "l2-slice") == 0)
    return set_slice (p, key, value);
  if (strcmp (key, "backing") == 0)
    return set_backing (p, value);
  if (strcmp (key, "backing-format") == 0) {
    if (parse_choice (key, value, formats, &choice) == -1)
      return -1;
    p->options.backing_format = formats[choice].word;
    return 0;
  }
  if (strcmp (key, "data-file") == 0)
    return set_data_file (p, value);
  if (strcmp (key, "passphrase") == 0 ||
      strcmp (key, "qcow2-passphrase") == 0)
    return set_passphrase (p, value);
  if (strcmp (key, "snapshot") == 0) {
    p->snapshot = value;
    return 0;
  }
  if (strcmp (key, "bitmap-add") == 0)
    return add_bitmap (p, BITMAP_ADD, value);
  if (strcmp (key, "bitmap-clear") == 0)
    return add_bitmap (p, BITMAP_CLEAR, value);
  if (strcmp (key, "bitmap-remove") == 0)
    return add_bitmap (p, BITMAP_REMOVE, value);
  if (strcmp (key, "bitmap-granularity") == 0)
    return set_granularity (p, key, value);
  if (strcmp (key, "snapshot-create") == 0)
    return add_snapshot_edit (p, EDIT_SNAPSHOT_CREATE, value);
  if (strcmp (key, "snapshot-apply") == 0)
    return add_snapshot_edit (p, EDIT_SNAPSHOT_APPLY, value);
  if (strcmp (key, "snapshot-delete") == 0)
    return add_snapshot_edit (p, EDIT_SNAPSHOT_DELETE, value);
  if (strcmp (key, "resize") == 0)
    return add_resize (p, key, value);
  if (strcmp (key, "shrink") == 0)
    return parse_flag (key, value, &p->edit_options.shrink);
  if (strcmp (key, "preallocation") == 0) {
    if (parse_choice (key, value, preallocations, &choice) == -1)
      return -1;
    p->edit_options.preallocation = choice;
    p->create.options.image.preallocation = choice;
    p->preallocation_set = true;
    return 0;
  }
  if (strcmp (key, "untrusted") == 0)
    return parse_flag (key, value, &p->options.untrusted);
  if (strcmp (key, "discard") == 0) {
    if (parse_choice (key, value, discards, &choice) == -1)
      return -1;
    p->options.discard = choice;
    return 0;
  }
  if (strcmp (key, "detect-zeroes") == 0) {
    if (parse_choice (key, value, detects, &choice) == -1)
      return -1;
    p->options.detect_zeroes = choice;
    return 0;
  }
  if (strcmp (key, "compress") == 0) {
    if (parse_choice (key, value, switches, &choice) == -1)
      return -1;
    p->options.compress = choice;
    return 0;
  }
  if (strcmp (key, "cache") == 0) {
    if (parse_choice (key, value, caches, &choice) == -1)
      return -1;
    p->options.drop_cache = choice;
    return 0;
  }
  if (strcmp (key, "copy-on-read") == 0)
    return parse_flag (key, value, &p->options.copy_on_read);
  if (strcmp (key, "flatten") == 0)
    return parse_flag (key, value, &p->flatten);
  if (strcmp (key, "check") == 0) {
    if (parse_choice (key, value, checks, &choice) == -1)
      return -1;
    p->check.mode = choice;
    return 0;
  }
  if (strcmp (key, "check-report") == 0)
    return set_report (p, value);
  if (strcmp (key, "lock") == 0)
    return parse_flag (key, value, &p->options.lock);

  nbdkit_error ("unknown parameter '%s'", key);
  return -1;
}

/* What is about one image does not go with dir=. */
static int
check_dir (struct params *p)
{
  const char *other = p->path ? "file="
    : p->snapshot ? "snapshot="
    : p->flatten ? "flatten=true"
    : p->check.mode != CHECK_OFF ? "check="
    : p->nr_bitmaps > 0 ? "bitmap-add= and the like"
    : p->create.wanted ? "create="
    : p->nr_edits > 0 ? "snapshot-create=, resize= and the like"
    : p->options.backing == BACKING_PATH ? "backing=PATH"
    : p->options.backing_format ? "backing-format="
    : p->data_file_path ? "data-file=PATH" : NULL;

  if (other) {
    nbdkit_error ("dir= does not go with %s", other);
    return -1;
  }
  p->options.path = p->dir;
  return 0;
}

/* Flattening comes after the edits.  A snapshot of an overlay needs what is below it. */
static bool
makes_snapshot (const struct params *p)
{
  unsigned i;

  for (i = 0; i < p->nr_edits; i++)
    if (p->edits[i].kind == EDIT_SNAPSHOT_CREATE)
      return true;
  return false;
}

/* What changes the image goes with nothing that forbids it. */
static int
check_copying (const struct params *p)
{
  const char *what = p->flatten ? "flatten=true" :
    p->options.copy_on_read ? "copy-on-read=true" : NULL;
  const char *other = p->options.untrusted ? "untrusted=true" :
    p->snapshot ? "snapshot=" :
    p->flatten && p->options.backing == BACKING_DENY ? "backing=deny" :
    p->flatten && makes_snapshot (p)
    ? "snapshot-create=: the snapshot would need the backing file" : NULL;

  if (what == NULL || other == NULL)
    return 0;
  nbdkit_error ("%s does not go with %s", what, other);
  return -1;
}

/* It says how new parts of the disk are made, all of them or those that resize= adds. */
static int
check_preallocation (const struct params *p)
{
  unsigned i;

  if (!p->preallocation_set || p->create.wanted)
    return 0;
  for (i = 0; i < p->nr_edits; i++)
    if (p->edits[i].kind == EDIT_RESIZE)
      return 0;
  nbdkit_error ("preallocation= needs create=SIZE or resize=SIZE");
  return -1;
}

/* What a check has to know of all this. */
static int
complete_check (struct params *p)
{
  const struct disk_options *o = &p->options;

  if (p->report && p->check.mode == CHECK_OFF) {
    nbdkit_error ("check-report= needs check=quick, full or repair");
    return -1;
  }
  if (o->untrusted && p->check.mode == CHECK_REPAIR) {
    nbdkit_error ("untrusted=true does not go with check=repair: "
                  "untrusted images are not written");
    return -1;
  }
  p->check.path = o->path;
  p->check.chain = (struct chain_options) {
    .backing = o->backing, .backing_path = o->backing_path,
    .backing_format = o->backing_format,
    .file = { .lock = o->lock, .drop_cache = o->drop_cache },
  };
  return 0;
}

int
params_complete (struct params *p)
{
  if (p->dir) {
    if (check_dir (p) == -1)
      return -1;
  }
  else if (p->path == NULL) {
    nbdkit_error ("the file parameter is missing: nbdkit qcow2 disk.qcow2");
    return -1;
  }
  for (size_t i = 0; i < p->nr_bitmaps; i++)
    p->bitmaps[i].granularity_bits = p->bitmap_granularity_bits;
  if (p->options.untrusted && p->nr_edits > 0) {
    nbdkit_error ("untrusted=true does not go with changes of the image");
    return -1;
  }
  if (check_copying (p) == -1 || check_preallocation (p) == -1 ||
      createparams_complete (&p->create, p->path, &p->options, p->snapshot) == -1)
    return -1;
  if (p->options.untrusted) {
    if (p->options.backing == BACKING_PATH) {
      nbdkit_error ("untrusted=true does not go with backing=PATH");
      return -1;
    }
    p->options.backing = BACKING_DENY;
    if (p->options.data_file == DATA_FILE_PATH) {
      nbdkit_error ("untrusted=true does not go with data-file=PATH");
      return -1;
    }
    p->options.data_file = DATA_FILE_DENY;
  }
  if (p->options.backing == BACKING_PATH && p->options.backing_format == NULL)
    nbdkit_debug ("backing-format is taken from the image's header");
  return complete_check (p);
}
