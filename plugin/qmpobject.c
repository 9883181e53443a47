/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Which passphrases have clients of the control socket given?
 *
 * QEMU has objects of many types; here there are secrets, which x-blockdev-amend names by
 * their ids.  They are kept until object-del, or the end of the server.  Texts of errors
 * are QEMU's.
 *
 * Locks: none; one thread runs commands.
 */

#include <config.h>

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include <sys/stat.h>

#include "util/cleanup.h"
#include "util/passphrase.h"
#include "util/report.h"
#include "plugin/qmpobject.h"

/* Of LONGEST bytes each (passphrase.c). */
#define MOST_SECRETS 64

struct qmp_secret {
  struct qmp_secret *next;
  char *id, *text;
};

static const struct qmparg of_object[] = {
  { "qom-type", QMPARG_STRING, false },
  { "id", QMPARG_STRING, false },
  { .key = NULL }
};
static const struct qmparg of_secret[] = {
  { "qom-type", QMPARG_STRING, false },
  { "id", QMPARG_STRING, false },
  { "data", QMPARG_STRING, true },
  { "file", QMPARG_STRING, true },
  { "format", QMPARG_STRING, true },
  { "keyid", QMPARG_STRING, true },
  { "iv", QMPARG_STRING, true },
  { .key = NULL }
};

static struct qmp_secret **
find (const struct qmp_host *host, const char *id)
{
  struct qmp_secret **p = &host->secrets->first;

  while (*p && strcmp ((*p)->id, id) != 0)
    p = &(*p)->next;
  return p;
}

const char *
qmpobject_secret (const struct qmp_host *host, const char *id)
{
  const struct qmp_secret *s = *find (host, id);

  return s ? s->text : NULL;
}

static void
free_secret (struct qmp_secret *s)
{
  free (s->id);
  passphrase_free (s->text);
  free (s);
}

/* The members that every object has, in QEMU's order: QEMU looks at the others in
 * between. */
static int
check (const json_t *arguments, struct qmp_error *e)
{
  const char *type = qmpargs_text (arguments, "qom-type");

  for (const struct qmparg *a = of_object; a->key; a++)
    if (json_object_get (arguments, a->key) == NULL)
      return qmp_refuse (e, "Parameter '%s' is missing", a->key);
  if (type && strcmp (type, "secret") != 0)
    return qmp_refuse (e, "Parameter 'qom-type' does not accept value '%s'", type);
  return qmpargs_check (of_secret, arguments, "", e);
}

/* The thread that runs commands does not wait for what comes out of a pipe. */
static int
check_file (const char *name, struct qmp_error *e)
{
  struct stat s;

  if (stat (name, &s) == -1)
    return qmp_refuse (e, "Unable to read %s: %s", name, strerror (errno));
  return S_ISREG (s.st_mode) ? 0
    : qmp_refuse (e, "Unable to read %s: not a regular file", name);
}

/* NULL: refused. */
static char *
read_secret (const json_t *arguments, struct qmp_error *e)
{
  const char *data = qmpargs_text (arguments, "data");
  const char *file = qmpargs_text (arguments, "file");
  const char *format = qmpargs_text (arguments, "format");
  const bool base64 = format && strcmp (format, "base64") == 0;
  char *text = NULL;

  if (format && !base64 && strcmp (format, "raw") != 0)
    qmp_refuse (e, "Parameter 'format' does not accept value '%s'", format);
  else if (qmpargs_text (arguments, "keyid") || qmpargs_text (arguments, "iv"))
    qmp_refuse (e, "Secrets that are encrypted themselves ('keyid') are not supported");
  else if (data && file)
    qmp_refuse (e, "'file' and 'data' are mutually exclusive");
  else if (data == NULL && file == NULL)
    qmp_refuse (e, "Either 'file' or 'data' must be provided");
  else if (file == NULL || check_file (file, e) == 0) {
    report_watch ();
    text = passphrase_read ("secret", data, file, base64);
    qmp_refuse_unless (text, e);
  }
  return text;
}

static int
add (const struct qmp_host *host, const char *id, const json_t *arguments,
     struct qmp_error *e)
{
  struct qmp_secret *s = calloc (1, sizeof *s);

  if (s == NULL || (s->id = strdup (id)) == NULL)
    qmp_refuse (e, "out of memory");
  else if ((s->text = read_secret (arguments, e)) != NULL) {
    s->next = host->secrets->first;
    host->secrets->first = s;
    host->secrets->n++;
    return 0;
  }
  if (s)
    free_secret (s);
  return -1;
}

json_t *
qmpobject_add (const struct qmp_host *host, const json_t *arguments, struct qmp_error *e)
{
  const char *id = qmpargs_text (arguments, "id");

  if (check (arguments, e) == -1)
    return NULL;
  if (!qmpargs_is_id (id))
    qmp_refuse (e, "Parameter 'id' expects an identifier");
  else if (*find (host, id))
    qmp_refuse (e, "attempt to add duplicate property '%s' to object (type 'container')",
                id);
  else if (host->secrets->n == MOST_SECRETS)
    qmp_refuse (e, "There are %u secrets: remove some with object-del", MOST_SECRETS);
  else if (add (host, id, arguments, e) == 0)
    return json_object ();
  return NULL;
}

const struct qmparg qmpobject_of_del[] = {
  { "id", QMPARG_STRING, false }, { .key = NULL }
};

json_t *
qmpobject_del (const struct qmp_host *host, const json_t *arguments, struct qmp_error *e)
{
  const char *id = qmpargs_text (arguments, "id");
  struct qmp_secret **const p = find (host, id), *const s = *p;

  if (s == NULL) {
    qmp_refuse (e, "object '%s' not found", id);
    return NULL;
  }
  *p = s->next;
  host->secrets->n--;
  free_secret (s);
  return json_object ();
}

void
qmpobject_end (struct qmp_secrets *secrets)
{
  struct qmp_secret *s;

  while ((s = secrets->first) != NULL) {
    secrets->first = s->next;
    free_secret (s);
  }
  secrets->n = 0;
}
