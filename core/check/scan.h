/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Finds all faults of an image.  See scan.c.
 */

#ifndef QCOW2_SCAN_H
#define QCOW2_SCAN_H

#include <stdbool.h>
#include <stdint.h>

#include "storage/storage.h"
#include "format/header.h"
#include "check/findings.h"

/* Statistics.  Those of the active disk, counted as qemu-img check does: */
struct scan_stats {
  uint64_t total_clusters;      /* of the disk */
  uint64_t allocated, compressed, fragmented;
  uint64_t end;                 /* end of the part of the file that is in use, in bytes */
  uint64_t bitmaps_in_use;      /* not closed properly: invalid, but no fault */
};

struct scan_options {
  bool full;                    /* also check all data that is stored in the image */
  bool untrusted;               /* allow less work: see scanwork.c */
  struct pace *pace;            /* receives the progress, in a stage that was begun;
                                   NULL: not reported */
};

/* Checks all metadata of an image whose header is valid and which nothing changes in the
 * meantime.  Adds the faults to the findings.  Returns 0, or -1 if the check could not be
 * completed (reported, or a finding).  EINTR: it was stopped. */
extern int scan_image (struct storage *, const struct header *, struct scan_options,
                       struct findings *, struct scan_stats *);

/* Reads all data of a file of any format; bytes that cannot be read become a finding.
 * Returns 0, or -1 on ENOMEM (reported). */
extern int scan_raw (struct storage *, struct findings *, struct pace *);

#endif /* QCOW2_SCAN_H */
