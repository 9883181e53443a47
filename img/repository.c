/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Which generations of a disk does a directory of backups have?
 *
 *   manifest.json   the list of them
 *   000001.qcow2    a generation: all of the disk, or over another file (its backing
 *                   file)
 *   000002.qcow2    what has changed since that one
 *   000003.qcow2.part
 *                   the next one, as long as it is copied
 *   .lock           is locked while a backup is made
 *
 * Or there is one generation, which is written in place somewhere else (ONTO); while that
 * lasts, the manifest says that it is incomplete, and has a PART, too.
 *
 * The manifest is replaced as a whole, durably (newfile.c in the core), and the file of a
 * generation is complete and durable before the manifest names it.  So what the manifest
 * names is there; any other file with such a name was left by a program that was killed,
 * and is removed by the next backup.  But from time to time the manifest says how much of
 * the next one is durable, and of which instant (PART): then the next backup can go on.
 *
 * The oldest generation may lie over a file that is no generation any more (BELOW): while
 * that is to be merged into it (prune.c).  Of files that change then, the manifest knows
 * neither size nor checksum, until that is done.
 *
 * A manifest may have been damaged, or come from an attacker: names in it are those of
 * files in the directory.
 *
 * Locks: none but .lock.
 */

#include <config.h>

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "util/cleanup.h"
#include "util/jsontext.h"
#include "util/memory.h"
#include "util/report.h"
#include "util/text.h"
#include "storage/nbduri.h"
#include "storage/newfile.h"
#include "img/imagefile.h"
#include "img/repository.h"
#include "img/values.h"

#define MANIFEST "manifest.json"
#define FORMAT "nbdkit-qcow2-img backup"
#define LAYOUT 1                 /* the version of what is in it */
#define MOST_MANIFEST (64u << 20)
/* Times that a manifest is read again that was replaced meanwhile. */
#define TRIES 20
#define HEX "0123456789abcdef"
/* Of files that newfile.c has left behind. */
#define TEMPORARY ".qcow2-new-"
#define PART ".part"

struct repository {
  char *path;                   /* absolute */
  int lock;                     /* -1: it is only read */
  bool new;                     /* it was created, ... */
  unsigned directories;         /* ... and so many directories for it */
  json_t *manifest;
  char prefix[40];
};

static int
fail (const struct repository *r, const char *what, const char *why)
{
  return report_refusal (EINVAL, "%s: %s%s%s", r->path, what, why ? ": " : "",
                         why ? why : "");
}

static int
no_memory (const struct repository *r)
{
  return report_refusal (ENOMEM, "%s: no memory for the manifest", r->path);
}

char *
repository_path (const struct repository *r, const char *file)
{
  char *path = file[0] == '/' || nbduri_is (file) ? strdup (file)
    : text_new ("%s/%s", r->path, file);

  if (path == NULL)
    no_memory (r);
  return path;
}

static bool
same_directory (const char *a, const char *b)
{
  struct stat x, y;

  return stat (a, &x) == 0 && stat (b, &y) == 0 && x.st_dev == y.st_dev &&
    x.st_ino == y.st_ino;
}

bool
repository_contains (const struct repository *r, const char *file)
{
  CLEANUP_FREE char *end = realpath (file, NULL), *path = end ? NULL : strdup (file);
  char *const known = end ? end : path;
  char *slash = known ? strrchr (known, '/') : NULL;

  if (slash)
    slash[slash == known] = '\0';
  return known && same_directory (slash ? known : ".", r->path);
}

/* --- what the manifest says --- */

static json_t *
generations (const struct repository *r)
{
  return json_object_get (r->manifest, "generations");
}

static const char *
text_of (const json_t *object, const char *key)
{
  return json_string_value (json_object_get (object, key));
}

static uint64_t
number_of (const json_t *object, const char *key)
{
  return json_integer_value (json_object_get (object, key));
}

/* Could it be that of a generation?  *RAW: its format. */
static bool
is_generation (const char *file, bool *raw)
{
  const size_t digits = file ? strspn (file, "0123456789") : 0;
  const bool named = digits == 6 || (digits > 6 && file[0] != '0');

  *raw = named && strcmp (file + digits, ".raw") == 0;
  return named && (*raw || strcmp (file + digits, ".qcow2") == 0);
}

/* Or of a part of one? */
static bool
is_part (const char *file)
{
  const size_t len = strlen (file), end = strlen (PART);
  CLEANUP_FREE char *name = len > end ? strndup (file, len - end) : NULL;
  bool raw;

  return name && strcmp (file + len - end, PART) == 0 && is_generation (name, &raw);
}

unsigned
repository_count (const struct repository *r)
{
  return json_array_size (generations (r));
}

json_t *
repository_describe (const struct repository *r, unsigned i)
{
  json_t *g = json_copy (json_array_get (generations (r), i));

  json_object_del (g, "marks");
  json_object_del (g, "below");
  return g;
}

static struct repository_generation
read_generation (const json_t *g)
{
  struct repository_generation x = {
    .number = number_of (g, "number"), .file = text_of (g, "file"),
    .backing = text_of (g, "backing"), .bitmap = text_of (g, "bitmap"),
    .date = text_of (g, "date"), .size = number_of (g, "size"),
    .bytes = number_of (g, "bytes"), .file_size = number_of (g, "file-size"),
    .sum = text_of (g, "sha256"),
  };

  x.onto = x.file == NULL;
  if (x.onto)
    x.file = text_of (g, "onto");
  x.marks = json_object_get (g, "marks");
  x.incomplete = json_is_true (json_object_get (g, "incomplete"));
  x.estranged = json_is_true (json_object_get (g, "estranged"));
  x.copying = x.incomplete ? text_of (g, "copying") : NULL;
  x.raw = x.onto || (is_generation (x.file, &x.raw) && x.raw);
  if (x.backing)
    is_generation (x.backing, &x.raw_backing);
  return x;
}

struct repository_generation
repository_get (const struct repository *r, unsigned i)
{
  return read_generation (json_array_get (generations (r), i));
}

struct repository_generation
repository_below (const struct repository *r)
{
  const json_t *oldest = json_array_get (generations (r), 0);
  struct repository_generation x = read_generation (json_object_get (oldest, "below"));

  x.file = text_of (oldest, "backing");
  x.raw = x.file && is_generation (x.file, &x.raw) && x.raw;
  x.backing = NULL;
  return x;
}

int
repository_find (const struct repository *r, uint64_t number)
{
  for (unsigned i = 0; i < repository_count (r); i++)
    if (repository_get (r, i).number == number)
      return i;
  return -1;
}

uint64_t
repository_next (const struct repository *r)
{
  const unsigned n = repository_count (r);

  return n == 0 ? 1 : repository_get (r, n - 1).number + 1;
}

struct repository_part
repository_get_part (const struct repository *r)
{
  const json_t *p = json_object_get (r->manifest, "part");

  return (struct repository_part) {
    .instant = text_of (p, "bitmap"), .base = text_of (p, "base"),
    .date = text_of (p, "date"), .disks = number_of (p, "disks"),
    .raw = json_is_true (json_object_get (p, "raw")), .onto = text_of (p, "onto"),
    .marks = json_object_get (p, "marks"), .done = number_of (p, "done"),
    .bytes = number_of (p, "bytes"), .inode = number_of (p, "inode"),
    .changed = number_of (p, "changed"),
  };
}

char *
repository_part_path (const struct repository *r, bool raw)
{
  char *path = text_new ("%s/%06" PRIu64 ".%s" PART, r->path, repository_next (r),
                         raw ? "raw" : "qcow2");

  if (path == NULL)
    no_memory (r);
  return path;
}

const char *
repository_prefix (const struct repository *r)
{
  return r->prefix;
}

/* --- reading --- */

/* NULL, or what is wrong. */
static const char *
judge_generation (const json_t *g, uint64_t before)
{
  const json_t *backing = json_object_get (g, "backing");
  const char *bitmap = text_of (g, "bitmap"), *onto = text_of (g, "onto");
  const char *sum = text_of (g, "sha256");
  bool raw;

  return !json_is_object (g) ? "a generation is no object"
    : !json_is_integer (json_object_get (g, "number")) ||
    json_integer_value (json_object_get (g, "number")) <= (json_int_t) before
    ? "numbers of generations do not rise"
    : json_integer_value (json_object_get (g, "number")) == INT64_MAX
    ? "there is no number for the next generation"
    : (onto ? json_object_get (g, "file") || backing || (onto[0] != '/' && !nbduri_is (onto))
       : !is_generation (text_of (g, "file"), &raw) ||
       (backing && (raw || !is_generation (json_string_value (backing), &raw))))
    ? "the name of a file is wrong"
    : bitmap == NULL || *bitmap == '\0' || text_of (g, "date") == NULL ||
    json_integer_value (json_object_get (g, "size")) <= 0
    ? "a generation has no bitmap, date or size"
    : sum && (strlen (sum) != 64 || sum[strspn (sum, HEX)])
    ? "a checksum is wrong" : NULL;
}

static const char *
judge (const json_t *m)
{
  const json_t *list = json_object_get (m, "generations"), *g, *p;
  const char *format = text_of (m, "format"), *id = text_of (m, "id"), *why;
  uint64_t before = 0;
  size_t i;

  if (format == NULL || strcmp (format, FORMAT) != 0)
    return "it is no manifest of backups";
  if (number_of (m, "version") != LAYOUT)
    return "a newer version of this program has made it";
  if (id == NULL || strlen (id) != 16 || id[strspn (id, HEX)])
    return "its id is wrong";
  if (!json_is_array (list))
    return "it has no list of generations";
  json_array_foreach (list, i, g) {
    why = judge_generation (g, before);
    if (why)
      return why;
    before = number_of (g, "number");
  }
  p = json_object_get (m, "part");
  if (p && (text_of (p, "bitmap") == NULL || text_of (p, "date") == NULL))
    return "the part of a generation has no bitmap or date";
  if (json_integer_value (json_object_get (p, "done")) < 0 ||
      (text_of (p, "onto") && number_of (p, "done") > 0 &&
       json_array_size (json_object_get (p, "marks")) == 0))
    return "the part of a generation does not say what was copied";
  return NULL;
}

/* -1: not reported. */
static int
read_bytes (const char *path, char **text, size_t *len)
{
  /* (One that is replaced after it was opened becomes empty.) */
  for (unsigned i = 0; i < TRIES; i++) {
    *text = read_whole (path, MOST_MANIFEST, len);
    if (*text == NULL || *len > 0)
      break;
    free (*text);
    *text = NULL;
    errno = ENODATA;
  }
  return *text ? 0 : -1;
}

/* ENOENT: there is none (not reported). */
static int
read_manifest (struct repository *r)
{
  CLEANUP_FREE char *path = repository_path (r, MANIFEST), *text = NULL;
  const char *why;
  size_t len;

  if (path == NULL)
    return -1;
  if (read_bytes (path, &text, &len) == -1) {
    if (errno != ENOENT)
      report_error ("%s: cannot read the manifest: %m", path);
    return -1;
  }
  r->manifest = jsontext_read (text, len);
  why = r->manifest ? judge (r->manifest) : "it is no JSON";
  if (why)
    return fail (r, MANIFEST, why);
  snprintf (r->prefix, sizeof r->prefix, "backup-%s-", text_of (r->manifest, "id"));
  return 0;
}

static struct repository *
new_repository (const char *directory)
{
  struct repository *r = memory_new (1, sizeof *r);

  if (r == NULL)
    return NULL;
  r->lock = -1;
  r->path = imagefile_path (directory);
  if (r->path)
    return r;
  free (r);
  return NULL;
}

void
repository_free (struct repository *r)
{
  KEEP_ERRNO_FOR_BLOCK;

  if (r == NULL)
    return;
  if (r->lock >= 0)
    close (r->lock);
  json_decref (r->manifest);
  free (r->path);
  free (r);
}

struct repository *
repository_open (const char *directory)
{
  struct repository *r = new_repository (directory);

  if (r && read_manifest (r) == 0)
    return r;
  if (r && errno == ENOENT)
    report_error ("%s: there are no backups: it has no " MANIFEST, r->path);
  repository_free (r);
  return NULL;
}

/* --- writing --- */

/* *TEXT: the caller frees it. */
static int
print (const struct repository *r, char **text, size_t *len)
{
  FILE *fp = open_memstream (text, len);
  int bad = fp == NULL || jsontext_write (json_incref (r->manifest), fp) == -1;

  if (fp && fclose (fp) == EOF)
    bad = 1;
  return bad ? no_memory (r) : 0;
}

/* Nobody knows whether the file was replaced: what it says counts, lest a file be removed
 * that it names. */
static void
read_again (struct repository *r)
{
  KEEP_ERRNO_FOR_BLOCK;
  json_t *const before = r->manifest;
  const bool silent = report_silence (true);

  r->manifest = NULL;
  if (read_manifest (r) == 0)
    json_decref (before);
  else {
    json_decref (r->manifest);
    r->manifest = before;
  }
  report_silence (silent);
}

/* -1: the manifest is what the file has, the one before or this one. */
static int
save (struct repository *r)
{
  const struct storage_options options = { .lock = false };
  CLEANUP_FREE char *path = repository_path (r, MANIFEST), *text = NULL;
  struct newfile *f = NULL;
  size_t len;
  int result = -1;

  if (path && print (r, &text, &len) == 0 &&
      newfile_begin_over (path, &options, &f) == 0 &&
      storage_write (newfile_file (f), text, len, 0) == 0)
    result = newfile_publish (f);
  newfile_end (f);
  if (result == -1)
    read_again (r);
  return result;
}

/* With LIST in place of that in the manifest, which it frees. */
static int
save_list (struct repository *r, json_t *list)
{
  return list && json_object_set_new (r->manifest, "generations", list) == 0 ? save (r)
    : no_memory (r);
}

/* What is known of the file.  false: ENOMEM (not reported). */
static bool
set_file (json_t *x, const struct repository_generation *g)
{
  json_object_del (x, "file-size");
  json_object_del (x, "sha256");
  return x && (g->file_size == 0 ||
               json_object_set_new (x, "file-size", json_integer (g->file_size)) == 0) &&
    (g->sum == NULL || json_object_set_new (x, "sha256", json_string (g->sum)) == 0);
}

/* Appends it to LIST. */
static int
add_to (struct repository *r, json_t *list, const struct repository_generation *g)
{
  json_t *x = jsontext_object (
    { "number", jsontext_number (g->number) },
    { "date", jsontext_string (g->date) },
    { "kind", jsontext_string (g->onto ? "in-place" : g->backing ? "incremental" : "full") },
    { g->onto ? "onto" : "file", jsontext_string (g->file) },
    { "size", jsontext_number (g->size) },
    { "bytes", jsontext_number (g->bytes) },
    { "bitmap", jsontext_string (g->bitmap) });

  if (g->backing)
    x = jsontext_add (x, { "backing", jsontext_string (g->backing) });
  if (g->estranged)
    x = jsontext_add (x, { "estranged", json_true () });
  if (g->marks)
    x = jsontext_add (x, { "marks", json_incref ((json_t *) g->marks) });
  if (!set_file (x, g)) {
    json_decref (x);
    x = NULL;
  }
  return save_list (r, jsontext_append (list, x));
}

/* The part is complete, and gets its name durably.  It keeps the other one as long as the
 * manifest has that, if the filesystem has hard links. */
static int
name_part (const struct repository *r, const struct repository_generation *g,
           const char *from)
{
  CLEANUP_FREE char *to = repository_path (r, g->file);
  int fd, result = -1;

  if (to == NULL)
    return -1;
  if (link (from, to) == -1 &&
      (errno == EEXIST || renameat2 (AT_FDCWD, from, AT_FDCWD, to, RENAME_NOREPLACE) == -1)) {
    report_error ("%s: cannot give it its name: %m", to);
    return -1;
  }
  fd = open (r->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd >= 0) {
    result = fsync (fd) == 0 || errno == EINVAL ? 0 : -1;
    close (fd);
  }
  if (result == -1)
    report_error ("%s: cannot make its name durable: %m", to);
  return result;
}

int
repository_add (struct repository *r, const struct repository_generation *g)
{
  CLEANUP_FREE char *part = repository_part_path (r, g->raw);

  if (part == NULL || name_part (r, g, part) == -1)
    return -1;
  json_object_del (r->manifest, "part");
  if (add_to (r, json_copy (generations (r)), g) == -1)
    return -1;
  unlink (part);                /* or the next backup removes it */
  return 0;
}

int
repository_set_part (struct repository *r, const struct repository_part *p)
{
  json_t *x = jsontext_object (
    { "bitmap", jsontext_string (p->instant) }, { "date", jsontext_string (p->date) },
    { "disks", jsontext_number (p->disks) }, { "raw", json_boolean (p->raw) },
    { "done", jsontext_number (p->done) }, { "bytes", jsontext_number (p->bytes) },
    { "inode", jsontext_number (p->inode) }, { "changed", jsontext_number (p->changed) });

  if (p->base)
    x = jsontext_add (x, { "base", jsontext_string (p->base) });
  if (p->onto)
    x = jsontext_add (x, { "onto", jsontext_string (p->onto) });
  if (p->marks)
    x = jsontext_add (x, { "marks", json_incref ((json_t *) p->marks) });
  return x && json_object_set_new (r->manifest, "part", x) == 0 ? save (r) : no_memory (r);
}

int
repository_drop_part (struct repository *r)
{
  return (json_object_del (r->manifest, "part") == 0 && save (r) == -1) ? -1
    : repository_sweep (r);
}

int
repository_replace (struct repository *r, const struct repository_generation *g)
{
  json_object_del (r->manifest, "part");
  return add_to (r, json_array (), g);
}

int
repository_begin_onto (struct repository *r, const char *base, const char *copying)
{
  json_t *list = json_deep_copy (generations (r)), *g = json_array_get (list, 0);

  json_object_del (g, "copying");
  if (g && (json_object_set_new (g, "incomplete", json_true ()) == -1 ||
            (base && (json_object_set_new (g, "bitmap", json_string (base)) == -1 ||
                      json_object_set_new (g, "copying", json_string (copying)) == -1)))) {
    json_decref (list);
    list = NULL;
  }
  return save_list (r, list);
}

int
repository_forget (struct repository *r, unsigned n)
{
  const struct repository_generation unknown = { .sum = NULL };
  json_t *list = json_deep_copy (generations (r));
  json_t *last = json_incref (json_array_get (list, n - 1)), *oldest;

  for (unsigned i = 0; i < n; i++)
    json_array_remove (list, 0);
  oldest = json_array_get (list, 0);
  /* It is about to be merged: its file may change, and those below and above it will. */
  if (json_object_get (oldest, "backing")) {
    set_file (last, &unknown);
    for (unsigned i = 0; i < 2; i++)
      set_file (json_array_get (list, i), &unknown);
    if (json_object_set (oldest, "below", last) == -1) {
      json_decref (list);
      list = NULL;
    }
  }
  json_decref (last);
  return save_list (r, list);
}

int
repository_merge (struct repository *r, const struct repository_generation *oldest,
                  const struct repository_generation *next)
{
  json_t *list = json_deep_copy (generations (r)), *g = json_array_get (list, 0);
  json_t *backing = json_incref (json_object_get (g, "backing"));

  json_object_del (g, "below");
  if (json_object_set_new (g, "file", backing) == -1 ||
      json_object_set_new (g, "kind", json_string ("full")) == -1 ||
      json_object_del (g, "backing") == -1 || !set_file (g, oldest) ||
      (next && (json_object_set (json_array_get (list, 1), "backing", backing) == -1 ||
                !set_file (json_array_get (list, 1), next)))) {
    json_decref (list);
    list = NULL;
  }
  return save_list (r, list);
}

/* --- what is in the directory --- */

static bool
is_needed (const struct repository *r, const char *name)
{
  const struct repository_part part = repository_get_part (r);
  CLEANUP_FREE char *path = part.instant ? repository_part_path (r, part.raw) : NULL;

  for (unsigned i = 0; i < repository_count (r); i++) {
    const struct repository_generation g = repository_get (r, i);

    if (strcmp (g.file, name) == 0 || (g.backing && strcmp (g.backing, name) == 0))
      return true;
  }
  return part.instant && path && strcmp (strrchr (path, '/') + 1, name) == 0;
}

/* Calls FN with each file that looks like one of a generation, or of one that was not
 * finished, until it returns a value other than 0. */
static int
each_file (const struct repository *r, int (*fn) (const struct repository *, const char *))
{
  DIR *all = opendir (r->path);
  const struct dirent *e;
  int result = 0;
  bool raw;

  if (all == NULL) {
    report_error ("%s: %m", r->path);
    return -1;
  }
  while (result == 0 && (e = readdir (all)) != NULL)
    if (is_generation (e->d_name, &raw) || is_part (e->d_name) ||
        strncmp (e->d_name, TEMPORARY, strlen (TEMPORARY)) == 0)
      result = fn (r, e->d_name);
  closedir (all);
  return result;
}

/* (That of a backup which was cut off has the next number.) */
static int
check_number (const struct repository *r, const char *name)
{
  if (strtoull (name, NULL, 10) <= repository_next (r))
    return 0;
  return report_refusal (EEXIST, "%s: there is %s, but " MANIFEST " does not know so "
                         "many backups: is it an old one?", r->path, name);
}

static int
sweep_file (const struct repository *r, const char *name)
{
  CLEANUP_FREE char *path = NULL;

  if (is_needed (r, name))
    return 0;
  path = repository_path (r, name);
  if (path == NULL)
    return -1;
  if (unlink (path) == 0 || errno == ENOENT)
    return 0;
  report_error ("%s: cannot remove what no backup needs: %m", path);
  return -1;
}

int
repository_sweep (const struct repository *r)
{
  return each_file (r, check_number) == -1 ? -1 : each_file (r, sweep_file);
}

static int
refuse_file (const struct repository *r, const char *name)
{
  return report_refusal (EEXIST, "%s: there is %s, but no " MANIFEST, r->path, name);
}

/* --- beginning --- */

/* Makes the directory, and those above it, durably.  Counts them. */
static int
make_directory (const char *path, unsigned *made)
{
  CLEANUP_FREE char *above = strdup (path);
  char *slash = above ? strrchr (above, '/') : NULL;
  int fd;

  if (mkdir (path, 0777) == 0) {
    ++*made;
    if (slash)
      slash[slash == above] = '\0';
    fd = slash ? open (above, O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;
    if (fd >= 0) {
      fsync (fd);
      close (fd);
    }
    return 0;
  }
  if (errno == EEXIST)
    return 0;
  if (errno == ENOENT && slash && slash != above) {
    *slash = '\0';
    return make_directory (above, made) == -1 ? -1 : make_directory (path, made);
  }
  report_error ("%s: cannot make the directory: %m", path);
  return -1;
}

static int
take_lock (struct repository *r)
{
  CLEANUP_FREE char *path = repository_path (r, ".lock");
  struct stat st;

  if (path == NULL)
    return -1;
  r->lock = open (path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
  if (r->lock == -1) {
    report_error ("%s: %m", path);
    return -1;
  }
  errno = 0;
  /* (It may have been that of a repository which repository_abandon removes.) */
  if (flock (r->lock, LOCK_EX | LOCK_NB) == 0 && fstat (r->lock, &st) == 0 && st.st_nlink > 0)
    return 0;
  if (errno != EWOULDBLOCK && errno != 0) {
    report_error ("%s: cannot lock it: %m", path);
    return -1;
  }
  return fail (r, "another backup is being made there", NULL);
}

static int
create (struct repository *r, const char *disk)
{
  uint64_t id;
  char text[20];

  if (each_file (r, refuse_file) != 0)
    return -1;
  if (getrandom (&id, sizeof id, 0) != sizeof id) {
    report_error ("getrandom: %m");
    return -1;
  }
  snprintf (text, sizeof text, "%016" PRIx64, id);
  r->manifest = jsontext_object (
    { "format", jsontext_string (FORMAT) }, { "version", json_integer (LAYOUT) },
    { "id", jsontext_string (text) }, { "disk", jsontext_string (disk) },
    { "generations", json_array () });
  snprintf (r->prefix, sizeof r->prefix, "backup-%s-", text);
  if (r->manifest == NULL)
    return no_memory (r);
  r->new = save (r) == 0;
  return r->new ? 0 : -1;
}

/* (What cannot be removed does no harm.) */
void
repository_abandon (struct repository *r)
{
  CLEANUP_FREE char *path = strdup (r->path);
  static const char *const files[] = { MANIFEST, ".lock" };

  if (!r->new || repository_count (r) > 0)
    return;
  each_file (r, sweep_file);    /* there was none before */
  for (unsigned i = 0; i < sizeof files / sizeof files[0]; i++) {
    CLEANUP_FREE char *file = repository_path (r, files[i]);

    if (file)
      unlink (file);
  }
  for (unsigned i = 0; path && i < r->directories && rmdir (path) == 0; i++)
    *strrchr (path, '/') = '\0';
}

static int
begin_manifest (struct repository *r, const char *disk, const char *image)
{
  if (make_directory (r->path, &r->directories) == -1)
    return -1;
  if (repository_contains (r, image))
    return fail (r, "the disk itself is there", NULL);
  if (take_lock (r) == -1)
    return -1;
  if (read_manifest (r) == 0)
    return repository_sweep (r);
  return errno == ENOENT && r->manifest == NULL ? create (r, disk) : -1;
}

struct repository *
repository_begin (const char *directory, const char *disk, const char *image)
{
  struct repository *r = new_repository (directory);

  if (r && begin_manifest (r, disk, image) == 0)
    return r;
  repository_free (r);
  return NULL;
}
