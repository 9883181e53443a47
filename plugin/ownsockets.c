/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Which sockets does this process have, and who is at the other end?
 *
 * nbdkit does not tell which ones are its clients'.  So all descriptors are looked at: an
 * accepted connection has the address of a socket that listens.
 *
 * Locks: none; there is no state.
 */

#include <config.h>

#include <dirent.h>
#include <fcntl.h>
#include <netdb.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "plugin/ownsockets.h"

static int
option (int fd, int name)
{
  int value;
  socklen_t len = sizeof value;

  return getsockopt (fd, SOL_SOCKET, name, &value, &len) == 0 ? value : -1;
}

void
ownsockets_each (ownsocket_fn do_it, void *opaque, bool listens)
{
  DIR *const all = opendir ("/proc/self/fd");
  const struct dirent *entry;
  union ownsocket_address own;
  socklen_t len;
  int fd, copy;

  while (all && (entry = readdir (all)) != NULL) {
    fd = atoi (entry->d_name);
    if (entry->d_name[0] == '.' || fd == dirfd (all) ||
        (copy = fcntl (fd, F_DUPFD_CLOEXEC, 0)) == -1)
      continue;
    memset (&own, 0, sizeof own);
    len = sizeof own;
    if (option (copy, SO_TYPE) == SOCK_STREAM &&
        option (copy, SO_ACCEPTCONN) == listens &&
        getsockname (copy, &own.any, &len) == 0)
      do_it (opaque, fd, copy, &own);
    close (copy);
  }
  if (all)
    closedir (all);
}

/* (A socket that listens on all addresses has none of them.) */
bool
ownsockets_belong (const union ownsocket_address *a, const union ownsocket_address *b)
{
  if (a->any.sa_family != b->any.sa_family)
    return false;
  switch (a->any.sa_family) {
  case AF_UNIX:
    return memcmp (a->path.sun_path, b->path.sun_path, sizeof a->path.sun_path) == 0;
  case AF_INET:
    return a->ip.sin_port == b->ip.sin_port;
  case AF_INET6:
    return a->ip6.sin6_port == b->ip6.sin6_port;
  case AF_VSOCK:
    return a->vm.svm_port == b->vm.svm_port;
  default:
    return false;
  }
}

/* --- this process at the other end --- */

struct search {
  union ownsocket_address address;
  struct stat path;
  in_port_t port;
  bool found;
};

static void
compare (void *opaque, int fd, int copy, const union ownsocket_address *own)
{
  struct search *s = opaque;

  (void) fd, (void) copy;
  s->found |= memcmp (own, &s->address, sizeof *own) == 0;
}

bool
ownsockets_is_peer (int fd, const union ownsocket_address *own)
{
  struct search s = { .found = false };
  struct ucred peer;
  socklen_t len = sizeof peer;

  if (own->any.sa_family == AF_UNIX)
    return getsockopt (fd, SOL_SOCKET, SO_PEERCRED, &peer, &len) == 0 &&
      peer.pid == getpid ();
  memset (&s.address, 0, sizeof s.address);
  len = sizeof s.address;
  if (getpeername (fd, &s.address.any, &len) == 0)
    ownsockets_each (compare, &s, false);
  return s.found;
}

/* --- addresses of the server --- */

static void
compare_path (void *opaque, int fd, int copy, const union ownsocket_address *own)
{
  struct search *s = opaque;
  struct stat st;

  (void) fd, (void) copy;
  s->found |= own->any.sa_family == AF_UNIX && stat (own->path.sun_path, &st) == 0 &&
    st.st_dev == s->path.st_dev && st.st_ino == s->path.st_ino;
}

static void
compare_port (void *opaque, int fd, int copy, const union ownsocket_address *own)
{
  struct search *s = opaque;

  (void) fd, (void) copy;
  s->found |= (own->any.sa_family == AF_INET && own->ip.sin_port == s->port) ||
    (own->any.sa_family == AF_INET6 && own->ip6.sin6_port == s->port);
}

/* Is it an address of this host?  (Only such a one can be bound.)  *PORT: its port. */
static bool
is_local (const struct addrinfo *a, in_port_t *port)
{
  union ownsocket_address any;
  int fd, r;

  if (a->ai_addrlen > sizeof any ||
      (a->ai_family != AF_INET && a->ai_family != AF_INET6))
    return false;
  memcpy (&any, a->ai_addr, a->ai_addrlen);
  *port = a->ai_family == AF_INET ? any.ip.sin_port : any.ip6.sin6_port;
  if (a->ai_family == AF_INET)
    any.ip.sin_port = 0;
  else
    any.ip6.sin6_port = 0;
  fd = socket (a->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd == -1)
    return false;
  r = bind (fd, &any.any, a->ai_addrlen);
  close (fd);
  return r == 0;
}

bool
ownsockets_listen_at (const char *path, const char *host, const char *port)
{
  const struct addrinfo hints = { .ai_socktype = SOCK_STREAM };
  struct search s = { .found = false };
  struct addrinfo *all = NULL;

  if (path) {
    if (stat (path, &s.path) == 0)
      ownsockets_each (compare_path, &s, true);
    return s.found;
  }
  if (getaddrinfo (host, port, &hints, &all) != 0)
    return false;
  for (const struct addrinfo *a = all; a; a = a->ai_next)
    if (is_local (a, &s.port))
      ownsockets_each (compare_port, &s, true);
  freeaddrinfo (all);
  return s.found;
}
