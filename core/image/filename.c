/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Which file does a name in an image's header mean?
 *
 * Specification: "Header" (backing_file_offset), "Header extensions" (external data file
 * name).
 *
 * Names are resolved as QEMU does: a relative name is relative to the directory of the
 * name by which the image was opened, without following symbolic links in it.
 * The "file:" prefix, NBD URIs in all forms that QEMU knows, and "json:" (jsonname.c) are
 * supported.  Other protocols are refused.
 *
 * An image alone must not make the server open connections, because an attacker may have
 * made the image.  So the user allows URIs one by one, and they must not use secrets.
 *
 * For a data file with a relative name, QEMU looks in its working directory; other
 * programs look next to the image, as for backing files.  The plugin looks in both
 * places.  If there is a file in each, they must be the same.
 *
 * Locks: none.
 */

#include <config.h>

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "util/cleanup.h"
#include "util/printable.h"
#include "util/publicname.h"
#include "util/remedy.h"
#include "util/report.h"
#include "util/text.h"
#include "storage/nbduri.h"
#include "image/filename.h"
#include "image/jsonname.h"

/* A name in the header of the image at OVERLAY; WHAT says what it names. */
struct reference {
  const char *overlay, *what, *name;
  const struct filename_rules *rules;
};

int
filename_check_there (const char *path, const char *what, const char *overlay,
                      const char *cure)
{
  if (nbduri_is (path) || access (path, F_OK) == 0 || errno != ENOENT)
    return 0;
  return report_refusal (ENOENT, "%s: cannot open: %m; it is the %s of %s%s%s", path,
                         what, overlay, cure ? ": " : "", cure ? cure : "");
}

bool
filename_has_protocol (const char *name)
{
  return publicname_protocol (name) > 0;
}

static char *
refuse_name (const struct reference *r, int err, const char *why)
{
  CLEANUP_FREE char *shown = publicname (r->name);
  char text[PRINTABLE_SIZE (1024)];

  if (nbduri_is (r->name))
    report_error ("%s: %s name (an NBD URI): %s", r->overlay, r->what, why);
  else
    report_error ("%s: %s name \"%s\": %s", r->overlay, r->what,
                  printable (publicname_or (shown), 1024, text, sizeof text), why);
  errno = err;
  return NULL;
}

/* --- NBD --- */

static bool
is_allowed (const struct filename_rules *rules, const char *uri)
{
  for (size_t i = 0; rules && i < rules->nr_allow_uri; i++)
    if (nbduri_is_below (uri, rules->allow_uri[i]))
      return true;
  return false;
}

/* Takes ownership of URI: returns it on success, frees it otherwise. */
static char *
check_uri (const struct reference *r, char *uri)
{
  if (is_allowed (r->rules, uri))
    return uri;
  report_error ("%s: %s is %s, and an image opens no connections by itself: %s",
                r->overlay, r->what, uri, remedy (REMEDY_ALLOW_URI));
  free (uri);
  errno = EPERM;
  return NULL;
}

static char *
resolve_uri (const struct reference *r, const char *name)
{
  const char *why = "no memory";
  CLEANUP_FREE char *secrets = NULL;
  char *uri;
  int err;

  if (nbduri_is_old (name)) {
    uri = nbduri_from_old (name);
    return uri ? check_uri (r, uri)
      : refuse_name (r, errno, errno == ENOMEM ? why
                     : "it is not like nbd:HOST:PORT or nbd:unix:/PATH, perhaps with "
                     ":exportname=NAME (an IPv6 address is in brackets)");
  }
  uri = nbduri_normal (name, false, &why);
  secrets = uri ? nbduri_normal (name, true, &why) : NULL;
  if (secrets && strcmp (uri, secrets) == 0)
    return check_uri (r, uri);
  err = secrets ? EINVAL : errno;
  free (uri);
  return refuse_name (r, err, secrets ? "users and keys must not be in an image" : why);
}

/* --- paths --- */

/* NAME in the place of the last part of BASE, if it is relative.  NULL on ENOMEM. */
static char *
join (const char *base, const char *name)
{
  const char *slash = strrchr (base, '/');

  if (name[0] == '/' || slash == NULL)
    return strdup (name);
  return text_new ("%.*s%s", (int) (slash - base + 1), base, name);
}

/* Is it a path that begins with a URI with secrets?  All messages about the file would
 * show them.  (jsonname.c writes "./" before such a path.) */
static bool
hides_uri (const char *path)
{
  CLEANUP_FREE char *shown = NULL;

  if (strncmp (path, "./", 2) == 0)
    path += 2;
  if (publicname_protocol (path) == 0 || strstr (path, "://") == NULL)
    return false;
  shown = publicname (path);
  return shown == NULL || strcmp (shown, path) != 0;
}

static char *
resolve_path (const struct reference *r, const char *name, const char *base)
{
  char *path;

  if (hides_uri (name))
    return refuse_name (r, EINVAL, "a URI with secrets is no path");

  if (name[0] == '\0')
    return refuse_name (r, EINVAL, "it is empty");
  if (name[0] != '/' && nbduri_is (base))
    return refuse_name (r, EINVAL, "a relative name below a URI means nothing");
  path = join (base, name);
  if (path == NULL)
    report_error ("strdup: %m");
  return path;
}

static char *
resolve_plain (const struct reference *r, const char *name, const char *base)
{
  if (strncmp (name, "file:", 5) == 0)
    return resolve_path (r, name + 5, base);
  if (nbduri_is (name) || nbduri_is_old (name))
    return resolve_uri (r, name);
  if (filename_has_protocol (name))
    return refuse_name (r, ENOTSUP, "only files and NBD are supported: an NBD server can "
                        "serve other storage");
  return resolve_path (r, name, base);
}

/* In "json:" names, QEMU resolves relative names in its working directory. */
static char *
resolve_json (const struct reference *r, const char **format)
{
  CLEANUP_FREE char *cwd = getcwd (NULL, 0), *base = NULL;
  char why[JSONNAME_WHY], *path;
  struct jsonname json;

  if (jsonname_parse (r->name, &json, why) == -1)
    return refuse_name (r, errno, why);
  *format = json.format;
  base = text_new ("%s/.", cwd ? cwd : "");
  if (base == NULL) {
    free (json.name);
    return refuse_name (r, ENOMEM, "no memory");
  }
  path = jsonname_is (json.name) ? refuse_name (r, EINVAL, "JSON within JSON")
    : resolve_plain (r, json.name, base);
  free (json.name);
  return path;
}

/* Resolves R.  The caller frees the result.  NULL on error (reported). */
static char *
resolve (const struct reference *r, const char **format)
{
  *format = NULL;
  return jsonname_is (r->name) ? resolve_json (r, format)
    : resolve_plain (r, r->name, r->overlay);
}

char *
filename_of_backing (const char *overlay, const char *name,
                     const struct filename_rules *rules, const char **format)
{
  const struct reference r = { overlay, "backing file", name, rules };

  return resolve (&r, format);
}

char *
filename_shown (const char *overlay, const char *name)
{
  return filename_has_protocol (name) ? strdup (name) : join (overlay, name);
}

/* --- which file is it? --- */

bool
filename_is_file (const char *path, const struct storage_hooks *hooks,
                  const struct storage *file)
{
  const struct storage_options options = { .hooks = hooks };
  struct storage *other;
  bool same;

  if (nbduri_is (path))
    return strcmp (path, storage_path (file)) == 0;
  if (storage_open (path, &options, &other) == -1)
    return false;
  same = storage_same (other, file);
  storage_close (other);
  errno = 0;
  return same;
}

bool
filename_means (const char *image, const char *name, const struct filename_rules *rules,
                const struct storage_hooks *hooks, const struct storage *file)
{
  CLEANUP_FREE char *path = NULL;
  const bool before = report_silence (true);
  const char *told;
  bool same;

  errno = 0;
  path = filename_of_backing (image, name, rules, &told);
  same = path && filename_is_file (path, hooks, file);
  KEEP_ERRNO_FOR_BLOCK;
  report_silence (before);
  return same;
}

/* --- data files --- */

/* Resolves NAME as QEMU does, relative to the working directory.  NULL if it is not a
 * relative name, or no such file exists. */
static char *
find_in_cwd (const char *name, struct stat *st)
{
  CLEANUP_FREE char *cwd = NULL;

  if (strncmp (name, "file:", 5) == 0)
    name += 5;
  if (name[0] == '/' || stat (name, st) == -1 || (cwd = getcwd (NULL, 0)) == NULL)
    return NULL;
  return text_new ("%s/%s", cwd, name);
}

char *
filename_of_data (const char *overlay, const char *name,
                  const struct filename_rules *rules)
{
  const struct reference r = { overlay, "data file", name, rules };
  const char *format;
  char *path = resolve (&r, &format), *other;
  struct stat st, other_st;

  if (path && format && strcmp (format, "raw") != 0) {
    free (path);
    return refuse_name (&r, ENOTSUP, "a data file is raw");
  }
  if (path == NULL || nbduri_is (path) || jsonname_is (name))
    return path;
  other = find_in_cwd (name, &other_st);
  if (other == NULL)
    return path;
  if (stat (path, &st) == -1) {
    free (path);
    return other;
  }
  if (st.st_dev == other_st.st_dev && st.st_ino == other_st.st_ino) {
    free (other);
    return path;
  }
  report_error ("%s: the external data file \"%s\" could be %s or %s: "
                "%s", overlay, name, path, other, remedy (REMEDY_DATA_FILE));
  errno = EINVAL;
  free (other);
  free (path);
  return NULL;
}
