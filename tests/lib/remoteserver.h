/* SPDX-License-Identifier: BSD-3-Clause
 *
 * An NBD server in the test's process.  See remoteserver.c.
 */

#ifndef TEST_FARSERVER_H
#define TEST_FARSERVER_H

#include <stdbool.h>
#include <stdint.h>

#include "storage/storage.h"
#include "lib/stubs.h"

struct remoteserver;

/* Listens on the Unix socket SOCKET.  An export's name is that of a file in the directory
 * DIR (both absolute).  There may be one server. */
extern struct remoteserver *remoteserver_start (const char *socket, const char *dir);
/* When no client is connected; those that have just left may still be going. */
extern void remoteserver_stop (struct remoteserver *);

/* What it offers.  Flush, FUA, zeros and hints are always offered, unless noted. */
struct remotemanners {
  bool no_fua, no_zero, no_cache;
  enum remotefast {                /* zeros at once: with punched holes */
    REMOTE_FAST, REMOTE_TOO_SLOW /* says so when it is asked */, REMOTE_NOT_FAST
  } fast;
  bool multi_conn;
  bool status;                  /* structured replies and block status */
  uint32_t minimum, maximum;    /* of requests with data: powers of two */
};
extern struct remotemanners remoteserver_random_manners (struct rng *);
extern void remotemanners_print (const struct remotemanners *);

/* For clients that come later.  None is connected. */
extern void remoteserver_behave (struct remoteserver *, const struct remotemanners *);

/* The file at PATH (absolute) gets these hooks.  Waits until no client uses it. */
extern void remoteserver_hooks (struct remoteserver *, const char *path,
                                const struct storage_hooks *);

/* Breaks all connections.  Requests that have begun may end, but are not answered, and no
 * others begin. */
extern void remoteserver_kill (struct remoteserver *);
/* The same when AFTER more requests have come, at this moment of the next one.
 * UINT64_MAX: not. */
enum remotemoment { REMOTE_RECEIVED, REMOTE_DONE, REMOTE_ANSWERED };
extern void remoteserver_kill_after (struct remoteserver *, uint64_t after,
                                     enum remotemoment);
/* REBORN is called before the first client comes after that, when nothing uses the
 * files. */
extern void remoteserver_reborn (struct remoteserver *, void (*reborn) (void *opaque),
                                 void *opaque);
/* Waits until the last client has gone, and what it asked for is done.  (A request that
 * was under way when the server was killed may take effect later.) */
extern void remoteserver_rest (struct remoteserver *);
/* How often it was killed. */
extern unsigned remoteserver_kills (struct remoteserver *);

#endif /* TEST_FARSERVER_H */
