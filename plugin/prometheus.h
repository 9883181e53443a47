/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Writes statistics as Prometheus reads them.  See prometheus.c.
 */

#ifndef QCOW2_PROMETHEUS_H
#define QCOW2_PROMETHEUS_H

#include <stdio.h>

#include <jansson.h>

/* How all that this writes begins. */
#define PROMETHEUS_BEGINS "# HELP nbdkit_qcow2_"

/* DOCUMENT: what stats= writes as JSON.  SERVER: by which it is known from others on this
 * host; UTF-8.  Errors are those of FP. */
extern void prometheus_write (const json_t *document, const char *server, FILE *fp);

#endif /* QCOW2_PROMETHEUS_H */
