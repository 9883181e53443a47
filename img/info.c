/* SPDX-License-Identifier: BSD-3-Clause
 *
 * info: what is this image?
 *
 * The core describes it as qemu-img does in JSON (imageinfo.c).  Here that becomes text,
 * or a picture, and raw files are described.
 *
 * Locks: none.
 */

#include <config.h>

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "util/bytes.h"
#include "util/cleanup.h"
#include "util/jsontext.h"
#include "util/report.h"
#include "util/text.h"
#include "storage/storage.h"
#include "disk/chaininfo.h"
#include "img/imagefile.h"
#include "img/info.h"
#include "img/infopicture.h"
#include "img/live.h"
#include "img/print.h"

#define SECTOR 512

static const struct option option_backing_chain = {
  0, "backing-chain", NULL, "describe its backing files too"
};

/* --- raw files --- */

/* Adds the facts about a file that do not depend on its format. */
static json_t *
add_storage (json_t *info, const struct storage *s, const char *name)
{
  info = jsontext_add (info,
    { "virtual-size", jsontext_number (round_up (storage_size (s), SECTOR)) },
    { "filename", jsontext_string (name) });
  return jsontext_add (info, { "actual-size", jsontext_number (storage_allocated (s)) },
                       { "dirty-flag", json_false () });
}

static json_t *
describe_child (const struct storage *s, const char *name)
{
  const char *protocol = storage_is_regular (s) ? "file" : "host_device";

  return jsontext_append (json_array (), jsontext_object (
    { "name", jsontext_string ("file") },
    { "info", add_storage (jsontext_object (
      { "children", json_array () },
      { "format", jsontext_string (protocol) },
      { "format-specific", jsontext_object ({ "type", jsontext_string (protocol) },
                                            { "data", json_object () }) }), s, name) }));
}

static json_t *
describe_raw (const struct imagefile *f)
{
  const struct storage_options options = { .link = &f->options.link };
  struct storage *s;
  json_t *info;

  if (storage_open (f->path, &options, &s) == -1)
    return NULL;
  info = jsontext_object ({ "format", jsontext_string ("raw") });
  if (f->uri)
    info = jsontext_add (info, { "virtual-size", jsontext_number (storage_size (s)) },
                         { "filename", jsontext_string (f->given) },
                         { "dirty-flag", json_false () });
  else
    info = add_storage (jsontext_add (info, { "children", describe_child (s, f->given) }),
                        s, f->given);
  storage_close (s);
  if (info == NULL)
    report_error ("%s: info: no memory", f->given);
  return info;
}

json_t *
info_describe (const struct imagefile *f, bool chain)
{
  json_t *info;

  if (!f->raw)
    return chaininfo_describe (&f->options, f->uri ? f->options.path : f->given, chain);
  info = describe_raw (f);
  if (info && chain) {
    info = jsontext_append (json_array (), info);
    if (info == NULL)
      report_error ("%s: info: no memory", f->given);
  }
  return info;
}

/* --- text --- */

static const char *
text_at (const json_t *info, const char *key)
{
  return json_string_value (json_object_get (info, key));
}

static uint64_t
number_at (const json_t *info, const char *key)
{
  const json_t *n = json_object_get (info, key);

  return json_is_real (n) ? (uint64_t) json_real_value (n) : (uint64_t) json_integer_value (n);
}

static bool
flag_at (const json_t *info, const char *key)
{
  return json_is_true (json_object_get (info, key));
}

/* Bytes of names are those of the image or the user. */
static void
print_text (const char *before, const char *text, const char *after)
{
  fputs (before, stdout);
  jsontext_put (text ? text : "", stdout);
  fputs (after, stdout);
}

static void
print_size (const char *before, const char *what, uint64_t bytes)
{
  char size[READABLE];

  printf ("%s%s: %s (%" PRIu64 " bytes)\n", before, what, readable (bytes, size), bytes);
}

static void
print_allocated (const char *before, const json_t *info)
{
  char size[READABLE];

  printf ("%sdisk size: %s\n", before, json_object_get (info, "actual-size") == NULL
          ? "unavailable" : readable (number_at (info, "actual-size"), size));
}

static void print_tree (const char *before, const json_t *value, unsigned depth);

static void
print_value (const char *before, const json_t *value, unsigned depth)
{
  if (json_is_object (value) || json_is_array (value)) {
    putchar ('\n');
    print_tree (before, value, depth + 1);
  }
  else if (json_is_string (value))
    print_text (" ", json_string_value (value), "\n");
  else if (json_is_boolean (value))
    printf (" %s\n", json_is_true (value) ? "true" : "false");
  else
    printf (" %" JSON_INTEGER_FORMAT "\n", json_integer_value (value));
}

/* In the names, - becomes a space. */
static void
print_tree (const char *before, const json_t *value, unsigned depth)
{
  const char *key;
  json_t *item;
  size_t i;

  if (json_is_array (value))
    json_array_foreach (value, i, item) {
      printf ("%s%*s[%zu]:", before, 4 * depth, "", i);
      print_value (before, item, depth);
    }
  else
    json_object_foreach ((json_t *) value, key, item) {
      printf ("%s%*s", before, 4 * depth, "");
      for (const char *p = key; *p; p++)
        putchar (*p == '-' ? ' ' : *p);
      putchar (':');
      print_value (before, item, depth);
    }
}

static void
print_specific (const char *before, const json_t *info)
{
  const json_t *data = json_object_get (json_object_get (info, "format-specific"), "data");

  if (json_object_size (data) == 0)
    return;
  printf ("%sFormat specific information:\n", before);
  print_tree (before, data, 1);
}

/* PATH: of the node above. */
static void
print_child (const json_t *child, const char *path, unsigned depth)
{
  const json_t *info = json_object_get (child, "info"), *deeper;
  CLEANUP_FREE char *name = text_new ("%s%s", path, text_at (child, "name"));
  CLEANUP_FREE char *below = text_new ("%s/", name ? name : "");
  CLEANUP_FREE char *before = text_new ("%*s", 4 * depth, "");
  size_t i;

  if (name == NULL || below == NULL || before == NULL)
    return;
  printf ("%sChild node '%s':\n", before, name);
  fputs (before, stdout);
  print_text ("    filename: ", text_at (info, "filename"), "\n");
  fputs (before, stdout);
  print_text ("    protocol type: ", text_at (info, "format"), "\n");
  fputs (before, stdout);
  print_size ("    ", "file length", number_at (info, "virtual-size"));
  fputs (before, stdout);
  print_allocated ("    ", info);
  free (before);
  before = text_new ("%*s", 4 * depth + 4, "");
  if (before)
    print_specific (before, info);
  json_array_foreach (json_object_get (info, "children"), i, deeper)
    print_child (deeper, below, depth + 1);
}

static void
print_backing (const json_t *info)
{
  const char *name = text_at (info, "backing-filename");
  const char *full = text_at (info, "full-backing-filename");

  if (name == NULL)
    return;
  print_text ("backing file: ", name, "");
  if (full && strcmp (full, name) != 0)
    print_text (" (actual path: ", full, ")");
  putchar ('\n');
  if (text_at (info, "backing-filename-format"))
    print_text ("backing file format: ", text_at (info, "backing-filename-format"), "\n");
}

/* And a space. */
static void
print_padded (const char *text, int width)
{
  const int len = text ? strlen (text) : 0;

  print_text ("", text, "");
  printf ("%*s ", len < width ? width - len : 0, "");
}

static void
print_snapshot (const json_t *s)
{
  const time_t date = number_at (s, "date-sec");
  const uint64_t seconds = number_at (s, "vm-clock-sec");
  const json_t *icount = json_object_get (s, "icount");
  char size[READABLE], when[32] = "", clock[64], count[24] = "--";
  struct tm tm;

  if (localtime_r (&date, &tm))
    strftime (when, sizeof when, "%Y-%m-%d %H:%M:%S", &tm);
  snprintf (clock, sizeof clock, "%04" PRIu64 ":%02u:%02u.%03u", seconds / 3600,
            (unsigned) (seconds / 60 % 60), (unsigned) (seconds % 60),
            (unsigned) (number_at (s, "vm-clock-nsec") / 1000000));
  if (icount)
    snprintf (count, sizeof count, "%" PRIu64, number_at (s, "icount"));
  print_padded (text_at (s, "id"), 7);
  print_padded (text_at (s, "name"), 16);
  printf ("%8s %19s %15s %10s\n", readable (number_at (s, "vm-state-size"), size), when,
          clock, count);
}

void
info_print_snapshots (const json_t *info)
{
  const json_t *list = json_object_get (info, "snapshots"), *s;
  size_t i;

  if (json_array_size (list) == 0)
    return;
  puts ("Snapshot list:");
  printf ("%-7s %-16s %8s %19s %15s %10s\n", "ID", "TAG", "VM_SIZE", "DATE", "VM_CLOCK",
          "ICOUNT");
  json_array_foreach (list, i, s)
    print_snapshot (s);
}

static void
print_info (const json_t *info)
{
  const json_t *child;
  size_t i;

  print_text ("image: ", text_at (info, "filename"), "\n");
  print_text ("file format: ", text_at (info, "format"), "\n");
  print_size ("", "virtual size", number_at (info, "virtual-size"));
  print_allocated ("", info);
  if (flag_at (info, "encrypted"))
    puts ("encrypted: yes");
  if (json_object_get (info, "cluster-size"))
    printf ("cluster_size: %" PRIu64 "\n", number_at (info, "cluster-size"));
  if (flag_at (info, "dirty-flag"))
    puts ("cleanly shut down: no");
  print_backing (info);
  info_print_snapshots (info);
  print_specific ("", info);
  json_array_foreach (json_object_get (info, "children"), i, child)
    print_child (child, "/", 0);
}

/* --- the command --- */

static int
draw (const struct arguments *a, const struct imagefile *f, json_t *info)
{
  int r = -1;

  if (wants_json (a))
    report_error ("--svg and --output=json cannot be used together");
  else if (is_given (a, &option_backing_chain))
    report_error ("--svg and --backing-chain cannot be used together: map --svg shows all "
                  "files of the chain");
  else
    r = infopicture_print (f, info);
  json_decref (info);
  return r == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}

static int
print (const struct arguments *a, json_t *info)
{
  const json_t *one;
  size_t i;

  if (wants_json (a))
    return print_json (info);
  if (json_is_array (info))
    json_array_foreach (info, i, one) {
      if (i > 0)
        putchar ('\n');
      print_info (one);
    }
  else
    print_info (info);
  json_decref (info);
  return EXIT_SUCCESS;
}

static int
run (const struct arguments *a)
{
  struct secrets *secrets = secrets_read (a);
  struct imagefile *f = secrets == NULL ? NULL
    : imagefile_named (a, a->operands[0], value_of (a, &option_format), secrets);
  json_t *info = f ? info_describe (f, is_given (a, &option_backing_chain)) : NULL;
  const int status = info == NULL ? EXIT_FAILURE
    : is_given (a, &option_svg) ? draw (a, f, info) : print (a, info);

  imagefile_free (f);
  secrets_free (secrets);
  return status;
}

/* Without what is below it; for a CHAIN, an array of all of them. */
static json_t *
copy_image (const json_t *image, bool chain)
{
  json_t *list = json_array (), *one;

  for (; image; image = chain ? json_object_get (image, "backing-image") : NULL) {
    one = json_copy ((json_t *) image);
    json_object_del (one, "backing-image");
    if (!chain) {
      json_decref (list);
      return one;
    }
    list = jsontext_append (list, one);
  }
  return list;
}

static int
info_live (const struct arguments *a, struct live *l)
{
  const json_t *image = live_image (l);
  json_t *info = copy_image (image, is_given (a, &option_backing_chain));

  if (image && info == NULL)
    report_error ("info: no memory");
  if (image && info)
    return print (a, info) == EXIT_SUCCESS ? 0 : -1;
  json_decref (info);
  return -1;
}

static const struct option *const live_options[] = {
  &option_format, &option_output, &option_force_share, &option_backing_chain, NULL
};

static const struct option *const options[] = {
  &option_format, &option_output, &option_svg, &option_force_share,
  &option_backing_chain,
  IMAGE_OPTIONS, NULL
};

const struct command info_command = {
  "info", "IMAGE",
  "Describe an image: format, sizes, backing file, internal snapshots, bitmaps, and what "
  "else its header says.",
  options, 1, 1, .run = run, .live = info_live, .live_options = live_options
};
