/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Which disk, and which file of it, does a name mean in a command?
 *
 *              one image    a directory
 *   device     disk         IMAGE
 *   node       node0        IMAGE/node0        the image itself
 *              node1        IMAGE/node1        its backing file, and so on
 *
 * A device also means its node 0, so commands take either.
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
#include "plugin/qmptarget.h"

#define DEVICE QMPTARGET_DEVICE
#define NODE "node"

/* Is NAME a node of a chain of N files?  *LAYER: which one. */
static bool
parse_node (const char *name, unsigned n, unsigned *layer)
{
  char text[24];

  if (strncmp (name, NODE, strlen (NODE)) != 0)
    return false;
  *layer = strtoul (name + strlen (NODE), NULL, 10);
  snprintf (text, sizeof text, NODE "%u", *layer);
  return *layer < n && strcmp (name, text) == 0;
}

static unsigned
count_nodes (struct disk *disk)
{
  return layers_count (disk_inside (disk).view->layers);
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
      parse_node (node, count_nodes (t->disk), &t->layer))
    return 0;
  qmptarget_leave (t);
  return -1;
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
  char *name;
  const int n = host->dir ? asprintf (&name, "%s/" NODE "%u", device, layer)
    : asprintf (&name, NODE "%u", layer);

  return n == -1 ? NULL : name;
}
