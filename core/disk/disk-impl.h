/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What do the files of disk/ share that know what a disk consists of?  No file outside of
 * disk/ includes this.
 *
 * The life of a generation:
 *
 *   A disk is what lasts (struct disk) and its present state (struct generation): the
 *   image as it was read from the file, the layers below it, the views on which requests
 *   work, bitmaps and exports.  A generation never changes, except that it becomes
 *   writable once.  Whatever changes the disk as a whole makes the next one (steps.c):
 *
 *     begin     if the image is not written yet: the writer's lock, and what a crash has
 *               left is put in order
 *     prepare   what the change can do beforehand; what clients have written becomes
 *               durable
 *     close     requests that change the disk wait at the gate, those inside it end.
 *               Reads go on, and see the generation as it is
 *     settle    everything is durable, and the image is as after the last writer
 *     switch    the change itself: old or new after a power cut
 *     publish   the next generation is made of what the file says now, writable if there
 *               are writers; requests that begin from here on see it.  What only the old
 *               one used is a deferred free
 *     open      the gate opens
 *     release   when no request of the old generation is left: what only that one used is
 *               freed in the file (R4), and so is its memory.  (If there are writers,
 *               other steps, even whole changes, may come before that.)
 *
 *   A step that fails before the switch leaves the file as it was, but for what is free
 *   there: the generation goes on.  If it is unknown what the file says after the switch,
 *   or there can be no next generation, the disk is failed for good (R9), and its readers
 *   keep the old one.
 *
 *   Opening a disk makes its first generation, and is no step: there is none before it.
 *   Nor is a repair that the user asks for (check/check.c): the image need not be fit for
 *   a disk.
 *
 *   Exports that never change (snapshots, lower layers) hold the generation in which they
 *   were opened until their client leaves.
 */

#ifndef QCOW2_DISK_IMPL_H
#define QCOW2_DISK_IMPL_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "request/bitmap.h"
#include "request/readahead.h"
#include "disk/disk.h"

struct generation {
  struct disk *disk;
  struct generation *older;     /* of all that are in memory; under the disk's lock */
  unsigned users;               /* the disk, while it is the present one, and exports;
                                   under the disk's lock */
  char description[160];

  struct image *image;          /* the top image, layer 0 */
  struct layers *layers;
  struct cluster_cache *cluster_cache;
  struct readahead *readahead;
  struct bitmaps *bitmaps;      /* NULL: there are none, or they forbid changes */
  char why_bitmaps[BITMAPDIR_WHY];
  const char *why_fixed;        /* what the disk's is when this becomes the present one */
  const char *why_unrecorded;   /* bitmaps cannot record what clients write; NULL: they
                                   can */

  struct view frozen;           /* is served until the disk becomes writable */
  struct view live;
  struct writable w;            /* made once, by a step, then constant */
  bool is_live;                 /* it has been made; changes under the disk's lock */

  struct export_slot *exports;  /* see exportkind.h; constant, except `kept' */
  size_t nr_exports;
};

/* The path of an image that has become the top. */
struct toppath { struct toppath *next; char text[]; };

struct disk {
  struct disk_options options;  /* constant, but for the names of files, which a change
                                   of the chain makes void: under `steps'.  Requests
                                   name their image's file */
  struct toppath *paths;        /* what options.path was and is: others look at it at any
                                   time.  Under `steps' */
  _Atomic (const char *) why_fixed;     /* NULL: it may be changed */

  struct map *map;
  struct readahead_load own_load;       /* unless the options have one that is shared */
  atomic_bool may_read_ahead;   /* disk_allow_ahead was called; set under `steps' */

  /* Requests: serve.c. */
  struct epoch *epoch;          /* requests, or pieces of them */
  struct epoch *changes;        /* those that change something: in both */
  struct epoch *flushes;        /* what runs a whole checkpoint */
  _Atomic (const struct view *) current;        /* of the present generation */
  atomic_bool closed;           /* the gate; changes under lock */
  unsigned closers;             /* callers that need that; under lock */
  _Atomic (struct dirtyset *) record;   /* what requests change; NULL: not recorded.
                                           Changes under steps */
  pthread_cond_t opened;        /* it is open, or `now' is another one */
  struct spacewait spacewait;   /* has its own lock */
  struct alloc_threshold threshold;     /* atomic */

  /* Taken for a whole step, and so during I/O: see steps.c. */
  pthread_mutex_t steps;
  unsigned writers;             /* connections that may write; under steps, as all
                                   below */
  bool told_readonly;           /* why clients cannot write was reported */
  bool no_space_to_recover;     /* this is why_fixed; the next client that may write
                                   tries again */
  bool restless;                /* the last settling failed ... */
  bool no_space;                /* ... for lack of space or memory */
  int64_t change_began;         /* clock_ms: the last one */
  struct release *releases;     /* threads that wait for readers: steps.c */

  pthread_mutex_t lock;         /* never held during I/O */
  struct generation *now;       /* changes under steps and lock */
  struct generation *generations;       /* all that are in memory; under lock */
  pthread_cond_t kept_changed;  /* the state of what a kind keeps has changed */
  struct export *open;          /* exports that hold a generation; under lock */
  unsigned followers;           /* exports that show each generation; under lock */
  struct disk_stats past;       /* sums of the generations before; under lock */
};

/* --- generation.c --- */

/* Makes a generation of an image that was loaded, and of its layers, which it then owns.
 * It becomes one more owner of the image.  NULL: reported; the layers are freed. */
extern struct generation *generation_new (struct disk *, struct image *,
                                          struct layers *);
/* No request uses it. */
extern void generation_free (struct generation *);

/* Adds an owner to the present generation. */
extern struct generation *generation_hold (struct disk *);
/* The caller no longer uses it.  Frees it after its last owner. */
extern void generation_drop (struct generation *);

/* --- writable.c; by a step --- */

/* Locks the image as a writer, and puts in order what a crash has left.  Returns 0, or -1
 * (reported): the caller may try again, unless why_fixed now contains why the disk
 * cannot be changed, and no_space_to_recover is not set. */
extern int generation_lock (struct generation *);
/* Makes `live', once.  It has to be locked.  -1: as for generation_lock. */
extern int generation_become_writable (struct generation *);
/* Does beforehand, while clients write, as much of the next as is possible.  -1:
 * reported; that would fail, too. */
extern int generation_prepare_to_settle (struct generation *);
/* Makes everything durable and clean; no request changes the disk.  -1: reported. */
extern int generation_settle (struct generation *);
/* Frees `live'.  No request uses it. */
extern void generation_end_writing (struct generation *);

/* --- diskstats.c --- */

/* The present generation is about to be replaced.  Under the disk's lock. */
extern void stats_add_past (struct disk *);

/* --- steps.c --- */

/* The last step: brings the image to rest, if it is not.  -1: reported. */
extern int disk_end (struct disk *);

/* For a request that changes something, in a section of `changes' that was entered
 * before: may it go on?  Otherwise it leaves its sections, and calls
 * disk_wait_at_gate before it tries again. */
static inline bool
gate_is_open (const struct disk *d)
{
  return !atomic_load (&d->closed);
}
extern void disk_wait_at_gate (struct disk *);

/* --- exports.c --- */

/* Call it once, after the snapshots and bitmaps were read.  -1: reported. */
extern int exports_index (struct generation *);
/* No request may be running.  Also frees what is kept for clients that have not left. */
extern void exports_free (struct generation *);

#endif /* QCOW2_DISK_IMPL_H */
