/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Answers questions about the disks that are served.  See qmpquery.c.
 */

#ifndef QCOW2_QMPQUERY_H
#define QCOW2_QMPQUERY_H

#include "plugin/qmptarget.h"

/* Each returns the answer, or NULL with the error. */
extern json_t *qmpquery_nodes (const struct qmp_host *, const json_t *arguments,
                               struct qmp_error *);
extern json_t *qmpquery_block (const struct qmp_host *, const json_t *arguments,
                               struct qmp_error *);
extern json_t *qmpquery_exports (const struct qmp_host *, const json_t *arguments,
                                 struct qmp_error *);
extern json_t *qmpquery_blockstats (const struct qmp_host *, const json_t *arguments,
                                    struct qmp_error *);
extern json_t *qmpquery_statistics (const struct qmp_host *, const json_t *arguments,
                                    struct qmp_error *);

#endif /* QCOW2_QMPQUERY_H */
