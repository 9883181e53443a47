/* SPDX-License-Identifier: BSD-3-Clause
 *
 * How is a picture of an image drawn?
 *
 * As SVG, with rectangles and text.  However large a disk is and however many parts it
 * has, a picture has some thousand shapes: what is drawn are the cells of grids, and each
 * says what most of it contains.  The texts have exact numbers.  The picture refers to
 * nothing, and names are only text in it.
 *
 * The body is collected in memory, because the height, which is known at the end, comes
 * first.
 *
 * Locks: none.
 */

#include <config.h>

#include <inttypes.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "util/bytes.h"
#include "util/memory.h"
#include "util/report.h"
#include "util/utf8.h"
#include "img/print.h"
#include "img/svg.h"

#define WIDTH 1000
#define MARGIN 20
#define INSIDE (WIDTH - 2 * MARGIN)
#define LINE 20                 /* between lines of text */
#define CELL 12                 /* the height of a row of a strip */
#define GRID_CELL 6             /* the same in a grid */
#define ROWS 20                 /* most of a strip */
#define COLUMN ((double) INSIDE / SVG_COLUMNS)

struct svg {
  FILE *body;
  char *text;                   /* of the body */
  size_t len;
  char *title;
  size_t title_len;
  double y;                     /* where the next thing is drawn */
  double grid_end;              /* the lower end of the last grid */
};

/* --- text --- */

const char *
svg_name (const char *name, char buf[SVG_NAME])
{
  enum { BEGIN = 30, END = 27, MOST = BEGIN + 3 + END };
  unsigned all = 0, i = 0, n;
  char *to = buf;

  for (const char *s = name; *s; s += max64 (utf8_length (s), 1))
    all++;
  for (const char *s = name; *s; s += max64 (utf8_length (s), 1), i++) {
    if (all > MOST && i == BEGIN)
      to = mempcpy (to, "...", 3);
    if (all > MOST && i >= BEGIN && i < all - END)
      continue;
    n = utf8_shown (s);
    to = n ? mempcpy (to, s, n) : mempcpy (to, "?", 1);
  }
  *to = '\0';
  return buf;
}

const char *
svg_bytes (uint64_t n, char buf[SVG_BYTES])
{
  char size[READABLE];

  if (n < 1024)
    snprintf (buf, SVG_BYTES, "%" PRIu64 " bytes", n);
  else
    snprintf (buf, SVG_BYTES, "%" PRIu64 " bytes (%s)", n, readable (n, size));
  return buf;
}

static void
put_escaped (FILE *fp, const char *text)
{
  for (; *text; text++)
    switch (*text) {
    case '&': fputs ("&amp;", fp); break;
    case '<': fputs ("&lt;", fp); break;
    case '>': fputs ("&gt;", fp); break;
    case '"': fputs ("&quot;", fp); break;
    default: putc (*text, fp);
    }
}

static void
put_text (FILE *fp, const char *fmt, va_list args)
{
  char text[1000];              /* with two names at most */

  vsnprintf (text, sizeof text, fmt, args);
  put_escaped (fp, text);
}

static void
draw_text (struct svg *s, double x, unsigned size, const char *fmt, va_list args)
{
  fprintf (s->body, "<text x=\"%g\" y=\"%g\" font-size=\"%u\">", x, s->y, size);
  put_text (s->body, fmt, args);
  fputs ("</text>\n", s->body);
}

/* --- shapes --- */

static void
draw_rectangle (struct svg *s, double x, double y, double width, double height,
                const char *colour)
{
  fprintf (s->body, "<rect x=\"%.5g\" y=\"%.5g\" width=\"%.5g\" height=\"%.5g\" "
           "fill=\"%s\"/>\n", x, y, width, height, colour);
}

void
svg_heading (struct svg *s, const char *fmt, ...)
{
  va_list args;

  s->y += 1.4 * LINE;
  va_start (args, fmt);
  draw_text (s, MARGIN, 15, fmt, args);
  va_end (args);
  s->y += 8;
}

void
svg_line (struct svg *s, const char *fmt, ...)
{
  va_list args;

  s->y += LINE;
  va_start (args, fmt);
  draw_text (s, MARGIN, 13, fmt, args);
  va_end (args);
}

void
svg_key (struct svg *s, const char *colour, const char *fmt, ...)
{
  va_list args;

  s->y += LINE;
  if (colour)
    draw_rectangle (s, MARGIN, s->y - 11, 16, 12, colour);
  va_start (args, fmt);
  draw_text (s, MARGIN + 24, 13, fmt, args);
  va_end (args);
}

static void
draw_label (struct svg *s, double x, const char *fmt, ...)
{
  va_list args;

  va_start (args, fmt);
  draw_text (s, x, 13, fmt, args);
  va_end (args);
}

void
svg_bar (struct svg *s, const char *what, uint64_t n, uint64_t most)
{
  enum { AT = MARGIN + 90, LENGTH = 560 };
  const char *const colours[] = { SVG_COLOURS };
  const double length = most ? (double) LENGTH * n / most : 0;
  char bytes[SVG_BYTES];

  svg_line (s, "%s", what);
  draw_rectangle (s, AT, s->y - 11, LENGTH, CELL, SVG_NOTHING);
  if (n)
    draw_rectangle (s, AT, s->y - 11, length < 1 ? 1 : length, CELL, colours[0]);
  draw_label (s, AT + LENGTH + 10, "%s", svg_bytes (n, bytes));
}

void
svg_grid (struct svg *s, unsigned rows)
{
  s->y += 4;
  draw_rectangle (s, MARGIN, s->y, INSIDE, rows * GRID_CELL, SVG_NOTHING);
  s->y += rows * GRID_CELL;
  s->grid_end = s->y;
}

void
svg_grid_cell (struct svg *s, unsigned row, unsigned column, const char *colour)
{
  draw_rectangle (s, MARGIN + column * COLUMN, s->grid_end - (row + 1) * GRID_CELL,
                  COLUMN, GRID_CELL, colour);
}

/* --- strips --- */

struct svg_strip {
  uint64_t step;                /* bytes of a cell */
  unsigned n;                   /* cells */
  uint64_t bytes[SVG_COLUMNS * ROWS][SVG_KINDS];
};

struct svg_strip *
svg_strip_new (uint64_t size, uint64_t unit)
{
  struct svg_strip *strip = memory_new (1, sizeof *strip);

  if (strip == NULL)
    return NULL;
  for (strip->step = unit; div_up (size, strip->step) > SVG_COLUMNS * ROWS; )
    strip->step *= 2;
  strip->n = max64 (1, div_up (size, strip->step));
  return strip;
}

void
svg_strip_free (struct svg_strip *strip)
{
  free (strip);
}

uint64_t
svg_strip_step (const struct svg_strip *strip)
{
  return strip->step;
}

void
svg_strip_add (struct svg_strip *strip, uint64_t start, uint64_t length, unsigned kind)
{
  uint64_t n;

  for (; length > 0; start += n, length -= n) {
    n = min64 (length, strip->step - start % strip->step);
    strip->bytes[start / strip->step][kind] += n;
  }
}

/* How a cell is filled: its height says how much of it there is. */
struct fill { unsigned height, kind; };

static struct fill
find_fill (const struct svg_strip *strip, unsigned cell)
{
  const uint64_t *bytes = strip->bytes[cell];
  struct fill f = { 0, 0 };
  uint64_t all = 0;

  for (unsigned kind = 0; kind < SVG_KINDS; kind++) {
    all += bytes[kind];
    if (bytes[kind] > bytes[f.kind])
      f.kind = kind;
  }
  /* In steps, so that neighbours are alike. */
  if (all)
    f.height = max64 (1, CELL * (double) all / strip->step + 0.5);
  return f;
}

/* Neighbours that are alike are one shape. */
static void
draw_row (const struct svg_strip *strip, unsigned from, unsigned end, struct svg *s,
          const char *const *colours)
{
  unsigned first = from;

  draw_rectangle (s, MARGIN, s->y, (end - from) * COLUMN, CELL, SVG_NOTHING);
  for (unsigned i = from; i < end; i++) {
    const struct fill f = find_fill (strip, first);
    const struct fill next = i + 1 < end ? find_fill (strip, i + 1) : (struct fill) { 0, 0 };

    if (i + 1 < end && next.height == f.height && next.kind == f.kind)
      continue;
    if (f.height)
      draw_rectangle (s, MARGIN + (first - from) * COLUMN, s->y + CELL - f.height,
                      (i + 1 - first) * COLUMN, f.height, colours[f.kind]);
    first = i + 1;
  }
  s->y += CELL + 3;
}

void
svg_strip_draw (const struct svg_strip *strip, struct svg *s,
                const char *const colours[SVG_KINDS])
{
  s->y += 4;
  for (unsigned from = 0; from < strip->n; from += SVG_COLUMNS)
    draw_row (strip, from, min64 (from + SVG_COLUMNS, strip->n), s, colours);
}

/* --- the picture --- */

struct svg *
svg_new (const char *fmt, ...)
{
  struct svg *s = memory_new (1, sizeof *s);
  FILE *title = s ? open_memstream (&s->title, &s->title_len) : NULL;
  va_list args;

  if (title) {
    va_start (args, fmt);
    put_text (title, fmt, args);
    va_end (args);
    s->body = fclose (title) == 0 ? open_memstream (&s->text, &s->len) : NULL;
    if (s->body) {
      s->y = MARGIN + 1.4 * LINE;
      fprintf (s->body, "<text x=\"%d\" y=\"%g\" font-size=\"18\">%s</text>\n", MARGIN, s->y,
               s->title);
      s->y += 8;
      return s;
    }
  }
  if (s) {
    report_error ("open_memstream: %m");
    free (s->title);
    free (s);
  }
  return NULL;
}

int
svg_print (struct svg *s)
{
  const double height = s->y + MARGIN;
  const bool lost = ferror (s->body);
  int r = fclose (s->body) == EOF || lost ? -1 : 0;

  if (r == -1)
    report_error ("SVG: %m");
  else
    printf ("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n"
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%.0f\" "
            "viewBox=\"0 0 %d %.0f\" font-family=\"sans-serif\">\n<title>%s</title>\n"
            "<rect width=\"100%%\" height=\"100%%\" fill=\"#ffffff\"/>\n%s</svg>\n",
            WIDTH, height, WIDTH, height, s->title, s->text);
  free (s->title);
  free (s->text);
  free (s);
  return r;
}
