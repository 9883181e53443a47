/* SPDX-License-Identifier: BSD-3-Clause
 *
 * A disk that is being served.  See disk.c.
 */

#ifndef QCOW2_DISK_H
#define QCOW2_DISK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "storage/hostfile.h"
#include "image/clustercache.h"
#include "image/image.h"
#include "space/alloc.h"
#include "mapping/chain.h"
#include "mapping/map.h"
#include "request/checkpoint.h"
#include "request/request.h"
#include "request/view.h"

struct disk;

struct disk_options {
  const char *path;             /* absolute */
  const char *name;             /* NULL, or: it is this file in directory `dir', and not
                                   a symbolic link; `path' only names it */
  int dir;
  struct map *map;              /* NULL, or: memory for mappings that is shared with other
                                   disks, and l2_cache is the limit of all */
  uint64_t l2_cache;            /* bytes */
  uint64_t l2_slice;            /* bytes, power of two >= 512 */
  enum backing_policy backing;
  const char *backing_path;     /* absolute */
  const char *backing_format;
  enum data_file_policy data_file;
  const char *data_file_path;   /* absolute */
  struct image_secret secret;   /* used by disk_open only */
  bool untrusted;               /* an image from strangers: see the manual */
  bool discard;
  enum detect_zeroes detect_zeroes;
  bool compress;                /* whole new clusters */
  bool copy_on_read;
  bool drop_cache;
  bool lock;
  uint64_t size_at_least;       /* bytes; as if a smaller disk were so large, within its
                                   last cluster: see edit.c; 0 for all others */
  bool (*client_waits) (void);  /* NULL, or: false, reported, if perhaps nobody waits any
                                   more for the request that this thread serves */
  uint64_t linger_ms;           /* so long it goes on then */
  const struct hostfile_hooks *hooks;   /* tests; NULL otherwise */
};

/* Opens and checks everything, changes nothing, takes reader's locks.  The
 * strings must outlive the disk.  -1: reported. */
extern int disk_open (const struct disk_options *, struct disk **);
/* The same in two steps, for those who change the image before it is served: its top
 * image, which has its external data file, but was not loaded.  NULL: reported. */
extern struct image *disk_open_image (const struct disk_options *);
/* The size of what lies below it: 0 if nothing does. */
extern int disk_backing_size (const struct disk_options *, struct image *,
                              uint64_t *size);
/* A disk whose top image is that one, which was loaded and has no other disk.  The disk is
 * one more owner; the locks that it takes stay when it is closed. */
extern int disk_open_on (const struct disk_options *, struct image *, struct disk **);
/* No request may be running.  Everything is made durable and clean first if
 * it was written.  -1: that failed (reported); the memory is freed in
 * any case. */
extern int disk_close (struct disk *);

extern uint64_t disk_size (const struct disk *);          /* bytes */
/* A write of less costs more: the size of a cluster or subcluster, bytes.  (With
 * compress=on less than a cluster can't be compressed.) */
extern uint64_t disk_unit_size (const struct disk *);
/* "qcow2 v3, 64K clusters, 2 layers".  Belongs to the disk. */
extern const char *disk_description (const struct disk *);
/* Why it can't be written, or NULL. */
extern const char *disk_why_readonly (const struct disk *);

/* A client comes.  *WRITABLE: in: it wants to write; out: it may.  The first one
 * that may makes the disk writable (writer's lock, allocator, L2 tables), and has an
 * image repaired that was not closed properly.
 * -1: reported. */
extern int disk_connect (struct disk *, bool *writable);
/* A client that was let in with this WRITABLE leaves.  After the last one that could
 * write the image is made durable, clean and without leaks. -1: that failed (reported).
 */
extern int disk_disconnect (struct disk *, bool writable);

/* Requests; see request.h and serve.c.  Any thread.  FUA: durable on return.  Those with
 * no data to carry may be about all of the disk; -1 with ESHUTDOWN: given up, perhaps
 * half done, since the client has gone. */
extern int disk_read (struct disk *, void *buf, uint64_t count,
                      uint64_t offset);
/* The same for a client that was let in to write: with copy_on_read, what comes from
 * below the top image is stored in it.  BUF may be NULL: nothing is read, only stored. */
extern int disk_read_fill (struct disk *, void *buf, uint64_t count,
                           uint64_t offset);
extern int disk_write (struct disk *, const void *buf, uint64_t count,
                       uint64_t offset, bool fua);
extern int disk_trim (struct disk *, uint64_t count, uint64_t offset,
                      bool fua);
extern int disk_zero (struct disk *, uint64_t count, uint64_t offset,
                      bool may_trim, bool fast, bool fua);
extern int disk_flush (struct disk *);
extern int disk_extents (struct disk *, uint64_t count, uint64_t offset,
                         bool one, extent_fn emit, void *opaque);
extern int disk_cache (struct disk *, uint64_t count, uint64_t offset);

/* Can clusters of this compression type ("zlib", "zstd") be read? */
extern bool disk_can_inflate (const char *type);

/* --- which exports it has, besides itself: snapshots and parts --- */

/* NBD carries names of so many bytes, in UTF-8. */
#define DISK_MAX_EXPORT_NAME 4096
extern bool disk_may_list (const char *name);

/* Calls EMIT for each export that a client can be told of, with a name that means this
 * one and no other, until EMIT returns other than 0, which is returned.  *UNLISTED: how
 * many were left out, since there is no such name. */
typedef int (*export_fn) (void *opaque, const char *name, const char *description);
extern int disk_list_exports (const struct disk *, export_fn emit, void *opaque,
                              unsigned *unlisted);

/* --- internal snapshots: each is a disk of its own, which never changes --- */

struct disk_snapshot;

/* The snapshot of that name or id.  It belongs to the disk.  NULL: there is none, or it
 * can't be served (reported). */
extern struct disk_snapshot *disk_open_snapshot (struct disk *,
                                                 const char *name);

extern uint64_t disk_snapshot_size (const struct disk_snapshot *);  /* bytes */
extern const char *disk_snapshot_description (const struct disk_snapshot *);

/* Requests, as for the disk. */
extern int disk_snapshot_read (struct disk *, struct disk_snapshot *, void *buf,
                               uint64_t count, uint64_t offset);
extern int disk_snapshot_extents (struct disk *, struct disk_snapshot *,
                                  uint64_t count, uint64_t offset, bool one,
                                  extent_fn emit, void *opaque);
extern int disk_snapshot_cache (struct disk *, struct disk_snapshot *,
                                uint64_t count, uint64_t offset);

/* --- parts, read-only: what one layer holds, what has changed --- */

/* "layer:N": what layer N of the chain (0: the image itself, 1: its backing file ...)
 * holds; the rest is a hole.  "bitmap:NAME": the disk, as far as that bitmap says that
 * it has changed; the rest is a hole. */
struct disk_part;

/* Does the name have the form of a part's? */
extern bool disk_is_part (const char *name);

/* A client comes to that part, and leaves it.  The bits of a bitmap are those of the
 * moment when the first came, until the last has left.  NULL: there is no such part, or
 * it can't be served (reported). */
extern struct disk_part *disk_open_part (struct disk *, const char *name);
extern void disk_close_part (struct disk *, struct disk_part *);

extern uint64_t disk_part_size (const struct disk_part *);      /* bytes */
extern const char *disk_part_description (const struct disk_part *);

/* Requests, as for the disk. */
extern int disk_part_read (struct disk *, struct disk_part *, void *buf,
                           uint64_t count, uint64_t offset);
extern int disk_part_extents (struct disk *, struct disk_part *,
                              uint64_t count, uint64_t offset, bool one,
                              extent_fn emit, void *opaque);
extern int disk_part_cache (struct disk *, struct disk_part *, uint64_t count,
                            uint64_t offset);

/* --- for offline/: changes of an image as a whole, while nobody else uses it --- */

struct disk_inside {
  struct image *image;          /* the top image */
  const struct view *view;      /* writable once the caller was let in to write */
  struct grace *grace;
  struct map *map;
  struct bitmaps *bitmaps;      /* NULL: there are none, or they forbid changes */
};
/* All of it belongs to the disk. */
extern struct disk_inside disk_inside (struct disk *);

struct disk_stats {
  struct map_stats map;                 /* of all disks that share it */
  struct cluster_cache_stats cluster_cache;
  struct alloc_stats alloc;             /* zeros if never written */
  struct checkpoint_stats checkpoint;
};
extern void disk_get_stats (struct disk *, struct disk_stats *);
/* Adds to *SUM what another disk has done; not `map', which is about all. */
extern void disk_add_stats (struct disk_stats *sum, const struct disk_stats *);

#endif /* QCOW2_DISK_H */
