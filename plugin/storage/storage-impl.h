/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What the gate (storage.c) and the kinds of storage behind it share.  For them only.
 */

#ifndef QCOW2_STORAGE_IMPL_H
#define QCOW2_STORAGE_IMPL_H

#include <stdatomic.h>

#include "storage/storage.h"

/* What a kind of storage does.  All may be called from any thread.  Those that return int
 * return -1 with errno set if they fail, and report nothing unless they say so.  Ranges
 * end before INT64_MAX, and counts are > 0. */
struct storage_ops {
  void (*close) (struct storage *);     /* also of one that is not open yet */

  /* The whole range; zeros past the end. */
  int (*read) (struct storage *, void *buf, uint64_t count, uint64_t offset);
  /* All of IOV, DURABLE: as RWF_DSYNC.  Raises the size as far as it gets. */
  int (*write) (struct storage *, const struct iovec *iov, int niov,
                uint64_t offset, uint64_t count, bool durable);
  int (*sync) (struct storage *);
  const char *sync_name;        /* what that asks for, in messages */

  /* 1: done, 0: it cannot do that (and may set no_punch, no_zero). */
  int (*punch) (struct storage *, uint64_t offset, uint64_t count);
  int (*zero) (struct storage *, uint64_t offset, uint64_t count);
  /* Sets no_allocate if it can't promise anything.  NULL: there is nothing to promise. */
  int (*allocate) (struct storage *, uint64_t offset, uint64_t count);
  /* NULL: its size is fixed. */
  int (*set_size) (struct storage *, uint64_t size);

  /* As storage_hole.  What it can't tell is data. */
  int (*hole) (struct storage *, uint64_t offset, uint64_t *len, bool *hole);
  /* Hints.  NULL: it takes none. */
  void (*prefetch) (struct storage *, uint64_t offset, uint64_t count);
  void (*write_back) (struct storage *, uint64_t offset, uint64_t count);

  /* Of another one with the same ops. */
  bool (*same) (const struct storage *, const struct storage *);
  uint64_t (*allocated) (const struct storage *);
  int (*lock) (struct storage *, enum storage_lock role);       /* reports */
};

/* Each kind of storage begins with this. */
struct storage {
  /* Fixed once it is open: no lock. */
  const struct storage_ops *ops;
  char *path;                   /* as messages call it; freed by storage_close */
  bool writable;
  const char *why_readonly;     /* NULL: the file is simply not writable */
  bool regular;                 /* else its size is fixed */
  const struct storage_hooks *hooks;

  /* Atomics.  None of them orders access to anything else, so relaxed
   * operations would do; nothing here is hot enough to care.
   */
  _Atomic uint64_t size;
  atomic_bool no_punch, no_zero, no_allocate;   /* it cannot do that */
  _Atomic uint64_t changes;     /* how many there were; counted when they are done */
  _Atomic uint64_t synced;      /* how many of them a sync that has ended covers */
  atomic_bool diverted;         /* a hook did our work: ask not the storage */
  atomic_int lost;              /* errno of a lost write, or 0: see storage.c */
};

/* What all kinds begin with.  -1 with errno (ENOMEM; not reported). */
extern int storage_init (struct storage *, const struct storage_ops *, const char *path,
                         const struct storage_options *);

/* Raises the known size to END.  Only set_size lowers it, and no thread does that while
 * others write beyond the new end. */
static inline void
storage_raise_size (struct storage *s, uint64_t end)
{
  uint64_t size = s->size;

  while (size < end && !atomic_compare_exchange_weak (&s->size, &size, end))
    ;
}

/* Keeps an error that a later sync would have had to report. */
static inline void
storage_note_lost (struct storage *s, int err)
{
  int none = 0;

  atomic_compare_exchange_strong (&s->lost, &none, err);
}

#endif /* QCOW2_STORAGE_IMPL_H */
