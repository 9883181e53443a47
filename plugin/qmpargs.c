/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Are these the arguments of a command, and what did it fail for?
 *
 * A command has a list of its arguments with their types.  As QEMU does, they are checked
 * in the order of the list, and what is not in the list is refused last.  The texts are
 * QEMU's, because programs look for them.
 *
 * Locks: none.
 */

#include <config.h>

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "util/cleanup.h"
#include "util/report.h"
#include "util/text.h"
#include "plugin/qmpargs.h"

int
qmp_refuse (struct qmp_error *e, const char *fmt, ...)
{
  va_list args;

  if (e->desc)
    return -1;
  va_start (args, fmt);
  e->desc = text_new_list (fmt, args);
  va_end (args);
  return -1;
}

int
qmp_refuse_unless (bool well, struct qmp_error *e)
{
  CLEANUP_FREE char *why = report_first ();

  return well ? 0 : qmp_refuse (e, "%s", why ? why : strerror (errno));
}

void
qmp_error_free (struct qmp_error *e)
{
  free (e->desc);
  *e = (struct qmp_error) { .desc = NULL };
}

static const struct { json_type type; const char *name; } types[] = {
  [QMPARG_STRING] = { JSON_STRING, "string" },
  [QMPARG_BOOL] = { JSON_TRUE, "boolean" },
  [QMPARG_UINT32] = { JSON_INTEGER, "integer" },
  [QMPARG_UINT64] = { JSON_INTEGER, "integer" },
  [QMPARG_INT] = { JSON_INTEGER, "integer" },
  [QMPARG_ARRAY] = { JSON_ARRAY, "array" },
  [QMPARG_OBJECT] = { JSON_OBJECT, "object" },
  [QMPARG_REF] = { JSON_OBJECT, "BlockdevRef" },
  [QMPARG_REF_OR_NULL] = { JSON_OBJECT, "BlockdevRefOrNull" },
};

static bool
has_type (const json_t *value, enum qmparg_type type)
{
  if (type == QMPARG_BOOL)
    return json_is_boolean (value);
  return json_typeof (value) == types[type].type ||
    (type >= QMPARG_REF && json_is_string (value)) ||
    (type == QMPARG_REF_OR_NULL && json_is_null (value));
}

static int
check_value (const struct qmparg *a, const json_t *value, const char *where,
             struct qmp_error *e)
{
  json_int_t n;

  if ((a->type == QMPARG_UINT32 || a->type == QMPARG_UINT64) && !json_is_integer (value))
    return qmp_refuse (e, "Parameter '%s%s' expects uint64", where, a->key);
  if (!has_type (value, a->type))
    return qmp_refuse (e, "Invalid parameter type for '%s%s', expected: %s", where,
                       a->key, types[a->type].name);
  n = json_integer_value (value);
  if (a->type == QMPARG_UINT32 && (n < 0 || n > UINT32_MAX))
    return qmp_refuse (e, "Parameter '%s%s' expects uint32_t", where, a->key);
  return 0;
}

static bool
is_in (const struct qmparg *list, const char *key)
{
  while (list->key && strcmp (list->key, key) != 0)
    list++;
  return list->key != NULL;
}

int
qmpargs_check (const struct qmparg *list, const json_t *arguments, const char *where,
               struct qmp_error *e)
{
  const char *key;
  json_t *value;

  for (const struct qmparg *a = list; a->key; a++) {
    value = json_object_get (arguments, a->key);
    if (value == NULL && !a->optional)
      return qmp_refuse (e, "Parameter '%s%s' is missing", where, a->key);
    if (value && check_value (a, value, where, e) == -1)
      return -1;
  }
  json_object_foreach ((json_t *) arguments, key, value)
    if (!is_in (list, key))
      return qmp_refuse (e, "Parameter '%s%s' is unexpected", where, key);
  return 0;
}

const char *
qmpargs_text (const json_t *arguments, const char *key)
{
  return json_string_value (json_object_get (arguments, key));
}

bool
qmpargs_flag (const json_t *arguments, const char *key)
{
  return json_is_true (json_object_get (arguments, key));
}

bool
qmpargs_is_id (const char *id)
{
  const char *p = id;

  while (isalnum ((unsigned char) *p) || (*p && strchr ("-._", *p)))
    p++;
  return isalpha ((unsigned char) id[0]) && *p == '\0';
}

int
qmpargs_check_path (const char *path, const char *where, const char *key,
                    struct qmp_error *e)
{
  if (path[0] != '/')
    return qmp_refuse (e, "Parameter '%s%s' expects an absolute path", where, key);
  for (const char *p = path; *p; p++)
    if (iscntrl ((unsigned char) *p))
      return qmp_refuse (e, "Parameter '%s%s' contains a control character", where, key);
  return 0;
}
