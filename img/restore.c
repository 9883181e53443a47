/* SPDX-License-Identifier: BSD-3-Clause
 *
 * restore: how does a generation become a disk again?
 *
 * The file of a generation, with those below it, is an image: convert copies it.  First the
 * files have to be what the manifest says.
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
#include "util/report.h"
#include "img/print.h"
#include "img/repository.h"
#include "img/values.h"

static const struct option
  option_list = { 'l', "list", NULL, "list the generations" },
  option_generation = {
    'g', "generation", "NUMBER", "which one is restored (default: the newest)"
  },
  option_target_format = {
    'O', "target-format", "qcow2|raw", "the format of what is written (default raw)"
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
      all = jsontext_append (all, json_deep_copy (repository_describe (r, i)));
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
    is_given (a, &option_progress) ? "-p" : "-q", "--", file, (char *) a->operands[1], NULL
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
  if (g.onto || repository_check (r, i) == -1)
    return EXIT_FAILURE;
  path = repository_path (r, g.file);
  return path ? convert (a, path, g.raw) : EXIT_FAILURE;
}

static int
run (const struct arguments *a)
{
  struct repository *r;
  int status;

  if (is_given (a, &option_list) != (a->nr_operands == 1)) {
    report_error (a->nr_operands == 1 ? "what is restored to? (or --list)"
                  : "--list needs no target");
    return EXIT_FAILURE;
  }
  r = repository_open (a->operands[0]);
  status = r == NULL ? EXIT_FAILURE : is_given (a, &option_list) ? list (a, r)
    : restore (a, r);
  repository_free (r);
  return status;
}

static const struct option *const options[] = {
  &option_list, &option_generation, &option_target_format, &option_output,
  &option_progress, &option_quiet, NULL
};

const struct command restore_command = {
  "restore", "REPOSITORY [TARGET]",
  "Write what backup has stored to an image: TARGET is a file, a device or an NBD export.",
  options, 1, 2, .run = run
};
