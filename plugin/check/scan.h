/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What is wrong with this image, all of it?  See scan.c.
 */

#ifndef QCOW2_SCAN_H
#define QCOW2_SCAN_H

#include <stdbool.h>
#include <stdint.h>

#include "storage/storage.h"
#include "format/header.h"
#include "check/findings.h"

/* What was counted on the way.  Of the active disk, as qemu-img check counts it: */
struct scan_stats {
  uint64_t total_clusters;      /* of the disk */
  uint64_t allocated, compressed, fragmented;
  uint64_t end;                 /* of what is in use in the file, bytes */
  uint64_t bitmaps_in_use;      /* not closed properly: void, but no damage */
};

/* Looks at all metadata of an image whose header was accepted, which nobody
 * changes meanwhile; FULL: also at all data that is stored in it.  Adds what is wrong to
 * the findings.  0, or -1: it could not be looked at to the end (reported). */
extern int scan_image (struct storage *, const struct header *, bool full,
                       struct findings *, struct scan_stats *);

/* Reads all data of a file, of whatever format; what can't be read is a finding.
 * 0, or -1 on ENOMEM (reported). */
extern int scan_raw (struct storage *, struct findings *);

#endif /* QCOW2_SCAN_H */
