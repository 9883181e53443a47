/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Where does a JSON value end in a stream, and the next one begin?  See qmpframe.c.
 */

#ifndef QCOW2_QMPFRAME_H
#define QCOW2_QMPFRAME_H

#include <stdbool.h>
#include <stddef.h>

/* The longest value, in bytes. */
#define QMPFRAME_MOST 65536

/* Zeros at first. */
struct qmpframe {
  char text[QMPFRAME_MOST];     /* the value, or its beginning */
  size_t len;
  unsigned braces, brackets;    /* that are open */
  char quote;                   /* that ends the string; 0: not in a string */
  bool escaped;                 /* the last byte was a backslash in a string */
  bool word;                    /* the value is a number or a keyword */
  bool ended;                   /* the value, or the error, was returned */
  bool skips;                   /* to the end of the line */
};

enum qmpframe_found { QMPFRAME_NOTHING, QMPFRAME_VALUE, QMPFRAME_ERROR };

/* Takes bytes from *BYTES, of which there are *N, until a value is complete, which is
 * then in `text', or wrong, and then *WHY says why. */
extern enum qmpframe_found qmpframe_take (struct qmpframe *, const char **bytes,
                                          size_t *n, const char **why);

#endif /* QCOW2_QMPFRAME_H */
