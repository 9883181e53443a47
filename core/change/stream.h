/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Has a disk in use do without some of its layers.  See stream.c.
 */

#ifndef QCOW2_STREAM_H
#define QCOW2_STREAM_H

#include "disk/disk.h"

struct stream;

/* Who copies for long. */
struct stream_watch {
  /* Between any two pieces: of TOTAL bytes of the disk, DONE were looked at, and COPIED
   * more were stored since the last call.  Returns 0, or -1 with errno to end. */
  int (*step) (void *opaque, uint64_t done, uint64_t total, uint64_t copied);
  /* A piece failed (reported), in reading (READS) or storing: ERR, an errno.  Returns 0:
   * try it again; 1: leave it out, the caller will not finish; or -1 with errno to
   * end. */
  int (*fails) (void *opaque, bool reads, int err);
  void *opaque;
};

/* LAYER of the disk (0: its top image) is to lie over its layer BASE (0: over none),
 * which its header then calls NAME (NULL: by its path).  Checks whether that is possible;
 * one that is below the top is locked as by a writer.  Nothing else changes the layers,
 * snapshots or size of the disk from here to the end.  NULL: reported. */
extern struct stream *stream_new (struct disk *, unsigned layer, unsigned base,
                                  const char *name);
extern void stream_free (struct stream *);      /* accepts NULL */
/* Of the image, in bytes. */
extern uint64_t stream_size (const struct stream *);

/* Does the image lie there already? */
extern bool stream_is_done (const struct stream *);
/* Stores in the image what it shows of the layers that will not be below it any more,
 * while clients use the disk; for the top image the caller is a writer (disk_connect).
 * Returns 0: all of it is durable; or -1 (reported, or what the watch says). */
extern int stream_copy (struct stream *, const struct stream_watch *);
/* After that: makes the change of the header, once.  0 or -1, as disk_change; but below
 * the top, the header may be changed then although the disk goes on as before. */
extern int stream_finish (struct stream *);

#endif /* QCOW2_STREAM_H */
