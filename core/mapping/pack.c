/* SPDX-License-Identifier: BSD-3-Clause
 *
 * How can the runs of a slice be stored in the fewest bytes, and still be found fast?
 *
 * A pack has the smallest of three forms:
 *
 *   RUNS   an array of struct pack_run, 16 bytes each, in order of start.
 *          For slices that were written in order.
 *   LIST   the same array with each run in a few bits: {start, code}.
 *   ARRAY  one code for each unit; the start is the index in the array.
 *          For slices that were written at random.
 *
 * A code describes a unit completely, in `width' bits.  Properties that units have in
 * common are in a short table of tags, one for each combination of {kind, copied, layer}.
 * Tags share one range of numbers: tag T owns the codes from T.first up to the next tag's
 * first, and code - T.first determines the host offset:
 *
 *      codes   0 1 | 2 | 3 4 5 6 7 8 ...
 *      tag      A    B   C
 *
 * So a kind without a host offset costs one number and not one bit.  The host offset is
 *
 *      v = code - T.first
 *      host = T.base + (low bits of v << T.shift) + (rest of v << T.split)
 *
 * `shift' is the alignment that all host offsets of the tag have.  `split' is for
 * compressed clusters, whose descriptor has an offset in the low bits, a length in the
 * high bits, and a gap between them: both parts are stored, and the gap is left out.
 *
 * From one unit of a run to the next, the code grows by one step (which is 0 if the host
 * offset is constant), so runs are followed without decoding.
 *
 * If the width is above MAX_WIDTH, or there are more than MAX_TAGS tags, the form is
 * RUNS; so a code can always be read with one 8-byte load at any bit offset.
 *
 * Pure: no locks, no I/O, no global state.  Any list of runs can be packed, whatever
 * values an image contains.
 */

#include <config.h>

#include <assert.h>
#include <endian.h>
#include <stdlib.h>
#include <string.h>

#include "util/bytes.h"
#include "mapping/pack.h"

#define MAX_WIDTH 57            /* 64 - 7: the first bit may be the last of a byte */
#define MAX_TAGS 64
#define MAX_FOLLOW 4096         /* limit for the units in one answer from an ARRAY */

enum form { RUNS, LIST, ARRAY };

struct tag {
  uint64_t first;               /* the tag's first code */
  uint64_t base;                /* host offset of that code */
  uint16_t layer;
  uint8_t kind;
  bool copied;
  uint8_t shift, split;         /* 0..63 */
  uint8_t low_bits;             /* bits of the part below split; 63: all */
};

_Static_assert (sizeof (struct pack_run) == 16, "runs are 16 bytes");
_Static_assert (sizeof (struct tag) == 24, "tags are 24 bytes");

/* Followed by the runs (RUNS); or by the tags, then the bits. */
struct pack {
  uint32_t n;                   /* runs (RUNS, LIST) or units (ARRAY) */
  uint8_t form;
  uint8_t nr_tags;
  uint8_t width;                /* bits per code */
  uint8_t start_bits;           /* bits per start (LIST); else 0 */
  uint64_t body[];
};

static inline const struct tag *
tags_of (const struct pack *p)
{
  return (const struct tag *) p->body;
}

static inline const uint8_t *
bits_of (const struct pack *p)
{
  return (const uint8_t *) (tags_of (p) + p->nr_tags);
}

/* The number of bits that a number up to X needs. */
static inline unsigned
bits_for (uint64_t x)
{
  return x == 0 ? 0 : 64 - __builtin_clzll (x);
}

static inline uint64_t
mask (unsigned bits)            /* BITS is 0..63 */
{
  return (UINT64_C (1) << bits) - 1;
}

/* Reads a field of at most MAX_WIDTH bits.  At least 8 bytes from the first byte of each
 * field can be read. */
static inline uint64_t
get_bits (const uint8_t *bits, uint64_t at, unsigned width)
{
  uint64_t w;

  memcpy (&w, bits + (at >> 3), sizeof w);
  return (le64toh (w) >> (at & 7)) & mask (width);
}

/* The field must contain zeros. */
static inline void
set_bits (uint8_t *bits, uint64_t at, uint64_t value)
{
  uint64_t w;

  memcpy (&w, bits + (at >> 3), sizeof w);
  w = htole64 (le64toh (w) | value << (at & 7));
  memcpy (bits + (at >> 3), &w, sizeof w);
}

/* The difference of the host offsets of two consecutive units of a run. */
static inline uint64_t
host_step (enum run_kind kind, unsigned unit_bits)
{
  return run_host_advances (kind) ? UINT64_C (1) << unit_bits : 0;
}

/* --- collecting --- */

void
pack_begin (struct pack_builder *b, struct pack_shape shape)
{
  memset (b, 0, sizeof *b);
  b->shape = shape;
}

void
pack_end (struct pack_builder *b)
{
  free (b->runs);
}

int
pack_add (struct pack_builder *b, unsigned units, enum run_kind kind,
          bool copied, uint16_t layer, uint64_t host)
{
  const uint64_t step = host_step (kind, b->shape.unit_bits);
  struct pack_run *r;

  assert (units <= b->shape.units - b->units);
  if (units == 0)
    return 0;
  if (!run_host_advances (kind) && !run_host_constant (kind))
    host = 0;

  if (b->nr_runs > 0) {
    r = &b->runs[b->nr_runs - 1];
    if (r->kind == kind && r->copied == copied && r->layer == layer &&
        r->host + (b->units - r->start) * step == host) {
      b->units += units;
      return 0;
    }
  }

  if (b->nr_runs == b->room) {
    const unsigned room = b->room ? b->room * 2 : 32;

    r = realloc (b->runs, room * sizeof *r);
    if (r == NULL)
      return -1;
    b->runs = r;
    b->room = room;
  }
  b->runs[b->nr_runs++] = (struct pack_run) {
    .host = host, .start = b->units, .layer = layer, .kind = kind,
    .copied = copied,
  };
  b->units += units;
  return 0;
}

static inline unsigned
run_units (const struct pack_builder *b, unsigned i)
{
  return (i + 1 < b->nr_runs ? b->runs[i + 1].start : b->units)
         - b->runs[i].start;
}

/* --- choosing the codes --- */

struct plan {
  struct tag tags[MAX_TAGS];
  unsigned nr_tags;
  unsigned width;
};

/* Facts about a tag, collected while its codes are chosen. */
struct span {
  uint64_t varies;              /* host bits that are not the same in all runs */
  uint64_t low_min, low_max;    /* of the parts below and above split */
  uint64_t high_min, high_max;
};

static inline uint64_t
low_part (const struct tag *t, uint64_t host)
{
  return t->split ? host & mask (t->split) : host;
}

static inline uint64_t
high_part (const struct tag *t, uint64_t host)
{
  return t->split ? host >> t->split : 0;
}

static bool
tag_fits (const struct tag *t, const struct pack_run *r)
{
  return t->kind == r->kind && t->copied == r->copied && t->layer == r->layer;
}

/* The tag of a run.  Consecutive runs often have the same one. */
static unsigned
find_tag (const struct plan *plan, const struct pack_run *r, unsigned hint)
{
  unsigned i;

  if (hint < plan->nr_tags && tag_fits (&plan->tags[hint], r))
    return hint;
  for (i = 0; i < plan->nr_tags; i++)
    if (tag_fits (&plan->tags[i], r))
      break;
  return i;
}

/* Finds the widest gap of bits that never vary between bits that do.  Returns the bit
 * above it, or 0 if no gap is wide enough. */
static unsigned
widest_gap (uint64_t varies)
{
  unsigned split = 0, widest = 1, bit, below = 64;

  for (bit = 0; bit < 64; bit++) {
    if (!(varies >> bit & 1))
      continue;
    if (below < bit && bit - below - 1 > widest) {
      widest = bit - below - 1;
      split = bit;
    }
    below = bit;
  }
  return split;
}

/* Determines shift and split of each tag from the bits that vary. */
static bool
plan_tags (const struct pack_builder *b, struct plan *plan, struct span *spans)
{
  unsigned i, t = 0;

  plan->nr_tags = 0;
  for (i = 0; i < b->nr_runs; i++) {
    const struct pack_run *r = &b->runs[i];

    t = find_tag (plan, r, t);
    if (t == MAX_TAGS)
      return false;
    if (t == plan->nr_tags) {
      plan->nr_tags++;
      plan->tags[t] = (struct tag) {
        .base = r->host, .layer = r->layer, .kind = r->kind,
        .copied = r->copied,
      };
      /* The step must be a whole number of codes. */
      spans[t] = (struct span) {
        .varies = host_step (r->kind, b->shape.unit_bits),
        .low_min = UINT64_MAX, .high_min = UINT64_MAX,
      };
    }
    spans[t].varies |= r->host ^ plan->tags[t].base;
  }

  for (t = 0; t < plan->nr_tags; t++) {
    struct tag *tag = &plan->tags[t];

    if (spans[t].varies)
      tag->shift = __builtin_ctzll (spans[t].varies);
    if (run_host_constant (tag->kind))
      tag->split = widest_gap (spans[t].varies);
  }
  return true;
}

/* Returns the number of codes that the tag needs, 0 if too many; sets base and
 * low_bits. */
static uint64_t
plan_codes (struct tag *tag, const struct span *s)
{
  const uint64_t low = (s->low_max - s->low_min) >> tag->shift;
  const uint64_t high = s->high_max - s->high_min;

  tag->base = s->low_min + (tag->split ? s->high_min << tag->split : 0);
  if (high == 0) {
    tag->low_bits = 63;
    return bits_for (low) <= MAX_WIDTH ? low + 1 : 0;
  }
  tag->low_bits = bits_for (low);
  if (bits_for (high) + tag->low_bits > MAX_WIDTH)
    return 0;
  return (high + 1) << tag->low_bits;
}

/* Chooses the codes.  False if the runs cannot be coded. */
static bool
make_plan (const struct pack_builder *b, struct plan *plan)
{
  struct span spans[MAX_TAGS];
  uint64_t codes = 0, n, last;
  unsigned i, t = 0;

  if (!plan_tags (b, plan, spans))
    return false;

  for (i = 0; i < b->nr_runs; i++) {
    const struct pack_run *r = &b->runs[i];
    const struct tag *tag;
    struct span *s;

    t = find_tag (plan, r, t);
    tag = &plan->tags[t];
    s = &spans[t];
    if (!add_fits (r->host, (run_units (b, i) - 1) *
                   host_step (r->kind, b->shape.unit_bits), &last))
      return false;
    s->low_min = min64 (s->low_min, low_part (tag, r->host));
    s->low_max = max64 (s->low_max, low_part (tag, last));
    s->high_min = min64 (s->high_min, high_part (tag, r->host));
    s->high_max = max64 (s->high_max, high_part (tag, last));
  }

  for (t = 0; t < plan->nr_tags; t++) {
    n = plan_codes (&plan->tags[t], &spans[t]);
    plan->tags[t].first = codes;
    codes += n;         /* at most 2^58 per iteration: cannot wrap */
    if (n == 0 || codes > UINT64_C (1) << MAX_WIDTH)
      return false;
  }
  plan->width = bits_for (codes - 1);
  return true;
}

/* --- writing and reading codes --- */

static uint64_t
encode (const struct tag *t, uint64_t host)
{
  const uint64_t low = (low_part (t, host) - low_part (t, t->base)) >> t->shift;
  const uint64_t high = high_part (t, host) - high_part (t, t->base);

  return t->first + (low | high << t->low_bits);
}

static inline uint64_t
decode (const struct tag *t, uint64_t code)
{
  const uint64_t v = code - t->first;

  return t->base + ((v & mask (t->low_bits)) << t->shift)
         + ((v >> t->low_bits) << t->split);
}

static inline uint64_t
code_step (const struct tag *t, unsigned unit_bits)
{
  return host_step (t->kind, unit_bits) >> t->shift;
}

static inline const struct tag *
tag_of_code (const struct pack *p, uint64_t code)
{
  const struct tag *t = tags_of (p) + p->nr_tags - 1;

  while (t->first > code)
    t--;
  return t;
}

/* One past the last code of a tag. */
static inline uint64_t
tag_end (const struct pack *p, const struct tag *t)
{
  return t + 1 < tags_of (p) + p->nr_tags ? t[1].first : UINT64_MAX;
}

/* --- building --- */

static size_t
coded_size (unsigned nr_tags, uint64_t n, unsigned bits)
{
  return sizeof (struct pack) + nr_tags * sizeof (struct tag)
         + n * bits / 8 + sizeof (uint64_t);
}

static struct pack *
build_runs (const struct pack_builder *b)
{
  struct pack *p = malloc (sizeof *p + b->nr_runs * sizeof *b->runs);

  if (p == NULL)
    return NULL;
  *p = (struct pack) { .n = b->nr_runs, .form = RUNS };
  memcpy (p->body, b->runs, b->nr_runs * sizeof *b->runs);
  return p;
}

static struct pack *
build_coded (const struct pack_builder *b, const struct plan *plan,
             enum form form, unsigned start_bits)
{
  const uint64_t n = form == LIST ? b->nr_runs : b->units;
  struct pack *p = calloc (1, coded_size (plan->nr_tags, n,
                                          start_bits + plan->width));
  uint8_t *bits;
  uint64_t at = 0, code, step;
  unsigned i, j, t = 0;

  if (p == NULL)
    return NULL;
  *p = (struct pack) {
    .n = n, .form = form, .nr_tags = plan->nr_tags, .width = plan->width,
    .start_bits = start_bits,
  };
  memcpy (p->body, plan->tags, plan->nr_tags * sizeof (struct tag));
  bits = (uint8_t *) bits_of (p);

  for (i = 0; i < b->nr_runs; i++) {
    t = find_tag (plan, &b->runs[i], t);
    code = encode (&plan->tags[t], b->runs[i].host);
    if (form == LIST) {
      set_bits (bits, at, b->runs[i].start | code << start_bits);
      at += start_bits + plan->width;
      continue;
    }
    step = code_step (&plan->tags[t], b->shape.unit_bits);
    for (j = run_units (b, i); j > 0; j--) {
      set_bits (bits, at, code);
      at += plan->width;
      code += step;
    }
  }
  return p;
}

struct pack *
pack_build (const struct pack_builder *b)
{
  const unsigned start_bits = bits_for (b->shape.units - 1);
  enum form form = RUNS;
  size_t best = sizeof (struct pack) + b->nr_runs * sizeof *b->runs, size;
  struct plan plan;

  assert (b->units == b->shape.units);

  if (b->nr_runs > 1 && make_plan (b, &plan)) {
    size = coded_size (plan.nr_tags, b->units, plan.width);
    if (size < best) {
      best = size;
      form = ARRAY;
    }
    size = coded_size (plan.nr_tags, b->nr_runs, start_bits + plan.width);
    if (size < best && start_bits + plan.width <= MAX_WIDTH)
      form = LIST;
  }
  if (form == RUNS)
    return build_runs (b);
  return build_coded (b, &plan, form, form == LIST ? start_bits : 0);
}

/* --- finding --- */

static unsigned
find_in_runs (const struct pack *p, struct pack_shape shape, unsigned unit,
              unsigned max, struct run *run)
{
  const struct pack_run *r = (const struct pack_run *) p->body;
  unsigned lo = 0, n, end;

  /* The run is among the N runs from LO on.  (Without unpredictable branches.) */
  for (n = p->n; n > 1; n -= n / 2)
    lo += r[lo + n / 2].start <= unit ? n / 2 : 0;
  end = lo + 1 < p->n ? r[lo + 1].start : shape.units;
  run->kind = r[lo].kind;
  run->copied = r[lo].copied;
  run->layer = r[lo].layer;
  run->host = r[lo].host
              + (unit - r[lo].start) * host_step (run->kind, shape.unit_bits);
  return min64 (end - unit, max);
}

static inline void
describe (const struct tag *t, uint64_t code, struct run *run)
{
  run->kind = t->kind;
  run->copied = t->copied;
  run->layer = t->layer;
  run->host = decode (t, code);
}

static unsigned
find_in_list (const struct pack *p, struct pack_shape shape, unsigned unit,
              unsigned max, struct run *run)
{
  const uint8_t *bits = bits_of (p);
  const unsigned item = p->start_bits + p->width;
  const struct tag *t;
  uint64_t code;
  unsigned lo = 0, n, start, end;

  for (n = p->n; n > 1; n -= n / 2) {
    start = get_bits (bits, (uint64_t) (lo + n / 2) * item, p->start_bits);
    lo += start <= unit ? n / 2 : 0;
  }
  start = get_bits (bits, (uint64_t) lo * item, p->start_bits);
  end = shape.units;
  if (lo + 1 < p->n)
    end = get_bits (bits, (uint64_t) (lo + 1) * item, p->start_bits);
  code = get_bits (bits, (uint64_t) lo * item, item) >> p->start_bits;
  t = tag_of_code (p, code);
  describe (t, code + (unit - start) * code_step (t, shape.unit_bits), run);
  return min64 (end - unit, max);
}

static unsigned
find_in_array (const struct pack *p, struct pack_shape shape, unsigned unit,
               unsigned max, struct run *run)
{
  const uint8_t *bits = bits_of (p);
  uint64_t at = (uint64_t) unit * p->width;
  uint64_t code = get_bits (bits, at, p->width), step, end;
  const struct tag *t = tag_of_code (p, code);
  unsigned n;

  describe (t, code, run);
  if (max > MAX_FOLLOW)
    max = MAX_FOLLOW;
  step = code_step (t, shape.unit_bits);
  end = tag_end (p, t);
  for (n = 1; n < max; n++) {
    code += step;
    at += p->width;
    if (get_bits (bits, at, p->width) != code || code >= end)
      break;
  }
  return n;
}

unsigned
pack_find (const struct pack *p, struct pack_shape shape, unsigned unit,
           unsigned max, struct run *run)
{
  assert (max > 0 && unit + max <= shape.units);

  switch ((enum form) p->form) {
  case RUNS:  return find_in_runs (p, shape, unit, max, run);
  case LIST:  return find_in_list (p, shape, unit, max, run);
  case ARRAY: return find_in_array (p, shape, unit, max, run);
  }
  abort ();
}

const char *
pack_form (const struct pack *p)
{
  static const char *const names[] = { "runs", "list", "array" };

  return names[p->form];
}

size_t
pack_size (const struct pack *p)
{
  if (p->form == RUNS)
    return sizeof *p + p->n * sizeof (struct pack_run);
  return coded_size (p->nr_tags, p->n, p->width + p->start_bits);
}
