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
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "util/cleanup.h"
#include "util/memory.h"
#include "util/report.h"
#include "img/secrets.h"
#include "img/values.h"

const struct option option_object = {
  0, "object", "OBJECT", "a secret,id=ID,data=TEXT or secret,id=ID,file=NAME, with the "
  "passphrase of encrypted images"
};

/* QEMU reads files of any length; a passphrase is shorter. */
#define LONGEST (32 << 10)

struct secret { char *id, *text; };
struct secrets { struct secret *list; unsigned n; };

static int
refuse (const char *id, const char *why)
{
  report_error ("--object secret,id=%s: %s", id, why);
  errno = EINVAL;
  return -1;
}

static int
refuse_long (const char *id)
{
  report_error ("--object secret,id=%s: the passphrase is longer than %d bytes", id, LONGEST);
  errno = EINVAL;
  return -1;
}

/* --- where it comes from --- */

/* Sets TEXT, of LONGEST + 2 bytes. */
static int
read_file (const char *id, const char *name, char *text, size_t *len)
{
  const int fd = open (name, O_RDONLY | O_CLOEXEC);
  ssize_t n = 0;

  *len = 0;
  if (fd >= 0)
    while (*len <= LONGEST && (n = read (fd, text + *len, LONGEST + 1 - *len)) > 0)
      *len += n;
  if (fd == -1 || n == -1)
    report_error ("%s: %m", name);
  KEEP_ERRNO_FOR_BLOCK;
  if (fd >= 0)
    close (fd);
  return fd == -1 || n == -1 ? -1 : *len > LONGEST ? refuse_long (id) : 0;
}

static int
base64_value (char c)
{
  static const char digits[] =
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  const char *p = c ? strchr (digits, c) : NULL;

  return p ? p - digits : -1;
}

/* In place.  Lines may be broken anywhere. */
static int
decode_base64 (const char *id, char *text, size_t *len)
{
  size_t n = 0, digits = 0, padding = 0;
  uint32_t bits = 0;

  for (size_t i = 0; i < *len; i++) {
    const int value = base64_value (text[i]);

    if (strchr (" \t\r\n", text[i]) && text[i])
      continue;
    if (text[i] == '=')
      padding++;
    if ((value == -1 && text[i] != '=') || (value >= 0 && padding))
      return refuse (id, "not base64");
    bits = bits << 6 | (value == -1 ? 0 : value);
    if (++digits % 4 == 0)
      for (int shift = 16; shift >= 0; shift -= 8)
        text[n++] = bits >> shift;
  }
  if (digits % 4 || padding > 2)
    return refuse (id, "not base64");
  *len = n - padding;
  return 0;
}

/* --- one of them --- */

static int
add (struct secrets *s, const char *id, const char *text)
{
  struct secret *list = memory_resize (s->list, s->n + 1, sizeof *list);
  struct secret new;

  if (list == NULL)
    return -1;
  s->list = list;
  new = (struct secret) { strdup (id), strdup (text) };
  list[s->n++] = new;
  if (new.id && new.text)
    return 0;
  report_error ("strdup: %m");
  return -1;
}

/* TEXT: LONGEST + 2 bytes. */
static int
take_text (const char *id, struct key_values *kv, char *text)
{
  const char *data = key_values_take (kv, "data"), *file = key_values_take (kv, "file");
  const char *format = key_values_take (kv, "format");
  size_t len = data ? strlen (data) : 0;

  if (key_values_left (kv, "")) {
    report_error ("--object secret,id=%s: '%s' is not supported", id,
                  key_values_left (kv, ""));
    errno = EINVAL;
    return -1;
  }
  if (!data == !file)
    return refuse (id, "either data or file is required");
  if (len > LONGEST)
    return refuse_long (id);
  if (data)
    memcpy (text, data, len);
  else if (read_file (id, file, text, &len) == -1)
    return -1;
  if (format && strcmp (format, "base64") == 0) {
    if (decode_base64 (id, text, &len) == -1)
      return -1;
  }
  else if (format && strcmp (format, "raw") != 0)
    return refuse (id, "the format must be raw or base64");
  text[len] = '\0';
  if (memchr (text, '\0', len) || memchr (text, '\n', len))
    return refuse (id, "the passphrase contains a newline or a zero byte, which nbdkit "
                   "cannot read (write the file without: printf %s PASSPHRASE)");
  return 0;
}

static int
take (struct secrets *s, const char *object)
{
  struct key_values kv = { .n = 0 };
  const char *type, *id;
  char *text = memory_get (LONGEST + 2);
  int r = -1;

  if (text && key_values_add (&kv, object, "qom-type") == 0) {
    type = key_values_take (&kv, "qom-type");
    id = key_values_take (&kv, "id");
    if (type == NULL || strcmp (type, "secret") != 0)
      report_error ("--object %.*s: only objects of the type secret are known (an NBD URI "
                    "contains what TLS needs)", (int) strcspn (object, ","), object);
    else if (id == NULL || id[0] == '\0')
      report_error ("--object secret: id is missing");
    else if (take_text (id, &kv, text) == 0)
      r = add (s, id, text);
  }
  if (text)
    explicit_bzero (text, LONGEST + 2);
  free (text);
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
    if (s->list[i].text)
      explicit_bzero (s->list[i].text, strlen (s->list[i].text));
    free (s->list[i].text);
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
