/* SPDX-License-Identifier: BSD-3-Clause
 *
 * One connection to an NBD server, with any number of requests in flight: see nbdlink.c.
 *
 * Functions that return int return 0, or -1 with errno.  Requests report nothing.  ENOTCONN
 * says that the connection is gone (nbdlink_is_dead): nobody knows whether the request
 * was carried out.  Offsets and counts are bytes.
 */

#ifndef QCOW2_NBDLINK_H
#define QCOW2_NBDLINK_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

struct nbdlink;

/* One request: see nbdlink.c. */
struct nbdlink_call {
  struct nbdlink *link;
  int64_t cookie;               /* what libnbd said when it was begun */
  pthread_cond_t wake;          /* it is done, or this thread is to lead */
  struct nbdlink_call *next, **prev;    /* under the link's lock */
  bool done;                    /* likewise */
  int err;                      /* once it is done */
};

/* What the server offers. */
struct nbdlink_info {
  uint64_t size;
  uint64_t minimum, maximum;    /* of a request with data; minimum: a power of two */
  bool read_only, flush, fua, zero, cache, multi_conn, block_status;
};

/* Connects to URI, in at most TIMEOUT_MS.  NAME is what messages call it.
 * Reports; QUIET: as a debug message. */
extern int nbdlink_open (const char *uri, const char *name, int timeout_ms, bool quiet,
                         struct nbdlink **);
/* When no request is in flight.  NULL is fine. */
extern void nbdlink_close (struct nbdlink *);

extern const struct nbdlink_info *nbdlink_info (const struct nbdlink *);
extern bool nbdlink_is_dead (struct nbdlink *);
/* The same, after a look at what has come meanwhile: the server may have gone while nothing
 * was asked of it.  When no request is in flight. */
extern bool nbdlink_has_died (struct nbdlink *);

/* Requests, from any thread.  Their ranges are within the size, multiples of the minimum,
 * and counts at most the maximum (with data) or NBDLINK_MAX_COUNT (without). */
#define NBDLINK_MAX_COUNT (UINT64_C (1) << 31)

extern int nbdlink_read (struct nbdlink *, void *buf, uint64_t count, uint64_t offset);
extern int nbdlink_write (struct nbdlink *, const void *buf, uint64_t count,
                          uint64_t offset, bool fua);
/* A flush in two steps, so that several connections can do it at the same time.  CALL is
 * nothing's business but nbdlink.c's, and lives until nbdlink_flush_end. */
extern void nbdlink_flush_begin (struct nbdlink *, struct nbdlink_call *call);
extern int nbdlink_flush_end (struct nbdlink *, struct nbdlink_call *call);
/* HOLE: the server may give the space back. */
extern int nbdlink_zero (struct nbdlink *, uint64_t count, uint64_t offset, bool hole);
/* Does OFFSET read as zeros, and how far does that answer hold?  *LEN: in, the most that
 * is of interest; out, > 0. */
extern int nbdlink_zeros (struct nbdlink *, uint64_t offset, uint64_t *len, bool *zeros);
/* Does not wait. */
extern void nbdlink_cache (struct nbdlink *, uint64_t count, uint64_t offset);

#endif /* QCOW2_NBDLINK_H */
