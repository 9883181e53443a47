/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What does map= write?
 *
 * A JSON array of objects, each of which says how a guest range is stored, as qemu-img map
 * --output=json prints it: the same ranges, keys and values, and one line for each.  They
 * are those of QEMU 10; before 8.2 there was no `compressed', and before 6.1 no `present'.
 *
 *   depth     the layer that says what the range contains; 0 is the top image
 *   present   that layer says so itself, and not because there is nothing below it
 *   offset    in the file of that layer, or in its external data file; none if the bytes
 *             there are not those of the disk (compressed, encrypted)
 *   zero and data   a cluster that was allocated and never written reads as zeros
 *
 * The report is written while the tables are read, so its length does not matter.
 *
 * Locks: none; one thread, and nobody changes the image.
 */

#include <config.h>

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>

#include "util/report.h"
#include "storage/reportfile.h"
#include "disk/mapreport.h"

static const struct report_kind kind = { "map", { "[{ \"start\": 0, " } };

/* A line of the report. */
struct entry {
  uint64_t start, length;       /* bytes */
  unsigned depth;
  bool present, zero, data, compressed;
  bool has_offset;
  uint64_t offset;
};

struct report {
  FILE *fp;
  struct layers *layers;
  struct storage_holes known;
  struct entry last;            /* not yet written: the next one may continue it */
};

/* --- lines --- */

static const char *
word (bool b)
{
  return b ? "true" : "false";
}

/* END is what comes after the entry. */
static int
write_last (struct report *r, const char *end)
{
  const struct entry *e = &r->last;

  fprintf (r->fp, "%s{ \"start\": %" PRIu64 ", \"length\": %" PRIu64 ", \"depth\": %u, "
           "\"present\": %s, \"zero\": %s, \"data\": %s, \"compressed\": %s",
           e->start == 0 ? "[" : "", e->start, e->length, e->depth, word (e->present),
           word (e->zero), word (e->data), word (e->compressed));
  if (e->has_offset)
    fprintf (r->fp, ", \"offset\": %" PRIu64, e->offset);
  fprintf (r->fp, "}%s\n", end);
  return ferror (r->fp) ? -1 : 0;
}

static bool
continues (const struct entry *a, const struct entry *b)
{
  return a->depth == b->depth && a->present == b->present && a->zero == b->zero &&
    a->data == b->data && a->compressed == b->compressed &&
    a->has_offset == b->has_offset &&
    (!a->has_offset || a->offset + a->length == b->offset);
}

static int
add (struct report *r, const struct entry *e)
{
  if (r->last.length > 0 && continues (&r->last, e)) {
    r->last.length += e->length;
    return 0;
  }
  if (r->last.length > 0 && write_last (r, ",") == -1)
    return -1;
  r->last = *e;
  return 0;
}

/* --- runs --- */

/* Adds a range whose host clusters may be holes of the file. */
static int
add_with_holes (struct report *r, struct entry e)
{
  struct storage *file = layers_data_file (r->layers, e.depth);
  const bool raw = layers_header (r->layers, e.depth) == NULL;
  const uint64_t end = e.offset + (layers_size (r->layers, 0) - e.start);
  uint64_t left = e.length;
  bool hole;

  for (; left > 0; left -= e.length) {
    e.length = left;
    hole = storage_hole_ahead (file, &r->known, e.offset, end, &e.length);
    e.zero = hole;
    e.data = !raw || !hole;
    if (add (r, &e) == -1)
      return -1;
    e.start += e.length;
    e.offset += e.length;
  }
  return 0;
}

static int
refuse (const struct report *r, const struct run *run)
{
  report_error ("%s: image is corrupt: L1 or L2 entry 0x%" PRIx64 " for guest offset %"
                PRIu64 " is invalid", storage_path (layers_file (r->layers, run->layer)),
                run->host, run->start);
  errno = EIO;
  return -1;
}

static int
add_run (void *opaque, const struct run *run)
{
  struct report *r = opaque;
  const struct header *h = layers_header (r->layers, run->layer);
  const bool hidden = run->kind == RUN_UNALLOCATED || run->kind == RUN_RESERVED;
  const struct entry e = {
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
    return refuse (r, run);
  return run->kind == RUN_NORMAL && e.has_offset &&
    (h == NULL || layers_preallocated (r->layers, run->layer))
    ? add_with_holes (r, e) : add (r, &e);
}

/* --- the report --- */

struct request {
  struct layers *layers;
  const struct snapshot *snapshot;      /* NULL: the active disk */
};

/* The size of the disk may be 0: qemu-img then prints an entry without a length. */
static int
print (FILE *fp, const void *opaque)
{
  const struct request *request = opaque;
  struct report r = { .fp = fp, .layers = request->layers };

  storage_holes_begin (&r.known, false);
  if (layers_each_run (r.layers, request->snapshot, add_run, &r) == 0)
    return write_last (&r, "]");
  return ferror (fp) ? -1 : REPORTFILE_TOLD;
}

int
mapreport_check (const char *path)
{
  return reportfile_check (&kind, path, false);
}

int
mapreport_write (const char *path, struct layers *layers, const struct snapshot *snapshot)
{
  const struct request request = { layers, snapshot };

  return reportfile_write (&kind, path, true, print, &request);
}
