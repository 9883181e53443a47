/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What does the first cluster of an image contain, and is it valid?  See header.c.  Pure.
 */

#ifndef QCOW2_HEADER_H
#define QCOW2_HEADER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "format/format.h"

/* Why a header is refused. */
enum header_fault {
  HEADER_INVALID,               /* anything else, or ENOMEM */
  HEADER_NOT_QCOW2,
  HEADER_VERSION,
  HEADER_FEATURE,               /* it needs a feature that is not known */
  HEADER_SIZES,                 /* they contradict each other, or are too large */
  HEADER_CUT,                   /* the file ends within the first cluster */
};

/* Four fields of an image that is served change with the file: `reftable_offset' and
 * `reftable_clusters' (a checkpoint: refwrite.c), `incompatible' and `autoclear'
 * (health.c; before the first change: writable.c).  Their writers have locks of their
 * own; all others read them without a lock, and find each field old or new. */
struct header {
  unsigned version;             /* 2 or 3 */
  unsigned cluster_bits;
  uint64_t cluster_size;        /* bytes */
  uint64_t size;                /* virtual size, bytes; a multiple of 512 */
  unsigned crypt_method;
  uint32_t l1_entries;
  uint64_t l1_offset;
  _Atomic uint64_t reftable_offset;
  _Atomic uint32_t reftable_clusters;
  uint32_t nb_snapshots;
  uint64_t snapshots_offset;
  _Atomic uint64_t incompatible, autoclear;
  uint64_t compatible;
  unsigned refcount_order;      /* refcount bits = 1 << refcount_order */
  uint32_t header_length;
  unsigned compression_type;

  /* Geometry that follows from the fields above. */
  unsigned l2_entry_size;       /* bytes: 8, or 16 with extended L2 */
  unsigned l2_bits;             /* log2 of the entries of an L2 table */
  uint64_t l1_needed;           /* L1 entries that cover `size' */

  /* From the extensions (backing_file: from the header); NULL or 0 if absent. */
  char *backing_file;           /* as written in the header, NUL-terminated */
  char *backing_format;
  char *data_file;
  char *overlay, *origin;
  uint64_t overlay_move, origin_move;   /* numbers of the moves that led there; 0: none */
  bool has_bitmaps;
  struct { uint32_t count; uint64_t dir_size, dir_offset; } bitmaps;
  bool has_crypto;
  struct { uint64_t offset, length; } crypto;

  enum header_fault fault;      /* of a header that was refused */
};

/* header_parse needs min (file size, this) bytes of the file. */
#define HEADER_READ_SIZE (UINT64_C (1) << QCOW2_MAX_CLUSTER_BITS)

/* Parses and checks everything that can be checked without reading more of the file: the
 * limits in format.h; whether the L1 table, the refcount table and the snapshot table are
 * within FILE_SIZE; unknown incompatible features, which are refused with their names in
 * the feature table.  BUF contains the first LEN bytes of the file.  PATH is for
 * messages.  Returns 0, or -1 with errno EINVAL (or ENOMEM) and the error reported: then
 * only `fault' is set.  On success, the caller frees the result with header_free. */
extern int header_parse (const char *path, const void *buf, size_t len,
                         uint64_t file_size, struct header *);
extern void header_free (struct header *);
/* The first control character of NAME, which has up to LEN bytes: header_parse refuses
 * names with one.  NULL: there is none. */
extern const char *header_find_control (const char *name, size_t len);

/* Does the file begin with the magic of qcow2? */
extern bool header_is_qcow2 (const void *buf, size_t len);

#endif /* QCOW2_HEADER_H */
