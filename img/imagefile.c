/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Which image does the user name, and how is it opened?
 *
 * A name is the path of a file or a device, an NBD URI, or with --image-opts a list of
 * options that says it, and with them what is used in place of what the header names, and
 * which passphrases the images of the chain have, from the top.
 *
 * Without a format it is probed: what is not qcow2 is raw.  But other formats that QEMU
 * reads are refused: their bytes would not be the disk that the user wants.
 *
 * Locks: none.
 */

#include <config.h>

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "util/bytes.h"
#include "util/cleanup.h"
#include "util/memory.h"
#include "util/publicname.h"
#include "util/report.h"
#include "util/text.h"
#include "storage/nbduri.h"
#include "storage/storage.h"
#include "format/otherformat.h"
#include "img/imagefile.h"
#include "img/values.h"

#define CACHE_MODES "none|off|directsync|unsafe|writeback|writethrough"

const struct option
  option_format = {
    'f', "format", "FORMAT", "the format of the image; without it, it is probed"
  },
  option_force_share = {
    'U', "force-share", NULL, "read the image although another program writes it"
  },
  option_image_opts = {
    0, "image-opts", NULL, "IMAGE is not a name, but "
    "driver=qcow2,file.filename=NAME,encrypt.key-secret=ID"
  },
  option_allow_uri = {
    0, "allow-uri", "URI", "images may name backing files and data files that are below "
    "this NBD URI"
  },
  option_cache = {
    't', "cache", CACHE_MODES, "how the host caches what is written; none, off and directsync "
    "keep data out of its cache, the others are the same"
  },
  option_src_cache = { 'T', "src-cache", CACHE_MODES, "the same for what is only read" };

/* --- names --- */

static int
not_supported (const char *name)
{
  CLEANUP_FREE char *shown = publicname (name);
  const char *text = publicname_or (shown);

  return report_refusal (EINVAL, "%s: '%.*s:' is not supported: use the name of a file "
                         "(./%s if it contains a colon) or an NBD URI", text,
                         (int) strcspn (name, ":"), name, text);
}

/* The path that NAME, which is no NBD URI, means.  NULL: reported. */
static const char *
file_of_name (const char *name)
{
  const size_t protocol = publicname_protocol (name);

  if (name[0] == '\0') {
    report_error ("an image cannot have an empty name");
    errno = EINVAL;
    return NULL;
  }
  if (protocol == 0)
    return name;
  if (strncmp (name, "file:", 5) != 0) {
    not_supported (name);
    return NULL;
  }
  return strncmp (name + 5, "//", 2) == 0 ? name + 7 : name + 5;
}

static char *
absolute_path (const char *name)
{
  CLEANUP_FREE char *directory = NULL;
  char *path;

  if (name[0] == '/')
    path = strdup (name);
  else {
    directory = getcwd (NULL, 0);
    path = directory == NULL ? NULL
      : text_new ("%s%s%s", directory, directory[1] ? "/" : "", name);
  }
  if (path == NULL)
    report_error ("%s: %m", name);
  return path;
}

char *
imagefile_path (const char *name)
{
  const char *file = file_of_name (name);

  return file ? absolute_path (file) : NULL;
}

/* Notes URI; *SHOWN is it without secrets.  WHAT is said before an error. */
static int
add_uri (struct imagefile *f, const char *what, const char *uri, char **shown)
{
  const char *why = "no memory";
  char **uris;

  if (MEMORY_APPEND (f->uris, f->nr_uris) == -1)
    return -1;
  uris = f->uris;
  uris[f->nr_uris] = nbduri_normal (uri, true, &why);
  if (uris[f->nr_uris] && (*shown = nbduri_normal (uri, false, &why)) != NULL) {
    f->nr_uris++;
    f->options.link.secrets = (const char *const *) f->uris;
    f->options.link.nr_secrets = f->nr_uris;
    return 0;
  }
  free (uris[f->nr_uris]);
  return report_refusal (EINVAL, "%sthe NBD URI is malformed: %s", what, why);
}

int
imagefile_allow_uri (struct imagefile *f, const char *uri)
{
  CLEANUP_FREE char *shown = NULL;

  if (MEMORY_APPEND (f->allow, f->nr_allow) == -1)
    return -1;
  if (!nbduri_is (uri)) {
    shown = publicname (uri);
    return bad_value ("--allow-uri", publicname_or (shown), "must be an NBD URI");
  }
  if (add_uri (f, "--allow-uri: ", uri, &shown) == -1)
    return -1;
  f->allow[f->nr_allow++] = f->uris[f->nr_uris - 1];
  f->options.rules = (struct filename_rules) { f->allow, f->nr_allow };
  return 0;
}

/* A path or a URI, for *PATH. */
static int
take_name (struct imagefile *f, const char *name, char **path)
{
  if (nbduri_is (name))
    return add_uri (f, "", name, path);
  *path = imagefile_path (name);
  return *path ? 0 : -1;
}

/* --- formats --- */

/* What is enough to recognize what QEMU reads. */
#define PROBED 512

int
imagefile_parse_format (const char *what, const char *format, bool *raw)
{
  *raw = strcmp (format, "raw") == 0;
  return *raw || strcmp (format, "qcow2") == 0 ? 0
    : bad_value (what, format, "must be qcow2 or raw");
}

static int
foreign (const struct imagefile *f, const char *format)
{
  return report_refusal (EINVAL, "%s: format '%s' is not supported (only qcow2 and raw): "
                         "use qemu-img", f->given, format);
}

/* Sets F->raw.  HEAD: PROBED bytes. */
static int
judge_head (struct imagefile *f, const char *head)
{
  const char *other = otherformat_disk (head, PROBED);
  CLEANUP_FREE char *name = NULL;

  if (memcmp (head, "QFI\xfb", 4) == 0) {
    if (memcmp (head + 4, "\0\0\0\1", 4) == 0)
      return foreign (f, "qcow");
    f->raw = false;
    return 0;
  }
  f->raw = true;
  if (other == NULL)
    return 0;
  name = strdup (other);
  for (char *p = name; p && *p; p++)
    *p = *p >= 'A' && *p <= 'Z' ? *p + ('a' - 'A') : *p;
  return foreign (f, name ? name : other);
}

static int
probe (struct imagefile *f)
{
  const struct storage_options options = { .link = &f->options.link };
  struct storage *s;
  char head[PROBED] = { 0 };
  int r;

  if (storage_open (f->path, &options, &s) == -1)
    return -1;
  r = storage_read (s, head, sizeof head, 0);
  storage_close (s);
  return r == -1 ? -1 : judge_head (f, head);
}

/* --- an image --- */

static const struct disk_options defaults = {
  .l2_cache = 32 << 20, .l2_slice = 4096, .backing = BACKING_FOLLOW,
  .checkpoint_interval_ms = 5000, .discard = true, .lock = true,
  .link = STORAGE_LINK_DEFAULTS,
};

/* With all that does not depend on its name. */
static struct imagefile *
begin_open (const struct arguments *a)
{
  struct imagefile *f = memory_new (1, sizeof *f);
  const char *uri;
  unsigned i = 0;

  if (f == NULL)
    return NULL;
  f->options = defaults;
  f->options.lock = !is_given (a, &option_force_share);
  while ((uri = next_value (a, &option_allow_uri, &i)))
    if (imagefile_allow_uri (f, uri) == -1) {
      imagefile_free (f);
      return NULL;
    }
  return f;
}

void
imagefile_free (struct imagefile *f)
{
  if (f == NULL)
    return;
  for (size_t i = 0; i < f->nr_uris; i++) {
    explicit_bzero (f->uris[i], strlen (f->uris[i]));
    free (f->uris[i]);
  }
  free (f->uris);
  free (f->allow);
  free (f->passphrases);
  free (f->given);
  free (f->path);
  free (f->backing_path);
  free (f->data_file_path);
  free (f);
}

static int
set_name (struct imagefile *f, const char *name)
{
  f->uri = nbduri_is (name);
  f->given = f->uri ? publicname (name) : strdup (name);
  if (f->given == NULL) {
    report_error ("strdup: %m");
    return -1;
  }
  if (take_name (f, name, &f->path) == -1)
    return -1;
  f->options.path = f->path;
  return 0;
}

int
imagefile_add_passphrase (struct imagefile *f, const char *passphrase)
{
  struct image_secret *s = &f->options.secret;
  const size_t n = s->passphrase ? s->nr_more + 1 : 0;
  const char **list;

  if (passphrase == NULL)
    return 0;
  if (MEMORY_APPEND (f->passphrases, n) == -1)
    return -1;
  list = f->passphrases;
  list[n] = passphrase;
  s->passphrase = list[0];
  s->len = strlen (list[0]);
  s->more = list + 1;
  s->nr_more = n;
  return 0;
}

/* (The last passphrase is for all images below.) */
int
imagefile_add_passphrases_below (struct imagefile *f, const struct imagefile *other,
                                 size_t above)
{
  const struct image_secret *s = &other->options.secret;

  if (s->passphrase == NULL)
    return 0;
  for (size_t i = min64 (above, s->nr_more); i <= s->nr_more; i++)
    if (imagefile_add_passphrase (f, i == 0 ? s->passphrase : s->more[i - 1]) == -1)
      return -1;
  return 0;
}

/* --- --image-opts --- */

static int
image_opts_fail (const char *what, const char *why)
{
  return report_refusal (EINVAL, "--image-opts: %s%s", what, why);
}

/* Is the driver of PREFIX one for files? */
static int
take_file_driver (struct key_values *kv, const char *key)
{
  const char *driver = key_values_take (kv, key);

  if (driver == NULL || strcmp (driver, "file") == 0 || strcmp (driver, "host_device") == 0)
    return 0;
  return image_opts_fail (key, ": only files are supported");
}

/* What is used in place of what the header says. */
static int
take_instead (struct imagefile *f, struct key_values *kv)
{
  struct disk_options *o = &f->options;
  const char *format = key_values_take (kv, "backing.driver");
  const char *backing = key_values_take (kv, "backing.file.filename");
  const char *data = key_values_take (kv, "data-file.filename");

  if (take_file_driver (kv, "backing.file.driver") == -1 ||
      take_file_driver (kv, "data-file.driver") == -1)
    return -1;
  if (format && strcmp (format, "qcow2") != 0 && strcmp (format, "raw") != 0)
    return image_opts_fail ("backing.driver", ": only qcow2 and raw are supported");
  /* (The list lives no longer than this function.) */
  o->backing_format = format == NULL ? NULL : format[0] == 'q' ? "qcow2" : "raw";
  if (backing) {
    if (take_name (f, backing, &f->backing_path) == -1)
      return -1;
    o->backing = BACKING_PATH;
    o->backing_path = f->backing_path;
  }
  if (data) {
    if (take_name (f, data, &f->data_file_path) == -1)
      return -1;
    o->data_file = DATA_FILE_PATH;
    o->data_file_path = f->data_file_path;
  }
  return (format || backing || data) && imagefile_need_qcow2 (f, "backing files and data "
                                                              "files") == -1 ? -1 : 0;
}

/* From the top of the chain on. */
static int
take_passphrases (struct imagefile *f, struct key_values *kv, const struct secrets *s)
{
  CLEANUP_FREE char *node = strdup ("");
  const char *id, *passphrase;

  while (node && (node[0] == '\0' || key_values_left (kv, node))) {
    CLEANUP_FREE char *format = text_new ("%sencrypt.format", node);
    CLEANUP_FREE char *secret = text_new ("%sencrypt.key-secret", node);
    char *below = text_new ("%sbacking.", node);

    free (node);
    node = below;
    if (format == NULL || secret == NULL)
      break;
    key_values_take (kv, format);
    id = key_values_take (kv, secret);
    passphrase = id ? secrets_get (s, id) : NULL;
    if (id && (passphrase == NULL || imagefile_add_passphrase (f, passphrase) == -1))
      return -1;
  }
  if (node)
    return 0;
  report_error ("--image-opts: no memory");
  return -1;
}

/* *NAME belongs to the list. */
static int
take_place (struct key_values *kv, const char **format, const char **name)
{
  const char *driver = key_values_take (kv, "format"), *place;

  *format = key_values_take (kv, "driver");
  if (*format == NULL)
    *format = driver;
  if (*format && (strcmp (*format, "file") == 0 || strcmp (*format, "host_device") == 0)) {
    *format = "raw";
    *name = key_values_take (kv, "filename");
    place = "file";
  }
  else {
    *name = key_values_take (kv, "file.filename");
    place = key_values_take (kv, "file.driver");
  }
  if (*name && (place == NULL || strcmp (place, "file") == 0 ||
                strcmp (place, "host_device") == 0))
    return 0;
  return image_opts_fail ("only files are supported (file.filename=NAME); use the URI of an "
                          "NBD export without --image-opts", "");
}

/* With a name that begins like a file, whatever its protocol. */
static int
set_file (struct imagefile *f, const char *name)
{
  const size_t protocol = publicname_protocol (name);
  char *path;
  int r;

  if (nbduri_is (name) || (protocol && strncmp (name + protocol, "//", 2) == 0))
    return set_name (f, name);
  path = absolute_path (name);
  r = path ? set_name (f, path) : -1;
  free (path);
  return r;
}

static int
take_image_opts (struct imagefile *f, struct key_values *kv, const struct secrets *s,
                 const char **format)
{
  const char *name, *share;
  bool shared = false;

  if (take_place (kv, format, &name) == -1 || set_file (f, name) == -1)
    return -1;
  share = key_values_take (kv, "force-share");
  if (share && parse_switch ("force-share=", share, &shared) == -1)
    return -1;
  if (shared)
    f->options.lock = false;
  if (*format ? imagefile_parse_format ("--image-opts driver=", *format, &f->raw) == -1
      : probe (f) == -1)
    return -1;
  if (take_instead (f, kv) == -1 || take_passphrases (f, kv, s) == -1)
    return -1;
  if (key_values_left (kv, "") == NULL)
    return f->options.secret.passphrase ? 0 : imagefile_add_passphrase (f, secrets_only (s));
  return report_refusal (EINVAL, "--image-opts: '%s' is not supported (driver, "
                         "file.driver, file.filename, encrypt.key-secret, also after "
                         "backing., force-share, backing.driver, backing.file.filename "
                         "and data-file.filename are)", key_values_left (kv, ""));
}

static int
set_image_opts (struct imagefile *f, const char *text, const char *format,
                const struct secrets *s)
{
  struct key_values kv = { .n = 0 };
  int r;

  if (format)
    return image_opts_fail ("cannot be used with -f", "");
  r = key_values_add (&kv, text, NULL) == -1 ? -1 : take_image_opts (f, &kv, s, &format);
  key_values_free (&kv);
  return r;
}

/* --- all of it --- */

static int
set_operand (struct imagefile *f, const char *name, const char *format,
             const struct secrets *s)
{
  if (set_name (f, name) == -1 || imagefile_add_passphrase (f, secrets_only (s)) == -1)
    return -1;
  if (format == NULL)
    return probe (f);
  f->raw = strcmp (format, "raw") == 0;
  return f->raw || strcmp (format, "qcow2") == 0 ? 0 : foreign (f, format);
}

struct imagefile *
imagefile_named (const struct arguments *a, const char *operand, const char *format,
                 const struct secrets *s)
{
  struct imagefile *f = begin_open (a);
  int r;

  if (f == NULL)
    return NULL;
  r = is_given (a, &option_image_opts) ? set_image_opts (f, operand, format, s)
    : set_operand (f, operand, format, s);
  if (r == 0)
    return f;
  imagefile_free (f);
  return NULL;
}

struct imagefile *
imagefile_other (const struct arguments *a, const char *name, const char *format,
                 const struct secrets *s)
{
  struct imagefile *f = begin_open (a);

  if (f && set_operand (f, name, format, s) == 0)
    return f;
  imagefile_free (f);
  return NULL;
}

struct imagefile *
imagefile_new (const struct arguments *a, const char *name, const char *format,
               const char *passphrase)
{
  struct imagefile *f = begin_open (a);

  if (f && set_name (f, name) == 0 && imagefile_add_passphrase (f, passphrase) == 0 &&
      imagefile_parse_format ("-f", format, &f->raw) == 0)
    return f;
  imagefile_free (f);
  return NULL;
}

int
imagefile_need_qcow2 (const struct imagefile *f, const char *what)
{
  if (!f->raw)
    return 0;
  return report_refusal (EINVAL, "%s: raw images do not support %s", f->given, what);
}

void
imagefile_will_write (struct imagefile *f)
{
  if (f->uri)
    f->options.lock = false;
}

enum storage_cache
imagefile_cache (const struct arguments *a, const struct option *o)
{
  const char *mode = value_of (a, o);

  return mode && (strcmp (mode, "none") == 0 || strcmp (mode, "off") == 0 ||
                  strcmp (mode, "directsync") == 0) ? STORAGE_CACHE_NONE
    : STORAGE_CACHE_DEFAULT;
}
