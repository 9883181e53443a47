/* SPDX-License-Identifier: BSD-3-Clause
 *
 * How does a backup read and change a disk, in use or at rest?
 *
 * In use, it asks the server (live.c), and is a client of its exports.  It is one of the
 * active disk all the time: a server of a directory tells only of images that have
 * clients.
 *
 * At rest, it opens the image, and uses the same exports without a server.
 *
 * Locks: none.
 */

#include <config.h>

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <linux/loop.h>

#include "util/cleanup.h"
#include "util/jsontext.h"
#include "util/report.h"
#include "util/text.h"
#include "storage/nbduri.h"
#include "request/bitmap.h"
#include "disk/export.h"
#include "change/edit.h"
#include "img/backupdisk.h"
#include "img/change.h"

/* How long a server may need to notice that a client has left. */
#define LEAVE_TRIES 500
#define LEAVE_NS 20000000
/* Loop devices over one another that are followed. */
#define MOST_LOOPS 16
/* Bytes of the name of a device. */
#define NODE 256

static int
no_memory (const struct backupdisk *d)
{
  return report_refusal (ENOMEM, "%s: no memory for a backup", d->name);
}

/* --- the exports of a server --- */

/* Its EXPORT. */
static int
connect_to (struct backupdisk *d, const char *export, struct imagefile **f,
            struct storage **s)
{
  CLEANUP_FREE char *uri = live_uri (d->name, d->nbd, d->prefix, export);
  struct storage_options options = { .link = NULL };

  if (uri == NULL)
    return -1;
  *f = imagefile_new (d->a, uri, "raw", NULL);
  if (*f == NULL)
    return -1;
  options.link = &(*f)->options.link;
  return storage_open ((*f)->path, &options, s);
}

/* How QMP calls the disk: NAME may be its file.  (It may be one of a directory that the
 * server tells nothing of yet.) */
static int
find_device (struct backupdisk *d)
{
  const bool before = report_silence (true);
  const bool found = live_use (d->live, d->name) == 0 && live_is_known (d->live);

  report_silence (before);
  d->device = strdup (found ? live_device (d->live) : d->name);
  return d->device ? 0 : no_memory (d);
}

int
backupdisk_use (struct backupdisk *d, const struct arguments *a, struct live *l,
                const char *name, const char *nbd)
{
  *d = (struct backupdisk) { .a = a, .live = l, .name = name };
  return find_device (d) == -1 ||
    live_find_server (l, d->name, d->device, nbd, &d->nbd, &d->prefix) == -1 ||
    connect_to (d, "", &d->held, &d->client) == -1 ? -1 : backupdisk_look (d);
}

/* --- an image at rest --- */

int
backupdisk_open (struct backupdisk *d, const struct arguments *a, const char *name,
                 const struct secrets *secrets)
{
  *d = (struct backupdisk) { .a = a, .name = name };
  d->file = imagefile_named (a, name, value_of (a, &option_format), secrets);
  if (d->file == NULL || imagefile_need_qcow2 (d->file, "incremental backups") == -1)
    return -1;
  imagefile_will_write (d->file);
  if (disk_open (&d->file->options, &d->disk) == -1 || disk_lock (d->disk) == -1)
    return -1;
  disk_allow_ahead (d->disk);
  return backupdisk_look (d);
}

void
backupdisk_close (struct backupdisk *d)
{
  KEEP_ERRNO_FOR_BLOCK;

  storage_close (d->client);
  imagefile_free (d->held);
  disk_close (d->disk);
  imagefile_free (d->file);
  free (d->device);
  free (d->prefix);
  free (d->nbd);
  json_decref (d->bitmaps);
  json_decref (d->snapshots);
}

/* --- what is there --- */

static int
look_live (struct backupdisk *d)
{
  const json_t *inserted, *image;

  if (live_use (d->live, d->device) == -1)
    return -1;
  inserted = live_inserted (d->live);
  if (inserted == NULL)
    return -1;
  image = json_object_get (inserted, "image");
  d->size = json_integer_value (json_object_get (image, "virtual-size"));
  d->cluster_size = json_integer_value (json_object_get (image, "cluster-size"));
  d->encrypted = json_is_true (json_object_get (inserted, "encrypted"));
  d->bitmaps = json_incref (json_object_get (inserted, "dirty-bitmaps"));
  d->snapshots = json_incref (json_object_get (image, "snapshots"));
  return 0;
}

static int
look_at_rest (struct backupdisk *d)
{
  struct bitmaps *bitmaps = disk_bitmaps (d->disk);
  const struct view *view = disk_inside (d->disk).view;
  const struct snapshots *snapshots = &view->image->snapshots;

  d->size = view->size;
  d->cluster_size = view->image->header.cluster_size;
  d->encrypted = view->image->header.crypt_method != QCOW2_CRYPT_NONE;
  d->bitmaps = json_array ();
  d->snapshots = json_array ();
  for (size_t i = 0; i < bitmap_count (bitmaps); i++) {
    const struct bitmapdir_any *b = bitmap_get (bitmaps, i);
    const bool valid = !(b->flags & QCOW2_BITMAP_IN_USE);

    d->bitmaps = jsontext_append (d->bitmaps, jsontext_object (
      { "name", jsontext_string (b->name) },
      { "recording", json_boolean (valid && b->flags & QCOW2_BITMAP_AUTO) },
      { "inconsistent", json_boolean (!valid) }));
  }
  for (uint32_t i = 0; i < snapshots->n; i++)
    d->snapshots = jsontext_append (d->snapshots, jsontext_object (
      { "name", jsontext_string (snapshots->list[i].name) }));
  return d->bitmaps && d->snapshots ? 0 : no_memory (d);
}

int
backupdisk_look (struct backupdisk *d)
{
  json_decref (d->bitmaps);
  json_decref (d->snapshots);
  d->bitmaps = d->snapshots = NULL;
  return d->live ? look_live (d) : look_at_rest (d);
}

/* --- changes --- */

static json_t *
add_actions (json_t *list, const struct backupdisk *d, const struct backupdisk_edit *e)
{
  if (e->snapshot)
    list = jsontext_append (list, jsontext_object (
      { "type", jsontext_string ("blockdev-snapshot-internal-sync") },
      { "data", jsontext_object ({ "device", jsontext_string (d->device) },
                                 { "name", jsontext_string (e->snapshot) }) }));
  for (size_t i = 0; i < e->n; i++)
    list = jsontext_append (list, change_bitmap_action (d->device, &e->list[i]));
  return list;
}

int
backupdisk_edit (struct backupdisk *disks, const struct backupdisk_edit *edits, unsigned n)
{
  json_t *list = json_array ();

  for (unsigned i = 0; i < n; i++)
    if (disks[i].live)
      list = add_actions (list, &disks[i], &edits[i]);
    else if (bitmapedit_with_snapshot (disks[i].disk, edits[i].snapshot, edits[i].list,
                                       edits[i].n, NULL) == -1) {
      json_decref (list);
      return -1;
    }
  if (disks[0].live)
    return live_do (disks[0].live, "transaction", jsontext_object ({ "actions", list }));
  json_decref (list);
  return 0;
}

/* The server does not delete it until it has noticed that this program does not read it
 * any more. */
static int
drop_live (const struct backupdisk *d, const char *name)
{
  const struct timespec moment = { .tv_nsec = LEAVE_NS };
  bool last = false, before;
  int r = -1;

  for (unsigned i = 1; r == -1 && !last; i++) {
    last = i == LEAVE_TRIES;
    before = report_silence (!last);
    r = live_do (d->live, "blockdev-snapshot-delete-internal-sync", jsontext_object (
      { "device", jsontext_string (d->device) }, { "name", jsontext_string (name) }));
    report_silence (before);
    if (r == -1 && errno != EINVAL && !last) {  /* it was not refused */
      report_error ("%s: the server has gone", d->name);
      return -1;
    }
    if (r == -1 && !last)
      nanosleep (&moment, NULL);
  }
  return r;
}

int
backupdisk_drop_snapshot (struct backupdisk *d, const char *name)
{
  const struct edit e = { .kind = EDIT_SNAPSHOT_DELETE, .name = name };
  const struct edit_options options = { .shrink = false };

  return d->live ? drop_live (d, name) : edit_disk (d->disk, &options, &e, 1);
}

/* --- another name of the disk --- */

static bool
has_export (const struct backupdisk *d, const char *uri, const char *export)
{
  CLEANUP_FREE char *other = live_uri (d->name, uri, d->prefix, export);
  struct imagefile *f = other ? imagefile_new (d->a, other, "raw", NULL) : NULL;
  const struct storage_options options = { .link = f ? &f->options.link : NULL };
  struct storage *s = NULL;
  const bool has = f && storage_open (f->path, &options, &s) == 0;

  storage_close (s);
  imagefile_free (f);
  return has;
}

/* A server of which the same disk is served has an export of the snapshot there.  (Some
 * servers have all names.) */
bool
backupdisk_is_at (const struct backupdisk *d, const char *uri, const char *snapshot)
{
  const bool asks = d->live && nbduri_is (uri);
  const bool before = report_silence (true);
  CLEANUP_FREE char *here = asks ? live_uri (d->name, uri, d->prefix, "") : NULL;
  CLEANUP_FREE char *none = asks ? text_new ("%s-none", snapshot) : NULL;
  const bool is = here && none && nbduri_same (here, uri) &&
    has_export (d, uri, snapshot) && !has_export (d, uri, none);

  report_silence (before);
  return is;
}

const char *
backupdisk_file (const struct backupdisk *d)
{
  return d->live
    ? jsontext_text (json_object_get (live_inserted (d->live), "image"), "filename")
    : d->file->options.path;
}

/* Two names with the same place are of the same bytes. */
struct place { dev_t dev; ino_t ino; };        /* INO 0: the device itself */

/* Where udev, or devtmpfs, has the node of a device.  false: not there. */
static bool
find_node (dev_t device, char node[NODE])
{
  char link[64], to[NODE];
  struct stat st;
  ssize_t n;

  snprintf (link, sizeof link, "/sys/dev/block/%u:%u", major (device), minor (device));
  n = readlink (link, to, sizeof to - 1);
  to[n < 0 ? 0 : n] = '\0';
  snprintf (node, NODE, "/dev%s", strrchr (to, '/') ?: "");
  return stat (node, &st) == 0 && S_ISBLK (st.st_mode) && st.st_rdev == device;
}

/* A loop device is the file behind it, through so many of them.  false: there is none. */
static bool
find_place (const char *path, unsigned loops, struct place *p)
{
  struct loop_info64 loop;
  char node[NODE];
  struct stat st;
  int fd;

  if (stat (path, &st) == -1)
    return false;
  *p = (struct place) { st.st_dev, st.st_ino };
  if (!S_ISBLK (st.st_mode))
    return true;
  *p = (struct place) { st.st_rdev, 0 };
  fd = open (path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  if (fd >= 0 && ioctl (fd, LOOP_GET_STATUS64, &loop) == 0) {
    *p = loop.lo_rdevice ? (struct place) { loop.lo_rdevice, 0 }
      : (struct place) { loop.lo_device, loop.lo_inode };
    if (loop.lo_rdevice && loops > 1 && find_node (loop.lo_rdevice, node))
      find_place (node, loops - 1, p);
  }
  if (fd >= 0)
    close (fd);
  return true;
}

static bool
is_place (const char *path, const struct place *p)
{
  struct place q;

  return path && find_place (path, MOST_LOOPS, &q) && p->dev == q.dev && p->ino == q.ino;
}

bool
backupdisk_has_file (const struct backupdisk *d, const char *path)
{
  const struct layers *layers = d->live ? NULL : disk_inside (d->disk).view->layers;
  const json_t *inserted = d->live ? live_inserted (d->live) : NULL;
  const json_t *image = json_object_get (inserted, "image");
  bool has = false;
  struct place p;

  if (!find_place (path, MOST_LOOPS, &p))
    return false;
  for (unsigned i = 0; layers && i < layers_count (layers); i++)
    has |= is_place (storage_path (layers_file (layers, i)), &p) ||
      is_place (storage_path (layers_data_file (layers, i)), &p);
  for (; image; image = json_object_get (image, "backing-image")) {
    CLEANUP_FREE char *file = jsontext_bytes (jsontext_text (image, "filename"));

    has |= is_place (file, &p);
  }
  return has;
}

/* --- reading --- */

int
backupend_open (struct backupdisk *d, const char *export, bool changes,
                struct backupend *e)
{
  *e = (struct backupend) { .file = NULL };
  if (d->live) {
    if (connect_to (d, export, &e->file, &e->storage) == -1)
      return -1;
    e->end = changes ? copy_changes (e->storage) : copy_storage (e->storage, false);
    return 0;
  }
  e->export = export_open (d->disk, export, false);
  if (e->export == NULL)
    return -1;
  e->end = copy_export (d->disk, e->export);
  return 0;
}

void
backupend_close (struct backupend *e)
{
  KEEP_ERRNO_FOR_BLOCK;

  storage_close (e->storage);
  imagefile_free (e->file);
  if (e->export)
    export_close (e->export);   /* nothing was written */
  *e = (struct backupend) { .file = NULL };
}
