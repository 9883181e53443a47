/* SPDX-License-Identifier: BSD-3-Clause
 *
 * How do commands add nodes, and remove them?
 *
 * blockdev-add has a list of arguments for each driver.  A format has the node below it
 * as its `file': the name of a node that was added, or the description of one, which then
 * goes together with it.  What lies below an image is what its header says, or nothing
 * (`backing': null); the name of a node is accepted only if that is what the header says.
 *
 * Of QEMU's other options, those that only say how fast a file is read or written (aio,
 * cache, discard, detect-zeroes) are accepted, and the server's own parameters count.
 *
 * Locks: none; one thread runs commands.
 */

#include <config.h>

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "util/cleanup.h"
#include "util/report.h"
#include "util/text.h"
#include "storage/nbduri.h"
#include "change/edit.h"
#include "plugin/ownsockets.h"
#include "plugin/qmpblockdev.h"
#include "plugin/qmpnodes.h"

/* --- arguments --- */

#define COMMON                                                                  \
  { "detect-zeroes", QMPARG_STRING, true },                                     \
  { "cache", QMPARG_OBJECT, true },                                             \
  { "read-only", QMPARG_BOOL, true },                                           \
  { "auto-read-only", QMPARG_BOOL, true },                                      \
  { "discard", QMPARG_STRING, true },                                           \
  { "node-name", QMPARG_STRING, true },                                         \
  { "driver", QMPARG_STRING, false }

static const struct qmparg of_driver[] = {
  { "driver", QMPARG_STRING, false }, { .key = NULL }
};
static const struct qmparg of_file[] = {
  COMMON, { "filename", QMPARG_STRING, false }, { "aio", QMPARG_STRING, true },
  { .key = NULL }
};
static const struct qmparg of_nbd[] = {
  COMMON, { "server", QMPARG_OBJECT, false }, { "export", QMPARG_STRING, true },
  { .key = NULL }
};
static const struct qmparg of_raw[] = {
  COMMON, { "file", QMPARG_REF, false }, { .key = NULL }
};
static const struct qmparg of_qcow2[] = {
  COMMON, { "file", QMPARG_REF, false }, { "backing", QMPARG_REF_OR_NULL, true },
  { .key = NULL }
};
static const struct qmparg of_unix[] = {
  { "type", QMPARG_STRING, false }, { "path", QMPARG_STRING, false }, { .key = NULL }
};
static const struct qmparg of_inet[] = {
  { "type", QMPARG_STRING, false }, { "host", QMPARG_STRING, false },
  { "port", QMPARG_STRING, false }, { .key = NULL }
};

static const struct driver {
  const char *name;
  const struct qmparg *arguments;
} drivers[] = {
  { "file", of_file }, { "host_device", of_file }, { "nbd", of_nbd }, { "raw", of_raw },
  { "qcow2", of_qcow2 },
};
#define NR_DRIVERS (sizeof drivers / sizeof drivers[0])

/* What is being added. */
struct adding {
  const struct qmp_host *host;
  struct qmp_error *e;
};

static struct qmp_node *add (const struct adding *, const json_t *, const char *where,
                             bool readonly);

static int
check_name (const struct adding *a, const char *name)
{
  if (qmptarget_check_name (name, a->e) == -1)
    return -1;
  return qmptarget_is_used (a->host, name)
    ? qmp_refuse (a->e, "Duplicate nodes with node-name='%s'", name) : 0;
}

/* One of a few words.  (QEMU's text does not say where.) */
static int
check_word (const struct adding *a, const json_t *args, const char *key,
            const char *const *words)
{
  const char *text = qmpargs_text (args, key);

  if (text == NULL)
    return 0;
  for (; *words; words++)
    if (strcmp (*words, text) == 0)
      return 0;
  return qmp_refuse (a->e, "Parameter '%s' does not accept value '%s'", key, text);
}

static int
check_words (const struct adding *a, const json_t *args)
{
  static const char *const zeroes[] = { "off", "on", "unmap", NULL };
  static const char *const discard[] = { "ignore", "unmap", NULL };
  static const char *const aio[] = { "threads", "native", "io_uring", NULL };

  return check_word (a, args, "detect-zeroes", zeroes) == -1 ||
    check_word (a, args, "discard", discard) == -1 ||
    check_word (a, args, "aio", aio) == -1 ? -1 : 0;
}

/* --- protocols --- */

static int
find_path (const struct adding *a, const json_t *args, const char *where, char **path)
{
  const char *name = qmpargs_text (args, "filename");

  if (qmpargs_check_path (name, where, "filename", a->e) == -1)
    return -1;
  *path = strdup (name);
  return *path ? 0 : qmp_refuse (a->e, "out of memory");
}

static int
find_export (const struct adding *a, const json_t *args, const char *where, char **uri)
{
  const json_t *server = json_object_get (args, "server");
  const char *type = qmpargs_text (server, "type");
  const bool local = type && strcmp (type, "unix") == 0;
  const char *export = qmpargs_text (args, "export");
  CLEANUP_FREE char *prefix = text_new ("%sserver.", where);

  if (prefix == NULL)
    return qmp_refuse (a->e, "out of memory");
  if (type && !local && strcmp (type, "inet") != 0)
    return qmp_refuse (a->e, "Parameter 'type' does not accept value '%s'", type);
  if (qmpargs_check (local ? of_unix : of_inet, server, prefix, a->e) == -1)
    return -1;
  /* (A client of its own would wait for itself while a disk changes.) */
  if (ownsockets_listen_at (qmpargs_text (server, "path"), qmpargs_text (server, "host"),
                            qmpargs_text (server, "port")))
    return qmp_refuse (a->e, "Parameter '%sserver' is the address of this server", where);
  *uri = nbduri_make (qmpargs_text (server, "host"), qmpargs_text (server, "port"),
                      qmpargs_text (server, "path"), export ? export : "");
  return *uri ? 0 : qmp_refuse (a->e, "Parameter '%sserver' is no address of an NBD server",
                                where);
}

static struct qmp_node *
add_protocol (const struct adding *a, struct qmp_node_options *o, const json_t *args,
              const char *where)
{
  CLEANUP_FREE char *path = NULL;
  struct qmp_node *n;

  if ((strcmp (o->driver, "nbd") == 0 ? find_export : find_path) (a, args, where, &path)
      == -1)
    return NULL;
  o->path = path;
  report_watch ();
  n = qmpnodes_add (a->host->added, a->host->options, o);
  if (n == NULL && (errno == ENOENT || errno == EACCES || errno == EISDIR))
    qmp_refuse (a->e, "Could not open '%s': %s", path, strerror (errno));
  qmp_refuse_unless (n, a->e);
  return n;
}

/* --- formats --- */

static struct qmp_node *
find_below (const struct adding *a, const json_t *file, const char *where, bool readonly)
{
  const char *name = json_string_value (file);
  CLEANUP_FREE char *prefix = NULL;
  struct qmp_node *n;

  if (name == NULL) {
    prefix = text_new ("%sfile.", where);
    if (prefix)
      return add (a, file, prefix, readonly);
    qmp_refuse (a->e, "out of memory");
    return NULL;
  }
  n = qmpnodes_find (a->host->added, name);
  if (n && n->file == NULL && !n->served && !n->left)
    return n;
  if (n)
    qmp_refuse (a->e, "Node '%s' is not a file: it has a format", name);
  else
    qmp_refuse (a->e, "Cannot find device='%s' nor node-name='%s'", name, name);
  return NULL;
}

/* The file that a node means; NULL: there is none of that name. */
static const struct storage *
file_of_node (const struct adding *a, const char *name)
{
  const struct qmp_node *added = qmpnodes_find (a->host->added, name);
  const struct storage *file = NULL;
  struct qmp_target t;

  if (added && !added->served)
    return added->image ? added->image->file : added->storage;
  if (qmptarget_find (a->host, name, &t, a->e) == -1)
    return NULL;
  file = layers_file (disk_inside (t.disk).view->layers, t.layer);
  qmptarget_leave (&t);
  return file;
}

/* The node that the image should lie over. */
static int
check_backing (const struct adding *a, const struct qmp_node *n, const char *backing)
{
  const struct storage *file = file_of_node (a, backing);
  const char *name = n->image->header.backing_file;

  if (file == NULL)
    return qmp_refuse (a->e, "Could not open backing file: Cannot find device='%s' nor "
                       "node-name='%s'", backing, backing);
  return name && edit_name_means (a->host->options, n->path, name, file) ? 0
    : qmp_refuse (a->e, "Node '%s' cannot be the backing file: the header of '%s' does "
                  "not name it", backing, n->path);
}

/* Is this disk's image one of the node's files?  Then the disk could not be written any
 * more; until it is written, it has only the lock of a reader itself. */
static int
is_served (void *opaque, const char *device, struct disk *disk)
{
  const struct layers *const served = disk_inside (disk).view->layers;
  const struct layers *const layers = opaque;

  (void) device;
  for (unsigned i = 0; i < layers_count (layers); i++)
    if (storage_same (layers_file (layers, i), layers_file (served, 0)) ||
        storage_same (layers_file (layers, i), layers_data_file (served, 0)))
      return 1;
  return 0;
}

static int
check_image (const struct adding *a, const struct qmp_node *n, const json_t *backing)
{
  if (n->layers && qmptarget_each (a->host, is_served, n->layers) != 0)
    return qmp_refuse (a->e, "Failed to get shared \"write\" lock: '%s' is served, or "
                       "lies over what is", n->path);
  return json_is_string (backing)
    ? check_backing (a, n, json_string_value (backing)) : 0;
}

static struct qmp_node *
add_format (const struct adding *a, struct qmp_node_options *o, const json_t *args,
            const char *where)
{
  const json_t *backing = json_object_get (args, "backing");
  struct qmp_node *n;

  if (json_is_object (backing)) {
    qmp_refuse (a->e, "Parameter '%sbacking' expects the name of a node, or null", where);
    return NULL;
  }
  o->backing = json_is_null (backing) ? BACKING_IGNORE : BACKING_FOLLOW;
  o->file = find_below (a, json_object_get (args, "file"), where, o->readonly);
  if (o->file == NULL)
    return NULL;
  report_watch ();
  n = qmpnodes_add (a->host->added, a->host->options, o);
  if (qmp_refuse_unless (n, a->e) == 0 && check_image (a, n, backing) == 0)
    return n;
  if (n)
    qmpnodes_remove (a->host->added, n);
  else if (o->file->inner)
    qmpnodes_remove (a->host->added, o->file);
  return NULL;
}

static const struct driver *
find_driver (const struct adding *a, const json_t *args, const char *where)
{
  const struct driver *d = drivers;
  const json_t *driver = json_object_get (args, "driver");
  const char *name = json_string_value (driver);

  if (name == NULL) {
    if (driver)
      qmp_refuse (a->e, "Invalid parameter type for '%sdriver', expected: string", where);
    else
      qmpargs_check (of_driver, NULL, where, a->e);
    return NULL;
  }
  while (d < drivers + NR_DRIVERS && strcmp (d->name, name) != 0)
    d++;
  if (d < drivers + NR_DRIVERS)
    return d;
  qmp_refuse (a->e, "Parameter 'driver' does not accept value '%s'", name);
  return NULL;
}

/* Adds the node that ARGS describe.  WHERE: "" for the arguments of the command.
 * READONLY: unless they say something else. */
static struct qmp_node *
add (const struct adding *a, const json_t *args, const char *where, bool readonly)
{
  const struct driver *d = find_driver (a, args, where);
  const json_t *flag = json_object_get (args, "read-only");
  struct qmp_node_options o = {
    .name = qmpargs_text (args, "node-name"), .inner = where[0] != '\0',
    .readonly = flag ? json_is_true (flag) : readonly,
    .auto_readonly = qmpargs_flag (args, "auto-read-only"),
  };

  if (d == NULL || qmpargs_check (d->arguments, args, where, a->e) == -1 ||
      check_words (a, args) == -1)
    return NULL;
  o.driver = d->name;
  if (o.name == NULL && !o.inner)
    qmp_refuse (a->e, "'node-name' must be specified for the root node");
  else if (o.name == NULL || check_name (a, o.name) == 0)
    return (d->arguments == of_raw || d->arguments == of_qcow2 ? add_format : add_protocol)
      (a, &o, args, where);
  return NULL;
}

/* --- commands --- */

json_t *
qmpblockdev_add (const struct qmp_host *host, const json_t *arguments, struct qmp_error *e)
{
  const struct adding a = { .host = host, .e = e };

  return add (&a, arguments, "", false) ? json_object () : NULL;
}

const struct qmparg qmpblockdev_of_del[] = {
  { "node-name", QMPARG_STRING, false }, { .key = NULL }
};

json_t *
qmpblockdev_del (const struct qmp_host *host, const json_t *arguments, struct qmp_error *e)
{
  const char *name = qmpargs_text (arguments, "node-name");
  struct qmp_node *n = qmpnodes_find (host->added, name);
  struct qmp_target t;

  if (n && n->served)
    n = NULL;
  if (n && n->users == 0) {
    qmpnodes_remove (host->added, n);
    return json_object ();
  }
  if (n)
    qmp_refuse (e, n->file ? "Node %s is in use" : "Block device %s is in use", name);
  else if (qmptarget_find (host, name, &t, e) == 0) {
    qmp_refuse (e, t.layer == 0 ? "Node %s is in use" : "Block device %s is in use", name);
    qmptarget_leave (&t);
  }
  else
    qmp_refuse (e, "Failed to find node with node-name='%s'", name);
  return NULL;
}
