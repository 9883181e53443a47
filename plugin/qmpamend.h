/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The command that changes the passphrases of an image in use.  See qmpamend.c.
 */

#ifndef QCOW2_QMPAMEND_H
#define QCOW2_QMPAMEND_H

#include "plugin/qmptarget.h"

extern const struct qmparg qmpamend_arguments[];
extern json_t *qmpamend_run (const struct qmp_host *, const json_t *arguments,
                             struct qmp_error *);

#endif /* QCOW2_QMPAMEND_H */
