/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Where is a disk stored?  As a picture.
 *
 * A strip shows the disk, coloured by the file that stores each part.  A chart shows
 * where in these files the parts are: the disk from left to right, the files from bottom
 * to top.  The lengths of the files become known while entries come, so the rows of the
 * chart become coarser.  Memory depends on the number of files only.
 *
 * From the eighth file of the chain on, all have one colour.
 *
 * Locks: none.
 */

#include <config.h>

#include <stdio.h>
#include <stdlib.h>

#include "util/bytes.h"
#include "util/memory.h"
#include "img/mappicture.h"
#include "img/print.h"

enum { LAST = SVG_NR_COLOURS - 1, ZERO };       /* kinds; before: files */
#define PLACES 40               /* rows of the chart */

static const char *const colours[SVG_KINDS] = { SVG_COLOURS, [ZERO] = "#c8c8c8" };

/* What one file of the chain contributes, in bytes. */
struct contribution {
  uint64_t data, zero, compressed, hidden, pieces;
  uint64_t next;                /* where the last piece ended in the file */
};

struct mappicture {
  uint64_t begin, end;
  uint64_t nothing;             /* bytes that are not stored */
  struct svg_strip *strip;
  uint64_t column, row;         /* bytes of a cell of the chart: of the disk, of a file */
  unsigned rows;                /* in use */
  uint64_t places[SVG_COLUMNS][PLACES][SVG_NR_COLOURS];
  unsigned n;
  struct contribution files[];
};

struct mappicture *
mappicture_new (uint64_t begin, uint64_t end, unsigned n)
{
  struct mappicture *p = memory_new (1, sizeof *p + n * sizeof p->files[0]);

  if (p == NULL)
    return NULL;
  p->begin = begin;
  p->end = end;
  p->n = n;
  p->column = max64 (1, div_up (end - begin, SVG_COLUMNS));
  p->row = 512;
  for (unsigned i = 0; i < n; i++)
    p->files[i].next = UINT64_MAX;
  p->strip = svg_strip_new (end - begin, 4096);
  if (p->strip)
    return p;
  free (p);
  return NULL;
}

void
mappicture_free (struct mappicture *p)
{
  if (p)
    svg_strip_free (p->strip);
  free (p);
}

/* --- entries --- */

static void
count (struct contribution *c, const struct map_entry *e)
{
  if (e->compressed)
    c->compressed += e->length;
  if (e->data && !e->zero)
    c->data += e->length;
  else if (e->present)
    c->zero += e->length;
  if (e->data && !e->has_offset && !e->compressed)
    c->hidden += e->length;
  if (e->data && e->has_offset) {
    c->pieces += e->offset != c->next;
    c->next = e->offset + e->length;
  }
}

/* Rows become twice as high. */
static void
coarsen (struct mappicture *p)
{
  for (unsigned column = 0; column < SVG_COLUMNS; column++)
    for (unsigned row = 0; row < PLACES; row++)
      for (unsigned file = 0; file < SVG_NR_COLOURS; file++) {
        const uint64_t bytes = p->places[column][row][file];

        p->places[column][row][file] = 0;
        p->places[column][row / 2][file] += bytes;
      }
  p->row *= 2;
  p->rows = div_up (p->rows, 2);
}

static void
place (struct mappicture *p, const struct map_entry *e, unsigned file)
{
  uint64_t at = e->start - p->begin, offset = e->offset, n;

  while (div_up (e->offset + e->length, p->row) > PLACES)
    coarsen (p);
  p->rows = max64 (p->rows, div_up (e->offset + e->length, p->row));
  for (uint64_t left = e->length; left > 0; left -= n, at += n, offset += n) {
    n = min64 (left, min64 (p->column - at % p->column, p->row - offset % p->row));
    p->places[at / p->column][offset / p->row][file] += n;
  }
}

void
mappicture_add (struct mappicture *p, const struct map_entry *e)
{
  const unsigned depth = min64 (e->depth, p->n - 1), file = min64 (depth, LAST);

  count (&p->files[depth], e);
  if (!e->present)
    p->nothing += e->length;
  else
    svg_strip_add (p->strip, e->start - p->begin, e->length,
                   e->data && !e->zero ? file : ZERO);
  if (e->data && e->has_offset)
    place (p, e, file);
}

/* --- drawing --- */

static void
draw_places (const struct mappicture *p, struct svg *s)
{
  char bytes[READABLE];

  svg_heading (s, "Its place in the files");
  svg_grid (s, p->rows);
  for (unsigned column = 0; column < SVG_COLUMNS; column++)
    for (unsigned row = 0; row < p->rows; row++) {
      const uint64_t *files = p->places[column][row];
      unsigned most = 0;

      for (unsigned file = 1; file < SVG_NR_COLOURS; file++)
        most = files[file] > files[most] ? file : most;
      if (files[most])
        svg_grid_cell (s, row, column, colours[most]);
    }
  svg_line (s, "From left to right: the disk.  From bottom to top: %s of a file.  A straight "
            "diagonal is one piece.", readable (p->rows * p->row, bytes));
}

static void
describe (struct svg *s, const struct contribution *c)
{
  const struct { const char *what; uint64_t n; } more[] = {
    { "compressed", c->compressed }, { "encrypted", c->hidden }, { "zeros", c->zero },
  };
  char text[500], bytes[SVG_BYTES];
  size_t len = snprintf (text, sizeof text, "data: %s", svg_bytes (c->data, bytes));

  if (c->pieces)
    len += sprintf (text + len, " in %llu piece%s", (unsigned long long) c->pieces,
                    c->pieces == 1 ? "" : "s");
  for (size_t i = 0; i < sizeof more / sizeof more[0]; i++)
    if (more[i].n)
      len += sprintf (text + len, "; %s: %s", more[i].what, svg_bytes (more[i].n, bytes));
  svg_key (s, NULL, "%s", text);
}

/* Returns the bytes of zeros in all files. */
static uint64_t
draw_files (const struct mappicture *p, struct svg *s, const char *const *names)
{
  /* The files that have a colour of their own. */
  const unsigned shown = p->n > SVG_NR_COLOURS ? LAST : p->n;
  struct contribution rest = { .data = 0 };
  uint64_t zero = 0;
  char name[SVG_NAME];

  svg_heading (s, "Files");
  for (unsigned i = 0; i < p->n; i++) {
    const struct contribution *c = &p->files[i];

    zero += c->zero;
    if (i < shown) {
      svg_key (s, colours[i], "%s", svg_name (names[i], name));
      describe (s, c);
      continue;
    }
    rest.data += c->data;
    rest.zero += c->zero;
    rest.compressed += c->compressed;
    rest.hidden += c->hidden;
    rest.pieces += c->pieces;
  }
  if (shown < p->n) {
    svg_key (s, colours[LAST], "%u more files", p->n - shown);
    describe (s, &rest);
  }
  return zero;
}

void
mappicture_draw (const struct mappicture *p, struct svg *s, const char *const *names)
{
  char bytes[SVG_BYTES], step[READABLE];

  svg_heading (s, "The disk: %s", svg_bytes (p->end - p->begin, bytes));
  svg_strip_draw (p->strip, s, colours);
  svg_line (s, "Each cell is %s.  It is filled as far as it is stored, with the colour of the "
            "file that has most.", readable (svg_strip_step (p->strip), step));
  if (p->rows)
    draw_places (p, s);
  svg_key (s, colours[ZERO], "zeros: %s", svg_bytes (draw_files (p, s, names), bytes));
  svg_key (s, SVG_NOTHING, "not stored: %s", svg_bytes (p->nothing, bytes));
}
