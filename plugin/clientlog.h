/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What the log of events says about connections.  See clientlog.c.
 *
 * Any thread that nbdkit calls for the connection; errno is preserved.
 */

#ifndef QCOW2_CLIENTLOG_H
#define QCOW2_CLIENTLOG_H

#include <stdbool.h>
#include <stdint.h>

#include "plugin/iostats.h"

struct clientlog;

/* A client has opened that export.  NULL: there is no log, or no memory. */
extern struct clientlog *clientlog_open (const char *image, const char *export,
                                         bool writable);
/* It leaves, after these requests.  NULL is allowed for the log, here and below. */
extern void clientlog_close (struct clientlog *, const struct iocounts *);
/* A request has failed, with errno. */
extern void clientlog_failed (struct clientlog *, enum iostats_kind, uint64_t offset,
                              uint64_t bytes);
/* A client did not get what it asked for.  WHY: NULL: unknown. */
extern void clientlog_refused (const char *image, const char *export, const char *why);

#endif /* QCOW2_CLIENTLOG_H */
