/* SPDX-License-Identifier: BSD-3-Clause
 *
 * How does QEMU's protocol QMP greet, ask, answer and tell?
 *
 *   server  {"QMP": {"version": ..., "capabilities": []}}
 *   client  {"execute": "qmp_capabilities"}            before anything else
 *   client  {"execute": NAME, "arguments": {...}, "id": ANYTHING}
 *   server  {"return": ..., "id": ...}  or  {"error": {"class", "desc"}, "id": ...}
 *   server  {"event": ..., "data": ..., "timestamp": ...}      at any time
 *
 * Whatever a client says is answered, in order, and it can go on after an error.
 * Classes and texts of errors are QEMU's, because programs look for them.  This file
 * does not know which commands there are (struct qmp_service), nor what disks are.
 *
 * Locks: none; one thread speaks with all clients.
 */

#include <config.h>

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "util/cleanup.h"
#include "util/jsontext.h"
#include "util/memory.h"
#include "util/text.h"
#include "plugin/qmp.h"
#include "plugin/qmpframe.h"

struct qmp {
  const struct qmp_service *service;
  void *client;
  bool negotiated;              /* qmp_capabilities was answered */
  struct qmpframe frame;
};

/* --- messages --- */

/* Frees MESSAGE; NULL: there was no memory for it. */
static void
send_message (struct qmp *q, json_t *message)
{
  static const char no_memory[] =
    "{\"error\": {\"class\": \"GenericError\", \"desc\": \"out of memory\"}}\r\n";
  CLEANUP_FREE char *text = message ? json_dumps (message, JSON_ENSURE_ASCII) : NULL;
  CLEANUP_FREE char *line = text ? text_new ("%s\r\n", text) : NULL;
  const char *const sent = line ? line : no_memory;

  json_decref (message);
  q->service->send (q->client, sent, strlen (sent));
}

/* Frees RESULT, and what it answers. */
static void
answer (struct qmp *q, const json_t *id, json_t *result, struct qmp_error *e)
{
  json_t *message = result ? jsontext_object ({ "return", result })
    : jsontext_object (
      { "error", jsontext_object (
        { "class", jsontext_string (e->class ? e->class : "GenericError") },
        { "desc", jsontext_string (e->desc ? e->desc : "out of memory") }) });

  if (id)
    message = jsontext_add (message, { "id", json_incref ((json_t *) id) });
  send_message (q, message);
  qmp_error_free (e);
}

json_t *
qmp_version (void)
{
  return jsontext_object (
    { "qemu", jsontext_object (
      { "micro", json_integer (0) },
      { "minor", json_integer (2) },
      { "major", json_integer (7) }) },
    { "package", jsontext_string (PACKAGE_STRING) });
}

void
qmp_tell (struct qmp *q, const char *event, json_t *data)
{
  struct timespec now;
  json_t *message;

  if (!q->negotiated)
    return;
  clock_gettime (CLOCK_REALTIME, &now);
  message = jsontext_object (
    { "timestamp", jsontext_object (
      { "seconds", json_integer (now.tv_sec) },
      { "microseconds", json_integer (now.tv_nsec / 1000) }) },
    { "event", jsontext_string (event) });
  if (data)
    message = jsontext_add (message, { "data", json_incref (data) });
  send_message (q, message);
}

/* --- commands --- */

/* The first command of each client. */
static json_t *
negotiate (struct qmp *q, const json_t *arguments, struct qmp_error *e)
{
  static const struct qmparg args[] = {
    { "enable", QMPARG_ARRAY, true }, { .key = NULL }
  };
  const json_t *enable = json_object_get (arguments, "enable");
  const char *wanted;

  if (qmpargs_check (args, arguments, "", e) == -1)
    return NULL;
  for (size_t i = 0; i < json_array_size (enable); i++) {
    wanted = json_string_value (json_array_get (enable, i));
    if (wanted)
      qmp_refuse (e, "Parameter 'enable[%zu]' does not accept value '%s'", i, wanted);
    else
      qmp_refuse (e, "Invalid parameter type for 'enable[%zu]', expected: string", i);
    return NULL;
  }
  q->negotiated = true;
  return json_object ();
}

static json_t *
run (struct qmp *q, const char *name, const json_t *arguments, struct qmp_error *e)
{
  const bool first = strcmp (name, "qmp_capabilities") == 0;

  if (first && !q->negotiated)
    return negotiate (q, arguments, e);
  if (!first && q->negotiated)
    return q->service->run (q->service->opaque, name, arguments, e);
  e->class = "CommandNotFound";
  if (first)
    qmp_refuse (e, "Capabilities negotiation is already complete, command ignored");
  else
    qmp_refuse (e, "Expecting capabilities negotiation with 'qmp_capabilities'");
  return NULL;
}

/* Returns the name of the command, or NULL with the error. */
static const char *
check_command (json_t *command, struct qmp_error *e)
{
  const json_t *execute = json_object_get (command, "execute");
  const char *key;
  json_t *value;

  json_object_foreach (command, key, value)
    if (strcmp (key, "execute") == 0 && !json_is_string (value)) {
      qmp_refuse (e, "QMP input member 'execute' must be a string");
      return NULL;
    }
    else if (strcmp (key, "arguments") == 0 && !json_is_object (value)) {
      qmp_refuse (e, "QMP input member 'arguments' must be an object");
      return NULL;
    }
    else if (strcmp (key, "id") != 0 && strcmp (key, "execute") != 0 &&
             strcmp (key, "arguments") != 0) {
      qmp_refuse (e, "QMP input member '%s' is unexpected", key);
      return NULL;
    }
  if (execute == NULL)
    qmp_refuse (e, "QMP input lacks member 'execute'");
  return json_string_value (execute);
}

/* Frees COMMAND. */
static void
obey (struct qmp *q, json_t *command)
{
  struct qmp_error e = { .desc = NULL };
  const char *name;
  json_t *result = NULL;

  if (!json_is_object (command))
    qmp_refuse (&e, "QMP input must be a JSON object");
  else if ((name = check_command (command, &e)) != NULL)
    result = run (q, name, json_object_get (command, "arguments"), &e);
  answer (q, json_object_get (command, "id"), result, &e);
  json_decref (command);
}

/* Parses the value in the frame. */
static void
parse (struct qmp *q)
{
  json_error_t why;
  struct qmp_error e = { .desc = NULL };
  json_t *command = json_loadb (q->frame.text, q->frame.len,
                                JSON_REJECT_DUPLICATES | JSON_DECODE_ANY, &why);

  if (command) {
    obey (q, command);
    return;
  }
  if (json_error_code (&why) == json_error_duplicate_key)
    qmp_refuse (&e, "JSON parse error, duplicate key");
  else
    qmp_refuse (&e, "JSON parse error, %s", why.text);
  answer (q, NULL, NULL, &e);
}

size_t
qmp_hear (struct qmp *q, const char *bytes, size_t n)
{
  const char *at = bytes, *why;
  struct qmp_error e = { .desc = NULL };

  switch (qmpframe_take (&q->frame, &at, &n, &why)) {
  case QMPFRAME_NOTHING: break;
  case QMPFRAME_VALUE:
    parse (q);
    break;
  case QMPFRAME_ERROR:
    qmp_refuse (&e, "%s", why);
    answer (q, NULL, NULL, &e);
  }
  return at - bytes;
}

struct qmp *
qmp_new (const struct qmp_service *service, void *client)
{
  struct qmp *q = memory_new (1, sizeof *q);

  if (q == NULL)
    return NULL;
  q->service = service;
  q->client = client;
  send_message (q, jsontext_object (
    { "QMP", jsontext_object (
      { "version", qmp_version () },
      { "capabilities", json_array () }) }));
  return q;
}

void
qmp_free (struct qmp *q)
{
  free (q);
}
