/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The qcow2 on-disk format: structures, bits and limits.
 *
 * Section names in comments are those of the specification,
 * docs/interop/qcow2.rst in QEMU's source.  All integers are big-endian.
 */

#ifndef QCOW2_FORMAT_H
#define QCOW2_FORMAT_H

#include <stddef.h>
#include <stdint.h>

#include "util/bytes.h"

/* "Header" */
#define QCOW2_MAGIC 0x514649fbu   /* "QFI\xfb" */

struct qcow2_header {
  struct be32 magic;
  struct be32 version;                  /* 2 or 3 */
  struct be64 backing_file_offset;      /* 0 = none; <= cluster size */
  struct be32 backing_file_size;        /* bytes, no NUL; <= 1023 */
  struct be32 cluster_bits;             /* 9..21; >= 14 with extended L2 */
  struct be64 size;                     /* virtual size, bytes */
  struct be32 crypt_method;             /* 0 none, 1 AES, 2 LUKS */
  struct be32 l1_size;                  /* entries; <= 4 Mi */
  struct be64 l1_table_offset;          /* cluster aligned */
  struct be64 refcount_table_offset;    /* cluster aligned, not 0 */
  struct be32 refcount_table_clusters;  /* >= 1; table <= 8 MiB */
  struct be32 nb_snapshots;             /* <= 65536 */
  struct be64 snapshots_offset;         /* cluster aligned */
  /* Version 3 only from here. */
  struct be64 incompatible_features;
  struct be64 compatible_features;
  struct be64 autoclear_features;
  struct be32 refcount_order;           /* refcount bits = 1 << this; <= 6 */
  struct be32 header_length;            /* 104 .. cluster size */
  uint8_t compression_type;             /* if header_length > 104 */
  uint8_t padding[7];
} __attribute__ ((packed));

_Static_assert (sizeof (struct qcow2_header) == 112, "header is 112 bytes");
_Static_assert (offsetof (struct qcow2_header, l1_size) == 36, "l1_size");
_Static_assert (offsetof (struct qcow2_header, l1_table_offset) == 40, "l1");
_Static_assert (offsetof (struct qcow2_header, refcount_table_offset) == 48,
                "refcount table");
_Static_assert (offsetof (struct qcow2_header, incompatible_features) == 72,
                "features");
_Static_assert (offsetof (struct qcow2_header, autoclear_features) == 88,
                "autoclear");

#define QCOW2_V2_HEADER_SIZE 72
#define QCOW2_V3_HEADER_MIN 104
#define QCOW2_V2_REFCOUNT_ORDER 4

/* Incompatible features. */
#define QCOW2_INCOMPAT_DIRTY       (UINT64_C (1) << 0)
#define QCOW2_INCOMPAT_CORRUPT     (UINT64_C (1) << 1)
#define QCOW2_INCOMPAT_DATA_FILE   (UINT64_C (1) << 2)
#define QCOW2_INCOMPAT_COMPRESSION (UINT64_C (1) << 3)
#define QCOW2_INCOMPAT_EXTENDED_L2 (UINT64_C (1) << 4)
#define QCOW2_INCOMPAT_KNOWN       UINT64_C (0x1f)

/* Compatible features. */
#define QCOW2_COMPAT_LAZY_REFCOUNTS (UINT64_C (1) << 0)

/* Autoclear features. */
#define QCOW2_AUTOCLEAR_BITMAPS       (UINT64_C (1) << 0)
#define QCOW2_AUTOCLEAR_RAW_DATA_FILE (UINT64_C (1) << 1)
/* Not in the specification: this plugin is changing the image, so if it dies, refcounts
 * may be too high.  Any other program that may write to the image clears the bit. */
#define QCOW2_AUTOCLEAR_IN_USE        (UINT64_C (1) << 63)

#define QCOW2_CRYPT_NONE 0
#define QCOW2_CRYPT_AES  1
#define QCOW2_CRYPT_LUKS 2

#define QCOW2_COMPRESSION_DEFLATE 0
#define QCOW2_COMPRESSION_ZSTD    1

/* "Header extensions": type, length, data padded to a multiple of 8. */
struct qcow2_extension {
  struct be32 type;
  struct be32 len;
};

#define QCOW2_EXT_END            0x00000000u
#define QCOW2_EXT_BACKING_FORMAT 0xe2792acau
#define QCOW2_EXT_FEATURE_NAMES  0x6803f857u
#define QCOW2_EXT_BITMAPS        0x23852875u
#define QCOW2_EXT_CRYPTO         0x0537be77u
#define QCOW2_EXT_DATA_FILE      0x44415441u
/* Not in the specification: the name of the image that this plugin has put on top of this
 * one: see overlayref.c. */
#define QCOW2_EXT_OVERLAY        0x6e626f76u
/* The same: of the image from which a disk has moved to this one. */
#define QCOW2_EXT_ORIGIN         0x6e626f72u

struct qcow2_ext_bitmaps {
  struct be32 nb_bitmaps;               /* 1..65535 */
  struct be32 reserved;                 /* 0 */
  struct be64 directory_size;           /* bytes */
  struct be64 directory_offset;         /* cluster aligned */
};
_Static_assert (sizeof (struct qcow2_ext_bitmaps) == 24, "bitmaps extension");

struct qcow2_ext_crypto {
  struct be64 offset;                   /* cluster aligned */
  struct be64 length;                   /* bytes */
};
_Static_assert (sizeof (struct qcow2_ext_crypto) == 16, "crypto extension");

struct qcow2_feature_name {
  uint8_t kind;                         /* 0 incompat, 1 compat, 2 autoclear */
  uint8_t bit;                          /* 0..63 */
  char name[46];                        /* NUL-padded */
};
_Static_assert (sizeof (struct qcow2_feature_name) == 48, "feature name");

/* "Snapshots": one entry of the snapshot table, followed by extra data, id,
 * name and padding to a multiple of 8.
 */
struct qcow2_snapshot {
  struct be64 l1_table_offset;
  struct be32 l1_size;                  /* entries */
  struct be16 id_size;
  struct be16 name_size;
  struct be32 date_sec;
  struct be32 date_nsec;
  struct be64 vm_clock_nsec;
  struct be32 vm_state_size;
  struct be32 extra_size;               /* <= 1024; v3: >= QCOW2_V3_SNAPSHOT_EXTRA */
};
_Static_assert (sizeof (struct qcow2_snapshot) == 40, "snapshot entry");

/* What is known of the extra data, which follows.  An entry may have only a part of it,
 * or more. */
struct qcow2_snapshot_extra {
  struct be64 vm_state_size;
  struct be64 disk_size;
  struct be64 icount;
};
#define QCOW2_V3_SNAPSHOT_EXTRA 16
#define QCOW2_NO_ICOUNT UINT64_MAX      /* the count is not known */

/* "Bitmap directory": one entry, followed by extra data, the name and padding to a
 * multiple of 8.
 */
struct qcow2_bitmap {
  struct be64 table_offset;             /* cluster aligned */
  struct be32 table_size;               /* entries */
  struct be32 flags;
  uint8_t type;                         /* 1 */
  uint8_t granularity_bits;             /* 9..31 */
  struct be16 name_size;                /* 1..1023 */
  struct be32 extra_size;               /* 0: nothing is defined yet */
};
_Static_assert (sizeof (struct qcow2_bitmap) == 24, "bitmap directory entry");

#define QCOW2_BITMAP_IN_USE (UINT32_C (1) << 0)
#define QCOW2_BITMAP_AUTO   (UINT32_C (1) << 1)
#define QCOW2_BITMAP_FLAGS  (QCOW2_BITMAP_IN_USE | QCOW2_BITMAP_AUTO)

#define QCOW2_BITMAP_DIRTY_TRACKING 1

/* "Bitmap table": an entry points to the cluster that contains its bits.  If it has no
 * offset, bit 0 is the value of all of them. */
#define QCOW2_BITMAP_OFFSET_MASK UINT64_C (0x00fffffffffffe00)
#define QCOW2_BITMAP_ALL_ONES    (UINT64_C (1) << 0)

/* "Cluster mapping" */
#define QCOW2_L1_OFFSET_MASK UINT64_C (0x00fffffffffffe00)  /* bits 9..55 */
#define QCOW2_L2_OFFSET_MASK UINT64_C (0x00fffffffffffe00)
#define QCOW2_OFLAG_COPIED     (UINT64_C (1) << 63)
#define QCOW2_OFLAG_COMPRESSED (UINT64_C (1) << 62)
#define QCOW2_OFLAG_ZERO       (UINT64_C (1) << 0)

/* "Extended L2 Entries": a cluster is 32 subclusters, each with two bits.
 * Subcluster 0 has the lowest bit of each half. */
struct qcow2_extended_entry {
  struct be64 entry;                    /* as above, without the zero flag */
  struct be64 bitmap;                   /* bits 0..31 allocated, 32..63 zeros */
};
_Static_assert (sizeof (struct qcow2_extended_entry) == 16, "extended entry");

#define QCOW2_SUBCLUSTER_BITS 5         /* log2 of the subclusters of a cluster */
#define QCOW2_ALL_ZEROS_BITMAP UINT64_C (0xffffffff00000000)

/* "Host cluster management": bits 9..63. */
#define QCOW2_REFTABLE_OFFSET_MASK UINT64_C (0xfffffffffffffe00)

/* All host offsets that the plugin accepts or writes are less than this. */
#define QCOW2_MAX_HOST_OFFSET (UINT64_C (1) << 56)

/* Limits; they are those of QEMU. */
#define QCOW2_MIN_CLUSTER_BITS 9
#define QCOW2_MAX_CLUSTER_BITS 21
#define QCOW2_MIN_EXTENDED_CLUSTER_BITS 14
#define QCOW2_MAX_L1_BYTES (32u << 20)
#define QCOW2_MAX_REFTABLE_BYTES (8u << 20)
#define QCOW2_MAX_REFCOUNT_ORDER 6
#define QCOW2_MAX_BACKING_NAME 1023
#define QCOW2_MAX_DATA_FILE_NAME 4095
#define QCOW2_MAX_OVERLAY_NAME 1023
#define QCOW2_MAX_SNAPSHOTS 65536
#define QCOW2_MAX_SNAPSHOT_TABLE (64u << 20)
#define QCOW2_MAX_SNAPSHOT_EXTRA 1024
#define QCOW2_MAX_BITMAPS 65535
#define QCOW2_MIN_BITMAP_GRANULARITY 9
#define QCOW2_MAX_BITMAP_GRANULARITY 31
#define QCOW2_MAX_BITMAP_NAME 1023
#define QCOW2_MAX_BITMAP_BYTES (UINT64_C (512) << 20)

#endif /* QCOW2_FORMAT_H */
