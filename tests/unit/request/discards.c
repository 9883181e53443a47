/* SPDX-License-Identifier: BSD-3-Clause
 *
 * discards.c is compared with a model: a cluster is punched, under a claim, only while it
 * has no data, if it had none already when a successful checkpoint took it, and after
 * all requests have ended that were running when that checkpoint ended.  Each such
 * cluster is punched once, sooner or later.
 *
 * Environment: SEED repeats a run.
 */

#include <config.h>

#include <string.h>
#include <unistd.h>

#include "util/bytes.h"
#include "util/epoch.h"
#include "request/discards.h"
#include "lib/stubs.h"

#define CLUSTERS UINT64_C (4096)
#define BITS 16

static char path[4200];
static struct storage *file;
static struct epoch *epoch;
static struct rangelock *rangelock;
static struct discards *discards;

/* --- the model --- */

static unsigned now = 1;        /* counts events */

static struct {
  unsigned since;               /* when it was discarded; 0: it was not */
  unsigned durable;             /* when that became durable; 0: it is not */
  bool punched;
} model[CLUSTERS];

static struct { struct epoch_section section; unsigned entered; } sections[4];
static unsigned nr_sections;
static bool strict = true;
static uint64_t punched;

static int
before (void *opaque, const char *name, enum storage_op op, const struct iovec *iov,
        int niov, uint64_t offset, uint64_t count, bool dsync)
{
  const uint64_t first = offset >> BITS;
  const uint64_t n = div_up (count, UINT64_C (1) << BITS);
  struct rangelock_claim claim;

  (void) opaque, (void) name, (void) iov, (void) niov, (void) dsync;
  if (op != STORAGE_OP_PUNCH)
    return 0;
  punched += n;
  for (uint64_t c = first; strict && c < first + n; c++) {
    CHECK (model[c].since && model[c].durable && !model[c].punched);
    for (unsigned i = 0; i < nr_sections; i++)
      CHECK (sections[i].entered > model[c].durable);
    CHECK (!rangelock_try (rangelock, &claim, c, c));
    model[c].punched = true;
  }
  return 1;
}

static void
begin (uint64_t disk_size)
{
  const struct storage_hooks hooks = { .before = before };
  static struct storage_options options;
  static struct storage_hooks kept;
  int fd;

  kept = hooks;
  options = (struct storage_options) { .try_writable = true, .hooks = &kept };
  CHECK (getcwd (path, sizeof path - 40));
  strcat (path, "/test-discards-XXXXXX");
  fd = mkstemp (path);
  CHECK (fd >= 0 && ftruncate (fd, disk_size) == 0);
  close (fd);
  CHECK (storage_open (path, &options, &file) == 0);
  epoch = epoch_new ();
  rangelock = rangelock_new ();
  CHECK (epoch && rangelock);
  discards = discards_new (file, rangelock, epoch, BITS, disk_size);
  CHECK (discards);
  memset (model, 0, sizeof model);
  punched = 0;
}

static void
end (void)
{
  discards_free (discards);
  rangelock_free (rangelock);
  epoch_free (epoch);
  storage_close (file);
  CHECK (unlink (path) == 0);
}

/* --- random events --- */

static void
random_range (struct rng *rng, uint64_t *first, uint64_t *n)
{
  *first = rng_below (rng, CLUSTERS);
  *n = 1 + rng_below (rng, min64 (CLUSTERS - *first, rng_below (rng, 4) ? 8 : 2000));
}

static void
erase (uint64_t first, uint64_t n)
{
  struct rangelock_claim claim;

  rangelock_claim (rangelock, &claim, first, first + n - 1);
  /* What has no data already is not erased again. */
  for (uint64_t c = first; c < first + n; c++)
    if (model[c].since == 0) {
      model[c].since = now;
      discards_add (discards, c, 1);
    }
  rangelock_release (rangelock, &claim);
}

static void
write_data (uint64_t first, uint64_t n)
{
  struct rangelock_claim claim;

  rangelock_claim (rangelock, &claim, first, first + n - 1);
  discards_remove (discards, first, n);
  memset (&model[first], 0, n * sizeof model[0]);
  rangelock_release (rangelock, &claim);
}

static void
checkpoint (struct rng *rng, bool ok)
{
  const unsigned taken = now;
  uint64_t first, n;

  discards_take (discards);
  now++;
  /* Requests go on meanwhile. */
  for (unsigned i = rng_below (rng, 3); i > 0; i--) {
    random_range (rng, &first, &n);
    if (rng_below (rng, 2))
      erase (first, n);
    else
      write_data (first, n);
  }
  now++;
  discards_done (discards, ok);
  for (unsigned c = 0; ok && c < CLUSTERS; c++)
    if (model[c].since && model[c].since <= taken && !model[c].durable)
      model[c].durable = now;
  now++;
}

static void
leave (unsigned i)
{
  epoch_leave (epoch, sections[i].section);
  sections[i] = sections[--nr_sections];
}

/* Somebody is at work on a part of the disk: that has to wait, the rest has not. */
static void
reap_beside_claim (struct rng *rng)
{
  struct rangelock_claim claim;
  uint64_t first, n;

  random_range (rng, &first, &n);
  rangelock_claim (rangelock, &claim, first, first + n - 1);
  discards_reap (discards);
  rangelock_release (rangelock, &claim);
}

static void
test_random (struct rng *rng)
{
  uint64_t first, n;

  begin ((CLUSTERS << BITS) - 512);
  for (unsigned i = 0; i < 4000; i++, now++) {
    random_range (rng, &first, &n);
    switch (rng_below (rng, 8)) {
    case 0: case 1: erase (first, n); break;
    case 2: write_data (first, n); break;
    case 3: checkpoint (rng, rng_below (rng, 4) != 0); break;
    case 4: discards_reap (discards); break;
    case 5: reap_beside_claim (rng); break;
    case 6:
      if (nr_sections < 4) {
        sections[nr_sections].entered = now;
        sections[nr_sections++].section = epoch_enter (epoch);
      }
      break;
    default:
      if (nr_sections > 0)
        leave (rng_below (rng, nr_sections));
    }
  }
  while (nr_sections > 0)
    leave (0);
  checkpoint (rng, true);
  checkpoint (rng, true);
  discards_reap (discards);
  for (unsigned c = 0; c < CLUSTERS; c++)
    CHECK (!model[c].durable || model[c].punched);
  write_data (0, CLUSTERS);
  CHECK (discards_clusters (discards) == 0);
  end ();
}

/* Whoever leaves while others come, and checkpoints that follow one another, don't hold
 * it back for ever. */
static void
test_no_starvation (void)
{
  struct epoch_section old = { 0 };
  unsigned i;

  begin (CLUSTERS << BITS);
  strict = false;
  old = epoch_enter (epoch);
  for (i = 0; i < 20 && punched == 0; i++) {
    const struct epoch_section next = epoch_enter (epoch);

    discards_add (discards, 2 * i, 1);
    discards_take (discards);
    discards_done (discards, true);
    epoch_leave (epoch, old);
    old = next;
    discards_reap (discards);
  }
  CHECK (punched > 0);
  epoch_leave (epoch, old);
  discards_reap (discards);
  CHECK (discards_clusters (discards) == 0 && punched == i);
  strict = true;
  end ();
}

/* Memory has a bound; what goes beyond it keeps its space, nothing else. */
static void
test_bound (void)
{
  const uint64_t most = 16384;
  uint64_t left;

  begin (UINT64_C (1) << 40);
  strict = false;
  CHECK (!discards_crowded (discards));
  for (uint64_t i = 0; i < 2 * most; i++)
    discards_add (discards, 2 * i, 1);
  CHECK (discards_clusters (discards) == most);
  CHECK (discards_crowded (discards));
  /* It still takes what joins runs. */
  discards_add (discards, 1, 1);
  CHECK (discards_clusters (discards) == most + 1);
  discards_add (discards, 2 * most - 1, 100);
  CHECK (discards_clusters (discards) == most + 101);

  /* To split a run would be one more: its end is given up. */
  discards_add (discards, 4 * most, 1);
  left = discards_clusters (discards);
  CHECK (left == most + 102);
  discards_remove (discards, 2 * most + 10, 1);
  CHECK (discards_clusters (discards) == left - 89);

  discards_take (discards);
  CHECK (!discards_crowded (discards));
  discards_done (discards, true);
  discards_reap (discards);
  CHECK (discards_clusters (discards) == 0 && punched == left - 89);
  /* Few runs, but much space. */
  discards_add (discards, 0, (UINT64_C (128) << 20 >> BITS) + 1);
  CHECK (discards_crowded (discards));
  strict = true;
  end ();
}

int
main (void)
{
  struct rng rng;

  rng_init (&rng, seed_from_env (), 0);
  for (unsigned i = 0; i < 10; i++)
    test_random (&rng);
  test_no_starvation ();
  test_bound ();
  discards_free (NULL);
  discards_add (NULL, 0, 1);
  discards_reap (NULL);
  CHECK (discards_clusters (NULL) == 0 && !discards_crowded (NULL));
  return 0;
}
