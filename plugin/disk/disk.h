/* SPDX-License-Identifier: BSD-3-Clause
 *
 * A disk that is being served.  See disk.c.
 */

#ifndef QCOW2_DISK_H
#define QCOW2_DISK_H

#include <stdbool.h>
#include <stdint.h>

#include "storage/storage.h"
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
  const char *snapshot;         /* NULL, or: its only export is this internal snapshot */
  uint64_t size_at_least;       /* bytes; as if a smaller disk were so large, within its
                                   last cluster: see edit.c; 0 for all others */
  bool (*client_waits) (void);  /* NULL, or: false, reported, if perhaps nobody waits any
                                   more for the request that this thread serves */
  uint64_t linger_ms;           /* so long it goes on then */
  struct filename_rules rules;  /* for names in headers */
  struct storage_link_options link;     /* for what is behind a network */
  const struct storage_hooks *hooks;   /* tests; NULL otherwise */
};

/* Opens and checks everything, changes nothing, takes reader's locks.  The
 * strings must outlive the disk.  -1: reported. */
extern int disk_open (const struct disk_options *, struct disk **);
/* The same in two steps, for those who change the image before it is served: its top
 * image, which has its external data file, but was not loaded.  NULL: reported. */
extern struct image *disk_open_image (const struct disk_options *);
/* That image, which was loaded, and all that lies below it.  NULL: reported. */
extern struct layers *disk_open_layers (const struct disk_options *, struct image *);
/* A disk of them; the image has no other.  The disk is one more owner; the locks that it
 * takes stay when it is closed. */
extern int disk_open_on (const struct disk_options *, struct image *, struct disk **);
/* No request may be running; clients need not have left.  Everything is made durable and
 * clean first if it was written.  -1: that failed (reported); the memory is freed in any
 * case. */
extern int disk_close (struct disk *);

/* "qcow2 v3, 64K clusters, 2 layers".  Belongs to the disk. */
extern const char *disk_description (const struct disk *);
/* Why it can't be written, or NULL. */
extern const char *disk_why_readonly (const struct disk *);

/* A client comes (export_open does this), or a change of offline/.  *WRITABLE: in: it
 * wants to write; out: it may.  The first one that may makes the disk writable (writer's
 * lock, allocator, L2 tables), and has an image repaired that was not closed properly.
 * -1: reported. */
extern int disk_connect (struct disk *, bool *writable);
/* A client that was let in with this WRITABLE leaves.  After the last one that could
 * write the image is made durable, clean and without leaks. -1: that failed (reported).
 */
extern int disk_disconnect (struct disk *, bool writable);

/* Can clusters of this compression type ("zlib", "zstd") be read? */
extern bool disk_can_inflate (const char *type);

/* --- for offline/: changes of an image as a whole, while nobody else uses it --- */

struct disk_inside {
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
