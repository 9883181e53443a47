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
 * number; names stay with their files.  A device also means the node of the image itself,
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
#include "plugin/qmptarget.h"

#define DEVICE QMPTARGET_DEVICE
#define NODE "node"

/* Is NAME a node of a chain of N files?  *LAYER: which one. */
static bool
parse_node (const struct qmp_host *host, const char *name, unsigned n, unsigned *layer)
{
  const struct qmp_tops *tops = host->tops;
  char text[24];
  unsigned i;

  for (i = 0; i < tops->n; i++)
    if (strcmp (tops->names[i], name) == 0) {
      *layer = tops->n - 1 - i;
      return true;
    }
  if (strncmp (name, NODE, strlen (NODE)) != 0)
    return false;
  i = strtoul (name + strlen (NODE), NULL, 10);
  snprintf (text, sizeof text, NODE "%u", i);
  if (i >= n - tops->n || strcmp (name, text) != 0)
    return false;
  *layer = i + tops->n;
  return true;
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
      parse_node (host, node, count_nodes (t->disk), &t->layer))
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
  const unsigned tops = host->tops->n;

  return host->dir ? text_new ("%s/" NODE "%u", device, layer)
    : layer < tops ? text_new ("%s", host->tops->names[tops - 1 - layer])
    : text_new (NODE "%u", layer - tops);
}

/* --- images on top --- */

bool
qmptarget_is_used (const struct qmp_host *host, struct disk *disk, const char *name)
{
  unsigned layer;

  return strcmp (name, DEVICE) == 0 || parse_node (host, name, count_nodes (disk), &layer);
}

char *
qmptarget_new_top (const struct qmp_host *host, struct disk *disk, const char *name)
{
  struct qmp_tops *const tops = host->tops;
  char **names = reallocarray (tops->names, tops->n + 1, sizeof *names);
  unsigned number = count_nodes (disk);
  char text[24];

  if (names == NULL)
    return NULL;
  tops->names = names;
  if (name)
    return strdup (name);
  do
    snprintf (text, sizeof text, NODE "%u", number++);
  while (qmptarget_is_used (host, disk, text));
  return strdup (text);
}

void
qmptarget_add_top (const struct qmp_host *host, char *name)
{
  host->tops->names[host->tops->n++] = name;
}

void
qmptarget_free_tops (struct qmp_tops *tops)
{
  for (unsigned i = 0; i < tops->n; i++)
    free (tops->names[i]);
  free (tops->names);
  *tops = (struct qmp_tops) { .n = 0 };
}
