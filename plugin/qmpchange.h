/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Changes the bitmaps, snapshots and size of disks that are served.  See qmpchange.c.
 *
 * Functions that return JSON return the answer, or NULL with the error.
 */

#ifndef QCOW2_QMPCHANGE_H
#define QCOW2_QMPCHANGE_H

#include "plugin/qmptarget.h"

/* What can be done in a transaction; each is also a command. */
struct qmp_action {
  const char *name;             /* NULL ends the list */
  const struct qmparg *arguments;
  enum qmp_act {
    ACT_BITMAP_ADD, ACT_BITMAP_REMOVE, ACT_BITMAP_CLEAR, ACT_BITMAP_ENABLE,
    ACT_BITMAP_DISABLE, ACT_BITMAP_MERGE, ACT_SNAPSHOT_CREATE, ACT_ABORT,
  } act;
};
extern const struct qmp_action qmpchange_actions[];

/* Carries out a single action, whose arguments were checked. */
extern json_t *qmpchange_run (const struct qmp_host *, const struct qmp_action *,
                              const json_t *arguments, struct qmp_error *);

/* blockdev-snapshot, blockdev-snapshot-sync */
extern json_t *qmpchange_snapshot (const struct qmp_host *, const json_t *arguments,
                                   struct qmp_error *);
extern json_t *qmpchange_snapshot_file (const struct qmp_host *, const json_t *arguments,
                                        struct qmp_error *);
/* blockdev-snapshot-delete-internal-sync */
extern json_t *qmpchange_delete_snapshot (const struct qmp_host *,
                                          const json_t *arguments, struct qmp_error *);
/* block_resize */
extern json_t *qmpchange_resize (const struct qmp_host *, const json_t *arguments,
                                 struct qmp_error *);
/* change-backing-file */
extern json_t *qmpchange_backing_file (const struct qmp_host *, const json_t *arguments,
                                       struct qmp_error *);
/* transaction */
extern json_t *qmpchange_transaction (const struct qmp_host *, const json_t *arguments,
                                      struct qmp_error *);

#endif /* QCOW2_QMPCHANGE_H */
