/* SPDX-License-Identifier: BSD-3-Clause
 *
 * A disk that is backed up, in use or not.  See backupdisk.c.
 *
 * Functions that return int return 0, or -1 (reported).
 */

#ifndef QCOW2_IMG_BACKUPDISK_H
#define QCOW2_IMG_BACKUPDISK_H

#include <stdbool.h>
#include <stdint.h>

#include <jansson.h>

#include "change/bitmapedit.h"
#include "copy/copyend.h"
#include "img/imagefile.h"
#include "img/live.h"

struct backupdisk {
  const char *name;             /* as the user calls it */
  /* backupdisk_look: */
  uint64_t size;                /* bytes */
  uint64_t cluster_size;        /* bytes */
  bool encrypted;
  json_t *bitmaps;              /* as dirty-bitmaps of QMP: name, recording,
                                   inconsistent */
  json_t *snapshots;            /* name */
  /* Belong to backupdisk.c: */
  const struct arguments *a;
  struct live *live;            /* in use: */
  char *device;                 /* how QMP calls it */
  char *prefix;                 /* of the names of its exports */
  char *nbd;                    /* URI of the server */
  struct imagefile *held;       /* a client of the disk, so that the server has it open */
  struct storage *client;
  struct imagefile *file;       /* at rest: */
  struct disk *disk;
};

/* NAME: see live_use.  NBD: the URI of the server, or NULL: the server says it. */
extern int backupdisk_use (struct backupdisk *, const struct arguments *, struct live *,
                           const char *name, const char *nbd);
/* It is locked until it is closed. */
extern int backupdisk_open (struct backupdisk *, const struct arguments *,
                            const char *name, const struct secrets *);
/* In any case. */
extern void backupdisk_close (struct backupdisk *);

/* What is there now? */
extern int backupdisk_look (struct backupdisk *);

/* Changes of the disk's bitmaps, and an internal snapshot of it (NULL: none). */
struct backupdisk_edit {
  const char *snapshot;
  const struct bitmapedit *list;
  size_t n;
};
/* Makes those of N disks at one instant, EDITS[i] of DISKS[i].  All are in use, with the
 * same server, or none is. */
extern int backupdisk_edit (struct backupdisk *disks, const struct backupdisk_edit *edits,
                            unsigned n);
/* Is it the disk that a server shows at this URI, or file (which it never is)?  The disk
 * has the internal SNAPSHOT, whose name is random. */
extern bool backupdisk_is_at (const struct backupdisk *, const char *uri,
                              const char *snapshot);
/* Its image, as the server calls it.  Belongs to the disk. */
extern const char *backupdisk_file (const struct backupdisk *);
/* Is this file, or device, one of the disk, or does it lead to one? */
extern bool backupdisk_has_file (const struct backupdisk *, const char *path);
/* No other process is expected to use it. */
extern int backupdisk_drop_snapshot (struct backupdisk *, const char *name);

/* What an export of the disk shows, to be read.  CHANGES: it is that of a bitmap. */
struct backupend {
  struct copy_end end;
  /* Belong to backupdisk.c: */
  struct imagefile *file;
  struct storage *storage;
  struct export *export;
};
extern int backupend_open (struct backupdisk *, const char *export, bool changes,
                           struct backupend *);
extern void backupend_close (struct backupend *);       /* zeros are accepted */

#endif /* QCOW2_IMG_BACKUPDISK_H */
