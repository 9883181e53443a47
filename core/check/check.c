/* SPDX-License-Identifier: BSD-3-Clause
 *
 * May this image be served, and if not, can it be repaired?
 *
 *    quick    checks all metadata of the top image
 *    full     checks all metadata and all data of all files of the backing chain
 *    repair   like quick; then, if only refcounts, COPIED flags and entries of the
 *             snapshot table are wrong, corrects them and checks again
 *    repair-leaks  the same, but only if nothing but leaks is wrong
 *
 * How findings are judged:
 *
 *    leaks           waste space and are harmless: the image is served.
 *    a dirty image   states that its refcounts and COPIED flags may be out of date, and
 *                    gets new ones before the first write.  So wrong refcounts and flags
 *                    do not prevent serving; any other fault does.
 *    a missing file  of the backing chain: the disk is incomplete and is not served.  No
 *                    file is corrupt.
 *    other faults    the image is corrupt and is not served.
 *    the corrupt bit on an image without faults does not prevent serving, read-only,
 *                    as without a check.  A repair clears it.  The image is not called
 *                    clean: another program has found something wrong.
 *
 * A repair takes the writer's lock, sets the dirty bit (so that after a power cut the
 * image says that it must be repaired), writes new refcounts and, if it is wrong, a new
 * snapshot table (repair.c), checks again, and if no fault is left, clears the dirty and
 * the corrupt bit.  It writes nothing unless it can correct every fault.  Backing files
 * are never repaired.
 *
 * The number of faults whose descriptions are kept is limited, for all files together.
 *
 * Locks: none; one thread, except for those that scan.c starts.
 */

#include <config.h>

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "util/bytes.h"
#include "util/cleanup.h"
#include "util/memory.h"
#include "util/report.h"
#include "image/headerwrite.h"
#include "check/check.h"
#include "check/checkfiles.h"
#include "check/checkreport.h"
#include "check/repair.h"
#include "check/scan.h"
#include "check/snapmend.h"

/* Descriptions of faults that are kept, for all layers together. */
#define MAX_LISTED 1000

#define LINE_SIZE 5000          /* paths can be long */

struct check {
  struct check_options options;
  struct check_result result;
  struct pace pace;
  struct checkfiles *held;      /* all files of the chain, for a report; or NULL */
  int err;                      /* errno of what kept the check from being complete; 0:
                                   it is */
  char line[LINE_SIZE];
};

static const char *
mode_name (enum check_mode mode)
{
  return mode == CHECK_FULL ? "full" : mode == CHECK_REPAIR ? "repair"
    : mode == CHECK_REPAIR_LEAKS ? "repair-leaks" : "quick";
}

static void
free_layer (struct check_layer *l)
{
  if (l == NULL)
    return;
  free (l->path);
  image_close (l->image);
  findings_free (l->findings);
  findings_free (l->lost);
  free (l);
}

void
check_free (struct check *c)
{
  size_t i;

  if (c == NULL)
    return;
  for (i = 0; i < c->result.n; i++)
    free_layer (c->result.layers[i]);
  free (c->result.layers);
  checkfiles_close (c->held);
  free (c);
}

const char *
check_line (const struct check *c)
{
  return c->line;
}

/* Something (reported) keeps the check from being complete. */
static void
fail (struct check *c)
{
  if (c->err == 0)
    c->err = errno ? errno : EIO;
}

/* --- one layer --- */

static size_t
places_left (const struct check *c)
{
  size_t i, n, left = MAX_LISTED;

  for (i = 0; i < c->result.n; i++) {
    findings_list (c->result.layers[i]->findings, &n);
    left -= n;
  }
  return left;
}

/* Adds a layer at the bottom.  NULL on ENOMEM (reported). */
static struct check_layer *
add_layer (struct check *c, const char *path, bool raw)
{
  const size_t n = c->result.n;
  struct check_layer **layers =
    realloc (c->result.layers, (n + 1) * sizeof *layers);
  struct check_layer *l;

  if (layers != NULL)
    c->result.layers = layers;
  l = calloc (1, sizeof *l);
  if (l != NULL) {
    l->raw = raw;
    l->path = strdup (path);
    l->findings = findings_new (places_left (c));
  }
  if (layers == NULL || l == NULL || l->path == NULL ||
      l->findings == NULL) {
    report_error ("%s: check: out of memory", path);
    free_layer (l);
    return NULL;
  }
  c->result.layers[n] = l;
  c->result.n = n + 1;
  return l;
}

static bool
has_feature (const struct check_layer *l, uint64_t incompatible)
{
  return l->parsed && (l->image->header.incompatible & incompatible);
}

/* Computes the totals of the layer from its findings.  In a dirty image, wrong refcounts
 * and COPIED flags are counted as stale, not as leaks or corruptions. */
static void
weigh (struct check_layer *l)
{
  const bool dirty = has_feature (l, QCOW2_INCOMPAT_DIRTY);
  const struct findings *f = l->findings;

  l->leaks = findings_count (f, FINDING_LEAK);
  l->corruptions = findings_corruptions (f);
  l->stale = 0;
  if (!dirty)
    return;
  l->stale = l->leaks + findings_count (f, FINDING_REFCOUNT) +
    findings_count (f, FINDING_COPIED) + findings_count (f, FINDING_REFTABLE);
  l->corruptions -= l->stale - l->leaks;
  l->leaks = 0;
}

/* Scans the metadata of a qcow2 layer, and for a full check its data. */
static void
scan_layer (struct check *c, struct check_layer *l)
{
  const struct scan_options options = {
    .full = c->options.mode == CHECK_FULL, .untrusted = c->options.untrusted,
    .pace = &c->pace,
  };
  bool more;

  if (image_read_header_to_check (l->image) == -1) {
    if (errno == EINVAL)
      findings_add (l->findings, FINDING_HEADER, 1, 0,
                    "the header is invalid");
    else
      fail (c);
    return;
  }
  l->parsed = true;
  /* A repair takes as much time again, or twice as much; so may the layers below. */
  more = check_mode_repairs (c->options.mode) ||
    (options.full && l->image->header.backing_file);
  pace_stage (&c->pace, 1, more ? 2 : 1);
  if (scan_image (l->image->file, &l->image->header, options, l->findings,
                  &l->stats) == -1)
    fail (c);
}

static bool
known_already (const struct check *c, const struct storage *file)
{
  size_t i;

  for (i = 0; i + 1 < c->result.n; i++)
    if (c->result.layers[i]->image &&
        storage_same (c->result.layers[i]->image->file, file))
      return true;
  return false;
}

/* Opens and checks a layer.  Returns it, with its findings; NULL if it could not be
 * opened. */
static struct check_layer *
check_layer (struct check *c, const char *path, bool raw)
{
  struct storage_options options = c->options.chain.image.file;
  struct check_layer *l = add_layer (c, path, raw);

  if (l == NULL)
    return NULL;
  options.try_writable =
    c->result.n == 1 && check_mode_repairs (c->options.mode);
  if (c->result.n > 1)
    options.in_dir.name = NULL; /* that one is for the top image */
  chain_reserve_files (2 * c->result.n);
  l->image = image_open_file (path, &options);
  if (l->image == NULL) {
    /* A locked file, missing permissions, or a top image that does not exist are not
     * corruptions. */
    if (errno != ENOENT && errno != ENOTDIR)
      fail (c);
    else if (c->result.n > 1)
      findings_add (c->result.layers[c->result.n - 2]->findings, FINDING_MISSING, 1, 0,
                    "its backing file is missing: put it back, or correct its name in "
                    "this image with nbdkit-qcow2-img rebase -u");
    weigh (l);
    return NULL;
  }
  l->file_size = storage_size (l->image->file);
  if (known_already (c, l->image->file) || c->result.n > CHAIN_MAX_LAYERS)
    findings_add (l->findings, FINDING_CHAIN, 1, 0, "the backing chain %s",
                  c->result.n > CHAIN_MAX_LAYERS ? "is too long" :
                  "contains a loop: this file is already part of it");
  else if (!raw)
    scan_layer (c, l);
  else {
    pace_stage (&c->pace, 1, 1);
    if (scan_raw (l->image->file, l->findings, &c->pace) == -1)
      fail (c);
  }
  weigh (l);
  return l;
}

/* Checks all layers below the top image. */
static int
check_chain (struct check *c, struct check_layer *l)
{
  struct chain_options chain = c->options.chain;

  for (;;) {
    CLEANUP_FREE char *path = NULL;
    const char *format;

    if (!l->raw && !l->parsed)
      return 0;                 /* without a header, the backing file is unknown */
    if (chain_below (l->path, l->raw ? NULL : &l->image->header, &chain, &path,
                     &format) == -1) {
      /* The name is not allowed, or uses an unsupported protocol: no corruption. */
      fail (c);
      return 0;
    }
    if (path == NULL)
      return 0;
    l = check_layer (c, path, strcmp (format, "raw") == 0);
    if (l == NULL)
      return errno == ENOMEM ? -1 : 0;
    if (findings_count (l->findings, FINDING_CHAIN) > 0)
      return 0;
    chain_go_below_top (&chain);
  }
}

static void
judge (struct check *c)
{
  struct check_result *r = &c->result;
  size_t i;

  r->verdict = CHECK_CLEAN;
  for (i = 0; i < r->n; i++)
    if (r->layers[i]->leaks > 0)
      r->verdict = CHECK_LEAKS;
  for (i = 0; i < r->n; i++)
    if (has_feature (r->layers[i], QCOW2_INCOMPAT_DIRTY))
      r->verdict = CHECK_DIRTY;
  for (i = 0; i < r->n; i++)
    if (has_feature (r->layers[i], QCOW2_INCOMPAT_CORRUPT))
      r->verdict = CHECK_MARKED;
  for (i = 0; i < r->n; i++)
    if (findings_count (r->layers[i]->findings, FINDING_MISSING) > 0)
      r->verdict = CHECK_INCOMPLETE;
  if (c->err)
    r->verdict = CHECK_FAILED;
  for (i = 0; i < r->n; i++)
    if (r->layers[i]->corruptions > 0)
      r->verdict = CHECK_CORRUPT;
}

/* --- repair --- */

/* Can new refcounts, COPIED flags and a new snapshot table correct all faults, and may
 * they? */
static bool
is_repairable (const struct check_layer *l, bool only_leaks)
{
  const struct findings *f = l->findings;

  if (only_leaks)
    return findings_corruptions (f) == 0;
  return findings_corruptions (f) == findings_count (f, FINDING_REFCOUNT) +
    findings_count (f, FINDING_COPIED) + findings_count (f, FINDING_REFTABLE) +
    findings_count (f, FINDING_ENTRIES);
}

/* Makes the features durable, and clears unknown autoclear bits (R8). */
static int
write_features (struct image *image, uint64_t incompatible)
{
  struct header *h = &image->header;
  const uint64_t autoclear = h->autoclear &
    (QCOW2_AUTOCLEAR_BITMAPS | QCOW2_AUTOCLEAR_RAW_DATA_FILE);

  if (h->version < 3 ||
      (incompatible == h->incompatible && autoclear == h->autoclear))
    return 0;
  if (headerwrite_features (image->file, incompatible, h->compatible, autoclear) == -1)
    return -1;
  h->incompatible = incompatible;
  h->autoclear = autoclear;
  return 0;
}

/* Makes all changes that correct the findings.  -1: reported. */
static int
correct (struct check_layer *l, struct pace *pace)
{
  struct image *image = l->image;
  const uint64_t incompatible = image->header.incompatible;
  const bool mend = findings_count (l->findings, FINDING_ENTRIES) > 0;
  struct snaptable table = { 0 };
  int r = -1;

  l->lost = findings_new (MAX_LISTED);
  /* Snapshots first: a table that cannot be used ends this before any change. */
  if (l->lost && (mend ? snapmend_table (image->file, &image->header, &table, l->lost)
                       : image_read_snapshots (image)) == 0 &&
      write_features (image, incompatible | QCOW2_INCOMPAT_DIRTY) == 0) {
    r = repair_refcounts (image, true, mend ? &table : NULL, pace);
    /* If the repair was refused, or stopped, nothing was written. */
    if (r == -1 && (errno == EUCLEAN || errno == EINTR))
      write_features (image, incompatible);
  }
  KEEP_ERRNO_FOR_BLOCK;
  free (table.bytes);
  return r;
}

/* The caller holds the writer's lock.  -1: reported. */
static int
make_right (struct check_layer *l, struct pace *pace)
{
  struct image *image = l->image;
  const uint64_t incompatible = image->header.incompatible;
  struct findings *before = l->findings;
  uint64_t wrong = findings_corruptions (before);
  uint64_t leaks = findings_count (before, FINDING_LEAK);

  if (wrong + leaks > 0) {
    pace_stage (pace, 1, 2);
    if (correct (l, pace) == -1)
      return -1;
    pace_stage (pace, 1, 1);
    l->findings = findings_new (MAX_LISTED);
    if (l->findings == NULL) {
      l->findings = before;
      return -1;
    }
    findings_free (before);
    memset (&l->stats, 0, sizeof l->stats);
    if (scan_image (image->file, &image->header, (struct scan_options) { .pace = pace },
                    l->findings, &l->stats) == -1)
      return -1;
    l->corruptions_fixed = wrong;
    l->leaks_fixed = leaks;
  }
  /* If no fault is left, the image is neither dirty nor corrupt. */
  if (findings_corruptions (l->findings) > 0 ||
      findings_count (l->findings, FINDING_LEAK) > 0)
    return write_features (image, incompatible);
  return write_features (image, image->header.incompatible &
                         ~(QCOW2_INCOMPAT_DIRTY | QCOW2_INCOMPAT_CORRUPT));
}

static void
repair (struct check *c)
{
  struct check_layer *l = c->result.layers[0];
  const bool only_leaks = c->options.mode == CHECK_REPAIR_LEAKS;

  if (c->err || !l->parsed ||
      (findings_corruptions (l->findings) == 0 &&
       findings_count (l->findings, FINDING_LEAK) == 0 &&
       !has_feature (l, QCOW2_INCOMPAT_DIRTY | QCOW2_INCOMPAT_CORRUPT)))
    return;
  if (!is_repairable (l, only_leaks)) {
    /* What is only outdated is repaired before the first write. */
    if (!only_leaks || l->corruptions > 0)
      report_error ("%s: cannot be repaired: more is wrong than %s; nothing was changed",
                    l->path, only_leaks ? "leaks"
                    : "refcounts, COPIED flags and entries of the snapshot table");
    return;
  }
  if (!storage_is_writable (l->image->file)) {
    report_error ("%s: cannot be repaired: %s", l->path, image_why_readonly (l->image));
    errno = EROFS;
    fail (c);
    return;
  }
  if (image_lock (l->image, IMAGE_WRITER) == -1) {
    fail (c);
    return;
  }
  if (make_right (l, &c->pace) == 0) {
    c->result.repaired = true;
    checkreport_tell_lost (l);
  }
  else
    fail (c);
  l->file_size = storage_size (l->image->file);
  weigh (l);
  if (image_lock (l->image, IMAGE_READER) == -1)
    fail (c);
}

/* --- the whole check --- */

static int
check_all (struct check *c)
{
  struct check_layer *top = check_layer (c, c->options.path, false);

  if (top == NULL)
    return -1;
  if (c->options.mode == CHECK_FULL && check_chain (c, top) == -1)
    return -1;
  if (check_mode_repairs (c->options.mode))
    repair (c);
  judge (c);
  return 0;
}

/* Runs before the check: without a place for the report, the check would be useless. */
static int
check_report (struct check *c)
{
  if (c->options.report == NULL)
    return 0;
  c->held = checkfiles_open (c->options.path, &c->options.chain);
  return c->held ? checkreport_check (c->options.report) : -1;
}

static int
write_report (const struct check *c)
{
  return c->options.report ? checkreport_write (&c->result, c->options.report) : 0;
}

int
check_finish (struct check *c, bool opened)
{
  int r;

  if (!opened)
    c->result.verdict = errno == ENOENT ? CHECK_INCOMPLETE : CHECK_FAILED;
  r = write_report (c);
  checkreport_line (&c->result, c->line, sizeof c->line);
  if (!opened)
    report_error ("%s", c->line);
  return r;
}

static void
disconnect (const struct check *c)
{
  for (size_t i = 0; i < c->result.n; i++)
    if (c->result.layers[i]->image)
      image_disconnect (c->result.layers[i]->image);
}

const struct check_result *
check_get_result (const struct check *c)
{
  return &c->result;
}

int
check_run (const struct check_options *options, struct check **ret)
{
  struct check *c = memory_new (1, sizeof *c);

  if (c == NULL)
    return -1;
  c->options = *options;
  c->result.mode = mode_name (options->mode);
  c->pace.watch = options->watch.step ? &c->options.watch : NULL;
  if (check_report (c) == -1 || check_all (c) == -1) {
    check_free (c);
    return -1;
  }
  *ret = c;
  return 0;
}

/* Says why the image must not be served.  Returns -1, with errno. */
static int
refuse_image (struct check *c)
{
  if (write_report (c) == -1)
    return -1;
  checkreport_tell (&c->result);
  checkreport_line (&c->result, c->line, sizeof c->line);
  report_error ("%s", c->line);
  errno = c->err ? c->err : c->result.verdict == CHECK_INCOMPLETE ? ENOENT : EUCLEAN;
  return -1;
}

int
check_image (const struct check_options *options, struct check **ret)
{
  struct check *c;

  if (check_run (options, &c) == -1)
    return -1;
  c->result.serves = true;
  if (c->result.verdict > CHECK_MARKED && refuse_image (c) == -1) {
    check_free (c);
    return -1;
  }
  disconnect (c);
  *ret = c;
  return 0;
}
