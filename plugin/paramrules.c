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
#include "util/report.h"
#include "storage/nbduri.h"
#include "storage/reportfile.h"
#include "plugin/paramrules.h"
#include "plugin/paramvalue.h"

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

_Static_assert (NR_PARTIES <= UINT8_MAX, "parties in lists");

/* Parts of lists of parties. */
#define P(name) PARAM_##name
#define V(name) VALUE_##name

#define SNAPSHOT_EDITS P (SNAPSHOT_CREATE), P (SNAPSHOT_APPLY), P (SNAPSHOT_DELETE)
#define BITMAP_EDITS P (BITMAP_ADD), P (BITMAP_CLEAR), P (BITMAP_REMOVE)
/* Parameters that change an image before it is served, or while it is read. */
#define CHANGES SNAPSHOT_EDITS, P (RESIZE), BITMAP_EDITS, P (FLATTEN), \
    V (CHECK_REPAIR), P (COPY_ON_READ)
/* Parameters for new images. */
#define OF_NEW P (CLUSTER_SIZE), P (EXTENDED_L2), P (COMPAT), P (LAZY_REFCOUNTS), \
    P (REFCOUNT_BITS), P (COMPRESSION_TYPE), P (ENCRYPT), P (BACKING_FILE), \
    P (DATA_FILE_RAW), P (OVERWRITE)
/* Parameters for a single image. */
#define OF_ONE P (FILE), P (SNAPSHOT), SNAPSHOT_EDITS, P (RESIZE), P (SHRINK), \
    P (PREALLOCATION), BITMAP_EDITS, P (BITMAP_GRANULARITY), P (FLATTEN), P (ITER_TIME), \
    P (CHECK), P (CHECK_REPORT), P (CREATE), OF_NEW, V (BACKING_PATH), \
    P (BACKING_FORMAT), V (DATA_PATH), P (WATERMARK)

/* A list; its last element is NR_PARTIES. */
#define LIST(...) (const uint8_t[]) { __VA_ARGS__, NR_PARTIES }

struct rule {
  const uint8_t *these, *others;        /* lists */
  const uint8_t *if_all;        /* a list: the rule holds if all of these are asked for,
                                   too; or NULL */
  const char *text;             /* or NULL */
};

/* A parameter of `these' that was given requires one of `others' that asks for something.
 * TEXT names the required one. */
static const struct rule needs[] = {
  { LIST (OF_NEW), LIST (P (CREATE)), NULL,
    "create=SIZE (it applies to new images only)" },
  { LIST (P (ITER_TIME)), LIST (P (ENCRYPT)), NULL, "encrypt=luks" },
  { LIST (P (DATA_FILE_RAW)), LIST (V (DATA_PATH)), LIST (P (CREATE)), "data-file=PATH" },
  { LIST (P (DIR_SYMLINKS)), LIST (P (DIR)), NULL, "dir=DIRECTORY" },
  { LIST (P (STATS_FORMAT)), LIST (P (STATS)), NULL, "stats=FILE" },
  { LIST (P (LOG_FORMAT), P (LOG_LEVEL)), LIST (P (LOG)), NULL, "log=FILE" },
  { LIST (P (SHRINK)), LIST (P (RESIZE)), NULL, "resize=SIZE" },
  { LIST (P (PREALLOCATION)), LIST (P (CREATE), P (RESIZE)), NULL,
    "create=SIZE or resize=SIZE" },
  { LIST (P (BITMAP_GRANULARITY)), LIST (P (BITMAP_ADD)), NULL, "bitmap-add=NAME" },
  { LIST (P (CHECK_REPORT)), LIST (P (CHECK)), NULL,
    "check=quick, full, repair or repair-leaks" },
  { LIST (P (COMPRESS_LEVEL), P (COMPRESS_WINDOW)), LIST (P (COMPRESS)), NULL,
    "compress=on" },
  { LIST (V (CREATE_AUTO)), LIST (P (BACKING_FILE)), NULL,
    "backing-file=, whose size it uses" },
  { LIST (P (BACKING_FILE)), LIST (P (BACKING_FORMAT)), NULL,
    "backing-format=qcow2 or backing-format=raw" },
  { LIST (P (BACKING_FORMAT)), LIST (P (BACKING_FILE)), LIST (P (CREATE)),
    "backing-file=, with create=" },
};

/* No party of `these' can be used with one of `others'.  TEXT says why. */
static const struct rule excludes[] = {
  { LIST (P (DIR)), LIST (OF_ONE), NULL, NULL },
  { LIST (P (UNTRUSTED)), LIST (P (CREATE), CHANGES, P (COMPRESS)), NULL,
    "untrusted images are not written" },
  { LIST (P (UNTRUSTED)), LIST (V (BACKING_PATH), P (BACKING_FORMAT), V (DATA_PATH),
                           P (ALLOW_URI)), NULL, "no other files are opened" },
  { LIST (P (CREATE)), LIST (P (SNAPSHOT), P (SNAPSHOT_APPLY), P (SNAPSHOT_DELETE)),
    NULL, "a new image has no snapshots" },
  { LIST (P (CREATE)), LIST (P (BITMAP_CLEAR), P (BITMAP_REMOVE)), NULL,
    "a new image has no bitmaps" },
  { LIST (P (CREATE)), LIST (V (DATA_URI)), NULL, "a new data file is a local file" },
  { LIST (P (CREATE)), LIST (V (BACKING_PATH)), NULL,
    "use backing-file=PATH for a new image" },
  { LIST (P (SNAPSHOT)), LIST (CHANGES), NULL, "snapshots are read-only" },
  { LIST (V (BACKING_DENY)), LIST (P (BACKING_FILE)), NULL, NULL },
  { LIST (V (BACKING_DENY)), LIST (P (BACKING_FORMAT)), NULL,
    "no backing file is opened" },
  { LIST (P (FLATTEN)), LIST (V (BACKING_DENY)), NULL, NULL },
  { LIST (P (FLATTEN)), LIST (P (SNAPSHOT_CREATE)), NULL,
    "the snapshot would need the backing file" },
  { LIST (P (FLATTEN)), LIST (V (DATA_PATH)), LIST (P (CREATE), P (BACKING_FILE)), NULL },
  { LIST (P (COMPRESS)), LIST (P (ENCRYPT)), NULL,
    "encrypted clusters cannot be compressed" },
  { LIST (P (COMPRESS)), LIST (V (DATA_PATH)), NULL,
    "a data file cannot contain compressed clusters" },
  { LIST (SNAPSHOT_EDITS), LIST (V (DATA_PATH)), NULL,
    "images with a data file cannot have internal snapshots" },
  { LIST (V (COMPAT_OLD)), LIST (P (BITMAP_ADD)), NULL, "version 2 has no bitmaps" },
};

/* --- which parties are there? --- */

/* ASKED: for each party, whether it is asked for. */
static void
find_asked (const struct params *p, bool asked[NR_PARTIES])
{
  for (enum param i = 0; i < NR_PARAMS; i++)
    asked[i] = params_asks (p, i);
  asked[VALUE_DATA_URI] = p->data_file_path && nbduri_is (p->data_file_path);
  asked[VALUE_BACKING_PATH] = p->options.backing == BACKING_PATH;
  asked[VALUE_BACKING_DENY] = p->options.backing == BACKING_DENY;
  asked[VALUE_DATA_PATH] = p->options.data_file == DATA_FILE_PATH;
  asked[VALUE_CHECK_REPAIR] = check_mode_repairs (p->check.mode);
  asked[VALUE_CREATE_AUTO] = p->create.options.size_of_backing;
  asked[VALUE_COMPAT_OLD] = p->create.options.image.version == 2;
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

/* --- the tables --- */

/* The first party of a list that is one of SET; NR_PARTIES if none is. */
static unsigned
first_of (const uint8_t *list, const bool set[NR_PARTIES])
{
  while (*list != NR_PARTIES && !set[*list])
    list++;
  return *list;
}

static bool
holds (const struct rule *r, const bool asked[NR_PARTIES])
{
  for (const uint8_t *i = r->if_all; i && *i != NR_PARTIES; i++)
    if (!asked[*i])
      return false;
  return true;
}

static int
check_needs (const struct params *p, const bool asked[NR_PARTIES])
{
  bool there[NR_PARTIES];
  char buf[PARAMS_NAME];

  for (unsigned i = 0; i < NR_PARTIES; i++)
    there[i] = asked[i] || (i < NR_PARAMS && p->given[i]);
  for (size_t i = 0; i < sizeof needs / sizeof needs[0]; i++) {
    const struct rule *r = &needs[i];
    const unsigned party = first_of (r->these, there);

    if (holds (r, asked) && party != NR_PARTIES &&
        first_of (r->others, asked) == NR_PARTIES) {
      report_error ("%s requires %s", name_of (p, party, buf), r->text);
      return -1;
    }
  }
  return 0;
}

static int
check_excludes (const struct params *p, const bool asked[NR_PARTIES])
{
  char one[PARAMS_NAME], other[PARAMS_NAME];

  for (size_t i = 0; i < sizeof excludes / sizeof excludes[0]; i++) {
    const struct rule *r = &excludes[i];
    const unsigned a = first_of (r->these, asked), b = first_of (r->others, asked);

    if (holds (r, asked) && a != NR_PARTIES && b != NR_PARTIES) {
      report_error ("%s cannot be used with %s%s%s", name_of (p, a, one),
                    name_of (p, b, other), r->text ? ": " : "", r->text ? r->text : "");
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
    report_error ("file= or dir= is required: nbdkit qcow2 disk.qcow2");
    return -1;
  }
  if (params_check_file (p) == -1)
    return -1;
  if (p->create.options.encrypt && p->options.secret.len == 0) {
    report_error ("encrypt=luks requires passphrase=, which must not be empty");
    return -1;
  }
  if (p->create.wanted && p->data_file_path &&
      strcmp (p->data_file_path, p->path) == 0) {
    report_error ("data-file= names the image itself");
    return -1;
  }
  if (p->stats && p->report && reportfile_same (p->stats, p->report)) {
    report_error ("stats= and check-report= name the same file");
    return -1;
  }
  return 0;
}

static bool
is_added_before (const struct editparams *e, size_t i)
{
  for (size_t k = 0; k < i; k++)
    if (e->bitmaps[k].what == BITMAP_ADD &&
        strcmp (e->bitmaps[i].name, e->bitmaps[k].name) == 0)
      return true;
  return false;
}

/* A new image has the bitmaps that are added. */
static int
check_new_bitmaps (const struct editparams *e)
{
  for (size_t i = 0; i < e->nr_bitmaps; i++) {
    const struct bitmapedit *b = &e->bitmaps[i];

    if (b->what == BITMAP_ADD && is_added_before (e, i))
      return bad_value ("bitmap-add", b->name, "it is added twice");
  }
  return 0;
}

/* Finds errors that would otherwise be found only after the image was created, which can
 * take a long time. */
static int
check_new_image (const struct params *p)
{
  const struct editparams *e = &p->edit;
  uint64_t size = round_up (p->create.options.image.size, 512);

  if (!p->create.wanted)
    return 0;
  if (check_new_bitmaps (e) == -1)
    return -1;
  for (unsigned i = 0; i < e->nr_edits && !p->create.options.size_of_backing; i++)
    if (e->edits[i].kind == EDIT_RESIZE) {
      const char *why = edit_choose_size (&e->edits[i], &e->options, size, &size);

      if (why) {
        report_error ("create= cannot be used with resize=: %s", why);
        return -1;
      }
    }
  return 0;
}

int
paramrules_check (const struct params *p)
{
  bool asked[NR_PARTIES];

  find_asked (p, asked);
  return check_excludes (p, asked) == -1 || check_needs (p, asked) == -1 ||
    check_others (p) == -1 || check_new_image (p) == -1 ? -1 : 0;
}
