/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What does an NBD URI mean?
 *
 *   SCHEME://[USER@]HOST[:PORT]/EXPORT[?tls-...=VALUE]      nbd, nbds
 *   SCHEME://CID[:PORT]/EXPORT                              nbd+vsock, nbds+vsock
 *   SCHEME:///EXPORT?socket=PATH                            nbd+unix, nbds+unix
 *
 * (Specification: doc/uri.md of the NBD project; QEMU writes nbd+tcp for nbd.)  libnbd
 * gets a URI that is composed anew from the parsed parts, so that a different
 * interpretation of the text cannot lead to another server.  The user and the tls-...
 * parameters are secrets.
 *
 * Reading takes no memory: so whether two URIs are the same, or one may be used, is
 * always known.
 */

#include <config.h>

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "util/cleanup.h"
#include "util/text.h"
#include "storage/nbduri.h"

#define DEFAULT_PORT "10809"
#define MAX_URI 8192

enum transport { TCP, UNIX, VSOCK };

static const struct scheme {
  const char *name, *normal;
  enum transport transport;
} schemes[] = {
  { "nbd", "nbd", TCP }, { "nbds", "nbds", TCP },
  { "nbd+tcp", "nbd", TCP }, { "nbds+tcp", "nbds", TCP },
  { "nbd+unix", "nbd+unix", UNIX }, { "nbds+unix", "nbds+unix", UNIX },
  { "nbd+vsock", "nbd+vsock", VSOCK }, { "nbds+vsock", "nbds+vsock", VSOCK },
};

/* All strings except TLS are decoded, and "" if the URI does not have the part.  TLS is
 * as in the URI. */
struct parts {
  const struct scheme *scheme;
  const char *user, *host, *port, *export, *socket, *tls;
};

/* Parts, and what they point to: no more than the URI, and the ends of six strings. */
struct parsed {
  struct parts parts;
  char text[MAX_URI + 8], *end;
};

/* --- reading --- */

static const struct scheme *
find_scheme (const char *name)
{
  const char *end = strstr (name, "://");
  size_t i;

  for (i = 0; end && i < sizeof schemes / sizeof schemes[0]; i++)
    if (strlen (schemes[i].name) == (size_t) (end - name) &&
        strncasecmp (schemes[i].name, name, end - name) == 0)
      return &schemes[i];
  return NULL;
}

bool
nbduri_is (const char *name)
{
  return find_scheme (name) != NULL;
}

static int
hex (char c)
{
  return c >= '0' && c <= '9' ? c - '0'
    : c >= 'a' && c <= 'f' ? c - 'a' + 10
    : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

/* Decodes LEN characters.  NULL: there is an invalid %XX, or NUL. */
static const char *
decode (struct parsed *p, const char *s, size_t len)
{
  const char *const text = p->end;

  for (size_t i = 0; i < len; i++)
    if (s[i] != '%')
      *p->end++ = s[i];
    else if (i + 2 >= len || hex (s[i + 1]) == -1 || hex (s[i + 2]) == -1 ||
             (*p->end++ = hex (s[i + 1]) << 4 | hex (s[i + 2])) == '\0')
      return NULL;
    else
      i += 2;
  *p->end++ = '\0';
  return text;
}

/* Copies LEN characters in lower case.  NULL: one is not in ALLOWED. */
static const char *
copy_lower (struct parsed *p, const char *s, size_t len, const char *allowed)
{
  const char *const text = p->end;

  for (size_t i = 0; i < len; i++)
    if (strchr (allowed, *p->end++ = tolower ((unsigned char) s[i])) == NULL)
      return NULL;
  *p->end++ = '\0';
  return text;
}

#define DIGITS "0123456789"
#define LETTERS "abcdefghijklmnopqrstuvwxyz"

/* "user@host:port", "[::1]:port". */
static int
parse_authority (const char *s, size_t len, struct parsed *parsed)
{
  struct parts *const p = &parsed->parts;
  const char *at = memchr (s, '@', len), *end = s + len, *colon, *close;

  p->user = decode (parsed, s, at ? at - s : 0);
  if (at)
    s = at + 1;
  close = s < end && *s == '[' ? memchr (s, ']', end - s) : NULL;
  if (close) {                  /* an IPv6 address */
    colon = close + 1;
    p->host = copy_lower (parsed, s, colon - s, DIGITS "abcdef:.[]");
  }
  else {
    colon = memchr (s, ':', end - s);
    if (colon == NULL)
      colon = end;
    p->host = copy_lower (parsed, s, colon - s, DIGITS LETTERS "-._");
  }
  if (colon < end && *colon++ != ':')
    return -1;
  p->port = copy_lower (parsed, colon, end - colon, DIGITS);
  return p->user && p->host && p->port && strlen (p->port) <= 10 ? 0 : -1;
}

/* "socket=PATH&tls-...=..." */
static int
parse_query (const char *query, struct parsed *parsed)
{
  struct parts *const p = &parsed->parts;
  const char *s;
  size_t len;

  /* The socket first, because the others become one text. */
  for (s = query; *s; s += len + (s[len] == '&')) {
    len = strcspn (s, "&");
    if (strncmp (s, "tls-", 4) == 0)
      continue;
    if (strncmp (s, "socket=", 7) != 0 || p->socket ||
        (p->socket = decode (parsed, s + 7, len - 7)) == NULL)
      return -1;
  }
  if (p->socket == NULL)
    p->socket = "";
  p->tls = parsed->end;
  for (s = query; *s; s += len + (s[len] == '&')) {
    len = strcspn (s, "&");
    if (strncmp (s, "tls-", 4) != 0)
      continue;
    if (parsed->end > p->tls)
      *parsed->end++ = '&';
    parsed->end = mempcpy (parsed->end, s, len);
  }
  *parsed->end++ = '\0';
  return 0;
}

/* Returns 0, or -1 with EINVAL, and *WHY. */
static int
parse (const char *uri, struct parsed *parsed, const char **why)
{
  struct parts *const p = &parsed->parts;
  const char *s, *path, *query;

  *p = (struct parts) { .scheme = NULL };
  parsed->end = parsed->text;
  errno = EINVAL;
  *why = "it is not an NBD URI";
  p->scheme = find_scheme (uri);
  if (p->scheme == NULL)
    return -1;
  *why = "it is too long";
  if (strlen (uri) > MAX_URI)
    return -1;
  *why = "it has control characters, spaces or a fragment (#)";
  for (s = uri; *s; s++)
    if ((unsigned char) *s <= ' ' || *s == 0x7f || *s == '#')
      return -1;

  s = strstr (uri, "://") + 3;
  path = s + strcspn (s, "/?");
  query = path + strcspn (path, "?");
  *why = "its host or port is malformed";
  if (parse_authority (s, path - s, parsed) == -1)
    return -1;
  *why = "its export name is malformed";
  if (*path == '/')
    path++;
  p->export = decode (parsed, path, query - path);
  if (p->export == NULL)
    return -1;
  *why = "it has parameters other than socket= and tls-...=, or malformed ones";
  if (parse_query (*query ? query + 1 : query, parsed) == -1)
    return -1;
  *why = p->scheme->transport == UNIX
    ? "it needs socket=PATH, an absolute path, and no host" : "it has no host";
  if (p->scheme->transport == UNIX
      ? p->socket[0] != '/' || p->host[0] != '\0' || p->port[0] != '\0'
      : p->host[0] == '\0' || p->socket[0] != '\0')
    return -1;
  if (p->scheme->transport == TCP && p->port[0] == '\0')
    p->port = DEFAULT_PORT;
  return 0;
}

/* --- writing --- */

/* Returns the end of what it has written: at most three times the length of S. */
static char *
encode (char *to, const char *s)
{
  for (; *s; s++)
    if (isalnum ((unsigned char) *s) || strchr ("-._~/:", *s))
      *to++ = *s;
    else
      to += sprintf (to, "%%%02X", (unsigned char) *s);
  return to;
}

/* NULL on ENOMEM. */
static char *
compose (const struct parts *p, bool secrets)
{
  const size_t room = strlen (p->scheme->normal) + strlen (p->host) + strlen (p->port) +
    strlen (p->tls) + 3 * (strlen (p->user) + strlen (p->export) + strlen (p->socket)) +
    sizeof "://@:/?socket=&";
  char *const text = malloc (room), *to = text;

  if (text == NULL)
    return NULL;
  to = stpcpy (stpcpy (to, p->scheme->normal), "://");
  if (secrets && p->user[0])
    to = stpcpy (encode (to, p->user), "@");
  to = stpcpy (to, p->host);
  if (p->port[0] &&
      (p->scheme->transport != TCP || strcmp (p->port, DEFAULT_PORT) != 0))
    to = stpcpy (stpcpy (to, ":"), p->port);
  to = encode (stpcpy (to, "/"), p->export);
  if (p->socket[0])
    to = encode (stpcpy (to, "?socket="), p->socket);
  if (secrets && p->tls[0])
    to = stpcpy (stpcpy (to, p->socket[0] ? "&" : "?"), p->tls);
  *to = '\0';
  return text;
}

char *
nbduri_normal (const char *uri, bool secrets, const char **why)
{
  struct parsed p;

  if (parse (uri, &p, why) == -1)
    return NULL;
  *why = "no memory";
  return compose (&p.parts, secrets);
}

bool
nbduri_has_secrets (const char *uri)
{
  struct parsed p;
  const char *why;

  return parse (uri, &p, &why) == 0 && (p.parts.user[0] || p.parts.tls[0]);
}

char *
nbduri_add_secrets (const char *uri, const char *from)
{
  struct parsed p, s;
  const char *why;

  if (parse (uri, &p, &why) == -1 || parse (from, &s, &why) == -1)
    return NULL;
  p.parts.user = s.parts.user;
  p.parts.tls = s.parts.tls;
  return compose (&p.parts, true);
}

char *
nbduri_with_export (const char *uri, const char *export)
{
  struct parsed p;
  const char *why;

  if (parse (uri, &p, &why) == -1)
    return NULL;
  p.parts.export = export;
  return compose (&p.parts, true);
}

/* --- from other forms --- */

char *
nbduri_make (const char *host, const char *port, const char *socket, const char *export)
{
  const bool bare = host && strchr (host, ':') && host[0] != '[';
  const struct parts p = {
    .scheme = find_scheme (socket ? "nbd+unix://" : "nbd://"), .user = "",
    .host = host ? host : "", .port = port ? port : "",
    .socket = socket ? socket : "", .export = export, .tls = "",
  };
  CLEANUP_FREE char *v6 = NULL, *text = NULL;
  struct parts with_brackets = p;
  const char *why;

  if (bare) {                   /* an IPv6 address */
    v6 = text_new ("[%s]", host);
    if (v6 == NULL)
      return NULL;
    with_brackets.host = v6;
  }
  text = compose (&with_brackets, false);
  return text ? nbduri_normal (text, false, &why) : NULL;
}

#define OLD "nbd:"
#define OLD_UNIX "unix:"
#define OLD_EXPORT ":exportname="

bool
nbduri_is_old (const char *name)
{
  return strncmp (name, OLD, strlen (OLD)) == 0 && !nbduri_is (name);
}

char *
nbduri_from_old (const char *name)
{
  CLEANUP_FREE char *server = strdup (name + strlen (OLD));
  const char *export = "";
  char *split;

  if (server == NULL)
    return NULL;
  split = strstr (server, OLD_EXPORT);
  if (split) {
    export = split + strlen (OLD_EXPORT);
    *split = '\0';
  }
  if (strncmp (server, OLD_UNIX, strlen (OLD_UNIX)) == 0)
    return nbduri_make (NULL, NULL, server + strlen (OLD_UNIX), export);
  /* Without brackets, QEMU takes what is behind the first colon for a port. */
  split = server[0] == '[' ? strstr (server, "]:") : server;
  split = split ? strchr (split, ':') : NULL;
  if (split == NULL || split[1] == '\0') {
    errno = EINVAL;
    return NULL;
  }
  *split = '\0';
  return nbduri_make (server, split + 1, NULL, export);
}

/* --- comparing --- */

/* Has the name a part that some servers take for a way up? */
static bool
leads_up (const char *name)
{
  for (size_t len; *name; name += len + (name[len] == '/')) {
    len = strcspn (name, "/");
    if (len == 2 && strncmp (name, "..", 2) == 0)
      return true;
  }
  return false;
}

static bool
same_server (const struct parts *a, const struct parts *b)
{
  return strcmp (a->scheme->normal, b->scheme->normal) == 0 &&
    strcmp (a->host, b->host) == 0 && strcmp (a->port, b->port) == 0 &&
    strcmp (a->socket, b->socket) == 0;
}

/* BELOW: the export of A may have more, behind a slash. */
static bool
is_within (const char *uri_a, const char *uri_b, bool below)
{
  struct parsed parsed_a, parsed_b;
  const struct parts *const a = &parsed_a.parts, *const b = &parsed_b.parts;
  const char *why;
  size_t len;

  if (parse (uri_a, &parsed_a, &why) == -1 || parse (uri_b, &parsed_b, &why) == -1 ||
      !same_server (a, b))
    return false;
  len = strlen (b->export);
  return strcmp (a->export, b->export) == 0 ||
    (below && !leads_up (a->export) &&
     (len == 0 ||
      (strncmp (a->export, b->export, len) == 0 &&
       (b->export[len - 1] == '/' || a->export[len] == '/'))));
}

bool
nbduri_same (const char *a, const char *b)
{
  return is_within (a, b, false);
}

bool
nbduri_is_below (const char *uri, const char *prefix)
{
  return is_within (uri, prefix, true);
}
