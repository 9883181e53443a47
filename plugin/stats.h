/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What has the server done?  See stats.c.
 */

#ifndef QCOW2_STATS_H
#define QCOW2_STATS_H

#include <stdint.h>

#include "disk.h"

struct stats {
  struct disk_stats disk;
  uint64_t limit;               /* l2-cache, bytes */
  uint64_t open, ever;          /* connections */
};

/* For people, to stderr. */
extern void stats_print (const struct stats *);

/* May this file be replaced by statistics?  -1: no (reported). */
extern int stats_check (const char *path);
/* As JSON, in place of the file of that name, which readers see whole at any time.  -1:
 * reported.  Any thread. */
extern int stats_write (const char *path, const struct stats *);

#endif /* QCOW2_STATS_H */
