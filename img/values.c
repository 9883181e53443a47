/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What does the value of an option mean?
 *
 * The same as for qemu-img, and an error is one line that names the option and shows the
 * value.
 *
 * Locks: none.
 */

#include <config.h>

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "util/bytes.h"
#include "util/memory.h"
#include "util/printable.h"
#include "util/report.h"
#include "util/utf8.h"
#include "img/values.h"

/* Messages show this many characters of a value. */
#define MAX_SHOWN 64

int
bad_value (const char *what, const char *text, const char *fmt, ...)
{
  char shown[PRINTABLE_SIZE (MAX_SHOWN)], why[200];
  va_list args;

  va_start (args, fmt);
  vsnprintf (why, sizeof why, fmt, args);
  va_end (args);
  return report_refusal (EINVAL, "%s%s%s%s: %s", what,
                         text[0] && what[strlen (what) - 1] != '=' ? " " : "",
                         printable (text, MAX_SHOWN, shown, sizeof shown),
                         strlen (text) > MAX_SHOWN ? "..." : "", why);
}

/* --- numbers --- */

static int
digit_value (char c)
{
  if (c >= '0' && c <= '9')
    return c - '0';
  if (c >= 'a' && c <= 'f')
    return c - 'a' + 10;
  return c >= 'A' && c <= 'F' ? c - 'A' + 10 : 16;
}

/* Reads digits at *TEXT, which then is behind them.  False: there are none.  What is too
 * large becomes UINT64_MAX. */
static bool
read_digits (const char **text, unsigned base, uint64_t *r)
{
  const char *const begin = *text;

  for (*r = 0; digit_value (**text) < (int) base; ++*text)
    if (!mul_fits (*r, base, r) || !add_fits (*r, digit_value (**text), r))
      *r = UINT64_MAX;
  return *text > begin;
}

/* The exponent of a unit at *TEXT, which then is behind it; 0: there is none. */
static unsigned
read_unit (const char **text)
{
  static const char units[] = "bkmgtpe";
  const char c = **text >= 'A' && **text <= 'Z' ? **text + ('a' - 'A') : **text;
  const char *unit = c ? strchr (units, c) : NULL;

  if (unit)
    ++*text;
  return unit ? 10 * (unit - units) : 0;
}

/* The digits behind a point, of 2^64, rounded as qemu-img does. */
static bool
read_fraction (const char **text, uint64_t *r)
{
  char digits[40] = "0.";
  unsigned n = 2;
  double fraction;

  for (*r = 0; digit_value (**text) < 10; ++*text)
    if (n < sizeof digits - 1)
      digits[n++] = **text;
  fraction = strtod (digits, NULL);
  if (fraction >= 1)
    return false;
  *r = fraction * 0x1p64;
  return true;
}

int
parse_size (const char *what, const char *text, uint64_t *bytes)
{
  const char *p = text + strspn (text, " \t\n\v\f\r");
  uint64_t whole, fraction = 0;
  bool is_hex, good;
  unsigned shift;

  p += *p == '+';
  is_hex = p[0] == '0' && (p[1] == 'x' || p[1] == 'X');
  p += is_hex ? 2 : 0;
  good = read_digits (&p, is_hex ? 16 : 10, &whole);
  if (good && !is_hex && *p == '.') {
    p++;
    good = read_fraction (&p, &fraction);
  }
  shift = read_unit (&p);
  if (!good || *p || (shift == 0 && fraction))
    return bad_value (what, text, "is not a size (a number of bytes, or with K, M, G, T, P "
                      "or E)");
  if (shift && whole >> (64 - shift))
    whole = UINT64_MAX;
  else
    whole <<= shift;
  /* (What is added is less than 2^61.) */
  if (whole <= INT64_MAX)
    whole += (((unsigned __int128) fraction << shift) + (UINT64_C (1) << 63)) >> 64;
  if (whole > INT64_MAX)
    return bad_value (what, text, "is too large");
  *bytes = whole;
  return 0;
}

int
parse_signed_size (const char *what, const char *text, int *sign, uint64_t *bytes)
{
  *sign = text[0] == '+' ? 1 : text[0] == '-' ? -1 : 0;
  return parse_size (what, text + (*sign != 0), bytes);
}

int
parse_number (const char *what, const char *text, uint64_t least, uint64_t most,
              uint64_t *r)
{
  const bool is_hex = text[0] == '0' && (text[1] == 'x' || text[1] == 'X');
  const char *p = text + (is_hex ? 2 : 0);

  if (!read_digits (&p, is_hex ? 16 : 10, r) || *p)
    return bad_value (what, text, "not a whole number");
  if (*r < least || *r > most)
    return bad_value (what, text, "must be %llu to %llu", (unsigned long long) least,
                      (unsigned long long) most);
  return 0;
}

int
parse_switch (const char *what, const char *text, bool *r)
{
  static const char *const words[][4] = {
    { "off", "no", "false", "n" }, { "on", "yes", "true", "y" },
  };

  for (unsigned b = 0; b < 2; b++)
    for (unsigned i = 0; i < 4; i++)
      if (strcmp (text, words[b][i]) == 0) {
        *r = b;
        return 0;
      }
  return bad_value (what, text, "is neither on nor off");
}

int
parse_new_name (const char *what, const char *text, unsigned most)
{
  const size_t len = strlen (text);
  unsigned n;

  if (len == 0 || len > most)
    return bad_value (what, text, "a name must have 1 to %u bytes", most);
  for (const char *p = text; *p; p += n) {
    n = utf8_length (p);
    if (n == 0 || (unsigned char) *p < ' ' || *p == 0x7f)
      return bad_value (what, text, "a name must be UTF-8 without control characters");
  }
  return 0;
}

char *
read_whole (const char *name, uint64_t most, size_t *len)
{
  char *text = NULL, buf[32 << 10];
  FILE *const fp = fopen (name, "re");
  FILE *const copy = fp ? open_memstream (&text, len) : NULL;
  uint64_t all = 0;
  int err = errno;
  size_t n;

  while (copy && all <= most && (n = fread (buf, 1, sizeof buf, fp)) > 0)
    all += fwrite (buf, 1, n, copy);
  if (copy)
    err = all > most ? EFBIG : ferror (fp) ? errno : 0;
  if (copy && fclose (copy) == EOF && err == 0)
    err = errno;
  if (fp)
    fclose (fp);
  errno = err;
  if (copy && err == 0)
    return text;
  free (text);
  return NULL;
}

/* --- KEY=VALUE,KEY=VALUE... --- */

/* Copies up to LEN bytes, in which commas are doubled. */
static char *
copy_word (const char *text, size_t len)
{
  char *word = memory_get (len + 1), *to = word;

  if (word == NULL)
    return NULL;
  for (size_t i = 0; i < len; i++) {
    *to++ = text[i];
    i += text[i] == ',';
  }
  *to = '\0';
  return word;
}

/* Up to the comma that ends the word. */
static size_t
word_length (const char *text)
{
  size_t n = 0;

  while (text[n] && (text[n] != ',' || text[n + 1] == ','))
    n += text[n] == ',' ? 2 : 1;
  return n;
}

/* WORD is KEY=VALUE, or KEY; it becomes KEY. */
static int
add_word (struct key_values *kv, char *word, const char *implied)
{
  char *equals = strchr (word, '=');
  const char *key = word, *value = equals ? equals + 1 : implied ? word : "on";
  struct key_value *new;

  if (MEMORY_APPEND (kv->list, kv->n) == -1)
    return -1;
  if (equals)
    *equals = '\0';
  else if (implied)
    key = implied;
  if (key[0] == '\0')
    return report_refusal (EINVAL, "a list of options contains an option without a name");
  new = &kv->list[kv->n++];
  *new = (struct key_value) { memory_text (key), memory_text (value), false };
  return new->key && new->value ? 0 : -1;
}

int
key_values_add (struct key_values *kv, const char *text, const char *implied)
{
  for (const char *p = text; *p; implied = NULL) {
    const size_t len = word_length (p);
    char *word = copy_word (p, len);
    int r = word ? add_word (kv, word, implied) : -1;

    free (word);
    if (r == -1)
      return -1;
    p += len + (p[len] == ',');
  }
  return 0;
}

int
key_values_add_options (struct key_values *kv, const char *text)
{
  size_t len = strlen (text), end = len;

  while (end > 0 && text[end - 1] == ',')
    end--;
  if (len > 0 && (len - end) % 2 == 0)
    return key_values_add (kv, text, NULL);
  return report_refusal (EINVAL, "-o '%s': the list of options %s", text,
                         len == 0 ? "is empty" : "ends with a comma");
}

const char *
key_values_get (const struct key_values *kv, const char *key)
{
  for (unsigned i = kv->n; i > 0; i--)
    if (strcmp (kv->list[i - 1].key, key) == 0)
      return kv->list[i - 1].value;
  return NULL;
}

const char *
key_values_take (struct key_values *kv, const char *key)
{
  for (unsigned i = 0; i < kv->n; i++)
    if (strcmp (kv->list[i].key, key) == 0)
      kv->list[i].taken = true;
  return key_values_get (kv, key);
}

const char *
key_values_left (const struct key_values *kv, const char *prefix)
{
  for (unsigned i = 0; i < kv->n; i++)
    if (!kv->list[i].taken && strncmp (kv->list[i].key, prefix, strlen (prefix)) == 0)
      return kv->list[i].key;
  return NULL;
}

void
key_values_free (struct key_values *kv)
{
  for (unsigned i = 0; i < kv->n; i++) {
    free (kv->list[i].key);
    free (kv->list[i].value);
  }
  free (kv->list);
  *kv = (struct key_values) { .n = 0 };
}

int
parse_snapshot (const char *what, const char *text, struct key_values *kv, const char **r)
{
  const char *id, *name;

  *r = text;
  if (text == NULL || strncmp (text, "snapshot.", 9) != 0)
    return 0;
  if (key_values_add (kv, text, NULL) == -1)
    return -1;
  id = key_values_take (kv, "snapshot.id");
  name = key_values_take (kv, "snapshot.name");
  if (!id == !name || key_values_left (kv, ""))
    return bad_value (what, text, "either snapshot.id or snapshot.name is required");
  /* The core knows these words (snapshots_find), but not QEMU's ",,". */
  if (strchr (text, ','))
    *r = id ? id : name;
  return 0;
}
