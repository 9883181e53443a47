/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What do disk.c, writable.c, serve.c and the files of exports share?  No other file
 * includes this.
 */

#ifndef QCOW2_DISK_IMPL_H
#define QCOW2_DISK_IMPL_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "request/bitmap.h"
#include "request/readahead.h"
#include "disk/disk.h"

struct disk {
  struct disk_options options;
  char description[160];
  const char *why_readonly;     /* under lock once clients may come */

  struct grace *grace;
  struct map *map;
  struct layers *layers;
  struct image *image;          /* the top image, layer 0 */
  struct cluster_cache *cluster_cache;
  struct readahead *readahead;
  struct readahead_load own_load;       /* unless the options have one that is shared */
  struct bitmaps *bitmaps;      /* NULL: there are none, or they forbid changes */
  char why_bitmaps[BITMAPDIR_WHY];

  struct view frozen;           /* is served until the disk becomes writable */
  struct view live;
  _Atomic (const struct view *) current;

  pthread_mutex_t lock;
  struct export_slot *exports;  /* see exportkind.h; constant, except `kept' */
  size_t nr_exports;
  pthread_cond_t kept_changed;  /* the state of what a kind keeps has changed */
  unsigned writers;             /* connections that may write; under lock */
  bool told_readonly;           /* why_readonly was reported; under lock */
  bool no_space_to_recover;     /* this is why_readonly; the next client that may write
                                   tries again; under lock */
  bool restless;                /* the last quiesce failed; under lock */
  bool no_space;                /* for lack of space or memory; the same */
  struct writable w;            /* made once under lock, then constant */
  struct spacewait spacewait;   /* has its own lock */
};

/* --- writable.c; with the lock held --- */

/* Makes `live', once, and makes it the current view.  Returns 0, or -1 (reported): the
 * next client may try again, unless why_readonly now contains why the disk cannot be
 * written, and no_space_to_recover is not set. */
extern int disk_become_writable (struct disk *);
/* Brings the image to rest after the last writer has left.  -1: reported. */
extern int disk_quiesce (struct disk *);
extern void disk_free_writable (struct disk *);

/* --- exports.c --- */

/* Call it once, after the snapshots and bitmaps were read.  -1: reported. */
extern int exports_index (struct disk *);
/* No request may be running.  Also frees what is kept for clients that have not left. */
extern void exports_free (struct disk *);

#endif /* QCOW2_DISK_IMPL_H */
