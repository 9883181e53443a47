/* SPDX-License-Identifier: BSD-3-Clause
 *
 * One connection to an NBD server, with any number of requests in flight.  See nbdlink.c.
 *
 * Functions that return int return 0, or -1 with errno set.  Requests report nothing.
 * ENOTCONN means that the connection is lost (nbdlink_is_dead): it is unknown whether the
 * request was carried out.  ENOMEM means that there was no memory for it here: it was not
 * sent.  (If the server has none, it is EIO.)  Offsets and counts are in bytes.
 */

#ifndef QCOW2_NBDLINK_H
#define QCOW2_NBDLINK_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "storage/storage.h"

struct nbdlink;

/* One request: see nbdlink.c. */
struct nbdlink_call {
  struct nbdlink *link;
  int64_t cookie;               /* what libnbd said when it was begun */
  int64_t began;                /* clock_ms */
  pthread_cond_t wake;          /* it is done, or this thread is to lead */
  struct nbdlink_call *next, **prev;    /* under the link's lock */
  bool done;                    /* likewise */
  bool alone;                   /* no client waits for the result; likewise */
  int err;                      /* once it is done */
};

/* The properties that the server offers. */
struct nbdlink_info {
  uint64_t size;
  uint64_t minimum, maximum;    /* for requests with data; minimum: a power of two */
  bool read_only, flush, fua, zero, zero_fast, cache, multi_conn, block_status;
  bool long_counts;             /* of block status: more than NBDLINK_MAX_COUNT */
};

/* Connects to URI, in at most TIMEOUT_MS.  NAME is what messages call it; it must outlive
 * the link.  Returns 0, or -1 with EIO or ENOMEM (reported; QUIET: as a debug
 * message). */
extern int nbdlink_open (const char *uri, const char *name, int timeout_ms, bool quiet,
                         const struct storage_link_options *, struct nbdlink **);
/* When no request is in flight.  Waits for the server for a second at most.  NULL is
 * allowed. */
extern void nbdlink_close (struct nbdlink *);

extern const struct nbdlink_info *nbdlink_info (const struct nbdlink *);
extern bool nbdlink_is_dead (struct nbdlink *);
/* Was it, because the server was silent? */
extern bool nbdlink_is_given_up (const struct nbdlink *);
/* Has the server hung up, whether or not its last replies have been taken in?  This looks
 * at the socket.  If another thread finds the link dead meanwhile, either answer may be
 * given. */
extern bool nbdlink_has_hung_up (struct nbdlink *);

/* Requests, from any thread.  Their ranges are within the size and multiples of the
 * minimum.  Counts are at most the maximum (with data) or NBDLINK_MAX_COUNT (without). */
#define NBDLINK_MAX_COUNT (UINT64_C (1) << 31)

extern int nbdlink_read (struct nbdlink *, void *buf, uint64_t count, uint64_t offset);
/* The same in two steps, so that one thread can have many reads in flight.  CALL is
 * private to nbdlink.c; it and BUF must live until nbdlink_read_end. */
extern void nbdlink_read_begin (struct nbdlink *, struct nbdlink_call *call, void *buf,
                                uint64_t count, uint64_t offset);
extern int nbdlink_read_end (struct nbdlink *, struct nbdlink_call *call);
extern int nbdlink_write (struct nbdlink *, const void *buf, uint64_t count,
                          uint64_t offset, bool fua);
/* Likewise: several connections can flush at the same time. */
extern void nbdlink_flush_begin (struct nbdlink *, struct nbdlink_call *call);
extern int nbdlink_flush_end (struct nbdlink *, struct nbdlink_call *call);
/* What becomes of the space: it stays allocated, or the server may free it.  FAST: the
 * same, and ENOTSUP if this would take as long as writing zeros. */
enum nbdlink_zero { NBDLINK_KEEP, NBDLINK_FREE, NBDLINK_FAST };
extern int nbdlink_zero (struct nbdlink *, uint64_t count, uint64_t offset,
                         enum nbdlink_zero);
/* Which parts of the range read as zeros, or are holes, whatever they read as?  These are
 * the holes of PARTS: see storage_ops.  ONE: the server should tell about the first one
 * only. */
enum nbdlink_ask { NBDLINK_ZEROS, NBDLINK_HOLES };
extern int nbdlink_status (struct nbdlink *, uint64_t count, uint64_t offset, bool one,
                           enum nbdlink_ask, struct storage_parts *parts);
/* A hint; does not wait for the reply. */
extern void nbdlink_cache (struct nbdlink *, uint64_t count, uint64_t offset);

#endif /* QCOW2_NBDLINK_H */
