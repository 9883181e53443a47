/* SPDX-License-Identifier: BSD-3-Clause
 *
 * A thread that changes a disk as a whole, again and again, while others use it.
 */

#ifndef TEST_CHANGER_H
#define TEST_CHANGER_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "disk/disk.h"
#include "lib/images.h"

struct changer {
  struct disk *disk;
  struct rng rng;
  bool grows;                   /* it may make the disk larger */
  bool streams;                 /* and copy what is below into the image */
  bool moves;                   /* and have other layers, and another one on top.  (Not
                                   over NBD.) */
  bool lazy;                    /* and have it use lazy refcounts */
  bool keeps_counts;            /* and not change the width of refcounts */

  /* Afterwards: */
  unsigned changes, refused;
  bool alone;                   /* it needs no backing file any more */
  char top[24];                 /* if it MOVES: the file on top, in the test's
                                   directory */
  uint64_t grown;               /* bytes by which the disk is larger */

  /* Its own. */
  pthread_t thread;
  atomic_bool ends;
  bool has_snapshot, has_bitmap;
  bool has_key;
  bool is_divided;              /* another bitmap, "next", records in place of it */
  unsigned char *shown;         /* by the snapshot */
  uint64_t len;
};

/* It creates and deletes a snapshot and a bitmap, both called "live", together or not,
 * has another bitmap record in place of that one and merges it, changes features, adds
 * and erases a passphrase, and gives the backing file another name.  What the snapshot
 * shows must not change.  If it MOVES, new images come on top, layers are committed into
 * those below them, the disk goes on with one of these, or with a new image to which it
 * was copied. */
extern void changer_start (struct changer *);
/* Waits until the snapshot, the bitmaps and the passphrase are gone again. */
extern void changer_stop (struct changer *);

#endif /* TEST_CHANGER_H */
