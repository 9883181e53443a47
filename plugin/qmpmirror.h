/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The command that mirrors a disk: see qmpmirror.c.
 */

#ifndef QCOW2_QMPMIRROR_H
#define QCOW2_QMPMIRROR_H

#include "plugin/qmptarget.h"

extern const struct qmparg qmpmirror_arguments[];

/* blockdev-mirror */
extern json_t *qmpmirror_run (const struct qmp_host *, const json_t *arguments,
                              struct qmp_error *);

#endif /* QCOW2_QMPMIRROR_H */
