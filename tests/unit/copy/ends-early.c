/* SPDX-License-Identifier: BSD-3-Clause
 *
 * A copy that cannot read, cannot write or is stopped, at any moment: it says so, with
 * the error of whoever failed, and no thread waits for ever for its turn.  What has to be
 * read or written in order is.  With ends that are byte models.
 *
 * Environment: SEED repeats a run; ITERATIONS: how many copies.
 */

#include <config.h>

#include <errno.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "util/bytes.h"
#include "util/report.h"
#include "copy/copy.h"
#include "lib/images.h"

#define SIZE (UINT64_C (4) << 20)
#define PIECE (UINT64_C (64) << 10)

static const struct chunks_words words = { .path = "copy", .what = "copying" };

static struct {
  struct rng rng;
  unsigned char *from, *to;
  bool in_order[2];             /* the source, the target */
  int fails[2];                 /* errno, or 0: it never does */
  uint64_t bad[2];              /* ... where */
  uint64_t next[2];             /* in order: what comes next */
  atomic_ullong written;
  bool stops;                   /* the watch does, once somebody reads there */
  uint64_t stops_at;
  sem_t stopped;
} t;

/* A byte model; nothing else checks that those who need an order get it. */
static int
use (int end, uint64_t count, uint64_t at)
{
  if (t.in_order[end]) {
    CHECK (t.next[end] == at);
    t.next[end] = at + count;
  }
  if (t.fails[end] == 0 || t.bad[end] < at || t.bad[end] >= at + count)
    return 0;
  errno = t.fails[end];
  report_error ("the end: %m");
  return -1;
}

static int
extent (const struct copy_end *e, uint64_t at, struct extent *x,
        struct storage_holes *known)
{
  (void) e, (void) known;
  x->len = min64 (x->len, 100000);
  x->type = !t.in_order[0] && bytes_are_zero (t.from + at, x->len) ? EXTENT_ZERO
    : EXTENT_DATA;
  return 0;
}

static int
read_model (const struct copy_end *e, void *buf, uint64_t count, uint64_t at)
{
  (void) e;
  if (t.stops && t.stops_at >= at && t.stops_at < at + count)
    sem_wait (&t.stopped);
  memcpy (buf, t.from + at, count);
  return use (0, count, at);
}

static int
write_model (const struct copy_end *e, const void *buf, uint64_t count, uint64_t at)
{
  (void) e;
  if (use (1, count, at) == -1)
    return -1;
  memcpy (t.to + at, buf, count);
  t.written += count;
  return 0;
}

static int
zero_model (const struct copy_end *e, uint64_t count, uint64_t at)
{
  (void) e;
  if (use (1, count, at) == -1)
    return -1;
  memset (t.to + at, 0, count);
  return 0;
}

static int
sync_model (const struct copy_end *e)
{
  (void) e;
  return 0;
}

static const struct copy_ops ops = { extent, read_model, write_model, zero_model, sync_model };

static bool
step (void *opaque, uint64_t done, uint64_t total, uint64_t copied)
{
  (void) opaque;
  CHECK (done <= total && copied <= total);
  if (t.stops)
    sem_post (&t.stopped);
  return !t.stops;
}

static void
lose (void *opaque, uint64_t at, uint64_t len, int err)
{
  (void) opaque, (void) at, (void) len, (void) err;
  CHECK (!"what comes in order was read again");
}

static void
once (void)
{
  struct copy c = { .sparse = rng_below (&t.rng, 2) * 4096 };
  const struct chunks_watch watch = { .step = step };
  const unsigned long told = error_count ();
  uint64_t copied;
  int r, err;

  memset (t.to, 0x55, SIZE);
  t.written = 0;
  t.stops = rng_below (&t.rng, 8) == 0;
  t.stops_at = SIZE - 1 - rng_below (&t.rng, rng_below (&t.rng, 2) ? SIZE : 2 * PIECE);
  CHECK (sem_init (&t.stopped, 0, 0) == 0);
  for (int i = 0; i < 2; i++) {
    t.in_order[i] = rng_below (&t.rng, 2);
    t.next[i] = 0;
    t.fails[i] = rng_below (&t.rng, 2) ? (i ? ENOSPC : EIO) : 0;
    t.bad[i] = rng_below (&t.rng, SIZE);
    *(i ? &c.to : &c.from) = (struct copy_end) {
      .ops = &ops, .size = SIZE, .piece = PIECE, .in_order = t.in_order[i],
    };
  }
  if (c.from.in_order && rng_below (&t.rng, 2))
    c.lost = lose;
  r = copy_all (&c, &words, rng_below (&t.rng, 2), &watch, &copied);
  err = errno;
  sem_destroy (&t.stopped);
  CHECK (copied <= t.written);
  if (r == 0) {
    CHECK (copied == t.written && error_count () == told);
    CHECK (memcmp (t.from, t.to, SIZE) == 0);
  }
  else {
    CHECK (error_count () == told + (err == EINTR ? 1 : 2));
    CHECK ((err == EINTR && t.stops) || (err == EIO && t.fails[0]) ||
           (err == ENOSPC && t.fails[1]));
  }
}

int
main (void)
{
  const char *iterations = getenv ("ITERATIONS");

  rng_init (&t.rng, seed_from_env (), 0);
  t.from = calloc (1, SIZE);
  t.to = malloc (SIZE);
  CHECK (t.from != NULL && t.to != NULL);
  for (int i = 0; i < 10; i++)
    memset (t.from + rng_below (&t.rng, SIZE - 400000), 1 + i, rng_below (&t.rng, 400000));
  quiet_errors = true;
  for (int i = 0; i < (iterations ? atoi (iterations) : long_suite () ? 400 : 200); i++)
    once ();
  free (t.from);
  free (t.to);
  return 0;
}
