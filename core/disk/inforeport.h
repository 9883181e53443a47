/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Writes what qemu-img info says about an image to a file.  See inforeport.c.
 */

#ifndef QCOW2_INFOREPORT_H
#define QCOW2_INFOREPORT_H

#include <stdbool.h>

#include <jansson.h>

#include "disk/disk.h"

struct inforeport {
  char *path;                   /* absolute; NULL: no report is wanted */
  bool chain;                   /* describe all files of the backing chain */
  const char *name;             /* how the report calls the image; NULL: its path */
};

/* What it says: an object that describes the image, which is called NAME, or for a CHAIN an
 * array of those of its files.  The caller frees it.  NULL: reported. */
extern json_t *inforeport_describe (const struct disk_options *, const char *name,
                                    bool chain);

/* May the report be written?  Returns 0, or -1 (reported). */
extern int inforeport_check (const struct inforeport *);

/* Describes the image, and writes the report, which must be wanted.  Opens only the image,
 * or with `chain' all files of its chain but no data files.  Returns 0, or -1
 * (reported). */
extern int inforeport_write (const struct inforeport *, const struct disk_options *);

#endif /* QCOW2_INFOREPORT_H */
