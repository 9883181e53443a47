/* SPDX-License-Identifier: BSD-3-Clause
 *
 * External snapshots, as actions of a transaction: see qmpoverlay.c.
 */

#ifndef QCOW2_QMPOVERLAY_H
#define QCOW2_QMPOVERLAY_H

#include "plugin/qmptarget.h"

/* A new image that is to be put on top of a disk. */
struct qmp_overlay;

/* Checks everything, and creates or opens the new image, for blockdev-snapshot-sync and
 * blockdev-snapshot.  ARGUMENTS were checked, and outlive the result.  NULL: refused. */
extern const struct qmparg qmpoverlay_of_file[], qmpoverlay_of_node[];
extern struct qmp_overlay *qmpoverlay_plan_file (const struct qmp_host *,
                                                 const json_t *arguments,
                                                 struct qmp_error *);
extern struct qmp_overlay *qmpoverlay_plan_node (const struct qmp_host *,
                                                 const json_t *arguments,
                                                 struct qmp_error *);

extern struct disk *qmpoverlay_disk (const struct qmp_overlay *);
/* The disk as the command calls it. */
extern const char *qmpoverlay_device (const struct qmp_overlay *);
/* The name that the command gives the new node; or NULL. */
extern const char *qmpoverlay_name (const struct qmp_overlay *);

/* Would that be refused?  Locks the images.  -1: refused. */
extern int qmpoverlay_check (struct qmp_overlay *, struct qmp_error *);
/* The new image; belongs to the plan. */
extern const struct image *qmpoverlay_top (const struct qmp_overlay *);
/* Puts it on top.  -1: refused, and as before. */
extern int qmpoverlay_make (struct qmp_overlay *, struct qmp_error *);
/* Takes that back: the gate of the disk was closed all the time.  -1: reported, and it
 * stays on top. */
extern int qmpoverlay_take_back (struct qmp_overlay *);
extern bool qmpoverlay_is_made (const struct qmp_overlay *);
/* If it is on top, the host knows it then; otherwise a file that was created is removed.
 * Accepts NULL. */
extern void qmpoverlay_end (struct qmp_overlay *);

#endif /* QCOW2_QMPOVERLAY_H */
