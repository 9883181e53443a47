/* SPDX-License-Identifier: BSD-3-Clause
 *
 * How do commands change the bitmaps, snapshots and size of a disk that is served?
 *
 * A command, or the actions of a transaction, become a plan for each disk: changes of the
 * bitmaps and at most one new snapshot.  All of it is checked before anything is done,
 * with QEMU's texts, because programs look for them; what only the core finds is told
 * in its words.  The core then makes a plan in one step: all of it or nothing, also
 * after a power cut.  An answer means that the change is durable.
 *
 * Plans for several disks are of one instant: all of them are checked, with all locks taken,
 * and then the gates of all are closed before the first one is made.  What fails then, after
 * others were made, is told: only a full filesystem or a broken one can do that.
 *
 * A new image on top is a plan of its own, with the bitmaps that this image is to have, and
 * comes after those for the images that are there.  Bitmaps are made when all new images are
 * on top.  As long as the gates are closed, it can
 * be taken back: so all new images of a transaction are put on top, or none.  The name of the
 * device means the new image in the actions after that one, as in QEMU; the name of its node
 * does in all of them, as if it was there already.
 *
 * As each action is checked, the plan so far counts: a bitmap can be added and disabled
 * in one transaction.
 *
 * Locks: none of its own; see qmptarget.c.
 */

#include <config.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "util/bytes.h"
#include "util/cleanup.h"
#include "util/jsontext.h"
#include "util/report.h"
#include "format/format.h"
#include "image/imageinfo.h"
#include "request/bitmap.h"
#include "change/bitmapedit.h"
#include "change/edit.h"
#include "change/relink.h"
#include "plugin/qmpchange.h"
#include "plugin/qmpjobs.h"
#include "plugin/qmpnodes.h"
#include "plugin/qmpoverlay.h"

/* The format allows longer names, but QEMU's tools do not create them. */
#define MAX_SNAPSHOT_NAME 255

struct plan {
  const struct qmp_host *host;
  struct qmp_error *e;
  struct qmp_target target;     /* the disk that all of it changes */
  const char *name;             /* as the first action calls it */
  struct bitmapedit *bitmaps;   /* an array; names belong to the arguments */
  size_t nr_bitmaps;
  char *source;                 /* NULL, or the file of the bitmaps that are merged */
  bool merges_own;              /* bitmaps of the image itself are merged */
  const char *snapshot;         /* the name of a new one; NULL: none */
  struct qmp_overlay *overlay;  /* NULL, or: the plan is for the image that this puts on top */
  const json_t *action;         /* that action */
  bool locked;                  /* check_plan has locked the disk as a writer */
};

static void
plan_free (struct plan *p)
{
  qmpoverlay_end (p->overlay);
  qmptarget_leave (&p->target);
  free (p->bitmaps);
  free (p->source);
}

/* A change has returned R, after report_watch: an error is told in the core's words. */
static int
end_change (struct disk *disk, int r, struct qmp_error *e)
{
  CLEANUP_FREE char *why = report_first ();

  if (r == -1)
    return qmp_refuse (e, "%s", why ? why : strerror (errno));
  return disk_check (disk) == 0 ? 0
    : qmp_refuse (e, "The change was made, but the disk has failed: %s",
                  why ? why : strerror (errno));
}

/* --- targets --- */

static int
check_changes (const struct qmp_target *t, const char *name, struct qmp_error *e)
{
  const char *why = disk_why_fixed (t->disk);

  if (t->layer > 0)
    return qmp_refuse (e, "Node '%s' is read-only", name);
  return why == NULL ? 0 : qmp_refuse (e, "Node '%s' is read-only: %s", name, why);
}

/* For what changes more than bitmaps: no job uses the disk. */
static int
check_idle (const struct plan *p, const char *name)
{
  return jobs_check_idle (p->host->jobs, &p->target, name, p->e);
}

/* What a name should be; QEMU has a text for each that means nothing. */
enum name_kind { NAME_DEVICE, NAME_ONLY_DEVICE, NAME_NODE, NAME_IMAGE };

static int
refuse_name (struct plan *p, const char *name, enum name_kind kind)
{
  switch (kind) {
  case NAME_NODE: return qmp_refuse (p->e, "Node '%s' not found", name);
  case NAME_ONLY_DEVICE:
    return qmp_refuse (p->e, "Cannot find device='%s' nor node-name=''", name);
  case NAME_IMAGE:
    return qmp_refuse (p->e, "Cannot find device='' nor node-name='%s'", name);
  default:
    return qmp_refuse (p->e, "Cannot find device='%s' nor node-name='%s'", name, name);
  }
}

/* Finds the disk to be changed.  KIND: what NAME should be. */
static int
find_target (struct plan *p, const char *name, enum name_kind kind)
{
  struct qmp_target t;
  bool other;

  if (p->overlay)
    return 0;
  if (qmptarget_find (p->host, name, &t, p->e) == -1)
    return refuse_name (p, name, kind);
  other = p->target.disk && p->target.disk != t.disk;
  if (check_changes (&t, name, p->e) == -1 || other) {
    qmptarget_leave (&t);
    return qmp_refuse (p->e, "Node '%s' belongs to another disk", name);
  }
  qmptarget_leave (&p->target);
  p->target = t;
  return 0;
}

/* --- bitmaps --- */

static int
add_edit (struct plan *p, enum bitmapedit_what what, const char *name,
          const struct bitmapedit *more)
{
  struct bitmapedit *list =
    reallocarray (p->bitmaps, p->nr_bitmaps + 1, sizeof *list);

  if (list == NULL)
    return qmp_refuse (p->e, "out of memory");
  p->bitmaps = list;
  list[p->nr_bitmaps] = more ? *more : (struct bitmapedit) { .what = what };
  list[p->nr_bitmaps].what = what;
  list[p->nr_bitmaps++].name = name;
  return 0;
}

/* Will there be a bitmap of that name, when the plan so far has been carried out?
 * *INCONSISTENT: it is one of now, and is. */
static bool
exists (const struct plan *p, const char *name, bool *inconsistent)
{
  struct bitmaps *bitmaps = disk_bitmaps (p->target.disk);
  const size_t i = bitmap_find (bitmaps, name);
  bool there = i != SIZE_MAX && p->overlay == NULL;

  *inconsistent = there && bitmap_get (bitmaps, i)->flags & QCOW2_BITMAP_IN_USE;
  for (size_t j = 0; j < p->nr_bitmaps; j++)
    if (strcmp (p->bitmaps[j].name, name) == 0 &&
        (p->bitmaps[j].what == BITMAP_ADD || p->bitmaps[j].what == BITMAP_REMOVE)) {
      there = p->bitmaps[j].what == BITMAP_ADD;
      *inconsistent = false;
    }
  return there;
}

/* Is there such a bitmap, and can it be used, or at least removed? */
static int
check_bitmap (const struct plan *p, const char *name, bool removes)
{
  bool inconsistent;

  if (!exists (p, name, &inconsistent))
    return qmp_refuse (p->e, "Dirty bitmap '%s' not found", name);
  if (inconsistent && !removes)
    return qmp_refuse (p->e, "Bitmap '%s' is inconsistent and cannot be used", name);
  return 0;
}

static int
plan_add (struct plan *p, const json_t *args)
{
  const char *name = qmpargs_text (args, "name");
  const json_t *granularity = json_object_get (args, "granularity");
  const json_int_t size = json_integer_value (granularity);
  struct bitmapedit more = { .granularity_bits = 0 };
  bool inconsistent;

  if (name[0] == '\0')
    return qmp_refuse (p->e, "Bitmap name cannot be empty");
  if (granularity && (size < 512 || !is_power_of_2 (size)))
    return qmp_refuse (p->e, "Granularity must be power of 2 and at least 512");
  if (exists (p, name, &inconsistent))
    return qmp_refuse (p->e, "Bitmap already exists: %s", name);
  if (strlen (name) > QCOW2_MAX_BITMAP_NAME && !qmpargs_flag (args, "persistent"))
    return qmp_refuse (p->e, "Bitmap name too long: %s", name);
  if (!qmpargs_flag (args, "persistent"))
    return qmp_refuse (p->e, "Bitmap '%s' would not be persistent: use persistent=true",
                       name);
  if (strlen (name) > QCOW2_MAX_BITMAP_NAME)
    return qmp_refuse (p->e, "Can't make bitmap '%s' persistent in '%s': Name length "
                       "exceeds maximum (%d characters)", name,
                       qmpargs_text (args, "node"), QCOW2_MAX_BITMAP_NAME);
  if (granularity)
    more.granularity_bits = __builtin_ctzll (size);
  if (add_edit (p, BITMAP_ADD, name, &more) == -1)
    return -1;
  return qmpargs_flag (args, "disabled") ? add_edit (p, BITMAP_DISABLE, name, NULL) : 0;
}

static int
plan_bitmap (struct plan *p, enum bitmapedit_what what, const json_t *args)
{
  const char *name = qmpargs_text (args, "name");

  return check_bitmap (p, name, what == BITMAP_REMOVE) == -1 ? -1
    : add_edit (p, what, name, NULL);
}

/* The bitmap of another node of the same disk. */
static int
merge_from (struct plan *p, const struct qmp_target *t, const char *node)
{
  const struct layers *layers = disk_inside (p->target.disk).view->layers;
  const char *path;

  if (t->disk != p->target.disk)
    return qmp_refuse (p->e, "Node '%s' belongs to another disk", node);
  if (t->layer == 0 && p->overlay == NULL) {
    p->merges_own = true;
    return 0;
  }
  path = storage_path (layers_file (layers, t->layer));
  if (p->source && strcmp (p->source, path) != 0)
    return qmp_refuse (p->e, "The bitmaps of one node at a time can be merged");
  free (p->source);
  p->source = strdup (path);
  return p->source ? 0 : qmp_refuse (p->e, "out of memory");
}

static int
plan_merge_one (struct plan *p, const char *target, const char *node, const char *name)
{
  const struct bitmapedit more = { .merged = name };
  struct qmp_target t;
  int r;

  if (qmptarget_find (p->host, node, &t, p->e) == -1)
    return qmp_refuse (p->e, "Node '%s' not found", node);
  r = merge_from (p, &t, node);
  if (r == 0 && t.layer == 0 && p->overlay == NULL)
    r = check_bitmap (p, name, false);
  qmptarget_leave (&t);
  if (r == 0 && p->source && p->merges_own)
    return qmp_refuse (p->e, "The bitmaps of one node at a time can be merged");
  return r == -1 ? -1 : add_edit (p, BITMAP_MERGE, target, &more);
}

/* The members of `bitmaps' are names, or objects with a node, too. */
static int
check_merged (const json_t *bitmaps, const char *where, struct qmp_error *e)
{
  static const struct qmparg args[] = {
    { "node", QMPARG_STRING, false }, { "name", QMPARG_STRING, false }, { .key = NULL }
  };
  const json_t *one;
  char text[64];
  size_t i;

  json_array_foreach (bitmaps, i, one) {
    snprintf (text, sizeof text, "%sbitmaps[%zu].", where, i);
    if (json_is_object (one) ? qmpargs_check (args, one, text, e) == -1
        : !json_is_string (one) &&
        qmp_refuse (e, "Invalid parameter type for '%sbitmaps[%zu]', expected: "
                    "BlockDirtyBitmapOrStr", where, i) == -1)
      return -1;
  }
  return 0;
}

static int
plan_merge (struct plan *p, const json_t *args)
{
  const char *target = qmpargs_text (args, "target");
  const json_t *one;
  size_t i;

  if (check_bitmap (p, target, false) == -1)
    return -1;
  json_array_foreach (json_object_get (args, "bitmaps"), i, one)
    if (plan_merge_one (p, target,
                        qmpargs_text (json_is_object (one) ? one : args, "node"),
                        json_is_object (one) ? qmpargs_text (one, "name")
                        : json_string_value (one)) == -1)
      return -1;
  return 0;
}

/* --- snapshots --- */

/* As in QEMU, only names are compared here. */
static const struct snapshot *
find_by_name (struct disk *disk, const char *name)
{
  const struct snapshots *all = &disk_inside (disk).view->image->snapshots;

  for (uint32_t i = 0; i < all->n; i++)
    if (strcmp (all->list[i].name, name) == 0)
      return &all->list[i];
  return NULL;
}

static int
plan_snapshot (struct plan *p, const json_t *args)
{
  const char *device = qmpargs_text (args, "device");
  const char *name = qmpargs_text (args, "name");

  if (p->overlay)
    return qmp_refuse (p->e, "A transaction takes one snapshot of a disk");
  if (check_idle (p, device) == -1)
    return -1;
  if (name[0] == '\0')
    return qmp_refuse (p->e, "Name is empty");
  if (strlen (name) > MAX_SNAPSHOT_NAME)
    return qmp_refuse (p->e, "Name is longer than %d bytes", MAX_SNAPSHOT_NAME);
  if (find_by_name (p->target.disk, name))
    return qmp_refuse (p->e, "Snapshot with name '%s' already exists on device '%s'",
                       name, device);
  if (p->snapshot)
    return qmp_refuse (p->e, "A transaction takes one snapshot of a disk");
  p->snapshot = name;
  return 0;
}

/* --- plans --- */

static const struct qmparg of_add[] = {
  { "node", QMPARG_STRING, false },
  { "name", QMPARG_STRING, false },
  { "granularity", QMPARG_UINT32, true },
  { "persistent", QMPARG_BOOL, true },
  { "disabled", QMPARG_BOOL, true },
  { .key = NULL }
};
static const struct qmparg of_bitmap[] = {
  { "node", QMPARG_STRING, false }, { "name", QMPARG_STRING, false }, { .key = NULL }
};
static const struct qmparg of_merge[] = {
  { "node", QMPARG_STRING, false },
  { "target", QMPARG_STRING, false },
  { "bitmaps", QMPARG_ARRAY, false },
  { .key = NULL }
};
static const struct qmparg of_snapshot[] = {
  { "device", QMPARG_STRING, false }, { "name", QMPARG_STRING, false }, { .key = NULL }
};
static const struct qmparg of_abort[] = { { .key = NULL } };

const struct qmp_action qmpchange_actions[] = {
  { "block-dirty-bitmap-add", of_add, ACT_BITMAP_ADD },
  { "block-dirty-bitmap-remove", of_bitmap, ACT_BITMAP_REMOVE },
  { "block-dirty-bitmap-clear", of_bitmap, ACT_BITMAP_CLEAR },
  { "block-dirty-bitmap-enable", of_bitmap, ACT_BITMAP_ENABLE },
  { "block-dirty-bitmap-disable", of_bitmap, ACT_BITMAP_DISABLE },
  { "block-dirty-bitmap-merge", of_merge, ACT_BITMAP_MERGE },
  { "blockdev-snapshot-internal-sync", of_snapshot, ACT_SNAPSHOT_CREATE },
  { "abort", of_abort, ACT_ABORT },
  { .name = NULL }
};

/* Which disk an action changes; NULL: none. */
static const char *
target_of (const struct qmp_action *a, const json_t *args)
{
  return qmpargs_text (args, a->act == ACT_SNAPSHOT_CREATE ? "device" : "node");
}

static int
plan_action (struct plan *p, const struct qmp_action *a, const json_t *args)
{
  const bool snapshot = a->act == ACT_SNAPSHOT_CREATE;

  if (a->act == ACT_ABORT)
    return qmp_refuse (p->e, "Transaction aborted using Abort action");
  if (find_target (p, target_of (a, args),
                   snapshot || a->act == ACT_BITMAP_ADD ? NAME_DEVICE : NAME_NODE) == -1)
    return -1;
  switch (a->act) {
  case ACT_BITMAP_ADD: return plan_add (p, args);
  case ACT_BITMAP_REMOVE: return plan_bitmap (p, BITMAP_REMOVE, args);
  case ACT_BITMAP_CLEAR: return plan_bitmap (p, BITMAP_CLEAR, args);
  case ACT_BITMAP_ENABLE: return plan_bitmap (p, BITMAP_ENABLE, args);
  case ACT_BITMAP_DISABLE: return plan_bitmap (p, BITMAP_DISABLE, args);
  case ACT_BITMAP_MERGE: return plan_merge (p, args);
  case ACT_SNAPSHOT_CREATE: return plan_snapshot (p, args);
  case ACT_ABORT: break;
  }
  abort ();
}

static int
change_snapshots (struct disk *disk, enum edit_kind kind, const char *name,
                  struct qmp_error *e)
{
  const struct edit_options options = { .preallocation = PREALLOCATION_OFF };
  const struct edit edit = { .kind = kind, .name = name };

  report_watch ();
  return end_change (disk, edit_disk (disk, &options, &edit, 1), e);
}

/* (That of an image on top is made before.) */
static int
carry_out (const struct plan *p)
{
  if (p->nr_bitmaps == 0)
    return p->snapshot == NULL ? 0
      : change_snapshots (p->target.disk, EDIT_SNAPSHOT_CREATE, p->snapshot, p->e);
  report_watch ();
  return end_change (p->target.disk,
                     bitmapedit_with_snapshot (p->target.disk, p->snapshot, p->bitmaps,
                                               p->nr_bitmaps, p->source), p->e);
}

json_t *
qmpchange_run (const struct qmp_host *host, const struct qmp_action *a,
               const json_t *arguments, struct qmp_error *e)
{
  struct plan p = { .host = host, .e = e };
  int r = a->act == ACT_BITMAP_MERGE
    ? check_merged (json_object_get (arguments, "bitmaps"), "", e) : 0;

  if (r == 0)
    r = plan_action (&p, a, arguments) == -1 ? -1 : carry_out (&p);
  plan_free (&p);
  return r == -1 ? NULL : json_object ();
}

/* --- transactions --- */

static const struct qmp_action *
find_action (const char *name)
{
  const struct qmp_action *a = qmpchange_actions;

  while (a->name && strcmp (a->name, name) != 0)
    a++;
  return a->name ? a : NULL;
}

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
  struct plan *list;
  size_t n;
};

static void
plans_free (struct plans *all)
{
  for (size_t i = 0; i < all->n; i++)
    plan_free (&all->list[i]);
  free (all->list);
}

/* NULL: refused. */
static struct plan *
add_plan (struct plans *all, const char *name)
{
  struct plan *list = reallocarray (all->list, all->n + 1, sizeof *list);

  if (list == NULL) {
    qmp_refuse (all->e, "out of memory");
    return NULL;
  }
  all->list = list;
  list[all->n] = (struct plan) { .host = all->host, .e = all->e, .name = name };
  return &list[all->n++];
}

/* --- new images on top --- */

static struct plan *
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
  struct plan *p;

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
static struct plan *
plan_above (const struct plans *all, const char *name)
{
  const bool device = all->host->dir ? strchr (name, '/') == NULL
    : strcmp (name, QMPTARGET_DEVICE) == 0;

  for (size_t i = 0; i < all->n; i++) {
    struct plan *p = &all->list[i];
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
static struct plan *
plan_for (struct plans *all, const char *name)
{
  struct qmp_target t = { .disk = NULL };
  struct plan *p = name ? plan_above (all, name) : NULL;
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
    const struct qmp_action *a = find_action (qmpargs_text (action, "type"));
    const json_t *data = json_object_get (action, "data");
    const char *name = a ? target_of (a, data) : NULL;
    struct plan *p;

    if (a == NULL) {
      if (plan_external (all, action) == -1)
        return -1;
      continue;
    }
    if (name && plan_ahead (all, actions, name) == -1)
      return -1;
    p = plan_for (all, name);
    if (p == NULL || plan_action (p, a, data) == -1)
      return -1;
  }
  return 0;
}

/* What a new image gets from bitmaps of the disk's image, which P changes before that. */
static int
check_merged_from (const struct plans *all, const struct plan *p)
{
  const struct plan none = { .host = p->host, .e = p->e, .target.disk = p->target.disk };
  const struct layers *layers = disk_inside (p->target.disk).view->layers;
  const struct plan *below = &none;

  if (p->source == NULL || strcmp (p->source, storage_path (layers_file (layers, 0))) != 0)
    return 0;
  for (size_t i = 0; i < all->n; i++)
    if (all->list[i].overlay == NULL && all->list[i].target.disk == p->target.disk)
      below = &all->list[i];
  for (size_t i = 0; i < p->nr_bitmaps; i++)
    if (p->bitmaps[i].what == BITMAP_MERGE &&
        check_bitmap (below, p->bitmaps[i].merged, false) == -1)
      return -1;
  return 0;
}

/* What would make it fail, but for full filesystems and the like. */
static int
check_plan (const struct plans *all, struct plan *p)
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
tell_rest (const struct plans *all, const struct plan *p, unsigned done, bool taken_back)
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
static const struct plan *
carry_out_those (const struct plans *all, bool above, unsigned *done)
{
  for (size_t i = 0; i < all->n; i++) {
    const struct plan *const p = &all->list[i];

    if ((p->overlay != NULL) != above || (above && p->nr_bitmaps == 0))
      continue;
    if (carry_out (p) == -1)
      return p;
    ++*done;
  }
  return NULL;
}

/* The same. */
static const struct plan *
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
  const struct plan *failed;
  unsigned done = 0;
  bool taken_back = true;

  if (all->n == 1 && all->list[0].overlay == NULL)
    return carry_out (&all->list[0]);
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
  a = find_action (qmpargs_text (action, "type"));
  x = find_external (qmpargs_text (action, "type"));
  if (a == NULL && x == NULL)
    return qmp_refuse (e, "Parameter 'type' does not accept value '%s'",
                       qmpargs_text (action, "type"));
  data = json_object_get (action, "data");
  snprintf (where, sizeof where, "actions[%zu].data.", i);
  if (qmpargs_check (x ? x->arguments : a->arguments, data, where, e) == -1)
    return -1;
  return x || a->act != ACT_BITMAP_MERGE ? 0
    : check_merged (json_object_get (data, "bitmaps"), where, e);
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
qmpchange_transaction (const struct qmp_host *host, const json_t *arguments,
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

static json_t *
run_external (const struct qmp_host *host, const char *command, const json_t *arguments,
              struct qmp_error *e)
{
  struct qmp_overlay *overlay = find_external (command)->plan (host, arguments, e);
  const int r = overlay ? qmpoverlay_make (overlay, e) : -1;

  qmpoverlay_end (overlay);
  return r == -1 ? NULL : json_object ();
}

json_t *
qmpchange_snapshot (const struct qmp_host *host, const json_t *arguments,
                    struct qmp_error *e)
{
  return run_external (host, "blockdev-snapshot", arguments, e);
}

json_t *
qmpchange_snapshot_file (const struct qmp_host *host, const json_t *arguments,
                         struct qmp_error *e)
{
  return run_external (host, "blockdev-snapshot-sync", arguments, e);
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
delete_snapshot (const struct plan *p, const char *device, const char *id,
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
      change_snapshots (disk, EDIT_SNAPSHOT_DELETE, unique, p->e) == 0)
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
  struct plan p = { .host = host, .e = e };
  json_t *info = NULL;

  if (find_target (&p, device, NAME_DEVICE) == -1 || check_idle (&p, device) == -1)
    ;
  else if (id || name)
    info = delete_snapshot (&p, device, id, name);
  else
    qmp_refuse (e, "Name or id must be provided");
  plan_free (&p);
  return info;
}

static int
resize (const struct plan *p, json_int_t size)
{
  const struct edit_options options = {
    .shrink = true, .preallocation = PREALLOCATION_OFF,
  };
  const struct edit edit = { .kind = EDIT_RESIZE, .size = size };

  if (size < 0)
    return qmp_refuse (p->e, "Parameter 'size' expects a >0 size");
  report_watch ();
  return end_change (p->target.disk, edit_disk (p->target.disk, &options, &edit, 1), p->e);
}

json_t *
qmpchange_resize (const struct qmp_host *host, const json_t *arguments,
                  struct qmp_error *e)
{
  const char *device = qmpargs_text (arguments, "device");
  const char *node = qmpargs_text (arguments, "node-name");
  struct plan p = { .host = host, .e = e };
  int r = -1;

  if (device == NULL && node == NULL)
    qmp_refuse (e, "Cannot find device='' nor node-name=''");
  else if (find_target (&p, node ? node : device,
                        node ? NAME_IMAGE : NAME_ONLY_DEVICE) == 0 &&
           check_idle (&p, node ? node : device) == 0)
    r = resize (&p, json_integer_value (json_object_get (arguments, "size")));
  plan_free (&p);
  return r == -1 ? NULL : json_object ();
}

static int
change_backing_file (const struct plan *p, const char *name)
{
  if (qmptarget_count (p->target.disk) == 1)
    return qmp_refuse (p->e, "not allowing backing file change on an image without a "
                       "backing file");
  if (strlen (name) > QCOW2_MAX_BACKING_NAME)
    return qmp_refuse (p->e, "Could not change backing file to '%s': Invalid argument",
                       name);
  report_watch ();
  return end_change (p->target.disk, relink_disk (p->target.disk, name), p->e);
}

json_t *
qmpchange_backing_file (const struct qmp_host *host, const json_t *arguments,
                        struct qmp_error *e)
{
  struct plan p = { .host = host, .e = e };
  int r = -1;

  if (find_target (&p, qmpargs_text (arguments, "device"), NAME_DEVICE) == 0 &&
      find_target (&p, qmpargs_text (arguments, "image-node-name"), NAME_IMAGE) == 0 &&
      check_idle (&p, qmpargs_text (arguments, "device")) == 0)
    r = change_backing_file (&p, qmpargs_text (arguments, "backing-file"));
  plan_free (&p);
  return r == -1 ? NULL : json_object ();
}
