/* SPDX-License-Identifier: BSD-3-Clause
 *
 * restore: how does a generation become a disk again?
 *
 * The file of a generation, with those below it, is an image: convert copies it.  First
 * the files have to be what the manifest says (generationfile.c).
 *
 * Locks: none.
 */

#include <config.h>

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "util/cleanup.h"
#include "util/jsontext.h"
#include "util/publicname.h"
#include "util/report.h"
#include "storage/nbduri.h"
#include "img/generationfile.h"
#include "img/print.h"
#include "img/progress.h"
#include "img/repository.h"
#include "img/values.h"

static const struct option
  option_list = { 'l', "list", NULL, "list the generations" },
  option_generation = {
    'g', "generation", "NUMBER", "which one is restored (default: the newest)"
  },
  option_target_format = {
    'O', "target-format", "qcow2|raw", "the format of what is written (default raw)"
  },
  option_verify = {
    0, "verify", NULL,
    "first compare checksums of the files; without TARGET, of all generations"
  };

/* --- the list --- */

static void
print_one (const struct repository_generation *g)
{
  char size[READABLE], bytes[READABLE];

  printf ("%6" PRIu64 "  %-20s  %-11s  %9s  %9s  %s\n", g->number, g->date,
          g->incomplete ? "incomplete" : g->onto ? "in place"
          : g->backing ? "incremental" : "full", readable (g->size, size),
          readable (g->bytes, bytes), g->file);
}

static int
list (const struct arguments *a, const struct repository *r)
{
  json_t *all = json_array ();

  if (wants_json (a)) {
    for (unsigned i = 0; i < repository_count (r); i++)
      all = jsontext_append (all, repository_describe (r, i));
    return print_json (all);
  }
  json_decref (all);
  printf ("%6s  %-20s  %-11s  %9s  %9s  %s\n", "NUMBER", "DATE", "KIND", "DISK", "COPIED",
          "FILE");
  for (unsigned i = 0; i < repository_count (r); i++) {
    const struct repository_generation g = repository_get (r, i);

    print_one (&g);
  }
  return EXIT_SUCCESS;
}

/* --- restoring --- */

static int
convert (const struct arguments *a, char *file, bool raw)
{
  const char *format = value_of (a, &option_target_format);
  char *words[] = {
    "-f", raw ? "raw" : "qcow2", "-O", (char *) (format ? format : "raw"), "-t", "writeback",
    is_given (a, &option_progress) && !wants_json (a) ? "-p" : "-q", "--", file,
    (char *) a->operands[1], NULL
  };
  struct arguments b;
  const int status = arguments_parse (&b, &convert_command, words) == 0
    ? convert_command.run (&b) : EXIT_FAILURE;

  arguments_free (&b);
  return status;
}

/* Which one is wanted?  -1: reported. */
static int
choose (const struct arguments *a, const struct repository *r)
{
  const char *text = value_of (a, &option_generation);
  uint64_t number;
  int i;

  if (repository_count (r) == 0) {
    report_error ("%s: there are no backups yet", a->operands[0]);
    return -1;
  }
  if (text == NULL)
    return repository_count (r) - 1;
  if (parse_number ("-g", text, 1, INT64_MAX, &number) == -1)
    return -1;
  i = repository_find (r, number);
  if (i == -1)
    report_error ("%s: there is no generation %" PRIu64 " (--list shows which there are)",
                  a->operands[0], number);
  return i;
}

/* How is it known whether files without a checksum are what they were? */
static const char *
remedy_for (const struct repository *r)
{
  return repository_below (r).file
    ? "a merge is unfinished: backup --verify --keep compares the newest backup with the "
      "disk, and goes on" : "backup --verify compares the newest backup with the disk";
}

static int
tell (const struct arguments *a, const struct repository *r, int i)
{
  const struct repository_generation g = repository_get (r, i);
  const unsigned unknown = generationfile_unknown (r, i);
  const bool verifies = is_given (a, &option_verify);
  CLEANUP_FREE char *target = publicname (a->operands[1]);
  char size[READABLE];

  if (target == NULL) {
    report_error ("no memory for the name of the target");
    return EXIT_FAILURE;
  }
  if (wants_json (a))
    return print_json (jsontext_add (repository_describe (r, i),
      { "target", jsontext_string (target) },
      { "verified", json_boolean (verifies && unknown == 0) }));
  if (is_given (a, &option_quiet))
    return EXIT_SUCCESS;
  printf ("%s: backup %" PRIu64 " of %s: %s%s", target, g.number, g.date,
          readable (g.size, size), verifies && unknown == 0 ? ", verified" : "");
  if (verifies && unknown > 0)
    printf (", not verified: files without a checksum: %u (%s)", unknown, remedy_for (r));
  printf ("\n");
  return EXIT_SUCCESS;
}

static int
check (const struct arguments *a, const struct repository *r, int i)
{
  const bool sums = is_given (a, &option_verify);
  int result;

  progress_begin (a, wants_json (a));
  result = i == -1 ? generationfile_check_all (r) : generationfile_check (r, i, sums);
  progress_end (result == 0);
  return result;
}

static int
restore (const struct arguments *a, const struct repository *r)
{
  const int i = choose (a, r);
  CLEANUP_FREE char *path = NULL;
  struct repository_generation g;

  if (i == -1)
    return EXIT_FAILURE;
  g = repository_get (r, i);
  if (g.onto)
    report_error (g.incomplete ? "%s: a backup was cut off there: make it again"
                  : "%s: the disk is there itself: use convert", g.file);
  else if (!nbduri_is (a->operands[1]) && repository_contains (r, a->operands[1])) {
    report_error ("%s: it is in the repository", a->operands[1]);
    return EXIT_FAILURE;
  }
  if (g.onto || check (a, r, i) == -1)
    return EXIT_FAILURE;
  path = repository_path (r, g.file);
  return path && convert (a, path, g.raw) == EXIT_SUCCESS ? tell (a, r, i) : EXIT_FAILURE;
}

/* Of all generations.  (An old file may have no checksum.) */
static int
verify (const struct arguments *a, const struct repository *r)
{
  const unsigned n = repository_count (r);
  const unsigned unknown = generationfile_unknown (r, -1);
  unsigned known = 0;

  if (n > 0 && repository_get (r, 0).onto) {
    report_error ("--verify: the repository has no files");
    return EXIT_FAILURE;
  }
  if (check (a, r, -1) == -1)
    return EXIT_FAILURE;
  for (unsigned i = 0; i < n; i++)
    known += repository_get (r, i).sum != NULL;
  if (wants_json (a))
    return print_json (jsontext_object ({ "generations", jsontext_number (n) },
                                        { "checksums", jsontext_number (known) }));
  if (is_given (a, &option_quiet))
    return EXIT_SUCCESS;
  printf ("%s: %u generations, %u with a checksum: %s", a->operands[0], n, known,
          known > 0 ? "no errors" : "nothing was compared");
  if (unknown > 0)
    printf ("; files without: %u (%s)", unknown, remedy_for (r));
  printf ("\n");
  return EXIT_SUCCESS;
}

static int
run (const struct arguments *a)
{
  const bool lists = is_given (a, &option_list), targets = a->nr_operands > 1;
  struct repository *r;
  int status;

  if (targets ? lists : !lists && !is_given (a, &option_verify)) {
    report_error (targets ? "--list needs no target"
                  : "what is restored to? (or --list)");
    return EXIT_FAILURE;
  }
  r = repository_open (a->operands[0]);
  status = r == NULL ? EXIT_FAILURE : lists ? list (a, r)
    : targets ? restore (a, r) : verify (a, r);
  repository_free (r);
  return status;
}

static const struct option *const options[] = {
  &option_list, &option_generation, &option_target_format, &option_verify,
  &option_output, &option_progress, &option_quiet, NULL
};

const struct command restore_command = {
  "restore", "REPOSITORY [TARGET]",
  "Write what backup has stored to an image: TARGET is a file, a device or an NBD export.",
  options, 1, 2, .run = run
};
