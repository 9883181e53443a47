/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What has the server done?  See stats.c.
 */

#ifndef QCOW2_STATS_H
#define QCOW2_STATS_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "disk/disk.h"

struct stats {
  struct disk_stats disk;
  uint64_t limit;               /* l2-cache, bytes */
  uint64_t open, ever;          /* connections */
};

/* Prints the counters to stderr, for people. */
extern void stats_print (const struct stats *);

/* Can this file be replaced by statistics?  Returns 0, or -1 (reported). */
extern int stats_check (const char *path);

/* The threads that write the file: see stats.c. */
struct stats_file {
  pthread_mutex_t lock;
  pthread_cond_t turn;          /* `writing' is false again */
  bool writing, next;           /* a thread is writing; another one waits; under lock */
};
#define STATS_FILE_INITIALIZER \
  { .lock = PTHREAD_MUTEX_INITIALIZER, .turn = PTHREAD_COND_INITIALIZER }

/* Writes the counters that GET returns as JSON, and replaces the file of that name
 * atomically.  Older counters never replace newer ones.  On return the file is written,
 * or another thread is about to call GET and write it.  Returns 0, or -1 (reported).  Any
 * thread. */
extern int stats_write (struct stats_file *, const char *path,
                        void (*get) (struct stats *));

#endif /* QCOW2_STATS_H */
