/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Where do messages of the core go?
 *
 * To nbdkit's log: messages for finding faults only with -v, and traces only with
 * -D, which sets these variables before the plugin is loaded.
 *
 * Locks: none.
 */

#include <config.h>

#define NBDKIT_API_VERSION 2
#include <nbdkit-plugin.h>

#include "util/report.h"

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
  (void) what, (void) path, (void) text;
  return false;
}
