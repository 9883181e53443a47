/* SPDX-License-Identifier: BSD-3-Clause
 *
 * How does a command put a new image on top of the disk that is served?
 *
 * blockdev-snapshot-sync creates the image (mode absolute-paths), or takes one that is there
 * (mode existing).  In one thing it is more careful than QEMU: a file that is there is not
 * replaced, and has to be empty and to lie over the disk.
 *
 * Locks: none of its own; see qmptarget.c.
 */

#include <config.h>

#include <ctype.h>
#include <errno.h>
#include <string.h>

#include "util/cleanup.h"
#include "util/report.h"
#include "change/overlay.h"
#include "plugin/qmpjobs.h"
#include "plugin/qmpoverlay.h"

#define MAX_NODE_NAME 31

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

/* Would QEMU accept it for a new node? */
static bool
is_node_name (const char *name)
{
  if (!isalpha ((unsigned char) name[0]) || strlen (name) > MAX_NODE_NAME)
    return false;
  while (isalnum ((unsigned char) *name) || (*name && strchr ("-._", *name)))
    name++;
  return *name == '\0';
}

/* What does not depend on the disk. */
static int
check (const struct arguments *a, struct qmp_error *e)
{
  if (a->mode && strcmp (a->mode, "existing") != 0 && strcmp (a->mode, "absolute-paths") != 0)
    return qmp_refuse (e, "Parameter 'mode' does not accept value '%s'", a->mode);
  if (a->format && strcmp (a->format, "qcow2") != 0)
    return qmp_refuse (e, "The format '%s' is not possible: the new image is a qcow2 image",
                       a->format);
  if (a->file[0] != '/')
    return qmp_refuse (e, "Parameter 'snapshot-file' expects an absolute path");
  /* It may become the name of a backing file, which has none. */
  for (const char *p = a->file; *p; p++)
    if (iscntrl ((unsigned char) *p))
      return qmp_refuse (e, "Parameter 'snapshot-file' contains a control character");
  return 0;
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
  if (a->name && !is_node_name (a->name))
    return qmp_refuse (e, "Invalid node-name: '%s'", a->name);
  if (a->name && qmptarget_is_used (host, t->disk, a->name))
    return qmp_refuse (e, "New overlay node-name already in use");
  return 0;
}

static int
put_on_top (const struct qmp_host *host, struct qmp_target *t, const struct arguments *a,
            struct qmp_error *e)
{
  const struct overlay overlay = {
    .path = a->file, .create = a->mode == NULL || strcmp (a->mode, "existing") != 0,
  };
  CLEANUP_FREE char *name = NULL, *why = NULL;
  int r;

  if (check_names (host, t, a, e) == -1)
    return -1;
  name = qmptarget_new_top (host, t->disk, a->name);
  if (name == NULL)
    return qmp_refuse (e, "out of memory");
  report_watch ();
  r = overlay_disk (t->disk, &overlay);
  why = report_first ();
  if (r == -1)
    return qmp_refuse (e, "%s", why ? why : strerror (errno));
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
  r = put_on_top (host, &t, &a, e);
  qmptarget_leave (&t);
  return r == -1 ? NULL : json_object ();
}
