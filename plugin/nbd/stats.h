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

/* For people, to stderr. */
extern void stats_print (const struct stats *);

/* May this file be replaced by statistics?  -1: no (reported). */
extern int stats_check (const char *path);

/* Who writes the file now, and who is next: see stats.c. */
struct stats_file {
  pthread_mutex_t lock;
  pthread_cond_t turn;          /* `writing' is false again */
  bool writing, next;           /* under lock */
};
#define STATS_FILE_INITIALIZER \
  { .lock = PTHREAD_MUTEX_INITIALIZER, .turn = PTHREAD_COND_INITIALIZER }

/* Writes what GET says as JSON, in place of the file of that name, which readers see
 * whole at any time, and never an older state after a newer one.  On return it is done;
 * or another thread is about to, and its call of GET is still to come.  -1: reported.
 * Any thread. */
extern int stats_write (struct stats_file *, const char *path,
                        void (*get) (struct stats *));

#endif /* QCOW2_STATS_H */
