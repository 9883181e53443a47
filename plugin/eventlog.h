/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The log of events.  See eventlog.c.
 */

#ifndef QCOW2_EVENTLOG_H
#define QCOW2_EVENTLOG_H

#include <stdbool.h>

#include <jansson.h>

enum eventlog_level { EVENTLOG_ERROR, EVENTLOG_WARNING, EVENTLOG_INFO };

/* Where "stderr" is no file. */
#define EVENTLOG_STDERR "stderr"

/* PATH: absolute, or EVENTLOG_STDERR.  NULL: no log.  Events below LEVEL are left out.
 * Returns 0, or -1 (reported). */
extern int eventlog_open (const char *path, bool json, enum eventlog_level);
/* From now on, a thread writes.  0 or -1 (reported). */
extern int eventlog_start (void);
/* Writes this last line, too.  MEMBERS is freed. */
extern void eventlog_close (enum eventlog_level, const char *event, json_t *members);
/* Is there a log? */
extern bool eventlog_is_open (void);

/* What follows: any thread, with any locks held; preserves errno. */

/* Writes a line, soon.  MEMBERS, an object, is freed.  False: it is left out, or there is
 * no log. */
extern bool eventlog_write (enum eventlog_level, const char *event, json_t *members);
/* The same for what clients cause as often as they like. */
extern void eventlog_write_client (enum eventlog_level, const char *event,
                                   json_t *members);
/* A string for MEMBERS; the end of a long one is left out.  NULL on ENOMEM. */
extern json_t *eventlog_text (const char *);

#endif /* QCOW2_EVENTLOG_H */
