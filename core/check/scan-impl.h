/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Declarations that scan.c, scanrefs.c, scantables.c, scansnapshots.c, scanbitmaps.c,
 * scanluks.c, scandata.c, scanseen.c and scanwork.c share.  No other file includes this.
 */

#ifndef QCOW2_SCAN_IMPL_H
#define QCOW2_SCAN_IMPL_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "util/bytes.h"
#include "format/compress.h"
#include "check/scan.h"
#include "check/walk.h"

/* Bytes of a file that a thread reads at once; at least a cluster. */
#define SCAN_BUFFER (1u << 20)

struct scan_piece { uint64_t offset, bytes; };

struct scan {
  struct storage *file;
  const struct header *h;
  struct findings *findings;
  bool full;
  struct pace *pace;            /* or NULL */
  uint64_t bytes_read;          /* at the end of a full check, about */
  bool data_file;               /* L2 entries point into an external data file */

  /* The window marks the clusters whose stored refcount is 1. */
  struct walk *walk;
  struct refwindow *window;
  unsigned block_bits;          /* log2 of the clusters that a refcount block covers */

  const struct walk_l2 *tables;  /* to be decompressed; constant while threads run */
  const struct scan_piece *pieces; /* of the file, to be read; the same */
  struct compress_pool *pool;   /* only for a full check ... */
  struct seen *seen;            /* ... as is this */
  _Atomic unsigned unreadable;  /* number of places that could not be read */

  uint64_t most_work;           /* constant: see scan_limit_work */
  _Atomic uint64_t work;        /* see scan_work */

  _Atomic uint64_t allocated, compressed, fragmented, end; /* of struct scan_stats */
  uint64_t bitmaps_in_use;      /* used by one thread */
};

/* --- scanwork.c --- */

extern void scan_limit_work (struct scan *, bool untrusted);

/* Tables of so many bytes are walked, or so many bytes read or made of compressed data.
 * Returns 0, or -1 with errno E2BIG if this is more than the image may cause; the first
 * time this is a finding. */
extern int scan_work (struct scan *, uint64_t bytes);

/* --- functions of struct walk_visitor; OPAQUE is the struct scan --- */

/* scantables.c: checks the entries and their COPIED flags, and ... */
extern void scan_l1_entry (void *opaque, const struct walk_l1 *, uint64_t index,
                           uint64_t entry);
extern int scan_l2 (void *opaque, struct walk_l2 *, const struct be64 *raw);
extern int scan_l2_tables (void *opaque, const struct walk_l2 *, uint32_t n);
/* ... only the COPIED flags of entries that point into the window. */
extern void scan_l1_copied (void *opaque, const struct walk_l1 *, uint64_t index,
                            uint64_t entry);
extern int scan_l2_copied (void *opaque, struct walk_l2 *, const struct be64 *raw);

/* scansnapshots.c, scanbitmaps.c, scanluks.c */
extern int scan_snapshot (void *opaque, const struct snaptable_entry *);
extern void scan_bitmap (void *opaque, const struct walk_bitmap *);
extern void scan_bitmap_entry (void *opaque, const struct walk_bitmap *, uint64_t entry);
extern int scan_encryption (void *opaque);

/* scandata.c */
extern int scan_inflate_all (void *opaque, const struct walk_l2 *, uint32_t n);

/* --- scanrefs.c: before the walk, and after it --- */

extern void scan_reftable (struct scan *);      /* checks entries of the refcount table */
extern int scan_load_refcounts (struct scan *);
extern int scan_compare_refcounts (struct scan *);
/* The next window that a refcount block covers, or UINT64_MAX if there is none. */
extern uint64_t scan_refcounts_next (const struct scan *);

/* --- scandata.c --- */

extern int scan_read_all (struct scan *);

/* --- scanseen.c --- */

/* Remembers compressed clusters of a file of that size.  NULL on ENOMEM. */
extern struct seen *seen_new (uint64_t file_size);
extern void seen_free (struct seen *);          /* NULL is allowed */
/* Could the cluster with this descriptor be decompressed?  1, 0, or -1: it is not
 * known. */
extern int seen_ask (struct seen *, uint64_t descriptor);
extern void seen_tell (struct seen *, uint64_t descriptor, bool good);

#endif /* QCOW2_SCAN_IMPL_H */
