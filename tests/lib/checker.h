/* SPDX-License-Identifier: BSD-3-Clause
 *
 * A second opinion about an image, without any code of the core.  See checker.c.
 */

#ifndef TEST_CHECKER_H
#define TEST_CHECKER_H

#include <stdbool.h>
#include <stdint.h>

#include "lib/images.h"

struct check_result {
  unsigned long corruptions;
  unsigned long leaks;          /* clusters with a count that is too high */
  uint64_t allocated_end;       /* one past the last cluster in use, in bytes */
  char first[256];              /* the first finding; corruption comes before leaks */
};

/* Checks all metadata of the qcow2 image in BLOB, the contents of its file. */
extern void checker_check (const struct blob *, struct check_result *);

/* Does one mapping, of the disk or of a snapshot, use a cluster twice?  Nobody makes such
 * images, but the counts can be right.  When one of the two is copied, nothing tells the
 * entry of the other that it is alone now; then its COPIED is missing. */
extern bool checker_shares (const struct blob *);

/* Reads the whole guest contents into OUT, which has space for SIZE bytes (the virtual
 * size).  BELOW is the contents of the backing file, or NULL.  Returns 0, or -1 if the
 * mapping is invalid, or compressed data: these read as CHECKER_UNREADABLE bytes. */
#define CHECKER_UNREADABLE 0xdb
extern int checker_read (const struct blob *, const struct blob *below,
                         unsigned char *out, uint64_t size);

/* For each byte of the disk, does the image itself contain it?  OWN has SIZE elements.
 * Returns what checker_read does. */
extern int checker_own (const struct blob *, bool *own, uint64_t size);

/* checker_read with guest data in DATA: an external data file, or the decrypted
 * contents. */
extern int checker_read_data (const struct blob *, const struct blob *data,
                              const struct blob *below, unsigned char *out,
                              uint64_t size);

/* A persistent bitmap. */
struct checked_bitmap {
  uint64_t at;                  /* offset of its directory entry in the file */
  uint64_t table, table_entries;
  bool in_use, automatic;
  unsigned granularity_bits;
};
/* Finds a bitmap by name.  SECTORS (or NULL) receives a byte for each 512 bytes of the
 * disk, which says whether they are marked.  Returns false if the image has no such
 * bitmap, or its bitmaps are not valid. */
extern bool checker_bitmap (const struct blob *, const char *name,
                            struct checked_bitmap *, unsigned char *sectors);

#endif /* TEST_CHECKER_H */
