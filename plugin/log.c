/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Where do messages of the core go?
 *
 * To nbdkit's log: messages for finding faults only with -v, and traces only with
 * -D, which sets these variables before the plugin is loaded.  Events go to the log of
 * eventlog.c.
 *
 * Locks: none.
 */

#include <config.h>

#define NBDKIT_API_VERSION 2
#include <nbdkit-plugin.h>

#include "util/jsontext.h"
#include "util/report.h"
#include "plugin/eventlog.h"

NBDKIT_DLL_PUBLIC int qcow2_debug_cache;
NBDKIT_DLL_PUBLIC int qcow2_debug_alloc;
NBDKIT_DLL_PUBLIC int qcow2_debug_checkpoint;
NBDKIT_DLL_PUBLIC int qcow2_debug_change;

bool
report_traces (enum report_trace what)
{
  switch (what) {
  case TRACE_CACHE:      return qcow2_debug_cache;
  case TRACE_ALLOC:      return qcow2_debug_alloc;
  case TRACE_CHECKPOINT: return qcow2_debug_checkpoint;
  case TRACE_CHANGE:     return qcow2_debug_change;
  }
  return false;
}

void
report_line (enum report_level level, const char *text)
{
  if (level == REPORT_ERROR)
    nbdkit_error ("%s", text);
  else
    nbdkit_debug ("%s", text);
}

bool
report_log (enum report_event what, const char *path, const char *text)
{
  static const struct { const char *word; enum eventlog_level level; } events[] = {
    [EVENT_CORRUPT] = { "corrupt", EVENTLOG_ERROR },
    [EVENT_FAILED] = { "failed", EVENTLOG_ERROR },
    [EVENT_LOW_SPACE] = { "low-space", EVENTLOG_WARNING },
    [EVENT_NO_SPACE] = { "no-space", EVENTLOG_WARNING },
    [EVENT_SPACE] = { "space", EVENTLOG_INFO },
    [EVENT_READ_ONLY] = { "read-only", EVENTLOG_WARNING },
    [EVENT_DAMAGED] = { "damaged", EVENTLOG_WARNING },
    [EVENT_REPAIRED] = { "repaired", EVENTLOG_WARNING },
    [EVENT_MOVED] = { "moved", EVENTLOG_WARNING },
    [EVENT_CHANGED] = { "changed", EVENTLOG_INFO },
    [EVENT_RECOVERED] = { "recovered", EVENTLOG_WARNING },
  };

  if (!eventlog_is_open ())
    return false;
  return eventlog_write (events[what].level, events[what].word, jsontext_object (
    { "image", eventlog_text (path) }, { "text", eventlog_text (text) }));
}
