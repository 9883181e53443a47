/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Which disk, and which file of it, does a name mean in a command?
 *
 *              one image    a directory
 *   device     disk         IMAGE
 *   node       node0        IMAGE/node0        the image itself
 *              node1        IMAGE/node1        its backing file, and so on
 *
 * Images that were put on top later have the name that the command gave, or the next
 * number; names stay with their files.  (In a directory, nodes are always numbered from
 * the top.)  A device also means the node of the image itself,
 * so commands take either.
 *
 * All changes of disks are made by the thread that runs commands, so a disk that was
 * found stays as it is until that thread changes it.
 *
 * Locks: none of its own.
 */

#include <config.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "util/cleanup.h"
#include "util/report.h"
#include "util/text.h"
#include "change/edit.h"
#include "plugin/qmpnodes.h"
#include "plugin/qmptarget.h"

#define MAX_NODE_NAME 31

#define DEVICE QMPTARGET_DEVICE
#define NODE "node"

unsigned
qmptarget_count (struct disk *disk)
{
  return layers_count (disk_inside (disk).view->layers);
}

/* Is NAME a node of a chain of N files?  *LAYER: which one. */
static bool
parse_number (const char *name, unsigned n, unsigned *layer)
{
  char text[24];

  if (strncmp (name, NODE, strlen (NODE)) != 0)
    return false;
  *layer = strtoul (name + strlen (NODE), NULL, 10);
  snprintf (text, sizeof text, NODE "%u", *layer);
  return *layer < n && strcmp (name, text) == 0;
}

static bool
find_node (const struct qmp_host *host, struct disk *disk, const char *name,
           unsigned *layer)
{
  const struct qmp_nodes *const nodes = host->nodes;

  if (host->dir)
    return parse_number (name, qmptarget_count (disk), layer);
  for (unsigned i = 0; i < nodes->n; i++)
    if (strcmp (nodes->names[i], name) == 0) {
      *layer = nodes->n - 1 - i;
      return true;
    }
  return false;
}

/* The image of the directory, and what follows its name. */
static int
enter (struct dir *dir, const char *name, struct qmp_target *t, const char **node,
       struct qmp_error *e)
{
  CLEANUP_FREE char *why = NULL;

  report_watch ();
  t->image = dir_enter (dir, name, node);
  why = report_first ();
  if (t->image) {
    t->dir = dir;
    t->disk = dir_disk (t->image);
    return 0;
  }
  return errno == ENOENT ? -1 : qmp_refuse (e, "%s", why ? why : "out of memory");
}

int
qmptarget_find (const struct qmp_host *host, const char *name, struct qmp_target *t,
                struct qmp_error *e)
{
  const char *node = name;

  *t = (struct qmp_target) { .disk = host->disk };
  if (host->dir && enter (host->dir, name, t, &node, e) == -1)
    return -1;
  if ((host->dir ? node[0] == '\0' : strcmp (name, DEVICE) == 0) ||
      find_node (host, t->disk, node, &t->layer))
    return 0;
  qmptarget_leave (t);
  return -1;
}

int
qmptarget_need (const struct qmp_host *host, const char *name, struct qmp_target *t,
                struct qmp_error *e)
{
  return qmptarget_find (host, name, t, e) == 0 ? 0
    : qmp_refuse (e, "Cannot find device='%s' nor node-name='%s'", name, name);
}

unsigned
qmptarget_find_file (struct disk *disk, const char *path, unsigned from)
{
  const struct layers *layers = disk_inside (disk).view->layers;
  unsigned i;

  for (i = from; i < layers_count (layers); i++) {
    const char *above = storage_path (layers_file (layers, i > 0 ? i - 1 : 0));

    if (edit_name_means (disk_get_options (disk), above, path, layers_file (layers, i)))
      break;
  }
  return i;
}

int
qmptarget_find_layer (const struct qmp_host *host, const struct qmp_target *disk,
                      const char *name, unsigned *layer, struct qmp_error *e)
{
  struct qmp_target t;
  bool same;

  if (qmptarget_find (host, name, &t, e) == -1)
    return qmp_refuse (e, "Cannot find device='' nor node-name='%s'", name);
  same = t.disk == disk->disk;
  *layer = t.layer;
  qmptarget_leave (&t);
  return same;
}

void
qmptarget_leave (struct qmp_target *t)
{
  if (t->image)
    dir_leave (t->dir, t->image);
  *t = (struct qmp_target) { .disk = NULL };
}

int
qmptarget_each (const struct qmp_host *host, dir_fn fn, void *opaque)
{
  return host->dir ? dir_each (host->dir, fn, opaque) : fn (opaque, DEVICE, host->disk);
}

char *
qmptarget_node (const struct qmp_host *host, const char *device, unsigned layer)
{
  const struct qmp_nodes *const nodes = host->nodes;

  return host->dir ? text_new ("%s/" NODE "%u", device, layer)
    : strdup (nodes->names[nodes->n - 1 - layer]);
}

/* --- layers come and go --- */

/* Makes space for one more.  -1: ENOMEM. */
static int
reserve_node (struct qmp_nodes *nodes)
{
  char **names = reallocarray (nodes->names, nodes->n + 1, sizeof *names);

  if (names)
    nodes->names = names;
  return names ? 0 : -1;
}

int
qmptarget_name_nodes (const struct qmp_host *host)
{
  struct qmp_nodes *const nodes = host->nodes;

  for (unsigned i = host->dir ? 0 : qmptarget_count (host->disk); i-- > 0; nodes->n++)
    if (reserve_node (nodes) == -1 ||
        (nodes->names[nodes->n] = text_new (NODE "%u", i)) == NULL) {
      report_error ("malloc: %m");
      return -1;
    }
  return host->dir ? 0
    : qmpnodes_begin (host->added, nodes->names[nodes->n - 1],
                      disk_get_options (host->disk)->path,
                      disk_inside (host->disk).view->size);
}

void
qmptarget_free_nodes (struct qmp_nodes *nodes)
{
  for (unsigned i = 0; i < nodes->n; i++)
    free (nodes->names[i]);
  free (nodes->names);
  *nodes = (struct qmp_nodes) { .n = 0 };
}

int
qmptarget_check_name (const char *name, struct qmp_error *e)
{
  if (!qmpargs_is_id (name))
    return qmp_refuse (e, "Invalid node-name: '%s'", name);
  return strlen (name) <= MAX_NODE_NAME ? 0 : qmp_refuse (e, "Node name too long");
}

/* (Also by an image of the directory that cannot be opened.) */
bool
qmptarget_is_used (const struct qmp_host *host, const char *name)
{
  struct qmp_error e = { .desc = NULL };
  struct qmp_target t = { .disk = NULL };
  const bool before = report_silence (true);
  const bool used = qmpnodes_find (host->added, name) ||
    qmptarget_find (host, name, &t, &e) == 0 || e.desc;

  report_silence (before);
  qmptarget_leave (&t);
  qmp_error_free (&e);
  return used;
}

/* The next number that no node has; *NEXT: where to look first. */
static char *
new_number (const struct qmp_host *host, unsigned *next)
{
  char *number = NULL;

  do {
    free (number);
    number = text_new (NODE "%u", (*next)++);
  } while (number && qmptarget_is_used (host, number));
  return number;
}

char *
qmptarget_new_top (const struct qmp_host *host, const char *name)
{
  struct qmp_nodes *const nodes = host->nodes;
  unsigned next = nodes->n;

  if (reserve_node (nodes) == -1)
    return NULL;
  return name ? strdup (name) : new_number (host, &next);
}

void
qmptarget_add_top (const struct qmp_host *host, char *name)
{
  host->nodes->names[host->nodes->n++] = name;
}

int
qmptarget_name_chain (const struct qmp_host *host, unsigned n, unsigned keep,
                      const char *name, struct qmp_nodes *new)
{
  unsigned next = host->nodes->n;

  *new = (struct qmp_nodes) { .names = calloc (n, sizeof *new->names) };
  for (; new->names && new->n < n; new->n++) {
    char *const one = new->n < keep ? strdup (host->nodes->names[new->n])
      : new->n == n - 1 ? strdup (name) : new_number (host, &next);

    if (one == NULL)
      break;
    new->names[new->n] = one;
  }
  if (new->n == n)
    return 0;
  qmptarget_free_nodes (new);
  return -1;
}

static bool
is_among (const struct qmp_nodes *nodes, const char *name)
{
  for (unsigned i = 0; i < nodes->n; i++)
    if (strcmp (nodes->names[i], name) == 0)
      return true;
  return false;
}

void
qmptarget_switch_chain (const struct qmp_host *host, struct qmp_nodes *new)
{
  for (unsigned i = 0; i < host->nodes->n; i++)
    if (!is_among (new, host->nodes->names[i]))
      qmpnodes_leave (host->added, host->nodes->names[i], i == host->nodes->n - 1);
  qmptarget_free_nodes (host->nodes);
  *host->nodes = *new;
  *new = (struct qmp_nodes) { .n = 0 };
}

void
qmptarget_remove (const struct qmp_host *host, unsigned first, unsigned n)
{
  struct qmp_nodes *const nodes = host->nodes;
  char **const end = nodes->names + nodes->n - first;   /* above the removed ones */

  if (host->dir)
    return;
  for (char **p = end - n; p < end; p++) {
    qmpnodes_leave (host->added, *p, p == nodes->names + nodes->n - 1);
    free (*p);
  }
  memmove (end - n, end, first * sizeof *end);
  nodes->n -= n;
}
