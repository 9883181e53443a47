/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Compares a disk with that of another image.  See compare.c.
 */

#ifndef QCOW2_COMPARE_H
#define QCOW2_COMPARE_H

#include <stdbool.h>
#include <stdint.h>

#include "disk/disk.h"
#include "copy/chunks.h"

struct compare {
  char *report;                 /* absolute path; NULL: nothing is compared */
  char *with;                   /* absolute path or URI of the other image */
  bool raw;                     /* its format; otherwise qcow2 */
};

/* Can the report be written?  0, or -1 (reported). */
extern int compare_check (const struct compare *);
/* Opens the other image with OPTIONS, which are those of the disk, and writes the report.
 * *DIFFERENCE: where both first show something else, or UINT64_MAX.  -1: reported; there
 * is no report. */
extern int compare_disk (struct disk *, const struct disk_options *,
                         const struct compare *, const struct chunks_watch *,
                         uint64_t *difference);

#endif /* QCOW2_COMPARE_H */
