/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Which commands are there?  See qmpcommands.c.
 */

#ifndef QCOW2_QMPCOMMANDS_H
#define QCOW2_QMPCOMMANDS_H

#include "plugin/qmptarget.h"

/* Carries out the command NAME: see struct qmp_service.  *QUIT is set if the server is to
 * end. */
extern json_t *qmpcommands_run (const struct qmp_host *, const char *name,
                                const json_t *arguments, bool *quit, struct qmp_error *);

#endif /* QCOW2_QMPCOMMANDS_H */
