/* SPDX-License-Identifier: BSD-3-Clause
 *
 * How does the core report errors?
 *
 * Names of files, and much else that messages contain, come from outside, and may
 * contain control characters that would move the cursor of a terminal or forge a line of
 * a log.  So what is not to be shown (utf8.c) is escaped here, for all callers, and an
 * error is one line.
 *
 * Locks: none; silence, kept errors and taken messages belong to a thread.
 */

#include <config.h>

#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "util/cleanup.h"
#include "util/report.h"
#include "util/text.h"
#include "util/utf8.h"

/* Lines, each with its line end; escaped texts contain no line ends. */
static _Thread_local bool keeping;
static _Thread_local char *kept;
static _Thread_local bool silent;

static _Thread_local bool told;         /* something, since report_last */
static _Thread_local bool watching;
static _Thread_local char *first;       /* since report_watch */

bool
report_silence (bool silent_)
{
  const bool before = silent;

  silent = silent_;
  return before;
}

/* The caller frees the result.  NULL on ENOMEM. */
static char *
escape (const char *text)
{
  char *const out = malloc (4 * strlen (text) + 1);
  char *o = out;
  unsigned n;

  if (out == NULL)
    return NULL;
  while (*text)
    if ((n = utf8_shown (text)) > 0) {
      o = mempcpy (o, text, n);
      text += n;
    }
    else
      for (n = utf8_length (text) ?: 1; n > 0; n--)
        o += sprintf (o, "\\x%02x", (unsigned char) *text++);
  *o = '\0';
  return out;
}

/* Is TEXT the last line that is kept? */
static bool
is_kept (const char *text)
{
  const size_t all = kept ? strlen (kept) : 0, n = strlen (text);

  return all > n && strncmp (kept + all - n - 1, text, n) == 0 &&
    (all == n + 1 || kept[all - n - 2] == '\n');
}

/* Keeps a line, unless it repeats the last one (a retry that failed again).  False on
 * ENOMEM. */
static bool
keep (const char *text)
{
  char *all;

  if (is_kept (text))
    return true;
  all = text_new ("%s%s\n", kept ? kept : "", text);
  if (all == NULL)
    return false;
  free (kept);
  kept = all;
  return true;
}

/* The caller frees the result.  NULL on ENOMEM. */
static char *
compose (const char *fmt, va_list args)
{
  CLEANUP_FREE char *text = text_new_list (fmt, args);

  return text ? escape (text) : NULL;
}

static void
send_text (const char *text)
{
  report_line (REPORT_ERROR, text ? text : "out of memory for an error message");
  told = true;
  if (watching && first == NULL && text)
    first = strdup (text);
}

/* Neither silenced nor kept. */
static void __attribute__ ((format (printf, 1, 0)))
send_now (const char *fmt, va_list args)
{
  CLEANUP_FREE char *text = compose (fmt, args);

  send_text (text);
}

static void __attribute__ ((format (printf, 1, 2)))
send_notice (const char *fmt, ...)
{
  va_list args;

  va_start (args, fmt);
  send_now (fmt, args);
  va_end (args);
}

void
report_watch (void)
{
  watching = true;
}

char *
report_first (void)
{
  char *const text = first;

  first = NULL;
  watching = false;
  return text;
}

void
report_keep (void)
{
  keeping = true;
}

char *
report_take_kept (void)
{
  char *const taken = kept;

  kept = NULL;
  return taken;
}

void
report_taken (char *taken, bool tell)
{
  KEEP_ERRNO_FOR_BLOCK;
  char *line, *rest = taken;

  if (tell)
    while (rest && (line = strsep (&rest, "\n"))[0] != '\0')
      send_text (line);
  free (taken);
}

void
report_end_keeping (bool tell)
{
  report_taken (report_take_kept (), tell);
  keeping = false;
}

static void __attribute__ ((format (printf, 1, 0)))
vreport (const char *fmt, va_list args)
{
  KEEP_ERRNO_FOR_BLOCK;
  CLEANUP_FREE char *text = NULL;

  if (silent)
    return;
  text = compose (fmt, args);
  if (!keeping || text == NULL || !keep (text))
    send_text (text);
}

void
report_error (const char *fmt, ...)
{
  va_list args;

  va_start (args, fmt);
  vreport (fmt, args);
  va_end (args);
}

int
report_refusal (int err, const char *fmt, ...)
{
  va_list args;

  va_start (args, fmt);
  vreport (fmt, args);
  va_end (args);
  errno = err;
  return -1;
}

/* (It is the last message of this thread, so what came before stays here.) */
void
report_public (const char *fmt, ...)
{
  va_list args;

  va_start (args, fmt);
  vreport (fmt, args);
  va_end (args);
  told = false;
}

void
report_debug (const char *fmt, ...)
{
  KEEP_ERRNO_FOR_BLOCK;
  CLEANUP_FREE char *text = NULL;
  va_list args;

  va_start (args, fmt);
  text = compose (fmt, args);
  va_end (args);
  if (text)
    report_line (REPORT_DEBUG, text);
}

void
report_event (enum report_event what, const char *path, const char *fmt, ...)
{
  KEEP_ERRNO_FOR_BLOCK;
  CLEANUP_FREE char *text = NULL;
  va_list args;
  bool logged;

  va_start (args, fmt);
  text = text_new_list (fmt, args);
  va_end (args);
  logged = report_log (what, path, text ? text : "");
  switch (what) {
  case EVENT_CORRUPT: case EVENT_FAILED:
    report_error ("%s: %s", path, text ? text : "");
    break;
  case EVENT_LOW_SPACE: case EVENT_NO_SPACE: case EVENT_SPACE: case EVENT_READ_ONLY:
  case EVENT_DAMAGED: case EVENT_REPAIRED: case EVENT_MOVED:
    if (!logged)
      send_notice ("%s: %s", path, text ? text : "");
    break;
  case EVENT_CHANGED: case EVENT_RECOVERED:
    report_debug ("%s: %s", path, text ? text : "");
  }
}

void
report_last (const char *fmt, ...)
{
  KEEP_ERRNO_FOR_BLOCK;
  va_list args;

  if (!told)
    return;
  va_start (args, fmt);
  send_now (fmt, args);
  va_end (args);
  told = false;
}
