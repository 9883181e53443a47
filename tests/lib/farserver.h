/* SPDX-License-Identifier: BSD-3-Clause
 *
 * An NBD server in the test's process.  See farserver.c.
 */

#ifndef TEST_FARSERVER_H
#define TEST_FARSERVER_H

#include <stdbool.h>
#include <stdint.h>

#include "storage/storage.h"
#include "lib/stubs.h"

struct farserver;

/* Listens on the Unix socket SOCKET.  An export's name is that of a file in the directory
 * DIR (both absolute).  There may be one server. */
extern struct farserver *farserver_start (const char *socket, const char *dir);
/* When no client is connected; those that have just left may still be going. */
extern void farserver_stop (struct farserver *);

/* What it offers.  Flush, FUA, zeros and hints are always offered, unless noted. */
struct farmanners {
  bool no_fua, no_zero, no_cache;
  enum farfast {                /* zeros at once: with punched holes */
    FAR_FAST, FAR_TOO_SLOW /* says so when it is asked */, FAR_NOT_FAST
  } fast;
  bool multi_conn;
  bool status;                  /* structured replies and block status */
  uint32_t minimum, maximum;    /* of requests with data: powers of two */
};
extern struct farmanners farserver_random_manners (struct rng *);
extern void farmanners_print (const struct farmanners *);

/* For clients that come later.  None is connected. */
extern void farserver_behave (struct farserver *, const struct farmanners *);

/* The file at PATH (absolute) gets these hooks.  Waits until no client uses it. */
extern void farserver_hooks (struct farserver *, const char *path,
                             const struct storage_hooks *);

/* Breaks all connections.  Requests that have begun may end, but are not answered, and no
 * others begin. */
extern void farserver_kill (struct farserver *);
/* The same when AFTER more requests have come, at this moment of the next one.
 * UINT64_MAX: not. */
enum farmoment { FAR_RECEIVED, FAR_DONE, FAR_ANSWERED };
extern void farserver_kill_after (struct farserver *, uint64_t after, enum farmoment);
/* REBORN is called before the first client comes after that, when nothing uses the
 * files. */
extern void farserver_reborn (struct farserver *, void (*reborn) (void *opaque),
                              void *opaque);
/* Waits until the last client has gone, and what it asked for is done.  (A request that was
 * under way when the server was killed may take effect later.) */
extern void farserver_rest (struct farserver *);
/* How often it was killed. */
extern unsigned farserver_kills (struct farserver *);

#endif /* TEST_FARSERVER_H */
