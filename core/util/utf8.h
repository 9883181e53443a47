/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Which bytes form a character in UTF-8 (RFC 3629), and which may be shown?  See utf8.c.
 */

#ifndef QCOW2_UTF8_H
#define QCOW2_UTF8_H

#include <stdbool.h>
#include <stdint.h>

/* Returns the length of the sequence at TEXT, in bytes, or 0 if it is not a character.
 * TEXT ends with a NUL, which counts as a character. */
static inline unsigned
utf8_length (const char *text)
{
  const unsigned char *s = (const unsigned char *) text;
  const unsigned n = s[0] < 0x80 ? 1 : s[0] < 0xc2 ? 0 : s[0] < 0xe0 ? 2
    : s[0] < 0xf0 ? 3 : s[0] < 0xf5 ? 4 : 0;

  for (unsigned i = 1; i < n; i++)
    if ((s[i] & 0xc0) != 0x80)
      return 0;
  /* Overlong sequences, surrogates, and numbers beyond the last character. */
  if ((s[0] == 0xe0 && s[1] < 0xa0) || (s[0] == 0xed && s[1] > 0x9f) ||
      (s[0] == 0xf0 && s[1] < 0x90) || (s[0] == 0xf4 && s[1] > 0x8f))
    return 0;
  return n;
}

/* Is S valid UTF-8? */
static inline bool
utf8_is_text (const char *s)
{
  unsigned n;

  for (; *s; s += n)
    if ((n = utf8_length (s)) == 0)
      return false;
  return true;
}

/* The same as utf8_length, but 0 also for a character that is not to be shown as it
 * is. */
extern unsigned utf8_shown (const char *text);

/* The number of the character of N bytes at TEXT. */
extern uint32_t utf8_code (const char *text, unsigned n);

#endif /* QCOW2_UTF8_H */
