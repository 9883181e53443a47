/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Which storage does a name of the form "json:{...}" mean?
 *
 * QEMU writes such names into images if a plain name would not be sufficient.  They
 * contain the options of a block node: either of a format, whose "file" is another node,
 * or of storage.  Keys may be nested, or joined by dots: {"file": {"driver": "nbd"}} and
 * {"file.driver": "nbd"} are equal.  The parser joins all keys by dots, and then takes
 * out one option after the other.  If an option is left over, it is not supported, and
 * the name is refused.
 *
 * Drivers: qcow2 and raw, over file, host_device, host_cdrom and nbd.  Options that do
 * not change which bytes are meant (caching, names of nodes, secrets) are ignored.
 *
 * Locks: none.
 */

#include <config.h>

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "util/cleanup.h"
#include "util/jsontext.h"
#include "util/text.h"
#include "storage/nbduri.h"
#include "image/jsonname.h"

#define PREFIX "json:"
/* More do not fit into a header. */
#define MAX_OPTIONS 64

struct option {
  char *key, *value;
  bool taken;
};

struct options {
  struct option list[MAX_OPTIONS];
  size_t n;
  char *why;                    /* JSONNAME_WHY bytes */
};

static int __attribute__ ((format (printf, 3, 4)))
refuse_json (struct options *o, int err, const char *format, ...)
{
  va_list args;

  va_start (args, format);
  vsnprintf (o->why, JSONNAME_WHY, format, args);
  va_end (args);
  errno = err;
  return -1;
}

/* For a message, which must not contain secrets: a key, or a value that is a word. */
static const char *
word (const char *text)
{
  static const char letters[] =
    "-._0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";

  return text[strspn (text, letters)] == '\0' ? text : "...";
}

/* --- all keys on one level --- */

static const struct option *
find (const struct options *o, const char *prefix, const char *key)
{
  const size_t len = strlen (prefix);

  for (size_t i = 0; i < o->n; i++)
    if (strncmp (o->list[i].key, prefix, len) == 0 &&
        strcmp (o->list[i].key + len, key) == 0)
      return &o->list[i];
  return NULL;
}

static int
add_value (struct options *o, const char *key, json_t *value)
{
  struct option *new = &o->list[o->n];

  if (o->n == MAX_OPTIONS)
    return refuse_json (o, EINVAL, "it has more than %d options", MAX_OPTIONS);
  if (find (o, "", key))
    return refuse_json (o, EINVAL, "\"%s\" stands there twice", word (key));
  new->value = NULL;
  new->taken = false;
  if (json_is_string (value))
    new->value = strdup (json_string_value (value));
  else if (json_is_integer (value))
    new->value = text_new ("%" JSON_INTEGER_FORMAT, json_integer_value (value));
  else if (json_is_boolean (value))
    new->value = strdup (json_is_true (value) ? "true" : "false");
  else
    return refuse_json (o, EINVAL, "\"%s\" is neither text, a number, nor true or false",
                        word (key));
  if (new->value == NULL || (new->key = strdup (key)) == NULL) {
    free (new->value);
    return refuse_json (o, ENOMEM, "no memory");
  }
  o->n++;
  return 0;
}

/* The recursion is limited because the text is short. */
static int
flatten (struct options *o, const char *prefix, json_t *object)
{
  const char *key;
  json_t *value;

  json_object_foreach (object, key, value) {
    CLEANUP_FREE char *path =
      text_new ("%s%s%s", prefix, key, json_is_object (value) ? "." : "");

    if (path == NULL)
      return refuse_json (o, ENOMEM, "no memory");
    if ((json_is_object (value) ? flatten (o, path, value)
         : add_value (o, path, value)) == -1)
      return -1;
  }
  return 0;
}

/* --- nodes --- */

/* Takes the value of the option PREFIX followed by KEY; NULL: there is none. */
static const char *
take (struct options *o, const char *prefix, const char *key)
{
  struct option *option = (struct option *) find (o, prefix, key);

  if (option == NULL)
    return NULL;
  option->taken = true;
  return option->value;
}

static bool
has_below (const struct options *o, const char *prefix, const char *node)
{
  const size_t len = strlen (prefix), node_len = strlen (node);

  for (size_t i = 0; i < o->n; i++)
    if (strncmp (o->list[i].key, prefix, len) == 0 &&
        strncmp (o->list[i].key + len, node, node_len) == 0)
      return true;
  return false;
}

/* Ignores options that do not change which bytes are meant. */
static void
ignore_manner (struct options *o, const char *prefix)
{
  static const char *const keys[] = {
    "node-name", "read-only", "auto-read-only", "discard", "detect-zeroes", "force-share",
    "cache.direct", "cache.no-flush", "aio", "locking", "reconnect-delay", "open-timeout",
  };

  for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++)
    take (o, prefix, keys[i]);
}

/* Which passphrase of QEMU's command line unlocks it.  Here, the user says that. */
static void
ignore_secret (struct options *o)
{
  take (o, "", "encrypt.format");
  take (o, "", "encrypt.key-secret");
}

static int
parse_nbd (struct options *o, const char *prefix, char **name)
{
  CLEANUP_FREE char *server = text_new ("%sserver.", prefix);
  const char *export = take (o, prefix, "export"), *type, *host, *port, *path;

  if (server == NULL)
    return refuse_json (o, ENOMEM, "no memory");
  if (find (o, prefix, "tls-creds"))
    return refuse_json (o, ENOTSUP, "\"tls-creds\" names an object of QEMU's command "
                        "line");
  type = take (o, server, "type");
  path = take (o, server, "path");
  host = take (o, server, "host");
  port = take (o, server, "port");
  if (type == NULL) {           /* the form of older versions of QEMU */
    path = take (o, prefix, "path");
    host = take (o, prefix, "host");
    port = take (o, prefix, "port");
  }
  if (type && strcmp (type, "inet") != 0 && strcmp (type, "unix") != 0)
    return refuse_json (o, ENOTSUP, "a server of type \"%s\" is not supported",
                        word (type));
  if ((path == NULL) == (host == NULL))
    return refuse_json (o, EINVAL, "the NBD server needs either a host or a path");
  *name = nbduri_make (host, port, path, export ? export : "");
  return *name ? 0 : refuse_json (o, errno, "the NBD server's address is malformed");
}

/* Parses a storage node, whose keys begin with PREFIX. */
static int
parse_protocol (struct options *o, const char *prefix, const char *driver,
                struct jsonname *r)
{
  const char *filename;

  if (driver && strcmp (driver, "nbd") == 0)
    return parse_nbd (o, prefix, &r->name);
  if (driver && strcmp (driver, "file") != 0 && strcmp (driver, "host_device") != 0 &&
      strcmp (driver, "host_cdrom") != 0)
    return refuse_json (o, ENOTSUP, "driver \"%s\" is not supported: an NBD server can "
                        "serve it, and the URI of that can be named", word (driver));
  filename = take (o, prefix, "filename");
  if (filename == NULL)
    return refuse_json (o, EINVAL, "it names no file");
  /* With a driver it is a path, even if it looks like a protocol. */
  r->name = text_new ("%s%s",
                      driver && filename[strcspn (filename, ":/")] == ':' ? "./" : "",
                      filename);
  return r->name ? 0 : refuse_json (o, ENOMEM, "no memory");
}

static int
parse_nodes (struct options *o, struct jsonname *r)
{
  const char *prefix = "", *driver = take (o, prefix, "driver");

  if (driver && (strcmp (driver, "qcow2") == 0 || strcmp (driver, "raw") == 0))
    r->format = strcmp (driver, "raw") == 0 ? "raw" : "qcow2";
  if (r->format || (driver == NULL && has_below (o, "", "file."))) {
    ignore_manner (o, prefix);
    if (strcmp (r->format ? r->format : "qcow2", "qcow2") == 0)
      ignore_secret (o);
    if (find (o, "", "file"))
      return refuse_json (o, ENOTSUP, "\"file\" names a node of QEMU's command line");
    prefix = "file.";
    driver = take (o, prefix, "driver");
  }
  ignore_manner (o, prefix);
  if (parse_protocol (o, prefix, driver, r) == -1)
    return -1;
  for (size_t i = 0; i < o->n; i++)
    if (!o->list[i].taken) {
      free (r->name);
      return refuse_json (o, ENOTSUP, "\"%.100s\" is not supported there",
                          word (o->list[i].key));
    }
  return 0;
}

/* --- the whole name --- */

bool
jsonname_is (const char *name)
{
  return strncmp (name, PREFIX, strlen (PREFIX)) == 0;
}

int
jsonname_parse (const char *name, struct jsonname *r, char why[JSONNAME_WHY])
{
  struct options o = { .why = why };
  json_error_t error = { .position = 0 };
  json_t *json = jsontext_read_as_qemu (name + strlen (PREFIX), &error);
  int ret = -1;

  memset (r, 0, sizeof *r);
  if (!json_is_object (json))
    refuse_json (&o, EINVAL, json ? "it is no JSON object"
                 : "it is malformed at byte %d of the JSON", error.position);
  else if (flatten (&o, "", json) == 0)
    ret = parse_nodes (&o, r);
  for (size_t i = 0; i < o.n; i++) {
    free (o.list[i].key);
    free (o.list[i].value);
  }
  json_decref (json);
  return ret;
}
