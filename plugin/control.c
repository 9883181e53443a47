/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Who are the clients of the control socket, and when does each have its turn?
 *
 * One thread serves all clients, so their commands run one after the other.  It never
 * waits for a client: what a client has not read yet is queued, and its next command is
 * not looked at before the queue is empty.  A client that reads nothing while much
 * happens is dropped.  A client that vanishes in the middle of a command is noticed
 * afterwards.
 *
 * The socket is made before nbdkit forks, while errors still reach the user's terminal,
 * and the thread is started after that.  A socket on which no process listens any more,
 * as a server that was killed leaves it, is replaced.
 *
 * Jobs are carried on by the same thread; what happens to them, all clients hear.
 *
 * At the end, jobs are cancelled.  Clients hear SHUTDOWN when the last request was
 * answered, and BLOCK_EXPORT_DELETED when everything is durable.
 *
 * Locks: none; while the thread runs, all belongs to it, but for `cancels'.
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
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#define NBDKIT_API_VERSION 2
#include <nbdkit-plugin.h>

#include "util/cleanup.h"
#include "util/jsontext.h"
#include "util/memory.h"
#include "util/report.h"
#include "plugin/control.h"
#include "plugin/ending.h"
#include "plugin/qmp.h"
#include "plugin/qmpcommands.h"
#include "plugin/qmpjobs.h"
#include "plugin/qmpthreshold.h"

#define MOST_CLIENTS 16
/* What may be queued for a client, beyond one answer; bytes. */
#define MOST_QUEUED (1 << 20)
/* How long new clients wait if there is nothing for them, such as no descriptor. */
#define PAUSE_MS 200

struct client {
  int fd;                       /* -1: there is none */
  struct qmp *qmp;
  char heard[4096];             /* not looked at yet */
  size_t nr_heard;
  bool ended;                   /* it says nothing more */
  bool lost;                    /* it is to be dropped */
  char *queue;                  /* for it to read */
  size_t queued;
};

struct control {
  const char *path;
  int fd;                       /* -1: not made */
  bool bound;
  int wake[2];                  /* a pipe: the thread is to end when it is closed */
  pthread_t thread;
  bool started;
  struct qmp_host host;
  struct qmp_service service;
  struct client clients[MOST_CLIENTS];
  bool pauses;                  /* no client could be accepted */
  bool quits;                   /* a client has said so */
  atomic_bool cancels;          /* the server ends, and jobs do not know yet */
  json_t *exports;              /* those at the end */
};

/* --- the socket --- */

static int
refuse_control (const struct control *c, const char *why)
{
  report_error ("%s: cannot make the control socket: %s", c->path, why);
  return -1;
}

/* Does no process listen on the socket that is there?  (One that does may be stopped, or
 * busy.) */
static bool
is_left_over (const struct sockaddr_un *addr)
{
  const int fd = socket (AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  const bool refused = fd >= 0 &&
    connect (fd, (const struct sockaddr *) addr, sizeof *addr) == -1 &&
    errno == ECONNREFUSED;

  if (fd >= 0)
    close (fd);
  return refused;
}

static int
make_way (const struct control *c, const struct sockaddr_un *addr)
{
  struct stat st;

  if (lstat (c->path, &st) == -1)
    return 0;
  if (!S_ISSOCK (st.st_mode))
    return refuse_control (c, "something else is there");
  if (!is_left_over (addr))
    return refuse_control (c, "another server uses it");
  return unlink (c->path) == 0 || errno == ENOENT ? 0
    : refuse_control (c, strerror (errno));
}

/* (No other thread creates files yet.) */
static int
bind_private (int fd, const struct sockaddr_un *addr)
{
  const mode_t mask = umask (0177);
  const int r = bind (fd, (const struct sockaddr *) addr, sizeof *addr);

  umask (mask);
  return r;
}

static int
listen_at (struct control *c)
{
  struct sockaddr_un addr = { .sun_family = AF_UNIX };

  if (strlen (c->path) >= sizeof addr.sun_path)
    return refuse_control (c, "the path is too long for a socket");
  strcpy (addr.sun_path, c->path);
  if (make_way (c, &addr) == -1)
    return -1;
  c->fd = socket (AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (c->fd == -1 || bind_private (c->fd, &addr) == -1)
    return refuse_control (c, strerror (errno));
  c->bound = true;
  return listen (c->fd, MOST_CLIENTS) == 0 ? 0 : refuse_control (c, strerror (errno));
}

struct control *
control_open (const char *path)
{
  struct control *c = memory_new (1, sizeof *c);

  if (c == NULL)
    return NULL;
  c->path = path;
  c->fd = c->wake[0] = c->wake[1] = -1;
  for (size_t i = 0; i < MOST_CLIENTS; i++)
    c->clients[i].fd = -1;
  if (listen_at (c) == 0)
    return c;
  control_close (c);
  return NULL;
}

/* --- what clients read --- */

/* Sends what is queued, as far as the client reads it. */
static void
flush (struct client *k)
{
  const ssize_t n = k->queued == 0 ? 0
    : send (k->fd, k->queue, k->queued, MSG_NOSIGNAL | MSG_DONTWAIT);

  if (n == -1 && errno != EAGAIN && errno != EINTR)
    k->lost = true;
  if (n <= 0)
    return;
  k->queued -= n;
  memmove (k->queue, k->queue + n, k->queued);
}

static void
send_to_client (void *client, const char *text, size_t len)
{
  struct client *k = client;
  char *queue = k->lost || k->queued > MOST_QUEUED ? NULL
    : realloc (k->queue, k->queued + len);

  if (queue == NULL) {
    k->lost = true;
    return;
  }
  k->queue = queue;
  memcpy (queue + k->queued, text, len);
  k->queued += len;
  flush (k);
}

static void
tell_all (struct control *c, const char *event, json_t *data)
{
  for (size_t i = 0; i < MOST_CLIENTS; i++)
    if (c->clients[i].fd != -1)
      qmp_tell (c->clients[i].qmp, event, data);
}

/* What has happened to jobs. */
static void
tell_events (struct control *c)
{
  json_t *one;

  while ((one = jobs_event (c->host.jobs)) != NULL) {
    tell_all (c, json_string_value (json_object_get (one, "event")),
              json_object_get (one, "data"));
    json_decref (one);
  }
}

/* --- clients come, speak and leave --- */

static void
drop (struct client *k)
{
  if (k->fd == -1)
    return;
  close (k->fd);
  qmp_free (k->qmp);
  free (k->queue);
  *k = (struct client) { .fd = -1 };
}

static void
welcome (struct control *c)
{
  const int fd = accept4 (c->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
  struct client *k = c->clients;

  c->pauses = fd == -1;
  if (fd == -1)
    return;
  while (k < c->clients + MOST_CLIENTS && k->fd != -1)
    k++;
  if (k == c->clients + MOST_CLIENTS) {
    close (fd);
    return;
  }
  k->fd = fd;
  k->qmp = qmp_new (&c->service, k);
  if (k->qmp == NULL)
    drop (k);
}

static void
hear (struct client *k)
{
  const ssize_t n = recv (k->fd, k->heard + k->nr_heard, sizeof k->heard - k->nr_heard,
                          MSG_DONTWAIT);

  if (n > 0)
    k->nr_heard += n;
  else if (n == 0)
    k->ended = true;
  else if (errno != EAGAIN && errno != EINTR)
    k->lost = true;
}

static bool
has_turn (const struct client *k)
{
  return k->fd != -1 && k->nr_heard > 0 && k->queued == 0;
}

/* One command at most, so that others have their turn. */
static void
take_turn (struct client *k)
{
  const size_t n = qmp_hear (k->qmp, k->heard, k->nr_heard);

  k->nr_heard -= n;
  memmove (k->heard, k->heard + n, k->nr_heard);
}

static json_t *
run (void *opaque, const char *name, const json_t *arguments, struct qmp_error *e)
{
  struct control *c = opaque;
  bool quit = false;
  json_t *result = qmpcommands_run (&c->host, name, arguments, &quit, e);

  if (quit)
    jobs_cancel (c->host.jobs);
  c->quits |= quit;
  tell_events (c);              /* before the answer */
  return result;
}

/* --- the thread --- */

/* What is waited for: the end, new clients, jobs, and what clients say and read. */
#define NR_FDS (3 + MOST_CLIENTS)

static void
await (struct control *c, struct pollfd fds[NR_FDS])
{
  bool busy = false;
  nfds_t n = 3;                 /* (No more than descriptors are allowed.) */

  fds[0] = (struct pollfd) { .fd = c->wake[0] };
  fds[1] = (struct pollfd) { .fd = c->pauses ? -1 : c->fd, .events = POLLIN };
  fds[2] = (struct pollfd) { .fd = jobs_fd (c->host.jobs), .events = POLLIN };
  for (size_t i = 0; i < MOST_CLIENTS; i++) {
    const struct client *k = &c->clients[i];

    fds[3 + i] = (struct pollfd) {
      .fd = k->fd,
      .events = k->queued > 0 ? POLLOUT : k->nr_heard == 0 && !k->ended ? POLLIN : 0,
    };
    busy |= has_turn (k);
    if (k->fd != -1)
      n = 3 + i + 1;
  }
  if (poll (fds, n, busy ? 0 : c->pauses ? PAUSE_MS : -1) == -1)
    memset (fds, 0, NR_FDS * sizeof *fds);
  c->pauses = false;
}

static void
serve_client (struct client *k, short events)
{
  if (events & POLLOUT)
    flush (k);
  if (events & POLLIN)
    hear (k);
  else if (events & (POLLHUP | POLLERR))
    k->lost |= k->queued > 0 || k->nr_heard == 0;
  if (!k->lost && has_turn (k))
    take_turn (k);
  if (k->lost || (k->ended && k->nr_heard == 0 && k->queued == 0))
    drop (k);
}

static void *
serve (void *opaque)
{
  struct control *c = opaque;
  struct pollfd fds[NR_FDS];
  bool told = false;

  for (;;) {
    await (c, fds);
    if (fds[0].revents)
      return NULL;
    for (size_t i = 0; i < MOST_CLIENTS; i++)
      if (c->clients[i].fd != -1)
        serve_client (&c->clients[i], fds[3 + i].revents);
    if (fds[1].revents)
      welcome (c);
    if (fds[2].revents) {
      if (atomic_exchange (&c->cancels, false))
        jobs_cancel (c->host.jobs);
      jobs_work (c->host.jobs);
      qmpthreshold_look (&c->host);
      tell_events (c);
    }
    if (c->quits && !told)
      ending_begin ();
    told = c->quits;
  }
}

int
control_start (struct control *c, const struct qmp_host *host)
{
  sigset_t all, old;
  int err;

  c->host = *host;
  c->host.jobs = jobs_new ();
  c->host.socket = c->fd;
  c->service = (struct qmp_service) { .run = run, .opaque = c, .send = send_to_client };
  if (c->host.jobs == NULL || qmptarget_name_nodes (host) == -1)
    return -1;
  if (pipe2 (c->wake, O_CLOEXEC) == -1) {
    report_error ("pipe: %m");
    return -1;
  }
  /* Signals are for the threads of nbdkit. */
  sigfillset (&all);
  pthread_sigmask (SIG_SETMASK, &all, &old);
  err = pthread_create (&c->thread, NULL, serve, c);
  pthread_sigmask (SIG_SETMASK, &old, NULL);
  if (err) {
    report_error ("pthread_create: %s", strerror (err));
    return -1;
  }
  c->started = true;
  return 0;
}

json_t *
control_jobs (const struct control *c)
{
  return c && c->host.jobs ? jobs_list (c->host.jobs, false) : json_array ();
}

void
control_news (const struct control *c)
{
  if (c && c->host.jobs)
    jobs_wake (c->host.jobs);
}

void
control_cancel (struct control *c)
{
  if (c == NULL || c->host.jobs == NULL)
    return;
  c->cancels = true;
  jobs_wake (c->host.jobs);
}

int
control_socket (const struct control *c)
{
  return c ? c->fd : -1;
}

void
control_stop (struct control *c)
{
  json_t *data;

  if (c == NULL || !c->started)
    return;
  close (c->wake[1]);
  c->wake[1] = -1;
  pthread_join (c->thread, NULL);
  c->started = false;
  jobs_end (c->host.jobs);
  tell_events (c);
  data = jsontext_object (
    { "guest", json_false () },
    { "reason", jsontext_string (c->quits ? "host-qmp-quit" : "host-signal") });
  tell_all (c, "SHUTDOWN", data);
  json_decref (data);
  c->exports = qmpcommands_run (&c->host, "query-block-exports", NULL, &c->quits,
                                &(struct qmp_error) { .desc = NULL });
}

static void
tell_exports (struct control *c)
{
  json_t *export, *data;
  size_t i;

  json_array_foreach (c->exports, i, export) {
    data = jsontext_object ({ "id", json_incref (json_object_get (export, "id")) });
    tell_all (c, "BLOCK_EXPORT_DELETED", data);
    json_decref (data);
  }
  json_decref (c->exports);
}

void
control_close (struct control *c)
{
  if (c == NULL)
    return;
  tell_exports (c);
  for (size_t i = 0; i < MOST_CLIENTS; i++)
    drop (&c->clients[i]);
  if (c->bound)
    unlink (c->path);
  for (size_t i = 0; i < 2; i++)
    if (c->wake[i] != -1)
      close (c->wake[i]);
  if (c->fd != -1)
    close (c->fd);
  jobs_free (c->host.jobs);
  free (c);
}
