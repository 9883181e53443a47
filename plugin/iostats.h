/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Counts the requests of clients.  See iostats.c.
 */

#ifndef QCOW2_IOSTATS_H
#define QCOW2_IOSTATS_H

#include <stdbool.h>
#include <stdint.h>

enum iostats_kind {
  IOSTATS_READ, IOSTATS_WRITE, IOSTATS_TRIM, IOSTATS_ZERO, IOSTATS_FLUSH, IOSTATS_CACHE,
  IOSTATS_EXTENTS
};
#define IOSTATS_KINDS (IOSTATS_EXTENTS + 1)
extern const char *const iostats_words[IOSTATS_KINDS];

/* REFUSED: neither done nor failed; it is not counted. */
enum iostats_result { IOSTATS_DONE, IOSTATS_FAILED, IOSTATS_REFUSED };

/* How long requests took: those of less than iostats_bounds[0] ns, then of less than
 * iostats_bounds[1] ..., and the rest. */
#define IOSTATS_BOUNDS 20
extern const uint64_t iostats_bounds[IOSTATS_BOUNDS];

struct iocounts {
  struct {
    uint64_t operations;        /* that have ended well */
    uint64_t bytes, failed;
    uint64_t ns;                /* of all */
    uint64_t running;           /* now */
    uint64_t times[IOSTATS_BOUNDS + 1]; /* of all that have ended */
  } of[IOSTATS_KINDS];
  uint64_t highest;             /* one past the last byte that was written */
  uint64_t clients;             /* now */
  uint64_t ever;                /* clients that have come */
};

/* All connections. */
struct iostats;
/* One of them. */
struct iostats_client;

/* NULL on ENOMEM (reported). */
extern struct iostats *iostats_new (void);
extern void iostats_free (struct iostats *);    /* accepts NULL */

/* A connection to an EXPORT ("": the active disk) of DEVICE begins and ends.  NULL:
 * nothing is counted (STATS is NULL, or there is no memory). */
extern struct iostats_client *iostats_enter (struct iostats *, const char *device,
                                             const char *export);
/* *ENDED: what it has done. */
extern void iostats_leave (struct iostats *, struct iostats_client *,
                           struct iocounts *ended);

/* A request begins: returns its time.  It ends.  In one thread; NULL is accepted.
 * Preserves errno. */
extern int64_t iostats_begin (struct iostats_client *, enum iostats_kind);
extern void iostats_end (struct iostats_client *, enum iostats_kind, int64_t begun,
                         uint64_t offset, uint64_t count, enum iostats_result);

/* The sums over the connections to the active disk of a device, as far as they are
 * known. */
extern void iostats_get (struct iostats *, const char *device, struct iocounts *);
/* Calls FN for each export of a device (NULL: of all) that is known; those of one device
 * one after the other, with clients first, then those that were used last.  No lock is
 * held meanwhile. */
typedef void (*iostats_fn) (void *opaque, const char *device, const char *export,
                            const struct iocounts *);
extern void iostats_each (struct iostats *, const char *device, iostats_fn, void *opaque);

#endif /* QCOW2_IOSTATS_H */
