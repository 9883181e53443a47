/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Computes the contents of a new image.  See newimage.c.  Pure: no files.
 */

#ifndef QCOW2_NEWIMAGE_H
#define QCOW2_NEWIMAGE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "format/header.h"
#include "format/preallocation.h"

struct newimage_options {
  uint64_t size;                /* of the disk, in bytes; rounded up to 512 */
  uint64_t cluster_size;        /* bytes */
  unsigned version;             /* 2 or 3 */
  unsigned refcount_bits;
  enum preallocation preallocation;
  bool extended_l2, lazy_refcounts;
  unsigned compression_type;    /* QCOW2_COMPRESSION_* */
  uint64_t luks_bytes;          /* of the encryption header; 0: not encrypted */
  const char *backing_file;     /* the name for the header, or NULL */
  const char *backing_format;   /* not NULL if there is a backing file */
  const char *data_file;        /* the name for the header, or NULL */
  bool data_file_raw;           /* the data file is a raw disk image */
  bool overlay_room;            /* in the header, if it fits, for the name of an image on
                                   top of this one: overlayref.h */
};

/* The place of every part.  Offsets are in bytes and aligned to clusters; absent tables
 * have 0 bytes. */
struct newimage {
  struct newimage_options options;      /* size is rounded */
  uint64_t cluster_size;
  unsigned refcount_order;
  unsigned l2_entry_size;
  uint64_t data_clusters;       /* clusters of the whole disk */
  uint64_t l1_entries;
  bool mapped;                  /* there are L2 tables, for the whole disk */
  bool unlimited;               /* only the size is asked for, as if there were no
                                   limits */

  uint64_t reftable_offset, reftable_clusters;
  uint64_t refblocks_offset, refblocks;
  uint64_t l1_offset, l1_clusters;
  uint64_t luks_offset, luks_clusters;
  uint64_t l2_offset, l2_tables;
  uint64_t data_offset;         /* of guest offset 0, in the image or data file */

  uint64_t metadata_end;        /* bytes: only guest data is at this offset and after */
  uint64_t file_size;           /* bytes; all clusters before have refcount 1 */
};

/* The size of the image file, in bytes, when the guest has written all of the disk: that
 * of an image with preallocated metadata, whatever OPTIONS say of preallocation.  The
 * size of the disk is possible, but a refcount table for all of it may not be. */
extern uint64_t newimage_full_size (const struct newimage_options *);
/* The same for an image that exists, without its internal snapshots and bitmaps. */
extern uint64_t newimage_full_size_of (const struct header *);

/* Plans an image.  The strings of the options must outlive the plan.  -1 with errno
 * EINVAL: such an image is not possible (reported). */
extern int newimage_plan (const struct newimage_options *, struct newimage *);

/* Fills BUF with the bytes [OFFSET, OFFSET + LEN) of the file, which lie before
 * metadata_end.  Where the encryption header belongs, the bytes are zeros.  Both numbers
 * are multiples of 512. */
extern void newimage_fill (const struct newimage *, uint64_t offset,
                           void *buf, size_t len);

#endif /* QCOW2_NEWIMAGE_H */
