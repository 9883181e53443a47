/* SPDX-License-Identifier: BSD-3-Clause
 *
 * In which layer, and where in it, is a guest range, if no layer changes?  Part of
 * layers.c.
 *
 * Specification: "Cluster mapping", and for the layers below an image, "Header" (backing
 * file).
 *
 * Only the top image of a backing chain ever changes, and only while it is writable.  So
 * the place of a guest range (layer, kind, host offset) is resolved once, slice by slice,
 * when the map misses.  Resolving goes down the layers, and in each looks up only the
 * ranges that are still open.  The merged runs are added to the map.  From then on a
 * lookup takes the same time, and the same memory, for one layer and for a thousand.
 * Layers have no cache of their own; even their L1 tables stay in the file, because a
 * slice needs one or two of their entries, once.
 *
 *      open     [-----------------------------]
 *      layer 1  ####....####..................      # resolved  . still open
 *      layer 2      ####    ..................
 *      raw base             ##################
 *
 * Beyond the end of a layer its contents are zeros, even where a lower layer is longer.
 *
 * Layers behind a link are different: each question takes a round trip, and those to
 * many layers no longer than one.  Their L1 tables are in memory (image.c), and the first
 * layer that has to be asked is asked together with all below it, whether they are needed
 * or not.
 *
 * Locks: none.  The stack does not change, and resolving uses only memory of its own
 * call.
 */

#include <config.h>

#include <stdlib.h>
#include <string.h>

#include "util/bytes.h"
#include "util/cleanup.h"
#include "util/memory.h"
#include "util/report.h"
#include "format/entry.h"
#include "mapping/layers-impl.h"

/* The largest number of units in a slice; it limits the work of one resolve. */
#define MAX_SLICE_UNITS (1u << 22)
/* Slices are resolved together as long as it takes no more than this, in all layers. */
#define MOST_TOGETHER_BYTES (4 * MAP_TOGETHER_BYTES)
#define MOST_TOGETHER_UNITS (1u << 17)

struct layers_view {
  struct layers *layers;
  unsigned from, to;            /* layers [from, to) */
  bool single;                  /* the view is of these layers alone */
  bool detailed;                /* for layers_each_run */
  struct layer *snapshot;       /* replaces layer 0, and uses its image; NULL: none */
  struct map_space *space;
  uint64_t disk_size;
  unsigned unit_bits;
  unsigned units;               /* per slice */
  unsigned together;            /* slices that are resolved together */
};

/* --- resolving one slice --- */

/* Lists of runs in guest order; start and len in bytes. */
struct run_list {
  struct run *runs;
  size_t n, room;
};

static uint64_t
run_end (const struct run *run)
{
  return run->start + run->len;
}

static int
append (struct run_list *list, const struct run *run)
{
  struct run *p;

  if (run->len == 0)
    return 0;
  if (list->n == list->room) {
    list->room = list->room ? list->room * 2 : 64;
    p = memory_resize (list->runs, list->room, sizeof *p);
    if (p == NULL)
      return -1;
    list->runs = p;
  }
  list->runs[list->n++] = *run;
  return 0;
}

static int
append_plain (struct run_list *list, uint64_t start, uint64_t end,
              enum run_kind kind, uint16_t layer, uint64_t host)
{
  const struct run run = {
    .start = start, .len = end - start, .host = host,
    .layer = layer, .kind = kind,
  };

  return append (list, &run);
}

/* What the tables of a layer say about a guest range within one L2 table. */
struct table_part {
  unsigned layer;
  uint64_t table;               /* number of the L2 table */
  uint64_t l1_entry;
  bool bad;                     /* it must not be followed */
  bool known;                   /* false: it could not be read */
  uint64_t start;               /* guest offset of the first of ENTRIES */
  uint64_t bytes;               /* of ENTRIES */
  void *entries;                /* of the L2 table; NULL: there is none */
};

/* A question to one layer, and the answers. */
struct resolve {
  uint16_t index;               /* of the layer */
  const struct layer *layer;
  bool detailed;                /* of the view */
  bool patient;                 /* remote layers not reached at once are waited for */
  struct run_list open;         /* still unresolved, in order; as the layer before this
                                   one has answered */
  struct run_list next_open;    /* ranges that the layer leaves open */
  struct run_list found;        /* all answers so far, unsorted */

  /* What remote layers have said together: those before `asked' that are left to be
   * looked at, in order. */
  struct table_part *parts;
  size_t nr_parts, room_parts, next_part;
  unsigned asked;
};

/* Decodes the entries in RAW, which describe guest range [start, end). */
static int
take_entries (struct resolve *r, const void *raw, uint64_t raw_start,
              uint64_t start, uint64_t end)
{
  const struct header *h = &r->layer->image->header;
  const unsigned bits = entry_unit_bits (h);
  const uint64_t last = (end - 1 - raw_start) >> bits;
  uint64_t unit = (start - raw_start) >> bits, n;
  struct run run;

  while (start < end) {
    n = entry_decode (h, r->layer->image->overlap, raw, unit, last - unit + 1, &run);
    if (run_host_advances (run.kind))
      run.host += start - (raw_start + (unit << bits));
    /* In an external data file, the host offset equals the guest offset. */
    if (entry_is_external (h) && run_host_advances (run.kind) &&
        run.host != start) {
      run.kind = RUN_CORRUPT;
      run.host = round_down (run.host, h->cluster_size);
      n = 1;
    }
    run.start = start;
    run.len = min64 (end, raw_start + ((unit + n) << bits)) - start;
    run.layer = r->index;
    run.copied = false;
    run.unsettled = false;
    if (run.kind == RUN_ZERO_ALLOC && !r->detailed)
      run.kind = RUN_ZERO;
    if (append (run.kind == RUN_UNALLOCATED || run.kind == RUN_RESERVED
                ? &r->next_open : &r->found, &run) == -1)
      return -1;
    start += run.len;
    unit += n;
  }
  return 0;
}

/* Is this known to be an L2 table, and nothing else?  The tables of a snapshot may be
 * shared with the active disk, and may be too many to be registered. */
static bool
is_l2_table (const struct layer *layer, uint64_t offset)
{
  const enum overlap_kind kind =
    overlap_find (layer->image->overlap, offset,
                  layer->image->header.cluster_size);

  return kind == OVERLAP_L2 ||
    (layer->is_snapshot &&
     (kind == OVERLAP_INACTIVE_L2 || kind == OVERLAP_NONE));
}

/* Plans to read what describes guest range [start, end). */
static void
plan_part (const struct layer *layer, uint64_t start, uint64_t end,
           struct table_part *part)
{
  const struct header *h = &layer->image->header;
  const uint64_t first = start >> h->cluster_bits;

  part->table = start >> (h->cluster_bits + h->l2_bits);
  part->start = first << h->cluster_bits;
  part->bytes = (((end - 1) >> h->cluster_bits) - first + 1) * h->l2_entry_size;
}

/* Where the entries of the part are in the file, or 0 if there are none to be read. */
static uint64_t
judge_l1_entry (const struct layer *layer, struct be64 entry, struct table_part *part)
{
  const struct header *h = &layer->image->header;
  const uint64_t offset = get64 (entry) & QCOW2_L1_OFFSET_MASK;
  const uint64_t within = (part->start >> h->cluster_bits) &
    ((UINT64_C (1) << h->l2_bits) - 1);

  part->l1_entry = get64 (entry);
  part->bad = entry_l1_fault (h, storage_size (layer->file), offset) != NULL ||
    (offset != 0 && !is_l2_table (layer, offset));
  return offset == 0 || part->bad ? 0 : offset + within * h->l2_entry_size;
}

static uint64_t
l1_entry_offset (const struct layer *layer, const struct table_part *part)
{
  return layer->l1_offset + part->table * sizeof (struct be64);
}

/* The caller frees PART->entries, also on failure. */
static int
read_part (const struct layer *layer, uint64_t start, uint64_t end,
           struct table_part *part)
{
  struct be64 l1;
  uint64_t offset;

  plan_part (layer, start, end, part);
  if (storage_read (layer->file, &l1, sizeof l1, l1_entry_offset (layer, part)) == -1)
    return -1;
  offset = judge_l1_entry (layer, l1, part);
  if (offset == 0)
    return 0;
  part->entries = memory_get (part->bytes);
  if (part->entries == NULL)
    return -1;
  return storage_read (layer->file, part->entries, part->bytes, offset);
}

/* --- asking many remote layers at once --- */

/* So many bytes of entries are asked for before it is known which of them are needed. */
#define MOST_ASKED (UINT64_C (4) << 20)

static const struct layer *
layer_of (const struct layers_view *v, unsigned i)
{
  return i == 0 && v->snapshot ? v->snapshot : v->layers->layers[i];
}

static bool
is_remote (const struct layer *layer)
{
  return layer->image && storage_is_remote (layer->file);
}

/* Is the L1 table in memory? */
static bool
has_l1 (const struct layer *layer)
{
  return layer->image->l1 && !layer->is_snapshot;
}

static void
free_parts (struct resolve *r)
{
  for (size_t i = 0; i < r->nr_parts; i++)
    free (r->parts[i].entries);
  r->nr_parts = r->next_part = 0;
}

/* Plans one part for each L2 table of layer I that describes open ranges.  Adds the bytes
 * that have to be read to *BYTES.  Returns -1 on ENOMEM, which only costs time. */
static int
plan_layer (struct resolve *r, const struct layer *layer, unsigned i, uint64_t *bytes)
{
  const struct header *h = &layer->image->header;
  const unsigned span = h->cluster_bits + h->l2_bits;
  const uint64_t end = min64 (run_end (&r->open.runs[r->open.n - 1]), layer->size);
  uint64_t at, next;

  for (at = r->open.runs[0].start; at < end; at = next) {
    struct table_part *part;

    next = min64 (((at >> span) + 1) << span, end);
    if (r->nr_parts == r->room_parts) {
      const size_t room = r->room_parts ? r->room_parts * 2 : 16;

      part = realloc (r->parts, room * sizeof *part);
      if (part == NULL)
        return -1;
      r->parts = part;
      r->room_parts = room;
    }
    part = &r->parts[r->nr_parts++];
    *part = (struct table_part) { .layer = i };
    plan_part (layer, at, next, part);
    if (!has_l1 (layer) || get64 (layer->image->l1[part->table]) != 0)
      *bytes += part->bytes;
  }
  return 0;
}

/* Reads the L1 entries that are not in memory to L1, one for each part. */
static void
ask_l1 (const struct layers_view *v, struct resolve *r, struct be64 *l1,
        struct storage_range *ranges)
{
  size_t i, n = 0;

  for (i = 0; i < r->nr_parts; i++) {
    struct table_part *part = &r->parts[i];
    const struct layer *layer = layer_of (v, part->layer);

    part->known = has_l1 (layer);
    if (part->known)
      l1[i] = layer->image->l1[part->table];
    else
      ranges[n++] = (struct storage_range) {
        .storage = layer->file, .buf = &l1[i], .count = sizeof l1[i],
        .offset = l1_entry_offset (layer, part),
      };
  }
  if (n == 0)
    return;
  storage_try_many (ranges, n);
  for (i = n = 0; i < r->nr_parts; i++)
    if (!r->parts[i].known)
      r->parts[i].known = ranges[n++].done;
}

/* Reads the L2 entries of all parts whose L1 entry is known. */
static void
ask_l2 (const struct layers_view *v, struct resolve *r, const struct be64 *l1,
        struct storage_range *ranges)
{
  size_t i, n = 0;

  for (i = 0; i < r->nr_parts; i++) {
    struct table_part *part = &r->parts[i];
    const struct layer *layer = layer_of (v, part->layer);
    const uint64_t offset = part->known ? judge_l1_entry (layer, l1[i], part) : 0;

    if (offset == 0)
      continue;
    part->entries = malloc (part->bytes);
    part->known = part->entries != NULL;
    if (part->known)
      ranges[n++] = (struct storage_range) {
        .storage = layer->file, .buf = part->entries, .count = part->bytes,
        .offset = offset,
      };
  }
  storage_try_many (ranges, n);
  for (i = n = 0; i < r->nr_parts; i++)
    if (r->parts[i].entries)
      r->parts[i].known = ranges[n++].done;
}

/* Asks layer FIRST and the remote ones below it for all that is open now, at the same
 * time, so that a deep chain takes no longer than one layer.  Most answers may turn out
 * not to be needed: what is asked for is limited, and what fails is asked again when
 * needed. */
static void
ask_layers (const struct layers_view *v, struct resolve *r, unsigned first)
{
  CLEANUP_FREE struct storage_range *ranges = NULL;
  CLEANUP_FREE struct be64 *l1 = NULL;
  uint64_t bytes = 0;
  unsigned i;

  free_parts (r);
  for (i = first; i < v->to && bytes < MOST_ASKED; i++)
    if (is_remote (layer_of (v, i)) && plan_layer (r, layer_of (v, i), i, &bytes) == -1)
      break;
  r->asked = i + (i == first);
  ranges = calloc (r->nr_parts + 1, sizeof *ranges);
  l1 = malloc ((r->nr_parts + 1) * sizeof *l1);
  if (ranges && l1) {
    ask_l1 (v, r, l1, ranges);
    ask_l2 (v, r, l1, ranges);
  }
}

/* What the layer has said about TABLE; NULL if it was not asked, or has not answered. */
static const struct table_part *
find_part (struct resolve *r, uint64_t table)
{
  while (r->next_part < r->nr_parts &&
         (r->parts[r->next_part].layer < r->index ||
          (r->parts[r->next_part].layer == r->index &&
           r->parts[r->next_part].table < table)))
    r->next_part++;
  if (r->next_part < r->nr_parts) {
    const struct table_part *part = &r->parts[r->next_part];

    if (part->layer == r->index && part->table == table && part->known)
      return part;
  }
  return NULL;
}

/* --- taking the answers --- */

/* Resolves the open guest range [start, end), which is within the part. */
static int
take_range (struct resolve *r, const struct table_part *part, uint64_t start,
            uint64_t end)
{
  if (part->bad)
    return append_plain (&r->found, start, end, RUN_CORRUPT, r->index,
                         part->l1_entry);
  if (part->entries == NULL)
    return append_plain (&r->next_open, start, end, RUN_UNALLOCATED, r->index, 0);
  return take_entries (r, part->entries, part->start, start, end);
}

/* Resolves everything that is open in the L2 table in which open range *I begins.  *I
 * becomes the next range, or the rest of the last one if that extends into the next
 * table. */
static int
take_table (struct resolve *r, size_t *i)
{
  const struct header *h = &r->layer->image->header;
  const unsigned span = h->cluster_bits + h->l2_bits;
  struct run *const open = r->open.runs;
  const uint64_t table_end = ((open[*i].start >> span) + 1) << span;
  const struct table_part *part = find_part (r, open[*i].start >> span);
  struct table_part own = { 0 };
  uint64_t end;
  size_t n;
  int ret = 0;

  for (n = *i + 1; n < r->open.n && open[n].start < table_end; n++)
    ;
  end = min64 (run_end (&open[n - 1]), table_end);
  if (part == NULL && !r->patient && is_remote (r->layer))
    return -1;
  if (part == NULL) {
    ret = read_part (r->layer, open[*i].start, end, &own);
    part = &own;
  }
  for (; ret == 0 && *i < n; ++*i) {
    end = min64 (run_end (&open[*i]), table_end);
    ret = take_range (r, part, open[*i].start, end);
    if (end < run_end (&open[*i])) {
      open[*i].len = run_end (&open[*i]) - end;
      open[*i].start = end;
      break;
    }
  }
  free (own.entries);
  return ret;
}

/* Nothing but zeros is below the rest of the open range, from START on. */
static int
end_open (struct resolve *r, const struct run *open, uint64_t start, enum run_kind kind)
{
  const uint64_t host = run_host_advances (open->kind) ? open->host + start - open->start
    : 0;

  return r->detailed
    ? append_plain (&r->found, start, run_end (open), open->kind, open->layer, host)
    : append_plain (&r->found, start, run_end (open), kind, 0, 0);
}

/* Cuts the open ranges at the layer's size; zeros follow. */
static int
cut_at_size (struct resolve *r)
{
  const uint64_t size = r->layer->size;
  struct run *last;

  while (r->open.n > 0) {
    last = &r->open.runs[r->open.n - 1];
    if (run_end (last) <= size)
      break;
    if (end_open (r, last, max64 (last->start, size), RUN_ZERO) == -1)
      return -1;
    if (last->start < size) {
      last->len = size - last->start;
      break;
    }
    r->open.n--;
  }
  return 0;
}

static int
take_layer (struct resolve *r)
{
  struct run_list swap;
  size_t i = 0;

  if (cut_at_size (r) == -1)
    return -1;

  if (r->layer->image == NULL) {
    for (; i < r->open.n; i++) {
      r->open.runs[i].kind = RUN_NORMAL;
      r->open.runs[i].layer = r->index;
      r->open.runs[i].host = r->open.runs[i].start;
      if (append (&r->found, &r->open.runs[i]) == -1)
        return -1;
    }
    r->open.n = 0;
    return 0;
  }

  while (i < r->open.n)
    if (take_table (r, &i) == -1)
      return -1;

  swap = r->open;
  r->open = r->next_open;
  r->next_open = swap;
  r->next_open.n = 0;
  return 0;
}

static int
compare_runs (const void *a, const void *b)
{
  const struct run *x = a, *y = b;

  return x->start < y->start ? -1 : x->start > y->start;
}

/* The answers of a single layer are in order. */
static void
sort (struct run_list *list)
{
  for (size_t i = 1; i < list->n; i++)
    if (list->runs[i].start < list->runs[i - 1].start) {
      qsort (list->runs, list->n, sizeof *list->runs, compare_runs);
      return;
    }
}

/* Adds the runs to the map, in units, UNITS from START on. */
static int
fill (struct layers_view *v, uint64_t start, uint64_t units, struct run_list *found,
      struct map_fill *f)
{
  unsigned at = 0, end;
  size_t i;

  sort (found);
  for (i = 0; i < found->n; i++) {
    const struct run *run = &found->runs[i];

    /* Run borders are multiples of the unit, except at the end of the disk. */
    end = (run_end (run) - start +
           (UINT64_C (1) << v->unit_bits) - 1) >> v->unit_bits;
    if (end == at)
      continue;
    if (map_fill_add (f, end - at, run->kind, false, run->layer,
                      run->host) == -1)
      return -1;
    at = end;
  }
  if (at < units &&
      map_fill_add (f, units - at, RUN_ZERO, false, 0, 0) == -1)
    return -1;
  return 0;
}

/* Finds all runs of [start, end), which is within the disk. */
static int
resolve_range (const struct layers_view *v, struct resolve *r, uint64_t start,
               uint64_t end)
{
  unsigned i;

  r->detailed = v->detailed;
  if (append_plain (&r->open, start, end, RUN_UNALLOCATED, 0, 0) == -1)
    return -1;
  for (i = v->from; i < v->to && r->open.n > 0; i++) {
    r->index = i;
    r->layer = layer_of (v, i);
    if (i >= r->asked && is_remote (r->layer))
      ask_layers (v, r, i);
    if (take_layer (r) == -1)
      return -1;
  }
  for (size_t j = 0; j < r->open.n; j++)
    if (end_open (r, &r->open.runs[j], r->open.runs[j].start,
                  v->single ? RUN_UNALLOCATED : RUN_ZERO) == -1)
      return -1;
  return 0;
}

static void
resolve_end (struct resolve *r)
{
  free (r->open.runs);
  free (r->next_open.runs);
  free (r->found.runs);
  free_parts (r);
  free (r->parts);
}

static int
load_slices (void *opaque, uint64_t slice, unsigned n, struct map_fill *f)
{
  struct layers_view *v = opaque;
  const uint64_t units = (uint64_t) n * v->units;
  const uint64_t start = slice * v->units << v->unit_bits;
  const uint64_t end = min64 (start + (units << v->unit_bits), v->disk_size);
  struct resolve r = { .patient = n == 1 };
  int ret = -1;

  if (resolve_range (v, &r, start, end) == 0)
    ret = fill (v, start, units, &r.found, f);
  resolve_end (&r);
  return ret;
}

static int64_t
peek (void *opaque, uint64_t slice, unsigned unit, unsigned max,
      struct run *run)
{
  struct layers_view *v = opaque;
  const uint64_t unit_bytes = UINT64_C (1) << v->unit_bits;
  const uint64_t start = (slice * v->units + unit) << v->unit_bits;
  const uint64_t end = min64 (start + (max << v->unit_bits), v->disk_size);
  struct resolve r = { .patient = true };
  int64_t n = -1;

  if (start >= v->disk_size) {
    *run = (struct run) { .kind = RUN_ZERO };
    return max;
  }
  if (resolve_range (v, &r, start, end) == 0) {
    const struct run *first = &r.found.runs[0];

    for (size_t i = 1; i < r.found.n; i++)
      if (r.found.runs[i].start < first->start)
        first = &r.found.runs[i];
    *run = *first;
    n = (first->len + unit_bytes - 1) >> v->unit_bits;
  }
  resolve_end (&r);
  return n;
}

/* Looking up a few entries in many layers takes nearly as long as a whole slice, unless
 * the bytes travel over a link. */
#define MAX_PEEK_LAYERS 4

static bool
any_remote (const struct layers_view *v)
{
  for (unsigned i = v->from; i < v->to; i++)
    if (is_remote (v->layers->layers[i]))
      return true;
  return false;
}

static uint64_t
slow_slices (void *opaque)
{
  const struct layers_view *v = opaque;

  return any_remote (v) ? div_up (v->disk_size, (uint64_t) v->units << v->unit_bits) : 0;
}

static unsigned
together (void *opaque)
{
  const struct layers_view *v = opaque;

  return v->together;
}

static const struct map_ops layers_map_ops = {
  .load = load_slices, .peek = peek, .slow_slices = slow_slices, .together = together,
};
static const struct map_ops long_chain_map_ops = {
  .load = load_slices, .together = together,
};

/* --- all runs --- */

/* So many units are resolved at a time. */
#define UNITS_AT_ONCE (1u << 16)

/* The smallest unit of the layers' tables: no run has a border within one, except where a
 * layer ends. */
static unsigned
smallest_unit_bits (const struct layers *s, unsigned from, unsigned to)
{
  unsigned bits = QCOW2_MAX_CLUSTER_BITS;

  for (unsigned i = from; i < to; i++)
    if (s->layers[i]->image)
      bits = min64 (bits, entry_unit_bits (&s->layers[i]->image->header));
  return bits;
}

static int
each_of_range (const struct layers_view *v, uint64_t start, uint64_t end,
               layers_run_fn fn, void *opaque)
{
  struct resolve r = { .patient = true };
  int ret = resolve_range (v, &r, start, end);

  if (ret == 0)
    sort (&r.found);
  for (size_t i = 0; ret == 0 && i < r.found.n; i++)
    ret = fn (opaque, &r.found.runs[i]);
  KEEP_ERRNO_FOR_BLOCK;
  resolve_end (&r);
  return ret;
}

/* SNAPSHOT: the layer that TOP was when it had this L1 table. */
static void
as_snapshot (struct layer *snapshot, const struct layer *top, uint64_t l1_offset,
             uint64_t disk_size)
{
  memcpy (snapshot, top, sizeof *snapshot);
  snapshot->is_snapshot = true;
  snapshot->l1_offset = l1_offset;
  snapshot->size = disk_size;
}

int
layers_each_run (struct layers *s, const struct snapshot *snapshot, layers_run_fn fn,
                 void *opaque)
{
  struct layer top;
  const struct layers_view v = {
    .layers = s, .to = s->n, .detailed = true, .snapshot = snapshot ? &top : NULL,
  };
  const uint64_t size = snapshot ? snapshot->disk_size : layers_size (s, 0);
  const uint64_t step = (uint64_t) UNITS_AT_ONCE << smallest_unit_bits (s, 0, s->n);

  if (snapshot)
    as_snapshot (&top, s->layers[0], snapshot->l1_offset, size);
  for (uint64_t at = 0; at < size; at += step)
    if (each_of_range (&v, at, min64 (size, at + step), fn, opaque) == -1)
      return -1;
  return 0;
}

/* --- views --- */

struct layers_view *
layers_view_new_snapshot (struct layers *s, struct map *map,
                          uint64_t l1_offset, uint64_t disk_size,
                          uint64_t slice_size)
{
  struct layers_view *v = layers_view_new (s, 0, map, disk_size, slice_size);

  if (v == NULL)
    return NULL;
  v->snapshot = memory_get (sizeof *v->snapshot);
  if (v->snapshot == NULL) {
    layers_view_free (v);
    return NULL;
  }
  as_snapshot (v->snapshot, s->layers[0], l1_offset, disk_size);
  return v;
}

/* How many slices are resolved together: a part of one table of each layer, and not too
 * much of all layers.  No more than the disk needs. */
static unsigned
slices_together (const struct layers_view *v, uint64_t slice_size)
{
  const unsigned slice_bits = v->unit_bits + __builtin_ctz (v->units);
  uint64_t images = 0, most = MAP_TOGETHER_BYTES / slice_size, n = 1;

  for (unsigned i = v->from; i < v->to; i++)
    if (v->layers->layers[i]->image) {
      const struct header *h = &v->layers->layers[i]->image->header;

      images++;
      most = min64 (most, (UINT64_C (1) << (h->cluster_bits + h->l2_bits)) >> slice_bits);
    }
  if (images == 0)
    return 1;
  most = min64 (most, MOST_TOGETHER_BYTES / (slice_size * images));
  most = min64 (most, MOST_TOGETHER_UNITS / v->units);
  while (2 * n <= most && n << slice_bits < v->disk_size)
    n *= 2;
  return n;
}

/* A view of layers [from, to). */
static struct layers_view *
new_view (struct layers *s, unsigned from, unsigned to, struct map *map,
          uint64_t disk_size, uint64_t slice_size)
{
  struct layers_view *v = memory_new (1, sizeof *v);
  unsigned unit_bits = smallest_unit_bits (s, from, to), i;
  uint64_t span = slice_size / 8 << QCOW2_MAX_CLUSTER_BITS;

  if (v == NULL)
    return NULL;
  v->layers = s;
  v->from = from;
  v->to = to;
  v->disk_size = disk_size;

  /* The unit is chosen so that no run border is inside one.  Borders are those of
   * clusters or subclusters, and the ends of layers that are shorter than the disk.  A
   * slice covers as much as the smallest slice of the layers' tables does. */
  for (i = from; i < to; i++)
    if (s->layers[i]->image) {
      const struct header *h = &s->layers[i]->image->header;

      span = min64 (span, slice_size / h->l2_entry_size << h->cluster_bits);
    }
  for (i = from; i < to; i++)
    if (s->layers[i]->size < disk_size && s->layers[i]->size != 0) {
      unsigned b = __builtin_ctzll (s->layers[i]->size);
      if (b < unit_bits)
        unit_bits = b;
    }

  v->unit_bits = unit_bits;
  v->units = min64 (span >> unit_bits, MAX_SLICE_UNITS);
  v->together = slices_together (v, slice_size);

  v->space = map_space_new (map, unit_bits, v->units, 0,
                            to - from <= MAX_PEEK_LAYERS || any_remote (v)
                            ? &layers_map_ops : &long_chain_map_ops, v);
  if (v->space == NULL) {
    report_error ("map_space_new: %m");
    free (v);
    return NULL;
  }
  return v;
}

struct layers_view *
layers_view_new (struct layers *s, unsigned from, struct map *map,
                 uint64_t disk_size, uint64_t slice_size)
{
  return new_view (s, from, s->n, map, disk_size, slice_size);
}

struct layers_view *
layers_view_new_part (struct layers *s, unsigned from, unsigned to, struct map *map,
                      uint64_t disk_size, uint64_t slice_size)
{
  struct layers_view *v = new_view (s, from, to, map, disk_size, slice_size);

  if (v)
    v->single = true;
  return v;
}

struct layers_view *
layers_view_new_single (struct layers *s, unsigned i, struct map *map,
                        uint64_t slice_size)
{
  return layers_view_new_part (s, i, i + 1, map, s->layers[i]->size, slice_size);
}

void
layers_view_free (struct layers_view *v)
{
  if (v == NULL)
    return;
  map_space_free (v->space);
  free (v->snapshot);
  free (v);
}

/* Are there only zeros below? */
static bool
is_empty (const struct layers_view *v)
{
  return v->from >= v->layers->n;
}

bool
layers_has (struct layers_view *v, uint64_t offset)
{
  return is_empty (v) || map_has (v->space, offset);
}

int
layers_lookup (struct layers_view *v, uint64_t offset, uint64_t len,
               struct run *run)
{
  if (is_empty (v)) {
    *run = (struct run) { .start = offset, .len = len, .kind = RUN_ZERO };
    return 0;
  }
  return map_lookup (v->space, offset, len, run);
}

void
layers_lookup_soon (struct layers_view *v, uint64_t offset)
{
  if (!is_empty (v))
    map_load_ahead (v->space, offset);
}
