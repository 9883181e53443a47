/* SPDX-License-Identifier: BSD-3-Clause
 *
 * How do tests reach an image through NBD, and see what the server does?
 *
 * The server is part of the test's process.  It accesses files through the same gate as
 * the core (storage.h), so hooks can take the place of the file: a simulated disk
 * (simdisk.c) loses its power, or gets errors, behind a real connection.
 *
 * Exports are larger than the files, as they cannot grow.  What is behind the end of a
 * file reads as zeros, and can be written.
 *
 * Each connection has several threads, which receive, carry out and answer one request
 * after the other: so requests of one client overtake each other.
 *
 * A killed server comes back when the next client connects.  Before, all threads of the
 * one that was killed have ended.
 *
 * Locks: `lock' guards everything, except what is said to be constant.  It is not held
 * while a request is carried out.
 */

#include <config.h>

#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "util/cleanup.h"
#include "lib/remoteserver-impl.h"
#include "lib/shortage.h"

#define ROOM (UINT64_C (64) << 20)
#define THREADS 3
#define LONGEST (UINT32_C (32) << 20)
#define MAX_EXTENTS 16
#define MAX_FULL 16
#define LONGEST_LOOK (UINT64_C (8) << 20)

struct remotefile {
  char *path;                   /* constant */
  struct remotefile *next;      /* constant */
  const struct storage_hooks *hooks;
  struct storage *storage;      /* NULL if it has no users */
  uint64_t size;                /* of the export, while it has users */
  unsigned users;
  /* The disk was full when writes with FUA came for these ranges: it stays so when the
   * client tries without.  A count of 0: none. */
  struct { uint64_t offset, count; } full[MAX_FULL];
};

struct remoteserver {
  int fd;                       /* constant */
  const char *dir;              /* constant */
  pthread_t thread;             /* constant */

  pthread_mutex_t lock;
  pthread_cond_t left;          /* a client has gone */
  struct remotemanners manners;
  struct remotefile *files;
  struct remoteclient *clients;
  bool dead;                    /* killed, and not reborn */
  unsigned kills;
  uint64_t countdown;           /* of requests until it is killed; UINT64_MAX: is not */
  enum remotemoment moment;
  void (*reborn) (void *);
  void *opaque;
};

/* --- the connection --- */

bool
remoteclient_receive (struct remoteclient *c, void *buf, size_t n)
{
  ssize_t r;

  for (; n > 0; n -= r, buf = (char *) buf + r) {
    r = recv (c->fd, buf, n, MSG_WAITALL);
    if (r <= 0)
      return false;
  }
  return true;
}

bool
remoteclient_send (struct remoteclient *c, const void *buf, size_t n)
{
  ssize_t r;

  for (; n > 0; n -= r, buf = (const char *) buf + r) {
    r = send (c->fd, buf, n, MSG_NOSIGNAL);
    if (r <= 0)
      return false;
  }
  return true;
}

/* --- files --- */

/* With the lock held. */
static struct remotefile *
find_file (struct remoteserver *s, const char *path)
{
  struct remotefile *f = s->files;

  while (f && strcmp (f->path, path) != 0)
    f = f->next;
  if (f == NULL) {
    f = calloc (1, sizeof *f);
    CHECK (f != NULL && (f->path = strdup (path)) != NULL);
    f->hooks = &without_sync;
    f->next = s->files;
    s->files = f;
  }
  return f;
}

bool
remoteclient_open (struct remoteclient *c, const char *name)
{
  struct remoteserver *s = c->server;
  CLEANUP_FREE char *path = NULL;
  LOCK_FOR_BLOCK (&s->lock);
  struct remotefile *f;

  if (name[0] == '\0' || strchr (name, '/'))
    return false;
  CHECK (asprintf (&path, "%s/%s", s->dir, name) > 0);
  if (access (path, F_OK) == -1)
    return false;
  f = find_file (s, path);
  if (f->users == 0) {
    const struct storage_options options = { .try_writable = true, .hooks = f->hooks };

    CHECK (storage_open (path, &options, &f->storage) == 0);
    f->size = round_up (storage_size (f->storage), 1 << 20) + ROOM;
    memset (f->full, 0, sizeof f->full);
  }
  f->users++;
  c->file = f;
  return true;
}

uint64_t
remoteclient_size (const struct remoteclient *c)
{
  return c->file->size;
}

/* With the lock held. */
static void
close_file (struct remotefile *f)
{
  if (--f->users > 0)
    return;
  storage_close (f->storage);
  f->storage = NULL;
}

/* --- requests --- */

enum {
  CMD_READ, CMD_WRITE, CMD_DISC, CMD_FLUSH, CMD_TRIM, CMD_CACHE, CMD_ZERO, CMD_STATUS,
};
#define FLAG_FUA 1
#define FLAG_NO_HOLE 2
#define FLAG_FAST 16

struct request {
  uint16_t flags, type;
  struct be64 cookie;
  uint64_t offset;
  uint32_t len;
  unsigned char *data;
  struct { struct be32 len, flags; } extents[MAX_EXTENTS];
  unsigned n;
};

static void
note_full (struct remoteclient *c, const struct request *q)
{
  LOCK_FOR_BLOCK (&c->server->lock);

  for (unsigned i = 0; i < MAX_FULL; i++)
    if (c->file->full[i].count == 0) {
      c->file->full[i].offset = q->offset;
      c->file->full[i].count = q->len;
      return;
    }
  CHECK (false);
}

/* Has the write just found no space with FUA?  (If so, the next one may find some.) */
static bool
was_full (struct remoteclient *c, const struct request *q)
{
  LOCK_FOR_BLOCK (&c->server->lock);

  for (unsigned i = 0; i < MAX_FULL; i++)
    if (c->file->full[i].offset == q->offset && c->file->full[i].count == q->len) {
      c->file->full[i].count = 0;
      return true;
    }
  return false;
}

static int
write_data (struct remoteclient *c, const struct request *q)
{
  const struct iovec iov = { q->data, q->len };
  const bool fua = q->flags & FLAG_FUA;

  if (!fua && was_full (c, q)) {
    errno = ENOSPC;
    return -1;
  }
  if (storage_writev (c->file->storage, &iov, 1, q->offset, fua) == 0)
    return 0;
  if (fua && errno == ENOSPC)
    note_full (c, q);
  return -1;
}

/* New clusters have a place in an export: the file must not end before them.  (No other
 * request writes there now.) */
static int
write_last_zeros (struct remoteclient *c, const struct request *q)
{
  static const char zeros[512];
  const uint64_t n = min64 (q->len, sizeof zeros), end = q->offset + q->len;

  return end <= storage_size (c->file->storage) ? 0
    : storage_write (c->file->storage, zeros, n, end - n);
}

static int
write_zeros (struct remoteclient *c, const struct request *q)
{
  struct storage *s = c->file->storage;
  const uint64_t size = storage_size (s);
  const bool punch = q->type == CMD_TRIM || !(q->flags & FLAG_NO_HOLE);
  /* How much of it is within the file, if that matters. */
  const uint64_t n = punch ? q->len
    : q->offset >= size ? 0 : min64 (q->len, size - q->offset);
  int r;

  if ((q->flags & FLAG_FAST) && c->manners.fast == REMOTE_TOO_SLOW) {
    errno = ENOTSUP;
    return -1;
  }
  r = (punch ? storage_punch : storage_zero) (s, q->offset, n);
  if (r == 0 && (q->flags & FLAG_FAST)) {
    errno = ENOTSUP;
    return -1;
  }
  if (q->type == CMD_ZERO && r != -1 && (r == 0 || n < q->len)) {
    const uint64_t done = r == 0 ? 0 : n;
    CLEANUP_FREE void *zeros = calloc (1, q->len - done);

    CHECK (zeros != NULL);
    r = storage_write (s, zeros, q->len - done, q->offset + done);
  }
  if ((q->flags & FLAG_FAST) && r != -1)
    r = write_last_zeros (c, q);
  return r == -1 || !(q->flags & FLAG_FUA) ? r : storage_sync (s);
}

/* What hooks have in the place of a file has holes where it reads as zeros.  (The file
 * knows nothing about that.)  Behind its end there are none: an image whose clusters are
 * there would have an end before them. */
static int
find_hole (struct remoteclient *c, uint64_t offset, uint64_t *len, bool *hole)
{
  const uint64_t size = storage_size (c->file->storage);
  unsigned char block[512];
  uint64_t done, n;

  *hole = false;
  if (offset >= size)
    return 0;
  *len = min64 (*len, size - offset);
  if (c->file->hooks == &without_sync) {
    *hole = storage_hole (c->file->storage, offset, len);
    return 0;
  }
  for (done = 0; done < *len && done < LONGEST_LOOK; done += n) {
    n = min64 (*len - done, sizeof block);
    if (storage_read (c->file->storage, block, n, offset + done) == -1)
      return -1;
    if (done == 0)
      *hole = bytes_are_zero (block, n);
    else if (bytes_are_zero (block, n) != *hole)
      break;
  }
  *len = done;
  return 0;
}

static int
find_extents (struct remoteclient *c, struct request *q)
{
  uint64_t at = q->offset, len;
  bool hole;

  for (q->n = 0; q->n < MAX_EXTENTS && at < q->offset + q->len; at += len) {
    len = q->offset + q->len - at;
    if (find_hole (c, at, &len, &hole) == -1)
      return -1;
    len = min64 (len, q->offset + q->len - at);
    q->extents[q->n].len = put32 (len);
    q->extents[q->n++].flags = put32 (hole ? 1 | 2 : 0);
  }
  return 0;
}

/* Returns 0 or an errno. */
static uint32_t
carry_out (struct remoteclient *c, struct request *q)
{
  struct storage *s = c->file->storage;
  int r = 0;

  if (!range_within (q->offset, q->len, c->file->size))
    return q->type == CMD_WRITE ? ENOSPC : EINVAL;
  if (q->type != CMD_FLUSH && ((q->offset | q->len) & (c->manners.minimum - 1)) != 0)
    return EINVAL;
  switch (q->type) {
  case CMD_READ: r = storage_read (s, q->data, q->len, q->offset); break;
  case CMD_WRITE: r = write_data (c, q); break;
  case CMD_FLUSH: r = storage_sync (s); break;
  case CMD_ZERO: case CMD_TRIM: r = write_zeros (c, q); break;
  case CMD_CACHE: storage_prefetch (s, q->offset, q->len); break;
  case CMD_STATUS: r = find_extents (c, q); break;
  default: return EINVAL;
  }
  return r != -1 ? 0
    : errno == ENOSPC || errno == ENOMEM || errno == ENOTSUP ? errno : EIO;
}

static bool
answer_simply (struct remoteclient *c, const struct request *q, uint32_t err)
{
  const struct { struct be32 magic, err; struct be64 cookie; } header = {
    put32 (0x67446698), put32 (err), q->cookie
  };

  return remoteclient_send (c, &header, sizeof header) &&
    (err != 0 || q->type != CMD_READ || remoteclient_send (c, q->data, q->len));
}

static bool
answer_structured (struct remoteclient *c, const struct request *q, uint32_t err)
{
  struct {
    struct be32 magic;
    struct be16 flags, type;
    struct be64 cookie;
    struct be32 len;
    union {
      struct { struct be32 err; struct be16 len; } __attribute__ ((packed)) error;
      struct be64 offset;
      struct be32 context;
    } __attribute__ ((packed));
  } __attribute__ ((packed)) header = {
    .magic = put32 (0x668e33ef), .flags = put16 (1), .cookie = q->cookie
  };
  const size_t plain = offsetof (typeof (header), error);
  const void *rest = q->data;
  uint32_t more, rest_len = 0;

  if (err != 0) {
    header.type = put16 (32769);
    header.error.err = put32 (err);
    header.error.len = put16 (0);
    more = sizeof header.error;
  }
  else if (q->type == CMD_READ) {
    header.type = put16 (1);
    header.offset = put64 (q->offset);
    more = sizeof header.offset;
    rest_len = q->len;
  }
  else {
    header.type = put16 (5);
    header.context = put32 (REMOTE_CONTEXT_ID);
    more = sizeof header.context;
    rest = q->extents;
    rest_len = q->n * sizeof q->extents[0];
  }
  header.len = put32 (more + rest_len);
  return remoteclient_send (c, &header, plain + more) &&
         remoteclient_send (c, rest, rest_len);
}

static bool
answer (struct remoteclient *c, const struct request *q, uint32_t err)
{
  const bool structured = c->structured && (q->type == CMD_READ || q->type == CMD_STATUS);
  LOCK_FOR_BLOCK (&c->out);

  return (structured ? answer_structured : answer_simply) (c, q, err);
}

/* The caller frees the data. */
static bool
receive_request (struct remoteclient *c, struct request *q)
{
  struct {
    struct be32 magic;
    struct be16 flags, type;
    struct be64 cookie, offset;
    struct be32 len;
  } __attribute__ ((packed)) header;
  LOCK_FOR_BLOCK (&c->in);

  q->data = NULL;
  if (!remoteclient_receive (c, &header, sizeof header))
    return false;
  CHECK (get32 (header.magic) == 0x25609513);
  q->flags = get16 (header.flags);
  q->type = get16 (header.type);
  q->cookie = header.cookie;
  q->offset = get64 (header.offset);
  q->len = get32 (header.len);
  if (q->type == CMD_DISC) {
    shutdown (c->fd, SHUT_RD);  /* for the other threads */
    return false;
  }
  if (q->type != CMD_READ && q->type != CMD_WRITE)
    return true;
  CHECK (q->len <= LONGEST && q->len <= c->manners.maximum);
  q->data = malloc (q->len + 1);
  CHECK (q->data != NULL);
  return q->type == CMD_READ || remoteclient_receive (c, q->data, q->len);
}

/* --- being killed --- */

/* With the lock held. */
static void
kill_locked (struct remoteserver *s)
{
  struct remoteclient *c;

  s->dead = true;
  s->kills++;
  s->countdown = UINT64_MAX;
  for (c = s->clients; c; c = c->next)
    shutdown (c->fd, SHUT_RDWR);
}

void
remoteserver_kill (struct remoteserver *s)
{
  LOCK_FOR_BLOCK (&s->lock);

  kill_locked (s);
}

/* False: the server is killed before.  *LAST: it has to be, at this moment. */
static bool
may_begin (struct remoteserver *s, bool *last)
{
  LOCK_FOR_BLOCK (&s->lock);

  *last = s->countdown == 0;
  if (s->countdown != UINT64_MAX)
    s->countdown--;             /* after 0: it is not killed again */
  if (*last && s->moment == REMOTE_RECEIVED)
    kill_locked (s);
  return !s->dead;
}

static void
perhaps_kill (struct remoteserver *s, bool last, enum remotemoment now)
{
  LOCK_FOR_BLOCK (&s->lock);

  if (last && s->moment == now)
    kill_locked (s);
}

static bool
one_request (struct remoteclient *c, struct request *q)
{
  struct remoteserver *s = c->server;
  uint32_t err;
  bool last, ok;

  if (!receive_request (c, q) || !may_begin (s, &last))
    return false;
  err = carry_out (c, q);
  perhaps_kill (s, last, REMOTE_DONE);
  ok = answer (c, q, err);
  perhaps_kill (s, last, REMOTE_ANSWERED);
  return ok;
}

/* --- clients --- */

static void
leave (struct remoteclient *c)
{
  struct remoteserver *s = c->server;
  struct remoteclient **p;
  LOCK_FOR_BLOCK (&s->lock);

  if (--c->threads > 0)
    return;
  for (p = &s->clients; *p != c; p = &(*p)->next)
    ;
  *p = c->next;
  if (c->file)
    close_file (c->file);
  close (c->fd);                /* the client may wait for that */
  pthread_mutex_destroy (&c->in);
  pthread_mutex_destroy (&c->out);
  free (c);
  pthread_cond_broadcast (&s->left);
}

static void *
serve (void *opaque)
{
  struct remoteclient *c = opaque;
  struct request q;
  bool more = true;

  shortage_spare (true);
  while (more) {
    more = one_request (c, &q);
    free (q.data);
  }
  leave (c);
  return NULL;
}

static void
start_thread (void *(*run) (void *), struct remoteclient *c)
{
  pthread_attr_t attr;
  pthread_t thread;

  pthread_attr_init (&attr);
  pthread_attr_setdetachstate (&attr, PTHREAD_CREATE_DETACHED);
  CHECK (pthread_create (&thread, &attr, run, c) == 0);
  pthread_attr_destroy (&attr);
}

static void *
greet (void *opaque)
{
  struct remoteclient *c = opaque;

  shortage_spare (true);
  if (!remoteclient_hello (c)) {
    leave (c);
    return NULL;
  }
  pthread_mutex_lock (&c->server->lock);
  c->threads = THREADS;
  pthread_mutex_unlock (&c->server->lock);
  for (int i = 1; i < THREADS; i++)
    start_thread (serve, c);
  return serve (c);
}

/* The first client after a death meets a new server. */
static void
be_reborn (struct remoteserver *s)
{
  LOCK_FOR_BLOCK (&s->lock);

  if (!s->dead)
    return;
  while (s->clients)
    pthread_cond_wait (&s->left, &s->lock);
  if (s->reborn)
    s->reborn (s->opaque);
  s->dead = false;
}

static void
add_client (struct remoteserver *s, int fd)
{
  struct remoteclient *c = calloc (1, sizeof *c);
  LOCK_FOR_BLOCK (&s->lock);

  CHECK (c != NULL);
  c->server = s;
  c->fd = fd;
  c->threads = 1;
  c->manners = s->manners;
  pthread_mutex_init (&c->in, NULL);
  pthread_mutex_init (&c->out, NULL);
  c->next = s->clients;
  s->clients = c;
  start_thread (greet, c);
}

static void *
listen_for_clients (void *opaque)
{
  struct remoteserver *s = opaque;
  int fd;

  shortage_spare (true);
  while ((fd = accept4 (s->fd, NULL, NULL, SOCK_CLOEXEC)) != -1) {
    be_reborn (s);
    add_client (s, fd);
  }
  return NULL;
}

/* --- the server --- */

struct remoteserver *
remoteserver_start (const char *socket_path, const char *dir)
{
  struct remoteserver *s = calloc (1, sizeof *s);
  struct sockaddr_un addr = { .sun_family = AF_UNIX };

  CHECK (s != NULL && strlen (socket_path) < sizeof addr.sun_path);
  strcpy (addr.sun_path, socket_path);
  s->dir = dir;
  s->countdown = UINT64_MAX;
  s->manners = (struct remotemanners) {
    .status = true, .minimum = 1, .maximum = LONGEST,
  };
  pthread_mutex_init (&s->lock, NULL);
  pthread_cond_init (&s->left, NULL);
  s->fd = socket (AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  CHECK (s->fd != -1);
  CHECK (bind (s->fd, (struct sockaddr *) &addr, sizeof addr) == 0);
  CHECK (listen (s->fd, 100) == 0);
  CHECK (pthread_create (&s->thread, NULL, listen_for_clients, s) == 0);
  return s;
}

void
remoteserver_stop (struct remoteserver *s)
{
  struct remotefile *f;

  shutdown (s->fd, SHUT_RDWR);
  CHECK (pthread_join (s->thread, NULL) == 0);
  close (s->fd);
  remoteserver_rest (s);
  while ((f = s->files)) {
    s->files = f->next;
    free (f->path);
    free (f);
  }
  pthread_cond_destroy (&s->left);
  pthread_mutex_destroy (&s->lock);
  free (s);
}

struct remotemanners
remoteserver_random_manners (struct rng *rng)
{
  static const uint32_t minima[] = { 1, 1, 512, 4096 };

  return (struct remotemanners) {
    .no_fua = rng_below (rng, 3) == 0, .no_zero = rng_below (rng, 3) == 0,
    .fast = rng_below (rng, 4) ? REMOTE_FAST : 1 + rng_below (rng, 2),
    .no_cache = rng_below (rng, 3) == 0, .multi_conn = rng_below (rng, 2),
    .status = rng_below (rng, 2), .minimum = minima[rng_below (rng, 4)],
    .maximum = rng_below (rng, 4) ? LONGEST : 65536,
  };
}

void
remotemanners_print (const struct remotemanners *m)
{
  printf ("remote server: blocks of %" PRIu32 " to %" PRIu32 "%s%s%s%s%s%s\n", m->minimum,
          m->maximum, m->no_fua ? ", no FUA" : "", m->no_zero ? ", no zeros" : "",
          m->fast == REMOTE_FAST ? "" : m->fast == REMOTE_TOO_SLOW ? ", slow zeros"
          : ", no fast zeros",
          m->no_cache ? ", no hints" : "", m->multi_conn ? ", several connections" : "",
          m->status ? ", block status" : "");
}

void
remoteserver_behave (struct remoteserver *s, const struct remotemanners *manners)
{
  LOCK_FOR_BLOCK (&s->lock);

  s->manners = *manners;
}

void
remoteserver_hooks (struct remoteserver *s, const char *path,
                    const struct storage_hooks *hooks)
{
  struct remotefile *f;
  LOCK_FOR_BLOCK (&s->lock);

  f = find_file (s, path);
  while (f->users > 0)
    pthread_cond_wait (&s->left, &s->lock);
  f->hooks = hooks ? hooks : &without_sync;
}

void
remoteserver_kill_after (struct remoteserver *s, uint64_t after, enum remotemoment moment)
{
  LOCK_FOR_BLOCK (&s->lock);

  s->countdown = after;
  s->moment = moment;
}

void
remoteserver_reborn (struct remoteserver *s, void (*reborn) (void *), void *opaque)
{
  LOCK_FOR_BLOCK (&s->lock);

  s->reborn = reborn;
  s->opaque = opaque;
}

void
remoteserver_rest (struct remoteserver *s)
{
  LOCK_FOR_BLOCK (&s->lock);

  while (s->clients)
    pthread_cond_wait (&s->left, &s->lock);
}

unsigned
remoteserver_kills (struct remoteserver *s)
{
  LOCK_FOR_BLOCK (&s->lock);

  return s->kills;
}
