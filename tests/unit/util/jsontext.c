/* SPDX-License-Identifier: BSD-3-Clause
 *
 * JSON documents keep the order of members, all numbers, and every byte of a string that
 * is not UTF-8; and if memory runs out at any point, this is reported and nothing
 * leaks.
 *
 * Environment: SEED.
 */

#include <config.h>

#include <errno.h>
#include <string.h>

#include "util/jsontext.h"
#include "lib/stubs.h"

/* What is written for DOCUMENT. */
static const char *
written (json_t *document)
{
  static char text[1000];
  FILE *fp = fmemopen (text, sizeof text, "w");

  CHECK (fp != NULL && jsontext_write (document, fp) == 0 && fclose (fp) == 0);
  return text;
}

static json_t *
make_document (void)
{
  json_t *list = jsontext_append (json_array (), jsontext_number (1));

  list = jsontext_append (list, jsontext_string ("x\xff"));
  return jsontext_object (
    { "z", jsontext_number (0) },
    { "inner", jsontext_add (jsontext_object ({ "b", json_true () }),
      { "a", jsontext_number (UINT64_C (9007199254740993)) }) },
    { "list", list });
}

static void
test_document (void)
{
  CHECK (strcmp (written (make_document ()),
                 "{\n"
                 "  \"z\": 0,\n"
                 "  \"inner\": {\n"
                 "    \"b\": true,\n"
                 "    \"a\": 9007199254740993\n"
                 "  },\n"
                 "  \"list\": [\n"
                 "    1,\n"
                 "    \"x\\udcff\"\n"
                 "  ]\n"
                 "}\n") == 0);
}

static void
test_numbers (void)
{
  CHECK (strcmp (written (jsontext_object ({ "n", jsontext_number (INT64_MAX) })),
                 "{\n  \"n\": 9223372036854775807\n}\n") == 0);
  CHECK (strcmp (written (jsontext_object ({ "n", jsontext_number (UINT64_MAX) })),
                 "{\n  \"n\": 1.8446744073709552e19\n}\n") == 0);
}

/* --- strings --- */

/* Writes the character CODE. */
static char *
encode (char *bytes, uint32_t code)
{
  if (code >= 0x10000) {
    *bytes++ = 0xf0 | code >> 18;
    *bytes++ = 0x80 | (code >> 12 & 0x3f);
  }
  else if (code >= 0x800)
    *bytes++ = 0xe0 | code >> 12;
  *bytes++ = code >= 0x800 ? 0x80 | (code >> 6 & 0x3f) : 0xc0 | code >> 6;
  *bytes++ = 0x80 | (code & 0x3f);
  return bytes;
}

/* The bytes that Python's os.fsencode makes of the string in {"s": STRING}. */
static void
decode (const char *json, char *bytes)
{
  static const char named[] = "\"\\\b\f\n\r\t", letters[] = "\"\\bfnrt";
  const char *s = json + strlen ("{\n  \"s\": \"");
  unsigned code, half;

  while (*s != '"') {
    if (*s != '\\')
      *bytes++ = *s++;
    else if (s[1] == 'u') {
      CHECK (sscanf (s + 2, "%4x", &code) == 1);
      s += 6;
      if (code >= 0xd800 && code < 0xdc00) {
        CHECK (sscanf (s, "\\u%4x", &half) == 1 && half >= 0xdc00 && half < 0xe000);
        bytes = encode (bytes, 0x10000 + ((code & 0x3ff) << 10) + (half & 0x3ff));
        s += 6;
      }
      else if (code < 0x80 || (code >= 0xdc80 && code <= 0xdcff))
        *bytes++ = code;
      else
        bytes = encode (bytes, code);
    }
    else {
      const char *letter = strchr (letters, s[1]);

      CHECK (letter != NULL);
      *bytes++ = named[letter - letters];
      s += 2;
    }
  }
  CHECK (strcmp (s, "\"\n}\n") == 0);
  *bytes = '\0';
}

/* TEXT is a document whose member s is of these bytes; NULL: it is none. */
static void
check_read (const char *text, const char *bytes)
{
  json_t *document = jsontext_read (text, strlen (text));
  char *read;

  CHECK ((document != NULL) == (bytes != NULL));
  if (document == NULL)
    return;
  read = jsontext_bytes (json_string_value (json_object_get (document, "s")));
  CHECK (strcmp (read, bytes) == 0);
  free (read);
  json_decref (document);
}

static void
check_string (const char *s)
{
  char bytes[100];
  const char *text = written (jsontext_object ({ "s", jsontext_string (s) }));

  decode (text, bytes);
  CHECK (strcmp (bytes, s) == 0);
  check_read (text, s);
}

static void
test_reading (void)
{
  check_read ("{\"s\": \"\\uDcfFx\"}", "\xff" "x");
  check_read ("{\"s\": \"\\ud83d\\ude00\\udc80\"}", "\xf0\x9f\x98\x80\x80");
  check_read ("{\"s\": \"\\ud83d\\udc80\"}", "\xf0\x9f\x92\x80");     /* a pair */
  check_read ("{\"s\": \"\\\\udc80\"}", "\\udc80");
  check_read ("{\"s\": \"\\udc7f\"}", NULL);
  check_read ("{\"s\": \"\\ud800\"}", NULL);
  check_read ("{\"s\": \"\\udc8", NULL);
  check_read ("{\"s\": \"\\", NULL);
  check_read ("", NULL);
}

static void
test_strings (void)
{
  /* Broken, overlong and forbidden sequences, the characters that stand for bytes, those
   * next to them, and what could be taken for an escape. */
  static const char *const pieces[] = {
    "a", "\"", "\\", "\n", "\x01", "\x7f", "\xc3\xa9", "\xe2\x82\xac", "\xf0\x9f\x98\x80",
    "\x80", "\xff", "\xc3", "\xe2\x82", "\xf0\x9f\x98", "\xc0\x80", "\xed\xb2\x80",
    "\xf4\x90\x80\x80", "\xf4\x8f\xbd\xbf", "\xf4\x8f\xbe\x80", "\xf4\x8f\xbf\xbf",
    "\xf4\x8f", "\\udc80", "\xc2\x9b", "\xe2\x80\xae", "\xf3\xa0\x82\x80",
  };
  struct rng rng;
  char s[100];

  rng_init (&rng, seed_from_env (), 0);
  CHECK (strcmp (written (jsontext_object ({ "s", jsontext_string ("\xc3\xa9\xc3") })),
                 "{\n  \"s\": \"\xc3\xa9\\udcc3\"\n}\n") == 0);
  CHECK (strcmp (written (jsontext_object ({ "s", jsontext_string ("\xe2\x80\xae") })),
                 "{\n  \"s\": \"\\u202E\"\n}\n") == 0);
  for (unsigned i = 0; i < 2000; i++) {
    s[0] = '\0';
    for (unsigned n = rng_below (&rng, 12); n > 0; n--)
      strcat (s, pieces[rng_below (&rng, sizeof pieces / sizeof pieces[0])]);
    check_string (s);
  }
}

/* --- no memory --- */

static unsigned allocated, freed, failing;

static void *
allocate (size_t size)
{
  void *p = ++allocated == failing ? NULL : malloc (size);

  freed += p == NULL;
  return p;
}

static void
release (void *p)
{
  freed += p != NULL;
  free (p);
}

static void
test_no_memory (void)
{
  char text[1000];
  FILE *fp;
  int r;

  json_set_alloc_funcs (allocate, release);
  do {
    allocated = freed = 0;
    failing++;
    fp = fmemopen (text, sizeof text, "w");
    CHECK (fp != NULL);
    errno = 0;
    r = jsontext_write (make_document (), fp);
    CHECK (r == (allocated >= failing ? -1 : 0));
    CHECK (r == 0 || errno == ENOMEM);
    fclose (fp);
    CHECK (allocated == freed);
  } while (allocated >= failing);
  CHECK (failing > 20);
}

int
main (void)
{
  test_document ();
  test_numbers ();
  test_strings ();
  test_reading ();
  test_no_memory ();
  return 0;
}
