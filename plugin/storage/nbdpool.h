/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Connections to one export of an NBD server, made anew when they break: see nbdpool.c.
 */

#ifndef QCOW2_NBDPOOL_H
#define QCOW2_NBDPOOL_H

#include <stdbool.h>
#include <stdint.h>

#include "storage/nbdlink.h"
#include "storage/storage.h"

struct nbdpool;

/* URI with secrets, NAME for messages.  NULL: EIO or ENOMEM, reported. */
extern struct nbdpool *nbdpool_open (const char *uri, const char *name,
                                     const struct storage_link_options *);
extern void nbdpool_close (struct nbdpool *);

extern const char *nbdpool_uri (const struct nbdpool *);        /* with secrets */
/* What the server offered at first. */
extern const struct nbdlink_info *nbdpool_info (const struct nbdpool *);
/* Bytes, as it said last; in whole blocks. */
extern uint64_t nbdpool_size (const struct nbdpool *);

enum nbdpool_kind {
  NBDPOOL_READ,
  NBDPOOL_WRITE,
  NBDPOOL_WRITE_FUA,
  NBDPOOL_FLUSH,
  NBDPOOL_ZERO,                 /* the space stays */
  NBDPOOL_PUNCH,
  NBDPOOL_STATUS,               /* does OFFSET read as zeros, and for how many bytes? */
};

struct nbdpool_request {
  enum nbdpool_kind kind;
  void *buf;
  uint64_t count, offset;       /* as for nbdlink's requests */
  uint64_t *len;                /* of STATUS: see nbdlink_zeros */
  bool *zeros;
};

/* Waits for the answer.  -1: what the server said; or EIO: there is no connection, or
 * changes may have been lost, and this is not a read (the reason is reported once). */
extern int nbdpool_send (struct nbdpool *, const struct nbdpool_request *);
/* A hint, not waited for. */
extern void nbdpool_cache (struct nbdpool *, uint64_t count, uint64_t offset);

#endif /* QCOW2_NBDPOOL_H */
