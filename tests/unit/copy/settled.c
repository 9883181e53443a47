/* SPDX-License-Identifier: BSD-3-Clause
 *
 * A copy says that all before some offset is durable only if it is: each byte was
 * written, and a sync began after that.  One that goes on from there reads nothing before
 * it, and all that was settled earlier, or is written now, is the whole disk.
 *
 * Environment: SEED repeats a run; ITERATIONS: how many copies.
 */

#include <config.h>

#include <errno.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "util/report.h"
#include "copy/copy.h"
#include "lib/hastyclock.h"
#include "lib/images.h"

#define CHUNK (UINT64_C (4) << 20)      /* of chunks.c */
#define BLOCKS 64                       /* of 1 MiB */
#define BLOCK (UINT64_C (1) << 20)

static const struct chunks_words words = { .path = "copy", .what = "copying" };

static struct {
  struct rng rng;
  atomic_bool written[BLOCKS];
  bool durable[BLOCKS];         /* the thread that runs the job */
  bool waits[BLOCKS];           /* is written only when something was settled again */
  atomic_uint settled;          /* times */
  uint64_t before;              /* what was settled; the same thread */
  uint64_t begin;
  unsigned fails;               /* the block that cannot be written */
} t;

static int
extent (const struct copy_end *e, uint64_t at, struct extent *x,
        struct storage_holes *known)
{
  (void) e, (void) at, (void) known;
  x->type = EXTENT_DATA;
  return 0;
}

static int
read_end (const struct copy_end *e, void *buf, uint64_t count, uint64_t at)
{
  (void) e;
  CHECK (at >= t.begin);
  memset (buf, 1, count);
  return 0;
}

static int
write_end (const struct copy_end *e, const void *buf, uint64_t count, uint64_t at)
{
  const unsigned i = at / BLOCK, was = t.settled;

  (void) e, (void) buf;
  CHECK (count == BLOCK && at % BLOCK == 0);
  while (t.waits[i] && t.settled == was)
    sched_yield ();
  if (i == t.fails) {
    errno = ENOSPC;
    report_error ("the end: %m");
    return -1;
  }
  t.written[i] = true;
  return 0;
}

static int
sync_end (const struct copy_end *e)
{
  (void) e;
  for (unsigned i = 0; i < BLOCKS; i++)
    t.durable[i] = t.written[i];
  return 0;
}

static const struct copy_ops ops = {
  .extent = extent, .read = read_end, .write = write_end, .sync = sync_end,
};

static int
settled (void *opaque, uint64_t before, uint64_t copied)
{
  (void) opaque;
  CHECK (before >= t.before && before <= BLOCKS * BLOCK && copied <= BLOCKS * BLOCK);
  for (unsigned i = 0; i < before / BLOCK; i++)
    CHECK (t.durable[i]);
  t.before = before;
  t.settled++;
  return 0;
}

static int
run (void)
{
  const struct copy c = {
    .from = { .ops = &ops, .size = BLOCKS * BLOCK, .piece = BLOCK },
    .to = { .ops = &ops, .size = BLOCKS * BLOCK, .piece = BLOCK },
    .begin = t.begin, .settled = settled,
  };
  uint64_t copied;

  for (unsigned i = 0; i < BLOCKS; i++)
    t.waits[i] = rng_below (&t.rng, 16) == 0;
  return copy_all (&c, &words, true, NULL, &copied);
}

static void
once (void)
{
  unsigned i;

  for (i = 0; i < BLOCKS; i++)
    t.written[i] = t.durable[i] = false;
  t.begin = t.before = 0;
  t.fails = 32 + rng_below (&t.rng, 32);
  CHECK (run () == -1 && errno == ENOSPC);
  CHECK (t.before % CHUNK == 0);
  /* After a power cut. */
  for (i = 0; i < BLOCKS; i++)
    t.written[i] = i < t.before / BLOCK;
  t.begin = t.before;
  t.fails = BLOCKS;
  CHECK (run () == 0);
  for (i = 0; i < BLOCKS; i++)
    CHECK (t.written[i]);
}

int
main (void)
{
  const char *iterations = getenv ("ITERATIONS");

  rng_init (&t.rng, seed_from_env (), 0);
  quiet_errors = true;
  for (int i = 0; i < (iterations ? atoi (iterations) : 10); i++)
    once ();
  return 0;
}
