/* SPDX-License-Identifier: BSD-3-Clause
 *
 * map: which parts of a disk have data, and where?
 *
 * The core goes through the tables (mapreport.c there).  Here a part of the disk is chosen,
 * and each entry is printed as it comes: memory does not depend on their number.
 *
 * Locks: none.
 */

#include <config.h>

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "util/jsontext.h"
#include "util/printable.h"
#include "util/report.h"
#include "image/snapshot.h"
#include "disk/disk.h"
#include "disk/mapreport.h"
#include "img/info.h"
#include "img/map.h"
#include "img/print.h"
#include "img/rawdisk.h"
#include "img/values.h"

static const struct option
  option_start = { 's', "start-offset", "OFFSET", "begin here" },
  option_length = { 'l', "max-length", "SIZE", "how much of the disk" },
  option_snapshot = {
    0, "snapshot", "NAME", "an internal snapshot, in place of the disk"
  };

/* --- entries of any image --- */

/* NAME: of the snapshot of IMAGE, or NULL. */
static int
each_of_layers (struct image *image, struct layers *layers, const char *name,
                int (*fn) (void *, const struct map_entry *), void *opaque)
{
  const struct snapshot *s = name ? snapshots_find (&image->snapshots, name) : NULL;
  char text[PRINTABLE_SIZE (64)];

  if (name && s == NULL) {
    report_error ("%s: there is no snapshot \"%s\"", storage_path (image->file),
                  printable (name, strnlen (name, 64), text, sizeof text));
    errno = ENOENT;
    return -1;
  }
  if (s && snapshot_check_table (storage_path (image->file), &image->header, s) == -1)
    return -1;
  return mapreport_each (layers, s, fn, opaque);
}

static int
each_of_qcow2 (const struct imagefile *f, const char *snapshot,
               int (*fn) (void *, const struct map_entry *), void *opaque)
{
  struct disk_options options = f->options;
  struct image *image;
  struct layers *layers = NULL;
  int r = -1;

  options.secret.unneeded = true;
  image = disk_open_image (&options);
  if (image && image_load (image) == 0 &&
      (snapshot == NULL || image_read_snapshots (image) == 0))
    layers = disk_open_layers (&options, image);
  if (layers)
    r = each_of_layers (image, layers, snapshot, fn, opaque);
  layers_free (layers);
  image_close (image);
  return r;
}

int
map_each (const struct imagefile *f, const char *snapshot,
          int (*fn) (void *, const struct map_entry *), void *opaque)
{
  struct storage *s;
  int r;

  if (!f->raw)
    return each_of_qcow2 (f, snapshot, fn, opaque);
  if (snapshot && imagefile_need_qcow2 (f, "internal snapshots") == -1)
    return -1;
  s = rawdisk_open (f);
  r = s ? rawdisk_each (s, fn, opaque) : -1;
  storage_close (s);
  return r;
}

/* --- the part that is asked for --- */

struct part {
  uint64_t begin, end;          /* bytes */
  bool json;
  json_t *chain;                /* for text: what info says of all files; or NULL */
  const struct imagefile *file;
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
print_entry (void *opaque, const struct map_entry *whole)
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
  if (!p->json)
    return print_text (p, &e);
  fputs (p->n++ ? ",\n" : "[", stdout);
  mapreport_print (stdout, &e);
  return ferror (stdout) ? -1 : 0;
}

/* What qemu-img says of a part in which there is nothing. */
static void
end_json (struct part *p)
{
  const struct map_entry nothing = { .start = p->begin };

  if (p->n == 0) {
    putchar ('[');
    mapreport_print (stdout, &nothing);
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
  if (map_each (p->file, snapshot, print_entry, p) == -1)
    return EXIT_FAILURE;
  if (p->json)
    end_json (p);
  return EXIT_SUCCESS;
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

static int
run (const struct arguments *a)
{
  struct part p = { .json = wants_json (a) };
  struct secrets *secrets = parse_part (a, &p) == -1 ? NULL : secrets_read (a);
  struct imagefile *f = secrets == NULL ? NULL
    : imagefile_named (a, a->operands[0], value_of (a, &option_format), secrets);
  int status = EXIT_FAILURE;

  p.file = f;
  if (f)
    status = print_part (&p, value_of (a, &option_snapshot));
  json_decref (p.chain);
  imagefile_free (f);
  secrets_free (secrets);
  return status;
}

static const struct option *const options[] = {
  &option_format, &option_output, &option_force_share, &option_start, &option_length,
  &option_snapshot, &option_svg, IMAGE_OPTIONS, NULL
};

const struct command map_command = {
  "map", "IMAGE",
  "Tell which parts of the disk have data: where, and in which file of the backing chain.",
  options, 1, 1, .run = run
};
