/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Changes of an image that is opened for one change only, and closed again.
 */

#ifndef TEST_CHANGES_H
#define TEST_CHANGES_H

#include <errno.h>

#include "change/amend.h"
#include "change/bitmapedit.h"
#include "change/commit.h"
#include "change/edit.h"
#include "change/keyedit.h"
#include "change/mirror.h"
#include "change/rebase.h"
#include "lib/reach.h"

static inline struct disk *
change_open (const struct disk_options *reached)
{
  struct disk *disk;

  return disk_open (reached, &disk) == 0 ? disk : NULL;
}

/* R: what the change has returned.  (If it is made, it is durable, whatever happens to
 * the disk then.) */
static inline int
change_close (struct disk *disk, int r)
{
  const int err = errno;

  disk_close (disk);
  errno = err;
  return r;
}

static inline int
change_edit (const struct disk_options *o, const struct edit_options *edit_options,
             const struct edit *edit)
{
  const struct disk_options reached = reach_disk (o);
  struct disk *disk = change_open (&reached);

  return change_close (disk, disk ? edit_disk (disk, edit_options, edit, 1) : -1);
}

static inline int
change_amend (const struct disk_options *o, const struct amend *amend)
{
  const struct disk_options reached = reach_disk (o);
  struct disk *disk = change_open (&reached);

  return change_close (disk, disk ? amend_disk (disk, amend) : -1);
}

static inline int
change_keys (const struct disk_options *o, const struct keyedit *keyedit)
{
  const struct disk_options reached = reach_disk (o);
  struct disk *disk = change_open (&reached);

  return change_close (disk, disk ? keyedit_disk (disk, keyedit) : -1);
}

/* SNAPSHOT: taken in the same step, or NULL.  SOURCE: path (absolute) of the image whose
 * bitmaps are merged, or NULL. */
static inline int
change_bitmaps_at (const struct disk_options *o, const char *snapshot,
                   const struct bitmapedit *edits, size_t n, const char *source)
{
  const struct storage_hooks *none = NULL;
  const char *const from = source ? reach_path (source, &none) : NULL;
  const struct disk_options reached = reach_disk (o);
  struct disk *disk = change_open (&reached);

  return change_close (disk, disk ? bitmapedit_with_snapshot (disk, snapshot, edits, n, from)
                       : -1);
}

static inline int
change_bitmaps (const struct disk_options *o, const struct bitmapedit *edits, size_t n,
                const char *source)
{
  return change_bitmaps_at (o, NULL, edits, n, source);
}

static inline int
change_commit (const struct disk_options *o, bool keep, const struct chunks_watch *watch,
               uint64_t *copied)
{
  const struct commit_layers layers = { .base = 1, .keep = keep };
  const struct disk_options reached = reach_disk (o);
  struct disk *disk = change_open (&reached);

  return change_close (disk, disk ? commit_disk (disk, &layers, watch, copied) : -1);
}

static inline int
change_rebase (const struct disk_options *o, const struct rebase *to,
               const struct chunks_watch *watch, uint64_t *copied)
{
  struct disk_options reached = reach_disk (o);
  struct disk *disk;

  if (to->unsafe)
    reached.backing = BACKING_IGNORE;
  disk = change_open (&reached);
  return change_close (disk, disk ? rebase_disk (disk, &reached.secret, to, watch,
                                                copied) : -1);
}

static inline int
change_flatten (const struct disk_options *o, const struct chunks_watch *watch,
                uint64_t *copied)
{
  const struct rebase nothing = { .name = "" };

  return change_rebase (o, &nothing, watch, copied);
}

/* The target of a mirror, for a disk with such options.  NULL: reported. */
static inline struct image *
change_open_target (const struct disk_options *disk, const char *path)
{
  struct disk_options o = *disk;
  struct image *image;

  o.path = path;
  image = disk_open_image (&o);
  if (image && image_load (image) == 0 && image_read_snapshots (image) == 0)
    return image;
  image_close (image);
  return NULL;
}

/* Copies, and makes the END of it, as soon as that is possible.  Returns what that
 * does. */
static inline int
change_follow (struct follow *f, int (*end) (void *opaque), void *opaque)
{
  uint64_t copied;
  int r;

  do {
    do
      r = follow_step (f, UINT64_C (128) << 10, &copied);
    while (r == 1 || (r == 0 && (r = follow_near (f)) == 1));
    if (r == 0)
      r = end (opaque);
  }
  while (r == -1 && errno == EAGAIN);
  return r;
}

/* A stream that goes on until something fails. */
static inline int
stream_goes_on (void *opaque, uint64_t done, uint64_t total, uint64_t copied)
{
  (void) opaque, (void) done, (void) total, (void) copied;
  return 0;
}

static inline int
stream_fails (void *opaque, bool reads, int err)
{
  (void) opaque, (void) reads;
  errno = err;
  return -1;
}

#endif /* TEST_CHANGES_H */
