/* SPDX-License-Identifier: BSD-3-Clause
 *
 * How do requests reach an NBD server when connections may break?
 *
 * There is one connection, or several if the server says that each sees the writes of the
 * others (multi-conn): more are opened when the existing ones are busy.
 *
 * A broken connection is re-established, for a limited time and with growing pauses.
 * Requests wait in the meantime, and those that only read are sent again.  But if
 * anything was changed through the connection since its last flush, or a change was in
 * flight, then it is unknown what the server has kept, and a change that is sent twice
 * could overwrite a later one.  This counts as a failed sync (R9): from then on nothing
 * is written, while reads continue.
 *
 * A flush goes to every connection through which something was changed: a reply on
 * another connection could come from a server that was restarted, and has lost the
 * change.
 *
 * An export may grow.  A connection keeps the size that the server stated when it was
 * made, so all are replaced then, each when its requests have ended and its changes are
 * flushed.
 *
 * Locks: `lock' guards the connections and the counts of changes.
 */

#include <config.h>

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "util/bytes.h"
#include "util/cleanup.h"
#include "util/clock.h"
#include "util/report.h"
#include "storage/nbdpool.h"

#define MAX_LINKS 4
/* Requests in flight on each connection before another one is opened. */
#define BUSY 8

#define FIRST_PAUSE_MS 100
#define LONGEST_PAUSE_MS 5000
/* How long a request waits for one more connection, beside what the first one took. */
#define MORE_MS 1000
/* The same for the one that shows whether the export has grown.  (A server that admits
 * one client may leave the next one without an answer.) */
#define GROWN_MS 3000
/* How often waiting threads check whether their client still waits. */
#define ASK_MS 1000

struct slot {
  struct nbdlink *link;         /* NULL if not connected */
  unsigned users;               /* requests in flight */
  bool connecting;              /* one thread does, or pauses before it does */
  bool retiring;                /* its link is about to be replaced: no new requests */
  bool unwanted;                /* the server did not admit it */
  unsigned changing;            /* requests in flight that change something */
  uint64_t changes, flushed;    /* how many were answered, and how many of them a flush
                                   covers */
};

struct nbdpool {
  /* Fixed after opening: no lock. */
  char *uri;                    /* with secrets */
  char *name;                   /* without secrets, for messages */
  struct storage_link_options options;
  struct nbdlink_info info;     /* its size is that of the first connection */
  int64_t connect_ms;           /* how long that took */

  _Atomic uint64_t size;        /* of the export, for requests; only grows */
  atomic_bool lost;             /* changes may be lost: no more are sent */

  pthread_mutex_t lock;
  pthread_cond_t settled;       /* a connection was made, or has failed, or has no users
                                   any more */
  struct slot slots[MAX_LINKS];
  unsigned nr_slots;            /* slots that were ever connected */
  unsigned max_slots;
  int64_t lost_at;              /* clock_ms: when it was reported that the connection is
                                   lost; 0: it is there */
  bool gone;                    /* a request has waited for it in vain; likewise */
};

/* Waits until something has changed (see `settled'), for at most MS.  With the lock held,
 * which is dropped meanwhile. */
static void
wait_settled (struct nbdpool *p, int64_t ms)
{
  const int64_t end = clock_ms () + ms;
  const struct timespec ts = { end / 1000, end % 1000 * 1000000 };

  pthread_cond_timedwait (&p->settled, &p->lock, &ts);
}

/* --- connections --- */

/* Is the export on a later connection still the same, or larger? */
static bool
is_same_export (const struct nbdpool *p, const struct nbdlink_info *i)
{
  return i->size >= p->size && i->minimum <= p->info.minimum &&
    i->maximum >= p->info.maximum && i->read_only <= p->info.read_only &&
    i->flush >= p->info.flush && i->fua >= p->info.fua && i->zero >= p->info.zero &&
    i->zero_fast >= p->info.zero_fast && i->multi_conn >= p->info.multi_conn;
}

static int
check_same_export (struct nbdpool *p, struct nbdlink *link)
{
  const struct nbdlink_info *i = nbdlink_info (link);

  if (is_same_export (p, i))
    return 0;
  return report_refusal (EIO, "%s: the export is not what it was: it had %" PRIu64 " "
                         "bytes and now has %" PRIu64 ", or the server allows less",
                         p->name, p->size, i->size);
}

/* Connects SLOT, in at most TIMEOUT_MS.  Called with the lock held, which is dropped
 * meanwhile. */
static int
connect_slot (struct nbdpool *p, struct slot *slot, int64_t timeout_ms)
{
  struct nbdlink *link = NULL, *old = slot->link;
  int r;

  slot->connecting = true;
  slot->link = NULL;
  pthread_mutex_unlock (&p->lock);
  nbdlink_close (old);
  r = nbdlink_open (p->uri, p->name, timeout_ms, true, &p->options, &link);
  if (r == 0 && check_same_export (p, link) == -1) {
    nbdlink_close (link);
    link = NULL;
    r = -1;
  }
  pthread_mutex_lock (&p->lock);
  slot->connecting = false;
  slot->link = link;
  pthread_cond_broadcast (&p->settled);
  return r;
}

/* A lost connection is reported once, by the first thread that notices it, even if this
 * thread's errors are silenced because its work is done again.  The caller holds the
 * lock. */
static void
tell_lost (struct nbdpool *p)
{
  bool silent;

  if (p->lost_at > 0)
    return;
  silent = report_silence (false);
  report_error ("%s: the connection is lost: trying to connect again for %u seconds",
                p->name, p->options.reconnect_ms / 1000);
  report_silence (silent);
  p->lost_at = clock_ms ();
}

static void
tell_back (struct nbdpool *p)
{
  const bool silent = report_silence (false);
  const int64_t ms = clock_ms () - p->lost_at;

  if (p->lost_at > 0)
    report_error ("%s: the connection was lost for %" PRId64 ".%03" PRId64 " seconds",
                  p->name, ms / 1000, ms % 1000);
  report_silence (silent);
  p->lost_at = 0;
  p->gone = false;
}

/* With the lock held: the one with the fewest users; a new one if all are busy.  The
 * others are of use only while the first one is there. */
static struct slot *
choose_slot (struct nbdpool *p)
{
  struct slot *best = &p->slots[0], *slot;

  if (best->link == NULL || nbdlink_is_dead (best->link))
    return best;
  for (unsigned i = 1; i < p->nr_slots; i++) {
    slot = &p->slots[i];
    if (slot->users < best->users && !slot->unwanted && !slot->connecting &&
        !slot->retiring && !(slot->users > 0 && nbdlink_is_dead (slot->link)))
      best = slot;
  }
  if (best->users < BUSY || p->nr_slots == p->max_slots)
    return best;
  return &p->slots[p->nr_slots++];
}

static bool
only_reads (enum nbdpool_kind kind)
{
  return kind == NBDPOOL_READ || kind == NBDPOOL_STATUS || kind == NBDPOOL_HOLES;
}

static bool
changes_something (enum nbdpool_kind kind)
{
  return kind == NBDPOOL_WRITE || kind == NBDPOOL_WRITE_FUA ||
    kind == NBDPOOL_ZERO || kind == NBDPOOL_ZERO_FAST || kind == NBDPOOL_PUNCH ||
    kind == NBDPOOL_DISCARD || kind == NBDPOOL_ZEROS;
}

/* Must a flush follow, once the server has answered?  (Until then, even a discard counts:
 * the server could carry it out later, when the space is used again.) */
static bool
needs_flush (enum nbdpool_kind kind, int err)
{
  return changes_something (kind) && kind != NBDPOOL_DISCARD &&
    (kind != NBDPOOL_WRITE_FUA || err != 0);
}

/* Would anything be lost if the server had lost everything that was not flushed? */
static bool
is_unflushed (const struct slot *slot)
{
  return slot->changing > 0 || slot->changes != slot->flushed;
}

/* R9: it is unknown which changes the server has kept.  The caller holds the lock. */
static void
lose_changes (struct nbdpool *p)
{
  const bool silent = report_silence (false);

  if (!p->lost)
    report_error ("%s: the connection broke with writes that were not flushed: they may "
                  "be lost, and nothing more is written", p->name);
  report_silence (silent);
  p->lost = true;
}

/* Is it of use for a request?  The first change after a flush must not be sent in vain:
 * it would be lost, and nothing else is.  (Reads are sent again.) */
static bool
is_alive (const struct slot *slot, enum nbdpool_kind kind)
{
  return slot->link && !(changes_something (kind) && !is_unflushed (slot)
                         ? nbdlink_has_hung_up (slot->link)
                         : nbdlink_is_dead (slot->link));
}

/* How long one request waits for connections. */
struct patience {
  int64_t deadline;             /* 0: it has not had to wait */
  int64_t pause;                /* before it tries again */
  bool alone;                   /* no client waits for it */
};

/* The time counts from the loss, not from the request: one that comes later, perhaps
 * because it has waited for another one that failed, tries once.  With the lock held. */
static void
patience_begin (const struct nbdpool *p, struct patience *w)
{
  if (w->deadline > 0)
    return;
  w->deadline = (p->lost_at > 0 ? p->lost_at : clock_ms ()) + p->options.reconnect_ms;
  w->pause = FIRST_PAUSE_MS;
}

/* How many milliseconds may it still wait? */
static int64_t
patience_left (struct nbdpool *p, struct patience *w)
{
  int64_t now = clock_ms ();

  patience_begin (p, w);
  if (!w->alone && !storage_link_is_wanted (&p->options)) {
    w->alone = true;
    now += p->gone ? 0 : storage_link_alone_ms (&p->options);
    if (w->deadline > now)
      w->deadline = now;
  }
  return w->deadline - clock_ms ();
}

static struct slot *
give_up (struct nbdpool *p)
{
  p->gone = true;
  report_error ("%s: the connection is lost, and there was no other within %u seconds",
                p->name, p->options.reconnect_ms / 1000);
  errno = EIO;
  return NULL;
}

/* The first connection is that to a server that was perhaps restarted.  Before anything
 * is read from it: has one of the others carried changes to the old server?  With the
 * lock held. */
static void
find_losses (struct nbdpool *p)
{
  struct slot *slot;

  for (slot = p->slots + 1; slot < p->slots + p->nr_slots; slot++)
    if (slot->link && is_unflushed (slot) && nbdlink_has_hung_up (slot->link))
      lose_changes (p);
}

/* For a connection beside the first one, which may take MS longer than that one took. */
static int64_t
timeout_beside (const struct nbdpool *p, int64_t ms)
{
  return min64 (p->options.connect_timeout_ms, ms + 4 * p->connect_ms);
}

/* How long one attempt to connect may take, with so much time LEFT: if none is, so long
 * that it succeeds if the server is there, provided that a client waits. */
static int64_t
attempt_ms (const struct nbdpool *p, const struct patience *w, int64_t left)
{
  const int64_t least = w->alone ? 1
    : min64 (timeout_beside (p, MORE_MS), p->options.reconnect_ms);

  return min64 (max64 (max64 (left, least), 1), p->options.connect_timeout_ms);
}

/* Makes the first connection anew, in the time that is LEFT.  With the lock held. */
static void
reconnect (struct nbdpool *p, struct patience *w, int64_t left)
{
  struct slot *slot = &p->slots[0];

  if (slot->link) {
    if (is_unflushed (slot))
      lose_changes (p);
    tell_lost (p);
  }
  if (connect_slot (p, slot, attempt_ms (p, w, left)) == 0) {
    find_losses (p);
    return;
  }
  /* Others wait for this thread. */
  slot->connecting = true;
  left = patience_left (p, w);
  if (left > 0)
    wait_settled (p, min64 (w->pause, left));
  w->pause = min64 (2 * w->pause, LONGEST_PAUSE_MS);
  slot->connecting = false;
  pthread_cond_broadcast (&p->settled);
}

/* One that there is beside the first one.  With the lock held. */
static void
connect_more (struct nbdpool *p, struct slot *slot)
{
  if (slot->link && is_unflushed (slot))
    lose_changes (p);
  if (connect_slot (p, slot, timeout_beside (p, MORE_MS)) == 0)
    return;
  slot->unwanted = true;        /* the server admits no more: fewer must do */
  p->max_slots = p->nr_slots;
}

/* A connection for a request, to be released.  NULL: EIO; the reason was reported. */
static struct slot *
acquire (struct nbdpool *p, enum nbdpool_kind kind, struct patience *w)
{
  struct slot *slot;
  bool tried = false;
  int64_t left;
  LOCK_FOR_BLOCK (&p->lock);

  for (;;) {
    if (p->lost && !only_reads (kind)) {        /* perhaps found out just now */
      errno = EIO;
      return NULL;
    }
    slot = choose_slot (p);
    if (slot->retiring) {       /* for a moment: the server answers */
      wait_settled (p, ASK_MS);
      continue;
    }
    if (is_alive (slot, kind)) {
      tell_back (p);
      slot->users++;
      slot->changing += changes_something (kind);
      return slot;
    }
    if (slot != &p->slots[0]) {
      if (slot->users > 0)
        wait_settled (p, ASK_MS);
      else
        connect_more (p, slot);
      continue;
    }
    left = patience_left (p, w);
    if (left <= 0 && tried)
      return give_up (p);
    if (slot->connecting || slot->users > 0)
      wait_settled (p, min64 (attempt_ms (p, w, left), ASK_MS));
    else
      reconnect (p, w, left);
    tried = true;
  }
}

/* ERR is the result of the request: 0 or an errno; ENOTCONN: no reply came. */
static void
release (struct nbdpool *p, struct slot *slot, enum nbdpool_kind kind, int err)
{
  LOCK_FOR_BLOCK (&p->lock);

  if (err == ENOTCONN && is_unflushed (slot))
    lose_changes (p);
  p->gone |= err == ENOTCONN && nbdlink_is_given_up (slot->link);
  if (changes_something (kind)) {
    slot->changing--;
    slot->changes += needs_flush (kind, err);
  }
  if (--slot->users == 0)
    pthread_cond_broadcast (&p->settled);
}

/* --- one request --- */

static int
send_once (struct nbdlink *link, const struct nbdpool_request *q)
{
  switch (q->kind) {
  case NBDPOOL_READ: return nbdlink_read (link, q->buf, q->count, q->offset);
  case NBDPOOL_WRITE: return nbdlink_write (link, q->buf, q->count, q->offset, false);
  case NBDPOOL_WRITE_FUA: return nbdlink_write (link, q->buf, q->count, q->offset, true);
  case NBDPOOL_FLUSH: break;    /* flush has its own function */
  case NBDPOOL_ZERO: return nbdlink_zero (link, q->count, q->offset, NBDLINK_KEEP);
  case NBDPOOL_ZERO_FAST: return nbdlink_zero (link, q->count, q->offset, NBDLINK_FAST);
  case NBDPOOL_DISCARD:
  case NBDPOOL_PUNCH: return nbdlink_zero (link, q->count, q->offset, NBDLINK_FREE);
  case NBDPOOL_STATUS:
    return nbdlink_status (link, q->count, q->offset, q->parts->room == 1, NBDLINK_ZEROS,
                           q->parts);
  case NBDPOOL_HOLES:
    return nbdlink_status (link, q->count, q->offset, false, NBDLINK_HOLES, q->parts);
  case NBDPOOL_ZEROS:           /* of several extents, perhaps */
    return nbdlink_status (link, q->count, q->offset, false, NBDLINK_ZEROS, q->parts);
  }
  abort ();
}

/* Returns 0, or -1 with errno.  Requests that only read are sent again on a new
 * connection. */
static int
send (struct nbdpool *p, const struct nbdpool_request *q)
{
  struct patience w = { 0 };
  struct slot *slot;
  bool again;
  int err;

  do {
    slot = acquire (p, q->kind, &w);
    if (slot == NULL)
      return -1;
    err = send_once (slot->link, q) == 0 ? 0 : errno;
    release (p, slot, q->kind, err);
    again = err == ENOTCONN && !changes_something (q->kind) &&
      (w.deadline == 0 || clock_ms () < w.deadline);
    if (again) {
      LOCK_FOR_BLOCK (&p->lock);
      patience_begin (p, &w);
    }
  } while (again);
  errno = err == ENOTCONN ? EIO : err;
  return err ? -1 : 0;
}

/* --- many reads at once --- */

/* A connection that is there, to be released; NULL: there is none now. */
static struct slot *
acquire_now (struct nbdpool *p)
{
  struct slot *slot;
  LOCK_FOR_BLOCK (&p->lock);

  slot = choose_slot (p);       /* acquire makes those that are yet to be made */
  if (slot->retiring || !is_alive (slot, NBDPOOL_READ))
    return NULL;
  slot->users++;
  return slot;
}

bool
nbdpool_read_begin (struct nbdpool *p, struct nbdpool_read *r, void *buf, uint64_t count,
                    uint64_t offset)
{
  r->slot = acquire_now (p);
  if (r->slot == NULL)
    return false;
  /* While a slot has users, its link stays. */
  nbdlink_read_begin (r->slot->link, &r->call, buf, count, offset);
  return true;
}

int
nbdpool_read_end (struct nbdpool *p, struct nbdpool_read *r)
{
  const int err = nbdlink_read_end (r->slot->link, &r->call) == 0 ? 0 : errno;

  release (p, r->slot, NBDPOOL_READ, err);
  errno = err;
  return err ? -1 : 0;
}

/* --- flushing --- */

struct flush {
  struct slot *slot;
  struct nbdlink *link;
  uint64_t changes;             /* that the flush covers */
  struct nbdlink_call call;
};

/* Chooses the connections that must reply.  Without any, all changes have been
 * flushed. */
static int
choose_flushes (struct nbdpool *p, struct flush f[MAX_LINKS])
{
  struct slot *slot;
  int n = 0;
  LOCK_FOR_BLOCK (&p->lock);

  for (unsigned i = 0; i < p->nr_slots; i++) {
    slot = &p->slots[i];
    if (slot->link && slot->changes != slot->flushed) {
      slot->users++;
      f[n++].slot = slot;
    }
  }
  return n;
}

/* While a slot has users, its link stays. */
static void
begin_flush (struct nbdpool *p, struct flush *f)
{
  pthread_mutex_lock (&p->lock);
  f->link = f->slot->link;
  f->changes = f->slot->changes;
  pthread_mutex_unlock (&p->lock);
  nbdlink_flush_begin (f->link, &f->call);
}

/* Returns 0 or an errno. */
static int
end_flush (struct nbdpool *p, struct flush *f)
{
  const int err = nbdlink_flush_end (f->link, &f->call) == 0 ? 0 : errno;

  release (p, f->slot, NBDPOOL_FLUSH, err);
  if (err == 0) {
    pthread_mutex_lock (&p->lock);
    f->slot->flushed = max64 (f->slot->flushed, f->changes);
    pthread_mutex_unlock (&p->lock);
  }
  return err;
}

/* No memory to send a flush is no harm, and a lost connection may be none. */
static unsigned
gravity (int err)
{
  return err == 0 ? 0 : err == ENOMEM ? 1 : err == ENOTCONN ? 2 : 3;
}

static int
flush (struct nbdpool *p)
{
  struct flush f[MAX_LINKS];
  const int n = choose_flushes (p, f);
  int i, err, worst = 0;

  for (i = 0; i < n; i++)
    begin_flush (p, &f[i]);
  for (i = 0; i < n; i++) {
    err = end_flush (p, &f[i]);
    if (gravity (err) > gravity (worst))
      worst = err;
  }
  if (worst == 0 && !p->lost)
    return 0;
  errno = p->lost ? EIO : worst;
  return -1;
}

/* If the connection is lost, but another flush was quicker, nothing is lost. */
static int
send_flush (struct nbdpool *p)
{
  int r;

  do
    r = flush (p);
  while (r == -1 && errno == ENOTCONN);
  return r;
}

int
nbdpool_send (struct nbdpool *p, const struct nbdpool_request *q)
{
  return q->kind == NBDPOOL_FLUSH ? send_flush (p) : send (p, q);
}

/* --- growth --- */

/* Flushes what was changed through SLOT.  With the lock held, which is dropped
 * meanwhile. */
static int
flush_slot (struct nbdpool *p, struct slot *slot)
{
  struct flush f = { .slot = slot };
  int err;

  slot->users++;
  pthread_mutex_unlock (&p->lock);
  begin_flush (p, &f);
  err = end_flush (p, &f);
  pthread_mutex_lock (&p->lock);
  errno = err == ENOTCONN ? EIO : err;
  return err ? -1 : 0;
}

/* Puts LINK, or none, into SLOT, once no request uses the old one and everything that was
 * changed through it is flushed.  If it cannot be flushed, returns -1, and the old one
 * stays; but no dead one stays where there is to be none.  With the lock held, which is
 * dropped meanwhile. */
static int
replace_link (struct nbdpool *p, struct slot *slot, struct nbdlink *link)
{
  int r = 0;

  slot->retiring = true;
  while (slot->users > 0 || slot->connecting || (r == 0 && is_unflushed (slot)))
    if (slot->users > 0 || slot->connecting)
      wait_settled (p, ASK_MS);
    else if (slot->link == NULL) {      /* it broke meanwhile */
      errno = EIO;
      r = -1;
    }
    else
      r = flush_slot (p, slot);
  if (r == 0 || (link == NULL && slot->link && nbdlink_is_dead (slot->link))) {
    struct nbdlink *const old = slot->link;

    if (is_unflushed (slot))
      lose_changes (p);
    slot->link = link;
    pthread_mutex_unlock (&p->lock);
    nbdlink_close (old);
    pthread_mutex_lock (&p->lock);
  }
  slot->retiring = false;
  pthread_cond_broadcast (&p->settled);
  return r;
}

int
nbdpool_grow (struct nbdpool *p, uint64_t *size)
{
  const uint64_t before = p->size;
  struct nbdlink *link;
  int r;

  *size = before;
  if (p->lost || nbdlink_open (p->uri, p->name, timeout_beside (p, GROWN_MS), true,
                               &p->options, &link) == -1)
    return 0;
  if (nbdlink_info (link)->size == before || !is_same_export (p, nbdlink_info (link))) {
    nbdlink_close (link);
    return 0;
  }
  *size = nbdlink_info (link)->size;
  pthread_mutex_lock (&p->lock);
  r = replace_link (p, &p->slots[0], link);
  if (r == -1)
    nbdlink_close (link);
  /* The others are made anew when they are needed. */
  for (unsigned i = 1; r == 0 && i < p->nr_slots; i++)
    r = replace_link (p, &p->slots[i], NULL);
  if (r == 0)
    p->size = *size;
  else
    *size = before;
  pthread_mutex_unlock (&p->lock);      /* keeps errno */
  return r;
}

int
nbdpool_disconnect (struct nbdpool *p)
{
  int r = 0, err = 0;
  LOCK_FOR_BLOCK (&p->lock);

  for (unsigned i = 0; i < p->nr_slots; i++)
    if (replace_link (p, &p->slots[i], NULL) == -1) {
      r = -1;
      if (err == 0 || err == ENOMEM)
        err = errno;
    }
  errno = err;
  return r;
}

void
nbdpool_cache (struct nbdpool *p, uint64_t count, uint64_t offset)
{
  struct slot *slot;
  LOCK_FOR_BLOCK (&p->lock);

  slot = choose_slot (p);
  if (slot->link && !nbdlink_is_dead (slot->link))
    nbdlink_cache (slot->link, count, offset);
}

/* --- opening --- */

struct nbdpool *
nbdpool_open (const char *uri, const char *name,
              const struct storage_link_options *options)
{
  struct nbdpool *p = calloc (1, sizeof *p);
  const int64_t began = clock_ms ();

  if (p == NULL || (p->uri = strdup (uri)) == NULL ||
      (p->name = strdup (name)) == NULL) {
    report_error ("%s: cannot connect: %m", name);
    if (p)
      free (p->uri);
    free (p);
    return NULL;
  }
  p->options = *options;
  pthread_mutex_init (&p->lock, NULL);
  clock_init_condition (&p->settled);
  p->nr_slots = 1;
  if (nbdlink_open (p->uri, p->name, options->connect_timeout_ms, false, options,
                    &p->slots[0].link) == -1) {
    KEEP_ERRNO_FOR_BLOCK;

    nbdpool_close (p);
    return NULL;
  }
  p->connect_ms = clock_ms () - began;
  p->info = *nbdlink_info (p->slots[0].link);
  p->size = p->info.size;
  p->max_slots = p->info.multi_conn ? MAX_LINKS : 1;
  return p;
}

void
nbdpool_close (struct nbdpool *p)
{
  unsigned i;

  for (i = 0; i < p->nr_slots; i++)
    nbdlink_close (p->slots[i].link);
  pthread_cond_destroy (&p->settled);
  pthread_mutex_destroy (&p->lock);
  free (p->name);
  free (p->uri);
  free (p);
}

const struct nbdlink_info *
nbdpool_info (const struct nbdpool *p)
{
  return &p->info;
}

const char *
nbdpool_uri (const struct nbdpool *p)
{
  return p->uri;
}
