/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Where does a JSON value end in a stream, and the next one begin?
 *
 * Values of QMP need nothing between them: a value ends with the bracket that closes it.
 * So only strings and brackets are understood here; jansson judges the value.  After an
 * error the next byte may begin a value.  A byte that belongs to no JSON text, such as a
 * control character, ends the value in any state, so a client can always begin anew.
 *
 * As in QEMU, strings may be in single quotes; they are turned into JSON's here.
 *
 * The bounds are those on memory and on jansson's recursion: the length of a value, and
 * how many brackets are open.  What follows a value that exceeds them is skipped to the
 * end of its line.
 *
 * Locks: none; a frame belongs to one thread.
 */

#include <config.h>

#include <ctype.h>
#include <string.h>

#include "plugin/qmpframe.h"

/* As in QEMU. */
#define MOST_OPEN 1024

static void
restart (struct qmpframe *f)
{
  f->len = 0;
  f->braces = f->brackets = 0;
  f->quote = '\0';
  f->escaped = f->word = f->ended = false;
}

static enum qmpframe_found
wrong (struct qmpframe *f, const char *text, const char **why)
{
  f->ended = true;
  *why = text;
  return QMPFRAME_ERROR;
}

static enum qmpframe_found
complete (struct qmpframe *f)
{
  if (f->braces + f->brackets > 0)
    return QMPFRAME_NOTHING;
  f->ended = true;
  return QMPFRAME_VALUE;
}

static void
put (struct qmpframe *f, char c)
{
  f->text[f->len++] = c;
}

static enum qmpframe_found
take_in_string (struct qmpframe *f, char c, const char **why)
{
  const bool ends = c == f->quote && !f->escaped;

  if ((unsigned char) c < 0x20)
    return wrong (f, "JSON parse error, stray control character in a string", why);
  if (f->escaped && c == '\'')
    f->len--;                   /* JSON has no such escape */
  else if (!f->escaped && c == '"' && !ends)
    put (f, '\\');
  put (f, ends ? '"' : c);
  f->escaped = c == '\\' && !f->escaped;
  if (!ends)
    return QMPFRAME_NOTHING;
  f->quote = '\0';
  return complete (f);
}

static enum qmpframe_found
open_bracket (struct qmpframe *f, unsigned *open, const char **why)
{
  ++*open;
  if (f->braces + f->brackets <= MOST_OPEN)
    return QMPFRAME_NOTHING;
  f->skips = true;
  return wrong (f, "JSON nesting depth limit exceeded", why);
}

static enum qmpframe_found
close_bracket (struct qmpframe *f, unsigned *open, const char **why)
{
  if (*open == 0)
    return wrong (f, "JSON parse error, expecting value", why);
  --*open;
  return complete (f);
}

static bool
is_word (char c)
{
  return isalnum ((unsigned char) c) || c == '-' || c == '+' || c == '.' || c == '_';
}

static bool
is_space (char c)
{
  return c == ' ' || c == '\t' || c == '\r' || c == '\n';
}

/* Outside of strings. */
static enum qmpframe_found
take_plain (struct qmpframe *f, char c, const char **why)
{
  const bool inside = f->braces + f->brackets > 0;

  if (is_space (c) && !inside)
    return QMPFRAME_NOTHING;
  if (!is_space (c) && ((unsigned char) c < 0x20 || (unsigned char) c >= 0x7f))
    return wrong (f, "JSON parse error, stray character", why);
  put (f, c == '\'' ? '"' : c);
  switch (c) {
  case '{': return open_bracket (f, &f->braces, why);
  case '[': return open_bracket (f, &f->brackets, why);
  case '}': return close_bracket (f, &f->braces, why);
  case ']': return close_bracket (f, &f->brackets, why);
  case '"': case '\'':
    f->quote = c;
    return QMPFRAME_NOTHING;
  }
  if (!inside && !is_word (c))
    return wrong (f, "JSON parse error, expecting value", why);
  f->word = !inside;
  return QMPFRAME_NOTHING;
}

static enum qmpframe_found
take (struct qmpframe *f, char c, const char **why)
{
  if (f->skips) {
    f->skips = c != '\n';
    return QMPFRAME_NOTHING;
  }
  /* (A byte becomes two at most.) */
  if (f->len > QMPFRAME_MOST - 2) {
    f->skips = c != '\n';
    return wrong (f, "JSON token size limit exceeded", why);
  }
  return f->quote ? take_in_string (f, c, why) : take_plain (f, c, why);
}

enum qmpframe_found
qmpframe_take (struct qmpframe *f, const char **bytes, size_t *n, const char **why)
{
  enum qmpframe_found found = QMPFRAME_NOTHING;

  if (f->ended)
    restart (f);
  while (*n > 0 && found == QMPFRAME_NOTHING) {
    /* Only what follows a word shows that it is complete. */
    if (f->word && !is_word (**bytes))
      return complete (f);
    found = take (f, *(*bytes)++, why);
    --*n;
  }
  return found;
}
