/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What is left if a change that copies data for long (commit, rebase) is interrupted, at
 * any moment?
 *
 * The test defines the change, and judges what is left.  The files are simulated
 * (simdisk.c).  The change is made again and again:
 *
 *   power cuts    before any change or sync of a file: any subset of the unsynced changes
 *                 has reached the disk
 *   a stop        by the user, at the first step, before anything was changed, or later:
 *                 nothing is leaked
 *   ENOSPC, EIO   each operation fails in turn; then the server ends, or the power is cut
 *   no memory     for one allocation, or for all from then on
 *
 * Locks: those of powercut.c.
 */

#include <config.h>

#include <errno.h>

#include "lib/interrupt.h"
#include "lib/trials.h"

#define GROWING (1 << STORAGE_OP_WRITE | 1 << STORAGE_OP_TRUNCATE | \
                 1 << STORAGE_OP_ALLOCATE)
#define CHANGING (GROWING | 1 << STORAGE_OP_SYNC)

#define CUTS 60                 /* while the change is made once */
#define FAULTS 30

struct interrupt_counts interrupts;

/* --- what powercut.c calls --- */

static int
change (void *opaque, const struct storage_hooks *hooks)
{
  const struct interrupt *x = opaque;

  return x->change (x->opaque, hooks, NULL);
}

static void
judge (void *opaque, const struct remains *left)
{
  struct interrupt *x = opaque;

  x->judge (x->opaque, left, !left->done || left->fault || left->kind != CUT_ALL);
  if (x->again && (!left->done || left->fault) &&
      rng_below (&x->power.rng, left->fault ? 6 : 12) == 0) {
    x->again (x->opaque, left);
    interrupts.again++;
  }
}

static unsigned
cuts (void *opaque, enum storage_op op)
{
  struct interrupt *x = opaque;

  return op == STORAGE_OP_SYNC ? 2 + rng_below (&x->power.rng, 4) :
    rng_below (&x->power.rng, 4) == 0;
}

static void
ended (void *opaque, bool fault)
{
  const struct interrupt *x = opaque;

  (void) fault;
  interrupts.failures += !x->power.done;
}

/* --- power cuts --- */

static void
cut (struct interrupt *x)
{
  power_cut_begin (&x->power, rng_next (&x->power.rng));
  x->power.cuts_left = CUTS;
  x->cutting = true;
  power_cut_change (&x->power, NULL);
  x->cutting = false;
  power_cut_all_ways (&x->power);
  power_cut_end (&x->power);
}

void
interrupt_more_cuts (struct interrupt *x)
{
  if (x->cutting)
    x->power.cuts_left += CUTS;
}

/* --- the user has had enough --- */

struct watcher {
  struct simdisk *sim;
  unsigned steps, stop_at;
  bool stopped;
};

/* From the first step on, signals are not what ends the process: so that one comes before
 * anything has changed. */
static bool
step (void *opaque, uint64_t done, uint64_t total, uint64_t copied)
{
  struct watcher *w = opaque;

  CHECK (done <= total);
  if (w->steps == 0)
    CHECK (done == 0 && copied == 0 && simdisk_operations (w->sim, CHANGING) == 0);
  if (w->steps++ < w->stop_at)
    return true;
  w->stopped = done < total;
  return false;
}

static void
stop (struct interrupt *x, unsigned stop_at)
{
  struct watcher watcher = { .stop_at = stop_at };
  const struct chunks_watch watch = { .step = step, .opaque = &watcher };
  struct remains left = { .kind = CUT_ALL, .when = "stopped" };
  int r;

  power_cut_begin (&x->power, 0);
  x->power.cuts_left = 0;
  watcher.sim = x->power.sim;
  r = x->change (x->opaque, simdisk_hooks (x->power.sim), &watch);
  if ((r == -1) != watcher.stopped || (r == -1 && errno != EINTR))
    FAIL ("stopped %d, the change returns %d: %m (%s)", watcher.stopped, r,
          last_error ());
  if (stop_at == 0 && simdisk_operations (x->power.sim, CHANGING) != 0)
    FAIL ("stopped before the first change, but something was changed");
  left.done = r == 0;
  left.file = simdisk_cut (x->power.sim, &x->power.rng, CUT_ALL);
  left.data = x->power.data_path ? simdisk_data_cut (x->power.sim) : NULL;
  x->judge (x->opaque, &left, false);
  power_cut_end (&x->power);
}

/* --- the host fails --- */

/* The I-th of many: EIO anywhere, or no space, once or for ever. */
static struct fault
choose_fault (struct rng *rng, unsigned i, uint64_t changing, uint64_t growing)
{
  if (i % 3 == 0)
    return (struct fault) {
      .ops = CHANGING, .err = EIO, .after = rng_below (rng, changing), .times = 1,
      .partial = i % 2,
    };
  return (struct fault) {
    .ops = GROWING, .err = ENOSPC, .after = rng_below (rng, growing),
    .times = i % 3 == 1 ? 1 : UINT64_MAX, .partial = i % 2,
  };
}

static void
fail (struct interrupt *x, struct rng *rng)
{
  uint64_t changing, growing;
  struct fault fault;
  unsigned i;

  power_cut_begin (&x->power, 0);
  x->power.cuts_left = 0;
  power_cut_change (&x->power, NULL);
  changing = simdisk_operations (x->power.sim, CHANGING);
  growing = simdisk_operations (x->power.sim, GROWING);
  power_cut_end (&x->power);
  if (changing == 0 || growing == 0)
    return;
  for (i = 0; i < FAULTS && (i == 0 || trials_time_left ()); i++) {
    fault = choose_fault (rng, i, changing, growing);
    power_cut_fault (&x->power, &fault);
  }
}

/* --- all of it --- */

void
interrupt_everywhere (struct interrupt *x, struct rng *rng)
{
  x->power.opaque = x;
  x->power.change = change;
  x->power.cuts = cuts;
  x->power.judge = judge;
  x->power.ended = ended;
  rng_init (&x->power.rng, rng_next (rng), 500);
  cut (x);
  cut (x);
  stop (x, 0);
  stop (x, 1);
  fail (x, rng);
  power_cut_fail_memory (&x->power);
}

void
interrupt_choose_image (struct image_spec *spec, struct rng *rng, unsigned more)
{
  static const unsigned bits[] = { 9, 12, 14, 16 };

  spec->version = rng_below (rng, 4) ? 3 : 2;
  spec->cluster_size = UINT64_C (1) << bits[rng_below (rng, 4)];
  spec->extended = spec->version == 3 && spec->cluster_size >= 16384 &&
    rng_below (rng, 2);
  spec->compressed = rng_below (rng, 4) == 0;
  spec->refcount_bits =
    spec->version == 2 || spec->compressed ? 16 : 2 << rng_below (rng, 6);
  spec->size = 512 * (64 + rng_below (rng, more));
}
