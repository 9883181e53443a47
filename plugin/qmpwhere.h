/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Where clients of NBD find a disk.  See qmpwhere.c.
 */

#ifndef QCOW2_QMPWHERE_H
#define QCOW2_QMPWHERE_H

#include <jansson.h>

#include "plugin/qmptarget.h"

extern const struct qmparg qmpwhere_arguments[];
extern json_t *qmpwhere_query (const struct qmp_host *, const json_t *arguments,
                               struct qmp_error *);

#endif /* QCOW2_QMPWHERE_H */
