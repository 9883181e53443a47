/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What the bytes of an image are stored in: a file or a block device of this host, or an
 * export of an NBD server.  All I/O on images goes through here: see storage.c.
 *
 * Functions that return int return 0, or -1 with errno set and the error reported (once,
 * with operation, storage and offset).  errno is ENOSPC whenever there is no more space,
 * also because of a quota or the maximum size of a file.  Offsets and counts are in
 * bytes.  All functions may be called from any thread unless they say otherwise.
 */

#ifndef QCOW2_STORAGE_H
#define QCOW2_STORAGE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

struct storage;

/* Who uses the image, for QEMU-compatible locks: see hostlock.c. */
enum storage_lock {
  STORAGE_UNLOCKED,
  STORAGE_READER,       /* uses read; does not share write, resize */
  STORAGE_WRITER,       /* uses read, write, resize; does not share write, resize */
  /* The same for an external data file, of which only resize is not shared: the locks
   * of the image itself keep writers apart. */
  STORAGE_DATA_READER,
  STORAGE_DATA_WRITER,
};

/* The one place where tests see and disturb what reaches the host.  Every
 * operation calls `before' first (if set).  It returns 0 to let the operation
 * happen, > 0 to have it skipped and reported as done (the hook did it), or -1
 * with errno set to make it fail with that error.
 */
enum storage_op {
  STORAGE_OP_READ,
  STORAGE_OP_WRITE,    /* iov holds what is about to be written */
  STORAGE_OP_SYNC,
  STORAGE_OP_PUNCH,    /* or zeros by other means than writing */
  STORAGE_OP_TRUNCATE, /* offset is the new size */
  STORAGE_OP_ALLOCATE, /* no contents change */
  STORAGE_OP_LINK,     /* a new file gets its name: see newfile.c */
  STORAGE_OP_SYNC_DIR, /* and its directory is made durable */
};

struct storage_hooks {
  int (*before) (void *opaque, const char *path, enum storage_op op,
                 const struct iovec *iov, int niov,
                 uint64_t offset, uint64_t count, bool dsync);
  void *opaque;
};

/* For storage behind a network. */
struct storage_link_options {
  unsigned connect_timeout_ms;  /* how long to wait for the server's first answers */
  unsigned reconnect_ms;        /* how long requests wait for a lost connection */
  /* NBD URIs in normal form with the secrets (user, keys) that are to be used for them and
   * for what is below them.  Names elsewhere have none. */
  const char *const *secrets;
  size_t nr_secrets;
};
#define STORAGE_LINK_DEFAULTS { .connect_timeout_ms = 10000, .reconnect_ms = 30000 }

struct storage_options {
  bool try_writable;    /* open read-write; EACCES, EPERM, EROFS, ETXTBSY fall back
                           to read-only: ask storage_is_writable */
  bool lock;            /* take the reader's lock before anything of the file is
                           believed, its size included */
  bool data_file;       /* it is an external data file: that is who it locks for */
  bool drop_cache;      /* cache=none: keep the data out of the page cache */
  const char *name;     /* NULL, or: open this name in the directory `dir', and not a
                           symbolic link; the path is for messages only then */
  int dir;
  const struct storage_link_options *link;     /* NULL: the defaults */
  const struct storage_hooks *hooks;  /* NULL outside tests; outlives the file */
};

/* Opens NAME: an absolute path, or an NBD URI. */
extern int storage_open (const char *name, const struct storage_options *,
                         struct storage **);
extern void storage_close (struct storage *);  /* NULL is fine; keeps errno */
/* Tells the hook of an operation on the file's name.  Returns what `before' does; an
 * error is not reported. */
extern int storage_hook (struct storage *, enum storage_op);

extern const char *storage_path (const struct storage *);
extern bool storage_is_writable (const struct storage *);
/* Why it is not writable, where there is more to say than that. */
extern const char *storage_why_readonly (const struct storage *);
extern bool storage_is_regular (const struct storage *);
/* Are these the same file (device and inode; for block devices rdev)? */
extern bool storage_same (const struct storage *, const struct storage *);

/* Current size in bytes.  Kept in memory: raised by writes and truncate. */
extern uint64_t storage_size (const struct storage *);
/* Bytes that the host has allocated (st_blocks * 512), measured now. */
extern uint64_t storage_allocated (const struct storage *);

/* Whole transfers or an error.  Past the end of the file reads give zeros. */
extern int storage_read (struct storage *, void *buf, uint64_t count,
                         uint64_t offset);
/* The same into memory that is still zeros, of sparse_new: what is zeros in the file
 * takes none. */
extern int storage_read_sparse (struct storage *, void *buf, uint64_t count,
                                uint64_t offset);
extern int storage_write (struct storage *, const void *buf, uint64_t count,
                          uint64_t offset);
/* As storage_write from several buffers; the iov array is not changed.
 * DSYNC: the data is durable on return (RWF_DSYNC). */
extern int storage_writev (struct storage *, const struct iovec *iov, int niov,
                           uint64_t offset, bool dsync);

/* fdatasync. */
extern int storage_sync (struct storage *);
/* The same, if anything was changed since the last sync that went well.  Returns 1 if a
 * sync was needed. */
extern int storage_sync_changes (struct storage *);

/* Gives the range back to the host and makes it read as zeros.  Returns 1 if
 * that was done, 0 if the host can't (remembered; not an error), -1 on error. */
extern int storage_punch (struct storage *, uint64_t offset, uint64_t count);
/* Makes the range, which lies within the file, read as zeros, without writing them, and
 * without giving it back to the host (ENOSPC: they are zeros, but may lack space).
 * Returns as storage_punch. */
extern int storage_zero (struct storage *, uint64_t offset, uint64_t count);

/* Makes sure that writes to the range, which lies within the file, will find space
 * (on hosts that overwrite in place).  What it reads as does not change.  A host that
 * can't promise that is no error. */
extern int storage_allocate (struct storage *, uint64_t offset,
                             uint64_t count);
/* Has the host refused to promise that so far? */
extern bool storage_cannot_allocate (const struct storage *);

/* Sets the size (regular files).  On block devices: an error (ENOSPC) if larger
 * than the device, else nothing.  */
extern int storage_truncate (struct storage *, uint64_t size);

/* Makes the file at least SIZE bytes long, and sure that writes to COUNT bytes at OFFSET
 * will find space.  -1: ENOSPC (a limit, a quota or the end of a device, too) is not
 * reported: the caller may do with less. */
extern int storage_extend (struct storage *, uint64_t size, uint64_t offset,
                           uint64_t count);

/* Is there data at OFFSET, and how far does that answer hold?  *LEN (in: the
 * most that is of interest, > 0; out: > 0).  Where the host can't tell, data. */
extern int storage_hole (struct storage *, uint64_t offset, uint64_t *len,
                         bool *hole);

/* Tells the host that this range will be read soon.  Never fails. */
extern void storage_prefetch (struct storage *, uint64_t offset,
                              uint64_t count);
/* Has the host begin to write back what was written there, without waiting: a sync will
 * have less to do.  Never fails; what goes wrong is found by the sync. */
extern void storage_write_back (struct storage *, uint64_t offset,
                                uint64_t count);

/* Takes, changes or drops the QEMU-compatible image locks (see hostlock.h).  On
 * failure the old role is kept, and the message names what is in the way and, as
 * far as we may know, the process that holds it.
 */
extern int storage_lock (struct storage *, enum storage_lock role);

#endif /* QCOW2_STORAGE_H */
