/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Which change of a disk do commands and actions of a transaction mean?
 *
 * They become a plan: changes of the bitmaps of one disk, and at most one new snapshot.
 * It is checked before anything is done, with QEMU's texts, because programs look for
 * them; what only the core finds is told in its words.  The core then makes the plan in
 * one step: all of it or nothing, also after a power cut.  On return the change is
 * durable.
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
#include "util/report.h"
#include "format/format.h"
#include "request/bitmap.h"
#include "plugin/qmpjobs.h"
#include "plugin/qmpoverlay.h"
#include "plugin/qmpplan.h"

/* The format allows longer names, but QEMU's tools do not create them. */
#define MAX_SNAPSHOT_NAME 255

void
qmpplan_free (struct qmpplan *p)
{
  qmpoverlay_end (p->overlay);
  qmptarget_leave (&p->target);
  free (p->bitmaps);
  free (p->source);
}

int
qmpplan_end (struct disk *disk, int r, struct qmp_error *e)
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

int
qmpplan_check_idle (const struct qmpplan *p, const char *name)
{
  return jobs_check_idle (p->host->jobs, &p->target, name, p->e);
}

static int
refuse_name (struct qmpplan *p, const char *name, enum qmpplan_name kind)
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

int
qmpplan_find (struct qmpplan *p, const char *name, enum qmpplan_name kind)
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
add_edit (struct qmpplan *p, enum bitmapedit_what what, const char *name,
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
exists (const struct qmpplan *p, const char *name, bool *inconsistent)
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

int
qmpplan_check_bitmap (const struct qmpplan *p, const char *name, bool removes)
{
  bool inconsistent;

  if (!exists (p, name, &inconsistent))
    return qmp_refuse (p->e, "Dirty bitmap '%s' not found", name);
  if (inconsistent && !removes)
    return qmp_refuse (p->e, "Bitmap '%s' is inconsistent and cannot be used", name);
  return 0;
}

static int
plan_add (struct qmpplan *p, const json_t *args)
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
plan_bitmap (struct qmpplan *p, enum bitmapedit_what what, const json_t *args)
{
  const char *name = qmpargs_text (args, "name");

  return qmpplan_check_bitmap (p, name, what == BITMAP_REMOVE) == -1 ? -1
    : add_edit (p, what, name, NULL);
}

/* The bitmap of another node of the same disk. */
static int
merge_from (struct qmpplan *p, const struct qmp_target *t, const char *node)
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
plan_merge_one (struct qmpplan *p, const char *target, const char *node, const char *name)
{
  const struct bitmapedit more = { .merged = name };
  struct qmp_target t;
  int r;

  if (qmptarget_find (p->host, node, &t, p->e) == -1)
    return qmp_refuse (p->e, "Node '%s' not found", node);
  r = merge_from (p, &t, node);
  if (r == 0 && t.layer == 0 && p->overlay == NULL)
    r = qmpplan_check_bitmap (p, name, false);
  qmptarget_leave (&t);
  if (r == 0 && p->source && p->merges_own)
    return qmp_refuse (p->e, "The bitmaps of one node at a time can be merged");
  return r == -1 ? -1 : add_edit (p, BITMAP_MERGE, target, &more);
}

int
qmpplan_check_merged (const json_t *bitmaps, const char *where, struct qmp_error *e)
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
plan_merge (struct qmpplan *p, const json_t *args)
{
  const char *target = qmpargs_text (args, "target");
  const json_t *one;
  size_t i;

  if (qmpplan_check_bitmap (p, target, false) == -1)
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
plan_snapshot (struct qmpplan *p, const json_t *args)
{
  const char *device = qmpargs_text (args, "device");
  const char *name = qmpargs_text (args, "name");

  if (p->overlay)
    return qmp_refuse (p->e, "A transaction takes one snapshot of a disk");
  if (qmpplan_check_idle (p, device) == -1)
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

const struct qmp_action qmpplan_actions[] = {
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

const struct qmp_action *
qmpplan_find_action (const char *name)
{
  const struct qmp_action *a = qmpplan_actions;

  while (a->name && strcmp (a->name, name) != 0)
    a++;
  return a->name ? a : NULL;
}

const char *
qmpplan_target (const struct qmp_action *a, const json_t *args)
{
  return qmpargs_text (args, a->act == ACT_SNAPSHOT_CREATE ? "device" : "node");
}

int
qmpplan_action (struct qmpplan *p, const struct qmp_action *a, const json_t *args)
{
  const bool snapshot = a->act == ACT_SNAPSHOT_CREATE;

  if (a->act == ACT_ABORT)
    return qmp_refuse (p->e, "Transaction aborted using Abort action");
  if (qmpplan_find (p, qmpplan_target (a, args),
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

int
qmpplan_change_snapshot (struct disk *disk, enum edit_kind kind, const char *name,
                  struct qmp_error *e)
{
  const struct edit_options options = { .preallocation = PREALLOCATION_OFF };
  const struct edit edit = { .kind = kind, .name = name };

  report_watch ();
  return qmpplan_end (disk, edit_disk (disk, &options, &edit, 1), e);
}

int
qmpplan_carry_out (const struct qmpplan *p)
{
  if (p->nr_bitmaps == 0)
    return p->snapshot == NULL ? 0
      : qmpplan_change_snapshot (p->target.disk, EDIT_SNAPSHOT_CREATE, p->snapshot, p->e);
  report_watch ();
  return qmpplan_end (p->target.disk,
                     bitmapedit_with_snapshot (p->target.disk, p->snapshot, p->bitmaps,
                                               p->nr_bitmaps, p->source), p->e);
}
