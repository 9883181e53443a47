/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Tells clients of the control socket that the file of an image is used beyond a place.
 * See qmpthreshold.c.
 */

#ifndef QCOW2_QMPTHRESHOLD_H
#define QCOW2_QMPTHRESHOLD_H

#include <jansson.h>

#include "plugin/qmptarget.h"

extern const struct qmparg qmpthreshold_arguments[];
extern json_t *qmpthreshold_set (const struct qmp_host *, const json_t *arguments,
                                 struct qmp_error *);

/* There may be news of thresholds: makes events of them. */
extern void qmpthreshold_look (const struct qmp_host *);

#endif /* QCOW2_QMPTHRESHOLD_H */
