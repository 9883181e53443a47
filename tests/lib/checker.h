/* SPDX-License-Identifier: BSD-3-Clause
 *
 * A second opinion about an image, without a line of the core's code.
 * See checker.c.
 */

#ifndef TEST_CHECKER_H
#define TEST_CHECKER_H

#include <stdbool.h>
#include <stdint.h>

#include "lib/images.h"

struct check_result {
  unsigned long corruptions;
  unsigned long leaks;          /* clusters with a count that is too high */
  uint64_t allocated_end;       /* one past the last cluster in use, bytes */
  char first[256];              /* what was found first; corruption wins */
};

/* Checks all metadata of the qcow2 image whose file holds BLOB. */
extern void checker_check (const struct blob *, struct check_result *);

/* The whole guest contents into OUT, which has room for SIZE bytes (the
 * virtual size).  BELOW: the contents of the backing file, or NULL.
 * 0, or -1 if the mapping leads nowhere. */
extern int checker_read (const struct blob *, const struct blob *below,
                         unsigned char *out, uint64_t size);

/* The same where guest data are in DATA: an external data file, or what is encrypted has
 * been decrypted. */
extern int checker_read_data (const struct blob *, const struct blob *data,
                              const struct blob *below, unsigned char *out,
                              uint64_t size);

/* A persistent bitmap. */
struct checked_bitmap {
  uint64_t at;                  /* of its directory entry in the file */
  uint64_t table, table_entries;
  bool in_use, automatic;
  unsigned granularity_bits;
};
/* Finds it by name.  SECTORS (or NULL) receives a byte for each 512 bytes of the
 * disk: are they marked?  false: the image has no such bitmap, or has lost them all. */
extern bool checker_bitmap (const struct blob *, const char *name,
                            struct checked_bitmap *, unsigned char *sectors);

#endif /* TEST_CHECKER_H */
