/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What is done to an image before it is served, and in which order?
 *
 * The image is created (create=) and checked (check=), its keys, its version and
 * features, its snapshots and its size are changed, it is committed, flattened or
 * rebased, and its bitmaps are changed.  Then it is described (info=), and a disk is
 * made of it, unless serve=false was given, mapped (map=), copied (raw-copy=) and
 * compared with another one (compare=).  The image stays open and locked from the first
 * change to the last, and the disk takes it over.  Each change is complete and durable,
 * and the next one reads the file anew, so a crash between two changes leaves a valid
 * image.
 *
 * All of this happens in .get_ready, while errors and progress still reach the user's
 * terminal.  nbdkit forks later, so no thread is left when it ends.
 *
 * Locks: none; there are no threads yet.
 */

#include <config.h>

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define NBDKIT_API_VERSION 2
#include <nbdkit-plugin.h>

#include "util/cleanup.h"
#include "util/printable.h"
#include "util/report.h"
#include "check/check.h"
#include "disk/export.h"
#include "disk/inforeport.h"
#include "disk/mapreport.h"
#include "change/amend.h"
#include "change/bitmapedit.h"
#include "change/commit.h"
#include "change/compare.h"
#include "change/edit.h"
#include "change/keyedit.h"
#include "change/rawcopy.h"
#include "change/rebase.h"
#include "plugin/prepare.h"
#include "plugin/progress.h"

/* Closes the disk, and opens it again with this choice of what is below it. */
static int
reopen (const struct params *p, struct disk **disk, enum backing_policy backing)
{
  struct disk_options options = p->options;
  struct image *image = image_again (disk_inside (*disk).view->image);
  int r = -1;

  options.backing = backing;
  disk_close (*disk);           /* it is at rest */
  *disk = NULL;
  if (image)
    r = disk_open_on (&options, image, disk);
  image_close (image);
  return r;
}

/* Afterwards a backing file that a parameter named in place of the old one is no longer
 * used either. */
static int
rebase (struct params *p, struct disk **disk)
{
  const struct rebase to = p->rebase.name ? p->rebase : (struct rebase) { .name = "" };
  const bool flatten = to.name[0] == '\0';
  struct progress progress;
  const struct chunks_watch watch = {
    progress_step, &progress, p->create.wanted
  };
  uint64_t copied;
  int r;

  if (to.unsafe && reopen (p, disk, BACKING_IGNORE) == -1)
    return -1;
  progress_begin (&progress, flatten ? "flatten" : "rebase");
  r = rebase_disk (*disk, &p->options.secret, &to, &watch, &copied);
  progress_end (&progress);
  if (r == -1)
    return -1;
  report_debug ("%s: %s, %" PRIu64 " bytes were copied", p->path,
                flatten ? "flattened" : "rebased", copied);
  p->options.backing = BACKING_FOLLOW;
  p->options.backing_format = NULL;
  return 0;
}

static int
commit (const struct params *p, struct disk *disk)
{
  const struct commit_layers layers = { .base = 1, .keep = p->commit == COMMIT_KEEP };
  struct progress progress;
  const struct chunks_watch watch = { .step = progress_step, .opaque = &progress };
  uint64_t copied;
  int r;

  progress_begin (&progress, "commit");
  r = commit_disk (disk, &layers, &watch, &copied);
  progress_end (&progress);
  if (r == 0)
    report_debug ("%s: committed, %" PRIu64 " bytes were copied", p->path, copied);
  return r;
}

/* Writes raw-copy=. */
static int
raw_copy (const struct params *p, struct disk *disk)
{
  struct progress progress;
  const struct chunks_watch watch = { .step = progress_step, .opaque = &progress };
  uint64_t copied;
  int r;

  progress_begin (&progress, "raw-copy");
  r = rawcopy_disk (disk, &p->options, p->raw_copy, &watch, &copied);
  progress_end (&progress);
  if (r == 0)
    report_debug ("%s: copied to %s, %" PRIu64 " bytes were written", p->path,
                  p->raw_copy, copied);
  return r;
}

/* Writes compare=. */
static int
compare (const struct params *p, struct disk *disk)
{
  struct progress progress;
  const struct chunks_watch watch = { .step = progress_step, .opaque = &progress };
  uint64_t difference;
  int r;

  progress_begin (&progress, "compare");
  r = compare_disk (disk, &p->options, &p->compare, &watch, &difference);
  progress_end (&progress);
  if (r == 0 && difference == UINT64_MAX)
    report_debug ("%s: shows the same as %s", p->path, p->compare.with);
  else if (r == 0)
    report_debug ("%s: differs from %s at %" PRIu64, p->path, p->compare.with,
                  difference);
  return r;
}

/* Does check=. */
static int
check_before (struct params *p, struct check **check)
{
  struct progress progress;
  int r;

  progress_begin (&progress, "check");
  p->check.watch = (struct check_watch) { progress_step, &progress };
  r = check_image (&p->check, check);
  p->check.watch = (struct check_watch) { .step = NULL };
  progress_end (&progress);
  return r;
}

static int
finish_check (struct check *check, bool opened)
{
  if (check_finish (check, opened) == -1)
    return -1;
  if (opened)
    fprintf (stderr, "qcow2: %s\n", check_line (check));
  return 0;
}

/* With snapshot=: does that snapshot exist, and can it be served? */
static int
check_export (struct disk *disk)
{
  struct export *e = export_open (disk, "", false);

  return e ? export_close (e) : -1;
}

static bool
changes_keys (const struct params *p)
{
  const struct keyedit *k = &p->edit.keyedit;

  return k->add || k->erase || k->erase_slot >= 0;
}

static bool
has_changes (const struct params *p)
{
  return changes_keys (p) || p->amend_wanted || p->edit.nr_edits > 0 || p->flatten ||
    p->rebase.name || p->commit != COMMIT_OFF || p->edit.nr_bitmaps > 0;
}

/* Does resize=, snapshot-create= and the like. */
static int
edit (const struct params *p, struct disk *disk)
{
  const struct editparams *e = &p->edit;
  struct progress progress;
  const struct chunks_watch watch = { .step = progress_step, .opaque = &progress };
  struct edit_options options = e->options;
  int r;

  progress_begin (&progress, "resize");
  options.watch = &watch;
  r = edit_disk (disk, &options, e->edits, e->nr_edits);
  progress_end (&progress);
  return r;
}

static int
change (struct params *p, struct disk **disk)
{
  const struct editparams *e = &p->edit;

  if (changes_keys (p) &&
      keyedit_disk (*disk, p->options.secret.passphrase, &e->keyedit) == -1)
    return -1;
  if (p->amend_wanted && amend_disk (*disk, &p->amend) == -1)
    return -1;
  if (edit (p, *disk) == -1)
    return -1;
  if (p->commit != COMMIT_OFF && commit (p, *disk) == -1)
    return -1;
  if ((p->flatten || p->rebase.name) && rebase (p, disk) == -1)
    return -1;
  return e->nr_bitmaps == 0 ? 0
    : bitmapedit_disk (*disk, e->bitmaps, e->nr_bitmaps, p->bitmap_from);
}

/* Writes info=, if it was given. */
static int
describe (struct params *p)
{
  return p->info.path ? inforeport_write (&p->info, &p->options) : 0;
}

/* Writes map=: for the snapshot of snapshot=, if that was given.  Then the snapshots of
 * IMAGE have been read. */
static int
write_map (struct params *p, struct image *image, struct layers *layers)
{
  const char *name = p->options.snapshot;
  const struct snapshot *s = name ? snapshots_find (&image->snapshots, name) : NULL;
  char text[PRINTABLE_SIZE (64)];

  if (name && s == NULL) {
    report_error ("%s: there is no snapshot \"%s\"", p->path,
                  printable (name, strnlen (name, 64), text, sizeof text));
    errno = ENOENT;
    return -1;
  }
  if (s && snapshot_check_table (p->path, &image->header, s) == -1)
    return -1;
  return mapreport_write (p->map, layers, s);
}

/* Writes map=, if it was given. */
static int
map (struct params *p, struct disk *disk)
{
  const struct view *view = disk_inside (disk).view;

  return p->map ? write_map (p, view->image, view->layers) : 0;
}

/* Guest data is not read, so nothing has to be unlocked. */
static struct disk_options
options_without_data (const struct params *p)
{
  struct disk_options options = p->options;

  options.secret.unneeded = true;
  return options;
}

static bool
needs_disk (const struct params *p)
{
  return p->serve || p->raw_copy || p->compare.report;
}

static int
use (struct params *p, struct disk *disk)
{
  if (map (p, disk) == -1 || (p->raw_copy && raw_copy (p, disk) == -1) ||
      (p->compare.report && compare (p, disk) == -1))
    return -1;
  disk_end_ahead (disk);
  return 0;
}

/* Can all files below the image be opened?  Writes map=, if it was given. */
static int
map_only (struct params *p, struct image *image)
{
  const struct disk_options options = options_without_data (p);
  struct layers *layers = disk_open_layers (&options, image);
  const int r = layers == NULL ? -1 : p->map ? write_map (p, image, layers) : 0;

  layers_free (layers);
  return r;
}

/* The same for an image that was not changed. */
static int
open_and_map (struct params *p)
{
  const struct disk_options options = options_without_data (p);
  struct image *image = disk_open_image (&options);
  int r = -1;

  if (image == NULL)
    return -1;
  if (image_load (image) == 0 &&
      (p->options.snapshot == NULL || image_read_snapshots (image) == 0))
    r = map_only (p, image);
  image_close (image);
  return r;
}

/* Do the changes need the layers below the image?  (Some are for images whose backing
 * file is missing.) */
static bool
needs_chain (const struct params *p)
{
  for (unsigned i = 0; i < p->edit.nr_edits; i++)
    if (p->edit.edits[i].kind == EDIT_RESIZE)
      return true;
  return p->options.backing == BACKING_PATH || p->commit != COMMIT_OFF || p->flatten ||
    (p->rebase.name ? !p->rebase.unsafe : needs_disk (p));
}

/* Opens the disk, and changes it; in the end it is a reader of the image. */
static int
change_and_open (struct params *p, struct disk **disk)
{
  struct disk_options options = p->options;

  if (!needs_chain (p))
    options.backing = BACKING_IGNORE;
  if (disk_open (&options, disk) == -1 || change (p, disk) == -1)
    return -1;
  if (p->serve && disk_check (*disk) == -1)
    return -1;
  disk_unlock (*disk);
  if (disk_get_options (*disk)->backing == BACKING_IGNORE && (needs_disk (p) || p->map) &&
      reopen (p, disk, p->options.backing) == -1)
    return -1;
  /* The reports may need the only connection that a server admits. */
  disk_hang_up (*disk);
  return describe (p) == -1 ? -1 : use (p, *disk);
}

static int
open_unchanged (struct params *p, struct disk **disk)
{
  if (describe (p) == -1)
    return -1;
  if (!needs_disk (p))
    return p->map || p->check.mode != CHECK_OFF ? open_and_map (p) : 0;
  return disk_open (&p->options, disk) == -1 ? -1 : use (p, *disk);
}

/* Can the reports be written?  Known before anything is done. */
static int
check_reports (const struct params *p)
{
  if ((p->info.path && inforeport_check (&p->info) == -1) ||
      (p->raw_copy && rawcopy_check (p->raw_copy) == -1) ||
      (p->compare.report && compare_check (&p->compare) == -1))
    return -1;
  return p->map ? mapreport_check (p->map) : 0;
}

int
prepare_disk (struct params *p, struct disk **disk)
{
  struct check *check = NULL;
  int r = check_reports (p) == -1 ? -1 : createparams_run (&p->create, &p->options);

  if (r == 0 && p->check.mode != CHECK_OFF)
    r = check_before (p, &check);
  /* Changes need exclusive access to the image, so the check ends first. */
  if (check && has_changes (p)) {
    r = finish_check (check, true);
    check_free (check);
    check = NULL;
  }
  if (r == 0)
    r = has_changes (p) ? change_and_open (p, disk) : open_unchanged (p, disk);
  if (check && finish_check (check, r == 0) == -1)
    r = -1;
  check_free (check);           /* the disk has its own locks now */
  params_forget_passphrases (p);
  if (r == 0 && !p->serve) {
    r = disk_close (*disk);
    *disk = NULL;
  }
  if (r == -1 || !p->serve)
    return r;
  if (disk_why_readonly (*disk))
    report_debug ("%s: served read-only: %s", p->path, disk_why_readonly (*disk));
  report_debug ("%s: %s", p->path, disk_description (*disk));
  return check_export (*disk);
}
