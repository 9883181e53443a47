/* SPDX-License-Identifier: BSD-3-Clause
 *
 * How do many threads use one connection to an NBD server?
 *
 * Each thread sends its request (with libnbd's asynchronous calls) and waits for the
 * reply.  One of the waiting threads is the leader: it polls the socket and lets libnbd
 * process what arrives, including replies for other threads, which it wakes.  When its
 * own reply has come, it wakes another thread to lead.  So the plugin needs no thread of
 * its own: nothing has to be restarted after nbdkit forks, and a single request needs no
 * switch between threads.
 *
 * A request that cannot be sent at once is sent by the leader, which is woken through
 * `kick'.  Replies to requests that no thread waits for (nbdlink_cache) are processed by
 * the next leader.
 *
 * When the connection breaks, libnbd ends all requests; each of them returns ENOTCONN.
 *
 * A server that sends nothing for a long time, although it has requests to answer, is
 * given up (answer-timeout=).  It must not keep nbdkit from ending, either: if it is
 * silent, each leader asks whether its client still waits, and if not, lets another
 * thread lead.  If all clients are gone, the connection is given up earlier.
 *
 * Locks: `lock' guards the list of waiting calls and the leader.  libnbd has a lock of
 * its own, which it holds while it calls us (finish): that one comes first.
 */

#include <config.h>

#include <errno.h>
#include <inttypes.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "util/bytes.h"
#include "util/cleanup.h"
#include "util/clock.h"
#include "util/report.h"
#include "storage/nbdlib.h"
#include "storage/nbdlink.h"

/* If the server does not state it: what every server must accept (protocol, "Block size
 * constraints"). */
#define DEFAULT_MAXIMUM (UINT64_C (32) << 20)

/* How long the peer may be silent while it has something to acknowledge. */
#define SILENCE_SECONDS 60

/* After this silence, waiting threads check whether their client still waits. */
#define SILENCE_MS 1000

/* How long we wait for a server to close a connection that we have ended. */
#define GOODBYE_MS 1000

/* How long the first connection is tried again if the server hangs up at once. */
#define BUSY_MS 2000

/* So many requests may be in flight for hints to be sent. */
#define MOST_WITH_HINTS 64

struct nbdlink {
  struct nbdlib lib;            /* constant */
  struct nbd_handle *nbd;
  struct nbdlink_info info;     /* constant after opening */
  int kick;                     /* an eventfd */
  struct storage_link_options options;  /* constant, too */
  atomic_bool ended;            /* the server has said that it ends */
  atomic_bool given_up;         /* it was silent */
  const char *name;             /* for messages; constant */

  pthread_mutex_t lock;
  bool led;                     /* one thread polls; guarded by lock */
  struct nbdlink_call *waiting;         /* guarded by lock */
  /* Since when is the server silent (clock_ms): since it last sent something, or got the
   * first request after that.  Atomic: the leader holds no lock when it sets this. */
  _Atomic int64_t heard;
};

/* --- the socket --- */

/* Waits at most TIMEOUT_MS for something to do, and does it.  For one thread at a
 * time. */
static void
poll_once (struct nbdlink *l, int timeout_ms)
{
  const unsigned direction = l->lib.aio_get_direction (l->nbd);
  struct pollfd fds[2] = {
    { .fd = l->lib.aio_get_fd (l->nbd) },
    { .fd = l->kick, .events = POLLIN },
  };
  uint64_t kicks;

  if (direction & LIBNBD_AIO_DIRECTION_READ)
    fds[0].events |= POLLIN;
  if (direction & LIBNBD_AIO_DIRECTION_WRITE)
    fds[0].events |= POLLOUT;
  if (poll (fds, 2, timeout_ms) <= 0)
    return;
  if ((fds[1].revents & POLLIN) && read (l->kick, &kicks, sizeof kicks) == -1)
    report_debug ("eventfd: %m");
  /* One step changes the state: other events are handled in the next call. */
  if ((direction & LIBNBD_AIO_DIRECTION_READ) &&
      (fds[0].revents & (POLLIN | POLLHUP | POLLERR | POLLNVAL))) {
    l->heard = clock_ms ();
    l->lib.aio_notify_read (l->nbd);
  }
  else if ((direction & LIBNBD_AIO_DIRECTION_WRITE) &&
           (fds[0].revents & (POLLOUT | POLLHUP | POLLERR | POLLNVAL)))
    l->lib.aio_notify_write (l->nbd);
}

/* After a request was begun: the leader may have to send the rest of it.  Or the attempt
 * has found the connection dead: then libnbd has closed the socket that the leader polls,
 * and nothing else would wake it. */
static void
kick_leader (struct nbdlink *l)
{
  const uint64_t one = 1;

  if (((l->lib.aio_get_direction (l->nbd) & LIBNBD_AIO_DIRECTION_WRITE) ||
       nbdlink_is_dead (l)) &&
      write (l->kick, &one, sizeof one) == -1)
    report_debug ("eventfd: %m");
}

/* --- requests --- */

static void
begin_call (struct nbdlink *l, struct nbdlink_call *c)
{
  memset (c, 0, sizeof *c);
  c->link = l;
  c->began = clock_ms ();
  pthread_cond_init (&c->wake, NULL);
}

/* The caller holds the lock. */
static void
join (struct nbdlink *l, struct nbdlink_call *c)
{
  if (l->waiting == NULL && l->heard < c->began)
    l->heard = c->began;
  c->next = l->waiting;
  c->prev = &l->waiting;
  if (c->next)
    c->next->prev = &c->next;
  l->waiting = c;
}

static void
leave (struct nbdlink_call *c)
{
  *c->prev = c->next;
  if (c->next)
    c->next->prev = c->prev;
}

/* libnbd calls this when the reply has arrived or the connection is lost.  Returning 1
 * retires the request. */
static int
finish (void *opaque, int *error)
{
  struct nbdlink_call *c = opaque;
  LOCK_FOR_BLOCK (&c->link->lock);

  c->err = *error;
  c->done = true;
  pthread_cond_signal (&c->wake);
  return 1;
}

static nbd_completion_callback
when_done (struct nbdlink_call *c)
{
  return (nbd_completion_callback) { .callback = finish, .user_data = c };
}

/* The next leader: if possible, a call with a client that waits.  NULL: no call waits.
 * With the lock held. */
static struct nbdlink_call *
next_leader (const struct nbdlink *l)
{
  struct nbdlink_call *c = l->waiting;

  while (c && c->alone)
    c = c->next;
  return c ? c : l->waiting;
}

/* With the lock held. */
static bool
others_must_lead (const struct nbdlink *l, const struct nbdlink_call *c)
{
  return c->alone && !next_leader (l)->alone;
}

/* How long may the server be silent?  ALONE: no client waits for an answer. */
static int64_t
longest_silence (const struct nbdlink *l, bool alone)
{
  const int64_t limit = l->options.answer_timeout_ms > 0
    ? (int64_t) l->options.answer_timeout_ms : INT64_MAX;
  const int64_t limit_alone = storage_link_alone_ms (&l->options);

  return alone && limit_alone < limit ? limit_alone : limit;
}

/* Ends all requests: libnbd will see that the connection is lost. */
static void
give_up (struct nbdlink *l, int64_t silent_ms)
{
  if (!l->given_up)
    report_error ("%s: the NBD server has been silent for %" PRIi64 " seconds", l->name,
                  silent_ms / 1000);
  l->given_up = true;
  shutdown (l->lib.aio_get_fd (l->nbd), SHUT_RDWR);
}

/* Takes in answers, until that to C is there, or another one must lead.  With the lock
 * held, which is dropped meanwhile. */
static void
lead (struct nbdlink *l, struct nbdlink_call *c)
{
  bool alone = c->alone, silent = false;
  int64_t silent_ms = 0;

  l->led = true;
  while (!c->done && !others_must_lead (l, c)) {
    pthread_mutex_unlock (&l->lock);
    /* Only now: a call that may wait longer could have come meanwhile, and must lead. */
    if (silent)
      give_up (l, silent_ms);
    poll_once (l, SILENCE_MS);
    silent_ms = clock_ms () - l->heard;
    if (silent_ms >= SILENCE_MS && !alone)
      alone = !storage_link_is_wanted (&l->options);
    silent = silent_ms >= longest_silence (l, alone);
    pthread_mutex_lock (&l->lock);
    c->alone = alone;
  }
  l->led = false;
}

/* With the lock held. */
static void
wake_leader (struct nbdlink *l)
{
  if (!l->led && l->waiting)
    pthread_cond_signal (&next_leader (l)->wake);
}

/* Waits for the answer to C, and receives those of others if no thread does. */
static void
await (struct nbdlink *l, struct nbdlink_call *c)
{
  LOCK_FOR_BLOCK (&l->lock);

  join (l, c);
  while (!c->done)
    if (l->led || others_must_lead (l, c)) {
      wake_leader (l);
      pthread_cond_wait (&c->wake, &l->lock);
    }
    else
      lead (l, c);
  leave (c);
  wake_leader (l);
}

/* Called after each request; COOKIE is libnbd's result of issuing it. */
static void
begun (struct nbdlink *l, struct nbdlink_call *c, int64_t cookie)
{
  c->cookie = cookie;
  if (cookie == -1)
    c->err = nbdlink_is_dead (l) ? ENOTCONN :
      l->lib.get_errno () ? l->lib.get_errno () : EIO;
  kick_leader (l);
}

static int
end (struct nbdlink *l, struct nbdlink_call *c)
{
  if (c->cookie != -1)
    await (l, c);
  pthread_cond_destroy (&c->wake);
  if (c->err == 0)
    return 0;
  if (c->cookie != -1 && c->err == ENOMEM)
    c->err = EIO;               /* the server's: see nbdlink.h */
  /* A server that says that it is about to end has ended for us. */
  if (c->err == ESHUTDOWN)
    l->ended = true;
  errno = nbdlink_is_dead (l) ? ENOTCONN : c->err;
  return -1;
}

static int
complete (struct nbdlink *l, struct nbdlink_call *c, int64_t cookie)
{
  begun (l, c, cookie);
  return end (l, c);
}

void
nbdlink_read_begin (struct nbdlink *l, struct nbdlink_call *c, void *buf, uint64_t count,
                    uint64_t offset)
{
  begin_call (l, c);
  begun (l, c, l->lib.aio_pread (l->nbd, buf, count, offset, when_done (c), 0));
}

int
nbdlink_read_end (struct nbdlink *l, struct nbdlink_call *c)
{
  return end (l, c);
}

int
nbdlink_read (struct nbdlink *l, void *buf, uint64_t count, uint64_t offset)
{
  struct nbdlink_call c;

  nbdlink_read_begin (l, &c, buf, count, offset);
  return end (l, &c);
}

int
nbdlink_write (struct nbdlink *l, const void *buf, uint64_t count, uint64_t offset,
               bool fua)
{
  struct nbdlink_call c;

  begin_call (l, &c);
  return complete (l, &c, l->lib.aio_pwrite (l->nbd, buf, count, offset, when_done (&c),
                                          fua ? LIBNBD_CMD_FLAG_FUA : 0));
}

void
nbdlink_flush_begin (struct nbdlink *l, struct nbdlink_call *c)
{
  begin_call (l, c);
  begun (l, c, l->lib.aio_flush (l->nbd, when_done (c), 0));
}

int
nbdlink_flush_end (struct nbdlink *l, struct nbdlink_call *c)
{
  return end (l, c);
}

int
nbdlink_zero (struct nbdlink *l, uint64_t count, uint64_t offset, enum nbdlink_zero how)
{
  static const uint32_t flags[] = {
    [NBDLINK_KEEP] = LIBNBD_CMD_FLAG_NO_HOLE, [NBDLINK_FREE] = 0,
    [NBDLINK_FAST] = LIBNBD_CMD_FLAG_FAST_ZERO,
  };
  struct nbdlink_call c;

  begin_call (l, &c);
  return complete (l, &c, l->lib.aio_zero (l->nbd, count, offset, when_done (&c),
                                        flags[how]));
}

static int
forget (void *opaque, int *error)
{
  (void) opaque;
  (void) error;
  return 1;
}

void
nbdlink_cache (struct nbdlink *l, uint64_t count, uint64_t offset)
{
  /* A server that does not answer them gets no more. */
  if (l->lib.aio_in_flight (l->nbd) >= MOST_WITH_HINTS)
    return;
  l->lib.aio_cache (l->nbd, count, offset,
                    (nbd_completion_callback) { .callback = forget }, 0);
  kick_leader (l);
}

/* --- block status --- */

/* Extents are in order, and begin where the request does. */
static void
add_extent (struct storage_parts *p, uint64_t len, bool hole)
{
  if (len == 0 || p->more)
    return;
  if (p->n > 0 && hole == (p->n % 2 ? p->hole : !p->hole))
    p->lens[p->n - 1] += min64 (len, UINT64_MAX - p->lens[p->n - 1]);
  else if (p->n == p->room)
    p->more = true;
  else {
    if (p->n == 0)
      p->hole = hole;
    p->lens[p->n++] = len;
  }
}

struct answer {
  struct storage_parts *parts;
  uint32_t hole;                /* the flag of what is one */
};

static bool
is_allocation (const char *context)
{
  return strcmp (context, LIBNBD_CONTEXT_BASE_ALLOCATION) == 0;
}

static int
add_extents (void *opaque, const char *context, uint64_t offset, uint32_t *entries,
             size_t n, int *error)
{
  const struct answer *a = opaque;

  (void) offset;
  (void) error;
  for (size_t i = 0; i + 1 < n && is_allocation (context); i += 2)
    add_extent (a->parts, entries[i], entries[i + 1] & a->hole);
  return 0;
}

static int
add_extents_64 (void *opaque, const char *context, uint64_t offset,
                struct nbdlib_extent *extents, size_t n, int *error)
{
  const struct answer *a = opaque;

  (void) offset;
  (void) error;
  for (size_t i = 0; i < n && is_allocation (context); i++)
    add_extent (a->parts, extents[i].length, extents[i].flags & a->hole);
  return 0;
}

static int64_t
begin_status (struct nbdlink *l, uint64_t count, uint64_t offset, bool one,
              struct answer *a, nbd_completion_callback done)
{
  const nbd_extent_callback short_ones = { .callback = add_extents, .user_data = a };
  const struct nbdlib_extents_callback long_ones = {
    .callback = add_extents_64, .user_data = a,
  };
  const uint32_t flags = one ? LIBNBD_CMD_FLAG_REQ_ONE : 0;

  return l->info.long_counts
    ? l->lib.aio_block_status_64 (l->nbd, count, offset, long_ones, done, flags)
    : l->lib.aio_block_status (l->nbd, min64 (count, NBDLINK_MAX_COUNT), offset,
                               short_ones, done, flags);
}

int
nbdlink_status (struct nbdlink *l, uint64_t count, uint64_t offset, bool one,
                enum nbdlink_ask ask, struct storage_parts *parts)
{
  struct answer a = {
    parts, ask == NBDLINK_HOLES ? LIBNBD_STATE_HOLE : LIBNBD_STATE_ZERO
  };
  struct nbdlink_call c;

  parts->n = 0;
  parts->more = false;
  begin_call (l, &c);
  return complete (l, &c, begin_status (l, count, offset, one, &a, when_done (&c)));
}

/* --- opening --- */

/* Returns 0, or -1; *WHY is then libnbd's message. */
static int
connect_before (struct nbdlink *l, const char *uri, int64_t deadline, const char **why)
{
  if (l->lib.aio_connect_uri (l->nbd, uri) == -1) {
    *why = l->lib.get_error ();
    errno = l->lib.get_errno ();
    return -1;
  }
  while (l->lib.aio_is_connecting (l->nbd)) {
    const int64_t left = deadline - clock_ms ();

    if (left <= 0) {
      *why = "no answer in time";
      errno = ETIMEDOUT;
      return -1;
    }
    poll_once (l, left);
  }
  if (l->lib.aio_is_ready (l->nbd))
    return 0;
  *why = l->lib.get_error ();
  errno = l->lib.get_errno ();
  return -1;
}

/* Detects a peer that has vanished. */
static void
watch_peer (int fd)
{
  const int on = 1, idle = SILENCE_SECONDS / 2, interval = SILENCE_SECONDS / 6, n = 3;
  const unsigned silence = SILENCE_SECONDS * 1000;

  /* These fail on sockets other than TCP, which does no harm. */
  setsockopt (fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
  setsockopt (fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof idle);
  setsockopt (fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval, sizeof interval);
  setsockopt (fd, IPPROTO_TCP, TCP_KEEPCNT, &n, sizeof n);
  setsockopt (fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &silence, sizeof silence);
}

static uint64_t
block_size (struct nbdlink *l, int which, uint64_t otherwise)
{
  const int64_t size = l->lib.get_block_size (l->nbd, which);

  return size > 0 ? (uint64_t) size : otherwise;
}

/* Returns 0, or -1; *WHY then says what is wrong with the export. */
static int
ask_info (struct nbdlink *l, const char **why)
{
  const int64_t size = l->lib.get_size (l->nbd);
  struct nbdlink_info *i = &l->info;

  if (size == -1) {
    *why = l->lib.get_error ();
    return -1;
  }
  *i = (struct nbdlink_info) {
    .size = size,
    .minimum = block_size (l, LIBNBD_SIZE_MINIMUM, 1),
    .maximum = block_size (l, LIBNBD_SIZE_MAXIMUM, DEFAULT_MAXIMUM),
    .read_only = l->lib.is_read_only (l->nbd) != 0,
    .flush = l->lib.can_flush (l->nbd) == 1,
    .fua = l->lib.can_fua (l->nbd) == 1,
    .zero = l->lib.can_zero (l->nbd) == 1,
    .zero_fast = l->lib.can_fast_zero (l->nbd) == 1,
    .cache = l->lib.can_cache (l->nbd) == 1,
    .multi_conn = l->lib.can_multi_conn (l->nbd) == 1,
    .block_status =
      l->lib.can_meta_context (l->nbd, LIBNBD_CONTEXT_BASE_ALLOCATION) == 1,
    .long_counts = l->lib.aio_block_status_64 && l->lib.get_extended_headers_negotiated &&
      l->lib.get_extended_headers_negotiated (l->nbd) == 1,
  };
  if ((i->minimum & (i->minimum - 1)) == 0 && i->minimum <= i->maximum) {
    /* libnbd does not accept more. */
    i->maximum = min64 (i->maximum, UINT64_C (64) << 20) / i->minimum * i->minimum;
    if (i->maximum > 0)
      return 0;
  }
  *why = "its block size constraints make no sense";
  errno = EINVAL;
  return -1;
}

static int
prepare (struct nbdlink *l, const char *name)
{
  pthread_mutex_init (&l->lock, NULL);
  l->kick = eventfd (0, EFD_CLOEXEC | EFD_NONBLOCK);
  l->nbd = l->lib.create ();
  return l->kick == -1 || l->nbd == NULL ||
    l->lib.set_handle_name (l->nbd, name) == -1 ||
    l->lib.set_uri_allow_local_file (l->nbd, true) == -1 ||
    l->lib.add_meta_context (l->nbd, LIBNBD_CONTEXT_BASE_ALLOCATION) == -1 ? -1 : 0;
}

/* Returns 0, or -1; *WHY then says why not, if known. */
static int
set_up (struct nbdlink *l, const char *uri, const char *name, int64_t deadline,
        const char **why)
{
  *why = NULL;
  if (prepare (l, name) == -1) {
    *why = l->lib.get_error ();
    return -1;
  }
  if (connect_before (l, uri, deadline, why) == -1 || ask_info (l, why) == -1)
    return -1;
  watch_peer (l->lib.aio_get_fd (l->nbd));
  return 0;
}

static void
tell_why (const char *uri, const char *name, const char *why, bool quiet)
{
  if (why && !quiet && strcmp (uri, name) != 0) {
    /* What libnbd says may name the user or the key. */
    report_debug ("%s: cannot connect: %s", name, why);
    why = "the reason may contain secrets of the URI: nbdkit -v shows it";
  }
  if (quiet)
    report_debug ("%s: cannot connect: %s", name, why ? why : "no reason given");
  else
    report_error ("%s: cannot connect: %s", name, why ? why : "no reason given");
}

/* Did the server hang up, as one does that is still busy with its last client? */
static bool
has_hung_up (const char *why)
{
  return why && (errno == ECONNRESET || strstr (why, "disconnected unexpectedly"));
}

int
nbdlink_open (const char *uri, const char *name, int timeout_ms, bool quiet,
              const struct storage_link_options *options, struct nbdlink **ret)
{
  const int64_t now = clock_ms ();
  const int64_t busy_until = now + (quiet ? 0 : BUSY_MS);
  struct nbdlink *l;
  struct nbdlib lib;
  const char *why;
  bool again;
  int err;

  if (nbdlib_load (&lib, &why) == -1)
    return report_refusal (EIO, "%s: cannot connect without libnbd: %s", name, why);
  for (int pause = 10;; pause *= 2) {
    l = calloc (1, sizeof *l);
    if (l == NULL) {
      report_error ("%s: cannot connect: %m", name);
      return -1;
    }
    l->lib = lib;
    l->options = *options;
    l->name = name;
    if (set_up (l, uri, name, now + timeout_ms, &why) == 0) {
      *ret = l;
      return 0;
    }
    err = errno == ENOMEM ? ENOMEM : EIO;
    again = has_hung_up (why) && clock_ms () + pause <= busy_until;
    if (!again)
      tell_why (uri, name, why, quiet);
    nbdlink_close (l);
    if (!again)
      break;
    poll (NULL, 0, pause);
  }
  errno = err;
  return -1;
}

/* Tells the server, and gives it a moment to close its end: so that one that admits one
 * client admits the next one. */
static void
say_goodbye (struct nbdlink *l)
{
  const int64_t deadline = clock_ms () + GOODBYE_MS;
  int64_t left;

  /* Only calls that no client waits for are in flight. */
  if (!l->lib.aio_is_ready (l->nbd) || l->lib.aio_disconnect (l->nbd, 0) == -1)
    return;
  while (!l->lib.aio_is_dead (l->nbd) && !l->lib.aio_is_closed (l->nbd) &&
         (left = deadline - clock_ms ()) > 0)
    poll_once (l, left);
}

void
nbdlink_close (struct nbdlink *l)
{
  if (l == NULL)
    return;
  if (l->nbd) {
    say_goodbye (l);
    l->lib.close (l->nbd);
  }
  if (l->kick >= 0)
    close (l->kick);
  pthread_mutex_destroy (&l->lock);
  free (l);
}

const struct nbdlink_info *
nbdlink_info (const struct nbdlink *l)
{
  return &l->info;
}

bool
nbdlink_is_dead (struct nbdlink *l)
{
  return l->ended || l->lib.aio_is_dead (l->nbd) || l->lib.aio_is_closed (l->nbd);
}

bool
nbdlink_is_given_up (const struct nbdlink *l)
{
  return l->given_up;
}

/* libnbd may close the socket at any moment, and its number may come to be another
 * file's: hence the freedom that the caller leaves us. */
bool
nbdlink_has_hung_up (struct nbdlink *l)
{
  struct pollfd fd = { .fd = l->lib.aio_get_fd (l->nbd), .events = POLLRDHUP };

  return nbdlink_is_dead (l) || poll (&fd, 1, 0) > 0;
}
