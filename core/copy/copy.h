/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Copies a disk from one end to another.  See copy.c.
 */

#ifndef QCOW2_COPY_H
#define QCOW2_COPY_H

#include "copy/chunks.h"
#include "copy/copyend.h"

/* What happens at the target to what the source shows as zeros? */
enum copy_zeros {
  COPY_ZEROS_MAKE,              /* it is made zeros */
  COPY_ZEROS_SKIP,              /* it is zeros already */
  COPY_ZEROS_WRITE,             /* they are written as data, and so have space */
};

struct copy {
  struct copy_end from;         /* all of it is copied */
  struct copy_end to;           /* at least as large */
  enum copy_zeros zeros;
  bool contained;               /* only what the source contains: where it has a hole, the
                                   target stays as it is.  UNIT is 0 then */
  uint64_t unit;                /* 0, or bytes, a power of two that divides the piece of
                                   the target: it is written in whole ones (clusters that
                                   are to be compressed) */
  uint64_t sparse;              /* 0, or: so many bytes of zeros in the source's data are
                                   no data; a power of two, and at least UNIT */
  const struct copy_end *beside;        /* NULL, or: what the target shows in the end
                                           where
                                   nothing is written.  What is the same there, in blocks
                                   of SPARSE bytes, is not written.  At least as large */
  uint64_t begin;               /* what is before that was copied earlier; 0 in order */
  uint64_t rate;                /* 0, or: reads at most so many bytes in a second */
  /* NULL: what cannot be read is an error.  Otherwise it counts as zeros, and this is
   * told of it (ERR: errno), in the thread that has met it, which reports nothing itself.
   * (What has to be read in order cannot be read again: there it stays an error.) */
  void (*lost) (void *opaque, uint64_t at, uint64_t len, int err);
  /* NULL, or is told when all before BEFORE has become durable, of which COPIED bytes (or
   * more) were written now.  -1: reported; the copy fails. */
  int (*settled) (void *opaque, uint64_t before, uint64_t copied);
  void *opaque;
};

/* Copies all of it, in several threads.  It is durable at the target only after its
 * `sync'; DURABLE: it is made so every few seconds, too.  *COPIED: bytes of data that
 * were written.  -1: reported, with WORDS. */
extern int copy_all (const struct copy *, const struct chunks_words *words, bool durable,
                     const struct chunks_watch *, uint64_t *copied);

/* For callers that go through the disk themselves, with ends that need no order.  Copies
 * the beginning of [*AT, END), until MOST bytes of data are done, through a buffer of
 * copy_scratch bytes.  *AT: everything before it is done.  Adds to *COPIED, also on
 * failure.  -1: reported; *READS: the source has failed, and not the target. */
extern int copy_range (const struct copy *, void *buf, uint64_t *at, uint64_t end,
                       uint64_t most, uint64_t *copied, bool *reads);
extern uint64_t copy_scratch (const struct copy *);

#endif /* QCOW2_COPY_H */
