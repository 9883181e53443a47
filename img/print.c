/* SPDX-License-Identifier: BSD-3-Clause
 *
 * How is printed what several commands print?
 *
 * Locks: none.
 */

#include <config.h>

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "util/jsontext.h"
#include "util/report.h"
#include "img/print.h"

const struct option
  option_output = { 0, "output", "human|json", "the form of the output (default human)" },
  option_svg = { 0, "svg", NULL, "the output is a picture, in SVG" },
  option_quiet = { 'q', "quiet", NULL, "print nothing but errors" };

bool
wants_json (const struct arguments *a)
{
  const char *form = value_of (a, &option_output);

  return form && form[0] == 'j';
}

int
print_json (json_t *document)
{
  if (jsontext_print (document, 4, stdout) == 0)
    return EXIT_SUCCESS;
  if (errno == ENOMEM)
    report_error ("JSON: %m");
  return EXIT_FAILURE;          /* otherwise main.c says why */
}

const char *
readable (uint64_t bytes, char buf[READABLE])
{
  static const char *const units[] = { "", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei" };
  int exponent, unit;

  /* 1000 KiB is 0.98 MiB. */
  frexp (bytes / (1000.0 / 1024.0), &exponent);
  unit = exponent < 1 ? 0 : (exponent - 1) / 10;
  snprintf (buf, READABLE, "%0.3g %sB", bytes / (double) (UINT64_C (1) << unit * 10),
            units[unit]);
  return buf;
}
