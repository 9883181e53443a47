/* SPDX-License-Identifier: BSD-3-Clause
 *
 * vacant.c is compared with a model: a cluster is punched, under a claim, only while it
 * is vacant, if it was already vacant when a successful checkpoint took it, and after all
 * requests have ended that were running when that checkpoint ended.  Each such cluster is
 * punched once, sooner or later.
 *
 * Environment: SEED repeats a run.
 */

#include <config.h>

#include <string.h>
#include <unistd.h>

#include "util/bytes.h"
#include "util/epoch.h"
#include "request/vacant.h"
#include "lib/stubs.h"

#define CLUSTERS UINT64_C (4096)
#define BITS 16

static char path[4200];
static struct storage *file;
static struct epoch *epoch;
static struct rangelock *rangelock;
static struct vacant *vacant;

/* --- the model --- */

static unsigned now = 1;        /* counts events */

static struct {
  unsigned since;               /* when it became vacant; 0: it is not */
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
  strcat (path, "/test-vacant-XXXXXX");
  fd = mkstemp (path);
  CHECK (fd >= 0 && ftruncate (fd, disk_size) == 0);
  close (fd);
  CHECK (storage_open (path, &options, &file) == 0);
  epoch = epoch_new ();
  rangelock = rangelock_new ();
  CHECK (epoch && rangelock);
  vacant = vacant_new (file, rangelock, epoch, BITS, disk_size);
  CHECK (vacant);
  memset (model, 0, sizeof model);
  punched = 0;
}

static void
end (void)
{
  vacant_free (vacant);
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
  /* What is vacant already is not erased again. */
  for (uint64_t c = first; c < first + n; c++)
    if (model[c].since == 0) {
      model[c].since = now;
      vacant_add (vacant, c, 1);
    }
  rangelock_release (rangelock, &claim);
}

static void
write_data (uint64_t first, uint64_t n)
{
  struct rangelock_claim claim;

  rangelock_claim (rangelock, &claim, first, first + n - 1);
  vacant_remove (vacant, first, n);
  memset (&model[first], 0, n * sizeof model[0]);
  rangelock_release (rangelock, &claim);
}

static void
checkpoint (struct rng *rng, bool ok)
{
  const unsigned taken = now;
  uint64_t first, n;

  vacant_take (vacant);
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
  vacant_done (vacant, ok);
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
  vacant_reap (vacant);
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
    case 4: vacant_reap (vacant); break;
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
  vacant_reap (vacant);
  for (unsigned c = 0; c < CLUSTERS; c++)
    CHECK (!model[c].durable || model[c].punched);
  write_data (0, CLUSTERS);
  CHECK (vacant_clusters (vacant) == 0);
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

    vacant_add (vacant, 2 * i, 1);
    vacant_take (vacant);
    vacant_done (vacant, true);
    epoch_leave (epoch, old);
    old = next;
    vacant_reap (vacant);
  }
  CHECK (punched > 0);
  epoch_leave (epoch, old);
  vacant_reap (vacant);
  CHECK (vacant_clusters (vacant) == 0 && punched == i);
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
  CHECK (!vacant_crowded (vacant));
  for (uint64_t i = 0; i < 2 * most; i++)
    vacant_add (vacant, 2 * i, 1);
  CHECK (vacant_clusters (vacant) == most);
  CHECK (vacant_crowded (vacant));
  /* It still takes what joins runs. */
  vacant_add (vacant, 1, 1);
  CHECK (vacant_clusters (vacant) == most + 1);
  vacant_add (vacant, 2 * most - 1, 100);
  CHECK (vacant_clusters (vacant) == most + 101);

  /* To split a run would be one more: its end is given up. */
  vacant_add (vacant, 4 * most, 1);
  left = vacant_clusters (vacant);
  CHECK (left == most + 102);
  vacant_remove (vacant, 2 * most + 10, 1);
  CHECK (vacant_clusters (vacant) == left - 89);

  vacant_take (vacant);
  CHECK (!vacant_crowded (vacant));
  vacant_done (vacant, true);
  vacant_reap (vacant);
  CHECK (vacant_clusters (vacant) == 0 && punched == left - 89);
  /* Few runs, but much space. */
  vacant_add (vacant, 0, (UINT64_C (128) << 20 >> BITS) + 1);
  CHECK (vacant_crowded (vacant));
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
  vacant_free (NULL);
  vacant_add (NULL, 0, 1);
  vacant_reap (NULL);
  CHECK (vacant_clusters (NULL) == 0 && !vacant_crowded (NULL));
  return 0;
}
