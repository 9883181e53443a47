/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Which new image does the user want to create?
 *
 * The parameters for creation (params.c), most of which are named after options of
 * qemu-img create -o, become the options of create.c.
 *
 * The image is created in .get_ready.  At that time errors in parameters have been
 * found, as far as this is possible without an image, and errors and progress still
 * reach the user's terminal.  If the server cannot start for another reason, the image
 * is removed again.
 *
 * Locks: none; there are no threads yet.
 */

#include <config.h>

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <sys/stat.h>

#define NBDKIT_API_VERSION 2
#include <nbdkit-plugin.h>

#include "util/report.h"
#include "change/newdevice.h"
#include "plugin/createparams.h"
#include "plugin/progress.h"

void
createparams_complete (struct createparams *p, const char *path,
                       const struct disk_options *disk)
{
  struct create_options *const o = &p->options;

  if (!p->wanted)
    return;
  o->path = path;
  o->image.backing_file = p->backing_file;
  o->image.backing_format = disk->backing_format;
  if (p->data_file)
    o->image.data_file = create_data_name (p->data_file, o->data_path, path);
  o->file.lock = disk->lock;
  o->file.cache = disk->cache;
  o->file.hooks = disk->hooks;
  o->file.link = &disk->link;
  o->rules = disk->rules;
}

/* --- creating the image --- */

/* An interruption by the user counts as an error: the image is removed again. */
static int
show_progress (void *opaque, uint64_t done, uint64_t total)
{
  if (progress_step (opaque, done, total, done))
    return 0;
  return report_refusal (EINTR, "interrupted while creating the image");
}

/* On a device that may have to grow: how large it must be in the end. */
static void
tell_most (const struct createparams *p)
{
  uint64_t most, size;

  if (!created_may_outgrow (p->created, &most, &size))
    return;
  fprintf (stderr, "qcow2: %s: the image can need up to %" PRIu64 " bytes; the device "
           "has %" PRIu64 "\n", p->options.path, most, size);
}

/* newfile.c refuses it too, but does not know the parameter. */
static int
check_absent (const char *path)
{
  struct stat st;

  if (newdevice_is (path) || lstat (path, &st) == -1)
    return 0;
  return report_refusal (EEXIST, "%s: cannot create: the file exists already: omit "
                         "create= to serve it", path);
}

int
createparams_run (struct createparams *p, const struct disk_options *disk)
{
  struct progress progress;
  int r;

  if (!p->wanted)
    return 0;
  if (check_absent (p->options.path) == -1)
    return -1;
  progress_begin (&progress, "create");
  p->options.secret = disk->secret;
  p->options.progress = show_progress;
  p->options.opaque = &progress;
  r = create_image (&p->options, &p->created);
  p->options.secret = (struct image_secret) { .passphrase = NULL };
  progress_end (&progress);
  if (r == 0)
    tell_most (p);
  return r;
}

void
createparams_settle (struct createparams *p, bool served)
{
  if (served)
    created_keep (p->created);
  else
    created_withdraw (p->created);
  p->created = NULL;
}
