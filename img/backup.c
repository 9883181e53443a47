/* SPDX-License-Identifier: BSD-3-Clause
 *
 * backup: how does a repository get the next generation of a disk, complete or not at
 * all?
 *
 * A bitmap in the image records what has changed since the newest generation (the base),
 * and is known by its name, which the manifest of the repository has.  A backup does
 * this:
 *
 *   1 tidy     what an earlier backup has left is removed: see below
 *   2 instant  in one step: a snapshot is taken, a new bitmap begins to record, and the
 *              base ceases to
 *   3 copy     the snapshot (a full backup), or what the base has recorded up to it,
 *              becomes a new file, which appears when it is durable
 *   4 commit   the manifest names the generation, and its bitmap
 *   5 clean    the snapshot and the old base are removed
 *
 * In place (--onto), what was cut off after the copy began is a mixture, which only that
 * very image can make whole: from then on the manifest names the bitmap of the instant,
 * too.  The next backup merges the base into it, and it is the base.
 *
 * If any of it fails, or a process is killed, the next backup finds bitmaps that belong
 * to this repository (their names begin with its id) but are not the base.  Before 4 the
 * base is the old one: what others have recorded since is merged into it, and it records
 * again.  After 4 it is the new one.  All others are removed, and snapshots, too.  So the
 * base has always recorded at least what has changed since the newest generation; if that
 * is not so (it is missing, or inconsistent), the next backup is a full one.
 *
 * Names of instants are random: no bitmap of an older copy of the image is mistaken for
 * one of now.
 *
 * Locks: none (see repository.c).
 */

#include <config.h>

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

#include "util/bytes.h"
#include "util/cleanup.h"
#include "util/jsontext.h"
#include "util/memory.h"
#include "util/publicname.h"
#include "util/report.h"
#include "util/text.h"
#include "format/otherformat.h"
#include "storage/nbduri.h"
#include "mapping/chain.h"
#include "copy/copy.h"
#include "copy/difference.h"
#include "img/backupdisk.h"
#include "img/copytarget.h"
#include "img/generationfile.h"
#include "img/ontomarks.h"
#include "img/print.h"
#include "img/progress.h"
#include "img/prune.h"
#include "img/repository.h"

#define SECTOR 512
/* Bytes of zeros that are no data. */
#define BLOCK 4096
/* Of new images, in bytes. */
#define CLUSTER 65536
/* Of a bitmap, if clusters are not larger. */
#define GRANULARITY 65536
#define MOST_DISKS 1000
#define NAME 64                 /* of an instant: "backup-ID-RANDOM" */

static const struct option
  option_target_format = {
    'O', "target-format", "qcow2|raw", "the format of a full backup (default qcow2)"
  },
  option_compress = { 'c', "compress", NULL, "compress what is stored" },
  option_full = { 0, "full", NULL, "make a full backup" },
  option_keep = {
    0, "keep", "NUMBER", "afterwards, keep only so many backups: older ones are merged"
  },
  option_onto = {
    0, "onto", "TARGET", "write the disk in place to this raw file, device or NBD export, "
    "which has the newest state only"
  },
  option_rate = { 'r', "rate", "RATE", "read at most so many bytes in a second" },
  option_unencrypted = {
    0, "unencrypted", NULL, "the backup of an encrypted disk is not encrypted"
  },
  option_verify = {
    0, "verify", NULL, "compare what was stored with the disk of the instant"
  };

struct backup {
  const struct arguments *a;
  struct backupdisk *disk;
  struct repository *repository;
  char *base;                   /* its bitmap, which has recorded; NULL: there is none */
  const char *why_full;         /* NULL: it is incremental */
  char instant[NAME];           /* "": not yet */
  char date[32];
  struct backupend all;         /* what the disk showed at the instant, ... */
  struct backupend changes;     /* ... and of that what the base has recorded */
  char *file;                   /* of the new generation */
  struct generationfile stored;
  json_t *marks;
  struct repository_generation g;
  char *onto;                   /* where it is written in place, without secrets; or
                                   NULL */
  uint64_t rate;
  unsigned removed;             /* older ones */
  bool unpruned;                /* but not all of them */
  bool unclean;                 /* the image has something for it that cannot be
                                   removed */
  bool taken;                   /* the image may have something for it */
};

static int
no_memory (const struct backup *b)
{
  return report_refusal (ENOMEM, "%s: no memory for a backup", b->disk->name);
}

/* --- what is in the image --- */

static const char no_bitmap[] = "the image does not have the bitmap of the newest backup";
static const char was_asked[] = "--full was given";

static bool
is_ours (const struct backup *b, const json_t *thing)
{
  const char *prefix = repository_prefix (b->repository);

  return strncmp (jsontext_text (thing, "name"), prefix, strlen (prefix)) == 0;
}

static bool
is_flag (const json_t *bitmap, const char *flag)
{
  return json_is_true (json_object_get (bitmap, flag));
}

static const json_t *
find_bitmap (const struct backup *b, const char *name)
{
  const json_t *bitmap;
  size_t i;

  json_array_foreach (b->disk->bitmaps, i, bitmap)
    if (strcmp (jsontext_text (bitmap, "name"), name) == 0)
      return bitmap;
  return NULL;
}

/* Has what was recorded since the base ceased to record been lost?  NULL: no. */
static const char *
judge_later (const struct backup *b, const json_t *base)
{
  const json_t *bitmap;
  bool records = false;
  size_t i;

  json_array_foreach (b->disk->bitmaps, i, bitmap)
    if (bitmap != base && is_ours (b, bitmap)) {
      if (is_flag (bitmap, "inconsistent"))
        return "the bitmap is inconsistent: the server has ended unexpectedly";
      records |= is_flag (bitmap, "recording");
    }
  return records ? NULL : "the bitmap does not record";
}

static struct repository_generation
get_newest (const struct backup *b)
{
  const unsigned n = repository_count (b->repository);

  return n > 0 ? repository_get (b->repository, n - 1)
    : (struct repository_generation) { .number = 0 };
}

/* Of a generation in place that was cut off, what was being copied is needed as well: an
 * older copy of the image does not have the bitmap of that instant. */
static const char *
base_name (const struct repository_generation *newest)
{
  return newest->incomplete ? newest->copying : newest->bitmap;
}

/* Why is an incremental backup not possible?  NULL: it is. */
static const char *
judge (const struct backup *b)
{
  const unsigned n = repository_count (b->repository);
  const struct repository_generation newest = get_newest (b);
  const char *name = base_name (&newest);
  const json_t *base = name ? find_bitmap (b, name) : NULL;
  const json_t *older = newest.copying ? find_bitmap (b, newest.bitmap) : NULL;

  return n == 0 ? "it is the first backup"
    : newest.incomplete && name == NULL ? "a full backup was cut off"
    : base == NULL ? no_bitmap
    : is_flag (base, "inconsistent") || is_flag (older, "inconsistent")
    ? "the bitmap is inconsistent: the server has ended unexpectedly"
    : b->disk->size < newest.size ? "the disk has become smaller"
    : b->onto && strcmp (b->onto, newest.file) != 0 ? "it goes to another target"
    : !b->onto && !generationfile_is_there (b->repository, n - 1)
    ? "a file of the newest backup is missing, or is not what it was"
    : is_flag (base, "recording") ? NULL : judge_later (b, base);
}

/* --- 1, tidy; and 5 --- */

struct edits {
  struct bitmapedit *list;
  size_t n;
};

static void
add_edit (struct edits *e, enum bitmapedit_what what, const char *name, const char *merged)
{
  e->list[e->n++] = (struct bitmapedit) { .what = what, .name = name, .merged = merged };
}

/* The bitmaps that are there become the base alone, if there is one. */
static void
plan_tidy (const struct backup *b, struct edits *e)
{
  const struct repository_generation newest = get_newest (b);
  const json_t *base = b->base ? find_bitmap (b, b->base) : NULL, *bitmap;
  const bool merges = base && !is_flag (base, "recording");
  size_t i;

  json_array_foreach (b->disk->bitmaps, i, bitmap)
    if (base && bitmap != base && is_ours (b, bitmap) &&
        ((merges && is_flag (bitmap, "recording")) ||
         (newest.copying && strcmp (jsontext_text (bitmap, "name"), newest.bitmap) == 0)))
      add_edit (e, BITMAP_MERGE, b->base, jsontext_text (bitmap, "name"));
  if (merges)
    add_edit (e, BITMAP_ENABLE, b->base, NULL);
  json_array_foreach (b->disk->bitmaps, i, bitmap)
    if (bitmap != base && is_ours (b, bitmap))
      add_edit (e, BITMAP_REMOVE, jsontext_text (bitmap, "name"), NULL);
}

static int
drop_snapshots (const struct backup *b)
{
  const json_t *snapshot;
  size_t i;

  json_array_foreach (b->disk->snapshots, i, snapshot)
    if (is_ours (b, snapshot) &&
        backupdisk_drop_snapshot (b->disk, jsontext_text (snapshot, "name")) == -1)
      return -1;
  return 0;
}

/* Removes all that belongs to the repository from the image, but for the base of what the
 * manifest says. */
static int
tidy (struct backup *b)
{
  const struct repository_generation newest = get_newest (b);
  struct edits e = { .n = 0 };
  int r;

  if (backupdisk_look (b->disk) == -1)
    return -1;
  b->why_full = judge (b);
  free (b->base);
  b->base = NULL;
  if (b->why_full == NULL) {
    b->base = strdup (base_name (&newest));
    if (b->base == NULL)
      return no_memory (b);
  }
  e.list = memory_new (2 * json_array_size (b->disk->bitmaps) + 1, sizeof *e.list);
  if (e.list == NULL)
    return -1;
  plan_tidy (b, &e);
  r = e.n == 0 ? 0
    : backupdisk_edit (b->disk, &(struct backupdisk_edit) { NULL, e.list, e.n }, 1);
  free (e.list);
  return r == -1 ? -1 : drop_snapshots (b);
}

/* --- 2, the instant --- */

/* A piece is a cluster at least: a write into one that a smaller disk had lost makes all
 * of it data again, with zeros that nobody has written.  0: as usual. */
static unsigned
choose_granularity (const struct backup *b)
{
  return b->disk->cluster_size > GRANULARITY ? __builtin_ctzll (b->disk->cluster_size) : 0;
}

static int
name_instant (struct backup *b, const char *date)
{
  uint32_t number;

  if (getrandom (&number, sizeof number, 0) != sizeof number) {
    report_error ("getrandom: %m");
    return -1;
  }
  snprintf (b->instant, sizeof b->instant, "%s%08" PRIx32,
            repository_prefix (b->repository), number);
  strcpy (b->date, date);
  return 0;
}

/* Of all disks.  (A base that a full backup does not need goes on: it is needed if that
 * fails.) */
static int
take_instant (struct backup *all, unsigned n)
{
  struct backupdisk_edit *edits = memory_new (n, sizeof *edits);
  struct bitmapedit (*lists)[2] = memory_new (n, sizeof *lists);
  const time_t now = time (NULL);
  char date[32];
  int r = edits && lists ? 0 : -1;

  strftime (date, sizeof date, "%Y-%m-%dT%H:%M:%SZ", gmtime (&now));
  for (unsigned i = 0; r == 0 && i < n; i++) {
    struct backup *const b = &all[i];

    r = name_instant (b, date);
    lists[i][0] = (struct bitmapedit) {
      .what = BITMAP_ADD, .name = b->instant, .granularity_bits = choose_granularity (b),
    };
    lists[i][1] = (struct bitmapedit) { .what = BITMAP_DISABLE, .name = b->base };
    edits[i] = (struct backupdisk_edit) { b->instant, lists[i], b->why_full ? 1 : 2 };
    b->taken = true;
  }
  if (r == 0)
    r = backupdisk_edit (all[0].disk, edits, n);
  free (edits);
  free (lists);
  return r;
}

/* --- 3, the copy --- */

/* What is stored shows the same as the disk of the instant. */
static int
verify (const struct backup *b, const struct copy_end *stored)
{
  const struct chunks_words words = { .path = b->file };
  const struct chunks_watch watch = PROGRESS_WATCH;
  struct copy_end same = *stored;       /* (a device can be larger) */
  struct difference d;

  same.size = b->g.size;
  if (difference_find (&b->all.end, &same, false, &words, &watch, &d) == -1)
    return -1;
  if (d.at == UINT64_MAX)
    return 0;
  report_error ("%s: at offset %" PRIu64 ", what was stored is not what the disk shows%s",
                b->file, d.at, b->why_full ? "" : ": the bitmap does not know all changes, "
                "make a backup with --full");
  errno = EIO;
  return -1;
}

struct pair { const struct copy_end *now, *stored; };

static int
zero_chunk (void *opaque, void *scratch, uint64_t at, uint64_t end, uint64_t *copied)
{
  const struct pair *p = opaque;
  struct storage_holes known[2];
  struct extent x, y;
  int r = 0;

  (void) scratch, (void) copied;
  storage_holes_begin (&known[0], false);
  storage_holes_begin (&known[1], false);
  while (r == 0 && at < end) {
    x.len = y.len = end - at;
    if (p->now->ops->extent (p->now, at, &x, &known[0]) == -1)
      return -1;
    y.len = x.len = min64 (x.len, end - at);
    y.type = EXTENT_ZERO;
    if (x.type != EXTENT_DATA)
      r = p->stored->ops->extent (p->stored, at, &y, &known[1]);
    y.len = min64 (x.len, y.len);
    if (r == 0 && y.type == EXTENT_DATA)
      r = p->stored->ops->zero (p->stored, y.len, at);
    at += y.len;
  }
  return r;
}

/* A disk that becomes smaller, and larger again, loses data, and no bitmap records that:
 * what is zeros now must not be data below the new file. */
static int
zero_what_has_gone (const struct backup *b, const struct copy_end *stored)
{
  struct pair p = { &b->all.end, stored };
  const struct chunks_watch watch = PROGRESS_WATCH;
  const struct chunks_job job = {
    .words = { .path = b->file }, .size = p.now->size, .remote = p.now->remote,
    .opaque = &p, .work = zero_chunk,
  };
  uint64_t copied;

  return chunks_run (&job, &watch, &copied);
}

static int
copy_to (struct backup *b, struct copytarget *t, bool raw)
{
  const struct chunks_words words = { .path = b->file };
  const struct chunks_watch watch = PROGRESS_WATCH;
  const bool full = b->why_full, compress = is_given (b->a, &option_compress) && !raw;
  const bool verifies = is_given (b->a, &option_verify);
  const struct copy c = {
    .from = full ? b->all.end : b->changes.end, .to = t->end, .zeros = t->zeros,
    .contained = !full, .unit = full && compress ? CLUSTER : 0,
    .sparse = full && !compress ? BLOCK : CLUSTER, .rate = b->rate,
  };

  progress_within (0, verifies ? 0.45 : 0.9);
  if (copy_all (&c, &words, false, &watch, &b->g.bytes) == -1 ||
      (!full && zero_what_has_gone (b, &t->end) == -1))
    return -1;
  progress_within (0.45, 0.9);
  return verifies ? verify (b, &t->end) : 0;
}

/* The name of the file, and what it lies over. */
static int
name_file (struct backup *b, bool raw)
{
  const unsigned n = repository_count (b->repository);
  struct repository_generation newest;
  char name[40];

  b->g.number = repository_next (b->repository);
  b->g.size = round_up (b->all.end.size, SECTOR);
  b->g.raw = raw;
  b->g.estranged = b->why_full == no_bitmap;
  if (b->onto) {
    b->g.onto = true;
    b->g.file = b->file = strdup (b->onto);
    return b->file ? 0 : no_memory (b);
  }
  snprintf (name, sizeof name, "%06" PRIu64 ".%s", b->g.number, raw ? "raw" : "qcow2");
  b->file = repository_path (b->repository, name);
  if (b->file == NULL)
    return -1;
  b->g.file = strrchr (b->file, '/') + 1;
  if (b->why_full)
    return 0;
  newest = repository_get (b->repository, n - 1);
  b->g.backing = newest.file;
  b->g.raw_backing = newest.raw;
  return 0;
}

/* What it does not know as its own, it does not replace if that is an image: a raw disk
 * would take its place. */
static int
refuse_image (const struct backup *b, const struct copytarget *t)
{
  char head[SECTOR];
  const char *format;

  if (storage_read (t->raw, head, sizeof head, 0) == -1)
    return -1;
  format = memcmp (head, "QFI\xfb", 4) == 0 ? "qcow2" : otherformat_disk (head, sizeof head);
  if (format == NULL)
    return 0;
  return report_refusal (EINVAL, "--onto: %s looks like a %s image, and would become a "
                         "raw disk: --full replaces it", b->onto, format);
}

/* Is what is in place what the newest backup has left there?  (It may also be the disk
 * that a server shows under another name.) */
static int
check_target (const struct backup *b, const struct copytarget *t)
{
  const unsigned n = repository_count (b->repository);
  const struct repository_generation newest = get_newest (b);
  const struct ontomarks_cut cut = { &b->all.end, &b->changes.end };

  const bool is_uri = nbduri_is (b->onto);
  const bool inside = !is_uri && repository_contains (b->repository, b->onto);

  if (inside || (!is_uri && backupdisk_has_file (b->disk, b->onto)) ||
      backupdisk_is_at (b->disk, value_of (b->a, &option_onto), b->instant)) {
    report_error ("--onto: %s is %s", b->onto, inside ? "in the repository"
                  : "the disk itself, or a file of it");
    errno = EINVAL;
    return -1;
  }
  if (is_given (b->a, &option_full))
    return 0;
  if (n == 0 || strcmp (newest.file, b->onto) != 0 || (newest.incomplete && b->why_full))
    return refuse_image (b, t);
  return ontomarks_check (newest.marks, &t->end, b->onto,
                          newest.incomplete ? &cut : NULL);
}

/* What is in place is worth nothing until all of it is copied: an incremental backup can
 * be cut off, and go on from what is there, because the base then knows all that it had
 * to copy. */
static int
open_target (struct backup *b, struct imagefile *f, struct newoptions *o,
             struct copytarget *t)
{
  if (b->onto == NULL)
    return copytarget_new (t, f, o, b->g.size);
  return copytarget_old (t, f, false, b->g.size) == -1 || check_target (b, t) == -1 ? -1
    : repository_begin_onto (b->repository, b->why_full ? NULL : b->base, b->instant);
}

/* By what is known what is in place; other generations have files. */
static int
make_marks (struct backup *b, const struct copytarget *t)
{
  if (b->onto == NULL)
    return 0;
  if (ontomarks_make (&b->all.end, b->why_full ? NULL : &b->changes.end, &t->end,
                      b->g.size, &b->marks) == -1)
    return -1;
  b->g.marks = b->marks;
  return 0;
}

static int
measure (struct backup *b)
{
  progress_within (0.9, 1);
  if (b->onto)
    return 0;
  if (generationfile_measure (b->repository, b->g.file, true, &b->stored) == -1)
    return -1;
  b->g.file_size = b->stored.size;
  b->g.sum = b->stored.sum;
  return 0;
}

static int
copy_to_file (struct backup *b, struct imagefile *f)
{
  struct copytarget t = { .file = NULL };
  struct newoptions o;
  int r = -1;

  newoptions_default (&o);
  o.create.image.backing_file = b->g.backing;
  o.create.image.backing_format = b->g.backing == NULL ? NULL
    : b->g.raw_backing ? "raw" : "qcow2";
  if (is_given (b->a, &option_compress) && !b->g.raw)
    f->options.compress = COMPRESS_ON;
  if (open_target (b, f, &o, &t) == 0 && copy_to (b, &t, b->g.raw) == 0 &&
      make_marks (b, &t) == 0 && copytarget_finish (&t) == 0)
    r = measure (b);
  copytarget_free (&t);
  newoptions_free (&o);
  return r;
}

static int
copy (struct backup *b)
{
  const char *format = value_of (b->a, &option_target_format);
  const bool raw = b->onto || (b->why_full && format && strcmp (format, "raw") == 0);
  CLEANUP_FREE char *changes = text_new ("bitmap:%s@%s", b->base ? b->base : "",
                                         b->instant);
  const char *uri = value_of (b->a, &option_onto);
  const bool is_uri = uri && nbduri_is (uri);
  struct imagefile *f = NULL;
  int r = -1;

  if (changes == NULL)
    return no_memory (b);
  if (backupend_open (b->disk, b->instant, false, &b->all) == 0 &&
      (b->why_full || backupend_open (b->disk, changes, true, &b->changes) == 0) &&
      name_file (b, raw) == 0 &&
      (f = imagefile_new (b->a, is_uri ? uri : b->file, raw ? "raw" : "qcow2", NULL)) != NULL)
    r = copy_to_file (b, f);
  imagefile_free (f);
  backupend_close (&b->changes);
  backupend_close (&b->all);
  return r;
}

/* --- all of it --- */

static int
commit (struct backup *b)
{
  b->g.bitmap = b->instant;
  b->g.date = b->date;
  return b->onto ? repository_replace (b->repository, &b->g)
    : repository_add (b->repository, &b->g);
}

/* A repository has files, or one disk in place. */
static int
check_onto (const struct backup *b)
{
  if (repository_count (b->repository) == 0 ||
      repository_get (b->repository, 0).onto == (b->onto != NULL))
    return 0;
  report_error (b->onto ? "--onto: the repository has files: use another one"
                : "the repository is for --onto %s", repository_get (b->repository, 0).file);
  errno = EINVAL;
  return -1;
}

/* Could no image lie over the files of the newest generation? */
static bool
is_long (const struct repository *r)
{
  unsigned i = repository_count (r) - 1, files = 1;

  for (; repository_get (r, i).backing; i--, files++)
    if (i == 0)
      return files + 1 >= CHAIN_MAX_LAYERS;
  return files >= CHAIN_MAX_LAYERS;
}

static int
begin_backup (struct backup *b)
{
  if (check_onto (b) == -1)
    return -1;
  if (b->disk->encrypted && !is_given (b->a, &option_unencrypted))
    return report_refusal (EINVAL, "%s: the disk is encrypted, and its backup would not "
                           "be: --unencrypted permits that", b->disk->name);
  if (tidy (b) == -1)
    return -1;
  if (b->why_full == NULL && is_given (b->a, &option_full))
    b->why_full = was_asked;
  if (b->why_full == NULL && !b->onto && is_long (b->repository))
    b->why_full = "the newest backup lies over too many files";
  return 0;
}

/* What is possible now: the next backup does the rest, if the repository is there, by
 * whose id it finds that. */
static void
give_up (struct backup *all, unsigned n)
{
  KEEP_ERRNO_FOR_BLOCK;
  const bool before = report_silence (true);

  for (unsigned i = 0; i < n; i++)
    if (all[i].taken)
      all[i].taken = tidy (&all[i]) == -1;
  report_silence (before);
}

/* (A server that has gone comes again; of a corrupt image, the next backup may fail.) */
static void
clean (struct backup *b)
{
  const char *why = b->why_full;
  const int r = tidy (b);

  b->unclean = r == -1 && (b->disk->live == NULL || errno == EINVAL);
  if (b->unclean)
    report_error ("%s: this backup is complete, but its snapshot and bitmaps could not be "
                  "removed from the image; no older backups were removed", b->disk->name);
  else if (r == -1)
    report_error ("warning: %s: the snapshot and bitmaps of this backup are removed by the "
                  "next one", b->disk->name);
  b->why_full = why;
}

static int
back_up (struct backup *all, unsigned n)
{
  int r = 0;

  for (unsigned i = 0; r == 0 && i < n; i++)
    r = begin_backup (&all[i]);
  if (r == 0)
    r = take_instant (all, n);
  for (unsigned i = 0; r == 0 && i < n; i++)
    r = copy (&all[i]);
  for (unsigned i = 0; r == 0 && i < n; i++)
    r = commit (&all[i]);
  if (r == -1) {
    give_up (all, n);
    return -1;
  }
  for (unsigned i = 0; i < n; i++)
    clean (&all[i]);
  return 0;
}

static bool
mixes_disks (const struct repository *r)
{
  for (unsigned i = 1; i < repository_count (r); i++)
    if (repository_get (r, i).estranged)
      return true;
  return false;
}

/* The new generation may be in another file by now. */
static int
prune_one (struct backup *b, uint64_t keep)
{
  char *file;
  int r;

  if (repository_count (b->repository) > keep && b->why_full != was_asked &&
      mixes_disks (b->repository)) {
    report_error ("%s: --keep: nothing was removed, because older backups may be of another "
                  "disk; --full together with --keep removes them", b->disk->name);
    return 0;
  }
  r = prune (b->a, b->repository, keep, is_given (b->a, &option_verify), &b->removed);
  b->unpruned = r == -1;
  file = repository_path (b->repository, get_newest (b).file);
  if (file == NULL)
    return -1;
  free (b->file);
  b->file = file;
  return r;
}

/* The new generation is there, whatever becomes of old ones; they are what is left if the
 * disk is damaged. */
static int
prune_all (struct backup *all, unsigned n, uint64_t keep)
{
  int r = 0;

  for (unsigned i = 0; i < n; i++)
    if (all[i].unclean)
      return -1;
  if (keep == 0)
    return 0;
  progress_begin (all[0].a, wants_json (all[0].a));
  for (unsigned i = 0; r == 0 && i < n; i++)
    r = prune_one (&all[i], keep);
  progress_end (r == 0);
  return r;
}

/* --- what was done --- */

static json_t *
describe (const struct backup *b)
{
  json_t *g = repository_describe (b->repository, repository_count (b->repository) - 1);
  json_t *x = jsontext_add (g,
    { "kind", jsontext_string (b->onto ? "in-place" : b->why_full ? "full"
                               : "incremental") },
    { "disk", jsontext_string (b->disk->name) },
    { "filename", jsontext_string (b->file) },
    { "verified", json_boolean (is_given (b->a, &option_verify)) },
    { "removed", jsontext_number (b->removed) });

  return b->why_full ? jsontext_add (x, { "why-full", jsontext_string (b->why_full) }) : x;
}

/* Names may be of any bytes. */
static void
print_name (const struct backup *b)
{
  jsontext_put (b->disk->name, stdout);
  fputs (": ", stdout);
}

static int
tell (const struct backup *all, unsigned n)
{
  json_t *list = json_array ();
  char size[READABLE];

  if (wants_json (all[0].a)) {
    for (unsigned i = 0; i < n; i++)
      list = jsontext_append (list, describe (&all[i]));
    return print_json (list);
  }
  json_decref (list);
  for (unsigned i = 0; i < n && !is_given (all[0].a, &option_quiet); i++) {
    const struct backup *const b = &all[i];

    print_name (b);
    printf ("%s backup %" PRIu64 ": %s in ", b->why_full ? "full" : "incremental",
            b->g.number, readable (b->g.bytes, size));
    jsontext_put (b->file, stdout);
    printf ("%s%s%s%s\n", is_given (b->a, &option_verify) ? ", verified" : "",
            b->why_full ? " (" : "", b->why_full ? b->why_full : "",
            b->why_full ? ")" : "");
    if (b->removed > 0) {
      print_name (b);
      printf ("older backups removed: %u\n", b->removed);
    }
    if (b->unpruned) {
      print_name (b);
      printf ("this backup is complete, but older ones were not merged\n");
    }
  }
  return EXIT_SUCCESS;
}

/* --- the command --- */

/* Each of several disks has a directory of its own. */
static char *
directory_of (const struct arguments *a, unsigned i)
{
  const char *directory = a->operands[a->nr_operands - 1], *name = a->operands[i];
  const char *slash = strrchr (name, '/');

  return a->nr_operands == 2 ? strdup (directory)
    : text_new ("%s/%s", directory, slash ? slash + 1 : name);
}

static int
open_repository (struct backup *b, unsigned i)
{
  CLEANUP_FREE char *directory = directory_of (b->a, i);

  if (directory == NULL)
    return no_memory (b);
  for (unsigned j = 0; j < i; j++) {
    CLEANUP_FREE char *other = directory_of (b->a, j);

    if (other && strcmp (other, directory) == 0)
      return report_refusal (EINVAL, "%s and %s would have the same repository, %s",
                             b->a->operands[j], b->a->operands[i], directory);
  }
  b->repository = repository_begin (directory, b->disk->name, backupdisk_file (b->disk));
  return b->repository ? 0 : -1;
}

static int
run_all (const struct arguments *a, struct live *l, const struct secrets *secrets,
         struct backupdisk *disks, struct backup *all, unsigned n)
{
  const char *text = value_of (a, &option_rate), *most = value_of (a, &option_keep);
  const char *onto = value_of (a, &option_onto);
  uint64_t rate = 0, keep = 0;
  int r = (text && parse_size ("-r", text, &rate) == -1) ||
    (most && parse_number ("--keep", most, 1, UINT32_MAX, &keep) == -1) ? -1 : 0;

  if (onto && (n > 1 || is_given (a, &option_target_format) || most ||
               is_given (a, &option_compress))) {
    report_error ("--onto is for one disk, without --keep, -O and -c");
    r = -1;
  }
  for (unsigned i = 0; r == 0 && i < n; i++) {
    all[i] = (struct backup) { .a = a, .disk = &disks[i], .rate = rate };
    r = l ? backupdisk_use (&disks[i], a, l, a->operands[i], value_of (a, &option_nbd))
      : backupdisk_open (&disks[i], a, a->operands[i], secrets);
    if (r == 0 && onto) {
      all[i].onto = nbduri_is (onto) ? publicname (onto) : imagefile_path (onto);
      r = all[i].onto ? 0 : nbduri_is (onto) ? no_memory (&all[i]) : -1;
    }
    if (r == 0)
      r = open_repository (&all[i], i);
  }
  progress_begin (a, wants_json (a));
  if (r == 0)
    r = back_up (all, n);
  progress_end (r == 0);
  if (r == -1)
    return EXIT_FAILURE;
  r = prune_all (all, n, keep);
  return tell (all, n) == EXIT_SUCCESS && r == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}

static int
run_with (const struct arguments *a, struct live *l, const struct secrets *secrets)
{
  const unsigned n = a->nr_operands - 1;
  struct backupdisk *disks = memory_new (n, sizeof *disks);
  struct backup *all = memory_new (n, sizeof *all);
  const int status = disks && all ? run_all (a, l, secrets, disks, all, n) : EXIT_FAILURE;

  for (unsigned i = 0; disks && all && i < n; i++) {
    backupdisk_close (&disks[i]);
    if (all[i].repository && !all[i].taken)
      repository_abandon (all[i].repository);
    repository_free (all[i].repository);
    free (all[i].base);
    free (all[i].onto);
    free (all[i].file);
    json_decref (all[i].marks);
  }
  free (disks);
  free (all);
  return status;
}

static int
run_live (const struct arguments *a, struct live *l)
{
  return run_with (a, l, NULL) == EXIT_SUCCESS ? 0 : -1;
}

static int
run (const struct arguments *a)
{
  struct secrets *secrets = secrets_read (a);
  const int status = secrets ? run_with (a, NULL, secrets) : EXIT_FAILURE;

  secrets_free (secrets);
  return status;
}

#define OPTIONS &option_full, &option_keep, &option_target_format, &option_compress, \
    &option_onto, &option_rate, &option_verify, &option_unencrypted, &option_output, \
    &option_progress, &option_quiet

static const struct option *const live_options[] = { OPTIONS, &option_nbd, NULL };
static const struct option *const options[] = {
  OPTIONS, &option_nbd, &option_format, IMAGE_OPTIONS, NULL
};

const struct command backup_command = {
  "backup", "IMAGE... REPOSITORY",
  "Store what has changed since the last backup in a directory: with --control, of disks in "
  "use, at one instant.",
  options, 2, MOST_DISKS, .run = run, .live = run_live, .live_options = live_options,
  .finds_disks = true
};
