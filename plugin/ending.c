/* SPDX-License-Identifier: BSD-3-Clause
 *
 * How does a server end?
 *
 * When nbdkit is told to end, it refuses the next request of each client with an error,
 * waits until the clients have left, and does not call .close for what they had opened.
 * A virtual machine would see a disk error, and an idle client would hold the server.
 * So this file comes first, with the first signal, or QMP's quit.  Jobs are cancelled,
 * for which requests may wait, and:
 *
 *   1  nbdkit accepts no more connections.  They wait in the queue of the listening
 *      socket for the next server, if that is systemd's; others are refused.  Connections
 *      that have no export yet get HANDSHAKE_MS for that, and those that have just got
 *      one SETTLE_MS: nbdkit may not have told the client
 *   2  the server goes on until no request runs, all threads wait (so nbdkit has sent the
 *      answers: ownthreads.c), and nothing is waiting in a connection, or for QUIET_MS.
 *      (If clients begin new requests all the time, there may be no such instant; but
 *      what they had begun before is answered, and threads are not looked at.)  Then the
 *      descriptor of each connection becomes another socket's, from which nbdkit reads
 *      the end, and where answers vanish.  (The connection itself cannot be shut down
 *      under a request: without its receiving side, nbdkit refuses what it has just read;
 *      without the sending side, nbdkit 1.32 aborts.)  So nbdkit ends it as if the client
 *      had done so; the last .close brings the disk to rest
 *   3  when all have gone, or after PATIENCE_MS, nbdkit is told to end
 *
 * A client that connects again (QEMU with reconnect-delay=) sees no error: what was not
 * answered, it sends to the next server.  A second signal does what nbdkit does.
 *
 * nbdkit does not tell which sockets are its clients'.  They are those whose own address
 * is that of a listening socket (ownsockets.c).
 *
 * The backing file of an image in a directory may be an NBD export of the same server.
 * Such a connection is needed until the other clients have gone.  Then the server would
 * wait for itself: so this file closes the images' connections to NBD servers, each when
 * no request uses it and what was written through it is flushed.  It does so again and
 * again, because a request that still runs may connect once more.
 *
 * Locks: none.  A thread does all of this; it is told by a byte in a pipe, which a
 * signal's handler can write.
 */

#include <config.h>

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>
#include <linux/sockios.h>

#define NBDKIT_API_VERSION 2
#include <nbdkit-plugin.h>

#include "util/clock.h"
#include "util/report.h"
#include "plugin/ending.h"
#include "plugin/ownsockets.h"
#include "plugin/ownthreads.h"

#define QUIET_MS 2000
#define PATIENCE_MS 20000
#define HANDSHAKE_MS 1000
#define SETTLE_MS 100
/* What runs so long after nothing did is new. */
#define NEW_MS 50
/* Between two looks at what is left. */
#define AGAIN_MS 5
/* A server that is its own client notices after so long that nbdkit is told to end by
 * others (a filter). */
#define ASK_MS 1000
/* Listening sockets: more are ended as nbdkit does. */
#define MOST_LISTENING 64

static const int signals[] = { SIGINT, SIGTERM, SIGHUP };
#define NR_SIGNALS (sizeof signals / sizeof signals[0])

/* Of the thread, if no other is named. */
static struct {
  struct ending_server server;  /* constant */
  pthread_t thread, main;       /* constant */
  bool started;                 /* of the main thread */
  atomic_bool stop;
  int quiet;                    /* an eventfd on which nothing comes */
  int sink[2];                  /* sockets: [0] reads the end, [1] gets what is written */
  union ownsocket_address listening[MOST_LISTENING];
  unsigned nr_listening;
  bool ends;                    /* connections that are quiet; otherwise only counts */
  bool cuts;                    /* the others, too */
  bool unread;                  /* has a client sent something that was not read? */
  int64_t calm_ms;              /* when nothing ran, or waited, for the first time */
  bool new;                     /* are there requests that have begun since? */
  unsigned left, own;           /* connections of others, and of the server itself */
} e = { .quiet = -1, .sink = { -1, -1 } };

/* Of the handler, too. */
static int wake[2] = { -1, -1 };
static struct sigaction before[NR_SIGNALS];
static volatile sig_atomic_t told;

/* --- signals --- */

static void
pass_on (int sig)
{
  for (size_t i = 0; i < NR_SIGNALS; i++)
    if (signals[i] == sig)
      before[i].sa_handler (sig);
}

static void
catch (int sig)
{
  const int err = errno;

  if (told++ || write (wake[1], "", 1) != 1)
    pass_on (sig);
  errno = err;
}

/* Only those for which nbdkit has a handler. */
static void
catch_signals (void)
{
  const struct sigaction ours = { .sa_handler = catch, .sa_flags = SA_RESTART };

  told = 0;
  for (size_t i = 0; i < NR_SIGNALS; i++)
    if (sigaction (signals[i], NULL, &before[i]) == 0 &&
        before[i].sa_handler != SIG_DFL && before[i].sa_handler != SIG_IGN &&
        !(before[i].sa_flags & SA_SIGINFO))
      sigaction (signals[i], &ours, NULL);
}

static void
leave_signals (void)
{
  struct sigaction now;

  for (size_t i = 0; i < NR_SIGNALS; i++)
    if (sigaction (signals[i], NULL, &now) == 0 && now.sa_handler == catch)
      sigaction (signals[i], &before[i], NULL);
}

/* --- sockets --- */

static bool
is_listened_on (const union ownsocket_address *own)
{
  for (unsigned i = 0; i < e.nr_listening; i++)
    if (ownsockets_belong (own, &e.listening[i]))
      return true;
  return false;
}

/* nbdkit goes on to wait for connections, but none comes. */
static void
stop_listening (void *opaque, int fd, int copy, const union ownsocket_address *own)
{
  (void) opaque, (void) copy;
  if (fd == e.server.spared || e.nr_listening == MOST_LISTENING || e.quiet == -1 ||
      dup2 (e.quiet, fd) == -1)
    return;
  e.listening[e.nr_listening++] = *own;
}

static bool
is_unread (int fd)
{
  int in;

  return ioctl (fd, FIONREAD, &in) == 0 && in > 0;
}

/* Has the client sent something that was not read, or not taken an answer? */
static bool
is_in_use (int fd)
{
  int out;

  return is_unread (fd) || (ioctl (fd, SIOCOUTQ, &out) == 0 && out > 0);
}

/* No request runs, or waits.  (One that comes now may be carried out, and not
 * answered.) */
static bool
is_quiet (int fd)
{
  return !is_in_use (fd) && !e.server.is_busy () && !is_in_use (fd);
}

/* Is it still the same socket?  (nbdkit may have closed it.) */
static bool
is_same (int fd, int copy)
{
  struct stat a, b;

  return fstat (fd, &a) == 0 && fstat (copy, &b) == 0 && a.st_dev == b.st_dev &&
    a.st_ino == b.st_ino;
}

static void
end_connection (void *opaque, int fd, int copy, const union ownsocket_address *own)
{
  (void) opaque;
  if (!is_listened_on (own))
    return;
  if (e.server.dir && ownsockets_is_peer (copy, own)) {
    e.own++;
    return;
  }
  e.left++;
  e.unread |= is_unread (copy);
  if (e.ends && (e.cuts || is_quiet (copy)) && is_same (fd, copy) &&
      dup2 (e.sink[0], fd) != -1)
    shutdown (copy, SHUT_RDWR);         /* a thread may wait for input */
}

/* --- the end --- */

static void
pause_between_looks (void)
{
  const struct timespec moment = { .tv_nsec = AGAIN_MS * 1000000 };

  nanosleep (&moment, NULL);
}

static void
drop_answers (void)
{
  char bytes[65536];

  while (recv (e.sink[1], bytes, sizeof bytes, MSG_DONTWAIT) > 0)
    ;
}

/* Have all gone? */
static bool
end_quiet_connections (void)
{
  e.left = e.own = 0;
  e.unread = false;
  ownsockets_each (end_connection, NULL, false);
  drop_answers ();
  return e.left == 0 && *e.server.open <= e.own;
}

/* Are there connections whose client does not know that it has an export? */
static bool
any_begins (int64_t now)
{
  return !end_quiet_connections () && (e.left + e.own > *e.server.open ||
                                       now < *e.server.last_ms + SETTLE_MS);
}

static void
notice_new_requests (int64_t now)
{
  const bool calm = !e.unread && !e.server.is_busy ();

  if (calm && e.calm_ms == 0)
    e.calm_ms = now;
  e.new |= !calm && e.calm_ms > 0 && now >= e.calm_ms + NEW_MS;
}

static void
end_connections (void)
{
  const int64_t begin = clock_ms ();

  ownsockets_each (stop_listening, NULL, true);
  /* Its poll still waits for the sockets.  (plugin.c has a handler.) */
  pthread_kill (e.main, SIGXFSZ);
  e.ends = e.cuts = e.new = false;
  e.calm_ms = 0;
  while (clock_ms () < begin + HANDSHAKE_MS && any_begins (clock_ms ()))
    pause_between_looks ();
  for (; !e.stop && clock_ms () < begin + PATIENCE_MS; pause_between_looks ()) {
    e.cuts = clock_ms () >= begin + QUIET_MS;
    e.ends = e.cuts || e.new || ownthreads_sleep (e.server.is_busy);
    if (end_quiet_connections ())
      return;
    notice_new_requests (clock_ms ());
  }
}

/* Waits until this file, or nbdkit, is told to end. */
static void
await_end (void)
{
  struct pollfd fd = { .fd = wake[0], .events = POLLIN };
  int r;

  /* (nbdkit_nanosleep reports an error then: not for each signal that interrupts.) */
  while ((r = poll (&fd, 1, e.server.dir ? ASK_MS : -1)) != 1)
    if (r == 0 && nbdkit_nanosleep (0, 0) == -1 && errno == ESHUTDOWN)
      return;
}

static void *
end_in_order (void *opaque)
{
  await_end ();
  if (!e.stop) {
    e.server.begins ();
    end_connections ();
    nbdkit_shutdown ();
  }
  for (; !e.stop; pause_between_looks ()) {
    drop_answers ();
    if (e.server.dir)
      dir_hang_up (e.server.dir);
  }
  return NULL;
}

/* --- start and stop --- */

void
ending_begin (void)
{
  if (!e.started || write (wake[1], "", 1) != 1)
    nbdkit_shutdown ();
}

static void
close_all (void)
{
  int *const fds[] = { &wake[0], &wake[1], &e.quiet, &e.sink[0], &e.sink[1] };

  for (size_t i = 0; i < sizeof fds / sizeof fds[0]; i++) {
    if (*fds[i] != -1)
      close (*fds[i]);
    *fds[i] = -1;
  }
}

int
ending_start (const struct ending_server *server)
{
  int err = 0;

  e.server = *server;
  e.main = pthread_self ();
  e.nr_listening = 0;
  e.stop = false;
  e.quiet = eventfd (0, EFD_CLOEXEC);
  if (e.quiet == -1 || pipe2 (wake, O_CLOEXEC | O_NONBLOCK) == -1 ||
      socketpair (AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, e.sink) == -1 ||
      shutdown (e.sink[1], SHUT_WR) == -1)
    err = errno;
  else
    err = pthread_create (&e.thread, NULL, end_in_order, NULL);
  if (err) {
    report_error ("cannot start the thread that ends the server: %s", strerror (err));
    close_all ();
    return -1;
  }
  e.started = true;
  catch_signals ();
  return 0;
}

void
ending_stop (void)
{
  if (!e.started)
    return;
  leave_signals ();
  e.stop = true;
  /* (If the pipe is full, the thread is awake.) */
  if (write (wake[1], "", 1) == 1 || errno == EAGAIN)
    pthread_join (e.thread, NULL);
  e.started = false;
  close_all ();
}
