/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What can be had of an image without changing it?
 *
 * All its exports, alone or from its directory; its description, its map, and a check
 * with a report.
 *
 * Memory may have run out for the core, but not for the test.  Locks: none; one thread.
 */

#include <config.h>

#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "util/bytes.h"
#include "util/cleanup.h"
#include "check/check.h"
#include "disk/chaininfo.h"
#include "disk/chainmap.h"
#include "disk/dir.h"
#include "disk/export.h"
#include "lib/images.h"
#include "lib/reach.h"
#include "lib/shortage.h"
#include "lib/trials.h"
#include "lib/uses.h"

#define BIG (64u << 10)         /* of a request */
#define MOST_NAMES 16
#define REPORT "report"

struct names {
  char *list[MOST_NAMES];
  unsigned n;
};

static int
add_name (void *opaque, const char *name, const char *description)
{
  struct names *names = opaque;
  const bool was_spared = shortage_spare (true);
  char *copy = strdup (name);

  (void) description;
  shortage_spare (was_spared);
  CHECK (copy && names->n < MOST_NAMES);
  names->list[names->n++] = copy;
  return 0;
}

static void
free_names (struct names *names)
{
  for (unsigned i = 0; i < names->n; i++)
    free (names->list[i]);
}

static int
ignore_extent (void *opaque, uint64_t offset, uint64_t len, enum extent_type type)
{
  (void) opaque, (void) offset, (void) len, (void) type;
  return 0;
}

/* All that a client can ask for without writing. */
static int
use_export (struct disk *disk, const char *name)
{
  static char buf[BIG];
  struct export *e = export_open (disk, name, false);
  uint64_t n, size;
  int r = 0;

  if (e == NULL)
    return -1;
  size = export_size (e);
  for (uint64_t at = 0; r == 0 && at < size; at += n) {
    n = min64 (BIG, size - at);
    r = export_read (e, buf, n, at);
  }
  if (r == 0)
    r = export_cache (e, size, 0);
  if (r == 0)
    r = export_extents (e, size, 0, false, ignore_extent, NULL);
  KEEP_ERRNO_FOR_BLOCK;
  CHECK (export_close (e) == 0);
  return r;
}

int
use_exports (const struct disk_options *o)
{
  struct names names = { .n = 0 };
  unsigned unlisted;
  struct disk *disk;
  int r;

  if (reach_open (o, &disk) == -1)
    return -1;
  r = exports_list (disk, add_name, &names, &unlisted);
  for (unsigned i = 0; r == 0 && i < names.n; i++)
    r = use_export (disk, names.list[i]);
  KEEP_ERRNO_FOR_BLOCK;
  free_names (&names);
  CHECK (disk_close (disk) == 0);
  return r;
}

int
use_directory (const struct disk_options *o)
{
  const char *const slash = strrchr (o->path, '/');
  struct disk_options all = *o;
  struct names names = { .n = 0 };
  struct dir_image *entered;
  struct disk_stats stats;
  char directory[4096];
  const char *export;
  unsigned unlisted;
  struct dir *dir;
  int r;

  snprintf (directory, sizeof directory, "%.*s", (int) (slash - o->path), o->path);
  all.path = directory;
  if (dir_open (&all, &dir) == -1)
    return -1;
  r = dir_list (dir, add_name, &names, &unlisted);
  free_names (&names);
  entered = r == -1 ? NULL : dir_enter (dir, slash + 1, &export);
  r = entered ? use_export (dir_disk (entered), export) : -1;
  KEEP_ERRNO_FOR_BLOCK;
  dir_get_stats (dir, &stats);
  if (entered)
    dir_leave (dir, entered);
  CHECK (dir_close (dir) == 0);
  return r;
}

int
use_description (const struct disk_options *o)
{
  const struct disk_options reached = reach_disk (o);
  json_t *info = chaininfo_describe (&reached, strrchr (o->path, '/') + 1, true);
  KEEP_ERRNO_FOR_BLOCK;

  json_decref (info);
  return info ? 0 : -1;
}

static int
ignore_entry (void *opaque, const struct map_entry *e)
{
  (void) opaque, (void) e;
  return 0;
}

int
use_map (const struct disk_options *o)
{
  struct disk *disk;
  int r;

  if (reach_open (o, &disk) == -1)
    return -1;
  r = chainmap_each (disk_inside (disk).view->layers, NULL, ignore_entry, NULL);
  KEEP_ERRNO_FOR_BLOCK;
  CHECK (disk_close (disk) == 0);
  return r;
}

static int
check (const struct disk_options *o, const char *report)
{
  const struct check_options options = {
    .mode = CHECK_FULL, .path = o->path, .report = report,
    .chain = disk_chain_options (o),
  };
  struct check *c;
  int r;

  if (reach_check (&options, &c) == -1)
    return -1;
  r = check_finish (c, true);
  KEEP_ERRNO_FOR_BLOCK;
  check_free (c);
  return r;
}

/* Every other time there is an older report, which is replaced or stays as it is. */
int
use_check (const struct disk_options *o)
{
  static struct blob last;      /* report */
  static unsigned n;
  const bool had = n++ % 2 && last.len > 0;
  bool was_spared = shortage_spare (true);
  char *path = images_path (REPORT);
  int r;

  if (had)
    blob_save (REPORT, &last);
  shortage_spare (was_spared);
  r = check (o, path);
  KEEP_ERRNO_FOR_BLOCK;
  was_spared = shortage_spare (true);
  if (access (REPORT, F_OK) == 0) {
    blob_free (&last);
    blob_load (REPORT, &last);
    CHECK (last.len > 0 && last.data[last.len - 1] == '\n');
    unlink (REPORT);
  }
  else if (had || r == 0)
    FAIL ("there is no report");
  free (path);
  shortage_spare (was_spared);
  return r;
}
