/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Which nodes were added by commands, beside those of the disks that are served?
 *
 * A node is a file that other commands can use: as a new top of a disk, or as the target
 * of a job.  It is a protocol (a file, a device, an NBD export), or a format over one.
 * As in QEMU, the image of a format is opened and locked when the node is added, a
 * writable one as by a writer, with its backing chain; a protocol takes no locks, nor
 * does a raw format before something writes to it.
 *
 * Nodes that are in use stay.  One that becomes a part of a disk keeps its name: as in
 * QEMU, it can be removed when it has left the disk, and until then no other has that
 * name, and queries show it.  So it is with the disk's own image.
 * There are MOST_NODES at most, beside those.
 *
 * Locks: none; one thread runs commands.
 */

#include <config.h>

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "util/cleanup.h"
#include "util/memory.h"
#include "util/report.h"
#include "storage/nbduri.h"
#include "plugin/qmpnodes.h"

#define MOST_NODES 64
/* Of those that no client removes when they have left, the next ones are removed. */
#define MOST_LEFT 1000

struct qmp_node *
qmpnodes_find (const struct qmp_added *added, const char *name)
{
  struct qmp_node *n = added->first;

  while (n && (n->name == NULL || strcmp (n->name, name) != 0))
    n = n->next;
  return n;
}

/* --- opening --- */

/* How the server opens images, for the file at PATH. */
static struct disk_options
options_for (const struct disk_options *o, const struct qmp_node *n)
{
  struct disk_options options = *o;

  options.path = n->path;
  options.in_dir = (struct dirfile) { .name = NULL };
  options.backing = n->backing;
  options.backing_path = options.backing_format = NULL;
  options.data_file = DATA_FILE_FOLLOW;
  options.secret = (struct image_secret) { .passphrase = NULL };
  /* (An export has no locks to hold.) */
  options.lock = o->lock && !nbduri_is (n->path);
  return options;
}

static int
open_protocol (struct qmp_node *n, const struct disk_options *o)
{
  const struct storage_options options = {
    .try_writable = !n->readonly, .cache = o->cache, .link = &o->link, .hooks = o->hooks,
  };

  if (storage_open (n->path, &options, &n->storage) == -1)
    return -1;
  storage_disconnect (n->storage);      /* until it is used */
  return 0;
}

static int
open_image (struct qmp_node *n, const struct disk_options *o)
{
  const struct disk_options options = options_for (o, n);

  n->image = disk_open_image (&options);
  if (n->image == NULL || image_load (n->image) == -1 ||
      image_read_snapshots (n->image) == -1)
    return -1;
  n->layers = disk_open_layers (&options, n->image);
  return n->layers ? 0 : -1;
}

static const char *
why_readonly (const struct qmp_node *n)
{
  return n->image ? image_why_readonly (n->image)
    : storage_is_writable (n->storage) ? NULL
    : storage_why_readonly (n->storage) ? storage_why_readonly (n->storage)
    : "it cannot be written";
}

/* May it be written, if it should? */
static int
make_writable (struct qmp_node *n, bool or_not)
{
  const char *why = n->readonly ? NULL : why_readonly (n);

  if (why && !or_not)
    return report_refusal (EACCES, "%s: cannot be opened for writing: %s", n->path, why);
  n->readonly |= why != NULL;
  return n->readonly || n->image == NULL ? 0 : image_lock (n->image, IMAGE_WRITER);
}

static int
open_node (struct qmp_node *n, const struct disk_options *o, bool auto_readonly)
{
  if (n->file == NULL) {
    if (open_protocol (n, o) == -1)
      return -1;
  }
  else if (strcmp (n->driver, "raw") == 0) {
    n->storage = n->file->storage;
    n->readonly |= n->file->readonly;
  }
  else if (open_image (n, o) == -1)
    return -1;
  return make_writable (n, auto_readonly);
}

/* --- nodes come and go --- */

static void
close_image (struct qmp_node *n)
{
  layers_free (n->layers);
  image_close (n->image);
  n->layers = NULL;
  n->image = NULL;
}

static void
free_node (struct qmp_node *n)
{
  KEEP_ERRNO_FOR_BLOCK;

  close_image (n);
  if (n->file == NULL)
    storage_close (n->storage);
  free (n->path);
  free (n->name);
  free (n);
}

static struct qmp_node *
new_node (const struct qmp_node_options *what)
{
  struct qmp_node *n = memory_new (1, sizeof *n);

  if (n == NULL)
    return NULL;
  *n = (struct qmp_node) {
    .driver = what->driver, .file = what->file, .inner = what->inner,
    .readonly = what->readonly, .backing = what->backing,
    .name = what->name ? memory_text (what->name) : NULL,
    .path = memory_text (what->file ? what->file->path : what->path),
  };
  if (n->path && (n->name || what->name == NULL))
    return n;
  free_node (n);
  return NULL;
}

struct qmp_node *
qmpnodes_add (struct qmp_added *added, const struct disk_options *o,
              const struct qmp_node_options *what)
{
  struct qmp_node *n;

  if (added->n >= MOST_NODES) {
    report_error ("there are %d nodes that were added already", MOST_NODES);
    errno = ENOSPC;
    return NULL;
  }
  n = new_node (what);
  if (n == NULL)
    return NULL;
  if (open_node (n, o, what->auto_readonly) == -1) {
    free_node (n);
    return NULL;
  }
  if (n->file)
    n->file->users++;
  n->next = added->first;
  added->first = n;
  added->n++;
  return n;
}

void
qmpnodes_remove (struct qmp_added *added, struct qmp_node *n)
{
  struct qmp_node **p = &added->first;
  struct qmp_node *const file = n->file;

  while (*p != n)
    p = &(*p)->next;
  *p = n->next;
  added->n -= !n->served && !n->left;
  free_node (n);
  if (file && --file->users == 0 && file->inner)
    qmpnodes_remove (added, file);
}

int
qmpnodes_begin (struct qmp_added *added, const char *name, const char *path, uint64_t size)
{
  const struct qmp_node_options what = { .name = name, .driver = "qcow2", .path = path };
  struct qmp_node *n = new_node (&what);

  if (n == NULL)
    return -1;
  n->served = true;
  n->users = 1;
  n->size = size;
  n->next = added->first;
  added->first = n;
  return 0;
}

struct image *
qmpnodes_look (const struct qmp_node *n, const struct disk_options *o)
{
  const struct disk_options options = options_for (o, n);
  const bool before = report_silence (true);
  /* (A server might let queries wait.) */
  struct image *image = nbduri_is (n->path) ? NULL : disk_open_header (&options);

  report_silence (before);
  return image;
}

void
qmpnodes_hand_over (struct qmp_added *added, struct qmp_node *n)
{
  n->size = n->image->header.size;
  close_image (n);
  n->served = true;
  n->users++;
  added->n--;
}

static unsigned
count_left (const struct qmp_added *added)
{
  unsigned n = 0;

  for (const struct qmp_node *p = added->first; p; p = p->next)
    n += p->left;
  return n;
}

void
qmpnodes_leave (struct qmp_added *added, const char *name, bool top)
{
  struct qmp_node *n = qmpnodes_find (added, name);

  if (n == NULL || !n->served)
    return;
  n->served = false;
  n->left = true;
  n->readonly |= !top;
  n->users--;
  if (count_left (added) > MOST_LEFT)
    qmpnodes_remove (added, n);
}

void
qmpnodes_end (struct qmp_added *added)
{
  while (added->first)          /* (The node above is newer.) */
    qmpnodes_remove (added, added->first);
}

void
qmpnodes_read_again (struct qmp_node *n, const struct disk_options *o)
{
  const struct disk_options options = options_for (o, n);
  struct image *again = image_again (n->image);
  struct layers *layers = again ? disk_open_layers (&options, again) : NULL;

  if (layers == NULL) {
    image_close (again);
    n->readonly = true;
    return;
  }
  image_adopt (again);
  layers_free (n->layers);
  image_close (n->image);
  n->layers = layers;
  n->image = again;
}
