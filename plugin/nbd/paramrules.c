/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Which parameters can be used together?
 *
 * There are two tables.  `needs' lists parameters that mean nothing without another one;
 * here a parameter counts whatever its value is.  `excludes' lists parameters that
 * contradict each other; here a parameter counts only if it asks for something, so
 * flatten=false contradicts nothing.  This file checks what can be known without opening
 * an image.  newimage.c checks the features of a new image.  The rest is found when the
 * image is opened, and then a new image is removed again (create.c).
 *
 * Some values have rules of their own: those of the enum below.
 *
 * Locks: none; nbdkit configures plugins before there are threads.
 */

#include <config.h>

#include <string.h>

#define NBDKIT_API_VERSION 2
#include <nbdkit-plugin.h>

#include "util/bytes.h"
#include "storage/nbduri.h"
#include "storage/reportfile.h"
#include "nbd/paramrules.h"
#include "nbd/paramvalue.h"

enum {
  VALUE_DATA_URI = NR_PARAMS,
  VALUE_BACKING_PATH,
  VALUE_BACKING_DENY,
  VALUE_DATA_PATH,
  VALUE_CHECK_REPAIR,
  VALUE_CREATE_AUTO,
  VALUE_COMPAT_OLD,
  NR_PARTIES
};

_Static_assert (NR_PARTIES <= 64, "bits of a set");

/* Sets of parties. */
#define SET(party) (UINT64_C (1) << (party))
#define P(name) SET (PARAM_##name)
#define V(name) SET (VALUE_##name)

#define SNAPSHOT_EDITS (P (SNAPSHOT_CREATE) | P (SNAPSHOT_APPLY) | P (SNAPSHOT_DELETE))
#define BITMAP_EDITS (P (BITMAP_ADD) | P (BITMAP_CLEAR) | P (BITMAP_REMOVE) | \
                      P (BITMAP_ENABLE) | P (BITMAP_DISABLE) | P (BITMAP_MERGE))
/* Parameters that change an image before it is served, or while it is read. */
#define CHANGES (SNAPSHOT_EDITS | P (RESIZE) | BITMAP_EDITS | P (FLATTEN) | \
                 P (COMMIT) | \
                 V (CHECK_REPAIR) | P (COPY_ON_READ))
/* Parameters for new images. */
#define OF_NEW (P (CLUSTER_SIZE) | P (COMPAT) | P (REFCOUNT_BITS) | P (EXTENDED_L2) | \
                P (LAZY_REFCOUNTS) | P (COMPRESSION_TYPE) | P (ENCRYPT) | \
                P (ITER_TIME) | P (BACKING_FILE) | P (DATA_FILE_RAW) | P (OVERWRITE))
/* Parameters for a single image. */
#define OF_ONE (P (FILE) | P (SNAPSHOT) | SNAPSHOT_EDITS | P (RESIZE) | P (SHRINK) | \
                P (PREALLOCATION) | BITMAP_EDITS | P (BITMAP_INTO) | P (BITMAP_FROM) | \
                P (BITMAP_GRANULARITY) | \
                P (FLATTEN) | P (COMMIT) | P (CHECK) | P (CHECK_REPORT) | \
                P (CREATE) | OF_NEW | \
                V (BACKING_PATH) | P (BACKING_FORMAT) | V (DATA_PATH) | P (WATERMARK))

struct rule {
  uint64_t these, others;       /* sets */
  uint64_t if_all;              /* the rule holds if all of these are asked for, too */
  const char *text;             /* or NULL */
};

/* A parameter of `these' that was given requires one of `others' that asks for something.
 * TEXT names the required one. */
static const struct rule needs[] = {
  { OF_NEW, P (CREATE), 0, "create=SIZE (it applies to new images only)" },
  { P (ITER_TIME), P (ENCRYPT), 0, "encrypt=luks" },
  { P (DATA_FILE_RAW), V (DATA_PATH), P (CREATE), "data-file=PATH" },
  { P (SHRINK), P (RESIZE), 0, "resize=SIZE" },
  { P (PREALLOCATION), P (CREATE) | P (RESIZE), 0, "create=SIZE or resize=SIZE" },
  { P (BITMAP_GRANULARITY), P (BITMAP_ADD), 0, "bitmap-add=NAME" },
  { P (BITMAP_MERGE), P (BITMAP_INTO), 0, "bitmap-into=NAME" },
  { P (BITMAP_INTO) | P (BITMAP_FROM), P (BITMAP_MERGE), 0, "bitmap-merge=NAME" },
  { P (CHECK_REPORT), P (CHECK), 0, "check=quick, full, repair or repair-leaks" },
  { V (CREATE_AUTO), P (BACKING_FILE), 0, "backing-file=, whose size it uses" },
  { P (BACKING_FILE), P (BACKING_FORMAT), 0,
    "backing-format=qcow2 or backing-format=raw" },
  { P (BACKING_FORMAT), P (BACKING_FILE), P (CREATE), "backing-file=, with create=" },
};

/* No party of `these' can be used with one of `others'.  TEXT says why. */
static const struct rule excludes[] = {
  { P (DIR), OF_ONE, 0, NULL },
  { P (PASSPHRASE), P (QCOW2_PASSPHRASE), 0,
    "they are two names for the same parameter" },
  { P (UNTRUSTED), P (CREATE) | CHANGES | P (COMPRESS), 0,
    "untrusted images are not written" },
  { P (UNTRUSTED), V (BACKING_PATH) | P (BACKING_FORMAT) | V (DATA_PATH), 0,
    "no other files are opened" },
  { P (CREATE), P (SNAPSHOT) | P (SNAPSHOT_APPLY) | P (SNAPSHOT_DELETE), 0,
    "a new image has no snapshots" },
  { P (CREATE), P (BITMAP_CLEAR) | P (BITMAP_REMOVE) | P (BITMAP_ENABLE), 0,
    "a new image has no bitmaps" },
  { P (CREATE), V (DATA_URI), 0, "a new data file is a local file" },
  { P (CREATE), V (BACKING_PATH), 0,
    "use backing-file=PATH for a new image" },
  { P (SNAPSHOT), CHANGES, 0, "snapshots are read-only" },
  { V (BACKING_DENY), P (BACKING_FILE), 0, NULL },
  { V (BACKING_DENY), P (BACKING_FORMAT), 0, "no backing file is opened" },
  { P (FLATTEN), V (BACKING_DENY), 0, NULL },
  { P (FLATTEN), P (SNAPSHOT_CREATE), 0, "the snapshot would need the backing file" },
  { P (FLATTEN), V (DATA_PATH), P (CREATE) | P (BACKING_FILE), NULL },
  { P (COMMIT), V (BACKING_DENY), 0, NULL },
  { P (COMMIT), P (CREATE), 0, "a new image has nothing to commit" },
  { P (COMMIT), P (SNAPSHOT_CREATE), 0, "the snapshot would need the backing file" },
  { P (COMMIT), P (FLATTEN), 0, "flatten=true makes the backing file unnecessary" },
  { P (COMPRESS), P (ENCRYPT), 0, "encrypted clusters cannot be compressed" },
  { P (COMPRESS), V (DATA_PATH), 0, "a data file cannot contain compressed clusters" },
  { SNAPSHOT_EDITS, V (DATA_PATH), 0,
    "images with a data file cannot have internal snapshots" },
  { V (COMPAT_OLD), P (BITMAP_ADD), 0, "version 2 has no bitmaps" },
};

/* --- which parties are there? --- */

static uint64_t
asked_for (const struct params *p)
{
  uint64_t set = 0;

  for (enum param i = 0; i < NR_PARAMS; i++)
    if (params_asks (p, i))
      set |= SET (i);
  if (p->data_file_path && nbduri_is (p->data_file_path))
    set |= V (DATA_URI);
  if (p->options.backing == BACKING_PATH)
    set |= V (BACKING_PATH);
  if (p->options.backing == BACKING_DENY)
    set |= V (BACKING_DENY);
  if (p->options.data_file == DATA_FILE_PATH)
    set |= V (DATA_PATH);
  if (check_mode_repairs (p->check.mode))
    set |= V (CHECK_REPAIR);
  if (p->create.options.size_of_backing)
    set |= V (CREATE_AUTO);
  if (p->create.options.image.version == 2)
    set |= V (COMPAT_OLD);
  return set;
}

static const char *
name_of (const struct params *p, unsigned party, char buf[PARAMS_NAME])
{
  switch (party) {
  case VALUE_DATA_URI: return "data-file=URI";
  case VALUE_BACKING_PATH: return "backing=PATH";
  case VALUE_BACKING_DENY: return "backing=deny";
  case VALUE_DATA_PATH: return "data-file=PATH";
  case VALUE_CHECK_REPAIR: return params_name (p, PARAM_CHECK, buf);
  case VALUE_CREATE_AUTO: return "create=auto";
  case VALUE_COMPAT_OLD: return "compat=0.10";
  }
  return params_name (p, party, buf);
}

/* The first party of a set that is not empty. */
static unsigned
first_of (uint64_t set)
{
  return __builtin_ctzll (set);
}

/* --- the tables --- */

static int
check_needs (const struct params *p, uint64_t asked)
{
  const uint64_t there = p->given | asked;
  char buf[PARAMS_NAME];

  for (size_t i = 0; i < sizeof needs / sizeof needs[0]; i++) {
    const struct rule *r = &needs[i];

    if ((r->if_all & ~asked) == 0 && (r->these & there) && !(r->others & asked)) {
      nbdkit_error ("%s requires %s", name_of (p, first_of (r->these & there), buf),
                    r->text);
      return -1;
    }
  }
  return 0;
}

static int
check_excludes (const struct params *p, uint64_t asked)
{
  char one[PARAMS_NAME], other[PARAMS_NAME];

  for (size_t i = 0; i < sizeof excludes / sizeof excludes[0]; i++) {
    const struct rule *r = &excludes[i];

    if ((r->if_all & ~asked) == 0 && (r->these & asked) && (r->others & asked)) {
      nbdkit_error ("%s cannot be used with %s%s%s",
                    name_of (p, first_of (r->these & asked), one),
                    name_of (p, first_of (r->others & asked), other),
                    r->text ? ": " : "", r->text ? r->text : "");
      return -1;
    }
  }
  return 0;
}

/* --- rules that are not about pairs --- */

static int
check_others (const struct params *p)
{
  if (p->path == NULL && p->dir == NULL) {
    nbdkit_error ("file= or dir= is required: nbdkit qcow2 disk.qcow2");
    return -1;
  }
  if (p->create.options.encrypt && p->options.secret.len == 0) {
    nbdkit_error ("encrypt=luks requires passphrase=, which must not be empty");
    return -1;
  }
  if (p->create.wanted && p->data_file_path &&
      strcmp (p->data_file_path, p->path) == 0) {
    nbdkit_error ("data-file= names the image itself");
    return -1;
  }
  if (p->bitmap_from && p->path && strcmp (p->bitmap_from, p->path) == 0) {
    nbdkit_error ("bitmap-from= names the image itself: leave it out");
    return -1;
  }
  if (p->nr_merges != p->nr_into) {
    nbdkit_error ("bitmap-merge= and bitmap-into= belong together, but were given %zu "
                  "and %zu times", p->nr_merges, p->nr_into);
    return -1;
  }
  /* Each file would replace the other one. */
  if (p->stats && p->report && reportfile_same (p->stats, p->report)) {
    nbdkit_error ("stats= and check-report= name the same file");
    return -1;
  }
  return 0;
}

static bool
is_added_before (const struct params *p, size_t i)
{
  for (size_t k = 0; k < i; k++)
    if (p->bitmaps[k].what == BITMAP_ADD &&
        strcmp (p->bitmaps[i].name, p->bitmaps[k].name) == 0)
      return true;
  return false;
}

/* A new image has the bitmaps that are added. */
static int
check_new_bitmaps (const struct params *p)
{
  for (size_t i = 0; i < p->nr_bitmaps; i++) {
    const struct bitmapedit *b = &p->bitmaps[i];

    if (b->what == BITMAP_ADD && is_added_before (p, i))
      return bad_value ("bitmap-add", b->name, "it is added twice");
    if (b->what != BITMAP_ADD && !is_added_before (p, i))
      return bad_value (b->what == BITMAP_MERGE ? "bitmap-into" : "bitmap-disable",
                        b->name, "a new image has no such bitmap");
  }
  return 0;
}

/* Finds errors that would otherwise be found only after the image was created, which can
 * take a long time. */
static int
check_new_image (const struct params *p)
{
  uint64_t size = round_up (p->create.options.image.size, 512);

  if (!p->create.wanted)
    return 0;
  if (check_new_bitmaps (p) == -1)
    return -1;
  for (unsigned i = 0; i < p->nr_edits && !p->create.options.size_of_backing; i++)
    if (p->edits[i].kind == EDIT_RESIZE) {
      const char *why = edit_choose_size (&p->edits[i], &p->edit_options, size, &size);

      if (why) {
        nbdkit_error ("create= cannot be used with resize=: %s", why);
        return -1;
      }
    }
  return 0;
}

int
paramrules_check (const struct params *p)
{
  const uint64_t asked = asked_for (p);

  return check_excludes (p, asked) == -1 || check_needs (p, asked) == -1 ||
    check_others (p) == -1 || check_new_image (p) == -1 ? -1 : 0;
}
