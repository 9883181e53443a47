/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Serves the control socket.  See control.c.
 */

#ifndef QCOW2_CONTROL_H
#define QCOW2_CONTROL_H

#include <jansson.h>

#include "plugin/qmptarget.h"

struct control;

/* Makes the socket at PATH (absolute), which must stay valid.  NULL: reported. */
extern struct control *control_open (const char *path);
/* Begins to serve clients: starts a thread.  The host stays valid until control_stop.
 * Returns 0, or -1 (reported). */
extern int control_start (struct control *, const struct qmp_host *);
/* The socket that listens; -1 for NULL. */
extern int control_socket (const struct control *);
/* What query-jobs answers.  Any thread, until control_close; NULL is allowed. */
extern json_t *control_jobs (const struct control *);
/* There is news about space.  Any thread, with any locks held. */
extern void control_news (const struct control *);
/* The server begins to end: jobs are to be cancelled.  Any thread; NULL is allowed. */
extern void control_cancel (struct control *);
/* No command runs any more, and clients are told that the server ends.  NULL is
 * allowed. */
extern void control_stop (struct control *);
/* Tells clients that the exports have gone, removes the socket and frees everything.
 * NULL is allowed. */
extern void control_close (struct control *);

#endif /* QCOW2_CONTROL_H */
