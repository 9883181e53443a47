/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Where do messages of the core go?
 *
 * To nbdkit's log: with -v only, those for who looks for a fault.
 *
 * Locks: none.
 */

#include <config.h>

#define NBDKIT_API_VERSION 2
#include <nbdkit-plugin.h>

#include "util/report.h"

void
report_line (enum report_level level, const char *text)
{
  if (level == REPORT_ERROR)
    nbdkit_error ("%s", text);
  else
    nbdkit_debug ("%s", text);
}
