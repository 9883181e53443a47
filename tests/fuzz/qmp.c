/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Are arbitrary bytes handled safely as what a client of the control socket says?  Each
 * answer is one line of JSON, and after a control character and a line end the next
 * command is answered, whatever was before.
 *
 * How it runs: see fuzzing.h.
 */

#include <config.h>

#include <stdlib.h>
#include <string.h>

#include "plugin/qmp.h"
#include "lib/fuzzing.h"

struct client {
  unsigned answers;
  bool done;                    /* the last command has been answered */
};

static json_t *
run (void *opaque, const char *name, const json_t *arguments, struct qmp_error *e)
{
  static const struct qmparg args[] = {
    { "text", QMPARG_STRING, true }, { "flag", QMPARG_BOOL, true },
    { "small", QMPARG_UINT32, true }, { "number", QMPARG_INT, true },
    { "list", QMPARG_ARRAY, true }, { "object", QMPARG_OBJECT, true }, { .key = NULL }
  };

  (void) opaque;
  if (qmpargs_check (args, arguments, "", e) == -1)
    return NULL;
  return strcmp (name, "last") == 0 ? json_string (name) : json_object ();
}

static void
hear (void *opaque, const char *text, size_t len)
{
  struct client *c = opaque;
  json_t *message;

  CHECK (len > 2 && memcmp (text + len - 2, "\r\n", 2) == 0);
  CHECK (memchr (text, '\n', len - 1) == NULL);
  message = json_loadb (text, len, 0, NULL);
  CHECK (json_is_object (message));
  c->answers++;
  c->done = json_is_string (json_object_get (message, "return"));
  json_decref (message);
}

static void
say (struct qmp *q, const struct client *c, const char *bytes, size_t n)
{
  size_t taken;
  unsigned before;

  while (n > 0) {
    before = c->answers;
    taken = qmp_hear (q, bytes, n);
    CHECK (taken <= n && (taken > 0 || c->answers > before));
    bytes += taken;
    n -= taken;
  }
}

int
LLVMFuzzerTestOneInput (const uint8_t *data, size_t size)
{
  static const char first[] = "{\"execute\": \"qmp_capabilities\"}";
  static const char last[] = "\x01\n{\"execute\": \"last\"}";
  struct client c = { 0 };
  const struct qmp_service service = { .run = run, .send = hear };
  struct qmp *q = qmp_new (&service, &c);
  char *copy = (char *) fuzz_copy (data, size);

  CHECK (q != NULL && c.answers == 1);
  say (q, &c, first, strlen (first));
  CHECK (c.answers == 2);
  /* In two pieces. */
  say (q, &c, copy, size / 3);
  say (q, &c, copy + size / 3, size - size / 3);
  say (q, &c, last, strlen (last));
  CHECK (c.done);
  qmp_free (q);
  free (copy);
  return 0;
}

#ifndef FUZZING

int
main (int argc, char *argv[])
{
  static const char *const pieces[] = {
    "{", "}", "[", "]", ",", ":", "\"", "'", "\\", "\n", "\t", " ", "\x01", "\x7f",
    "\xc3", "\xa9", "{\"execute\":\"x\"}", "{\"execute\":", "\"arguments\":{", "\"id\":",
    "\"text\":",
    "\"small\":", "\"object\":", "4294967296", "-1", "0.5", "1e400",
    "99999999999999999999999", "true", "null", "nul", "\\u0000", "\\ud800", "\\n",
  };
  const size_t n = sizeof pieces / sizeof pieces[0];
  static char buf[200000];
  struct rng rng;

  if (fuzz_files (argc, argv, sizeof buf))
    return 0;
  rng_init (&rng, seed_from_env (), 0);
  for (int i = 0; i < (long_suite () ? 20000 : 5000); i++) {
    size_t len = 0;

    for (uint64_t k = rng_below (&rng, 30); k > 0; k--) {
      const char *piece = pieces[rng_below (&rng, n)];
      /* Now and then too deep, or too long. */
      const uint64_t times = rng_below (&rng, 200) ? 1 : rng_below (&rng, 3000);

      for (uint64_t t = 0; t < times && len + 64 < sizeof buf; t++) {
        strcpy (buf + len, piece);
        len += strlen (piece);
      }
    }
    LLVMFuzzerTestOneInput ((const uint8_t *) buf, len);
  }
  return 0;
}

#endif /* !FUZZING */
