/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Which parameter was meant?
 *
 * Users misspell parameters, write them as another program does (cluster_size), or leave
 * out the value, which makes a parameter the name of a file (nbdkit's magic key).
 *
 * Locks: none.
 */

#include <config.h>

#include <ctype.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "util/bytes.h"
#include "plugin/paramhint.h"

/* No parameter is longer. */
#define MAX_KEY 32

/* Goes on to the next line that describes a parameter.  Returns the length of its name; 0
 * at the end. */
static size_t
next_name (const char **line)
{
  const char *end;

  while (**line) {
    end = strchrnul (*line, '\n');
    if (islower ((unsigned char) **line))
      return strcspn (*line, "=");
    *line = end + (*end != '\0');
  }
  return 0;
}

static const char *
skip_line (const char *line)
{
  const char *end = strchrnul (line, '\n');

  return end + (*end != '\0');
}

/* "name=VALUE" */
static const char *
usage (const char *line, char text[PARAMHINT_SIZE])
{
  snprintf (text, PARAMHINT_SIZE, "%.*s", (int) strcspn (line, " \n"), line);
  return text;
}

const char *
paramhint_word (const char *help, const char *word, char text[PARAMHINT_SIZE])
{
  size_t n;

  if (strcmp (word, "help") == 0) {
    snprintf (text, PARAMHINT_SIZE, "nbdkit qcow2 --help");
    return text;
  }
  for (; (n = next_name (&help)) > 0; help = skip_line (help))
    if (strlen (word) == n && strncmp (word, help, n) == 0)
      return usage (help, text);
  return NULL;
}

static char
plain (char c)
{
  return c == '_' ? '-' : tolower ((unsigned char) c);
}

/* How many characters must be added, left out or replaced?  (N and M up to MAX_KEY) */
static unsigned
distance (const char *a, size_t n, const char *b, size_t m)
{
  unsigned row[MAX_KEY + 1], before, above;

  for (size_t k = 0; k <= m; k++)
    row[k] = k;
  for (size_t i = 1; i <= n; i++) {
    before = row[0];
    row[0] = i;
    for (size_t k = 1; k <= m; k++) {
      above = row[k];
      row[k] = min64 (before + (plain (a[i - 1]) != plain (b[k - 1])),
                      min64 (above, row[k - 1]) + 1);
      before = above;
    }
  }
  return row[m];
}

/* Up to a third of the characters may be wrong, or the end may be missing or be more. */
const char *
paramhint_nearest (const char *help, const char *key, char text[PARAMHINT_SIZE])
{
  const size_t len = strlen (key);
  const char *best = NULL;
  unsigned least = UINT32_MAX, d;
  size_t n;

  if (len < 3 || len > MAX_KEY)
    return NULL;
  for (; (n = next_name (&help)) > 0; help = skip_line (help)) {
    if (n > MAX_KEY)
      continue;
    d = distance (key, len, help, n);
    if (d < least && (d <= len / 3 || distance (key, min64 (len, n), help,
                                                min64 (len, n)) == 0)) {
      least = d;
      best = help;
    }
  }
  return best ? usage (best, text) : NULL;
}
