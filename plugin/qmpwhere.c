/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Where does a client of NBD on this host find a disk?
 *
 * For programs that begin with the control socket: the name of the disk's export, and the URI
 * of a socket on which this server listens for clients, if it knows one (ownsockets.c).  Of
 * several, a Unix socket is chosen before others.
 *
 * Locks: none.
 */

#include <config.h>

#include <netdb.h>
#include <string.h>

#include "util/cleanup.h"
#include "util/jsontext.h"
#include "storage/nbduri.h"
#include "plugin/ownsockets.h"
#include "plugin/qmptarget.h"
#include "plugin/qmpwhere.h"

const struct qmparg qmpwhere_arguments[] = {
  { "device", QMPARG_STRING, false }, { .key = NULL }
};

struct places {
  int spared;                   /* the control socket */
  const char *export;
  char *uri;                    /* NULL: none is known */
  bool local;                   /* it is that of a Unix socket */
};

/* A socket for all addresses is found at any of them. */
static char *
uri_of_port (const union ownsocket_address *own, const char *export)
{
  const socklen_t len = own->any.sa_family == AF_INET ? sizeof own->ip : sizeof own->ip6;
  char host[NI_MAXHOST], port[NI_MAXSERV];

  if (getnameinfo (&own->any, len, host, sizeof host, port, sizeof port,
                   NI_NUMERICHOST | NI_NUMERICSERV) != 0)
    return NULL;
  if (strcmp (host, "0.0.0.0") == 0 || strcmp (host, "::") == 0)
    strcpy (host, "localhost");
  return nbduri_make (host, port, NULL, export);
}

static void
take (void *opaque, int fd, int copy, const union ownsocket_address *own)
{
  struct places *p = opaque;
  const bool local = own->any.sa_family == AF_UNIX && own->path.sun_path[0] == '/';
  char *uri;

  (void) copy;
  if (fd == p->spared || p->local || (p->uri && !local))
    return;
  uri = local ? nbduri_make (NULL, NULL, own->path.sun_path, p->export)
    : own->any.sa_family == AF_INET || own->any.sa_family == AF_INET6
    ? uri_of_port (own, p->export) : NULL;
  if (uri == NULL)
    return;
  free (p->uri);
  p->uri = uri;
  p->local = local;
}

json_t *
qmpwhere_query (const struct qmp_host *host, const json_t *arguments, struct qmp_error *e)
{
  const char *device = qmpargs_text (arguments, "device");
  struct qmp_target target = { .disk = NULL };
  struct places p = { .spared = host->socket };
  CLEANUP_FREE char *name = NULL;
  json_t *answer;

  if (qmptarget_need (host, device, &target, e) == -1)
    return NULL;
  /* (A node of a directory is called IMAGE/node0.) */
  name = host->dir ? strndup (device, strcspn (device, "/")) : strdup ("");
  p.export = name;
  if (name)
    ownsockets_each (take, &p, true);
  qmptarget_leave (&target);
  answer = jsontext_object ({ "export", name ? jsontext_string (name) : NULL });
  if (p.uri)
    answer = jsontext_add (answer, { "uri", jsontext_string (p.uri) });
  free (p.uri);
  if (answer == NULL)
    qmp_refuse (e, "out of memory");
  return answer;
}
