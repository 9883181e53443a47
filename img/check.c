/* SPDX-License-Identifier: BSD-3-Clause
 *
 * check: is the metadata of an image right, and if not, can it be repaired?
 *
 * The core checks and repairs (check.c there).  Here its result becomes the counters, the
 * words and the exit status of qemu-img.  Of the image itself only: its backing files
 * must be there, but nothing in them is looked at.
 *
 * Locks: none.
 */

#include <config.h>

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "util/cleanup.h"
#include "util/jsontext.h"
#include "util/report.h"
#include "format/format.h"
#include "check/check.h"
#include "check/checkreport.h"
#include "img/imagefile.h"
#include "img/print.h"
#include "img/progress.h"

/* Exit statuses. */
enum { CLEAN = 0, FAILED = 1, CORRUPT = 2, LEAKS = 3, NOT_SUPPORTED = 63 };

static const struct option
  option_repair = {
    'r', "repair", "leaks|all", "repair leaks, or all refcounts, flags and snapshot entries"
  };

/* The numbers of qemu-img. */
struct counters {
  uint64_t end, total, allocated, compressed, fragmented, corruptions, leaks;
  uint64_t corruptions_fixed, leaks_fixed;
  unsigned errors;              /* of the check itself */
};

/* For QEMU, outdated refcounts of an image that says so are like any others. */
static struct counters
count (const struct check_result *r)
{
  const struct check_layer *l = r->layers[0];

  return (struct counters) {
    .end = l->stats.end, .total = l->stats.total_clusters,
    .allocated = l->stats.allocated, .compressed = l->stats.compressed,
    .fragmented = l->stats.fragmented, .corruptions = l->corruptions + l->stale,
    .leaks = l->leaks, .corruptions_fixed = l->corruptions_fixed,
    .leaks_fixed = l->leaks_fixed, .errors = r->verdict == CHECK_FAILED,
  };
}

/* --- in JSON --- */

/* 0 is left out. */
static json_t *
add_counter (json_t *object, const char *key, uint64_t n)
{
  return n == 0 ? object : jsontext_add (object, { key, jsontext_number (n) });
}

static int
print_counters (const struct imagefile *f, const struct counters *c)
{
  json_t *o = json_object ();

  o = add_counter (o, "image-end-offset", c->end);
  o = add_counter (o, "total-clusters", c->total);
  o = add_counter (o, "allocated-clusters", c->allocated);
  o = add_counter (o, "compressed-clusters", c->compressed);
  o = add_counter (o, "fragmented-clusters", c->fragmented);
  o = add_counter (o, "corruptions", c->corruptions);
  o = add_counter (o, "leaks", c->leaks);
  o = jsontext_add (o, { "check-errors", jsontext_number (c->errors) });
  o = add_counter (o, "corruptions-fixed", c->corruptions_fixed);
  o = add_counter (o, "leaks-fixed", c->leaks_fixed);
  return print_json (jsontext_add (o, { "filename", jsontext_string (f->given) },
                                   { "format", jsontext_string ("qcow2") }));
}

/* --- in words --- */

static void
tell_findings (const struct check_layer *l)
{
  size_t n;
  const struct finding *list = findings_list (l->findings, &n);

  for (size_t i = 0; i < n; i++)
    report_error ("%s: %s", finding_name (list[i].kind), list[i].text);
  if (findings_omitted (l->findings) > 0)
    report_error ("%" PRIu64 " more", findings_omitted (l->findings));
}

static void
tell_counters (const struct counters *c)
{
  if (c->leaks_fixed || c->corruptions_fixed)
    printf ("The following inconsistencies were found and repaired:\n\n"
            "    %" PRIu64 " leaked clusters\n    %" PRIu64 " corruptions\n\n",
            c->leaks_fixed, c->corruptions_fixed);
  if (c->corruptions == 0 && c->leaks == 0 && c->errors == 0)
    puts ("No errors were found on the image.");
  if (c->corruptions)
    printf ("\n%" PRIu64 " errors were found on the image.\nData may be corrupted, or "
            "further writes to the image may corrupt it.\n", c->corruptions);
  if (c->leaks)
    printf ("\n%" PRIu64 " leaked clusters were found on the image.\nThis means waste of "
            "disk space, but no harm to data.\n", c->leaks);
  if (c->errors)
    printf ("\n%u internal errors have occurred during the check.\n", c->errors);
  if (c->total && c->allocated)
    printf ("%" PRIu64 "/%" PRIu64 " = %.2f%% allocated, %.2f%% fragmented, %.2f%% "
            "compressed clusters\n", c->allocated, c->total,
            c->allocated * 100.0 / c->total, c->fragmented * 100.0 / c->allocated,
            c->compressed * 100.0 / c->allocated);
  if (c->end)
    printf ("Image end offset: %" PRIu64 "\n", c->end);
}

static void
tell_mark (const struct imagefile *f, const struct check_layer *l)
{
  if (l->image->header.incompatible & QCOW2_INCOMPAT_CORRUPT)
    report_error ("%s: it is marked corrupt, so that programs only read it%s", f->given,
                  l->corruptions ? ""
                  : "; no corruption was found: check -r all removes the mark");
}

static int
tell (const struct arguments *a, const struct imagefile *f, const struct check_result *r)
{
  const struct check_layer *l = r->layers[0];
  const struct counters c = count (r);
  int status = c.errors ? FAILED : c.corruptions ? CORRUPT : c.leaks ? LEAKS : CLEAN;

  if (wants_json (a))
    status = print_counters (f, &c) == EXIT_SUCCESS ? status : FAILED;
  else if (!is_given (a, &option_quiet)) {
    tell_findings (l);
    tell_counters (&c);
  }
  tell_mark (f, l);
  return status;
}

/* --- the check --- */

/* Is its header valid, in a file that is too short?  Then the image is corrupt. */
static bool
is_cut_off (const struct imagefile *f)
{
  const bool before = report_silence (true);
  struct image *image = disk_open_header (&f->options);

  report_silence (before);
  image_close (image);
  return image != NULL;
}

/* Is everything there that is below the image?  -1: reported. */
static int
open_below (const struct imagefile *f)
{
  struct disk_options options = f->options;
  struct image *image;
  struct layers *layers = NULL;

  options.secret.unneeded = true;
  image = disk_open_image (&options);
  if (image && image_load (image) == 0)
    layers = disk_open_layers (&options, image);
  KEEP_ERRNO_FOR_BLOCK;
  layers_free (layers);
  image_close (image);
  return layers ? 0 : -1;
}

static int
check_below (const struct imagefile *f)
{
  CLEANUP_FREE char *why = NULL;
  int r;

  report_keep ();
  r = open_below (f);
  why = report_take_kept ();
  report_end_keeping (false);
  if (r == 0)
    return 0;
  report_error ("%s: %s%.*s", f->given, errno == ENOENT ? "incomplete: " : "",
                why ? (int) strcspn (why, "\n") : 0, why ? why : "");
  return -1;
}

static int
judge (const struct arguments *a, const struct imagefile *f, const struct check *check)
{
  const struct check_result *r = check_get_result (check);
  const struct check_layer *l = r->layers[0];

  if (!l->parsed) {             /* (What is wrong has been reported.) */
    if (is_given (a, &option_repair))
      report_error ("%s: cannot be repaired; nothing was changed", f->given);
    return findings_count (l->findings, FINDING_HEADER) && is_cut_off (f) ? CORRUPT : FAILED;
  }
  return tell (a, f, r);
}

static int
check (const struct arguments *a, struct imagefile *f)
{
  const char *repair = value_of (a, &option_repair);
  struct check_options options = {
    .mode = repair == NULL ? CHECK_QUICK
      : strcmp (repair, "all") == 0 ? CHECK_REPAIR : CHECK_REPAIR_LEAKS,
    .path = f->options.path, .watch = PROGRESS_CHECK_WATCH,
  };
  struct check *c;
  int r;

  if (f->raw) {
    report_error ("%s: raw images have nothing that could be checked", f->given);
    return NOT_SUPPORTED;
  }
  if (repair)
    imagefile_will_write (f);
  options.chain = disk_chain_options (&f->options);
  options.chain.image.secret.unneeded = true;
  progress_begin (a, wants_json (a));
  r = check_run (&options, &c);
  progress_end (r == 0);
  if (r == -1)
    return FAILED;
  r = judge (a, f, c);
  /* (An NBD server may admit one client at a time.) */
  check_free (c);
  return (r == CLEAN || r == LEAKS) && check_below (f) == -1 ? FAILED : r;
}

static int
run (const struct arguments *a)
{
  struct secrets *secrets = secrets_read (a);
  struct imagefile *f = secrets == NULL ? NULL
    : imagefile_named (a, a->operands[0], value_of (a, &option_format), secrets);
  const int status = f ? check (a, f) : FAILED;

  imagefile_free (f);
  secrets_free (secrets);
  return status;
}

static const struct option *const options[] = {
  &option_format, &option_output, &option_quiet, &option_progress, &option_force_share,
  &option_src_cache, &option_repair, IMAGE_OPTIONS, NULL
};

const struct command check_command = {
  "check", "IMAGE",
  "Check the metadata of an image: all tables and refcounts, internal snapshots and "
  "bitmaps.  Exit status: 0 no errors, 1 the check could not be completed, 2 the image is "
  "corrupt, 3 it has leaked clusters, 63 the format cannot be checked.",
  options, 1, 1, .run = run
};
