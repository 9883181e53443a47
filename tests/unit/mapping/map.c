/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The mapping cache is compared with a model that is too simple to be wrong: an array of
 * the mapping of each unit in the file, and one of its mapping in memory.
 *
 *   models    lookups, edits and snapshots in any order, with loads that fail; every
 *             answer is checked, and that the limit is kept
 *   nomem     any allocation fails
 *
 * One thread only: see unit/mapping/map-threads.c.
 */

#include <config.h>

#include <errno.h>
#include <string.h>

#include "util/bytes.h"
#include "mapping/map.h"
#include "lib/stubs.h"

#if defined __SANITIZE_ADDRESS__ || defined __SANITIZE_THREAD__
#define SANITIZED 1
#elif defined __has_feature
#if __has_feature (address_sanitizer) || __has_feature (thread_sanitizer)
#define SANITIZED 1
#endif
#endif
#ifndef SANITIZED
#define SANITIZED 0
#endif

/* What a map without slices takes, at most, with tables that have grown. */
#define FLOOR (40u << 10)

static uint64_t seed;

/* --- allocations that fail (nomem) --- */

static _Thread_local long fail_countdown;       /* 0: never; 1: the next one */

#if defined __GLIBC__ && !SANITIZED
#define CAN_FAIL_ALLOCATIONS 1
extern void *__libc_malloc (size_t);
extern void *__libc_calloc (size_t, size_t);
extern void *__libc_realloc (void *, size_t);

static bool
fails_now (void)
{
  if (fail_countdown == 0 || --fail_countdown > 0)
    return false;
  errno = ENOMEM;
  return true;
}

void *
malloc (size_t n)
{
  return fails_now () ? NULL : __libc_malloc (n);
}

void *
calloc (size_t n, size_t m)
{
  return fails_now () ? NULL : __libc_calloc (n, m);
}

void *
realloc (void *p, size_t n)
{
  return fails_now () ? NULL : __libc_realloc (p, n);
}
#else
#define CAN_FAIL_ALLOCATIONS 0
#endif

/* --- what is mapped --- */

static unsigned long peeks, loads, loads_together;

/* A unit in the raw form. */
struct cell {
  uint64_t host;
  uint16_t layer;
  uint8_t kind;
  uint8_t copied;
  uint32_t unused;
};

struct model {
  struct map_space *space;
  unsigned unit_bits, units, slices;
  struct cell *file, *now;      /* slices * units of them */

  /* Per slice. */
  struct flags { bool dirty, barrier, writing; } *flags;

  struct rng *rng;              /* loads fail now and then; NULL: never */
  bool failed;                  /* one has */
};

static uint64_t
step_of (const struct model *m, enum run_kind kind)
{
  return run_host_advances (kind) ? UINT64_C (1) << m->unit_bits : 0;
}

static bool
same (const struct model *m, const struct cell *a, const struct cell *b,
      uint64_t distance)
{
  return a->kind == b->kind && a->copied == b->copied && a->layer == b->layer &&
         a->host + distance * step_of (m, a->kind) == b->host;
}

/* If several slices cannot be loaded together, the one that is wanted is loaded alone. */
static bool
fail_load (struct model *m, unsigned n)
{
  if (m->rng == NULL || rng_below (m->rng, 30) != 0)
    return false;
  if (n == 1)
    m->failed = true;
  errno = EIO;
  return true;
}

#define TOGETHER 4

static unsigned
model_together (void *opaque)
{
  (void) opaque;
  return TOGETHER;
}

static void
check_together (const struct model *m, uint64_t slice, unsigned n)
{
  CHECK (n > 0 && slice + n <= m->slices);
  CHECK (slice / TOGETHER == (slice + n - 1) / TOGETHER);
}

static int
model_load (void *opaque, uint64_t slice, unsigned slices, struct map_fill *fill)
{
  struct model *m = opaque;
  const struct cell *c = &m->file[slice * m->units];
  const unsigned units = slices * m->units;
  const bool fail = fail_load (m, slices);
  unsigned i, n;

  check_together (m, slice, slices);
  for (i = 0; i < units; i += n) {
    if (fail && i >= units / 2) {
      errno = EIO;
      return -1;
    }
    for (n = 1; i + n < units && same (m, &c[i], &c[i + n], n); n++)
      ;
    if (map_fill_add (fill, n, c[i].kind, c[i].copied, c[i].layer, c[i].host)
        == -1)
      return -1;
  }
  if (fail)
    errno = EIO;
  return fail ? -1 : 0;
}

static int
model_load_raw (void *opaque, uint64_t slice, unsigned n, void *raw)
{
  struct model *m = opaque;
  struct cell *c = raw;

  check_together (m, slice, n);
  if (fail_load (m, n))
    return -1;
  loads++;
  loads_together += n > 1;
  memcpy (raw, &m->file[slice * m->units], n * m->units * sizeof *c);
  /* What is not settled is in memory, and nowhere else. */
  for (unsigned i = 0; i < n; i++)
    if (m->flags[slice + i].dirty || m->flags[slice + i].writing) {
      CHECK (n > 1);
      for (unsigned j = 0; j < m->units; j++)
        c[i * m->units + j] = (struct cell) { .kind = RUN_CORRUPT, .host = 0xdead };
    }
  return 0;
}

static unsigned
model_decode (void *opaque, const void *raw, unsigned unit, unsigned max,
              struct run *run)
{
  struct model *m = opaque;
  const struct cell *c = (const struct cell *) raw + unit;
  unsigned n;

  CHECK (max > 0 && unit + max <= m->units);
  run->kind = c->kind;
  run->copied = c->copied;
  run->layer = c->layer;
  run->host = c->host;
  for (n = 1; n < max && same (m, c, &c[n], n); n++)
    ;
  return n;
}

static int64_t
model_peek (void *opaque, uint64_t slice, unsigned unit, unsigned max,
            struct run *run)
{
  struct model *m = opaque;

  CHECK (slice < m->slices && max <= MAP_PEEK_UNITS);
  CHECK (!m->flags[slice].dirty && !m->flags[slice].writing);
  if (fail_load (m, 1))
    return -1;
  peeks++;
  return model_decode (m, &m->file[slice * m->units], unit, max, run);
}

static const struct map_ops load_only = { .load = model_load };
static const struct map_ops raw_peek = {
  .load_raw = model_load_raw, .decode = model_decode, .peek = model_peek
};
static const struct map_ops load_together = {
  .load = model_load, .together = model_together
};
static const struct map_ops raw_together = {
  .load_raw = model_load_raw, .decode = model_decode, .peek = model_peek,
  .together = model_together
};
static const struct map_ops raw_only = {
  .load_raw = model_load_raw, .decode = model_decode
};
static const struct map_ops all_ops = {
  .load = model_load, .load_raw = model_load_raw, .decode = model_decode
};

static void
random_cells (struct model *m, struct rng *rng, struct cell *c, unsigned n)
{
  const unsigned kinds = 1 + rng_below (rng, 7);
  const unsigned longest = 1 + rng_below (rng, 20);
  struct cell r;
  unsigned len;

  while (n > 0) {
    memset (&r, 0, sizeof r);
    r.kind = rng_below (rng, kinds);
    if (r.kind != RUN_UNALLOCATED) {
      r.copied = rng_below (rng, 2);
      r.layer = rng_below (rng, 4) == 0;
    }
    if (run_host_advances (r.kind))
      r.host = rng_below (rng, 1 << 20) << m->unit_bits;
    else if (run_host_constant (r.kind))
      r.host = rng_next (rng);
    for (len = 1 + rng_below (rng, longest); len > 0 && n > 0; len--, n--) {
      *c++ = r;
      r.host += step_of (m, r.kind);
    }
  }
}

static struct model *
model_new (struct map *map, unsigned unit_bits, unsigned units, unsigned slices,
           const struct map_ops *ops, struct rng *rng)
{
  struct model *m = calloc (1, sizeof *m);

  CHECK (m);
  m->unit_bits = unit_bits;
  m->units = units;
  m->slices = slices;
  m->file = calloc ((size_t) slices * units, sizeof *m->file);
  m->now = calloc ((size_t) slices * units, sizeof *m->now);
  m->flags = calloc (slices, sizeof *m->flags);
  CHECK (m->file && m->now && m->flags);
  for (unsigned i = 0; i < slices; i++)
    random_cells (m, rng, &m->file[i * units], units);
  memcpy (m->now, m->file, (size_t) slices * units * sizeof *m->now);
  m->space = map_space_new (map, unit_bits, units,
                            ops->load_raw ? units * sizeof (struct cell) : 0,
                            ops, m);
  CHECK (m->space);
  return m;
}

static void
model_free (struct model *m)
{
  free (m->file);
  free (m->now);
  free (m->flags);
  free (m);
}

static void
check_run (const struct model *m, const struct run *run, uint64_t offset,
           uint64_t len)
{
  const uint64_t unit_bytes = UINT64_C (1) << m->unit_bits;
  const uint64_t first = offset >> m->unit_bits;
  const uint64_t in_unit = offset & (unit_bytes - 1);
  const uint64_t slice_end = (first / m->units + 1) * m->units << m->unit_bits;
  struct cell c = {
    .kind = run->kind, .copied = run->copied, .layer = run->layer,
    .host = run->host
  };
  uint64_t last;

  CHECK (run->start == offset && run->len > 0 && run->len <= len);
  CHECK (offset + run->len <= slice_end);
  if (run_host_advances (run->kind))
    c.host -= in_unit;
  last = (offset + run->len - 1) >> m->unit_bits;
  for (uint64_t u = first; u <= last; u++)
    CHECK (same (m, &c, &m->now[u], u - first));
  /* It ends where the question or the slice does, or within a unit's reach of
   * where the run does. */
  if (run->len < len && offset + run->len < slice_end) {
    CHECK ((offset + run->len) % unit_bytes == 0);
    CHECK (!same (m, &c, &m->now[last + 1], last + 1 - first));
  }
}

/* Looks up, and checks the answer; false if the load failed. */
static bool
look (struct model *m, uint64_t offset, uint64_t len)
{
  const struct flags *f = &m->flags[(offset >> m->unit_bits) / m->units];
  struct run run;

  m->failed = false;
  memset (&run, 0xa5, sizeof run);
  errno = 0;
  if (map_lookup (m->space, offset, len, &run) == -1) {
    CHECK (m->failed && errno == EIO);
    return false;
  }
  CHECK (!m->failed);
  check_run (m, &run, offset, len);
  CHECK (run.unsettled == (f->dirty || f->writing));
  return true;
}

/* --- the model, by one thread --- */

struct session {
  struct model *m;
  struct rng *rng;
  struct map_slice *pins[8];
  uint64_t pinned[8];           /* slice numbers */
  unsigned nr_pins;
  struct map_dirty *items;      /* a snapshot, if nr_items >= 0 */
  int nr_items;
};

static void
do_look (struct session *t)
{
  const uint64_t size = (uint64_t) t->m->slices * t->m->units << t->m->unit_bits;
  const uint64_t offset = rng_below (t->rng, size);
  const unsigned how = rng_below (t->rng, 3);

  look (t->m, offset, how == 0 ? 1 : how == 1 ? UINT64_MAX - offset
                    : 1 + rng_below (t->rng, UINT64_C (20) << t->m->unit_bits));
}

static void
do_pin (struct session *t)
{
  const uint64_t slice = rng_below (t->rng, t->m->slices);
  struct map_slice *s;

  if (t->nr_pins == 8)
    return;
  t->m->failed = false;
  s = map_pin (t->m->space, slice);
  CHECK ((s == NULL) == t->m->failed);
  if (s == NULL) {
    CHECK (errno == EIO);
    return;
  }
  t->pins[t->nr_pins] = s;
  t->pinned[t->nr_pins++] = slice;
}

static void
do_unpin (struct session *t)
{
  const unsigned i = rng_below (t->rng, t->nr_pins);

  if (t->nr_pins == 0)
    return;
  map_unpin (t->pins[i]);
  t->pins[i] = t->pins[--t->nr_pins];
  t->pinned[i] = t->pinned[t->nr_pins];
}

static void
do_edit (struct session *t)
{
  struct model *m = t->m;
  const unsigned i = rng_below (t->rng, t->nr_pins);
  const bool change = rng_below (t->rng, 4), barrier = rng_below (t->rng, 2);
  const unsigned unit = rng_below (t->rng, m->units);
  const unsigned n = 1 + rng_below (t->rng, m->units - unit);
  struct cell *raw, *now;
  struct flags *f;

  if (t->nr_pins == 0)
    return;
  now = &m->now[t->pinned[i] * m->units];
  f = &m->flags[t->pinned[i]];
  raw = map_edit_begin (t->pins[i]);
  CHECK (memcmp (raw, now, m->units * sizeof *raw) == 0);
  if (change) {
    random_cells (m, t->rng, &now[unit], n);
    memcpy (&raw[unit], &now[unit], n * sizeof *raw);
    f->dirty = true;
    f->barrier |= barrier;
  }
  map_edit_end (t->pins[i], !change ? MAP_UNCHANGED
                : barrier ? MAP_CHANGED_BARRIER : MAP_CHANGED);
}

static void
do_take (struct session *t)
{
  struct model *m = t->m;
  bool barrier, expect = false;
  int n = 0;

  if (t->nr_items >= 0)
    return;
  t->nr_items = map_take_dirty (m->space, &t->items, &barrier);
  CHECK (t->nr_items >= 0);
  CHECK (map_dirty_bytes (m->space) == 0);
  for (int i = 0; i < t->nr_items; i++) {
    struct map_dirty *item = &t->items[i];
    struct flags *f = &m->flags[item->index];

    CHECK (f->dirty && f->barrier == item->barrier);
    CHECK (memcmp (item->raw, &m->now[item->index * m->units],
                   m->units * sizeof (struct cell)) == 0);
    expect |= item->barrier;
    *f = (struct flags) { .writing = true };
  }
  CHECK (barrier == expect);
  for (unsigned i = 0; i < m->slices; i++) {
    CHECK (!m->flags[i].dirty);
    n += m->flags[i].writing;
  }
  CHECK (n == t->nr_items);
}

static void
do_written (struct session *t)
{
  struct model *m = t->m;
  const bool ok = rng_below (t->rng, 3);

  if (t->nr_items < 0)
    return;
  for (int i = 0; i < t->nr_items; i++) {
    struct map_dirty *item = &t->items[i];
    struct flags *f = &m->flags[item->index];

    if (ok)
      memcpy (&m->file[item->index * m->units], item->raw,
              m->units * sizeof (struct cell));
    else {
      f->dirty = true;
      f->barrier |= item->barrier;
    }
    f->writing = false;
  }
  map_written (m->space, t->items, t->nr_items, ok);
  t->nr_items = -1;
}

static void
check_memory (struct session *t, struct map *map, uint64_t limit)
{
  struct map_stats stats;

  if (t->nr_pins > 0 || t->nr_items > 0 || map_dirty_bytes (t->m->space) > 0)
    return;
  map_get_stats (map, &stats);
  CHECK (stats.bytes <= stats.peak_bytes);
  CHECK (stats.bytes <= limit);
}

static void
test_model (const struct map_ops *ops, uint64_t limit,
            unsigned unit_bits, unsigned units, unsigned slices)
{
  const uint64_t two = 2 * units * sizeof (struct cell);
  const uint64_t most = max64 (limit, FLOOR + two);
  struct map *map = map_new (limit);
  struct rng rng, fail;
  struct session t = { .rng = &rng, .nr_items = -1 };
  struct map_stats stats;

  CHECK (map);
  rng_init (&rng, seed, limit + unit_bits * 1000 + units);
  rng_init (&fail, seed, 1);
  t.m = model_new (map, unit_bits, units, slices, ops, &rng);
  t.m->rng = &fail;

  for (unsigned i = 0; i < 6000; i++) {
    const unsigned what = rng_below (&rng, ops->load_raw ? 100 : 60);

    if (what < 60)
      do_look (&t);
    else if (what < 70)
      do_pin (&t);
    else if (what < 80)
      do_unpin (&t);
    else if (what < 95)
      do_edit (&t);
    else if (what < 97)
      do_take (&t);
    else if (what < 99)
      do_written (&t);
    else
      while (t.nr_pins > 0)
        do_unpin (&t);
    check_memory (&t, map, most);
  }

  /* An end where everything is settled, and one where not. */
  while (t.nr_pins > 0)
    do_unpin (&t);
  if (rng_below (&rng, 2))
    while (t.nr_items >= 0 || map_dirty_bytes (t.m->space) > 0) {
      do_take (&t);
      do_written (&t);
    }
  else if (t.nr_items >= 0)
    map_written (t.m->space, t.items, t.nr_items, false);
  map_get_stats (map, &stats);
  CHECK (stats.misses > 0 && stats.hits > 0);
  CHECK (limit > 1 << 24 || stats.evictions > 0);
  CHECK (limit > 1 << 24 || !ops->load_raw || stats.packs > 0);
  if (rng_below (&rng, 2))
    map_space_free (t.m->space);
  map_free (map);
  model_free (t.m);
}

static void
test_models (void)
{
  static const struct map_ops *const ops[] = {
    &load_only, &raw_only, &all_ops, &raw_peek, &load_together, &raw_together
  };

  for (unsigned i = 0; i < sizeof ops / sizeof ops[0]; i++) {
    test_model (ops[i], 0, 9, 64, 100);
    test_model (ops[i], 50 << 10, 16, 64, 300);
    test_model (ops[i], 64 << 20, 21, 64, 300);
    test_model (ops[i], 100 << 10, 12, 1, 5000);
    test_model (ops[i], 60 << 10, 11, 2048, 60);
  }
  CHECK (peeks > 1000 && loads_together > 10);
}

/* --- every allocation fails once --- */

static void
test_nomem (void)
{
  struct map *map = map_new (30 << 10);
  struct map_slice *s;
  struct map_dirty *items;
  struct map_stats stats;
  struct model *m;
  struct rng rng;
  struct run run;
  bool barrier, failed;
  unsigned failures = 0, n;
  int r;

  CHECK (map);
  rng_init (&rng, seed, 99);
  quiet_errors = true;
  m = model_new (map, 16, 64, 300, &raw_only, &rng);

  /* The same steps, with the k-th allocation failing. */
  for (unsigned round = 0; round < 150; round++) {
    unsigned long errors = error_count ();
    const uint64_t slice = rng_below (&rng, m->slices);

    failed = false;
    fail_countdown = 1 + round % 30;
    for (unsigned i = 0; i < 5; i++) {
      if (map_lookup (m->space, (slice + i) % m->slices * 64 << 16, 1, &run)
          == -1) {
        CHECK (errno == ENOMEM && error_count () > errors);
        errors = error_count ();
        failed = true;
      }
    }
    n = 0;
    s = map_pin (m->space, slice);
    if (s) {
      struct cell *raw = map_edit_begin (s);

      random_cells (m, &rng, &m->now[slice * 64], 64);
      memcpy (raw, &m->now[slice * 64], 64 * sizeof *raw);
      map_edit_end (s, MAP_CHANGED);
      map_unpin (s);
      n = 1;
    }
    else {
      CHECK (errno == ENOMEM && error_count () > errors);
      errors = error_count ();
      failed = true;
    }
    r = map_take_dirty (m->space, &items, &barrier);
    if (r == -1) {
      CHECK (errno == ENOMEM && error_count () > errors);
      failed = true;
      fail_countdown = 0;
      r = map_take_dirty (m->space, &items, &barrier);
    }
    CHECK (r == (int) n);
    for (int i = 0; i < r; i++)
      memcpy (&m->file[slice * 64], items[i].raw, 64 * sizeof (struct cell));
    map_written (m->space, items, r, true);
    /* Some fail where it does no harm: tables grow, raw slices are packed. */
    failed |= fail_countdown == 0;
    fail_countdown = 0;
    failures += failed;

    for (unsigned i = 0; i < m->slices; i++)
      CHECK (look (m, (uint64_t) i * 64 << 16, 1 << 20));
    map_get_stats (map, &stats);
    CHECK (stats.bytes <= FLOOR + 2 * 64 * sizeof (struct cell));
  }
  quiet_errors = false;
  printf ("%u allocations failed\n", failures);
  CHECK (failures > 20);
  map_free (map);
  model_free (m);
}

/* A slice that is known to be vacant is not read again to be changed. */
static void
test_vacant (void)
{
  struct rng rng = { 0 };
  struct map *map = map_new (1 << 20);
  struct model *m = model_new (map, 16, 64, 3, &raw_only, &rng);
  struct map_dirty *items;
  struct map_slice *s;
  unsigned long before;
  bool barrier;

  memset (m->file, 0, 2 * 64 * sizeof *m->file);
  m->file[64 + 63].kind = RUN_ZERO;
  memcpy (m->now, m->file, 3 * 64 * sizeof *m->now);
  for (unsigned i = 0; i < 2; i++) {
    struct cell *raw;

    CHECK (look (m, (uint64_t) i * 64 << 16, 1 << 20));
    before = loads;
    s = map_pin (m->space, i);
    CHECK (s && loads == before + (i == 1));
    raw = map_edit_begin (s);
    CHECK (memcmp (raw, &m->file[i * 64], 64 * sizeof *raw) == 0);
    raw[5].kind = m->now[i * 64 + 5].kind = RUN_ZERO;
    map_edit_end (s, MAP_CHANGED);
    map_unpin (s);
    m->flags[i].dirty = true;
    CHECK (look (m, (uint64_t) i * 64 << 16, 1 << 20));
  }
  CHECK (map_take_dirty (m->space, &items, &barrier) == 2);
  map_written (m->space, items, 2, true);
  map_free (map);
  model_free (m);
}

int
main (void)
{
  seed = seed_from_env ();
  test_vacant ();
  test_models ();
  if (CAN_FAIL_ALLOCATIONS)
    test_nomem ();
  return 0;
}
