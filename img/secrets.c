/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Which passphrases does the user give?
 *
 * As for qemu-img, with --object secret,id=ID and data=TEXT or file=NAME, and
 * format=base64.  Options of images name them by their ids.
 *
 * Locks: none.
 */

#include <config.h>

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "util/cleanup.h"
#include "util/memory.h"
#include "util/passphrase.h"
#include "util/report.h"
#include "util/text.h"
#include "img/secrets.h"
#include "img/values.h"

const struct option option_object = {
  0, "object", "OBJECT", "a secret,id=ID,data=TEXT or secret,id=ID,file=NAME, with the "
  "passphrase of encrypted images"
};

struct secret { char *id, *text; };
struct secrets { struct secret *list; unsigned n; };

/* --- one of them --- */

/* Takes over TEXT. */
static int
add (struct secrets *s, const char *id, char *text)
{
  if (MEMORY_APPEND (s->list, s->n) == -1) {
    passphrase_free (text);
    return -1;
  }
  s->list[s->n++] = (struct secret) { memory_text (id), text };
  return s->list[s->n - 1].id ? 0 : -1;
}

static char *
take_text (const char *id, struct key_values *kv)
{
  const char *data = key_values_take (kv, "data"), *file = key_values_take (kv, "file");
  const char *format = key_values_take (kv, "format");
  const bool base64 = format && strcmp (format, "base64") == 0;
  CLEANUP_FREE char *what = text_new ("--object secret,id=%s", id);

  if (what == NULL)
    report_error ("malloc: %m");
  else if (key_values_left (kv, ""))
    report_error ("%s: '%s' is not supported", what, key_values_left (kv, ""));
  else if (!data == !file)
    report_error ("%s: either data or file is required", what);
  else if (format && !base64 && strcmp (format, "raw") != 0)
    report_error ("%s: the format must be raw or base64", what);
  else
    return passphrase_read (what, data, file, base64);
  errno = EINVAL;
  return NULL;
}

static int
take (struct secrets *s, const char *object)
{
  struct key_values kv = { .n = 0 };
  const char *type, *id;
  char *text;
  int r = -1;

  if (key_values_add (&kv, object, "qom-type") == 0) {
    type = key_values_take (&kv, "qom-type");
    id = key_values_take (&kv, "id");
    if (type == NULL || strcmp (type, "secret") != 0)
      report_error ("--object %.*s: only objects of the type secret are known (an NBD URI "
                    "contains what TLS needs)", (int) strcspn (object, ","), object);
    else if (id == NULL || id[0] == '\0')
      report_error ("--object secret: id is missing");
    else if ((text = take_text (id, &kv)) != NULL)
      r = add (s, id, text);
  }
  key_values_free (&kv);
  return r;
}

/* --- all of them --- */

struct secrets *
secrets_read (const struct arguments *a)
{
  struct secrets *s = memory_new (1, sizeof *s);
  const char *object;
  unsigned i = 0;

  while (s && (object = next_value (a, &option_object, &i)))
    if (take (s, object) == -1) {
      secrets_free (s);
      s = NULL;
    }
  return s;
}

void
secrets_free (struct secrets *s)
{
  if (s == NULL)
    return;
  for (unsigned i = 0; i < s->n; i++) {
    passphrase_free (s->list[i].text);
    free (s->list[i].id);
  }
  free (s->list);
  free (s);
}

const char *
secrets_get (const struct secrets *s, const char *id)
{
  for (unsigned i = s->n; i > 0; i--)
    if (strcmp (s->list[i - 1].id, id) == 0)
      return s->list[i - 1].text;
  report_error ("there is no secret with the id '%s'", id);
  errno = EINVAL;
  return NULL;
}

const char *
secrets_only (const struct secrets *s)
{
  return s->n == 1 ? s->list[0].text : NULL;
}
