/* SPDX-License-Identifier: BSD-3-Clause
 *
 * How is a text made whose length is not known?
 *
 * It is formatted twice, with the same errno (%m): to count, and into memory of that
 * size.
 *
 * Locks: none.
 */

#include <config.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "util/text.h"

char *
text_new_list (const char *fmt, va_list args)
{
  const int err = errno;
  va_list again;
  char *text = NULL;
  int len;

  va_copy (again, args);
  len = vsnprintf (NULL, 0, fmt, again);
  va_end (again);
  if (len >= 0)
    text = malloc (len + 1);
  if (text) {
    errno = err;
    vsnprintf (text, len + 1, fmt, args);
  }
  return text;
}

char *
text_new (const char *fmt, ...)
{
  va_list args;
  char *text;

  va_start (args, fmt);
  text = text_new_list (fmt, args);
  va_end (args);
  return text;
}
