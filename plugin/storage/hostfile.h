/* SPDX-License-Identifier: BSD-3-Clause
 *
 * All I/O on files of the host: see hostfile.c.
 *
 * Functions that return int return 0, or -1 with errno set and the error reported (once,
 * with operation, file and offset).  errno is ENOSPC whenever there is no more space,
 * also because of a quota or the maximum size of a file.  Offsets and counts are in
 * bytes.  All functions may be called from any thread unless they say otherwise.
 */

#ifndef QCOW2_HOSTFILE_H
#define QCOW2_HOSTFILE_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/uio.h>

#include "storage/hostlock.h"

struct hostfile;

/* The one place where tests see and disturb what reaches the host.  Every
 * operation calls `before' first (if set).  It returns 0 to let the operation
 * happen, > 0 to have it skipped and reported as done (the hook did it), or -1
 * with errno set to make it fail with that error.
 */
enum hostfile_op {
  HOSTFILE_OP_READ,
  HOSTFILE_OP_WRITE,    /* iov holds what is about to be written */
  HOSTFILE_OP_SYNC,
  HOSTFILE_OP_PUNCH,    /* or zeros by other means than writing */
  HOSTFILE_OP_TRUNCATE, /* offset is the new size */
  HOSTFILE_OP_ALLOCATE, /* no contents change */
  HOSTFILE_OP_LINK,     /* a new file gets its name: see newfile.c */
  HOSTFILE_OP_SYNC_DIR, /* and its directory is made durable */
};

struct hostfile_hooks {
  int (*before) (void *opaque, const char *path, enum hostfile_op op,
                 const struct iovec *iov, int niov,
                 uint64_t offset, uint64_t count, bool dsync);
  void *opaque;
};

struct hostfile_options {
  bool try_writable;    /* open read-write; EACCES, EPERM, EROFS, ETXTBSY fall back
                           to read-only: ask hostfile_is_writable */
  bool lock;            /* take the reader's lock before anything of the file is
                           believed, its size included */
  bool data_file;       /* it is an external data file: that is who it locks for */
  bool drop_cache;      /* cache=none: keep the data out of the page cache */
  const char *name;     /* NULL, or: open this name in the directory `dir', and not a
                           symbolic link; the path is for messages only then */
  int dir;
  const struct hostfile_hooks *hooks;  /* NULL outside tests; outlives the file */
};

/* Opens PATH (absolute).  Only regular files and block devices are accepted
 * (a FIFO must not hang us, and is refused by name).
 */
extern int hostfile_open (const char *path, const struct hostfile_options *,
                          struct hostfile **);
/* The same for a file that is open already, for reading and writing.  On success FD
 * belongs to the hostfile.  Of the options, hooks and drop_cache are used. */
extern int hostfile_adopt (const char *path, int fd,
                           const struct hostfile_options *, struct hostfile **);
extern void hostfile_close (struct hostfile *);  /* NULL is fine; keeps errno */
/* Tells the hook of an operation on the file's name.  Returns what `before' does; an
 * error is not reported. */
extern int hostfile_hook (struct hostfile *, enum hostfile_op);

extern const char *hostfile_path (const struct hostfile *);
extern bool hostfile_is_writable (const struct hostfile *);
extern bool hostfile_is_regular (const struct hostfile *);
/* Are these the same file (device and inode; for block devices rdev)? */
extern bool hostfile_same (const struct hostfile *, const struct hostfile *);

/* Current size in bytes.  Kept in memory: raised by writes and truncate. */
extern uint64_t hostfile_size (const struct hostfile *);
/* Bytes that the host has allocated (st_blocks * 512), measured now. */
extern uint64_t hostfile_allocated (const struct hostfile *);

/* Whole transfers or an error.  Past the end of the file reads give zeros. */
extern int hostfile_read (struct hostfile *, void *buf, uint64_t count,
                          uint64_t offset);
/* The same into memory that is still zeros, of sparse_new: what is zeros in the file
 * takes none. */
extern int hostfile_read_sparse (struct hostfile *, void *buf, uint64_t count,
                                 uint64_t offset);
extern int hostfile_write (struct hostfile *, const void *buf, uint64_t count,
                           uint64_t offset);
/* As hostfile_write from several buffers; the iov array is not changed.
 * DSYNC: the data is durable on return (RWF_DSYNC). */
extern int hostfile_writev (struct hostfile *, const struct iovec *iov, int niov,
                            uint64_t offset, bool dsync);

/* fdatasync. */
extern int hostfile_sync (struct hostfile *);
/* The same, if anything was changed since the last sync that went well.  Returns 1 if a
 * sync was needed. */
extern int hostfile_sync_changes (struct hostfile *);

/* Gives the range back to the host and makes it read as zeros.  Returns 1 if
 * that was done, 0 if the host can't (remembered; not an error), -1 on error. */
extern int hostfile_punch (struct hostfile *, uint64_t offset, uint64_t count);
/* Makes the range, which lies within the file, read as zeros, without writing them, and
 * without giving it back to the host (ENOSPC: they are zeros, but may lack space).
 * Returns as hostfile_punch. */
extern int hostfile_zero (struct hostfile *, uint64_t offset, uint64_t count);

/* Makes sure that writes to the range, which lies within the file, will find space
 * (on hosts that overwrite in place).  What it reads as does not change.  A host that
 * can't promise that is no error. */
extern int hostfile_allocate (struct hostfile *, uint64_t offset,
                              uint64_t count);
/* Has the host refused to promise that so far? */
extern bool hostfile_cannot_allocate (const struct hostfile *);

/* Sets the size (regular files).  On block devices: an error (ENOSPC) if larger
 * than the device, else nothing.  */
extern int hostfile_truncate (struct hostfile *, uint64_t size);

/* Makes the file at least SIZE bytes long, and sure that writes to COUNT bytes at OFFSET
 * will find space.  -1: ENOSPC (a limit, a quota or the end of a device, too) is not
 * reported: the caller may do with less. */
extern int hostfile_extend (struct hostfile *, uint64_t size, uint64_t offset,
                            uint64_t count);

/* Is there data at OFFSET, and how far does that answer hold?  *LEN (in: the
 * most that is of interest, > 0; out: > 0).  Where the host can't tell, data. */
extern int hostfile_hole (struct hostfile *, uint64_t offset, uint64_t *len,
                          bool *hole);

/* Tells the host that this range will be read soon.  Never fails. */
extern void hostfile_prefetch (struct hostfile *, uint64_t offset,
                               uint64_t count);
/* Has the host begin to write back what was written there, without waiting: a sync will
 * have less to do.  Never fails; what goes wrong is found by the sync. */
extern void hostfile_write_back (struct hostfile *, uint64_t offset,
                                 uint64_t count);

/* Takes, changes or drops the QEMU-compatible image locks (see hostlock.h).  On
 * failure the old role is kept, and the message names what is in the way and, as
 * far as we may know, the process that holds it.
 */
extern int hostfile_lock (struct hostfile *, enum hostfile_lock role);

#endif /* QCOW2_HOSTFILE_H */
