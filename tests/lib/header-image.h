/* SPDX-License-Identifier: BSD-3-Clause
 *
 * A valid first cluster, for the tests of header.c to damage.
 */

#ifndef TEST_HEADER_IMAGE_H
#define TEST_HEADER_IMAGE_H

#include <stdint.h>
#include <string.h>

#include "format/format.h"

/* 64K clusters: 0 header, 1 refcount table, 3 L1 table (2 entries used), 5
 * snapshots, 6 encryption header, 7 bitmap directory.
 */
#define IMAGE_CLUSTER UINT64_C (65536)
#define IMAGE_FILE_SIZE (16 * IMAGE_CLUSTER)

/* Appends a header extension at *POS. */
static inline void
image_extension (uint8_t *buf, size_t *pos, uint32_t type, const void *data,
                 size_t len)
{
  const struct qcow2_extension ext = { put32 (type), put32 (len) };

  memcpy (buf + *pos, &ext, sizeof ext);
  if (len > 0)
    memcpy (buf + *pos + sizeof ext, data, len);
  *pos += sizeof ext + (len + 7) / 8 * 8;
}

/* Builds version 3, 1 GiB, one snapshot, a backing file with its format.  BUF has
 * IMAGE_CLUSTER bytes.  Returns the position of the end extension. */
static inline size_t
image_build (uint8_t *buf)
{
  static const char backing[] = "base.img";
  const struct qcow2_header h = {
    .magic = put32 (QCOW2_MAGIC),
    .version = put32 (3),
    .backing_file_offset = put64 (4096),
    .backing_file_size = put32 (sizeof backing - 1),
    .cluster_bits = put32 (16),
    .size = put64 (UINT64_C (1) << 30),
    .l1_size = put32 (2),
    .l1_table_offset = put64 (3 * IMAGE_CLUSTER),
    .refcount_table_offset = put64 (IMAGE_CLUSTER),
    .refcount_table_clusters = put32 (1),
    .nb_snapshots = put32 (1),
    .snapshots_offset = put64 (5 * IMAGE_CLUSTER),
    .refcount_order = put32 (4),
    .header_length = put32 (112),
  };
  size_t pos = sizeof h;

  memset (buf, 0, IMAGE_CLUSTER);
  memcpy (buf, &h, sizeof h);
  memcpy (buf + 4096, backing, sizeof backing - 1);
  image_extension (buf, &pos, QCOW2_EXT_BACKING_FORMAT, "raw", 3);
  return pos;
}

#endif /* TEST_HEADER_IMAGE_H */
