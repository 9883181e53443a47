/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The command block-commit.  See qmpcommit.c.
 */

#ifndef QCOW2_QMPCOMMIT_H
#define QCOW2_QMPCOMMIT_H

#include "plugin/qmptarget.h"

extern const struct qmparg qmpcommit_arguments[];

/* Returns the answer, or NULL with the error. */
extern json_t *qmpcommit_run (const struct qmp_host *, const json_t *arguments,
                              struct qmp_error *);

#endif /* QCOW2_QMPCOMMIT_H */
