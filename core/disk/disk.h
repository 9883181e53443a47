/* SPDX-License-Identifier: BSD-3-Clause
 *
 * How is a disk put together, and when can it be written?  See disk.c.
 */

#ifndef QCOW2_DISK_H
#define QCOW2_DISK_H

#include <stdbool.h>
#include <stdint.h>

#include "storage/storage.h"
#include "format/compress.h"
#include "image/clustercache.h"
#include "image/health.h"
#include "image/image.h"
#include "space/alloc.h"
#include "mapping/chain.h"
#include "mapping/map.h"
#include "request/checkpoint.h"
#include "request/readahead.h"
#include "request/request.h"
#include "request/view.h"
#include "disk/spacewait.h"

struct disk;

struct disk_options {
  const char *path;             /* absolute */
  struct dirfile in_dir;        /* if it has a name, it is the image, and `path' is for
                                   messages */
  struct map *map;              /* NULL, or: memory for mappings that is shared with other
                                   disks; l2_cache is then the limit of all together */
  struct readahead_load *load;  /* NULL, or shared with other disks in the same way */
  uint64_t l2_cache;            /* bytes */
  uint64_t l2_slice;            /* bytes, power of two >= 512 */
  unsigned checkpoint_interval_ms;      /* see checkpoint_start_timer; 0: never */
  enum backing_policy backing;
  const char *backing_path;     /* absolute; or NULL */
  const char *backing_format;
  enum data_file_policy data_file;
  const char *data_file_path;   /* absolute; or NULL */
  struct image_secret secret;   /* used by disk_open only */
  bool untrusted;               /* see untrusted=true in the manual */
  bool guard_below;             /* the image is not written if the disk has gone on in one
                                   over it: see overlayref.h */
  bool discard;
  enum detect_zeroes detect_zeroes;
  enum compress compress;       /* compress whole new clusters ... */
  struct compress_options compress_options;     /* ... in this way */
  bool copy_on_read;
  bool bitmap_durable;          /* enabled bitmaps survive a crash: see bitmaplog.c */
  enum storage_cache cache;
  bool lock;
  const char *snapshot;         /* NULL, or: the only export is this internal snapshot */
  bool (*client_waits) (void);  /* NULL, or: returns false (reported) if the client of the
                                   request that this thread serves may have gone */
  uint64_t linger_ms;           /* how long such a request goes on */
  bool wait_for_space;          /* requests that find no space wait, and do not fail */
  uint64_t watermark;           /* bytes; see alloc_options */
  void (*news) (void);          /* NULL, or called when there is something new about space
                                   in the statistics; with locks held, so it only tells
                                   another thread */
  struct filename_rules rules;  /* for names in headers */
  struct storage_link_options link;     /* for images behind a network */
  const struct storage_hooks *hooks;   /* tests; NULL otherwise */
};

/* Opens and checks everything, changes nothing, takes reader's locks.  The strings must
 * outlive the disk.  Returns 0, or -1 (reported). */
extern int disk_open (const struct disk_options *, struct disk **);
/* How that opens the images of the chain. */
extern struct chain_options disk_chain_options (const struct disk_options *);
/* Opens the top image alone, read-only, and reads and checks its header, for a
 * description of it: the file may have been cut off.  Needs neither the passphrase nor
 * any other file.  Refuses an untrusted image that needs too much, as disk_open does.
 * NULL: reported. */
extern struct image *disk_open_header (const struct disk_options *);
/* The same as disk_open in steps, for a caller that changes the image before it is
 * served.  First: opens the top image with its external data file, but does not load
 * it.  NULL: reported. */
extern struct image *disk_open_image (const struct disk_options *);
/* Adds the layers below to that image, which must be loaded.  NULL: reported. */
extern struct layers *disk_open_layers (const struct disk_options *, struct image *);
/* Makes a disk of that image.  The disk becomes one more owner of the image, and must be
 * the only disk of it.  The locks that it takes stay when it is closed.  -1: reported. */
extern int disk_open_on (const struct disk_options *, struct image *, struct disk **);
/* Makes a disk of layer I of another stack, an image whose snapshots have been read, and
 * of the layers below it, which it shares.  As disk_open_on. */
extern int disk_open_over (const struct disk_options *, const struct layers *, unsigned i,
                           struct disk **);
/* No request may be running; clients need not have left.  If the disk was written, makes
 * everything durable and clean first.  Returns 0, or -1 if that failed (reported).  The
 * memory is freed in any case.  Accepts NULL. */
extern int disk_close (struct disk *);

/* From now on, there may be threads that decompress clusters ahead of clients.  (What
 * changes a whole image has threads of its own.) */
extern void disk_allow_ahead (struct disk *);
/* Before a fork: ends the threads that work ahead of requests.  No request may be
 * running; the next ones may start threads again. */
extern void disk_end_ahead (struct disk *);

/* Such as "qcow2 v3, 64K clusters, 2 layers".  Belongs to the disk. */
extern const char *disk_description (const struct disk *);
/* The reason why clients cannot write the disk, or why it cannot be changed at all; or
 * NULL.  Belongs to the disk. */
extern const char *disk_why_readonly (struct disk *);
extern const char *disk_why_fixed (const struct disk *);

/* A client (through export_open), or a change in change/, begins to use the disk.
 * *WRITABLE: on entry, whether it wants to write; on return, whether it may.  The first
 * one that may write makes the disk writable (writer's lock, allocator, L2 tables), which
 * repairs an image that was not closed properly.  Returns 0, or -1 (reported). */
extern int disk_connect (struct disk *, bool *writable);
/* A client for which disk_connect returned this WRITABLE leaves.  After the last one that
 * may write, makes the image durable, clean and without leaks.  Returns 0, or -1 if that
 * failed (reported). */
extern int disk_disconnect (struct disk *, bool writable);

/* After the last client that may write has left: was there no space to bring the image to
 * rest?  disk_close would try it for the last time. */
extern bool disk_lacks_space (struct disk *);
/* Is it worthwhile to try that again now, with disk_settle, because what clients have
 * written was written since? */
extern bool disk_may_settle (struct disk *);
/* A failure is reported. */
extern void disk_settle (struct disk *);

/* Closes the connections to NBD servers, each when no request uses it, until a request
 * needs one again. */
extern void disk_hang_up (struct disk *);

/* Does a request run, or did one a moment ago, or may one wait for a change of the disk?
 * (One that waits for space is none.) */
extern bool disk_is_busy (struct disk *);

/* Can clusters of this compression type ("zlib", "zstd") be read? */
extern bool disk_can_inflate (const char *type);

/* --- for change/ --- */

/* A change of the whole disk, whether clients use it or not.  First, as a writer, it may
 * write like the only client (WRITE); then the image is brought to
 * rest, and changed in one step of its own (MAKE).  Until that has ended, clients that
 * write wait; those that read do not.  Functions return 0, or -1 (reported). */
struct disk_change {
  void *opaque;
  int (*write) (void *opaque, const struct view *);     /* NULL: nothing */
  /* Is there something for WRITE to do?  If not, the disk need not become writable.
   * NULL: yes. */
  bool (*needs_write) (void *opaque, const struct view *);
  /* Does beforehand, while clients write, what it can.  NULL: nothing. */
  void (*prepare) (void *opaque, const struct image *);
  /* The fields of the image agree with the file, and no other thread changes it.  After
   * -1 the image is unchanged, or its health has failed.  NULL: nothing. */
  int (*make) (void *opaque, struct image *);
  /* After MAKE has succeeded: frees what only the image as it was before used.  Without
   * ALLOC, no request uses that any more.  Otherwise there are clients that write: it
   * gets what is free, before they go on (alloc_hold_freed).  NULL: nothing. */
  void (*release) (void *opaque, struct alloc *alloc);
  /* The next generation, with another top image, is published, and clients that write
   * still wait.  The image before is at rest, and locked as by a writer.  NULL:
   * nothing. */
  void (*moved) (void *opaque, const struct image *before);
  bool data_file;               /* it is possible with an external data file */
  bool unchanged;               /* MAKE changes no file (as with TOP): without a next
                                   generation, that is -1, and all is as before */
  struct image *top;            /* NULL, or: from then on this loaded image is the top
                                   one, over the present one.  MAKE locks it as a
                                   writer */
  const struct layers *over;    /* from then on the image lies over the layers below the
                                   top of this stack; NULL: as before.  With TOP: that
                                   image does, in place of the present one */
};
/* 0: the change is made, and durable.  (If the disk cannot go on after it, this is
 * reported, and the disk has failed: disk_check.)  -1: reported; nothing has changed, or
 * the disk has failed, and it is unknown whether the change is made. */
extern int disk_change (struct disk *, const struct disk_change *);
/* From now on, clients record in the set what they change, before they do so; NULL: no
 * longer.  Returns when none is left that began before.  -1 (reported): they record
 * in another set already. */
extern int disk_record (struct disk *, struct dirtyset *);
/* Waits until all requests that change the disk have ended that began before this
 * call. */
extern void disk_drain (struct disk *);
/* No client changes the disk from now on, until the gate is open again: for several
 * changes (disk_change) in a row, and what lies between them. */
extern void disk_close_gate (struct disk *);
extern void disk_open_gate (struct disk *);
/* Calls FN while no other step is taken; clients go on. */
extern void disk_meanwhile (struct disk *,
                            void (*fn) (void *opaque, const struct image *), void *opaque);
/* Calls FN, which may read the disk, while no client changes it.  Returns its result. */
extern int disk_hold (struct disk *, int (*fn) (void *opaque), void *opaque);
/* May the disk still be changed?  -1: the cause was reported. */
extern int disk_check (struct disk *);

/* Work on a disk with clients writing, which has come as one of them (disk_connect): FN
 * does a piece of it, with the writable view, as a request of a client does.  While the
 * disk changes, it waits.  Returns what FN does; or -1 with EIO: the disk has failed. */
extern int disk_piece (struct disk *, int (*fn) (void *opaque, const struct view *),
                       void *opaque);
/* Makes everything durable that was done before.  -1: reported. */
extern int disk_flush (struct disk *);

/* Those with which it was opened, without the secret.  They belong to the disk. */
extern const struct disk_options *disk_get_options (const struct disk *);
/* Of them, those for how files and memory are used: for another image, PATH, which is
 * used only meanwhile, and without clients. */
extern struct disk_options disk_options_meanwhile (const struct disk_options *,
                                                   const char *path);

/* Does a client use the export of the internal snapshot with that id?  In MAKE: no client
 * comes meanwhile. */
extern bool disk_serves_snapshot (struct disk *, const char *id);
/* Does a client use the active disk, to read or to write it?  (One that comes meanwhile
 * has not read anything yet.) */
extern bool disk_has_clients (struct disk *);

/* Locks the image as a writer, and puts in order what a crash has left, as each change
 * does.  -1: reported. */
extern int disk_lock (struct disk *);
/* The image stays locked as by a writer from the first change on; this gives it back to
 * readers, unless clients have written since. */
extern void disk_unlock (struct disk *);

struct disk_inside {
  const struct view *view;      /* writable after disk_connect has allowed writing */
  struct epoch *epoch;
  struct map *map;
};
/* All of it belongs to the disk.  Any thread: but the view lasts only as long as a
 * read section, or until the disk is changed. */
extern struct disk_inside disk_inside (struct disk *);
/* The view, which lasts until the end of the block. */
struct disk_section {
  const struct view *view;
  struct epoch *epoch;
  struct epoch_section section;
};
extern struct disk_section disk_enter (struct disk *);
extern void disk_leave (struct disk_section *);
#define DISK_SECTION_FOR_BLOCK __attribute__ ((cleanup (disk_leave))) struct disk_section
/* Those of the disk, until it changes; NULL: there are none, or they forbid changes. */
extern struct bitmaps *disk_bitmaps (const struct disk *);

/* From now on, OPTIONS' news are called when clusters of the top image's file are
 * allocated beyond that many bytes, or if they were; once, and not if another image gets
 * on top.  0: no longer. */
extern void disk_set_threshold (struct disk *, uint64_t bytes);
/* What was set, until it was told. */
extern uint64_t disk_threshold (struct disk *);
/* Was there such news, of a threshold at *BYTES?  *REACHED: where the last cluster ended.
 * True only once. */
extern bool disk_take_reached (struct disk *, uint64_t *bytes, uint64_t *reached);

#define DISK_WHY HEALTH_WHY
struct disk_stats {
  struct map_stats map;                 /* of all disks that share it */
  struct cluster_cache_stats cluster_cache;
  struct alloc_stats alloc;             /* zeros if the disk was never writable */
  struct checkpoint_stats checkpoint;
  struct spacewait_stats space;
  uint64_t file_size;                   /* of the image's file, in bytes */
  bool is_device;                       /* that file is a block device or an export */
};
extern void disk_get_stats (struct disk *, struct disk_stats *);
/* Adds the statistics of another disk to *SUM, except `map', which covers all disks, and
 * what is about a single file (high_water, file_size, is_device). */
extern void disk_add_stats (struct disk_stats *sum, const struct disk_stats *);
/* What was counted stays; what it has now (memory, free clusters) is about to go. */
extern void disk_stats_end (struct disk_stats *);

/* How is it now? */
/* REFUSED: it could not be opened. */
enum disk_health {
  DISK_WRITABLE, DISK_READONLY, DISK_FAILED, DISK_CORRUPT, DISK_REFUSED
};
struct disk_state {
  enum disk_health health;
  char why[DISK_WHY];           /* "": it is writable */
  uint64_t size;                /* of the disk, bytes */
  uint64_t cluster_size;
  size_t bitmaps, inconsistent; /* all of them; those that are not to be used */
};
extern void disk_get_state (struct disk *, struct disk_state *);

/* Does it need the attention of its administrator? */
static inline bool
disk_is_bad (const struct disk_state *s)
{
  return s->health >= DISK_FAILED;
}

#endif /* QCOW2_DISK_H */
