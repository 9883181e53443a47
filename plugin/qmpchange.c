/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Which commands change a disk that is served, beside transactions and jobs?
 *
 * A single action is a plan (qmpplan.c).  Deleting a snapshot, another size and another
 * name of the backing file are changes of their own.  An answer means that the change is
 * durable.
 *
 * Locks: none of its own; see qmptarget.c.
 */

#include <config.h>

#include <stdlib.h>
#include <string.h>

#include "util/cleanup.h"
#include "util/report.h"
#include "format/format.h"
#include "image/imageinfo.h"
#include "change/relink.h"
#include "plugin/qmpchange.h"
#include "plugin/qmpoverlay.h"

json_t *
qmpchange_run (const struct qmp_host *host, const struct qmp_action *a,
               const json_t *arguments, struct qmp_error *e)
{
  struct qmpplan p = { .host = host, .e = e };
  int r = a->act == ACT_BITMAP_MERGE
    ? qmpplan_check_merged (json_object_get (arguments, "bitmaps"), "", e) : 0;

  if (r == 0)
    r = qmpplan_action (&p, a, arguments) == -1 ? -1 : qmpplan_carry_out (&p);
  qmpplan_free (&p);
  return r == -1 ? NULL : json_object ();
}

/* --- external snapshots --- */

static json_t *
make (struct qmp_overlay *overlay, struct qmp_error *e)
{
  const int r = overlay ? qmpoverlay_make (overlay, e) : -1;

  qmpoverlay_end (overlay);
  return r == -1 ? NULL : json_object ();
}

json_t *
qmpchange_snapshot (const struct qmp_host *host, const json_t *arguments,
                    struct qmp_error *e)
{
  return make (qmpoverlay_plan_node (host, arguments, e), e);
}

json_t *
qmpchange_snapshot_file (const struct qmp_host *host, const json_t *arguments,
                         struct qmp_error *e)
{
  return make (qmpoverlay_plan_file (host, arguments, e), e);
}

/* --- other commands --- */

/* The snapshot with this id (NULL: any) and name (NULL: any). */
static const struct snapshot *
find_snapshot (struct disk *disk, const char *id, const char *name)
{
  const struct snapshots *all = &disk_inside (disk).view->image->snapshots;

  for (uint32_t i = 0; i < all->n; i++)
    if ((id == NULL || strcmp (all->list[i].id, id) == 0) &&
        (name == NULL || strcmp (all->list[i].name, name) == 0))
      return &all->list[i];
  return NULL;
}

/* A text that means this snapshot and no other one for the core, which takes names before
 * ids; NULL: there is none. */
static const char *
unique_name (struct disk *disk, const struct snapshot *s)
{
  const struct snapshots *all = &disk_inside (disk).view->image->snapshots;

  return snapshots_find (all, s->name) == s ? s->name
    : snapshots_find (all, s->id) == s ? s->id : NULL;
}

static json_t *
delete_snapshot (const struct qmpplan *p, const char *device, const char *id,
                 const char *name)
{
  struct disk *disk = p->target.disk;
  const struct snapshot *s = find_snapshot (disk, id, name);
  CLEANUP_FREE char *unique = NULL;
  json_t *info;

  if (s == NULL) {
    qmp_refuse (p->e, "Snapshot with id '%s' and name '%s' does not exist on device '%s'",
                id ? id : "null", name ? name : "null", device);
    return NULL;
  }
  if (unique_name (disk, s) == NULL) {
    qmp_refuse (p->e, "Snapshot with id '%s' and name '%s': other snapshots have the "
                "same names", s->id, s->name);
    return NULL;
  }
  unique = strdup (unique_name (disk, s));
  info = imageinfo_snapshot (s);
  if (info && unique &&
      qmpplan_change_snapshot (disk, EDIT_SNAPSHOT_DELETE, unique, p->e) == 0)
    return info;
  json_decref (info);
  return NULL;
}

json_t *
qmpchange_delete_snapshot (const struct qmp_host *host, const json_t *arguments,
                           struct qmp_error *e)
{
  const char *device = qmpargs_text (arguments, "device");
  const char *id = qmpargs_text (arguments, "id");
  const char *name = qmpargs_text (arguments, "name");
  struct qmpplan p = { .host = host, .e = e };
  json_t *info = NULL;

  if (qmpplan_find (&p, device, NAME_DEVICE) == -1 || qmpplan_check_idle (&p, device) == -1)
    ;
  else if (id || name)
    info = delete_snapshot (&p, device, id, name);
  else
    qmp_refuse (e, "Name or id must be provided");
  qmpplan_free (&p);
  return info;
}

static int
resize (const struct qmpplan *p, json_int_t size)
{
  const struct edit_options options = {
    .shrink = true, .preallocation = PREALLOCATION_OFF,
  };
  const struct edit edit = { .kind = EDIT_RESIZE, .size = size };

  if (size < 0)
    return qmp_refuse (p->e, "Parameter 'size' expects a >0 size");
  report_watch ();
  return qmpplan_end (p->target.disk, edit_disk (p->target.disk, &options, &edit, 1), p->e);
}

json_t *
qmpchange_resize (const struct qmp_host *host, const json_t *arguments,
                  struct qmp_error *e)
{
  const char *device = qmpargs_text (arguments, "device");
  const char *node = qmpargs_text (arguments, "node-name");
  struct qmpplan p = { .host = host, .e = e };
  int r = -1;

  if (device == NULL && node == NULL)
    qmp_refuse (e, "Cannot find device='' nor node-name=''");
  else if (qmpplan_find (&p, node ? node : device,
                        node ? NAME_IMAGE : NAME_ONLY_DEVICE) == 0 &&
           qmpplan_check_idle (&p, node ? node : device) == 0)
    r = resize (&p, json_integer_value (json_object_get (arguments, "size")));
  qmpplan_free (&p);
  return r == -1 ? NULL : json_object ();
}

static int
change_backing_file (const struct qmpplan *p, const char *name)
{
  if (qmptarget_count (p->target.disk) == 1)
    return qmp_refuse (p->e, "not allowing backing file change on an image without a "
                       "backing file");
  if (strlen (name) > QCOW2_MAX_BACKING_NAME)
    return qmp_refuse (p->e, "Could not change backing file to '%s': Invalid argument",
                       name);
  report_watch ();
  return qmpplan_end (p->target.disk, relink_disk (p->target.disk, name), p->e);
}

json_t *
qmpchange_backing_file (const struct qmp_host *host, const json_t *arguments,
                        struct qmp_error *e)
{
  struct qmpplan p = { .host = host, .e = e };
  int r = -1;

  if (qmpplan_find (&p, qmpargs_text (arguments, "device"), NAME_DEVICE) == 0 &&
      qmpplan_find (&p, qmpargs_text (arguments, "image-node-name"), NAME_IMAGE) == 0 &&
      qmpplan_check_idle (&p, qmpargs_text (arguments, "device")) == 0)
    r = change_backing_file (&p, qmpargs_text (arguments, "backing-file"));
  qmpplan_free (&p);
  return r == -1 ? NULL : json_object ();
}
