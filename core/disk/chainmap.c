/* SPDX-License-Identifier: BSD-3-Clause
 *
 * How is each range of a disk stored?
 *
 * The answers are those of qemu-img map --output=json: the same ranges, keys and values,
 * as QEMU 10 prints them; before 8.2 there was no `compressed', and before 6.1 no
 * `present'.
 *
 *   depth     the layer that says what the range contains; 0 is the top image
 *   present   that layer says so itself, and not because there is nothing below it
 *   offset    in the file of that layer, or in its external data file; none if the bytes
 *             there are not those of the disk (compressed, encrypted)
 *   zero and data   a cluster that was allocated and never written reads as zeros
 *
 * They are told while the tables are read, so their number does not matter.
 *
 * Locks: none; one thread, and no client changes the image.
 */

#include <config.h>

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>

#include "util/report.h"
#include "disk/chainmap.h"

/* --- entries --- */

struct walk {
  struct layers *layers;
  struct storage_holes known;
  struct map_entry last;        /* not yet told: the next one may continue it */
  int (*fn) (void *opaque, const struct map_entry *);
  void *opaque;
};

static bool
continues (const struct map_entry *a, const struct map_entry *b)
{
  return a->depth == b->depth && a->present == b->present && a->zero == b->zero &&
    a->data == b->data && a->compressed == b->compressed &&
    a->has_offset == b->has_offset &&
    (!a->has_offset || a->offset + a->length == b->offset);
}

static int
add (struct walk *w, const struct map_entry *e)
{
  if (w->last.length > 0 && continues (&w->last, e)) {
    w->last.length += e->length;
    return 0;
  }
  if (w->last.length > 0 && w->fn (w->opaque, &w->last) == -1)
    return -1;
  w->last = *e;
  return 0;
}

/* --- runs --- */

/* Adds a range whose host clusters may be holes of the file. */
static int
add_with_holes (struct walk *w, struct map_entry e)
{
  struct storage *file = layers_data_file (w->layers, e.depth);
  const bool raw = layers_header (w->layers, e.depth) == NULL;
  const uint64_t end = e.offset + (layers_size (w->layers, 0) - e.start);
  uint64_t left = e.length;
  bool hole;

  for (; left > 0; left -= e.length) {
    e.length = left;
    hole = storage_hole_ahead (file, &w->known, e.offset, end, &e.length);
    e.zero = hole;
    e.data = !raw || !hole;
    if (add (w, &e) == -1)
      return -1;
    e.start += e.length;
    e.offset += e.length;
  }
  return 0;
}

static int
refuse_run (const struct walk *w, const struct run *run)
{
  return report_refusal (EIO, "%s: image is corrupt: L1 or L2 entry 0x%" PRIx64 " for "
                         "guest offset %" PRIu64 " is invalid",
                         storage_path (layers_file (w->layers, run->layer)), run->host,
                         run->start);
}

static int
add_run (void *opaque, const struct run *run)
{
  struct walk *w = opaque;
  const struct header *h = layers_header (w->layers, run->layer);
  const bool hidden = run->kind == RUN_UNALLOCATED || run->kind == RUN_RESERVED;
  const struct map_entry e = {
    .start = run->start, .length = run->len, .depth = run->layer,
    .present = !hidden,
    .zero = hidden || run->kind == RUN_ZERO || run->kind == RUN_ZERO_ALLOC,
    .data = run->kind == RUN_NORMAL || run->kind == RUN_COMPRESSED,
    .compressed = run->kind == RUN_COMPRESSED,
    .has_offset = run_host_advances (run->kind) &&
      (h == NULL || h->crypt_method == QCOW2_CRYPT_NONE),
    .offset = run->host,
  };

  if (run->kind == RUN_CORRUPT)
    return refuse_run (w, run);
  return run->kind == RUN_NORMAL && e.has_offset &&
    (h == NULL || layers_preallocated (w->layers, run->layer))
    ? add_with_holes (w, e) : add (w, &e);
}

/* The size of the disk may be 0: qemu-img then says an entry without a length. */
int
chainmap_each (struct layers *layers, const struct snapshot *snapshot,
               int (*fn) (void *opaque, const struct map_entry *), void *opaque)
{
  struct walk w = { .layers = layers, .fn = fn, .opaque = opaque };

  storage_holes_begin (&w.known, false);
  return layers_each_run (layers, snapshot, add_run, &w) == -1 ? -1 : fn (opaque, &w.last);
}

/* --- the report --- */

static const char *
word (bool b)
{
  return b ? "true" : "false";
}

void
chainmap_print (FILE *fp, const struct map_entry *e)
{
  fprintf (fp, "{ \"start\": %" PRIu64 ", \"length\": %" PRIu64 ", \"depth\": %u, "
           "\"present\": %s, \"zero\": %s, \"data\": %s, \"compressed\": %s",
           e->start, e->length, e->depth, word (e->present), word (e->zero),
           word (e->data), word (e->compressed));
  if (e->has_offset)
    fprintf (fp, ", \"offset\": %" PRIu64, e->offset);
  putc ('}', fp);
}
