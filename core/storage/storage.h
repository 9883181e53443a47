/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What the bytes of an image are stored in: a file or a block device of this host, or an
 * export of an NBD server.  All I/O on images uses these functions.  See storage.c.
 *
 * Functions that return int return 0, or -1 with errno set and the error reported (once,
 * with operation, storage and offset).  errno is ENOSPC whenever there is no more space,
 * including a quota or the maximum size of a file.  Offsets and counts are in bytes.  Any
 * thread may call any function, except where noted.
 *
 * After ENOSPC and ENOMEM, what was to be written can be written again later
 * (storage_may_try_again): then nothing was lost that was written before.
 */

#ifndef QCOW2_STORAGE_H
#define QCOW2_STORAGE_H

#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

#include "util/unwanted.h"
#include "storage/dirfile.h"

struct storage;

/* How the image is used, for QEMU-compatible locks: see hostlock.c. */
enum storage_lock {
  STORAGE_UNLOCKED,
  STORAGE_READER,       /* uses read; does not share write, resize */
  STORAGE_WRITER,       /* uses read, write, resize; does not share write, resize */
  /* The same for an external data file, for which only resize is not shared: the locks of
   * the image itself keep writers apart. */
  STORAGE_DATA_READER,
  STORAGE_DATA_WRITER,
};

/* The only place where tests observe and disturb operations on the host.  Every operation
 * calls `before' first (if set).  It returns 0 to let the operation take place, > 0 to
 * skip it and report it as done (the hook did it), or -1 with errno set to make it fail
 * with that error. */
enum storage_op {
  STORAGE_OP_READ,
  STORAGE_OP_WRITE,    /* iov contains the bytes to be written */
  STORAGE_OP_SYNC,
  STORAGE_OP_PUNCH,    /* also zeros by other means than writing */
  STORAGE_OP_TRUNCATE, /* offset is the new size */
  STORAGE_OP_ALLOCATE, /* contents do not change */
  STORAGE_OP_LINK,     /* a new file gets its name: see newfile.c */
  STORAGE_OP_SYNC_DIR, /* its directory is made durable */
};

struct storage_hooks {
  int (*before) (void *opaque, const char *path, enum storage_op op,
                 const struct iovec *iov, int niov,
                 uint64_t offset, uint64_t count, bool dsync);
  /* The size of what the hook replaces (of which SIZE is the real one). */
  uint64_t (*size) (void *opaque, const char *path, uint64_t size);
  void *opaque;
};

/* Options for storage behind a network. */
struct storage_link_options {
  unsigned connect_timeout_ms;  /* limit for connecting to the server */
  unsigned reconnect_ms;        /* how long requests wait for a lost connection */
  unsigned answer_timeout_ms;   /* how long a server may be silent while requests wait for
                                   it; 0: without limit */
  /* NULL, or: false if perhaps no client waits any more for what this thread does (see
   * disk_options).  A server that is away or silent is given up then, after
   * storage_link_alone_ms. */
  bool (*client_waits) (void);
  bool only_read;               /* nothing would be lost then (set by nbdfile.c) */
  /* NBD URIs in normal form, with the secrets (user, keys), if any, that are used for
   * them and for what is below them.  Names elsewhere have none. */
  const char *const *secrets;
  size_t nr_secrets;
};
#define STORAGE_LINK_DEFAULTS { \
    .connect_timeout_ms = 10000, .reconnect_ms = 30000, .answer_timeout_ms = 180000, \
  }

/* Does a client wait for what this thread does?  If not, it has been reported. */
static inline bool
storage_link_is_wanted (const struct storage_link_options *o)
{
  return !unwanted () && (o->client_waits == NULL || o->client_waits ());
}

static inline unsigned
storage_link_alone_ms (const struct storage_link_options *o)
{
  const unsigned most = o->only_read ? 2000 : 30000;

  return o->reconnect_ms < 1000 ? 1000 : o->reconnect_ms > most ? most : o->reconnect_ms;
}

enum storage_cache {
  STORAGE_CACHE_DEFAULT,
  STORAGE_CACHE_NONE,   /* keep the data out of the page cache */
  STORAGE_CACHE_UNSAFE, /* syncs do nothing: what is lost is lost */
};

struct storage_options {
  bool try_writable;    /* open read-write; EACCES, EPERM, EROFS, ETXTBSY fall back to
                           read-only: see storage_is_writable */
  bool lock;            /* take the reader's lock before relying on anything in the file,
                           including its size */
  bool data_file;       /* an external data file: take the locks for one */
  bool claim;           /* refuse a block device that the host uses itself (mounted, or a
                           part of a volume) */
  enum storage_cache cache;
  struct dirfile in_dir;        /* if it has a name, open this; the path is then only for
                                   messages */
  const struct storage_link_options *link;     /* NULL: the defaults */
  const struct storage_hooks *hooks;  /* NULL except in tests; must outlive the storage */
};

/* Opens NAME: an absolute path, or an NBD URI.  Returns 0 or -1 (reported). */
extern int storage_open (const char *name, const struct storage_options *,
                         struct storage **);
extern void storage_close (struct storage *);  /* may be NULL; keeps errno */
/* Tells the hook about an operation on the file's name.  Returns what `before' returns;
 * errors are not reported. */
extern int storage_hook (struct storage *, enum storage_op);

extern const char *storage_path (const struct storage *);
extern bool storage_is_writable (const struct storage *);
/* Opens read-write what was opened read-only, as with try_writable, while others read it.
 * The locks stay.  -1: reported.  (0: see storage_is_writable.) */
extern int storage_become_writable (struct storage *);
/* Why the storage is not writable, if there is more to say than that; otherwise NULL. */
extern const char *storage_why_readonly (const struct storage *);
extern bool storage_is_regular (const struct storage *);
/* Are these the same file (device and inode; for block devices rdev)? */
extern bool storage_same (const struct storage *, const struct storage *);

/* The current size in bytes.  Kept in memory: writes and truncate update it. */
extern uint64_t storage_size (const struct storage *);
/* The same, after asking whether a device, an export or a file that is only read here has
 * grown.  ASK: also if that takes another connection to a server.  (The known size never
 * becomes smaller.) */
extern uint64_t storage_size_now (struct storage *, bool ask);
/* The number of bytes that the host has allocated now (st_blocks * 512). */
extern uint64_t storage_allocated (const struct storage *);

/* Transfer the whole range or fail.  Reads past the end of the file return zeros. */
extern int storage_read (struct storage *, void *buf, uint64_t count,
                         uint64_t offset);

/* Do reads take long, and many at once no longer than one?  (They travel over a link.) */
extern bool storage_is_remote (const struct storage *);
/* Many reads, of any storages.  Those of remote ones are in flight at the same time. */
struct storage_range {
  struct storage *storage;
  void *buf;
  uint64_t count, offset;
  /* Results of storage_try_many. */
  bool done;
  int err;                      /* why it failed, or 0: it was not tried */
  void *pending;                /* private */
};
extern int storage_read_many (struct storage_range *, size_t n);
/* Does only those that are remote and need not wait for a lost connection.  Reports
 * nothing. */
extern void storage_try_many (struct storage_range *, size_t n);

/* Reads into memory from sparse_new that still contains zeros: zeros in the file take no
 * memory. */
extern int storage_read_sparse (struct storage *, void *buf, uint64_t count,
                                uint64_t offset);
extern int storage_write (struct storage *, const void *buf, uint64_t count,
                          uint64_t offset);
/* The same, of zeros.  (storage_zero may do it faster, or not at all.) */
extern int storage_write_zeros (struct storage *, uint64_t offset, uint64_t count);

enum storage_writing {
  STORAGE_IN_PLACE,     /* as storage_write.  If the process is killed, each sector of a
                         * file has its old or its new bytes */
  STORAGE_DURABLE,      /* the same, and durable on return (RWF_DSYNC) */
  STORAGE_UNSEEN,       /* nothing leads to that place yet, so it may get anything if the
                         * process is killed */
};
/* Like storage_write, from several buffers; the iov array is not changed. */
extern int storage_writev (struct storage *, const struct iovec *iov, int niov,
                           uint64_t offset, enum storage_writing);

static inline bool
storage_may_try_again (int err)
{
  return err == ENOSPC || err == ENOMEM;
}

/* fdatasync.  errno is ENOMEM if it could not even begin.  Otherwise it is EIO: writes
 * may be lost, and a later sync does not say so (R9). */
extern int storage_sync (struct storage *);
/* The same, if anything was changed since the last successful sync.  Returns 1 if a sync
 * was needed, 0 if not. */
extern int storage_sync_changes (struct storage *);
/* From now on, reads return what is stored durably, and not what a cache kept of writes
 * that have failed.  For images that are not being changed. */
extern void storage_forget_cache (struct storage *);
/* Was anything changed since then? */
extern bool storage_has_changes (const struct storage *);

/* Frees the space of the range and makes it read as zeros.  Returns 1 if that was done, 0
 * if the host cannot do it (this is remembered, and is not an error), -1 on error. */
extern int storage_punch (struct storage *, uint64_t offset, uint64_t count);
/* Frees the space of a range whose contents are no longer needed.  Returns 1 if it reads
 * as zeros from then on, 0 if that is not certain, -1 on error. */
extern int storage_discard (struct storage *, uint64_t offset, uint64_t count);
/* Makes the range, which must be within the file, read as zeros, without writing them and
 * without freeing its space (ENOSPC: it reads as zeros, but may lack space).  Returns the
 * same as storage_punch. */
extern int storage_zero (struct storage *, uint64_t offset, uint64_t count);
/* Makes the range, which must be within the file, read as zeros, in one of these ways
 * (FREES: the first one), or if the host cannot do it, by writing them.  Returns 0, or
 * -1. */
extern int storage_make_zeros (struct storage *, bool frees, uint64_t offset,
                               uint64_t count);

/* How many of COUNT bytes from OFFSET on read as zeros, as far as storage of a fixed size
 * says so at once?  The caller may rely on that: it lasts once a sync has followed. */
extern uint64_t storage_find_zeros (struct storage *, uint64_t offset, uint64_t count);
/* Makes the range read as zeros, if storage of a fixed size does that at once.  This
 * lasts once a sync has followed.  The space may be freed.  Returns the same as
 * storage_punch. */
extern int storage_zero_at_once (struct storage *, uint64_t offset, uint64_t count);

/* Makes sure that writes to the range, which must be within the file, will find space (on
 * hosts that overwrite in place).  The contents do not change.  It is not an error if a
 * host cannot promise that. */
extern int storage_allocate (struct storage *, uint64_t offset,
                             uint64_t count);
/* Returns true if the host could not promise that. */
extern bool storage_cannot_allocate (const struct storage *);

/* Sets the size (regular files).  For devices and exports, fails with ENOSPC if SIZE is
 * larger than the device is now, and otherwise does nothing. */
extern int storage_truncate (struct storage *, uint64_t size);

/* Makes the file at least SIZE bytes long, and makes sure that writes to COUNT bytes at
 * OFFSET will find space.  Returns 0 or -1.  ENOSPC (also for a limit, a quota or the end
 * of a device) is not reported: the caller may try a smaller size, and at last ask for
 * the size (storage_size_now). */
extern int storage_extend (struct storage *, uint64_t size, uint64_t offset,
                           uint64_t count);

/* Is there a hole at OFFSET, and for how many bytes is that true (or false)?  *LEN: on
 * entry, the largest length of interest (> 0); on return, > 0.  If the host does not
 * know, there is none. */
extern bool storage_hole (struct storage *, uint64_t offset, uint64_t *len);

/* Consecutive parts of a storage: holes and others, in turn. */
struct storage_parts {
  bool hole;                    /* is the first one a hole? */
  bool more;                    /* there are more, but there was no room for them */
  unsigned n, room;             /* of `lens' */
  uint64_t *lens;               /* bytes */
};
/* What one answer of a server has said about holes: more than was asked for. */
struct storage_holes {
  const struct storage *storage;        /* NULL: nothing is known */
  uint64_t offset;              /* of what is known, bytes */
  struct storage_parts parts;   /* in `room' */
  uint64_t span;                /* how much one answer can describe */
  uint64_t room[500];
};
/* ONE: an answer should describe one part only. */
extern void storage_holes_begin (struct storage_holes *, bool one);
/* The same as storage_hole, for callers that go through a storage in order, up to END.
 * If it is remote, they wait for one answer about as much as possible, and KNOWN keeps
 * the rest of it.  As the mapping may change meanwhile, OFFSET has to be a place that
 * always contains the same part of the disk. */
extern bool storage_hole_ahead (struct storage *, struct storage_holes *known,
                                uint64_t offset, uint64_t end, uint64_t *len);

/* The same for callers that need what the server calls a hole, whether or not it reads
 * as zeros.  -1 (reported): the server did not say; ENOTSUP: it never does. */
extern int storage_what_is_hole (struct storage *, struct storage_holes *known,
                                 uint64_t offset, uint64_t end, uint64_t *len,
                                 bool *hole);

/* Hints that this range will be read soon.  Never fails. */
extern void storage_prefetch (struct storage *, uint64_t offset,
                              uint64_t count);
/* Asks the host to start writing back the range, without waiting, so that a sync has less
 * to do.  Never fails; the sync reports any errors. */
extern void storage_write_back (struct storage *, uint64_t offset,
                                uint64_t count);

/* Closes connections to a server until the next operation needs one: the server may admit
 * only one client.  Waits until operations in progress do not need them.  What was
 * written through them is flushed first; if that fails, the next sync does. */
extern void storage_disconnect (struct storage *);

/* Takes, changes or releases the QEMU-compatible image locks (see hostlock.h).  On
 * failure the old role is kept, and the message names what is in the way and, if it can
 * be determined, the process that holds the lock. */
extern int storage_lock (struct storage *, enum storage_lock role);

#endif /* QCOW2_STORAGE_H */
