/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What the parts of hostfile share: hostfile.c, hostopen.c, hostspace.c.  For them only.
 */

#ifndef QCOW2_STORAGE_IMPL_H
#define QCOW2_STORAGE_IMPL_H

#include <pthread.h>
#include <stdatomic.h>
#include <sys/types.h>

#include "storage/dropcache.h"
#include "storage/storage.h"

struct storage {
  /* Fixed after storage_open: no lock. */
  char *path;
  int fd;
  bool writable;
  bool regular;                 /* else a block device */
  struct dropcache *dropcache;  /* cache=none; else NULL */
  const struct storage_hooks *hooks;
  dev_t dev;                    /* of the device itself for block devices */
  ino_t ino;                    /* 0 for block devices */

  /* Atomics.  None of them orders access to anything else, so relaxed
   * operations would do; nothing here is hot enough to care.
   */
  _Atomic uint64_t size;
  atomic_bool no_dsync;         /* the host can't do RWF_DSYNC */
  atomic_bool no_punch;         /* the host can't punch holes */
  atomic_bool no_zero;          /* the host can't zero ranges */
  _Atomic uint64_t changes;     /* how many there were; counted when they are done */
  _Atomic uint64_t synced;      /* how many of them a sync that has ended covers */
  atomic_bool no_allocate;      /* the host can't promise space */
  atomic_bool diverted;         /* a hook did our work: ask not the host */
  atomic_int lost;              /* errno of a lost write, or 0; see above */

  pthread_mutex_t role_lock;    /* guards role, and the locks on the file */
  enum storage_lock role;
};

/* The one place that every operation passes.  Returns 0 if the operation is to happen, 1
 * if it has been done by the hook, or -1 with errno set (not reported). */
extern int storage_choke (struct storage *, enum storage_op,
                          const struct iovec *iov, int niov, uint64_t offset,
                          uint64_t count, bool dsync);
/* Reports that OPERATION failed with errno.  Returns -1. */
extern int storage_failed (const struct storage *, const char *operation,
                           uint64_t offset, uint64_t count);
/* Turns an errno that says that there is no more room into ENOSPC. */
extern void storage_full (void);

#endif /* QCOW2_STORAGE_IMPL_H */
