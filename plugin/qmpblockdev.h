/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The commands that add and remove nodes: see qmpblockdev.c.
 */

#ifndef QCOW2_QMPBLOCKDEV_H
#define QCOW2_QMPBLOCKDEV_H

#include "plugin/qmptarget.h"

/* blockdev-add; its arguments depend on one of them, and are checked here. */
extern json_t *qmpblockdev_add (const struct qmp_host *, const json_t *arguments,
                                struct qmp_error *);
extern const struct qmparg qmpblockdev_of_del[];
extern json_t *qmpblockdev_del (const struct qmp_host *, const json_t *arguments,
                                struct qmp_error *);

#endif /* QCOW2_QMPBLOCKDEV_H */
