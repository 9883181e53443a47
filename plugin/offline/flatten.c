/* SPDX-License-Identifier: BSD-3-Clause
 *
 * How does an image become independent of its backing chain?
 *
 * All data that is visible from the layers below is copied into the top image, by several
 * threads, each of which takes the next chunk of the disk.  The location of data is
 * resolved once for the whole chain (resolve.c), so each byte is read once, from the
 * layer that contains it, and the number of layers hardly matters.  copyup.c copies a
 * chunk; it skips clusters that the top image already has.
 *
 * No client is served in the meantime.  The order of steps, and the state of the image
 * after a crash:
 *
 *   copies, with checkpoints every few seconds     an overlay, with more data of its own
 *   quiesce                                        the same; all of it is durable
 *   backlink_remove                                independent
 *
 * The disk shows the same data at each moment.  If it is interrupted, the next run
 * resumes with the rest.  Zeros below are not copied: without a backing file, unallocated
 * clusters read as zeros.
 *
 * Internal snapshots lose their backing file, too.  Only data of the active disk is
 * copied, so an image is refused if one of its snapshots needs the layers below.
 *
 * Locks: job.lock guards what the threads share; the image's own rooms have their own
 * locks.
 */

#include <config.h>

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "util/bytes.h"
#include "util/cleanup.h"
#include "util/printable.h"
#include "util/report.h"
#include "image/backlink.h"
#include "request/copyup.h"
#include "disk/disk.h"
#include "offline/flatten.h"

#define THREADS 4

/* Chunks of the disk.  Their size is a power of two, at least MIN_CHUNK bytes, such that
 * there are at most MAX_CHUNKS. */
#define MIN_CHUNK (UINT64_C (4) << 20)
#define MAX_CHUNKS (UINT64_C (1) << 16)

/* A crash loses the work since the last checkpoint. */
#define CHECKPOINT_SECONDS 5
#define STEP_MILLISECONDS 100

/* Resolving longer parts of the chain at a time saves reads in every layer, if the memory
 * limit for mappings allows it. */
#define LONG_SLICE (UINT64_C (64) << 10)
#define MEMORY_FOR_LONG_SLICES (UINT64_C (4) << 20)

struct job {
  struct grace *grace;
  struct view view;
  uint64_t chunk;               /* size of a chunk, in bytes */

  pthread_mutex_t lock;
  pthread_cond_t ended;
  uint64_t next;                /* start of the next chunk; guarded by lock */
  uint64_t done, copied;        /* bytes; guarded by lock */
  unsigned running;             /* number of threads; guarded by lock */
  int error;                    /* errno of the first failure; guarded by lock */
};

/* --- copying --- */

static bool
take_chunk (struct job *j, uint64_t *start, uint64_t *end)
{
  LOCK_FOR_BLOCK (&j->lock);

  if (j->error != 0 || j->next >= j->view.size)
    return false;
  *start = j->next;
  *end = j->next = min64 (j->next + j->chunk, j->view.size);
  return true;
}

static void *
copy_chunks (void *opaque)
{
  CLEANUP_FREE void *scratch = malloc (COPYUP_PIECE);
  struct job *j = opaque;
  uint64_t start, end, copied;
  struct grace_pin pin;
  int r, err;

  while (take_chunk (j, &start, &end)) {
    copied = 0;
    r = -1;
    err = ENOMEM;
    /* If the host fails, for instance because it is full, all threads get the same error:
   * keep the messages. */
    report_keep ();
    if (scratch == NULL)
      nbdkit_error ("malloc: %m");
    else {
      pin = grace_enter (j->grace);
      r = copyup_range (&j->view, scratch, start, end, &copied);
      err = errno;
      grace_leave (j->grace, pin);
      checkpoint_relieve (j->view.w->checkpoint);
    }
    LOCK_FOR_BLOCK (&j->lock);
    report_end_keeping (r == 0 || j->error == 0);
    j->copied += copied;
    if (r == 0)
      j->done += end - start;
    else if (j->error == 0)
      j->error = err;
  }

  LOCK_FOR_BLOCK (&j->lock);
  j->running--;
  pthread_cond_signal (&j->ended);
  return NULL;
}

static void
add_milliseconds (struct timespec *t, long ms)
{
  t->tv_nsec += ms * 1000000;
  t->tv_sec += t->tv_nsec / 1000000000;
  t->tv_nsec %= 1000000000;
}

/* Called without the lock.  Errors are ignored: the threads, or the end of the flatten,
 * will meet them again. */
static void
make_durable (struct job *j, time_t *last)
{
  struct timespec now;

  clock_gettime (CLOCK_MONOTONIC, &now);
  if (*last == 0)
    *last = now.tv_sec;
  if (now.tv_sec - *last < CHECKPOINT_SECONDS)
    return;
  checkpoint_flush (j->view.w->checkpoint);
  clock_gettime (CLOCK_MONOTONIC, &now);
  *last = now.tv_sec;
}

/* Calls the callback.  Returns whether to continue. */
static bool
tell (const struct flatten_watch *watch, uint64_t done, uint64_t total, uint64_t copied)
{
  return watch == NULL || watch->step (watch->opaque, done, total, copied);
}

/* Reports progress while the threads work. */
static void
wait_for_threads (struct job *j, const struct flatten_watch *watch)
{
  struct timespec until;
  uint64_t done, copied;
  time_t durable = 0;
  bool running = true;

  while (running) {
    pthread_mutex_lock (&j->lock);
    clock_gettime (CLOCK_MONOTONIC, &until);
    add_milliseconds (&until, STEP_MILLISECONDS);
    while (j->running > 0 &&
           pthread_cond_timedwait (&j->ended, &j->lock, &until) == 0)
      ;
    running = j->running > 0;
    done = j->done;
    copied = j->copied;
    pthread_mutex_unlock (&j->lock);

    if (!tell (watch, done, j->view.size, copied)) {
      LOCK_FOR_BLOCK (&j->lock);
      if (j->error == 0 && j->done < j->view.size)
        j->error = EINTR;
    }
    if (running)
      make_durable (j, &durable);
  }
}

static void
run_threads (struct job *j, const struct flatten_watch *watch)
{
  pthread_t threads[THREADS];
  unsigned i, n = 0;
  int err = 0;

  for (i = 0; i < THREADS; i++) {
    pthread_mutex_lock (&j->lock);
    j->running++;
    pthread_mutex_unlock (&j->lock);
    err = pthread_create (&threads[n], NULL, copy_chunks, j);
    if (err == 0) {
      n++;
      continue;
    }
    LOCK_FOR_BLOCK (&j->lock);
    j->running--;
  }
  if (n == 0) {
    errno = err;
    nbdkit_error ("pthread_create: %m");
    j->error = err;
  }
  wait_for_threads (j, watch);
  for (i = 0; i < n; i++)
    pthread_join (threads[i], NULL);
  if (j->error == EINTR && j->done == j->view.size)
    j->error = 0;               /* too late to stop: the work is done */
}

/* ERR: errno.  Returns -1. */
static int
cut_short (const struct disk_options *o, const struct flatten_watch *watch, int err,
           uint64_t done, uint64_t size)
{
  nbdkit_error ("%s: flattening %s after %" PRIu64 " of %" PRIu64 " bytes of the disk%s",
                o->path, err == EINTR ? "was stopped" : "failed", done, size,
                watch && watch->image_goes ? ""
                : "; the next start with flatten=true resumes it");
  errno = err;
  return -1;
}

/* Copies all data of the disk that comes from the layers below. */
static int
copy_all (const struct disk_inside *in, const struct disk_options *o,
          const struct flatten_watch *watch, uint64_t *copied)
{
  const uint64_t slice = o->l2_cache >= MEMORY_FOR_LONG_SLICES
    ? max64 (o->l2_slice, LONG_SLICE) : o->l2_slice;
  struct job j = { .grace = in->grace, .view = *in->view, .chunk = MIN_CHUNK };
  pthread_condattr_t attr;

  while (j.view.size / j.chunk > MAX_CHUNKS)
    j.chunk *= 2;
  j.view.lower = layers_view_new (in->view->layers, 1, in->map, j.view.size, slice);
  if (j.view.lower == NULL)
    return -1;
  pthread_mutex_init (&j.lock, NULL);
  pthread_condattr_init (&attr);
  pthread_condattr_setclock (&attr, CLOCK_MONOTONIC);
  pthread_cond_init (&j.ended, &attr);
  pthread_condattr_destroy (&attr);

  run_threads (&j, watch);

  pthread_cond_destroy (&j.ended);
  pthread_mutex_destroy (&j.lock);
  layers_view_free (j.view.lower);
  *copied = j.copied;
  return j.error == 0 ? 0 : cut_short (o, watch, j.error, j.done, j.view.size);
}

/* --- is it allowed? --- */

static int
refuse (const struct disk_options *o, const char *why, const char *what)
{
  nbdkit_error ("%s: the image cannot be flattened: %s%s", o->path, why, what);
  errno = EPERM;
  return -1;
}

/* Does the disk of this snapshot show data of lower layers?  1, 0, or -1 (reported). */
static int
needs_below (const struct disk_inside *in, const struct disk_options *o,
             const struct snapshot *s)
{
  struct layers_view *v =
    layers_view_new_snapshot (in->view->layers, in->map, s->l1_offset, s->disk_size,
                              o->l2_slice);
  uint64_t at;
  struct run run;
  int r = 0;

  if (v == NULL)
    return -1;
  for (at = 0; r == 0 && at < s->disk_size; at += run.len) {
    r = layers_lookup (v, at, s->disk_size - at, &run);
    if (r == 0)
      r = run.layer > 0 && run.kind != RUN_ZERO;
  }
  layers_view_free (v);
  return r;
}

static int
check_snapshots (const struct disk_inside *in, const struct image *image,
                 const struct disk_options *o)
{
  const struct header *h = &image->header;
  char name[PRINTABLE_SIZE (64)];
  const struct snapshot *s;
  unsigned i;
  int r;

  for (i = 0; i < image->snapshots.n; i++) {
    s = &image->snapshots.list[i];
    r = s->disk_size > (uint64_t) s->l1_entries << (h->cluster_bits + h->l2_bits)
      ? 1 : needs_below (in, o, s);
    if (r == -1)
      return -1;
    if (r == 1)
      return refuse (o, "an internal snapshot needs the backing file: ",
                     printable (s->name, strlen (s->name), name, sizeof name));
  }
  return 0;
}

/* --- the whole change --- */

static int
flatten (struct disk *d, struct image *image, const struct disk_options *o,
         const struct flatten_watch *watch, uint64_t *copied)
{
  struct disk_inside in = disk_inside (d);
  bool writable = true;
  int r, ended, err;

  if (disk_why_readonly (d))
    return refuse (o, disk_why_readonly (d), "");
  if (image->header.incompatible & QCOW2_INCOMPAT_DATA_FILE)
    return refuse (o, "it has an external data file", "");
  if (check_snapshots (&in, image, o) == -1)
    return -1;
  /* Ask before this: connecting writes to an image that is dirty or has bitmaps. */
  if (!tell (watch, 0, in.view->size, 0))
    return cut_short (o, watch, EINTR, 0, in.view->size);
  if (disk_connect (d, &writable) == -1)
    return -1;
  if (!writable)
    return refuse (o, disk_why_readonly (d), "");

  in = disk_inside (d);
  r = copy_all (&in, o, watch, copied);
  err = errno;
  report_keep ();
  ended = disk_disconnect (d, true);
  /* If the host is still full, this was already reported. */
  report_end_keeping (r == 0 || (ended == -1 && errno != err));
  if (ended == -1)
    return -1;
  errno = err;
  if (r == -1)
    return -1;
  /* Everything that the image will need is durable now. */
  return backlink_remove (image->file, &image->header);
}

int
flatten_image (struct image *image, const struct disk_options *options,
               const struct flatten_watch *watch, uint64_t *copied)
{
  struct disk_options o = *options;
  struct disk *d;
  int r = 0, err = 0;

  *copied = 0;
  o.copy_on_read = false;
  if (image_reload (image) == -1 || disk_open_on (&o, image, &d) == -1)
    return -1;
  if (layers_count (disk_inside (d).view->layers) > 1) {
    r = flatten (d, image, &o, watch, copied);
    err = errno;
  }
  if (disk_close (d) == -1 && r == 0)
    return -1;
  errno = err;
  return r;
}
