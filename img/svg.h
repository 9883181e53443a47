/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Draws a picture of an image.  See svg.c.
 *
 * Functions that return nothing cannot fail: svg_print says if there was no memory.
 */

#ifndef QCOW2_IMG_SVG_H
#define QCOW2_IMG_SVG_H

#include <stdint.h>

/* What a part of a picture can be: each has a colour.  Files of the chain, the disk and
 * its snapshots are the first ones. */
#define SVG_KINDS 11
/* Distinct for people who see colours differently, too. */
#define SVG_COLOURS "#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", \
    "#999900", "#777777"
#define SVG_NR_COLOURS 8
#define SVG_NOTHING "#f2f2f2"

/* Columns of a strip, and of other grids with the same width. */
#define SVG_COLUMNS 96

/* NAME, which others have chosen, as text: characters that can be seen, and not too
 * many. */
#define SVG_NAME 256
extern const char *svg_name (const char *name, char buf[SVG_NAME]);
#define SVG_BYTES 64
extern const char *svg_bytes (uint64_t n, char buf[SVG_BYTES]);

/* It grows downwards, from the title. */
struct svg;

/* NULL: reported. */
extern struct svg *svg_new (const char *fmt, ...)
  __attribute__ ((__format__ (__printf__, 1, 2)));
/* Prints and frees it.  -1: reported; errors of stdout are not. */
extern int svg_print (struct svg *);

extern void svg_heading (struct svg *, const char *fmt, ...)
  __attribute__ ((__format__ (__printf__, 2, 3)));
extern void svg_line (struct svg *, const char *fmt, ...)
  __attribute__ ((__format__ (__printf__, 2, 3)));
/* What COLOUR means; NULL: more about the last one. */
extern void svg_key (struct svg *, const char *colour, const char *fmt, ...)
  __attribute__ ((__format__ (__printf__, 3, 4)));
/* A bar that shows N of MOST bytes. */
extern void svg_bar (struct svg *, const char *what, uint64_t n, uint64_t most);

/* A grid of ROWS by SVG_COLUMNS cells follows. */
extern void svg_grid (struct svg *, unsigned rows);
/* In the last grid.  Row 0 is the lowest one. */
extern void svg_grid_cell (struct svg *, unsigned row, unsigned column, const char *colour);

/* SIZE bytes (or other units) as rows of cells, from left to right and from top to
 * bottom.  Each one says which kind has most of its bytes; a cell has UNIT bytes, or
 * more. */
struct svg_strip;
extern struct svg_strip *svg_strip_new (uint64_t size, uint64_t unit);  /* NULL:
                                                                           reported */
extern void svg_strip_free (struct svg_strip *);
extern void svg_strip_add (struct svg_strip *, uint64_t start, uint64_t length,
                           unsigned kind);
extern void svg_strip_draw (const struct svg_strip *, struct svg *,
                            const char *const colours[SVG_KINDS]);
/* Bytes of a cell. */
extern uint64_t svg_strip_step (const struct svg_strip *);

#endif /* QCOW2_IMG_SVG_H */
