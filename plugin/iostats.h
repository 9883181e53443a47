/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Counts the requests of clients.  See iostats.c.
 */

#ifndef QCOW2_IOSTATS_H
#define QCOW2_IOSTATS_H

#include <stdbool.h>
#include <stdint.h>

enum iostats_kind { IOSTATS_READ, IOSTATS_WRITE, IOSTATS_FLUSH, IOSTATS_TRIM };
#define IOSTATS_KINDS (IOSTATS_TRIM + 1)

struct iocounts {
  struct { uint64_t bytes, operations, failed, ns; } of[IOSTATS_KINDS];
  uint64_t highest;             /* one past the last byte that was written */
};

/* All connections. */
struct iostats;
/* One of them. */
struct iostats_client;

/* FORGETS: devices that no connection uses.  NULL on ENOMEM (reported). */
extern struct iostats *iostats_new (bool forgets);
extern void iostats_free (struct iostats *);    /* accepts NULL */

/* A connection to DEVICE begins and ends.  NULL: nothing is counted (STATS is NULL, or
 * there is no memory). */
extern struct iostats_client *iostats_enter (struct iostats *, const char *device);
extern void iostats_leave (struct iostats *, struct iostats_client *);

/* A request begins: returns its time.  It ends, with result R.  Any thread; NULL is
 * accepted.  Preserves errno. */
extern int64_t iostats_begin (const struct iostats_client *);
extern void iostats_end (struct iostats_client *, enum iostats_kind, int64_t begun,
                         uint64_t offset, uint64_t count, int r);

/* The sums over the connections to a device, since it was first used. */
extern void iostats_get (struct iostats *, const char *device, struct iocounts *);

#endif /* QCOW2_IOSTATS_H */
