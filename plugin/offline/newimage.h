/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What a new image holds: see newimage.c.  Pure: no files.
 */

#ifndef QCOW2_NEWIMAGE_H
#define QCOW2_NEWIMAGE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "format/preallocation.h"

struct newimage_options {
  uint64_t size;                /* of the disk, bytes; rounded up to 512 */
  uint64_t cluster_size;        /* bytes */
  unsigned version;             /* 2 or 3 */
  unsigned refcount_bits;
  enum preallocation preallocation;
  bool extended_l2, lazy_refcounts;
  unsigned compression_type;    /* QCOW2_COMPRESSION_* */
  uint64_t luks_bytes;          /* of the encryption header; 0: not encrypted */
  const char *backing_file;     /* as the header is to name it, or NULL */
  const char *backing_format;   /* not NULL if there is a backing file */
  const char *data_file;        /* as the header is to name it, or NULL */
  bool data_file_raw;           /* is the data file the disk, byte for byte? */
};

/* Where everything lies.  Offsets are bytes, of clusters; tables that are not there have
 * no bytes. */
struct newimage {
  struct newimage_options options;      /* size is rounded */
  uint64_t cluster_size;
  unsigned refcount_order;
  unsigned l2_entry_size;
  uint64_t data_clusters;       /* of the whole disk */
  uint64_t l1_entries;
  bool mapped;                  /* are there L2 tables, for the whole disk? */

  uint64_t reftable_offset, reftable_clusters;
  uint64_t refblocks_offset, refblocks;
  uint64_t l1_offset, l1_clusters;
  uint64_t luks_offset, luks_clusters;
  uint64_t l2_offset, l2_tables;
  uint64_t data_offset;         /* of guest offset 0, in the image or the data file */

  uint64_t metadata_end;        /* bytes: all but guest data is before */
  uint64_t file_size;           /* bytes; in all clusters before, refcounts are 1 */
};

/* Plans an image.  The strings of the options must outlive it.  -1 with errno
 * EINVAL: no such image is possible; reported, with the name of the parameter (as users
 * write it) that is to blame. */
extern int newimage_plan (const struct newimage_options *, struct newimage *);

/* What the file holds at [OFFSET, OFFSET + LEN), which lies before metadata_end: all
 * but the encryption header, whose place gets zeros.  Both are multiples of 512. */
extern void newimage_fill (const struct newimage *, uint64_t offset,
                           void *buf, size_t len);

#endif /* QCOW2_NEWIMAGE_H */
