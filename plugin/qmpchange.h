/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Commands that change a disk that is served.  See qmpchange.c.
 *
 * Functions that return JSON return the answer, or NULL with the error.
 */

#ifndef QCOW2_QMPCHANGE_H
#define QCOW2_QMPCHANGE_H

#include "plugin/qmpplan.h"

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

#endif /* QCOW2_QMPCHANGE_H */
