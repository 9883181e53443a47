/* SPDX-License-Identifier: BSD-3-Clause
 *
 * A change of the bitmaps and snapshots of one disk, planned and made.  See qmpplan.c.
 *
 * Functions that return an int return 0, or -1 with the error.
 */

#ifndef QCOW2_QMPPLAN_H
#define QCOW2_QMPPLAN_H

#include <stdbool.h>
#include <stddef.h>

#include <jansson.h>

#include "change/bitmapedit.h"
#include "change/edit.h"
#include "plugin/qmptarget.h"

struct qmp_overlay;

/* What can be done in a transaction; each but `abort' is also a command. */
struct qmp_action {
  const char *name;             /* NULL ends the list */
  const struct qmparg *arguments;
  enum qmp_act {
    ACT_BITMAP_ADD, ACT_BITMAP_REMOVE, ACT_BITMAP_CLEAR, ACT_BITMAP_ENABLE,
    ACT_BITMAP_DISABLE, ACT_BITMAP_MERGE, ACT_SNAPSHOT_CREATE, ACT_ABORT,
  } act;
};
extern const struct qmp_action qmpplan_actions[];
/* NULL: there is none of that name. */
extern const struct qmp_action *qmpplan_find_action (const char *name);
/* Which disk an action changes, with arguments that were checked; NULL: none. */
extern const char *qmpplan_target (const struct qmp_action *, const json_t *arguments);
/* Checks what qmpargs_check cannot: the bitmaps that ACT_BITMAP_MERGE merges are names,
 * or objects with a node, too.  WHERE: before the names of arguments in messages. */
extern int qmpplan_check_merged (const json_t *bitmaps, const char *where,
                                 struct qmp_error *);

struct qmpplan {
  const struct qmp_host *host;
  struct qmp_error *e;
  struct qmp_target target;     /* the disk that all of it changes */
  const char *name;             /* as the first action calls it */
  struct bitmapedit *bitmaps;   /* an array; names belong to the arguments */
  size_t nr_bitmaps;
  char *source;                 /* NULL, or the file of the bitmaps that are merged */
  bool merges_own;              /* bitmaps of the image itself are merged */
  const char *snapshot;         /* the name of a new one; NULL: none */
  struct qmp_overlay *overlay;  /* NULL, or: the plan is for the image that this puts on
                                   top */
  const json_t *action;         /* that action */
  bool locked;                  /* a transaction has locked the disk as a writer */
};

/* Zeros at first, but for host and e; freed with this. */
extern void qmpplan_free (struct qmpplan *);

/* What a name should be; QEMU has a text for each that means nothing. */
enum qmpplan_name { NAME_DEVICE, NAME_ONLY_DEVICE, NAME_NODE, NAME_IMAGE };
/* Finds the disk to be changed. */
extern int qmpplan_find (struct qmpplan *, const char *name, enum qmpplan_name);
/* For what changes more than bitmaps: no job uses the disk. */
extern int qmpplan_check_idle (const struct qmpplan *, const char *name);
/* Will there be such a bitmap, and can it be used, or at least removed? */
extern int qmpplan_check_bitmap (const struct qmpplan *, const char *name, bool removes);

/* Adds an action, with arguments that were checked. */
extern int qmpplan_action (struct qmpplan *, const struct qmp_action *,
                           const json_t *arguments);
/* (A new image on top is made before.) */
extern int qmpplan_carry_out (const struct qmpplan *);

/* Creates or deletes an internal snapshot. */
extern int qmpplan_change_snapshot (struct disk *, enum edit_kind, const char *name,
                                    struct qmp_error *);
/* A change has returned R, after report_watch: an error is told in the core's words. */
extern int qmpplan_end (struct disk *, int r, struct qmp_error *);

#endif /* QCOW2_QMPPLAN_H */
