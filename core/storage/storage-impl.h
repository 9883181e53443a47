/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Declarations that the gate (storage.c) and the kinds of storage behind it share.  No
 * other files include this.
 */

#ifndef QCOW2_STORAGE_IMPL_H
#define QCOW2_STORAGE_IMPL_H

#include <stdatomic.h>

#include "storage/storage.h"

/* The operations of a kind of storage.  Any thread may call them.  Those that return int
 * return -1 with errno set if they fail, and do not report errors unless noted.  Ranges
 * end before INT64_MAX, and counts are > 0. */
struct storage_ops {
  void (*close) (struct storage *);     /* may be called before it is open */

  /* Reads the whole range, with zeros past the end. */
  int (*read) (struct storage *, void *buf, uint64_t count, uint64_t offset);
  /* The same in two steps, for storage that answers late: many reads are begun, then all
   * are ended.  A thread that has begun some calls nothing else meanwhile, because others
   * may wait for their end.  begin returns NULL if it would have to wait, and end fails
   * with ENOTCONN if the answer will not come: then `read' has to do it.  NULL: reads do
   * not take long. */
  void *(*read_begin) (struct storage *, void *buf, uint64_t count, uint64_t offset);
  int (*read_end) (struct storage *, void *pending);
  /* Writes all of IOV.  Raises the size as far as it gets. */
  int (*write) (struct storage *, const struct iovec *iov, int niov,
                uint64_t offset, uint64_t count, enum storage_writing);
  /* ENOMEM: it has not begun. */
  int (*sync) (struct storage *);
  const char *sync_name;        /* the name of the sync operation, for messages */
  /* As storage_forget_cache.  NULL: there is no cache. */
  void (*forget_cache) (struct storage *);

  /* Return 1 if done, 0 if the storage cannot do it (they may set no_punch, no_zero,
   * no_zero_at_once).  zero_at_once NULL: it never can. */
  int (*punch) (struct storage *, uint64_t offset, uint64_t count);
  int (*zero) (struct storage *, uint64_t offset, uint64_t count);
  int (*zero_at_once) (struct storage *, uint64_t offset, uint64_t count);
  /* Like punch, for space that is no longer used: no sync is needed for it, so if it
   * returns 1, the zeros must not get lost while the storage is open.  NULL: punch. */
  int (*discard) (struct storage *, uint64_t offset, uint64_t count);
  /* Sets no_allocate if it cannot promise anything.  NULL: no promise is needed. */
  int (*allocate) (struct storage *, uint64_t offset, uint64_t count);
  /* NULL: the size is fixed. */
  int (*set_size) (struct storage *, uint64_t size);
  /* The size now, if it is not that of a regular file, or the known one.  ASK: see
   * storage_size_now. */
  uint64_t (*size_now) (struct storage *, bool ask);

  /* Which parts of the range are holes?  Begins at OFFSET; may end before the range or
   * after it.  If PARTS has room for one, it costs no more than one.  It sets PARTS->n
   * to 0 if it knows nothing. */
  void (*parts) (struct storage *, uint64_t offset, uint64_t count,
                 struct storage_parts *);
  /* The same: what does the server call holes?  -1: it does not say; reports nothing.
   * NULL: no caller tells it apart. */
  int (*holes) (struct storage *, uint64_t offset, uint64_t count,
                struct storage_parts *);
  /* As storage_find_zeros.  NULL: that is not known. */
  uint64_t (*find_zeros) (struct storage *, uint64_t offset, uint64_t count);
  /* Hints.  NULL: not supported. */
  void (*prefetch) (struct storage *, uint64_t offset, uint64_t count);
  void (*write_back) (struct storage *, uint64_t offset, uint64_t count);

  void (*disconnect) (struct storage *);        /* NULL: there is no connection */
  /* The other storage has the same ops. */
  bool (*same) (const struct storage *, const struct storage *);
  uint64_t (*allocated) (const struct storage *);
  /* Reports errors.  NULL: there are no locks.  (Those of NBD: readers get no guarantee,
   * and writers have said that they want none, see why_readonly.) */
  int (*lock) (struct storage *, enum storage_lock role);
  /* As storage_become_writable.  Reports errors. */
  int (*become_writable) (struct storage *);
};

/* Each kind of storage has this as its first member. */
struct storage {
  /* Fixed after opening: no lock. */
  const struct storage_ops *ops;
  char *path;                   /* name for messages; storage_close frees it */
  bool regular;                 /* otherwise only others can change its size */
  const struct storage_hooks *hooks;
  bool unsafe;                  /* STORAGE_CACHE_UNSAFE */

  /* Atomics.  Each transfer looks at some of them, so those that transfers change are
   * written only if their value differs: threads share the cache line. */
  _Atomic uint64_t size;
  atomic_bool writable;         /* storage_become_writable sets it, others read
                                   meanwhile */
  _Atomic (const char *) why_readonly;  /* the same; NULL: the file is just not
                                           writable */
  atomic_bool no_punch, no_zero, no_zero_at_once, no_allocate;     /* not supported */
  _Atomic uint64_t syncs;       /* number of syncs that have begun */
  _Atomic uint64_t awaited;     /* number of the sync that covers the last change */
  _Atomic uint64_t synced;      /* number of the last sync that has succeeded */
  atomic_bool diverted;         /* a hook has replaced operations: do not ask the
                                   storage */
  atomic_int lost;              /* errno of a lost write, or 0; see storage.c */
};

/* Initializes the common part.  Returns 0, or -1 with errno (ENOMEM; not reported). */
extern int storage_init (struct storage *, const struct storage_ops *, const char *path,
                         const struct storage_options *);

/* SIZE, or what a hook says. */
static inline uint64_t
storage_seen_size (const struct storage *s, uint64_t size)
{
  return s->hooks && s->hooks->size ? s->hooks->size (s->hooks->opaque, s->path, size) : size;
}

/* Raises N to LEAST. */
static inline void
storage_raise (_Atomic uint64_t *n, uint64_t least)
{
  uint64_t before = *n;

  while (before < least && !atomic_compare_exchange_weak (n, &before, least))
    ;
}

/* Raises the known size to END.  Only set_size lowers it, and no thread calls that while
 * others write beyond the new end. */
static inline void
storage_raise_size (struct storage *s, uint64_t end)
{
  storage_raise (&s->size, end);
}

/* Records an error that a later sync would have had to report. */
static inline void
storage_note_lost (struct storage *s, int err)
{
  int none = 0;

  atomic_compare_exchange_strong (&s->lost, &none, err);
}

#endif /* QCOW2_STORAGE_IMPL_H */
