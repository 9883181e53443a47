/* SPDX-License-Identifier: BSD-3-Clause
 *
 * How does a command put a new image on top of the disk that is served?
 *
 * blockdev-snapshot-sync creates the image (mode absolute-paths), or takes one that is there
 * (mode existing).  In one thing it is more careful than QEMU: a file that is there is not
 * replaced, and has to be empty and to lie over the disk.
 *
 * blockdev-snapshot takes an image that blockdev-add has opened, for which the same is true.
 * Its node then is the top of the disk.
 *
 * Locks: none of its own; see qmptarget.c.
 */

#include <config.h>

#include <string.h>

#include "util/cleanup.h"
#include "util/report.h"
#include "change/overlay.h"
#include "plugin/qmpjobs.h"
#include "plugin/qmpnodes.h"
#include "plugin/qmpoverlay.h"

const struct qmparg qmpoverlay_arguments[] = {
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

/* NODE_NAME: of the new top; or NULL. */
static int
put_on_top (const struct qmp_host *host, struct qmp_target *t, const char *node_name,
            const struct overlay *overlay, struct qmp_error *e)
{
  CLEANUP_FREE char *name = NULL;

  name = qmptarget_new_top (host, node_name);
  if (name == NULL)
    return qmp_refuse (e, "out of memory");
  report_watch ();
  if (qmp_refuse_unless (overlay_disk (t->disk, overlay) == 0, e) == -1)
    return -1;
  qmptarget_add_top (host, name);
  name = NULL;                  /* the host owns it */
  return 0;
}

json_t *
qmpoverlay_run (const struct qmp_host *host, const json_t *arguments, struct qmp_error *e)
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
  struct qmp_target t;
  int r;

  if (check (&a, e) == -1)
    return NULL;
  if (qmptarget_find (host, name, &t, e) == -1) {
    qmp_refuse (e, "Cannot find device='%s' nor node-name='%s'", a.device ? a.device : "",
                a.node ? a.node : "");
    return NULL;
  }
  r = check_names (host, &t, &a, e);
  if (r == 0)
    r = put_on_top (host, &t, a.name, &overlay, e);
  qmptarget_leave (&t);
  return r == -1 ? NULL : json_object ();
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

static int
use_node (const struct qmp_host *host, struct qmp_target *t, const char *node,
          const char *name, struct qmp_error *e)
{
  const struct arguments a = { .device = node };
  struct qmp_node *n = find_overlay (host, name, e);
  struct overlay overlay = { .create = false };

  if (n == NULL || check_names (host, t, &a, e) == -1)
    return -1;
  overlay.path = n->path;
  overlay.image = n->image;
  if (put_on_top (host, t, name, &overlay, e) == -1)
    return -1;
  if (host->dir)                /* its nodes have numbers */
    qmpnodes_remove (host->added, n);
  else
    qmpnodes_hand_over (host->added, n);
  return 0;
}

json_t *
qmpoverlay_use_node (const struct qmp_host *host, const json_t *arguments,
                     struct qmp_error *e)
{
  const char *node = qmpargs_text (arguments, "node");
  struct qmp_target t;
  int r;

  if (qmptarget_need (host, node, &t, e) == -1)
    return NULL;
  r = use_node (host, &t, node, qmpargs_text (arguments, "overlay"), e);
  qmptarget_leave (&t);
  return r == -1 ? NULL : json_object ();
}
