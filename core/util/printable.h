/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Makes text of unknown origin (names from an image, names of processes) fit for a
 * message.
 *
 * Everything except printable ASCII is escaped: a name must not be able to move the
 * cursor of a terminal or to forge a line of a log.
 */

#ifndef QCOW2_PRINTABLE_H
#define QCOW2_PRINTABLE_H

#include <stddef.h>

/* Size of a buffer that is large enough for a text of N bytes, with the NUL. */
#define PRINTABLE_SIZE(n) (4 * (n) + 1)

/* Writes TEXT, up to LEN bytes or its first NUL, to OUT, as much as fits into SIZE (> 0)
 * bytes.  Returns OUT. */
static inline const char *
printable (const char *text, size_t len, char *out, size_t size)
{
  static const char digits[] = "0123456789abcdef";
  size_t o = 0;

  for (size_t i = 0; i < len && text[i] != '\0'; i++) {
    unsigned char c = text[i];

    if (c >= 0x20 && c < 0x7f && c != '\\') {
      if (o + 1 >= size)
        break;
      out[o++] = c;
    }
    else {
      if (o + 4 >= size)
        break;
      out[o++] = '\\';
      out[o++] = 'x';
      out[o++] = digits[c >> 4];
      out[o++] = digits[c & 15];
    }
  }
  out[o] = '\0';
  return out;
}

#endif /* QCOW2_PRINTABLE_H */
