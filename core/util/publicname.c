/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Which part of the name of a file may be told?
 *
 * Names in images come in all forms that QEMU knows, and some contain secrets:
 *
 *   https://USER:PASSWORD@HOST/PATH?TOKEN      ssh, ftp, iscsi, s3, ...
 *   rbd:POOL/IMAGE:id=USER:key=KEY
 *   json:{"driver": "https", "url": "https://USER:PASSWORD@HOST/", "cookie": "..."}
 *
 * Messages and reports end in logs that other people read.  A path is printed as it is,
 * and so is a name that has no place for a secret.  Of all others only what is known to
 * be harmless is printed: the protocol, a host, a path, and the values of some JSON
 * members.  What is not understood counts as a secret, because in a malformed URI (a
 * password may contain a slash) the end of the secret is unknown.
 *
 * Locks: none.
 */

#include <config.h>

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "util/cleanup.h"
#include "util/jsontext.h"
#include "util/publicname.h"
#include "util/text.h"

#define DIGITS "0123456789"
#define ALNUM DIGITS "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
#define ADDRESS DIGITS "abcdefABCDEF:.[]"       /* IPv6 */

/* Begins a query, parameters or a fragment. */
#define PARAMETERS "?#;&="

size_t
publicname_protocol (const char *name)
{
  const size_t n = strcspn (name, ":/");

  return name[n] == ':' ? n + 1 : 0;
}

static bool
consists_of (const char *text, size_t len, const char *characters)
{
  return strspn (text, characters) >= len;
}

static bool
begins_with (const char *text, const char *with)
{
  return strncmp (text, with, strlen (with)) == 0;
}

/* The first LEN bytes of NAME, and "...". */
static char *
cut (const char *name, size_t len)
{
  return text_new ("%.*s...", (int) len, name);
}

/* --- PROTOCOL://HOST:PORT/PATH --- */

/* "host", "host:7", "[::1]:7", or nothing. */
static bool
is_server (const char *s, size_t len)
{
  const char *const end = s + len;
  const char *const close = *s == '[' ? memchr (s, ']', len) : NULL;
  const char *colon = close ? close + 1 : memchr (s, ':', len);

  if (colon == NULL)
    colon = end;
  return consists_of (s, colon - s, close ? ADDRESS : ALNUM "-._") &&
    (colon == end ||
     (*colon == ':' && consists_of (colon + 1, end - colon - 1, DIGITS)));
}

/* Is this the query of an NBD URI that only says where the socket is? */
static bool
is_socket (const char *query)
{
  return begins_with (query, "?socket=") && strpbrk (query + 8, PARAMETERS) == NULL;
}

/* START: the length of "PROTOCOL://". */
static char *
show_uri (const char *name, size_t start)
{
  const char *const rest = name + start;
  const char *const parameters = rest + strcspn (rest, PARAMETERS);
  /* Passwords may contain @ and /, so the last one counts. */
  const char *const at = strrchr (rest, '@');
  const char *const server = at ? at + 1 : rest;
  const bool whole = *parameters == '\0' || is_socket (parameters);
  const size_t len = whole ? strlen (server) : (size_t) (parameters + 1 - server);

  if ((at && at > parameters) ||
      !is_server (server, strcspn (server, "/" PARAMETERS)))
    return cut (name, start);
  return text_new ("%.*s%s%.*s%s", (int) start, name, at ? "...@" : "", (int) len, server,
                   whole ? "" : "...");
}

/* --- other protocols --- */

/* What follows "nbd:": HOST:PORT or unix:PATH, perhaps with :exportname=NAME. */
static bool
is_old_nbd (const char *s)
{
  const bool on_socket = begins_with (s, "unix:");
  const char *const where = on_socket ? s + 5 : s;
  const char *const export = strstr (where, ":exportname=");
  const size_t len = export ? (size_t) (export - where) : strlen (where);

  return strchr (s, '@') == NULL &&
    (on_socket ? memchr (where, ':', len) == NULL : is_server (where, len));
}

/* What follows "rbd:": POOL/IMAGE, then options, one of which may be a key. */
static char *
show_rbd (const char *name)
{
  const size_t len = 4 + strspn (name + 4, ALNUM "_-./");

  return name[len] == '\0' ? strdup (name)
    : cut (name, len + (name[len] == ':' || name[len] == '@'));
}

static char *
show_other (const char *name, size_t protocol)
{
  if (begins_with (name, "file:") && strstr (name + protocol, "://") == NULL)
    return strdup (name);
  if (begins_with (name, "nbd:") && is_old_nbd (name + protocol))
    return strdup (name);
  if (begins_with (name, "rbd:"))
    return show_rbd (name);
  return cut (name, consists_of (name, protocol - 1, ALNUM "+-._") ? protocol : 0);
}

/* --- JSON --- */

static char *show (const char *, bool json);

/* Options whose values are no secrets; a last one is what follows a dot. */
static bool
is_harmless (const char *key)
{
  static const char *const keys[] = {
    "driver", "type", "host", "port", "export", "node-name", "pool", "image", "namespace",
    "snapshot", "file", "backing", "data-file", "offset", "size", "to", "aio", "discard",
    "detect-zeroes", "locking", "force-share", "reconnect-delay", "open-timeout",
    "filename", "path", "url", "uri",
  };
  const char *const dot = strrchr (key, '.');

  for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++)
    if (strcmp (dot ? dot + 1 : key, keys[i]) == 0)
      return true;
  return false;
}

/* TEXT is the value of a harmless option. */
static char *
show_value (const char *key, const char *text)
{
  const char *const dot = strrchr (key, '.');
  const char *const option = dot ? dot + 1 : key;

  if (strcmp (option, "filename") == 0 || strcmp (option, "path") == 0 ||
      strstr (text, "://"))
    return show (text, false);
  return strdup (strpbrk (text, "@" PARAMETERS) == NULL &&
                 (strchr (text, ':') == NULL ||
                  consists_of (text, strlen (text), ADDRESS)) ? text : "...");
}

/* A new value for VALUE, which is that of KEY; the same, if nothing is to be hidden.
 * NULL on ENOMEM. */
static json_t *
hide_value (const char *key, json_t *value)
{
  CLEANUP_FREE char *text = NULL;

  if (json_is_boolean (value) || json_is_null (value) ||
      (is_harmless (key) && json_is_number (value)))
    return json_incref (value);
  if (!is_harmless (key) || !json_is_string (value))
    return json_string ("...");
  text = show_value (key, json_string_value (value));
  return text == NULL ? NULL
    : strcmp (text, json_string_value (value)) == 0 ? json_incref (value)
    : json_string (text);
}

/* Hides values in OBJECT: 1 if there were any, 0, or -1 if that fails.  The depth is
 * limited by jansson's parser. */
static int
hide_secrets (json_t *object)
{
  const char *key;
  json_t *value;
  int changed = 0;

  json_object_foreach (object, key, value) {
    if (!consists_of (key, strlen (key), ALNUM "-._"))
      return -1;
    if (json_is_object (value)) {
      const int r = hide_secrets (value);

      if (r == -1)
        return -1;
      changed |= r;
    }
    else {
      json_t *const hidden = hide_value (key, value);

      changed |= hidden != value;
      if (json_object_set_new (object, key, hidden) == -1)
        return -1;
    }
  }
  return changed;
}

static char *
show_json (const char *name)
{
  const size_t protocol = strlen ("json:");
  json_t *const json = jsontext_read_as_qemu (name + protocol, NULL);
  const int hidden = json_is_object (json) ? hide_secrets (json) : -1;
  CLEANUP_FREE char *told = NULL;

  if (hidden == 1)
    told = json_dumps (json, JSON_PRESERVE_ORDER);
  json_decref (json);
  if (hidden == 0)
    return strdup (name);
  if (told == NULL)
    return cut (name, protocol);
  return text_new ("json:%s", told);
}

/* --- all names --- */

/* JSON: show what is in such a name. */
static char *
show (const char *name, bool json)
{
  const size_t protocol = publicname_protocol (name);

  if (protocol == 0)
    return strdup (name);
  if (json && begins_with (name, "json:"))
    return show_json (name);
  if (begins_with (name + protocol, "//") && !begins_with (name, "file:") &&
      consists_of (name, protocol - 1, ALNUM "+-._"))
    return show_uri (name, protocol + 2);
  return show_other (name, protocol);
}

char *
publicname (const char *name)
{
  return show (name, true);
}
