/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The stream sockets of this process.  See ownsockets.c.
 */

#ifndef QCOW2_OWNSOCKETS_H
#define QCOW2_OWNSOCKETS_H

#include <netinet/in.h>
#include <stdbool.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <linux/vm_sockets.h>

union ownsocket_address {
  struct sockaddr any;
  struct sockaddr_un path;
  struct sockaddr_in ip;
  struct sockaddr_in6 ip6;
  struct sockaddr_vm vm;
  struct sockaddr_storage room;
};

/* COPY: another descriptor of the socket FD, which stays open during the call.  OWN: its
 * address. */
typedef void (*ownsocket_fn) (void *opaque, int fd, int copy,
                              const union ownsocket_address *own);
/* Calls FN with each socket that listens, or that does not. */
extern void ownsockets_each (ownsocket_fn fn, void *opaque, bool listens);

/* Was the connection with the address A accepted by a socket that listens on B? */
extern bool ownsockets_belong (const union ownsocket_address *a,
                               const union ownsocket_address *b);

/* Is this process at the other end of the connection FD, whose address is OWN, too? */
extern bool ownsockets_is_peer (int fd, const union ownsocket_address *own);

/* Does a socket of this process listen at PATH, or, if that is NULL, at HOST and PORT?
 * (Other names may lead there unnoticed.) */
extern bool ownsockets_listen_at (const char *path, const char *host, const char *port);

#endif /* QCOW2_OWNSOCKETS_H */
