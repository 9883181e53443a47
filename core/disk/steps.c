/* SPDX-License-Identifier: BSD-3-Clause
 *
 * How does a disk go from one state to the next?
 *
 * Clients that may write come and leave; the first one makes the disk writable, and after
 * the last one it comes to rest.  And the disk changes as a whole, whether clients are
 * connected or not (disk_change).  All of these are steps, taken one after the other.
 * disk-impl.h tells what happens in a change, and why.
 *
 * Until the first client comes that may write, nothing in the file changes, and only the
 * reader's lock is held.  After the last such client has left, the disk is settled: the
 * image is then clean, durable and without leaks.  The writer's lock stays.  If there was
 * no space for that, the checkpoints of the timer go on, so that everything is durable
 * soon after there is some.  The rest is done when the next such client leaves, or at the
 * end.
 *
 * The gate.  A request that changes the disk enters a section (changes), and then looks
 * whether the gate is open.  A change closes the gate first, and takes a stamp
 * then.  So, in the one order of these accesses (epoch.c), either the request finds the
 * gate closed, leaves its section and waits, or its section was entered before the
 * stamp, and is waited for.
 *
 * Requests that read pass without looking, and the gate does not wait for them.  Each
 * request enters a section of another kind (epoch) before it looks which generation is
 * the present one: when a stamp that was taken after a generation was replaced has
 * passed, no request uses it.  The gate opens before that: what the old generation used
 * alone is then a deferred free of the new one, and clients do not wait for a reader.
 * Flushes, which may run a whole checkpoint, enter sections of their own (flushes), so
 * that they do not delay the reuse of what they free.
 *
 * A change of the disk waits for those readers; but if clients write, not for one that
 * hangs: then a thread waits for it, and frees the old generation.
 *
 * Locks: `steps' is held for a whole step, also during I/O; only clients that want to
 * write, and those who change the disk, wait for it.  If clients write, it is not held
 * while a change waits for readers: clients come and leave, and another change finds
 * deferred what is not free yet, and waits for that, or is refused.  Without clients that
 * write it is: no data structure then shows that this is not free, and a client that
 * wants to write waits until the readers have ended.  `lock' is taken for moments, also
 * within `steps'.
 */

#include <config.h>

#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "util/cleanup.h"
#include "util/clock.h"
#include "util/memory.h"
#include "util/report.h"
#include "disk/exportkind.h"

/* Tells that the disk has come so far in a change. */
static void
trace (const struct disk *d, const char *what)
{
  report_trace (TRACE_CHANGE, "%s: change: %s, after %" PRId64 " ms", d->options.path, what,
                clock_ms () - d->change_began);
}

/* --- the gate --- */

/* Waits until all have left that entered before now.  False: some have not, at that time
 * (clock_ms). */
static bool
drain_until (struct epoch *epoch, int64_t deadline)
{
  const struct timespec moment = { .tv_nsec = 50000 };
  const uint64_t stamp = epoch_stamp (epoch);

  while (!epoch_passed (epoch, stamp)) {
    if (clock_ms () >= deadline)
      return false;
    nanosleep (&moment, NULL);
  }
  return true;
}

static void
drain (struct epoch *epoch)
{
  drain_until (epoch, INT64_MAX);
}

static void
close_gate (struct disk *d)
{
  {
    LOCK_FOR_BLOCK (&d->lock);

    d->closers++;
    atomic_store (&d->closed, true);
  }
  drain (d->changes);
  trace (d, "the gate is closed, requests that change the disk have ended");
}

static void
open_gate (struct disk *d)
{
  LOCK_FOR_BLOCK (&d->lock);

  if (--d->closers > 0)
    return;
  atomic_store (&d->closed, false);
  pthread_cond_broadcast (&d->opened);
  trace (d, "the gate is open");
}

void
disk_wait_at_gate (struct disk *d)
{
  LOCK_FOR_BLOCK (&d->lock);

  while (d->closed)
    pthread_cond_wait (&d->opened, &d->lock);
}

void
disk_drain (struct disk *d)
{
  drain (d->changes);
}

int
disk_record (struct disk *d, struct dirtyset *set)
{
  LOCK_FOR_BLOCK (&d->steps);

  if (set && atomic_load (&d->record))
    return report_refusal (EBUSY, "%s: another job follows the disk already",
                           d->options.path);
  atomic_store (&d->record, set);
  drain (d->changes);
  return 0;
}

/* (If something is wrong with the disk, the change will meet it, too.) */
void
disk_close_gate (struct disk *d)
{
  {
    LOCK_FOR_BLOCK (&d->steps);
    const bool before = report_silence (true);

    d->change_began = clock_ms ();
    if (d->writers > 0)
      generation_prepare_to_settle (d->now);
    report_silence (before);
  }
  close_gate (d);
}

void
disk_open_gate (struct disk *d)
{
  open_gate (d);
}

void
disk_meanwhile (struct disk *d, void (*fn) (void *opaque, const struct image *),
                void *opaque)
{
  LOCK_FOR_BLOCK (&d->steps);

  fn (opaque, d->now->image);
}

int
disk_hold (struct disk *d, int (*fn) (void *opaque), void *opaque)
{
  int r;
  LOCK_FOR_BLOCK (&d->steps);

  d->change_began = clock_ms ();
  close_gate (d);
  r = fn (opaque);
  KEEP_ERRNO_FOR_BLOCK;
  open_gate (d);
  return r;
}

/* --- no request uses the generation before --- */

/* How long a change waits for readers, if clients write; and how many
 * threads wait for others.  (With more, it waits as long as they take.) */
#define PATIENCE_MS 1000
#define MOST_RELEASES 16

/* A thread that waits for readers. */
struct release {
  struct release *next;
  struct disk *disk;
  struct generation *old;
  pthread_t thread;
  bool ended;                   /* under steps */
};

/* Frees what only the generation OLD used.  LIVE: as deferred frees. */
static void
free_old (struct disk *d, const struct disk_change *c, struct generation *old, bool live)
{
  trace (d, "no request uses the generation before");
  readahead_end (old->readahead);
  generation_end_writing (old);
  if (live && d->now->is_live)
    checkpoint_reap (d->now->w.checkpoint);     /* (A failure has been reported.) */
  else if (!live && c->release)
    c->release (c->opaque, NULL);
  generation_drop (old);
  trace (d, "what only that used is free");
}

static void *
release_later (void *opaque)
{
  struct release *r = opaque;

  drain (r->disk->epoch);
  drain (r->disk->flushes);
  LOCK_FOR_BLOCK (&r->disk->steps);

  free_old (r->disk, NULL, r->old, true);
  r->ended = true;
  return NULL;
}

/* Joins the threads that have ended, or with steps free, ALL. */
static unsigned
join_releases (struct disk *d, bool all)
{
  unsigned left = 0;

  for (struct release **link = &d->releases, *r; (r = *link) != NULL; ) {
    if (!all && !r->ended) {
      left++;
      link = &r->next;
      continue;
    }
    pthread_join (r->thread, NULL);
    *link = r->next;
    free (r);
  }
  return left;
}

/* Signals are for others.  False: there is no thread for that. */
static bool
begin_release (struct disk *d, struct generation *old)
{
  struct release *r = join_releases (d, false) < MOST_RELEASES ? malloc (sizeof *r) : NULL;
  sigset_t all, before;
  int err;

  if (r == NULL)
    return false;
  *r = (struct release) { .next = d->releases, .disk = d, .old = old };
  sigfillset (&all);
  pthread_sigmask (SIG_SETMASK, &all, &before);
  err = pthread_create (&r->thread, NULL, release_later, r);
  pthread_sigmask (SIG_SETMASK, &before, NULL);
  if (err)
    free (r);
  else
    d->releases = r;
  return err == 0;
}

/* Have all requests ended that use the generation before, at that time?  LIVE: what it
 * alone used is deferred, safe from other steps, which are taken meanwhile. */
static bool
wait_for_readers (struct disk *d, bool live, int64_t deadline)
{
  bool r;

  if (live)
    pthread_mutex_unlock (&d->steps);
  r = drain_until (d->epoch, deadline) && drain_until (d->flushes, deadline);
  if (live)
    pthread_mutex_lock (&d->steps);
  return r;
}

/* The last step, while clients go on: frees what only the generation OLD used. */
static void
release (struct disk *d, const struct disk_change *c, struct generation *old)
{
  const bool live = d->now->is_live;    /* it may be replaced while this waits */

  if (live && !wait_for_readers (d, true, clock_ms () + PATIENCE_MS)) {
    trace (d, "a reader is late");
    if (begin_release (d, old))
      return;
  }
  wait_for_readers (d, live, INT64_MAX);
  free_old (d, c, old, live);
}

/* --- becoming writable, and coming to rest --- */

const char *
disk_why_readonly (struct disk *d)
{
  LOCK_FOR_BLOCK (&d->lock);

  return d->why_fixed ? d->why_fixed : d->now->why_unrecorded;
}

const char *
disk_why_fixed (const struct disk *d)
{
  return d->why_fixed;
}

/* If there was no space to recover, perhaps there is some now. */
static void
allow_recovery (struct disk *d)
{
  if (d->no_space_to_recover)
    d->why_fixed = NULL;
  d->no_space_to_recover = false;
}

/* May the disk become writable?  If not, the first caller gets a message. */
static bool
may_write (struct disk *d)
{
  allow_recovery (d);
  if (disk_why_readonly (d) == NULL)
    return true;
  if (!d->told_readonly)
    report_event (EVENT_READ_ONLY, d->options.path, "served read-only: %s",
                  disk_why_readonly (d));
  d->told_readonly = true;
  return false;
}

static int
make_writable (struct generation *g)
{
  const enum image_role before = image_role (g->image);

  if (health_check (g->image->health) == -1 || generation_lock (g) == -1)
    return -1;
  if (generation_become_writable (g) == 0)
    return 0;
  KEEP_ERRNO_FOR_BLOCK;
  image_lock (g->image, before);
  return -1;
}

static int
become_writable (struct disk *d)
{
  if (d->now->is_live)
    return 0;
  if (make_writable (d->now) == -1)
    return -1;
  atomic_store (&d->current, &d->now->live);
  return 0;
}

int
disk_connect (struct disk *d, bool *writable)
{
  if (!*writable)
    return 0;
  LOCK_FOR_BLOCK (&d->steps);

  *writable = may_write (d);
  if (!*writable)
    return 0;
  if (become_writable (d) == -1) {
    *writable = false;
    return d->why_fixed ? 0 : -1;
  }
  if (d->writers++ == 0)
    checkpoint_start_timer (d->now->w.checkpoint);
  return 0;
}

static bool
is_healthy (const struct disk *d)
{
  return health_check (d->now->image->health) == 0;
}

/* If there was no space for what clients have written, the timer goes on without them:
 * the next one may never come.  Keeps errno. */
static void
keep_trying (struct disk *d)
{
  KEEP_ERRNO_FOR_BLOCK;

  if (d->restless && is_healthy (d))
    checkpoint_start_timer (d->now->w.checkpoint);
}

static int
come_to_rest (struct disk *d)
{
  int r;

  readahead_end (d->now->readahead);
  r = generation_settle (d->now);
  d->restless = r == -1;
  d->no_space = r == -1 && storage_may_try_again (errno);
  keep_trying (d);
  return r;
}

int
disk_disconnect (struct disk *d, bool writable)
{
  if (!writable)
    return 0;
  LOCK_FOR_BLOCK (&d->steps);

  return --d->writers > 0 ? 0 : come_to_rest (d);
}

static bool
lacks_space (struct disk *d)
{
  return d->writers == 0 && d->no_space && is_healthy (d);
}

static bool
may_settle (struct disk *d)
{
  return lacks_space (d) && !checkpoint_has_changes (d->now->w.checkpoint) &&
    !bitmap_is_unsettled (d->now->bitmaps);
}

bool
disk_lacks_space (struct disk *d)
{
  LOCK_FOR_BLOCK (&d->steps);
  return lacks_space (d);
}

bool
disk_may_settle (struct disk *d)
{
  LOCK_FOR_BLOCK (&d->steps);
  return may_settle (d);
}

void
disk_settle (struct disk *d)
{
  LOCK_FOR_BLOCK (&d->steps);

  if (may_settle (d))
    come_to_rest (d);
}

int
disk_end (struct disk *d)
{
  int r = 0;

  join_releases (d, true);
  readahead_end (d->now->readahead);
  /* There may be space on the host now (R9). */
  if (d->writers > 0 || d->restless)
    r = generation_settle (d->now);
  if (r == -1 && storage_may_try_again (errno) && l2_dirty_beyond (d->now->w.l2, 0))
    report_error ("%s: the changes since the last flush are lost: there was no space or "
                  "memory for them", d->options.path);
  return r;
}

/* Unless a writer has done so. */
static int
lock_image (struct disk *d)
{
  return d->now->is_live ? 0 : generation_lock (d->now);
}

/* DATA_FILE: the change is possible with one. */
static int
check_change (struct disk *d, bool data_file)
{
  const char *why;

  allow_recovery (d);
  why = d->why_fixed;
  if (why == NULL && !data_file && d->now->image->data)
    why = "it has an external data file";
  if (why == NULL)
    return health_check (d->now->image->health);
  return report_refusal (EPERM, "%s: the image cannot be changed: %s", d->options.path,
                         why);
}

int
disk_check (struct disk *d)
{
  LOCK_FOR_BLOCK (&d->steps);
  return health_check (d->now->image->health);
}

int
disk_lock (struct disk *d)
{
  LOCK_FOR_BLOCK (&d->steps);

  return check_change (d, true) == -1 ? -1 : lock_image (d);
}

void
disk_unlock (struct disk *d)
{
  LOCK_FOR_BLOCK (&d->steps);

  if (!d->now->is_live)
    image_lock (d->now->image, IMAGE_READER);
}

void
disk_allow_ahead (struct disk *d)
{
  if (d->may_read_ahead)        /* each client asks: it does not wait for a step */
    return;
  LOCK_FOR_BLOCK (&d->steps);

  d->may_read_ahead = true;
  readahead_allow (d->now->readahead);
}

void
disk_end_ahead (struct disk *d)
{
  readahead_end (d->now->readahead);
  map_end_ahead (d->map);
}

/* --- changes of the whole disk --- */

/* The same path, as long as the disk is open.  NULL: reported. */
static const char *
keep_path (struct disk *d, const char *path)
{
  struct toppath *p = d->paths;

  while (p && strcmp (p->text, path) != 0)
    p = p->next;
  if (p)
    return p->text;
  p = memory_get (sizeof *p + strlen (path) + 1);
  if (p == NULL)
    return NULL;
  strcpy (p->text, path);
  p->next = d->paths;
  d->paths = p;
  return p->text;
}

/* How often the next generation is read, while there is no memory for it. */
#define MOST_TRIES 3

/* The generation that the file describes after the change, or that this has made of it;
 * writable if there are writers.  NULL: reported. */
static struct generation *
read_next (struct disk *d, const struct disk_change *c)
{
  const bool replaced = c->top && c->over;
  struct image *again = replaced ? NULL : image_again (d->now->image);
  struct image *const top = c->top ? c->top : again;
  struct generation *next = NULL;
  struct layers *layers;

  if (again == NULL && !replaced)
    return NULL;
  layers = layers_over (top, top == again ? NULL : again,
                        c->over ? c->over : d->now->layers, 1);
  if (layers)
    next = generation_new (d, top, layers);
  image_close (again);          /* the generation is an owner of its own */
  if (next && d->writers > 0 && make_writable (next) == -1) {
    generation_free (next);
    next = NULL;
  }
  if (next && d->may_read_ahead)
    readahead_allow (next->readahead);
  return next;
}

/* The same.  Without a next generation the disk fails, so a moment without memory is
 * waited for.  *PATH: of the new top, by which the disk will be known. */
static struct generation *
read_surely (struct disk *d, const struct disk_change *c, const char **path)
{
  const struct timespec moment = { .tv_nsec = 10000000 };
  struct generation *next;

  for (unsigned tries = 1; ; tries++) {
    report_keep ();
    *path = c->top ? keep_path (d, storage_path (c->top->file)) : NULL;
    next = c->top && *path == NULL ? NULL : read_next (d, c);
    report_end_keeping (next == NULL && (errno != ENOMEM || tries == MOST_TRIES));
    if (next || errno != ENOMEM || tries == MOST_TRIES)
      return next;
    nanosleep (&moment, NULL);
  }
}

/* Requests that begin from now on see NEXT. */
static void
publish (struct disk *d, struct generation *next)
{
  image_adopt (next->image);
  {
    LOCK_FOR_BLOCK (&d->lock);

    stats_add_past (d);
    d->now = next;
    d->why_fixed = next->why_fixed;
    atomic_store (&d->current, next->is_live ? &next->live : &next->frozen);
    pthread_cond_broadcast (&d->opened);
  }
  d->told_readonly = d->no_space_to_recover = false;
  trace (d, "the next generation is published");
}

/* Another image, at PATH, is the top, and is written from now on; what parameters said
 * about files is void.  (Exports of the generation before may still read the image.) */
static void
put_below (struct disk *d, struct image *image, const char *path)
{
  image_lock (image, IMAGE_READER);
  d->threshold.bytes = 0;
  __atomic_store_n (&d->options.path, path, __ATOMIC_RELEASE);
  d->options.backing = BACKING_FOLLOW;
  d->options.backing_format = NULL;
  d->options.data_file = DATA_FILE_FOLLOW;
}

/* Nothing has changed.  Failed changes may have used free space. */
static void
keep_generation (struct disk *d)
{
  KEEP_ERRNO_FOR_BLOCK;

  trace (d, "nothing is changed");
  /* (After a switch that failed, the file may use what was set aside.) */
  if (!d->now->is_live || !is_healthy (d))
    return;
  alloc_end_aside (d->now->w.alloc);
  if (!d->restless)
    alloc_doubt_zeros (d->now->w.alloc);
  if (d->writers > 0)
    checkpoint_start_timer (d->now->w.checkpoint);
}

/* After the switch: what is changed is durable, whatever happens to the disk now.  If no
 * file has changed, the disk goes on as before without a next generation.  -1: it does.
 * *REPLACED: the generation before, unless it stays. */
static int
go_on (struct disk *d, const struct disk_change *c, struct generation **replaced)
{
  const char *path;
  struct generation *const old = d->now, *const next = read_surely (d, c, &path);

  if (next == NULL && (c->top || c->unchanged)) {
    d->why_fixed = NULL;        /* (That was about the next one.) */
    d->told_readonly = d->no_space_to_recover = false;
    keep_generation (d);
    return -1;
  }
  if (next == NULL) {           /* its readers keep what they have */
    health_fail (old->image->health,
                 "the change was made, but the disk could not be opened again after it");
    return 0;
  }
  publish (d, next);
  *replaced = old;
  if (c->moved)
    c->moved (c->opaque, old->image);
  if (c->top)
    put_below (d, old->image, path);
  else if (c->over) {           /* what parameters said about another one is void */
    d->options.backing = BACKING_FOLLOW;
    d->options.backing_format = NULL;
  }
  if (next->is_live) {
    if (c->release)
      c->release (c->opaque, next->w.alloc);
    checkpoint_start_timer (next->w.checkpoint);
  }
  return 0;
}

static int
settle (struct disk *d)
{
  return d->now->is_live ? come_to_rest (d) : 0;
}

/* The disk is writable, and no client changes it. */
static int
write_first (struct disk *d, const struct disk_change *c)
{
  int r, err;

  if (c->write == NULL || (c->needs_write && !c->needs_write (c->opaque, &d->now->frozen)))
    return 0;
  if (become_writable (d) == -1)
    return -1;
  r = c->write (c->opaque, &d->now->live);
  err = errno;
  if (settle (d) == -1)
    return -1;
  errno = err;
  return r;
}

/* Brings the image to rest, and changes it. */
static int
make_change (struct disk *d, const struct disk_change *c)
{
  if (settle (d) == -1 || write_first (d, c) == -1 ||
      health_begin_switch (d->now->image->health) == -1)
    return -1;
  trace (d, "the image is at rest");
  if (c->make && c->make (c->opaque, d->now->image) == -1)
    return -1;
  trace (d, "the image is switched");
  return 0;
}

/* With the gate closed.  *REPLACED: the generation before; NULL: it stays. */
static int
change (struct disk *d, const struct disk_change *c, struct generation **replaced)
{
  /* (It may be replaced.) */
  struct image *const image = image_ref (d->now->image);
  int r;

  *replaced = NULL;
  if (make_change (d, c) == 0)
    r = go_on (d, c, replaced);
  else {
    keep_generation (d);
    r = -1;
  }
  health_end_switch (image->health);
  image_close (image);
  return r;
}

/* Clients that write go on until the gate closes. */
static int
prepare (struct disk *d, const struct disk_change *c)
{
  if (d->writers == 0)
    return 0;
  if (c->prepare)
    c->prepare (c->opaque, d->now->image);
  if (generation_prepare_to_settle (d->now) == 0)
    return 0;
  KEEP_ERRNO_FOR_BLOCK;

  if (is_healthy (d))
    alloc_end_aside (d->now->w.alloc);
  return -1;
}

static int
change_all (struct disk *d, const struct disk_change *c)
{
  struct generation *replaced;
  int r;

  if (prepare (d, c) == -1)
    return -1;
  close_gate (d);
  r = change (d, c, &replaced);
  KEEP_ERRNO_FOR_BLOCK;
  open_gate (d);
  if (replaced)
    release (d, c, replaced);
  return r;
}

int
disk_change (struct disk *d, const struct disk_change *c)
{
  int r;
  LOCK_FOR_BLOCK (&d->steps);

  if (check_change (d, c->data_file) == -1 || lock_image (d) == -1)
    return -1;
  d->change_began = clock_ms ();
  d->spacewait.changes++;
  r = change_all (d, c);
  d->spacewait.changes++;
  return r;
}
