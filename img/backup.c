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
 *              becomes a new file; the manifest says from time to time how much of that
 *              is durable
 *   4 commit   the file is complete and gets its name, and the manifest names the
 *              generation, and its bitmap
 *   5 clean    the snapshot and the old base are removed
 *
 * If 3 is cut off, the next backup goes on with it, instead of 1 and 2, as long as the
 * image still has that snapshot and those bitmaps, and the file is the same.  Nobody else
 * changes them: snapshots never change, and of the bitmaps one has ceased to record, and
 * the other records on.  If the file cannot be used, all of that instant is copied again.
 *
 * In place (--onto), what was cut off after the copy began is a mixture, which only that
 * very image can make whole: from then on the manifest names the bitmap of the instant,
 * too.  A backup that cannot go on merges the base into it, and it is the base: until the
 * manifest says so, both are needed.  Whether the target is the same, its marks tell
 * (ontomarks.c): those of the newest generation where nothing was to be written, and
 * those of what was copied.
 *
 * Otherwise, if any of it fails, or a process is killed, the next backup finds bitmaps
 * that belong to this repository (their names begin with its id) but are not the base.
 * Before 4 the base is the old one: what others have recorded since is merged into it,
 * and it records again.  After 4 it is the new one.  All others are removed, and
 * snapshots, too.  So the base has always recorded at least what has changed since the
 * newest generation; if that is not so (it is missing, or inconsistent), the next backup
 * is a full one.
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
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

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
#include "copy/copyend.h"
#include "img/backupcopy.h"
#include "img/backupdisk.h"
#include "img/generationfile.h"
#include "img/ontomarks.h"
#include "img/print.h"
#include "img/progress.h"
#include "img/prune.h"
#include "img/repository.h"

#define SECTOR 512
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
  struct backup *all;           /* of this instant, as many as there are */
  unsigned disks;
  struct backupdisk *disk;
  struct repository *repository;
  char *base;                   /* its bitmap, which has recorded; NULL: there is none */
  const char *why_full;         /* NULL: it is incremental */
  char instant[NAME];           /* "": not yet */
  char date[32];
  struct backupend shown;       /* what the disk showed at the instant, ... */
  struct backupend changes;     /* ... and of that what the base has recorded */
  uint64_t done;                /* of the copy: what is before that is durable */
  uint64_t inode;               /* of its file */
  uint64_t changed;             /* bytes, up to the instant, by the base */
  bool goes_on;                 /* an earlier backup began it */
  bool copies;                  /* it has come so far */
  bool useless;                 /* no later one can go on with it */
  char *part;                   /* its file, until it is complete; NULL in place */
  char *file;                   /* of the new generation */
  struct generationfile stored;
  struct ontomarks maker;       /* in place: */
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
wants_raw (const struct backup *b)
{
  const char *format = value_of (b->a, &option_target_format);

  return b->onto || (b->why_full && format && strcmp (format, "raw") == 0);
}

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
find_named (const json_t *list, const char *name)
{
  const json_t *one;
  size_t i;

  json_array_foreach (list, i, one)
    if (strcmp (jsontext_text (one, "name"), name) == 0)
      return one;
  return NULL;
}

static const json_t *
find_bitmap (const struct backup *b, const char *name)
{
  return find_named (b->disk->bitmaps, name);
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
    : base == NULL || (newest.copying && older == NULL) ? no_bitmap
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

/* What the other bitmaps know, the base knows, and it records. */
static void
plan_merges (const struct backup *b, struct edits *e)
{
  const struct repository_generation newest = get_newest (b);
  const json_t *base = find_bitmap (b, b->base), *bitmap;
  const bool merges = !is_flag (base, "recording");
  size_t i;

  json_array_foreach (b->disk->bitmaps, i, bitmap)
    if (bitmap != base && is_ours (b, bitmap) &&
        ((merges && is_flag (bitmap, "recording")) ||
         (newest.copying && strcmp (jsontext_text (bitmap, "name"), newest.bitmap) == 0)))
      add_edit (e, BITMAP_MERGE, b->base, jsontext_text (bitmap, "name"));
  if (merges)
    add_edit (e, BITMAP_ENABLE, b->base, NULL);
}

/* All but the base. */
static void
plan_removals (const struct backup *b, struct edits *e)
{
  const json_t *bitmap;
  size_t i;

  json_array_foreach (b->disk->bitmaps, i, bitmap)
    if (is_ours (b, bitmap) &&
        (b->base == NULL || strcmp (jsontext_text (bitmap, "name"), b->base) != 0))
      add_edit (e, BITMAP_REMOVE, jsontext_text (bitmap, "name"), NULL);
}

static int
do_edits (const struct backup *b, struct edits *e)
{
  const struct backupdisk_edit edit = { NULL, e->list, e->n };
  const int r = e->n == 0 ? 0 : backupdisk_edit (b->disk, &edit, 1);

  e->n = 0;
  return r;
}

/* The bitmaps that are there become the base alone, if there is one.  In place, what was
 * cut off needs two, as long as the manifest does not say that the base knows all. */
static int
tidy_bitmaps (const struct backup *b, struct edits *e)
{
  const struct repository_generation newest = get_newest (b);

  if (b->base)
    plan_merges (b, e);
  if (b->base && newest.copying && strcmp (newest.copying, newest.bitmap) != 0 &&
      (do_edits (b, e) == -1 ||
       repository_begin_onto (b->repository, b->base, b->base) == -1))
    return -1;
  plan_removals (b, e);
  return do_edits (b, e);
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
  r = tidy_bitmaps (b, &e);
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

static void
name_instant (struct backup *b, uint32_t number, const char *date)
{
  snprintf (b->instant, sizeof b->instant, "%s%08" PRIx32,
            repository_prefix (b->repository), number);
  strcpy (b->date, date);
}

/* Of all disks, with the same random number.  (A base that a full backup does not need
 * goes on: it is needed if that fails.) */
static int
take_instant (struct backup *all, unsigned n)
{
  struct backupdisk_edit *edits = memory_new (n, sizeof *edits);
  struct bitmapedit (*lists)[2] = memory_new (n, sizeof *lists);
  const time_t now = time (NULL);
  uint32_t number;
  char date[32];
  int r = edits && lists ? 0 : -1;

  if (getrandom (&number, sizeof number, 0) != sizeof number) {
    report_error ("getrandom: %m");
    r = -1;
  }

  strftime (date, sizeof date, "%Y-%m-%dT%H:%M:%SZ", gmtime (&now));
  for (unsigned i = 0; r == 0 && i < n; i++) {
    struct backup *const b = &all[i];

    name_instant (b, number, date);
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

/* How many bytes have changed up to INSTANT, says BASE? */
static int
count_changes (const struct backup *b, const char *base, const char *instant,
               uint64_t *bytes)
{
  CLEANUP_FREE char *name = text_new ("bitmap:%s@%s", base, instant);
  struct backupend changes = { .end.size = 0 };
  struct storage_holes known;
  struct extent x;
  int r = name == NULL ? no_memory (b) : backupend_open (b->disk, name, true, &changes);

  *bytes = 0;
  storage_holes_begin (&known, false);
  for (uint64_t at = 0; r == 0 && at < changes.end.size; at += x.len) {
    x = (struct extent) { changes.end.size - at, EXTENT_DATA };
    r = changes.end.ops->extent (&changes.end, at, &x, &known);
    x.len = min64 (x.len, changes.end.size - at);
    *bytes += x.type == EXTENT_HOLE ? 0 : x.len;
  }
  backupend_close (&changes);
  return r;
}

/* --- 3, the copy --- */

/* COPIED: bytes, by this program. */
static int
record (struct backup *b, uint64_t copied)
{
  const struct repository_part p = {
    .instant = b->instant, .base = b->why_full ? NULL : b->base, .date = b->date,
    .disks = b->disks, .raw = wants_raw (b), .onto = b->onto, .marks = b->marks,
    .done = b->done, .bytes = b->g.bytes + copied, .inode = b->inode, .changed = b->changed,
  };

  return repository_set_part (b->repository, &p);
}

/* By what is known what is in place up to BEFORE; other generations have files. */
static int
make_marks (struct backup *b, uint64_t before)
{
  json_decref (b->marks);
  b->marks = NULL;
  return b->onto ? ontomarks_make (&b->maker, before, &b->marks) : 0;
}

/* The manifests get to know how far all are, so that the next backup can go on with all
 * of them.  (In place, not if an empty target would look the same.) */
static int
settle (void *opaque, uint64_t before, uint64_t copied)
{
  struct backup *const b = opaque;

  if (before <= b->done)
    return 0;
  if (make_marks (b, before) == -1)
    return -1;
  if (b->onto && !ontomarks_tell (b->marks))
    return 0;
  b->done = before;
  for (unsigned i = 0; i < b->disks; i++) {
    struct backup *const one = &b->all[i];
    const struct repository_part was = repository_get_part (one->repository);

    if ((was.instant == NULL || was.done < one->done) &&
        record (one, one == b ? copied : 0) == -1)
      return -1;
  }
  return 0;
}

/* The names of the file, and what it lies over. */
static int
name_file (struct backup *b, bool raw)
{
  const unsigned n = repository_count (b->repository);
  struct repository_generation newest;
  char name[40];

  b->g.number = repository_next (b->repository);
  b->g.size = round_up (b->shown.end.size, SECTOR);
  if (b->done > b->g.size)
    return report_refusal (EINVAL, "%s: more was copied than the disk has, says the "
                           "manifest: it is damaged", b->disk->name);
  b->g.raw = raw;
  b->g.estranged = b->why_full == no_bitmap;
  if (b->onto) {
    b->g.onto = true;
    b->g.file = b->file = strdup (b->onto);
    return b->file ? 0 : no_memory (b);
  }
  snprintf (name, sizeof name, "%06" PRIu64 ".%s", b->g.number, raw ? "raw" : "qcow2");
  b->file = repository_path (b->repository, name);
  b->part = repository_part_path (b->repository, raw);
  if (b->file == NULL || b->part == NULL)
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

/* What an earlier backup has copied cannot be used, WHY: all is copied, of the same
 * instant. */
static int
copy_again (struct backup *b, const char *why)
{
  report_error ("warning: %s: the backup of %s, which was cut off, is copied from its "
                "beginning: %s", b->disk->name, b->date, why);
  b->done = b->g.bytes = 0;
  return record (b, 0);
}

/* Has the target all MARKS? */
static int
check_marks (const struct backup *b, const struct copytarget *t, const json_t *marks,
             const struct ontomarks_cut *cut)
{
  uint64_t other;

  if (ontomarks_check (marks, &t->end, cut, &other) == -1)
    return -1;
  return other == UINT64_MAX ? 0
    : report_refusal (EINVAL, "%s: at offset %" PRIu64 " is not what the last backup has left "
                      "there: this is another target, or it was written to (--full replaces "
                      "all of it)", b->onto, other);
}

/* The same of those of the part.  But a full backup replaces all. */
static int
check_part (struct backup *b, const struct copytarget *t)
{
  const struct repository_part p = repository_get_part (b->repository);
  uint64_t other;

  if (b->why_full == NULL)
    return check_marks (b, t, p.marks, NULL);
  /* An older copy has most of all data, too, and nothing says what is new. */
  if (repository_count (b->repository) > 0)
    return copy_again (b, "this may be an older copy of the target");
  if (ontomarks_check (p.marks, &t->end, NULL, &other) == -1)
    return -1;
  return other == UINT64_MAX ? 0
    : copy_again (b, "this is another target, or it was written to");
}

/* Is what is in place what the newest backup has left there, and the one that goes on?
 * (It may also be the disk that a server shows under another name.) */
static int
check_target (struct backup *b, const struct copytarget *t)
{
  const unsigned n = repository_count (b->repository);
  const struct repository_generation newest = get_newest (b);
  const struct ontomarks_cut cut = { &b->shown.end, &b->changes.end };
  const bool replaces = is_given (b->a, &option_full) || (b->done > 0 && b->why_full);

  const bool is_uri = nbduri_is (b->onto);
  const bool inside = !is_uri && repository_contains (b->repository, b->onto);

  if (inside || (!is_uri && backupdisk_has_file (b->disk, b->onto)) ||
      backupdisk_is_at (b->disk, value_of (b->a, &option_onto), b->instant)) {
    report_error ("--onto: %s is %s", b->onto, inside ? "in the repository"
                  : "the disk itself, or a file of it");
    errno = EINVAL;
    return -1;
  }
  if (b->done > 0 && check_part (b, t) == -1)
    return -1;
  if (replaces)
    return 0;
  if (n == 0 || strcmp (newest.file, b->onto) != 0 || (newest.incomplete && b->why_full))
    return refuse_image (b, t);
  return check_marks (b, t, newest.marks, newest.incomplete ? &cut : NULL);
}

/* 0: there is none. */
static uint64_t
inode_of (const char *path)
{
  struct stat st;

  return stat (path, &st) == 0 ? st.st_ino : 0;
}

static int
open_part (struct backup *b, struct backupcopy *c, struct imagefile *f,
           struct newoptions *o, struct copytarget *t)
{
  int r;

  c->begin = b->done;
  if (b->done == 0)
    unlink (b->part);           /* of it nothing is known */
  r = backupcopy_open (c, t, f, o, b->g.size);
  b->inode = inode_of (b->part);
  return r;
}

static int
open_target (struct backup *b, struct backupcopy *c, struct imagefile *f,
             struct newoptions *o, struct copytarget *t)
{
  int r;

  if (b->onto) {
    if (copytarget_old (t, f, false, b->g.size) == -1 || check_target (b, t) == -1)
      return -1;
    c->begin = b->done;
    ontomarks_begin (&b->maker, c->all, c->changes, &t->end);
    return repository_begin_onto (b->repository, b->why_full ? NULL : b->base, b->instant);
  }
  r = open_part (b, c, f, o, t);
  /* (A raw file that was there needs no space: it has become smaller.) */
  if (r == 0 || b->done == 0 || (errno == ENOSPC && !f->raw) || errno == EDQUOT ||
      errno == EINTR || errno == ENOMEM)
    return r;
  copytarget_free (t);
  return copy_again (b, "its file is damaged") == -1 ? -1 : open_part (b, c, f, o, t);
}

static int
measure (struct backup *b)
{
  progress_within (0.9, 1);
  if (b->onto)
    return 0;
  if (generationfile_measure (b->repository, b->part, true, &b->stored) == -1)
    return -1;
  b->g.file_size = b->stored.size;
  b->g.sum = b->stored.sum;
  return 0;
}

static int
copy_to_file (struct backup *b, struct imagefile *f)
{
  struct backupcopy c = {
    .file = b->file, .all = &b->shown.end, .changes = b->why_full ? NULL : &b->changes.end,
    .compress = is_given (b->a, &option_compress) && !b->g.raw, .rate = b->rate,
    .settled = settle, .opaque = b,
  };
  const bool verifies = is_given (b->a, &option_verify);
  struct copytarget t = { .file = NULL };
  struct newoptions o;
  uint64_t bytes;
  int r = -1;

  newoptions_default (&o);
  o.create.image.backing_file = b->g.backing;
  o.create.image.backing_format = b->g.backing == NULL ? NULL
    : b->g.raw_backing ? "raw" : "qcow2";
  if (c.compress)
    f->options.compress = COMPRESS_ON;
  if (open_target (b, &c, f, &o, &t) == 0) {
    b->copies = true;
    progress_within (0, verifies ? 0.45 : 0.9);
    r = backupcopy_run (&c, &t, &bytes);
    progress_within (0.45, 0.9);
    if (r == 0 && verifies) {
      r = backupcopy_verify (&c, &t, b->g.size);
      b->useless = r == -1 && errno == EBADMSG;
    }
  }
  if (r == 0) {
    b->g.bytes += bytes;
    r = make_marks (b, b->g.size) == -1 || copytarget_finish (&t) == -1 ? -1 : measure (b);
  }
  if (r == 0)
    b->done = b->g.size;
  b->g.marks = b->marks;
  ontomarks_end (&b->maker);
  copytarget_free (&t);
  newoptions_free (&o);
  return r;
}

static int
copy (struct backup *b)
{
  const bool raw = wants_raw (b);
  CLEANUP_FREE char *changes = text_new ("bitmap:%s@%s", b->base ? b->base : "",
                                         b->instant);
  const char *uri = value_of (b->a, &option_onto);
  const bool is_uri = uri && nbduri_is (uri);
  struct imagefile *f = NULL;
  int r = -1;

  if (changes == NULL)
    return no_memory (b);
  if (backupend_open (b->disk, b->instant, false, &b->shown) == 0 &&
      (b->why_full || backupend_open (b->disk, changes, true, &b->changes) == 0) &&
      name_file (b, raw) == 0)
    f = imagefile_new (b->a, is_uri ? uri : b->onto ?: b->part, raw ? "raw" : "qcow2", NULL);
  if (f)
    r = copy_to_file (b, f);
  imagefile_free (f);
  backupend_close (&b->changes);
  backupend_close (&b->shown);
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
  return backupdisk_look (b->disk);
}

static int
begin_anew (struct backup *b)
{
  if (repository_drop_part (b->repository) == -1 || tidy (b) == -1)
    return -1;
  if (b->why_full == NULL && is_given (b->a, &option_full))
    b->why_full = was_asked;
  if (b->why_full == NULL && !b->onto && is_long (b->repository))
    b->why_full = "the newest backup lies over too many files";
  return 0;
}

/* --- going on --- */

/* Is that an instant of all, which have the same random number? */
static bool
is_common (const struct backup *b, const struct repository_part *p)
{
  const char *first = repository_get_part (b->all[0].repository).instant;

  return first && p->disks == b->disks &&
    strcmp (strrchr (first, '-') ?: "", strrchr (p->instant, '-') ?: "") == 0;
}

/* A disk that has another size now, or had meanwhile, has taken marks from the bitmap. */
static bool
has_lost_changes (const struct backup *b, const struct repository_part *p)
{
  const bool before = report_silence (true);
  uint64_t bytes;
  const int r = count_changes (b, p->base, p->instant, &bytes);

  report_silence (before);
  return r == -1 || bytes != p->changed;
}

/* (A full backup may be one that --full has asked for earlier.) */
static const char *
judge_part (const struct backup *b, const struct repository_part *p)
{
  const json_t *base = p->base ? find_bitmap (b, p->base) : NULL;
  CLEANUP_FREE char *path = repository_part_path (b->repository, p->raw);
  const char *format = value_of (b->a, &option_target_format);
  const bool raw = b->onto || (p->base == NULL && format && strcmp (format, "raw") == 0);

  return !is_common (b, p) ? "it was a backup of other disks, too"
    : find_named (b->disk->snapshots, p->instant) == NULL ||
      find_bitmap (b, p->instant) == NULL
    ? "the image does not have its snapshot and bitmap"
    : p->base && is_given (b->a, &option_full) ? was_asked
    : p->base && (base == NULL || is_flag (base, "recording")) ? no_bitmap
    : p->base && judge (b) ? judge (b)
    : strcmp (p->onto ?: "", b->onto ?: "") != 0 ? "it goes to another target"
    : p->raw != raw ? "another format is wanted"
    : !b->onto && p->done > 0 && (path == NULL || inode_of (path) != p->inode)
    ? "its file is not there, or another one"
    : p->base && has_lost_changes (b, p) ? "the disk had another size meanwhile" : NULL;
}

/* Can the backup go on that was cut off?  Of all disks, or of none. */
static bool
can_go_on (const struct backup *all, unsigned n)
{
  unsigned able = 0;

  for (unsigned i = 0; i < n; i++) {
    const struct repository_part p = repository_get_part (all[i].repository);
    const char *why = p.instant ? judge_part (&all[i], &p) : NULL;

    if (why)
      report_error ("warning: %s: the backup of %s, which was cut off, cannot go on: %s",
                    all[i].disk->name, p.date, why);
    able += p.instant && why == NULL;
  }
  return able == n;
}

static int
go_on (struct backup *b)
{
  const struct repository_part p = repository_get_part (b->repository);

  b->goes_on = b->taken = true;
  b->done = p.done;
  b->inode = p.inode;
  b->changed = p.changed;
  b->g.bytes = p.bytes;
  snprintf (b->instant, sizeof b->instant, "%s", p.instant);
  snprintf (b->date, sizeof b->date, "%s", p.date);
  b->why_full = p.base ? NULL : judge (b) ?: was_asked;
  b->base = p.base ? strdup (p.base) : NULL;
  return p.base && b->base == NULL ? no_memory (b) : 0;
}

/* The next backup can go on with what all of them have copied.  Otherwise what is
 * possible is removed now: the next backup does the rest, if the repository is there, by
 * whose id it finds that. */
static void
give_up (struct backup *all, unsigned n)
{
  KEEP_ERRNO_FOR_BLOCK;
  bool keeps = true, copies = false, before;

  for (unsigned i = 0; i < n; i++) {
    keeps = keeps && !all[i].useless && repository_get_part (all[i].repository).instant;
    copies = copies || all[i].copies;
  }
  for (unsigned i = 0; keeps && copies && i < n; i++)
    report_error ("%s: the backup is not complete; the next one goes on with it, and the "
                  "image keeps its snapshot until then", all[i].disk->name);
  if (keeps)
    return;
  before = report_silence (true);
  for (unsigned i = 0; i < n; i++)
    if (all[i].taken && repository_drop_part (all[i].repository) == 0)
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
  if (r == 0 && can_go_on (all, n))
    for (unsigned i = 0; r == 0 && i < n; i++)
      r = go_on (&all[i]);
  else {
    for (unsigned i = 0; r == 0 && i < n; i++)
      r = begin_anew (&all[i]);
    if (r == 0)
      r = take_instant (all, n);
    for (unsigned i = 0; r == 0 && i < n; i++)
      if (all[i].why_full == NULL)
        r = count_changes (&all[i], all[i].base, all[i].instant, &all[i].changed);
  }
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
    { "removed", jsontext_number (b->removed) },
    { "resumed", json_boolean (b->goes_on) });

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
    if (b->goes_on) {
      print_name (b);
      fputs ("it went on with one that was cut off, and shows the disk of ", stdout);
      jsontext_put (b->date, stdout);
      putchar ('\n');
    }
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
    all[i] = (struct backup) {
      .a = a, .all = all, .disks = n, .disk = &disks[i], .rate = rate,
    };
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
    free (all[i].part);
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
