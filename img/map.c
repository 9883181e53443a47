/* SPDX-License-Identifier: BSD-3-Clause
 *
 * map: which parts of a disk have data, and where?
 *
 * The core goes through the tables (chainmap.c there).  Here a part of the disk is
 * chosen, and each entry is printed, or put into a picture, as it comes: memory does not
 * depend on their number.  A picture needs the size of the disk first, so the tables are
 * read twice.
 *
 * Locks: none.
 */

#include <config.h>

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "util/bytes.h"
#include "util/cleanup.h"
#include "util/jsontext.h"
#include "util/memory.h"
#include "util/report.h"
#include "disk/chainmap.h"
#include "img/diskmap.h"
#include "img/info.h"
#include "img/live.h"
#include "img/mappicture.h"
#include "img/print.h"
#include "img/values.h"

static const struct option
  option_start = { 's', "start-offset", "OFFSET", "begin here" },
  option_length = { 'l', "max-length", "SIZE", "how much of the disk" },
  option_snapshot = {
    0, "snapshot", "NAME", "an internal snapshot, in place of the disk"
  };

/* --- the part that is asked for --- */

struct part {
  uint64_t begin, end;          /* bytes */
  bool json;
  json_t *chain;                /* for text: what info says of all files; or NULL */
  const struct imagefile *file;
  struct mappicture *picture;   /* in place of text */
  unsigned n;                   /* entries that were printed */
};

/* The file with the data of a layer, as the user calls it. */
static const char *
data_name (const struct part *p, unsigned depth)
{
  const json_t *info = json_array_get (p->chain, depth), *child;
  const json_t *data = json_object_get (json_object_get (info, "format-specific"), "data");
  size_t i;

  if (depth == 0 && p->file->data_file_path)
    return p->file->data_file_path;
  json_array_foreach (json_object_get (info, "children"), i, child)
    if (strcmp (json_string_value (json_object_get (child, "name")), "data-file") == 0)
      return json_string_value (json_object_get (json_object_get (child, "info"),
                                                 "filename"));
  return json_string_value (json_object_get (data, "data-file")
                            ? json_object_get (data, "data-file")
                            : json_object_get (info, "filename"));
}

/* As printf's %#x does, but 0 is 0, and spaces follow. */
static void
print_hex (uint64_t n)
{
  char text[24];

  snprintf (text, sizeof text, n ? "%#" PRIx64 : "0", n);
  printf ("%-16s", text);
}

static int
print_text (const struct part *p, const struct map_entry *e)
{
  if (e->data && !e->has_offset) {
    report_error ("File contains external, encrypted or compressed clusters.");
    return -1;
  }
  if (!e->data || e->zero)
    return 0;
  print_hex (e->start);
  print_hex (e->length);
  print_hex (e->offset);
  jsontext_put (data_name (p, e->depth), stdout);
  putchar ('\n');
  return 0;
}

static int
take_entry (void *opaque, const struct map_entry *whole)
{
  struct part *p = opaque;
  struct map_entry e = *whole;
  uint64_t skip;

  if (e.start + e.length <= p->begin || e.start >= p->end || p->begin >= p->end)
    return 0;
  skip = e.start < p->begin ? p->begin - e.start : 0;
  e.start += skip;
  e.length -= skip;
  e.offset += e.has_offset ? skip : 0;
  if (e.length > p->end - e.start)
    e.length = p->end - e.start;
  if (p->picture) {
    mappicture_add (p->picture, &e);
    return 0;
  }
  if (!p->json)
    return print_text (p, &e);
  fputs (p->n++ ? ",\n" : "[", stdout);
  chainmap_print (stdout, &e);
  return ferror (stdout) ? -1 : 0;
}

/* What qemu-img says of a part in which there is nothing. */
static void
end_json (struct part *p)
{
  const struct map_entry nothing = { .start = p->begin };

  if (p->n == 0) {
    putchar ('[');
    chainmap_print (stdout, &nothing);
  }
  puts ("]");
}

static int
print_part (struct part *p, const char *snapshot)
{
  if (!p->json) {
    p->chain = info_describe (p->file, true);
    if (p->chain == NULL)
      return EXIT_FAILURE;
    printf ("%-16s%-16s%-16s%s\n", "Offset", "Length", "Mapped to", "File");
  }
  if (diskmap_each (p->file, snapshot, take_entry, p) == -1)
    return EXIT_FAILURE;
  if (p->json)
    end_json (p);
  return EXIT_SUCCESS;
}

/* --- a picture of it --- */

static int
note_end (void *opaque, const struct map_entry *e)
{
  *(uint64_t *) opaque = e->start + e->length;
  return 0;
}

static int
draw (const struct part *p, const char *snapshot)
{
  const unsigned n = json_array_size (p->chain);
  const char **names = memory_new (n, sizeof *names);
  char name[SVG_NAME], of[SVG_NAME];
  struct svg *s = names == NULL ? NULL
    : snapshot == NULL ? svg_new ("Where %s is stored", svg_name (p->file->given, name))
    : svg_new ("Where snapshot \"%s\" of %s is stored", svg_name (snapshot, of),
               svg_name (p->file->given, name));
  int r = -1;

  if (s) {
    for (unsigned i = 0; i < n; i++)
      names[i] = data_name (p, i);
    mappicture_draw (p->picture, s, names);
    r = svg_print (s);
  }
  free (names);
  return r;
}

static int
draw_part (struct part *p, const char *snapshot)
{
  uint64_t size = 0;
  int r = -1;

  if (p->json) {
    report_error ("--svg and --output=json cannot be used together");
    return EXIT_FAILURE;
  }
  p->chain = info_describe (p->file, true);
  if (p->chain == NULL || diskmap_each (p->file, snapshot, note_end, &size) == -1)
    return EXIT_FAILURE;
  p->end = min64 (p->end, size);
  p->begin = min64 (p->begin, p->end);
  p->picture = mappicture_new (p->begin, p->end, json_array_size (p->chain));
  if (p->picture && diskmap_each (p->file, snapshot, take_entry, p) == 0)
    r = draw (p, snapshot);
  mappicture_free (p->picture);
  return r == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}

/* --- the command --- */

static int
parse_part (const struct arguments *a, struct part *p)
{
  const char *start = value_of (a, &option_start), *length = value_of (a, &option_length);
  uint64_t len;

  p->end = UINT64_MAX;
  if (start && parse_size ("-s", start, &p->begin) == -1)
    return -1;
  if (length == NULL)
    return 0;
  if (parse_size ("-l", length, &len) == -1)
    return -1;
  p->end = p->begin + len;      /* both are at most INT64_MAX */
  return 0;
}

/* Frees F; NULL: reported. */
static int
map (const struct arguments *a, struct part *p, struct imagefile *f, const char *snapshot)
{
  int status = EXIT_FAILURE;

  p->file = f;
  if (f)
    status = (is_given (a, &option_svg) ? draw_part : print_part) (p, snapshot);
  json_decref (p->chain);
  imagefile_free (f);
  return status;
}

static int
run (const struct arguments *a)
{
  struct part p = { .json = wants_json (a) };
  struct secrets *secrets = parse_part (a, &p) == -1 ? NULL : secrets_read (a);
  struct imagefile *f = secrets == NULL ? NULL
    : imagefile_named (a, a->operands[0], value_of (a, &option_format), secrets);
  const int status = map (a, &p, f, value_of (a, &option_snapshot));

  secrets_free (secrets);
  return status;
}

/* The file has not got all of the tables while the server uses it: its exports tell which
 * parts have data, but not where. */
static int
run_live (const struct arguments *a, struct live *l)
{
  struct part p = { .json = wants_json (a) };
  CLEANUP_FREE char *uri = parse_part (a, &p) == -1 ? NULL
    : live_export (l, a, value_of (a, &option_snapshot));

  return map (a, &p, uri ? imagefile_new (a, uri, "raw", NULL) : NULL, NULL)
    == EXIT_SUCCESS ? 0 : -1;
}

static const struct option *const options[] = {
  &option_format, &option_output, &option_force_share, &option_start, &option_length,
  &option_snapshot, &option_svg, &option_nbd, IMAGE_OPTIONS, NULL
};

static const struct option *const live_options[] = {
  &option_output, &option_start, &option_length, &option_snapshot, &option_svg, &option_nbd,
  NULL
};

const struct command map_command = {
  "map", "IMAGE",
  "Tell which parts of the disk have data: where, and in which file of the backing chain.",
  options, 1, 1, .run = run, .live = run_live, .live_options = live_options
};
