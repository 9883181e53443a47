/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The command block-stream.  See qmpstream.c.
 */

#ifndef QCOW2_QMPSTREAM_H
#define QCOW2_QMPSTREAM_H

#include "plugin/qmptarget.h"

extern const struct qmparg qmpstream_arguments[];

/* Returns the answer, or NULL with the error. */
extern json_t *qmpstream_run (const struct qmp_host *, const json_t *arguments,
                              struct qmp_error *);

#endif /* QCOW2_QMPSTREAM_H */
