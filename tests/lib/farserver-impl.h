/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What the parts of the NBD server share: farserver.c, farhello.c.
 */

#ifndef TEST_FARSERVER_IMPL_H
#define TEST_FARSERVER_IMPL_H

#include <pthread.h>
#include <stddef.h>

#include "util/bytes.h"
#include "lib/farserver.h"

/* A client's connection. */
struct farclient {
  struct farserver *server;
  int fd;
  struct farfile *file;         /* NULL: none was asked for */
  /* Agreed in the handshake. */
  struct farmanners manners;
  bool structured, status;
  /* Held while a request is received, and while a reply is sent. */
  pthread_mutex_t in, out;
  /* Guarded by the server's lock. */
  unsigned threads;
  struct farclient *next;
};

/* The context that block status is about. */
#define FAR_CONTEXT_ID 1

/* Transfer all of it.  False: the connection is gone. */
extern bool farclient_receive (struct farclient *, void *, size_t);
extern bool farclient_send (struct farclient *, const void *, size_t);

/* Opens the file NAME for the client.  False: there is none. */
extern bool farclient_open (struct farclient *, const char *name);
extern uint64_t farclient_size (const struct farclient *);

/* Everything before the first request.  False: the client wants no more. */
extern bool farclient_hello (struct farclient *);

#endif /* TEST_FARSERVER_IMPL_H */
