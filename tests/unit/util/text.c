/* SPDX-License-Identifier: BSD-3-Clause
 *
 * A formatted text of any length is whole, or NULL if an allocation fails; nothing behind
 * it is written (AddressSanitizer), and %m is what errno was.
 */

#include <config.h>

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "util/report.h"
#include "util/text.h"
#include "lib/allocations.h"
#include "lib/stubs.h"

#define LONGEST 1000

static void
try (const char *expected, struct shortage shortage)
{
  bool failed;
  char *text;

  shortage_begin (shortage);
  text = text_new ("%s", expected);
  failed = shortage_end () > 0;
  CHECK (failed ? text == NULL : text && strcmp (text, expected) == 0);
  free (text);

  /* A message that there was no memory for is another one. */
  shortage_begin (shortage);
  report_error ("%s", expected);
  failed = shortage_end () > 0;
  CHECK (failed || strcmp (last_error (), expected) == 0);
}

int
main (void)
{
  char expected[LONGEST + 1] = "", *text;

  quiet_errors = true;
  for (unsigned len = 0; len <= LONGEST; len++) {
    memset (expected, 'x', len);
    for (unsigned after = 0; after < 3; after++)
      try (expected, (struct shortage) { after, UINT64_MAX });
    try (expected, SHORTAGE_NONE);
  }

  errno = ENOSPC;
  text = text_new ("%m");
  CHECK (text && strcmp (text, strerror (ENOSPC)) == 0);
  free (text);
  return 0;
}
