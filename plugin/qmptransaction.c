/* SPDX-License-Identifier: BSD-3-Clause
 *
 * How do changes of several disks take place at one instant?
 *
 * The actions of a transaction become a plan for each disk (qmpplan.c).  All plans are
 * checked, with all locks taken, and then the gates of all disks are closed before the
 * first one is made.  What fails then, after others were made, is told: only a full
 * filesystem or a broken one can do that.
 *
 * A new image on top is a plan of its own, with the bitmaps that this image is to have,
 * and comes after those for the images that are there.  Its bitmaps are made when all new
 * images are on top.  As long as the gates are closed, they can be taken back: so all new
 * images of a transaction are put on top, or none.  The name of the device means the new
 * image in the actions after that one, as in QEMU; the name of its node does in all of
 * them, as if it was there already.
 *
 * Locks: none of its own; see qmptarget.c.
 */

#include <config.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "util/cleanup.h"
#include "util/report.h"
#include "plugin/qmpnodes.h"
#include "plugin/qmpoverlay.h"
#include "plugin/qmpplan.h"
#include "plugin/qmptransaction.h"

/* --- what actions there are --- */

/* External snapshots, which are plans of their own. */
static const struct external {
  const char *name;
  const struct qmparg *arguments;
  struct qmp_overlay *(*plan) (const struct qmp_host *, const json_t *arguments,
                               struct qmp_error *);
} externals[] = {
  { "blockdev-snapshot", qmpoverlay_of_node, qmpoverlay_plan_node },
  { "blockdev-snapshot-sync", qmpoverlay_of_file, qmpoverlay_plan_file },
  { .name = NULL }
};

static const struct external *
find_external (const char *name)
{
  const struct external *x = externals;

  while (x->name && strcmp (x->name, name) != 0)
    x++;
  return x->name ? x : NULL;
}

struct plans {
  const struct qmp_host *host;
  struct qmp_error *e;
  struct qmpplan *list;
  size_t n;
};

static void
plans_free (struct plans *all)
{
  for (size_t i = 0; i < all->n; i++)
    qmpplan_free (&all->list[i]);
  free (all->list);
}

/* NULL: refused. */
static struct qmpplan *
add_plan (struct plans *all, const char *name)
{
  struct qmpplan *list = reallocarray (all->list, all->n + 1, sizeof *list);

  if (list == NULL) {
    qmp_refuse (all->e, "out of memory");
    return NULL;
  }
  all->list = list;
  list[all->n] = (struct qmpplan) { .host = all->host, .e = all->e, .name = name };
  return &list[all->n++];
}

/* --- new images on top --- */

static struct qmpplan *
find_overlay (const struct plans *all, const struct disk *disk)
{
  for (size_t i = 0; i < all->n; i++)
    if (all->list[i].overlay && all->list[i].target.disk == disk)
      return &all->list[i];
  return NULL;
}

static int
check_new_name (const struct plans *all, const char *name)
{
  for (size_t i = 0; name && i < all->n; i++) {
    const char *other = all->list[i].overlay ? qmpoverlay_name (all->list[i].overlay) : NULL;

    if (other && strcmp (other, name) == 0)
      return qmp_refuse (all->e, "New overlay node-name already in use");
  }
  return 0;
}

/* Plans that ACTION, unless it is planned already. */
static int
plan_external (struct plans *all, const json_t *action)
{
  const struct external *x = find_external (qmpargs_text (action, "type"));
  struct qmp_overlay *overlay;
  struct qmpplan *p;

  for (size_t i = 0; i < all->n; i++)
    if (all->list[i].action == action)
      return 0;
  overlay = x->plan (all->host, json_object_get (action, "data"), all->e);
  if (overlay == NULL)
    return -1;
  if (check_new_name (all, qmpoverlay_name (overlay)) == -1) {
    qmpoverlay_end (overlay);
    return -1;
  }
  p = find_overlay (all, qmpoverlay_disk (overlay))
    ? NULL : add_plan (all, qmpoverlay_device (overlay));
  if (p == NULL) {
    qmpoverlay_end (overlay);
    return qmp_refuse (all->e, "A transaction takes one snapshot of a disk");
  }
  p->action = action;
  p->overlay = overlay;
  p->target.disk = qmpoverlay_disk (overlay);   /* (The overlay holds it.) */
  return 0;
}

/* If NAME is that of a node that one of the actions puts on top, plans that one. */
static int
plan_ahead (struct plans *all, const json_t *actions, const char *name)
{
  const struct qmp_node *added = qmpnodes_find (all->host->added, name);
  const json_t *action;
  size_t i;

  if (added && !added->served)
    json_array_foreach (actions, i, action) {
      const json_t *data = json_object_get (action, "data");
      const char *overlay = qmpargs_text (data, "overlay");

      if (overlay && strcmp (overlay, name) == 0)
        return plan_external (all, action);
    }
  return 0;
}

/* NULL: there is none of that name. */
static const struct disk *
disk_of (const struct plans *all, const char *name)
{
  struct qmp_error ignored = { .desc = NULL };
  struct qmp_target t;
  const struct disk *disk = NULL;

  if (qmptarget_find (all->host, name, &t, &ignored) == 0)
    disk = t.disk;
  qmptarget_leave (&t);
  qmp_error_free (&ignored);
  return disk;
}

/* The plan for the new image that NAME means in this transaction; or NULL. */
static struct qmpplan *
plan_above (const struct plans *all, const char *name)
{
  const bool device = all->host->dir ? strchr (name, '/') == NULL
    : strcmp (name, QMPTARGET_DEVICE) == 0;

  for (size_t i = 0; i < all->n; i++) {
    struct qmpplan *p = &all->list[i];
    const char *new = p->overlay ? qmpoverlay_name (p->overlay) : NULL;

    if (new && strcmp (new, name) == 0)
      return p;
  }
  if (device)
    return find_overlay (all, disk_of (all, name));
  return NULL;
}

/* --- all of them --- */

/* The plan for the disk that NAME means, or a new one.  (Who is not there gets one, which
 * refuses the name.)  NULL: refused. */
static struct qmpplan *
plan_for (struct plans *all, const char *name)
{
  struct qmp_target t = { .disk = NULL };
  struct qmpplan *p = name ? plan_above (all, name) : NULL;
  size_t i = 0;

  if (p)
    return p;
  if (name && qmptarget_find (all->host, name, &t, all->e) == 0)
    while (i < all->n && (all->list[i].target.disk != t.disk || all->list[i].overlay))
      i++;
  else
    i = all->n;
  p = i < all->n ? &all->list[i] : add_plan (all, name);
  if (p && i == all->n - 1 && p->target.disk == NULL)
    p->target = t;
  else
    qmptarget_leave (&t);
  return p;
}

static int
plan_all (struct plans *all, const json_t *actions)
{
  const json_t *action;
  size_t i;

  json_array_foreach (actions, i, action) {
    const struct qmp_action *a = qmpplan_find_action (qmpargs_text (action, "type"));
    const json_t *data = json_object_get (action, "data");
    const char *name = a ? qmpplan_target (a, data) : NULL;
    struct qmpplan *p;

    if (a == NULL) {
      if (plan_external (all, action) == -1)
        return -1;
      continue;
    }
    if (name && plan_ahead (all, actions, name) == -1)
      return -1;
    p = plan_for (all, name);
    if (p == NULL || qmpplan_action (p, a, data) == -1)
      return -1;
  }
  return 0;
}

/* What a new image gets from bitmaps of the disk's image, which P changes before that. */
static int
check_merged_from (const struct plans *all, const struct qmpplan *p)
{
  const struct qmpplan none = { .host = p->host, .e = p->e, .target.disk = p->target.disk };
  const struct layers *layers = disk_inside (p->target.disk).view->layers;
  const struct qmpplan *below = &none;

  if (p->source == NULL || strcmp (p->source, storage_path (layers_file (layers, 0))) != 0)
    return 0;
  for (size_t i = 0; i < all->n; i++)
    if (all->list[i].overlay == NULL && all->list[i].target.disk == p->target.disk)
      below = &all->list[i];
  for (size_t i = 0; i < p->nr_bitmaps; i++)
    if (p->bitmaps[i].what == BITMAP_MERGE &&
        qmpplan_check_bitmap (below, p->bitmaps[i].merged, false) == -1)
      return -1;
  return 0;
}

/* What would make it fail, but for full filesystems and the like. */
static int
check_plan (const struct plans *all, struct qmpplan *p)
{
  struct disk *const disk = p->target.disk;
  const struct image *const top = p->overlay ? qmpoverlay_top (p->overlay) : NULL;
  const bool locked = image_role (disk_inside (disk).view->image) == IMAGE_WRITER;

  report_watch ();
  if (qmp_refuse_unless (disk_lock (disk) == 0, p->e) == -1)
    return -1;
  p->locked = !locked;
  if (p->overlay && (qmpoverlay_check (p->overlay, p->e) == -1 ||
                     check_merged_from (all, p) == -1))
    return -1;
  report_watch ();
  return qmp_refuse_unless (bitmapedit_check (disk, top, p->snapshot, p->bitmaps,
                                              p->nr_bitmaps, p->source) == 0, p->e);
}

/* -1: one is refused, and nothing has changed. */
static int
check_plans (const struct plans *all)
{
  size_t i = 0;

  while (i < all->n && check_plan (all, &all->list[i]) == 0)
    i++;
  if (i == all->n)
    return 0;
  for (size_t k = 0; k < all->n; k++)
    if (all->list[k].locked)
      disk_unlock (all->list[k].target.disk);
  return -1;
}

/* New images that were put on top are taken back, with the gates closed. */
static int
take_back (const struct plans *all)
{
  int r = 0;

  for (size_t i = all->n; i-- > 0; )
    if (all->list[i].overlay && qmpoverlay_is_made (all->list[i].overlay) &&
        qmpoverlay_take_back (all->list[i].overlay) == -1)
      r = -1;
  return r;
}

/* That of P has failed.  What was changed in images before it stays. */
static int
tell_rest (const struct plans *all, const struct qmpplan *p, unsigned done, bool taken_back)
{
  CLEANUP_FREE char *why = all->e->desc ? strdup (all->e->desc) : NULL;
  const char *const because = why ? why : "out of memory";

  if (taken_back && done == 0)
    return -1;
  qmp_error_free (all->e);
  if (!taken_back)
    return qmp_refuse (all->e, "New images stay on top of disks, but what was to be done "
                       "to '%s' failed: %s", p->name, because);
  return p->overlay
    ? qmp_refuse (all->e, "Bitmaps and internal snapshots were changed, but no new image was "
                  "put on top: %s", because)
    : qmp_refuse (all->e, "The disks before '%s' were changed, but not that one: %s",
                  p->name, because);
}

/* Those for images that are there, or for new ones.  Returns the one that has failed; or
 * NULL. */
static const struct qmpplan *
carry_out_those (const struct plans *all, bool above, unsigned *done)
{
  for (size_t i = 0; i < all->n; i++) {
    const struct qmpplan *const p = &all->list[i];

    if ((p->overlay != NULL) != above || (above && p->nr_bitmaps == 0))
      continue;
    if (qmpplan_carry_out (p) == -1)
      return p;
    ++*done;
  }
  return NULL;
}

/* The same. */
static const struct qmpplan *
put_on_top (const struct plans *all)
{
  for (size_t i = 0; i < all->n; i++)
    if (all->list[i].overlay && qmpoverlay_make (all->list[i].overlay, all->e) == -1)
      return &all->list[i];
  return NULL;
}

static int
carry_out_all (const struct plans *all)
{
  const struct qmpplan *failed;
  unsigned done = 0;
  bool taken_back = true;

  if (all->n == 1 && all->list[0].overlay == NULL)
    return qmpplan_carry_out (&all->list[0]);
  if (check_plans (all) == -1)
    return -1;
  for (size_t k = 0; k < all->n; k++)
    disk_close_gate (all->list[k].target.disk);
  failed = carry_out_those (all, false, &done);
  if (failed == NULL)
    failed = put_on_top (all);
  if (failed == NULL)
    failed = carry_out_those (all, true, &done);
  if (failed)
    taken_back = take_back (all) == 0;
  for (size_t k = 0; k < all->n; k++)
    disk_open_gate (all->list[k].target.disk);
  return failed ? tell_rest (all, failed, done, taken_back) : 0;
}

/* Checks the arguments of action I, which is an object. */
static int
check_action (const json_t *action, size_t i, struct qmp_error *e)
{
  static const struct qmparg args[] = {
    { "type", QMPARG_STRING, false }, { "data", QMPARG_OBJECT, false }, { .key = NULL }
  };
  const struct external *x;
  const struct qmp_action *a;
  const json_t *data;
  char where[64];

  if (!json_is_object (action))
    return qmp_refuse (e, "Invalid parameter type for 'actions[%zu]', expected: object",
                       i);
  snprintf (where, sizeof where, "actions[%zu].", i);
  if (qmpargs_check (args, action, where, e) == -1)
    return -1;
  a = qmpplan_find_action (qmpargs_text (action, "type"));
  x = find_external (qmpargs_text (action, "type"));
  if (a == NULL && x == NULL)
    return qmp_refuse (e, "Parameter 'type' does not accept value '%s'",
                       qmpargs_text (action, "type"));
  data = json_object_get (action, "data");
  snprintf (where, sizeof where, "actions[%zu].data.", i);
  if (qmpargs_check (x ? x->arguments : a->arguments, data, where, e) == -1)
    return -1;
  return x || a->act != ACT_BITMAP_MERGE ? 0
    : qmpplan_check_merged (json_object_get (data, "bitmaps"), where, e);
}

static int
check_actions (const json_t *arguments, struct qmp_error *e)
{
  static const struct qmparg of_properties[] = {
    { "completion-mode", QMPARG_STRING, true }, { .key = NULL }
  };
  const json_t *properties = json_object_get (arguments, "properties"), *action;
  const char *mode = qmpargs_text (properties, "completion-mode");
  size_t i;

  json_array_foreach (json_object_get (arguments, "actions"), i, action)
    if (check_action (action, i, e) == -1)
      return -1;
  if (qmpargs_check (of_properties, properties, "properties.", e) == -1)
    return -1;
  return mode == NULL || strcmp (mode, "individual") == 0 || strcmp (mode, "grouped") == 0
    ? 0 : qmp_refuse (e, "Parameter 'completion-mode' does not accept value '%s'", mode);
}

/* (All of it is one step in any case, so both modes of completion are the same.) */
json_t *
qmptransaction_run (const struct qmp_host *host, const json_t *arguments,
                       struct qmp_error *e)
{
  const json_t *actions = json_object_get (arguments, "actions");
  struct plans all = { .host = host, .e = e };
  int r = check_actions (arguments, e);

  if (r == 0)
    r = plan_all (&all, actions);
  if (r == 0)
    r = carry_out_all (&all);
  plans_free (&all);
  return r == -1 ? NULL : json_object ();
}
