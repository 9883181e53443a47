/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Declarations that hostfile.c, hostopen.c and hostspace.c share.  No other file includes
 * this.
 */

#ifndef QCOW2_HOSTFILE_IMPL_H
#define QCOW2_HOSTFILE_IMPL_H

#include <pthread.h>
#include <sys/types.h>

#include "util/cleanup.h"
#include "storage/dropcache.h"
#include "storage/folios.h"
#include "storage/storage-impl.h"

struct hostfile {
  struct storage s;             /* must be first */

  /* Fixed after opening: no lock. */
  int fd;
  struct dropcache *dropcache;  /* cache=none; else NULL */
  dev_t dev;                    /* of the device itself for block devices */
  ino_t ino;                    /* 0 for block devices */

  /* Set before the file is writable, and then fixed.  May be NULL. */
  struct folios *folios;

  atomic_bool no_dsync;         /* the host does not support RWF_DSYNC */
  atomic_bool differs;          /* a sync has failed: see hostfile_forget_cache */
  /* There was data when the host was last asked: see hostfile_parts. */
  _Atomic uint64_t data_from, data_to;

  pthread_mutex_t role_lock;    /* guards role, and the locks on the file */
  enum storage_lock role;
};

static inline struct hostfile *
hostfile_of (const struct storage *s)
{
  return (struct hostfile *) s;
}

/* --- hostfile.c --- */

extern int hostfile_read (struct storage *, void *buf, uint64_t count,
                          uint64_t offset);
extern int hostfile_write (struct storage *, const struct iovec *iov, int niov,
                           uint64_t offset, uint64_t count, enum storage_writing);
extern int hostfile_sync (struct storage *);
extern void hostfile_forget_cache (struct storage *);

/* --- hostspace.c --- */

extern int hostfile_punch (struct storage *, uint64_t offset, uint64_t count);
extern int hostfile_zero (struct storage *, uint64_t offset, uint64_t count);
extern int hostfile_allocate (struct storage *, uint64_t offset, uint64_t count);
extern int hostfile_set_size (struct storage *, uint64_t size);
extern uint64_t hostfile_size_now (struct storage *, bool ask);
extern void hostfile_parts (struct storage *, uint64_t offset, uint64_t count,
                            struct storage_parts *);
extern void hostfile_prefetch (struct storage *, uint64_t offset, uint64_t count);
extern void hostfile_write_back (struct storage *, uint64_t offset, uint64_t count);
extern uint64_t hostfile_allocated (const struct storage *);

#endif /* QCOW2_HOSTFILE_IMPL_H */
