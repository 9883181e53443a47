/* SPDX-License-Identifier: BSD-3-Clause
 *
 * measure: how large does the file of a new image become?
 *
 * newimage.c in the core computes how large it is when all of the disk was written.  Now
 * it is smaller by the clusters without data.  Nothing is subtracted for their tables, as
 * in qemu-img, so the result is never too small.
 *
 * Nothing is written, so files that the new image would name need not exist.
 *
 * Locks: none.
 */

#include <config.h>

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "util/bytes.h"
#include "util/jsontext.h"
#include "util/report.h"
#include "format/format.h"
#include "format/luksmake.h"
#include "image/bitmapdir.h"
#include "image/image.h"
#include "change/newimage.h"
#include "img/diskmap.h"
#include "img/newoptions.h"
#include "img/print.h"

#define SECTOR 512

static const struct option
  option_new_format = {
    'O', "target-format", "FORMAT", "the format of the new image (default raw)"
  },
  option_size = { 's', "size", "SIZE", "of a new image with an empty disk of this size" },
  option_snapshot = {
    'l', "snapshot", "SNAPSHOT", "measure this internal snapshot of IMAGE (a name, an id, "
    "snapshot.name=NAME or snapshot.id=ID)"
  };

struct measured {
  uint64_t size;                /* of the disk, bytes */
  uint64_t cluster_size;        /* of the new image */
  uint64_t data;                /* bytes of its clusters that contain data */
  uint64_t data_end;            /* of the last one of them */
  bool has_bitmaps;             /* the source can have some */
  uint64_t bitmaps;             /* bytes for copies of them */
};

static int
fail (const char *why)
{
  return report_refusal (EINVAL, "%s", why);
}

/* --- the source --- */

static int
count_data (void *opaque, const struct map_entry *e)
{
  struct measured *m = opaque;
  uint64_t begin;

  m->size = e->start + e->length;
  if (!e->data || e->zero)
    return 0;
  begin = max64 (m->data_end, round_down (e->start, m->cluster_size));
  m->data_end = round_up (m->size, m->cluster_size);
  m->data += m->data_end - begin;
  return 0;
}

/* For copies of all bitmaps, as if all of their bits were set. */
static void
count_bitmaps (const struct bitmapdir *dir, struct measured *m)
{
  uint64_t directory = 0, clusters;

  for (size_t i = 0; i < dir->nr_all; i++) {
    clusters = div_up (div_up (dir->all[i].e.bits, 8), m->cluster_size);
    m->bitmaps += clusters * m->cluster_size +
      round_up (clusters * sizeof (struct be64), m->cluster_size);
    directory += round_up (sizeof (struct qcow2_bitmap) + strlen (dir->all[i].name), 8);
  }
  m->bitmaps += round_up (directory, m->cluster_size);
}

static int
measure_bitmaps (const struct imagefile *f, struct measured *m)
{
  struct image *image = disk_open_header (&f->options);
  struct bitmapdir dir;
  int r = image ? 0 : -1;

  if (image && image->header.version >= 3) {
    m->has_bitmaps = true;
    if (image->header.has_bitmaps) {
      r = bitmapdir_list (image->file, &image->header, NULL, &dir);
      if (r == 0) {
        count_bitmaps (&dir, m);
        bitmapdir_free (&dir);
      }
    }
  }
  image_close (image);
  return r;
}

static int
measure_image (const struct arguments *a, const struct secrets *secrets,
               struct measured *m)
{
  struct imagefile *f = imagefile_named (a, a->operands[0], value_of (a, &option_format),
                                         secrets);
  struct key_values kv = { .n = 0 };
  const char *snapshot;
  int r = -1;

  if (f && parse_snapshot ("-l", value_of (a, &option_snapshot), &kv, &snapshot) == 0 &&
      diskmap_each (f, snapshot, count_data, m) == 0)
    r = f->raw ? 0 : measure_bitmaps (f, m);
  key_values_free (&kv);
  imagefile_free (f);
  return r;
}

/* --- the new image --- */

/* When all of the disk was written.  0: such an image is not possible (reported). */
static uint64_t
full_size (const struct newoptions *o, uint64_t size)
{
  struct newimage_options image = o->create.image;
  struct newimage plan;

  image.size = size;
  image.luks_bytes = o->create.encrypt ? LUKSMAKE_BYTES : 0;
  image.preallocation = PREALLOCATION_OFF;
  image.backing_file = image.data_file = NULL;
  image.data_file_raw = false;
  return newimage_plan (&image, &plan) == 0 ? newimage_full_size (&plan.options) : 0;
}

static int
print (const struct arguments *a, const struct measured *m, bool bitmaps,
       uint64_t required, uint64_t full)
{
  json_t *document;

  if (wants_json (a)) {
    document = jsontext_object ({ "required", jsontext_number (required) },
                                { "fully-allocated", jsontext_number (full) });
    if (bitmaps)
      document = jsontext_add (document, { "bitmaps", jsontext_number (m->bitmaps) });
    return print_json (document);
  }
  printf ("required size: %" PRIu64 "\nfully allocated size: %" PRIu64 "\n", required,
          full);
  if (bitmaps)
    printf ("bitmaps size: %" PRIu64 "\n", m->bitmaps);
  return EXIT_SUCCESS;
}

static int
print_qcow2 (const struct arguments *a, const struct newoptions *o,
             const struct measured *m)
{
  const struct newimage_options *image = &o->create.image;
  const uint64_t full = full_size (o, m->size), disk = round_up (m->size, m->cluster_size);
  /* How much of a source a backing file has is not known. */
  const bool all = image->preallocation >= PREALLOCATION_FALLOC ||
    (a->nr_operands > 0 && image->backing_file);

  return full == 0 ? EXIT_FAILURE
    : print (a, m, m->has_bitmaps && image->version >= 3,
             all ? full : full - disk + m->data, full);
}

/* --- the command --- */

static int
check (const struct arguments *a)
{
  const char *size = value_of (a, &option_size);

  if ((size != NULL) == (a->nr_operands > 0))
    return fail ("either --size or an image is required");
  return size && (is_given (a, &option_snapshot) || is_given (a, &option_format) ||
                  is_given (a, &option_image_opts))
    ? fail ("--size cannot be used with -f, -l and --image-opts") : 0;
}

/* Returns the exit status. */
static int
measure (const struct arguments *a, bool raw, const struct secrets *secrets,
         struct newoptions *o)
{
  struct measured m = { .size = 0 };
  const char *size = value_of (a, &option_size);

  if (newoptions_read (a, raw, NULL, NULL, secrets, o) == -1)
    return EXIT_FAILURE;
  m.cluster_size = o->create.image.cluster_size;
  /* What is not possible with any size is refused before a large image is read. */
  if ((!raw && full_size (o, 0) == 0) ||
      (size ? parse_size ("--size", size, &m.size)
       : measure_image (a, secrets, &m)) == -1)
    return EXIT_FAILURE;
  m.size = round_up (m.size, SECTOR);
  return raw ? print (a, &m, false, m.size, m.size) : print_qcow2 (a, o, &m);
}

static int
run (const struct arguments *a)
{
  const char *format = value_of (a, &option_new_format);
  struct newoptions o = { .data_path = NULL };
  struct secrets *secrets = NULL;
  int status = EXIT_FAILURE;
  bool raw;

  if (imagefile_parse_format ("-O", format ? format : "raw", &raw) == -1)
    return EXIT_FAILURE;
  if (newoptions_help (a, raw))
    return EXIT_SUCCESS;
  if (check (a) == 0)
    secrets = secrets_read (a);
  if (secrets)
    status = measure (a, raw, secrets, &o);
  newoptions_free (&o);
  secrets_free (secrets);
  return status;
}

static const struct option *const options[] = {
  &option_format, &option_new_format, &option_options, &option_size, &option_snapshot,
  &option_output, &option_force_share, IMAGE_OPTIONS, NULL
};

const struct command measure_command = {
  "measure", "[--size SIZE | IMAGE]",
  "Tell how large the file of a new image becomes: with the data of IMAGE or none, and when "
  "all of the disk has been written.",
  options, 0, 1, .run = run
};
