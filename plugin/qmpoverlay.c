/* SPDX-License-Identifier: BSD-3-Clause
 *
 * How does a command put a new image on top of the disk that is served?
 *
 * blockdev-snapshot-sync creates the image (mode absolute-paths), or takes one that is
 * there (mode existing).  In one thing it is more careful than QEMU: a file that is there
 * is not replaced, and has to be empty and to lie over the disk.
 *
 * blockdev-snapshot takes an image that blockdev-add has opened, for which the same is
 * true.  Its node then is the top of the disk.
 *
 * Both are planned first, made, and may be taken back, as actions of a transaction
 * (qmpchange.c).  An image of a directory stays open from then on, because its name means
 * the new image, which no file says.  (Its nodes have numbers, so the name of the new one
 * counts only within the transaction.)
 *
 * Locks: none of its own; see qmptarget.c.
 */

#include <config.h>

#include <stdlib.h>
#include <string.h>

#include "util/cleanup.h"
#include "util/report.h"
#include "change/overlay.h"
#include "plugin/qmpjobs.h"
#include "plugin/qmpnodes.h"
#include "plugin/qmpoverlay.h"

const struct qmparg qmpoverlay_of_file[] = {
  { "device", QMPARG_STRING, true },
  { "node-name", QMPARG_STRING, true },
  { "snapshot-file", QMPARG_STRING, false },
  { "snapshot-node-name", QMPARG_STRING, true },
  { "format", QMPARG_STRING, true },
  { "mode", QMPARG_STRING, true },
  { .key = NULL }
};

struct arguments {
  const char *device, *node, *file, *name, *format, *mode;
};

/* What does not depend on the disk. */
static int
check (const struct arguments *a, struct qmp_error *e)
{
  if (a->mode && strcmp (a->mode, "existing") != 0 && strcmp (a->mode, "absolute-paths") != 0)
    return qmp_refuse (e, "Parameter 'mode' does not accept value '%s'", a->mode);
  if (a->format && strcmp (a->format, "qcow2") != 0)
    return qmp_refuse (e, "The format '%s' is not possible: the new image is a qcow2 image",
                       a->format);
  return qmpargs_check_path (a->file, "", "snapshot-file", e);
}

/* QEMU's checks of names. */
static int
check_names (const struct qmp_host *host, const struct qmp_target *t,
             const struct arguments *a, struct qmp_error *e)
{
  const char *why = disk_why_fixed (t->disk);

  if (t->layer > 0)
    return qmp_refuse (e, "Node '%s' is not the top of its disk", a->node);
  if (jobs_check_idle (host->jobs, t, a->node ? a->node : a->device, e) == -1)
    return -1;
  if (why)
    return qmp_refuse (e, "Node '%s' is read-only: %s", a->node ? a->node : a->device, why);
  if (a->node && a->name == NULL)
    return qmp_refuse (e, "New overlay node-name missing");
  if (a->name && qmptarget_check_name (a->name, e) == -1)
    return -1;
  if (a->name && qmptarget_is_used (host, a->name))
    return qmp_refuse (e, "New overlay node-name already in use");
  return 0;
}

/* --- plans --- */

struct qmp_overlay {
  const struct qmp_host *host;
  struct qmp_target target;
  const char *device;           /* as the command calls the disk */
  const char *name;             /* of the new node, if the command says so; or NULL */
  char *node_name;              /* for the host; NULL: it has a directory */
  struct qmp_node *node;        /* NULL, or: the image is its */
  struct overlaying *steps;
  bool made;
};

/* The plan takes over the target.  NULL: refused. */
static struct qmp_overlay *
new_plan (const struct qmp_host *host, struct qmp_target *t, const struct arguments *a,
          const struct overlay *overlay, struct qmp_error *e)
{
  struct qmp_overlay *o = calloc (1, sizeof *o);

  if (o)
    *o = (struct qmp_overlay) {
      .host = host, .target = *t, .device = a->node ? a->node : a->device,
      .name = a->name,
      .node_name = host->dir ? NULL : qmptarget_new_top (host, a->name),
    };
  if (o == NULL || (o->node_name == NULL && host->dir == NULL)) {
    free (o);
    qmp_refuse (e, "out of memory");
    return NULL;
  }
  *t = (struct qmp_target) { .disk = NULL };
  report_watch ();
  o->steps = overlay_prepare (o->target.disk, overlay);
  if (qmp_refuse_unless (o->steps, e) == 0)
    return o;
  qmpoverlay_end (o);
  return NULL;
}

struct disk *
qmpoverlay_disk (const struct qmp_overlay *o)
{
  return o->target.disk;
}

const char *
qmpoverlay_name (const struct qmp_overlay *o)
{
  return o->name;
}

const char *
qmpoverlay_device (const struct qmp_overlay *o)
{
  return o->device;
}

int
qmpoverlay_check (struct qmp_overlay *o, struct qmp_error *e)
{
  report_watch ();
  return qmp_refuse_unless (overlay_check (o->steps) == 0, e);
}

const struct image *
qmpoverlay_top (const struct qmp_overlay *o)
{
  return overlay_top (o->steps);
}

int
qmpoverlay_make (struct qmp_overlay *o, struct qmp_error *e)
{
  report_watch ();
  o->made = overlay_make (o->steps) == 0;
  return qmp_refuse_unless (o->made, e);
}

int
qmpoverlay_take_back (struct qmp_overlay *o)
{
  o->made = overlay_take_back (o->steps) == -1;
  if (o->made)
    return -1;
  if (o->node) {                /* it may have got bitmaps, and is locked as before */
    qmpnodes_read_again (o->node, o->host->options);
    image_lock (o->node->image, IMAGE_WRITER);
  }
  return 0;
}

bool
qmpoverlay_is_made (const struct qmp_overlay *o)
{
  return o->made;
}

/* The host knows the new top. */
static void
tell_host (struct qmp_overlay *o)
{
  struct qmp_added *const added = o->host->added;

  report_event (EVENT_CHANGED, disk_get_options (o->target.disk)->path,
                "it is the image of the disk now");
  if (o->host->dir) {
    dir_keep (o->target.dir, o->target.image);
    if (o->node)
      qmpnodes_remove (added, o->node);
    return;
  }
  qmptarget_add_top (o->host, o->node_name);
  o->node_name = NULL;          /* the host owns it */
  if (o->node)
    qmpnodes_hand_over (added, o->node);
}

void
qmpoverlay_end (struct qmp_overlay *o)
{
  if (o == NULL)
    return;
  overlay_end (o->steps, o->made);
  if (o->node)
    o->node->users--;
  if (o->made)
    tell_host (o);
  qmptarget_leave (&o->target);
  free (o->node_name);
  free (o);
}

struct qmp_overlay *
qmpoverlay_plan_file (const struct qmp_host *host, const json_t *arguments,
                      struct qmp_error *e)
{
  const struct arguments a = {
    .device = qmpargs_text (arguments, "device"),
    .node = qmpargs_text (arguments, "node-name"),
    .file = qmpargs_text (arguments, "snapshot-file"),
    .name = qmpargs_text (arguments, "snapshot-node-name"),
    .format = qmpargs_text (arguments, "format"), .mode = qmpargs_text (arguments, "mode"),
  };
  const struct overlay overlay = {
    .path = a.file, .create = a.mode == NULL || strcmp (a.mode, "existing") != 0,
  };
  const char *name = a.node ? a.node : a.device ? a.device : "";
  struct qmp_overlay *o = NULL;
  struct qmp_target t;

  if (check (&a, e) == -1)
    return NULL;
  if (qmptarget_find (host, name, &t, e) == -1) {
    qmp_refuse (e, "Cannot find device='%s' nor node-name='%s'", a.device ? a.device : "",
                a.node ? a.node : "");
    return NULL;
  }
  if (check_names (host, &t, &a, e) == 0)
    o = new_plan (host, &t, &a, &overlay, e);
  qmptarget_leave (&t);
  return o;
}

/* --- nodes that were added --- */

const struct qmparg qmpoverlay_of_node[] = {
  { "node", QMPARG_STRING, false }, { "overlay", QMPARG_STRING, false }, { .key = NULL }
};

/* Finds the new top.  NULL: refused. */
static struct qmp_node *
find_overlay (const struct qmp_host *host, const char *name, struct qmp_error *e)
{
  struct qmp_node *n = qmpnodes_find (host->added, name);
  struct qmp_target t;

  if (n == NULL && qmptarget_need (host, name, &t, e) == -1)
    return NULL;
  if (n == NULL)
    qmptarget_leave (&t);
  if (n == NULL || n->users > 0)
    qmp_refuse (e, "The overlay is already in use");
  else if (n->left)
    qmp_refuse (e, "Node '%s' has left its disk: remove it, and add it again", name);
  else if (n->image == NULL)
    qmp_refuse (e, "The overlay does not support backing images");
  else if (n->backing != BACKING_IGNORE && n->image->header.backing_file)
    qmp_refuse (e, "The overlay already has a backing image");
  else if (n->readonly)
    qmp_refuse (e, "Block node is read-only");
  else
    return n;
  return NULL;
}

struct qmp_overlay *
qmpoverlay_plan_node (const struct qmp_host *host, const json_t *arguments,
                      struct qmp_error *e)
{
  const struct arguments a = { .device = qmpargs_text (arguments, "node") };
  struct arguments named = a;
  struct overlay overlay = { .create = false };
  struct qmp_overlay *o = NULL;
  struct qmp_node *n;
  struct qmp_target t;

  named.name = qmpargs_text (arguments, "overlay");
  if (qmptarget_need (host, a.device, &t, e) == -1)
    return NULL;
  n = find_overlay (host, named.name, e);
  if (n && check_names (host, &t, &a, e) == 0) {
    overlay.path = n->path;
    overlay.image = n->image;
    o = new_plan (host, &t, &named, &overlay, e);
  }
  if (o) {
    o->node = n;
    n->users++;
  }
  qmptarget_leave (&t);
  return o;
}
