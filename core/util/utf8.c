/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Which characters may a message, a table or a picture show as they are?
 *
 * Names come from outside.  What cannot be seen, or rearranges other text, can forge a
 * line, control a terminal, or make one name look like another.
 *
 * Locks: none.
 */

#include <config.h>

#include <stddef.h>

#include "util/utf8.h"

uint32_t
utf8_code (const char *text, unsigned n)
{
  uint32_t c = n == 1 ? (unsigned char) *text : (unsigned char) *text & (0x7f >> n);

  for (unsigned i = 1; i < n; i++)
    c = c << 6 | ((unsigned char) text[i] & 0x3f);
  return c;
}

/* (Among them what is not allowed in XML, is for private use, or stands for bytes that
 * are no text: jsontext.c.) */
static bool
is_hidden (uint32_t c)
{
  static const struct { uint32_t first, last; } ranges[] = {
    { 0, 0x1f }, { 0x7f, 0x9f }, { 0xad, 0xad }, { 0x61c, 0x61c }, { 0x200b, 0x200f },
    { 0x2028, 0x202e }, { 0x2060, 0x206f }, { 0xe000, 0xf8ff }, { 0xfeff, 0xfeff },
    { 0xfff0, 0xffff }, { 0xe0000, UINT32_MAX }
  };

  for (size_t i = 0; i < sizeof ranges / sizeof ranges[0]; i++)
    if (c >= ranges[i].first && c <= ranges[i].last)
      return true;
  return false;
}

unsigned
utf8_shown (const char *text)
{
  const unsigned n = utf8_length (text);

  return n == 0 || is_hidden (utf8_code (text, n)) ? 0 : n;
}
