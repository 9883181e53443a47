/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Waits until there is space.  See spacewait.c.
 */

#ifndef QCOW2_SPACEWAIT_H
#define QCOW2_SPACEWAIT_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct spacewait_stats {
  uint64_t waiting;             /* requests that wait now */
  uint64_t requests;            /* that have waited, or wait */
  uint64_t pauses, ms;          /* times when some request waited, and how long */
};

/* All requests of a disk. */
struct spacewait {
  /* Constant. */
  bool enabled;                 /* otherwise requests fail, unless a change is made */
  const char *path;             /* for messages */
  bool (*client_waits) (void);  /* see disk_options */
  void (*news) (void);          /* likewise */

  /* Odd: a change of the disk is made, which may have set space aside.  Only disk_change
   * writes it. */
  atomic_uint changes;

  pthread_mutex_t lock;
  struct spacewait_stats stats; /* ms: without the present pause; under lock */
  int64_t since;                /* clock_ms, while some request waits; under lock */
};

/* One request. */
struct spacewait_request {
  unsigned pause_ms;            /* 0: it has not waited yet */
  unsigned changes;             /* when the attempt began */
  bool keeps;                   /* what it reports */
};

/* Call these around each attempt at a request, with what it returned (-1: errno is set).
 * They keep back what the attempt reports until it is known whether it matters.  True:
 * make another attempt.  The request is in no read section, and holds no claims or
 * locks. */
extern void spacewait_begin (struct spacewait *, struct spacewait_request *);
extern bool spacewait_again (struct spacewait *, struct spacewait_request *, int r);

extern void spacewait_get_stats (struct spacewait *, struct spacewait_stats *);

#endif /* QCOW2_SPACEWAIT_H */
