/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What has the server done?  See stats.c.
 */

#ifndef QCOW2_STATS_H
#define QCOW2_STATS_H

#include <stdbool.h>
#include <stdint.h>

#include <jansson.h>

#include "disk/disk.h"

struct stats {
  struct disk_stats disk;
  bool one_disk;                /* false: of a directory, all disks together */
  uint64_t watermark;           /* bytes */
  uint64_t most;                /* bytes that the file needs for all of the disk, without
                                   snapshots, whatever the limits of the format */
  uint64_t limit;               /* l2-cache, bytes */
  uint64_t started;             /* when the server did; seconds since 1970 */
  uint64_t open, ever;          /* connections */
  json_t *images, *jobs, *bounds;       /* lists, which the caller frees; NULL: none */
  uint64_t omitted;             /* images that are not in the list */
};

/* All that programs get.  Frees the lists.  NULL on ENOMEM. */
extern json_t *stats_describe (const struct stats *);
/* Prints the counters to stderr, for people. */
extern void stats_print (const struct stats *);

/* Can this file be replaced by statistics?  Returns 0, or -1 (reported). */
extern int stats_check (const char *path);

/* The file, which a thread keeps up to date while clients are served: see stats.c. */
struct stats_file;

/* GET returns the counters; any thread may call it until stats_stop.  FOR_PROMETHEUS: in
 * its format, not JSON.  NULL: reported. */
extern struct stats_file *stats_open (const char *path, bool for_prometheus,
                                      void (*get) (struct stats *));
/* Starts the thread.  0 or -1 (reported). */
extern int stats_start (struct stats_file *);
/* Reads the counters for the last time. */
extern void stats_stop (struct stats_file *);
/* Has the thread write these, ends it, and frees everything, unless the thread hangs.
 * NULL is allowed for both. */
extern void stats_close (struct stats_file *);

/* Has the thread write the file at once.  Any thread, with any locks. */
extern void stats_news (struct stats_file *);

/* Writes the counters, and replaces the file atomically, before the thread is started.
 * Returns 0, or -1 (reported). */
extern int stats_write (struct stats_file *);

#endif /* QCOW2_STATS_H */
