/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Connections to one export of an NBD server, re-established when they break.  See
 * nbdpool.c.
 */

#ifndef QCOW2_NBDPOOL_H
#define QCOW2_NBDPOOL_H

#include <stdbool.h>
#include <stdint.h>

#include "storage/nbdlink.h"
#include "storage/storage.h"

struct nbdpool;

/* URI includes the secrets; messages use NAME.  Returns NULL on EIO or ENOMEM
 * (reported). */
extern struct nbdpool *nbdpool_open (const char *uri, const char *name,
                                     const struct storage_link_options *);
extern void nbdpool_close (struct nbdpool *);

extern const char *nbdpool_uri (const struct nbdpool *);        /* with secrets */
/* What the server offered at the first connection. */
extern const struct nbdlink_info *nbdpool_info (const struct nbdpool *);

enum nbdpool_kind {
  NBDPOOL_READ,
  NBDPOOL_WRITE,
  NBDPOOL_WRITE_FUA,
  NBDPOOL_FLUSH,
  NBDPOOL_ZERO,                 /* the space stays allocated */
  NBDPOOL_ZERO_FAST,            /* at once, or ENOTSUP; the space may be freed */
  NBDPOOL_PUNCH,
  NBDPOOL_DISCARD,              /* the same, where zeros are not needed */
  NBDPOOL_STATUS,               /* which parts read as zeros */
  NBDPOOL_HOLES,                /* which parts are holes */
  NBDPOOL_ZEROS,                /* which parts read as zeros, where zeros are relied on:
                                   like a change, they last once a flush has followed */
};

struct nbdpool_request {
  enum nbdpool_kind kind;
  void *buf;
  uint64_t count, offset;       /* as for nbdlink's requests */
  struct storage_parts *parts;  /* for STATUS, HOLES, ZEROS: see nbdlink_status */
};

/* Sends a request and waits for the reply.  Returns 0, or -1 with the server's errno, or
 * EIO: there is no connection, or changes may have been lost and this is not a read (the
 * reason is reported once); or ENOMEM: it was not sent (a flush, perhaps to some of the
 * connections). */
extern int nbdpool_send (struct nbdpool *, const struct nbdpool_request *);
/* Connects once more.  If the server states a larger size, waits for the requests in
 * flight, and from then on uses only connections on which it does.  *SIZE: the size.
 * Returns 0, also if nothing can be found out, or -1 with errno: a flush has failed. */
extern int nbdpool_grow (struct nbdpool *, uint64_t *size);
/* Closes each connection once no request uses it, until the next request needs one.
 * Returns 0, or -1 with errno: a flush has failed; its connection stays, unless it is
 * lost.  (ENOMEM: no flush was sent.) */
extern int nbdpool_disconnect (struct nbdpool *);

/* A read in two steps, so that one thread can have many in flight.  It begins only if
 * nothing has to be waited for: otherwise returns false, and nbdpool_send must do it.
 * While reads are begun, their thread calls only these two functions: other threads may
 * wait for the end of them.  READ is private to nbdpool.c; it and BUF must live until
 * nbdpool_read_end. */
struct nbdpool_read {
  struct slot *slot;
  struct nbdlink_call call;
};
extern bool nbdpool_read_begin (struct nbdpool *, struct nbdpool_read *, void *buf,
                                uint64_t count, uint64_t offset);
/* Returns 0, or -1 with the server's errno, or ENOTCONN: nbdpool_send must do it. */
extern int nbdpool_read_end (struct nbdpool *, struct nbdpool_read *);

/* A hint; does not wait for the reply. */
extern void nbdpool_cache (struct nbdpool *, uint64_t count, uint64_t offset);

#endif /* QCOW2_NBDPOOL_H */
