/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The command `transaction'.  See qmptransaction.c.
 */

#ifndef QCOW2_QMPTRANSACTION_H
#define QCOW2_QMPTRANSACTION_H

#include "plugin/qmptarget.h"

/* Returns the answer, or NULL with the error. */
extern json_t *qmptransaction_run (const struct qmp_host *, const json_t *arguments,
                                   struct qmp_error *);

#endif /* QCOW2_QMPTRANSACTION_H */
