/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What can be copied from, and to?
 *
 * An end is a disk of some bytes.  The code that copies (copy.c) or compares
 * (difference.c) knows nothing else about it.  What it works on stays with the caller.
 */

#ifndef QCOW2_COPYEND_H
#define QCOW2_COPYEND_H

#include <stdbool.h>
#include <stdint.h>

#include "storage/storage.h"
#include "request/request.h"

struct copy_end;

/* Offsets and counts are in bytes, and within the end.  Any thread.  0, or -1 (reported,
 * with the name of the end and the offset). */
struct copy_ops {
  /* What is at the beginning of [AT, AT + X->len)?  Sets X; its length may be larger.
   * HOLE: the end does not contain it, and shows zeros.  KNOWN belongs to one thread,
   * which asks in order. */
  int (*extent) (const struct copy_end *, uint64_t at, struct extent *x,
                 struct storage_holes *known);
  int (*read) (const struct copy_end *, void *buf, uint64_t count, uint64_t at);
  int (*write) (const struct copy_end *, const void *buf, uint64_t count, uint64_t at);
  /* Makes it read as zeros. */
  int (*zero) (const struct copy_end *, uint64_t count, uint64_t at);
  /* Makes durable what was written before. */
  int (*sync) (const struct copy_end *);
};

struct copy_end {
  const struct copy_ops *ops;
  union {
    struct export *export;
    const struct view *view;
    struct storage *storage;
    const struct copy_stream *stream;
    const struct copy_part *parts;
    const void *opaque;         /* for ops of other modules */
  };
  uint64_t size;                /* bytes; a comparison sees zeros behind it */
  uint64_t piece;               /* how much is best written at a time: a power of two, and
                                   whole clusters */
  bool remote;                  /* it waits for a link more than for a processor */
  bool in_order;                /* it has to be read, or written, in order */
  bool frees;                   /* what becomes zeros need not keep its space */
};

struct export;
struct disk;

/* --- exportend.c --- */

/* An export of an open disk, with all that its options say about reading and writing.  It
 * waits for space, and at the gate, as a client's requests do. */
extern struct copy_end copy_export (struct disk *, struct export *);

/* --- viewend.c --- */

/* A view, only to be read.  It does not change meanwhile. */
extern struct copy_end copy_view (const struct view *);

/* --- storageend.c --- */

/* A raw disk: a file or a device of this host, or an NBD export.  FREES: see above. */
extern struct copy_end copy_storage (struct storage *, bool frees);
/* An NBD export, only to be read, which contains no more than what its server calls data:
 * it says so of zeros, too, if they are a change.  If the server does not say, there is
 * an error: its zeros would take the place of data that has not changed. */
extern struct copy_end copy_changes (struct storage *);

/* --- streamend.c --- */

/* A pipe, or whatever else is read or written in order; the bytes of a raw disk.  PATH is
 * its name in messages. */
struct copy_stream { int fd; const char *path; };
extern struct copy_end copy_stream (const struct copy_stream *, uint64_t size);

/* --- joinend.c --- */

/* Parts of ends that follow each other, only to be read. */
struct copy_part {
  struct copy_end end;
  uint64_t from;                /* where the part begins in it */
  uint64_t at, len;             /* and its place among the others */
};
/* N > 0 parts, without gaps. */
extern struct copy_end copy_join (const struct copy_part *, unsigned n);

#endif /* QCOW2_COPYEND_H */
