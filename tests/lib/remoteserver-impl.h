/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What the parts of the NBD server share: remoteserver.c, remotehello.c.
 */

#ifndef TEST_FARSERVER_IMPL_H
#define TEST_FARSERVER_IMPL_H

#include <pthread.h>
#include <stddef.h>

#include "util/bytes.h"
#include "lib/remoteserver.h"

/* A client's connection. */
struct remoteclient {
  struct remoteserver *server;
  int fd;
  struct remotefile *file;      /* NULL: none was asked for */
  /* Agreed in the handshake. */
  struct remotemanners manners;
  bool structured, status;
  /* Held while a request is received, and while a reply is sent. */
  pthread_mutex_t in, out;
  /* Guarded by the server's lock. */
  unsigned threads;
  struct remoteclient *next;
};

/* The context that block status is about. */
#define REMOTE_CONTEXT_ID 1

/* Transfer all of it.  False: the connection is gone. */
extern bool remoteclient_receive (struct remoteclient *, void *, size_t);
extern bool remoteclient_send (struct remoteclient *, const void *, size_t);

/* Opens the file NAME for the client.  False: there is none. */
extern bool remoteclient_open (struct remoteclient *, const char *name);
extern uint64_t remoteclient_size (const struct remoteclient *);

/* Everything before the first request.  False: the client wants no more. */
extern bool remoteclient_hello (struct remoteclient *);

#endif /* TEST_FARSERVER_IMPL_H */
