/* SPDX-License-Identifier: BSD-3-Clause
 *
 * How does JSON say what C's strings and numbers contain?
 *
 * JSON is UTF-8, but a path may contain any bytes.  In the document, a byte 0xNN that is
 * not part of a character is the escape \udcNN (80 to ff), as in Python's os.fsdecode:
 * half of a surrogate pair, which no valid string contains.  jansson neither accepts nor
 * writes such halves.  So in memory the byte is the character U+10FFNN, for which
 * jsontext_write writes the escape.  The real characters U+10FF80 to U+10FFFF (which
 * are for private use) are taken as their four bytes, so that they are not mistaken.
 * A program that turns the string into bytes again, as Python's os.fsencode does, always
 * gets those of the path.
 *
 * jansson's integers are signed.  Larger numbers become the nearest floating-point
 * number, as which many programs read all numbers.
 *
 * Locks: none.
 */

#include <config.h>

#include <ctype.h>
#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "util/cleanup.h"
#include "util/jsontext.h"
#include "util/utf8.h"

json_t *
jsontext_number (uint64_t n)
{
  return n <= INT64_MAX ? json_integer (n) : json_real (n);
}

/* --- strings --- */

#define STAND_IN_LENGTH 4

/* Writes the character that stands for the byte C, >= 0x80, in UTF-8. */
static void
put_stand_in (char *to, unsigned char c)
{
  to[0] = '\xf4';
  to[1] = '\x8f';
  to[2] = 0xbc | c >> 6;
  to[3] = 0x80 | (c & 0x3f);
}

/* The byte for which the character at S stands, or 0 if it stands for itself. */
static unsigned char
get_stand_in (const char *s)
{
  const unsigned char third = s[0] == '\xf4' && s[1] == '\x8f' ? s[2] : 0;

  return third >= 0xbe ? (third & 3) << 6 | (s[3] & 0x3f) : 0;
}

json_t *
jsontext_string (const char *s)
{
  CLEANUP_FREE char *text = malloc (STAND_IN_LENGTH * strlen (s) + 1);
  char *to = text;
  unsigned n;

  if (text == NULL)
    return NULL;
  while (*s) {
    n = utf8_length (s);
    if (n == 0 || get_stand_in (s)) {
      put_stand_in (to, *s++);
      to += STAND_IN_LENGTH;
      continue;
    }
    memcpy (to, s, n);
    to += n;
    s += n;
  }
  *to = '\0';
  return json_string (text);
}

/* --- documents --- */

json_t *
jsontext_add_members (json_t *object, const struct json_member *members)
{
  int r = object ? 0 : -1;

  /* All of them, because each value given is freed by this, or belongs to OBJECT. */
  for (; members->key; members++)
    r |= json_object_set_new (object, members->key, members->value);
  if (r == 0)
    return object;
  json_decref (object);
  errno = ENOMEM;
  return NULL;
}

json_t *
jsontext_append (json_t *array, json_t *value)
{
  if (json_array_append_new (array, value) == 0)
    return array;
  json_decref (array);
  errno = ENOMEM;
  return NULL;
}

/* For a character that JSON would allow, but that is not to be shown. */
static void
put_code (uint32_t c, FILE *fp)
{
  if (c > 0xffff) {
    fprintf (fp, "\\u%04X", 0xd7c0 + (c >> 10));
    c = 0xdc00 | (c & 0x3ff);
  }
  fprintf (fp, "\\u%04X", c);
}

/* Writes a part of the text, which ends with a whole character. */
static int
write_part (const char *text, size_t size, void *opaque)
{
  FILE *fp = opaque;
  unsigned char c;
  unsigned n;

  for (const char *s = text; s < text + size; s += n) {
    n = utf8_length (s);
    c = n == STAND_IN_LENGTH ? get_stand_in (s) : 0;
    if (c)
      fprintf (fp, "\\udc%02x", c);
    else if (*s != '\n' && utf8_shown (s) == 0)
      put_code (utf8_code (s, n), fp);
    else
      fwrite (s, 1, n, fp);
  }
  return ferror (fp) ? -1 : 0;
}

/* Not json_dumps, whose text lacks a key when there was no memory for it. */
int
jsontext_print (json_t *document, unsigned indent, FILE *fp)
{
  int r;

  errno = ENOMEM;               /* jansson does not set it */
  r = json_dump_callback (document, write_part, fp, JSON_INDENT (indent) | JSON_ENCODE_ANY);
  if (r == 0)
    r = write_part ("\n", 1, fp);
  KEEP_ERRNO_FOR_BLOCK;
  json_decref (document);
  return r;
}

int
jsontext_write (json_t *document, FILE *fp)
{
  return jsontext_print (document, 2, fp);
}

/* --- and back --- */

/* The byte for which the escape at S, before END, stands; or 0. */
static unsigned char
get_escape (const char *s, const char *end)
{
  char digits[3] = "";
  unsigned long byte;

  if (end - s < 6 || strncasecmp (s, "\\udc", 4) != 0 || !isxdigit ((unsigned char) s[4]) ||
      !isxdigit ((unsigned char) s[5]))
    return 0;
  memcpy (digits, s + 4, 2);
  byte = strtoul (digits, NULL, 16);
  return byte >= 0x80 ? byte : 0;
}

/* The length of the escape at S: both halves of a pair are one. */
static size_t
escape_length (const char *s, const char *end)
{
  const bool first_half = end - s >= 12 && (s[1] == 'u' || s[1] == 'U') &&
    (s[2] == 'd' || s[2] == 'D') && strchr ("89abAB", s[3]) && s[6] == '\\';

  return first_half ? 12 : end - s < 2 ? 1 : 2;
}

json_t *
jsontext_read (const char *text, size_t len)
{
  const char *const end = text + len;
  CLEANUP_FREE char *copy = malloc (len + 1);   /* a stand-in is no longer */
  char *to = copy;
  size_t n;

  for (const char *s = text; copy && s < end; s += n) {
    const unsigned char byte = *s == '\\' ? get_escape (s, end) : 0;

    n = byte ? 6 : *s == '\\' ? escape_length (s, end) : 1;
    if (byte)
      put_stand_in (to, byte);
    else
      memcpy (to, s, n);
    to += byte ? STAND_IN_LENGTH : n;
  }
  return copy ? json_loadb (copy, to - copy, JSON_REJECT_DUPLICATES, NULL) : NULL;
}

json_t *
jsontext_read_as_qemu (const char *text, json_error_t *why)
{
  CLEANUP_FREE char *copy = malloc (2 * strlen (text) + 1);
  char *to = copy, quote = '\0';

  for (const char *s = text; copy && *s; s++) {
    const bool opens = !quote && (*s == '"' || *s == '\''), ends = quote && *s == quote;
    const bool escape = quote && *s == '\\' && s[1];

    if (opens || ends)
      quote = opens ? *s : '\0';
    else if ((escape && s[1] != '\'') || (quote && *s == '"'))
      *to++ = '\\';             /* (JSON has no escape for a single quote) */
    s += escape;
    *to++ = opens || ends ? '"' : *s;
  }
  return copy ? json_loadb (copy, to - copy, JSON_REJECT_DUPLICATES, why) : NULL;
}

const char *
jsontext_text (const json_t *object, const char *key)
{
  const char *text = json_string_value (json_object_get (object, key));

  return text ? text : "";
}

char *
jsontext_bytes (const char *s)
{
  char *const bytes = malloc (strlen (s) + 1);
  char *to = bytes;

  for (unsigned n; bytes && *s; s += n) {
    const unsigned char byte = (n = utf8_length (s)) == STAND_IN_LENGTH ? get_stand_in (s) : 0;

    if (byte)
      *to++ = byte;
    else
      to = mempcpy (to, s, n);
  }
  if (bytes)
    *to = '\0';
  return bytes;
}

void
jsontext_put (const char *s, FILE *fp)
{
  for (unsigned n; *s; s += n) {
    const unsigned char byte = (n = utf8_length (s)) == STAND_IN_LENGTH ? get_stand_in (s) : 0;

    if (byte)
      fprintf (fp, "\\x%02x", byte);
    else if (utf8_shown (s))
      fwrite (s, 1, n, fp);
    else
      for (unsigned i = 0; i < n; i++)
        fprintf (fp, "\\x%02x", (unsigned char) s[i]);
  }
}
