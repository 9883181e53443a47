/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What is done to an image before it is served, and in which order?
 *
 * The image is created (create=) and checked (check=), its snapshots and its size are
 * changed, it is flattened, and its bitmaps are changed.  The image stays open and locked
 * from the first change to the last.  Each change is complete and durable, and the next
 * one reads the file anew, so a crash between two changes leaves a valid image.
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
#include "util/report.h"
#include "check/check.h"
#include "disk/export.h"
#include "change/bitmapedit.h"
#include "change/edit.h"
#include "change/rebase.h"
#include "plugin/prepare.h"
#include "plugin/progress.h"

/* Afterwards a backing file that a parameter named in place of the old one is no longer
 * used either. */
static int
flatten (struct params *p, struct disk *disk)
{
  const struct rebase to = { .name = "" };
  struct progress progress;
  const struct chunks_watch watch = {
    progress_step, &progress, p->create.wanted
  };
  uint64_t copied;
  int r;

  progress_begin (&progress, "flatten");
  r = rebase_disk (disk, &p->options.secret, &to, &watch, &copied);
  progress_end (&progress);
  if (r == -1)
    return -1;
  report_event (EVENT_CHANGED, p->path, "flattened, %" PRIu64 " bytes were copied", copied);
  p->options.backing = BACKING_FOLLOW;
  p->options.backing_format = NULL;
  return 0;
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
has_changes (const struct params *p)
{
  return p->edit.nr_edits > 0 || p->flatten || p->edit.nr_bitmaps > 0;
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

/* Opens the disk, and changes it; in the end it is a reader of the image. */
static int
change_and_open (struct params *p, struct disk **disk)
{
  const struct editparams *e = &p->edit;

  if (disk_open (&p->options, disk) == -1 || edit (p, *disk) == -1 ||
      (p->flatten && flatten (p, *disk) == -1) ||
      (e->nr_bitmaps > 0 &&
       bitmapedit_disk (*disk, e->bitmaps, e->nr_bitmaps, NULL) == -1) ||
      disk_check (*disk) == -1)
    return -1;
  disk_unlock (*disk);
  disk_end_ahead (*disk);
  return 0;
}

int
prepare_disk (struct params *p, struct disk **disk)
{
  struct check *check = NULL;
  int r = createparams_run (&p->create, &p->options);

  if (r == 0 && p->check.mode != CHECK_OFF)
    r = check_before (p, &check);
  /* Changes need exclusive access to the image, so the check ends first. */
  if (check && has_changes (p)) {
    r = finish_check (check, true);
    check_free (check);
    check = NULL;
  }
  if (r == 0)
    r = has_changes (p) ? change_and_open (p, disk) : disk_open (&p->options, disk);
  if (check && finish_check (check, r == 0) == -1)
    r = -1;
  check_free (check);           /* the disk has its own locks now */
  params_forget_passphrases (p);
  if (r == -1)
    return r;
  if (disk_why_readonly (*disk))
    report_debug ("%s: served read-only: %s", p->path, disk_why_readonly (*disk));
  report_debug ("%s: %s", p->path, disk_description (*disk));
  return check_export (*disk);
}
