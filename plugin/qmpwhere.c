/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Where does a client of NBD on this host find a disk?
 *
 * For programs that begin with the control socket: the name of the disk's export, and the
 * URI of a socket on which this server listens for clients, if it knows one
 * (ownsockets.c).  Of several, a Unix socket is chosen before others.
 *
 * The export of an internal snapshot is called "snapshot.id=ID": whatever snapshots are
 * called, no layer or bitmap has such a name.
 *
 * Locks: none.
 */

#include <config.h>

#include <netdb.h>
#include <string.h>

#include "util/cleanup.h"
#include "util/jsontext.h"
#include "util/report.h"
#include "util/text.h"
#include "storage/nbduri.h"
#include "image/snapshot.h"
#include "plugin/ownsockets.h"
#include "plugin/qmptarget.h"
#include "plugin/qmpwhere.h"

const struct qmparg qmpwhere_arguments[] = {
  { "device", QMPARG_STRING, false }, { "snapshot", QMPARG_STRING, true }, { .key = NULL }
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

/* --- snapshots --- */

static bool
is_in (struct storage *file, const struct header *h, const char *name)
{
  struct snapshots all;
  const bool before = report_silence (true);
  const bool found = snapshots_list (file, h, &all) == 0 && snapshots_find (&all, name);

  report_silence (before);
  snapshots_free (&all);
  return found;
}

/* After an external snapshot, the internal ones are in the image below. */
static void
refuse_snapshot (struct disk *disk, const char *name, struct qmp_error *e)
{
  const struct layers *layers = disk_inside (disk).view->layers;
  const char *path = storage_path (layers_file (layers, 0));

  for (unsigned i = 1; i < layers_count (layers); i++)
    if (layers_header (layers, i) &&
        is_in (layers_file (layers, i), layers_header (layers, i), name)) {
      qmp_refuse (e, "There is no snapshot '%s' in %s; there is one in the file below it, "
                  "which can be read without this server: %s", name, path,
                  storage_path (layers_file (layers, i)));
      return;
    }
  qmp_refuse (e, "There is no snapshot '%s' in %s", name, path);
}

/* The export of the snapshot that the user calls NAME.  NULL: refused. */
static char *
find_snapshot (struct disk *disk, const char *name, struct qmp_error *e)
{
  const struct image *image = disk_inside (disk).view->image;
  const struct snapshots *all = &image->snapshots;
  const struct snapshot *s = snapshots_find (all, name);
  char *export;

  if (s == NULL) {
    refuse_snapshot (disk, name, e);
    return NULL;
  }
  report_watch ();
  if (qmp_refuse_unless (!snapshots_differ (storage_path (image->file), all, name), e) == -1)
    return NULL;
  export = text_new ("snapshot.id=%s", s->id);
  if (export && snapshots_find (all, export) == s)
    return export;
  qmp_refuse (e, export ? "Another snapshot has the id or the name of snapshot '%s'"
              : "out of memory", name);
  free (export);
  return NULL;
}

/* What a client asks for.  (A node of a directory is called IMAGE/node0.)  NULL:
 * refused. */
static char *
choose_export (const struct qmp_host *host, struct disk *disk, const char *device,
               const char *snapshot, struct qmp_error *e)
{
  const int len = host->dir ? strcspn (device, "/") : 0;
  CLEANUP_FREE char *found = snapshot ? find_snapshot (disk, snapshot, e) : NULL;
  char *name;

  if (snapshot && found == NULL)
    return NULL;
  name = text_new ("%.*s%s%s", len, device, found && len ? "/" : "", found ? found : "");
  if (name == NULL)
    qmp_refuse (e, "out of memory");
  return name;
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
  if (target.layer > 0)
    qmp_refuse (e, "Node '%s' is not the top of its disk", device);
  else
    name = choose_export (host, target.disk, device, qmpargs_text (arguments, "snapshot"), e);
  p.export = name;
  if (name)
    ownsockets_each (take, &p, true);
  qmptarget_leave (&target);
  if (name == NULL)
    return NULL;
  answer = jsontext_object ({ "export", jsontext_string (name) });
  if (p.uri)
    answer = jsontext_add (answer, { "uri", jsontext_string (p.uri) });
  free (p.uri);
  if (answer == NULL)
    qmp_refuse (e, "out of memory");
  return answer;
}
