/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The command for external snapshots: see qmpoverlay.c.
 */

#ifndef QCOW2_QMPOVERLAY_H
#define QCOW2_QMPOVERLAY_H

#include "plugin/qmptarget.h"

extern const struct qmparg qmpoverlay_arguments[];

/* blockdev-snapshot-sync */
extern json_t *qmpoverlay_run (const struct qmp_host *, const json_t *arguments,
                               struct qmp_error *);
/* blockdev-snapshot */
extern const struct qmparg qmpoverlay_of_node[];
extern json_t *qmpoverlay_use_node (const struct qmp_host *, const json_t *arguments,
                                    struct qmp_error *);

#endif /* QCOW2_QMPOVERLAY_H */
