/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What disk.c, writable.c, serve.c, exports.c and parts.c share.  No other file includes
 * this.
 */

#ifndef QCOW2_DISK_IMPL_H
#define QCOW2_DISK_IMPL_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "util/names.h"
#include "request/bitmap.h"
#include "disk/disk.h"

/* Parts are called this, and a number or a name. */
#define DISK_LAYER "layer:"
#define DISK_BITMAP "bitmap:"

/* An internal snapshot that a client has asked for. */
struct disk_snapshot {
  struct view view;
  char description[128];
};

struct disk {
  struct disk_options options;
  char description[160];
  const char *why_readonly;     /* under lock, once clients may come */

  struct grace *grace;
  struct map *map;
  struct layers *layers;
  struct image *image;          /* the top image, layer 0 */
  const char **snapshot_names;  /* under which they are listed; NULL: they are not */
  struct cluster_cache *cluster_cache;
  struct bitmaps *bitmaps;      /* NULL: there are none, or they forbid changes */
  struct names *bitmap_names;
  char why_bitmaps[BITMAPDIR_WHY];

  struct view frozen;           /* what is served while nobody may write */
  struct view live;
  _Atomic (const struct view *) current;

  pthread_mutex_t lock;
  struct disk_snapshot **served;        /* for each snapshot; NULL: nobody has asked for
                                           it; the array under lock, its elements don't
                                           change */
  struct disk_part *parts;      /* that were asked for; under lock */
  pthread_cond_t part_filled;   /* or it has failed */
  unsigned writers;             /* connections that may write; under lock */
  bool told_readonly;           /* why_readonly was reported; under lock */
  bool restless;                /* the last quiesce failed; under lock */
  struct writable w;            /* made once under lock, then constant */
  struct refcounts *refcounts;  /* likewise */
};

/* --- writable.c; with the lock held --- */

/* Makes `live', once.  -1: reported, and nothing has changed; or why_readonly says why
 * it can't be done, and 0 is returned. */
extern int disk_become_writable (struct disk *);
/* Brings the image to rest when no writer is left. */
extern int disk_quiesce (struct disk *);
extern void disk_free_writable (struct disk *);

/* --- serve.c --- */

/* What of a request is served at once. */
struct disk_piece {
  uint64_t offset, count;       /* bytes */
  uint64_t end;                 /* of the request */
  uint64_t alone_since;         /* milliseconds, CLOCK_MONOTONIC; 0: the client waits */
};

static inline struct disk_piece
disk_pieces (uint64_t count, uint64_t offset)
{
  return (struct disk_piece) { .offset = offset, .end = offset + count };
}

/* The first piece, or the one after *P: 1, 0 (all is done), or -1 with ESHUTDOWN (told
 * by who knows it): nobody has waited for linger_ms.  Call it without a pin. */
extern int disk_next_piece (struct disk *, struct disk_piece *p);

/* --- exports.c --- */

/* Once, when the snapshots are known.  -1: reported. */
extern int disk_name_snapshots (struct disk *);
extern void disk_free_snapshots (struct disk *);

/* --- parts.c --- */

/* Once, when the bitmaps are known.  -1: reported. */
extern int disk_name_bitmaps (struct disk *);
/* As disk_list_exports; adds to *UNLISTED. */
extern int disk_list_parts (const struct disk *, export_fn emit, void *opaque,
                            unsigned *unlisted);
extern void disk_free_parts (struct disk *);

#endif /* QCOW2_DISK_IMPL_H */
