/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What the parts of bitmap.c share: bitmapstore.c and bitmaplog.c.
 */

#ifndef QCOW2_BITMAP_IMPL_H
#define QCOW2_BITMAP_IMPL_H

#include <pthread.h>
#include <stdatomic.h>

#include "util/bytes.h"
#include "util/epoch.h"
#include "util/names.h"
#include "request/bitmap.h"

/* State of the cluster that a table entry stands for. */
enum cell {
  UNCHANGED,
  CHANGED,                      /* the file lacks something that memory has; with a log:
                                   it has too much */
  CHANGED_NEW,                  /* the same, and the entry in the file does not point to
                                   the cluster yet */
};

/* State of a region: see bitmaplog.c. */
enum region {
  ASLEEP,
  WAKING,                       /* it is being marked in the file */
  AWAKE,                        /* it is marked there: any bit of it may be set */
  IN_USE,                       /* the same, and that has happened lately */
  CLOSING,                      /* no bit is set any more, but some requests do not know
                                   that yet */
};

struct bitmap {
  const struct bitmapdir_entry *e;
  uint64_t *table;              /* as in the file, or as it will be; changes under
                                   lock, or with a log, by the leader; NULL: not loaded
                                   yet */
  bool table_changed;           /* the table in the file may be older; the same */

  /* All are NULL while settled.  Requests write `bits' and `cells' without a lock. */
  _Atomic uint64_t *bits;       /* bit i is bit i % 64 of word i / 64 */
  _Atomic uint8_t *cells;       /* enum cell, for each table entry */

  /* Only with a log. */
  _Atomic uint8_t *regions;     /* enum region; region i has the bits from
                                   i << region_bits on, all of one cell */
  unsigned region_bits;
  bool *awake;                  /* for each cell: some region may be; leader */
};

struct bitmaps {
  struct storage *file;
  const struct header *h;
  struct overlap *overlap;
  struct refcounts *refcounts;
  struct alloc *alloc;
  struct checkpoint *checkpoint;
  struct health *health;
  struct bitmapdir dir;
  struct names *names;          /* of dir.all */
  struct bitmap *list;          /* dir.n of them */

  /* Memory is allocated, and all bitmaps are durably in use in the file, unless there is
   * a log.  Set under the lock; a thread that sees it set also sees the memory. */
  atomic_bool recording;

  pthread_mutex_t lock;
  bool unsettled;               /* something is recorded, or some bitmaps may be in use in
                                   the file; under lock */

  struct bitmaplog *log;        /* NULL: bitmaps are in use while they record */
};

/* The number of words of bits. */
static inline uint64_t
bitmap_words (const struct bitmap *b)
{
  return div_up (b->e->bits, 64);
}

/* Are all bits of [first, last] set in memory?  A thread that sees one also sees what was
 * done before it was set. */
extern bool bitmap_has_all (const struct bitmap *, uint64_t first, uint64_t last);

/* --- bitmapstore.c --- */

/* What the file should contain of N words from FIRST on, in the order of its bytes, if
 * there is a log: the bits, and the marks of regions. */
extern void bitmapstore_compose (const struct bitmap *, uint64_t first, uint64_t n,
                                 uint64_t *words);
/* Writes all cells that have changed, and tables.  BUF is one cluster.  Unless there is a
 * log, nothing changes the disk.  Returns 0: what the file has is durable, but with a log
 * it may not have narrowed durably; or -1 (reported): nothing is lost, and it can be
 * called again. */
extern int bitmapstore_write (struct bitmaps *, void *buf);

/* R9: the same as storage_sync. */
extern int bitmapstore_sync (struct bitmaps *);
/* R9: writing metadata has failed; that has been reported.  Returns -1. */
extern int bitmapstore_failed (struct bitmaps *);

/* --- bitmaplog.c --- */

/* NULL: ENOMEM (reported). */
extern struct bitmaplog *bitmaplog_new (struct bitmaps *);
extern void bitmaplog_free (struct bitmaplog *);
/* Memory gets what the file has.  -1: reported. */
extern int bitmaplog_begin (struct bitmaps *);
/* Like bitmap_record. */
extern int bitmaplog_record (struct bitmaps *, uint64_t offset, uint64_t count);
/* Nothing changes the disk: all regions go to sleep; the file still has their marks. */
extern void bitmaplog_end (struct bitmaps *);
extern void bitmaplog_free_bits (struct bitmap *);

#endif /* QCOW2_BITMAP_IMPL_H */
