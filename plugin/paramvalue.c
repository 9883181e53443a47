/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What does the value of a parameter say?
 *
 * One function for each kind of value.  Errors name the parameter.
 */

#include <config.h>

#include <string.h>

#define NBDKIT_API_VERSION 2
#include <nbdkit-plugin.h>

#include "paramvalue.h"

int
parse_choice (const char *key, const char *value,
              const struct choice *choices, int *r)
{
  char words[128] = "";
  const struct choice *c;

  for (c = choices; c->word; c++)
    if (strcmp (value, c->word) == 0) {
      *r = c->value;
      return 0;
    }
  for (c = choices; c->word; c++) {
    if (c != choices)
      strcat (words, c[1].word ? ", " : " or ");
    strcat (words, c->word);
  }
  nbdkit_error ("%s=%s: must be %s", key, value, words);
  return -1;
}

int
parse_flag (const char *key, const char *value, bool *r)
{
  int b = nbdkit_parse_bool (value);

  if (b == -1) {
    nbdkit_error ("%s=%s: not a boolean", key, value);
    return -1;
  }
  *r = b;
  return 0;
}

int
parse_bytes (const char *key, const char *value, uint64_t *r)
{
  int64_t size = nbdkit_parse_size (value);

  if (size == -1) {
    nbdkit_error ("%s=%s: not a size", key, value);
    return -1;
  }
  *r = size;
  return 0;
}
