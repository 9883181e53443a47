/* SPDX-License-Identifier: BSD-3-Clause
 *
 * convert and dd: copies of disks.
 *
 * The core's engine copies from one end to the other (copy.c there).  The sources, one
 * after the other, are one end; copytarget.c has the other one.
 *
 * An image is not read in order, and its size has to be known: so what comes from a pipe
 * is first copied to a file without a name, and so is a qcow2 image that goes to stdout.
 *
 * Locks: what could not be read is noted by any thread, with its lock.
 */

#include <config.h>

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "util/bytes.h"
#include "util/cleanup.h"
#include "util/memory.h"
#include "util/report.h"
#include "util/text.h"
#include "format/format.h"
#include "storage/nbduri.h"
#include "image/filename.h"
#include "copy/copy.h"
#include "change/bitmapedit.h"
#include "img/copytarget.h"
#include "img/diskend.h"
#include "img/info.h"
#include "img/live.h"
#include "img/progress.h"

#define SECTOR 512
#define BLOCK 4096              /* bytes of zeros that are not written */
#define LARGEST_HOLE (16 << 20) /* bytes, as in qemu-img */
#define MOST_SOURCES 1000
#define PIPED (1 << 20)         /* bytes from a pipe at a time */

static const struct option
  option_source_format = {
    'f', "format", "FORMAT", "the format of what is read; without it, it is probed"
  },
  option_target_format = {
    'O', "target-format", "FORMAT", "the format of what is written (default raw)"
  },
  option_compress = { 'c', "compress", NULL, "compress the new image" },
  option_snapshot = {
    'l', "snapshot", "SNAPSHOT", "copy this internal snapshot (a name, an id, "
    "snapshot.name=NAME or snapshot.id=ID)"
  },
  option_backing = {
    'B', "backing", "FILE", "the backing file of the new image, which has to contain the "
    "same as that of IMAGE: only what IMAGE itself contains is copied"
  },
  option_backing_format = { 'F', "backing-format", "FORMAT", "its format" },
  option_bitmaps = { 0, "bitmaps", NULL, "also copy the persistent bitmaps" },
  option_skip_broken = {
    0, "skip-broken-bitmaps", NULL, "but not inconsistent ones"
  },
  option_no_create = { 'n', "no-create", NULL, "TARGET exists and is large enough" },
  option_target_is_zero = {
    0, "target-is-zero", NULL, "TARGET reads as zeros (requires -n)"
  },
  option_sparse = {
    'S', "sparse", "SIZE", "how many zeros become a hole (default 4K); with 0 all of the new "
    "image is allocated"
  },
  option_requests = {
    'm', "coroutines", "N", "accepted: the number of requests is chosen"
  },
  option_oob = {
    'W', "oob", NULL, "accepted: pieces are always written in any order"
  },
  option_offload = {
    'C', "copy-range-offloading", NULL, "accepted, without effect; not with -S, -c and "
    "--salvage"
  },
  option_rate = { 'r', "rate", "RATE", "read at most so many bytes in a second" },
  option_salvage = { 0, "salvage", NULL, "what cannot be read becomes zeros" },
  option_target_image_opts = { 0, "target-image-opts", NULL, "refused" };

static int
fail (const char *why)
{
  return report_refusal (EINVAL, "%s", why);
}

/* --- what is read --- */

struct sources {
  struct imagefile **files;
  struct diskend *ends;
  struct copy_part *parts;      /* the disks, each with whole sectors */
  unsigned n;
  uint64_t size;                /* bytes, of all */
  int piped;                    /* the file with what came from stdin, or -1 */
};

static const char *
temporary_directory (void)
{
  const char *directory = getenv ("TMPDIR");

  return directory && directory[0] ? directory : "/tmp";
}

#define OTHER_DIRECTORY "the variable TMPDIR names another directory"

/* A file without a name there.  -1: reported. */
static int
temporary_file (const char *what)
{
  const char *directory = temporary_directory ();
  int fd;

  fd = open (directory, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
  if (fd == -1)
    report_error ("%s: cannot make a file in %s: %m; " OTHER_DIRECTORY, what, directory);
  return fd;
}

static int
write_all (int fd, const char *buf, size_t len, uint64_t at)
{
  ssize_t n;

  for (; len > 0; buf += n, at += n, len -= n) {
    n = pwrite (fd, buf, len, at);
    if (n == -1 && errno == EINTR)
      n = 0;
    if (n == -1)
      return -1;
  }
  return 0;
}

/* Copies stdin to FD.  Zeros become holes. */
static int
copy_stdin (int fd)
{
  CLEANUP_FREE char *buf = memory_get (PIPED);
  uint64_t size = 0;
  ssize_t n;

  if (buf == NULL)
    return -1;
  while ((n = read (STDIN_FILENO, buf, PIPED)) != 0) {
    if (n == -1 && errno == EINTR)
      continue;
    if (n == -1) {
      report_error ("stdin: %m");
      return -1;
    }
    if (!bytes_are_zero (buf, n) && write_all (fd, buf, n, size) == -1)
      break;
    size += n;
  }
  if (n == 0 && ftruncate (fd, size) == 0)
    return 0;
  report_error ("stdin: cannot copy it to %s: %m; " OTHER_DIRECTORY,
                temporary_directory ());
  return -1;
}

/* The name of what stdin is; the caller frees it.  NULL: reported. */
static char *
name_of_stdin (struct sources *s)
{
  char name[64];
  struct stat st, there;
  char *path;

  if (fstat (STDIN_FILENO, &st) == 0 && S_ISREG (st.st_mode) &&
      lseek (STDIN_FILENO, 0, SEEK_CUR) == 0) {
    path = realpath ("/proc/self/fd/0", NULL);
    /* It can have been removed. */
    if (path && stat (path, &there) == 0 && st.st_dev == there.st_dev &&
        st.st_ino == there.st_ino)
      return path;
    free (path);
  }
  s->piped = temporary_file ("stdin");
  if (s->piped == -1 || copy_stdin (s->piped) == -1)
    return NULL;
  snprintf (name, sizeof name, "/proc/self/fd/%d", s->piped);
  path = memory_text (name);
  return path;
}

static struct imagefile *
named_source (const struct arguments *a, const char *name, const struct secrets *secrets,
              struct sources *s)
{
  const char *format = value_of (a, &option_source_format);
  struct imagefile *f;
  char *path;

  if (strcmp (name, "-") != 0)
    return imagefile_named (a, name, format, secrets);
  path = name_of_stdin (s);
  f = path ? imagefile_other (a, path, format, secrets) : NULL;
  free (path);
  return f;
}

/* Adds a source, which then belongs to S. */
static int
add_source (struct sources *s, struct imagefile *f, const char *snapshot,
            enum storage_cache cache)
{
  struct diskend *const d = &s->ends[s->n];

  s->files[s->n] = f;
  f->options.cache = cache;
  if (diskend_open (f, snapshot, d) == -1) {
    s->n++;
    return -1;
  }
  s->parts[s->n++] = (struct copy_part) {
    .end = d->end, .at = s->size, .len = round_up (d->end.size, SECTOR)
  };
  if (add_fits (s->size, round_up (d->end.size, SECTOR), &s->size) && s->size <= INT64_MAX)
    return 0;
  return fail ("the disks are too large to follow each other");
}

static int
begin_sources (struct sources *s, unsigned most)
{
  s->files = memory_new (most, sizeof *s->files);
  s->ends = memory_new (most, sizeof *s->ends);
  s->parts = memory_new (most, sizeof *s->parts);
  return s->files && s->ends && s->parts ? 0 : -1;
}

static void
end_sources (struct sources *s)
{
  for (unsigned i = 0; i < s->n; i++) {
    diskend_close (&s->ends[i]);
    imagefile_free (s->files[i]);
  }
  free (s->files);
  free (s->ends);
  free (s->parts);
  if (s->piped >= 0)
    close (s->piped);
}

/* Parts without bytes would not be found. */
static struct copy_end
joined (struct sources *s)
{
  unsigned n = 0;

  for (unsigned i = 0; i < s->n; i++)
    if (s->parts[i].len > 0)
      s->parts[n++] = s->parts[i];
  return copy_join (s->parts, n);
}

/* --- what is written must not be read --- */

static int
check_one (const struct imagefile *target, const struct storage *there,
           const struct storage *read, bool top)
{
  if (read == NULL || !storage_same (there, read))
    return 0;
  report_error ("%s: %s", target->given, top ? "source and target are the same file"
                : "the file would be read and written at the same time");
  errno = EINVAL;
  return -1;
}

static int
check_source (const struct imagefile *target, const struct storage *there,
              const struct diskend *d)
{
  const struct layers *layers;

  if (d->raw)
    return check_one (target, there, d->raw, true);
  layers = disk_inside (d->disk).view->layers;
  for (unsigned i = 0; i < layers_count (layers); i++)
    if (check_one (target, there, layers_file (layers, i), i == 0) == -1 ||
        check_one (target, there, layers_data_file (layers, i), false) == -1)
      return -1;
  return 0;
}

/* (Locks say so too, where there are any.) */
static int
check_not_read (const struct imagefile *target, const struct sources *s)
{
  const struct storage_options options = { .lock = false };
  struct storage *there;
  int r = 0;

  if (target->uri || access (target->path, F_OK) == -1)
    return 0;
  if (storage_open (target->path, &options, &there) == -1)
    return -1;
  for (unsigned i = 0; r == 0 && i < s->n; i++)
    r = check_source (target, there, &s->ends[i]);
  KEEP_ERRNO_FOR_BLOCK;
  storage_close (there);
  return r;
}

/* --- what cannot be read --- */

struct lost {
  pthread_mutex_t lock;         /* of what follows */
  struct lost_part { uint64_t at, end; int err; } *list;
  size_t n;
  bool incomplete;              /* there was no memory for all of them */
};

static void
note_lost (void *opaque, uint64_t at, uint64_t len, int err)
{
  struct lost *l = opaque;
  LOCK_FOR_BLOCK (&l->lock);
  struct lost_part *list;

  if (l->n > 0 && l->list[l->n - 1].end == at && l->list[l->n - 1].err == err) {
    l->list[l->n - 1].end += len;
    return;
  }
  list = realloc (l->list, (l->n + 1) * sizeof *list);
  if (list == NULL) {
    l->incomplete = true;
    return;
  }
  l->list = list;
  list[l->n++] = (struct lost_part) { at, at + len, err };
}

static int
by_offset (const void *a, const void *b)
{
  const struct lost_part *x = a, *y = b;

  return x->at < y->at ? -1 : x->at > y->at;
}

/* Offsets are those in the source. */
static void
tell_lost (struct lost *l, const struct sources *s)
{
  if (l->n > 0)
    qsort (l->list, l->n, sizeof *l->list, by_offset);
  for (size_t i = 0, k = 0; i < l->n; i++) {
    struct lost_part p = l->list[i];

    while (i + 1 < l->n && l->list[i + 1].at == p.end && l->list[i + 1].err == p.err)
      p.end = l->list[++i].end;
    while (k + 1 < s->n && p.at >= s->parts[k].at + s->parts[k].len)
      k++;
    report_error ("warning: %s: offset %" PRIu64 ": %" PRIu64 " bytes cannot be read, and "
                  "became zeros: %s", s->files[k]->given, p.at - s->parts[k].at,
                  p.end - p.at, strerror (p.err));
  }
  if (l->incomplete)
    report_error ("warning: there was no memory for a list of all that cannot be read");
  free (l->list);
  pthread_mutex_destroy (&l->lock);
}

/* --- copying --- */

struct wishes {
  const struct arguments *a;
  struct live *live;            /* NULL, or: the source is a disk of this server */
  bool raw;                     /* the target */
  const char *snapshot;
  bool compress, allocate, layer, salvage;
  uint64_t sparse, cluster, rate;
};

static int
copy (const struct wishes *w, struct sources *s, struct copytarget *t)
{
  struct lost lost = { .lock = PTHREAD_MUTEX_INITIALIZER };
  const struct chunks_words words = { .what = t->disappears ? NULL : "copying",
                                      .path = t->file->given };
  const struct chunks_watch watch = PROGRESS_WATCH;
  struct copy c = {
    .to = t->end, .zeros = w->allocate ? COPY_ZEROS_WRITE : t->zeros,
    .contained = w->layer, .unit = w->compress && !w->layer ? w->cluster : 0,
    .sparse = w->allocate ? 0 : w->compress && !w->layer ? w->cluster : w->sparse,
    .rate = w->rate, .lost = w->salvage ? note_lost : NULL, .opaque = &lost,
  };
  uint64_t copied;
  int r;

  if (s->size == 0)
    return 0;
  c.from = joined (s);
  r = copy_all (&c, &words, false, &watch, &copied);
  tell_lost (&lost, s);
  return r;
}

/* The bytes of a raw disk, or of a file. */
static int
copy_to_stdout (struct copy_end from)
{
  const struct copy_stream stream = { STDOUT_FILENO, "stdout" };
  const struct chunks_words words = { .path = "stdout" };
  const struct copy c = {
    .from = from, .to = copy_stream (&stream, from.size), .zeros = COPY_ZEROS_MAKE,
  };
  uint64_t copied;

  return from.size == 0 ? 0 : copy_all (&c, &words, false, NULL, &copied);
}

/* --- bitmaps --- */

static int
add_bitmap (struct bitmapedit **list, size_t *n, const struct bitmapedit *e)
{
  if (MEMORY_APPEND (*list, *n) == -1)
    return -1;
  (*list)[(*n)++] = *e;
  return 0;
}

static bool
has_flag (const json_t *bitmap, const char *flag)
{
  const json_t *f;
  size_t i;

  json_array_foreach (json_object_get (bitmap, "flags"), i, f)
    if (strcmp (json_string_value (f), flag) == 0)
      return true;
  return false;
}

/* 0: it is not copied.  -1: reported. */
static int
may_copy_bitmap (const struct arguments *a, const struct imagefile *f, const char *name,
                 const json_t *b)
{
  if (!has_flag (b, "in-use"))
    return 1;
  if (is_given (a, &option_skip_broken)) {
    report_error ("warning: the bitmap '%s' is inconsistent and was skipped", name);
    return 0;
  }
  return report_refusal (EINVAL, "%s: the bitmap '%s' is inconsistent: remove it, or use "
                         "--skip-broken-bitmaps", f->given, name);
}

/* The bitmaps get the same marks and flags. */
static int
list_bitmaps (const struct arguments *a, const struct imagefile *f, const json_t *info,
              struct bitmapedit **list, size_t *n)
{
  const json_t *data = json_object_get (json_object_get (info, "format-specific"), "data");
  const json_t *b;
  size_t i;
  int r;

  if (strcmp (json_string_value (json_object_get (data, "compat")), "0.10") == 0)
    return report_refusal (EINVAL, "%s: the image cannot have bitmaps", f->given);
  json_array_foreach (json_object_get (data, "bitmaps"), i, b) {
    const char *name = json_string_value (json_object_get (b, "name"));
    const uint64_t granularity = json_integer_value (json_object_get (b, "granularity"));

    r = may_copy_bitmap (a, f, name, b);
    if (r == -1)
      return -1;
    if (r == 1 &&
        (add_bitmap (list, n, &(struct bitmapedit) {
          .what = BITMAP_ADD, .name = name,
          .granularity_bits = __builtin_ctzll (granularity) }) == -1 ||
         (!has_flag (b, "auto") &&
          add_bitmap (list, n, &(struct bitmapedit) {
            .what = BITMAP_DISABLE, .name = name }) == -1) ||
         add_bitmap (list, n, &(struct bitmapedit) {
           .what = BITMAP_MERGE, .name = name, .merged = name }) == -1))
      return -1;
  }
  return 0;
}

static int
copy_bitmaps (const struct arguments *a, const struct imagefile *f, struct copytarget *t)
{
  json_t *info = info_describe (f, false);
  struct bitmapedit *list = NULL;
  size_t n = 0;
  int r = -1;

  if (info && list_bitmaps (a, f, info, &list, &n) == 0)
    r = n == 0 ? 0 : copytarget_edit_bitmaps (t, list, n, f->options.path);
  free (list);
  json_decref (info);
  return r;
}

/* --- what is asked for --- */

static int
refuse_arguments (const struct arguments *a, bool raw)
{
  const bool salvage = is_given (a, &option_salvage);

  if (is_given (a, &option_offload)) {
    if (is_given (a, &option_sparse))
      return fail ("-C cannot be used with -S");
    if (is_given (a, &option_compress))
      return fail ("-C cannot be used with -c");
    if (salvage)
      return fail ("-C cannot be used with --salvage");
  }
  if (salvage && (is_given (a, &option_backing) ||
                  strcmp (a->operands[a->nr_operands - 1], "-") == 0))
    return fail ("--salvage cannot be used with -B, or for stdout");
  if (is_given (a, &option_target_image_opts))
    return fail ("--target-image-opts is not supported: use -n, -O and the name");
  if (is_given (a, &option_compress) && raw)
    return fail ("-c: raw images cannot be compressed: use -O qcow2");
  if (is_given (a, &option_bitmaps) && raw)
    return fail ("--bitmaps: raw images have no bitmaps: use -O qcow2");
  if (is_given (a, &option_no_create) && is_given (a, &option_options))
    return fail ("-n: options (-o) are for new images");
  if (is_given (a, &option_target_is_zero) && !is_given (a, &option_no_create))
    return fail ("--target-is-zero requires -n");
  if (is_given (a, &option_skip_broken) && !is_given (a, &option_bitmaps))
    return fail ("--skip-broken-bitmaps requires --bitmaps");
  return 0;
}

/* What cannot be compressed. */
static int
check_compressible (const struct arguments *a, const struct newoptions *o)
{
  if (!is_given (a, &option_compress))
    return 0;
  if (o->create.image.data_file)
    return fail ("-c cannot be used with data_file=");
  return o->create.encrypt ? fail ("-c cannot be used with encrypt.format=") : 0;
}

static int
parse_sparse (const char *text, struct wishes *w)
{
  uint64_t size;

  w->sparse = BLOCK;
  if (text == NULL)
    return 0;
  if (parse_size ("-S", text, &size) == -1)
    return -1;
  if (size % SECTOR || size > LARGEST_HOLE)
    return bad_value ("-S", text, "is not a multiple of 512 up to 16M");
  w->allocate = size == 0;
  /* A power of two. */
  w->sparse = size ? UINT64_C (1) << (63 - __builtin_clzll (size)) : 0;
  return 0;
}

static int
parse_wishes (const struct arguments *a, struct wishes *w)
{
  const char *requests = value_of (a, &option_requests), *rate = value_of (a, &option_rate);
  uint64_t n;

  w->compress = is_given (a, &option_compress);
  w->salvage = is_given (a, &option_salvage);
  return (requests && parse_number ("-m", requests, 1, 16, &n) == -1) ||
    (rate && parse_size ("-r", rate, &w->rate) == -1) ||
    parse_sparse (value_of (a, &option_sparse), w) == -1 ? -1 : 0;
}

/* --- convert --- */

static bool
has_backing (const struct imagefile *f, const struct diskend *d)
{
  return !f->raw && disk_inside (d->disk).view->image->header.backing_file;
}

/* The snapshot is an export of the server. */
static int
open_export (const struct wishes *w, struct sources *s)
{
  CLEANUP_FREE char *uri = live_export (w->live, w->a, w->snapshot);
  struct imagefile *f = uri && begin_sources (s, 1) == 0
    ? imagefile_new (w->a, uri, "raw", NULL) : NULL;

  return f ? add_source (s, f, NULL, STORAGE_CACHE_DEFAULT) : -1;
}

static int
open_sources (const struct wishes *w, const struct secrets *secrets, struct sources *s)
{
  const struct arguments *const a = w->a;
  const unsigned n = a->nr_operands - 1;

  if (n > 1 && (w->snapshot || is_given (a, &option_bitmaps) ||
                is_given (a, &option_backing)))
    return fail ("-l, --bitmaps and -B are for one image");
  if (begin_sources (s, n) == -1)
    return -1;
  for (unsigned i = 0; i < n; i++) {
    struct imagefile *f = named_source (a, a->operands[i], secrets, s);

    if (f == NULL ||
        add_source (s, f, w->snapshot, imagefile_cache (a, &option_src_cache)) == -1)
      return -1;
  }
  if (is_given (a, &option_bitmaps) &&
      imagefile_need_qcow2 (s->files[0], "persistent bitmaps") == -1)
    return -1;
  return 0;
}

/* Only what the image itself contains. */
static int
choose_layer (struct wishes *w, struct sources *s)
{
  if (!has_backing (s->files[0], &s->ends[0]))
    return 0;
  w->layer = true;
  if (diskend_use_layer (&s->ends[0]) == -1)
    return -1;
  s->parts[0].end = s->ends[0].end;
  return 0;
}

/* If nothing is replaced, it is durable only if the cache mode asks for that, as with
 * qemu-img. */
static enum storage_cache
cache_of_new (const struct arguments *a, const struct imagefile *f)
{
  const char *mode = value_of (a, &option_cache);

  if ((mode == NULL || strcmp (mode, "unsafe") == 0) && !f->uri &&
      access (f->path, F_OK) == -1)
    return STORAGE_CACHE_UNSAFE;
  return imagefile_cache (a, &option_cache);
}

/* How many encrypted images of the source's chain are above the one that is to be below
 * the new image F?  (Another file takes the place of the second one.) */
static size_t
encrypted_above (const struct imagefile *f, const char *backing, const struct sources *s)
{
  const struct layers *layers = disk_inside (s->ends[0].disk).view->layers;
  const struct storage_options options = { .lock = false };
  const bool before = report_silence (true);
  const char *format;
  CLEANUP_FREE char *path = filename_of_backing (f->options.path, backing,
                                                 &f->options.rules, &format);
  struct storage *there = NULL;
  unsigned end = 1;
  size_t n = 0;

  if (path && !nbduri_is (path) && storage_open (path, &options, &there) == 0)
    for (unsigned i = layers_count (layers) - 1; i > 1; i--)
      if (storage_same (there, layers_file (layers, i)))
        end = i;
  storage_close (there);
  report_silence (before);
  for (unsigned i = 0; i < end; i++) {
    const struct header *header = layers_header (layers, i);

    n += header && header->crypt_method != QCOW2_CRYPT_NONE;
  }
  return n;
}

static int
open_target (struct wishes *w, struct newoptions *o, const struct secrets *secrets,
             const struct sources *s, struct imagefile *f, struct copytarget *t)
{
  const struct arguments *const a = w->a;

  if (w->compress)
    f->options.compress = w->allocate ? COMPRESS_ALL : COMPRESS_ON;
  if (is_given (a, &option_no_create) || (f->uri && f->raw)) {
    f->options.cache = imagefile_cache (a, &option_cache);
    if (secrets_only (secrets) && imagefile_add_passphrase (f, secrets_only (secrets)) == -1)
      return -1;
    return copytarget_old (t, f, is_given (a, &option_target_is_zero), s->size);
  }
  f->options.cache = cache_of_new (a, f);
  if (o->passphrase && imagefile_add_passphrase (f, o->passphrase) == -1)
    return -1;
  if (w->layer && imagefile_add_passphrases_below (
        f, s->files[0], encrypted_above (f, o->create.image.backing_file, s)) == -1)
    return -1;
  return copytarget_new (t, f, o, s->size);
}

/* To a file or an export. */
static int
convert_to (struct wishes *w, struct newoptions *o, const struct secrets *secrets,
            struct sources *s, struct imagefile *f)
{
  struct copytarget t = { .file = NULL };
  int r = -1;

  if (check_not_read (f, s) == -1)
    return -1;
  progress_begin (w->a, false);
  if (open_target (w, o, secrets, s, f, &t) == 0 && copy (w, s, &t) == 0 &&
      (!is_given (w->a, &option_bitmaps) || copy_bitmaps (w->a, s->files[0], &t) == 0))
    r = copytarget_finish (&t);
  progress_end (r == 0);
  copytarget_free (&t);
  return r;
}

/* In a file without a name, which is then copied. */
static int
convert_to_piped (struct wishes *w, struct newoptions *o, const struct secrets *secrets,
                  struct sources *s)
{
  const char *directory = temporary_directory ();
  CLEANUP_FREE char *name = text_new ("%s/stdout.qcow2-img", directory);
  struct imagefile *f = name ? imagefile_new (w->a, name, "qcow2", NULL) : NULL;
  struct copytarget t = { .file = NULL };
  struct storage *made = NULL;
  int r = -1;

  if (f && open_target (w, o, secrets, s, f, &t) == 0 && copy (w, s, &t) == 0 &&
      copytarget_reopen (&t, &made) == 0)
    r = copy_to_stdout (copy_storage (made, false));
  else if (errno == ENOSPC || errno == EFBIG)
    report_error ("stdout: the image is made in %s first; " OTHER_DIRECTORY, directory);
  storage_close (made);
  copytarget_free (&t);
  imagefile_free (f);
  return r;
}

static int
convert_to_stdout (struct wishes *w, struct newoptions *o, const struct secrets *secrets,
                   struct sources *s)
{
  if (isatty (STDOUT_FILENO))
    return fail ("-: an image is not written to a terminal");
  if (!w->raw)
    return convert_to_piped (w, o, secrets, s);
  return s->size == 0 ? 0 : copy_to_stdout (joined (s));
}

static int
convert_sources (struct wishes *w, struct newoptions *o, const struct secrets *secrets,
                 struct sources *s)
{
  const struct arguments *const a = w->a;
  const char *name = a->operands[a->nr_operands - 1];
  struct imagefile *f;
  int r;

  if ((w->live ? open_export (w, s) : open_sources (w, secrets, s)) == -1 ||
      (o->create.image.backing_file && choose_layer (w, s) == -1))
    return -1;
  if (strcmp (name, "-") == 0)
    return convert_to_stdout (w, o, secrets, s);
  f = imagefile_new (a, name, w->raw ? "raw" : "qcow2", NULL);
  r = f ? convert_to (w, o, secrets, s, f) : -1;
  imagefile_free (f);
  return r;
}

static int
convert (struct wishes *w, struct newoptions *o, const struct secrets *secrets)
{
  struct sources s = { .piped = -1 };
  struct key_values kv = { .n = 0 };
  int r = -1;

  if (o->has_size)
    report_error ("warning: -o size has no effect: the size is that of what is copied");
  w->cluster = o->create.image.cluster_size;
  if (parse_snapshot ("-l", value_of (w->a, &option_snapshot), &kv, &w->snapshot) == 0 &&
      parse_wishes (w->a, w) == 0)
    r = convert_sources (w, o, secrets, &s);
  end_sources (&s);
  key_values_free (&kv);
  return r;
}

/* Of what lives on the server L; or NULL. */
static int
convert_from (const struct arguments *a, struct live *l)
{
  const char *format = value_of (a, &option_target_format);
  struct newoptions o = { .data_path = NULL };
  struct wishes w = { .a = a, .live = l };
  struct secrets *secrets;
  int r = -1;

  if (imagefile_parse_format ("-O", format ? format : "raw", &w.raw) == -1)
    return EXIT_FAILURE;
  if (newoptions_help (a, w.raw))
    return EXIT_SUCCESS;
  if (a->nr_operands < 2) {
    report_error ("usage: %s convert [OPTION...] IMAGE... TARGET", PROGRAM);
    return EXIT_FAILURE;
  }
  if (refuse_arguments (a, w.raw) == -1)
    return EXIT_FAILURE;
  secrets = secrets_read (a);
  if (secrets && newoptions_read (a, w.raw, value_of (a, &option_backing),
                                  value_of (a, &option_backing_format), secrets, &o) == 0 &&
      newoptions_check_backing (&o) == 0 && check_compressible (a, &o) == 0)
    r = convert (&w, &o, secrets);
  newoptions_free (&o);
  secrets_free (secrets);
  return r == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}

static int
run_convert (const struct arguments *a)
{
  return convert_from (a, NULL);
}

static int
convert_live (const struct arguments *a, struct live *l)
{
  if (!is_given (a, &option_snapshot))
    return fail ("convert --control requires -l: clients write the disk meanwhile (snapshot "
                 "-c takes a snapshot)");
  if (a->nr_operands > 2)
    return fail ("convert --control is for one disk");
  return convert_from (a, l) == EXIT_SUCCESS ? 0 : -1;
}

/* What concerns the target. */
static const struct option *const live_options[] = {
  &option_target_format, &option_options, &option_compress, &option_snapshot,
  &option_no_create, &option_target_is_zero, &option_sparse, &option_requests, &option_oob,
  &option_offload, &option_progress, &option_quiet, &option_cache, &option_rate,
  &option_salvage, &option_nbd, &option_object, NULL
};

static const struct option *const convert_options[] = {
  &option_source_format, &option_target_format, &option_options, &option_compress,
  &option_snapshot, &option_backing, &option_backing_format, &option_bitmaps,
  &option_skip_broken, &option_no_create, &option_target_is_zero, &option_sparse,
  &option_requests, &option_oob, &option_offload, &option_progress, &option_quiet,
  &option_cache, &option_src_cache, &option_force_share, &option_rate, &option_salvage,
  &option_nbd, &option_target_image_opts, IMAGE_OPTIONS, NULL
};

const struct command convert_command = {
  "convert", "IMAGE... TARGET",
  "Copy disks to a new image: one, or several, which follow each other in it.  IMAGE and "
  "TARGET are files, devices or NBD URIs; - is stdin or stdout.",
  convert_options, 0, MOST_SOURCES, .run = run_convert, .live = convert_live,
  .live_options = live_options
};

/* --- dd --- */

struct dd { const char *from, *to, *block, *count, *skip; };

static int
parse_word (const char *word, struct dd *d)
{
  const struct { const char *key; const char **value; } keys[] = {
    { "if=", &d->from }, { "of=", &d->to }, { "bs=", &d->block }, { "count=", &d->count },
    { "skip=", &d->skip },
  };

  for (unsigned i = 0; i < sizeof keys / sizeof keys[0]; i++)
    if (strncmp (word, keys[i].key, strlen (keys[i].key)) == 0) {
      *keys[i].value = word + strlen (keys[i].key);
      return 0;
    }
  if (strchr (word, '='))
    report_error ("dd: unknown operand '%.*s='", (int) strcspn (word, "="), word);
  else
    report_error ("dd: '%s' is not KEY=VALUE", word);
  errno = EINVAL;
  return -1;
}

/* As with qemu-img, the blocks that are skipped count. */
static int
choose_part (const struct dd *d, struct sources *s)
{
  struct copy_part *const p = &s->parts[0];
  uint64_t block, skip = 0, count = 0, size = p->end.size;

  if (parse_size ("bs=", d->block ? d->block : "512", &block) == -1 ||
      (d->skip && parse_size ("skip=", d->skip, &skip) == -1) ||
      (d->count && parse_size ("count=", d->count, &count) == -1))
    return -1;
  if (block == 0)
    return fail ("dd: bs=0");
  if (!mul_fits (skip, block, &skip) || !mul_fits (count, block, &count))
    return fail ("dd: skip= or count= is too large");
  if (d->count)
    size = min64 (size, count);
  if (skip > size)
    return report_refusal (EINVAL, "%s: cannot skip to %" PRIu64 ", because there are %"
                           PRIu64 " bytes", s->files[0]->given, skip, size);
  /* What is behind the part, up to a whole sector, is not copied. */
  p->end.size = size;
  p->from = skip;
  p->len = s->size = round_up (size - skip, SECTOR);
  return 0;
}

static int
dd (const struct arguments *a, const struct dd *d, const struct secrets *secrets)
{
  const char *format = value_of (a, &option_target_format);
  struct imagefile *from = imagefile_named (a, d->from, value_of (a, &option_source_format),
                                            secrets);
  struct imagefile *to = from ? imagefile_new (a, d->to, format ? format : "raw", NULL)
    : NULL;
  struct wishes w = { .a = a, .sparse = BLOCK };
  struct sources s = { .piped = -1 };
  struct newoptions o;
  struct copytarget t = { .file = NULL };
  int r = -1;

  newoptions_default (&o);
  if (begin_sources (&s, 1) == -1 || to == NULL)
    imagefile_free (from);
  else if (add_source (&s, from, NULL, STORAGE_CACHE_DEFAULT) == 0 &&
           choose_part (d, &s) == 0 && check_not_read (to, &s) == 0) {
    progress_begin (a, false);
    to->options.cache = cache_of_new (a, to);
    if ((to->uri && to->raw ? copytarget_old (&t, to, false, s.size)
         : copytarget_new (&t, to, &o, s.size)) == 0 && copy (&w, &s, &t) == 0)
      r = copytarget_finish (&t);
    progress_end (r == 0);
  }
  copytarget_free (&t);
  newoptions_free (&o);
  end_sources (&s);
  imagefile_free (to);
  return r;
}

static int
run_dd (const struct arguments *a)
{
  struct dd d = { .from = NULL };
  struct secrets *secrets;
  int r = -1;

  for (unsigned i = 0; i < a->nr_operands; i++)
    if (parse_word (a->operands[i], &d) == -1)
      return EXIT_FAILURE;
  if (d.from == NULL || d.to == NULL) {
    report_error ("dd: both if= and of= are required");
    return EXIT_FAILURE;
  }
  secrets = secrets_read (a);
  if (secrets)
    r = dd (a, &d, secrets);
  secrets_free (secrets);
  return r == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}

static const struct option *const dd_options[] = {
  &option_source_format, &option_target_format, &option_force_share, IMAGE_OPTIONS, NULL
};

const struct command dd_command = {
  "dd", "if=IMAGE of=TARGET [bs=SIZE] [count=N] [skip=N]",
  "Copy a part of a disk to a new image.  As with qemu-img, COUNT includes the blocks that "
  "are skipped.",
  dd_options, 0, MOST_SOURCES, .run = run_dd
};
