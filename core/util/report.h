/* SPDX-License-Identifier: BSD-3-Clause
 *
 * How does the core report errors?  See report.c.
 *
 * Report an error once, in the function that has most context: operation, file, offset,
 * what was found, %m.  Then return -1 with errno set (all functions here preserve errno).
 * Callers only pass it on.
 */

#ifndef QCOW2_REPORT_H
#define QCOW2_REPORT_H

#include <stdbool.h>

/* Each front end, and the test programs, provide this function: it prints a line. */
enum report_level { REPORT_ERROR, REPORT_DEBUG };
extern void report_line (enum report_level, const char *text);

/* Reports an error.  What is not to be shown (utf8.h) is escaped anywhere in the text. */
extern void report_error (const char *fmt, ...)
  __attribute__ ((__format__ (__printf__, 1, 2)));
/* The same; then it sets errno to ERR, and returns -1. */
extern int report_refusal (int err, const char *fmt, ...)
  __attribute__ ((__format__ (__printf__, 2, 3)));
/* As report_error, for finding faults: neither silenced nor kept. */
extern void report_debug (const char *fmt, ...)
  __attribute__ ((__format__ (__printf__, 1, 2)));

/* What can be traced: the decisions of a part, each in a line. */
enum report_trace { TRACE_CACHE, TRACE_ALLOC, TRACE_CHECKPOINT, TRACE_CHANGE };

/* The front end provides this, too: are they wanted?  (Not asked for a hit
 * of the mapping cache.) */
extern bool report_traces (enum report_trace);

/* report_debug, if so; the arguments are evaluated only then. */
#define report_trace(what, ...)                                 \
  do {                                                          \
    if (__builtin_expect (report_traces (what), false))         \
      report_debug (__VA_ARGS__);                               \
  } while (0)

/* What happens to an image.  Neither silenced nor kept; so each of these is rare,
 * whatever clients and images do. */
enum report_event {
  /* Errors, which report_event reports, too. */
  EVENT_CORRUPT, EVENT_FAILED,
  /* No errors of the work of this thread, but the user must learn of them: reported, if
   * no log of events has them. */
  EVENT_LOW_SPACE, EVENT_NO_SPACE, EVENT_SPACE, EVENT_READ_ONLY, EVENT_DAMAGED,
  EVENT_REPAIRED, EVENT_MOVED,
  /* As expected: only report_debug reports them. */
  EVENT_CHANGED, EVENT_RECOVERED,
};
/* PATH: the image, as messages name it.  The rest of the message is made of FMT. */
extern void report_event (enum report_event, const char *path, const char *fmt, ...)
  __attribute__ ((__format__ (__printf__, 3, 4)));

/* Each front end provides this, too: its log of events, if it has one, gets this.  TEXT
 * is not escaped.  False: it has none, or leaves this out. */
extern bool report_log (enum report_event, const char *path, const char *text);

/* The same, if this thread has reported anything since it last called this.  nbdkit 1.42
 * and newer send the last message of a thread to its client, with any error that occurs
 * while options are negotiated.  So the text must name no file or server of the host, and
 * each call of nbdkit's that may report other messages then ends with this. */
extern void report_last (const char *fmt, ...)
  __attribute__ ((__format__ (__printf__, 1, 2)));

/* The same as report_error, with a text that clients may have: nothing needs to follow
 * it. */
extern void report_public (const char *fmt, ...)
  __attribute__ ((__format__ (__printf__, 1, 2)));

/* For the reply to the command that this thread works on: what is the first error
 * that is reported from report_watch on?  NULL: there was none, or no memory.  The
 * caller frees it. */
extern void report_watch (void);
extern char *report_first (void);

/* While SILENT, errors of this thread are not reported.  For work that is done
 * again later, with errors reported.  Returns what was the case before. */
extern bool report_silence (bool silent);

/* For threads that may all meet the same fault: errors of this thread are kept until
 * report_end_keeping, which reports them (TELL) or discards them.  An error that repeats
 * the one before is kept once. */
extern void report_keep (void);
extern void report_end_keeping (bool tell);

/* For a caller that learns later whether the errors matter, maybe in another thread:
 * takes what this thread has kept (NULL: nothing); report_taken reports it, or does not
 * (TELL), and frees it. */
extern char *report_take_kept (void);
extern void report_taken (char *taken, bool tell);

#endif /* QCOW2_REPORT_H */
