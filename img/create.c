/* SPDX-License-Identifier: BSD-3-Clause
 *
 * create: a new image.
 *
 * The core makes it (create.c there); newoptions.c reads the options.  A raw image is a
 * file of its size.  What exists under the name is replaced when the new image is
 * complete.
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
#include "util/cleanup.h"
#include "util/publicname.h"
#include "util/report.h"
#include "storage/newfile.h"
#include "change/create.h"
#include "change/newdevice.h"
#include "img/newoptions.h"
#include "img/progress.h"
#include "img/rawsize.h"

#define SECTOR 512

static const struct option
  option_new_format = { 'f', "format", "FORMAT", "the format of the new image (default raw)" },
  option_backing = { 'b', "backing", "FILE", "the backing file" },
  option_backing_format = {
    'F', "backing-format", "FORMAT", "the format of the backing file"
  },
  option_unsafe = {
    'u', "backing-unsafe", NULL, "the backing file is not opened, and need not exist"
  };

static int
fail (const char *why)
{
  return report_refusal (EINVAL, "%s", why);
}

/* --- what is printed --- */

/* In the order of qemu-img, with the defaults that it prints. */
static const struct { const char *key, *value; } qcow2_printed[] = {
  { "encrypt.format", NULL }, { "encrypt.key-secret", NULL }, { "encrypt.iter-time", NULL },
  { "cluster_size", "65536" }, { "extended_l2", "off" }, { "preallocation", NULL },
  { "compression_type", "zlib" }, { "size", NULL }, { "compat", NULL },
  { "backing_file", NULL }, { "backing_fmt", NULL }, { "data_file", NULL },
  { "data_file_raw", NULL }, { "lazy_refcounts", "off" }, { "refcount_bits", "16" },
};

static void
print_name (const char *key, const char *name)
{
  CLEANUP_FREE char *shown = publicname (name);

  printf (" %s=%s", key, publicname_or (shown));
}

static void
print_qcow2 (const struct newoptions *o, uint64_t size)
{
  const struct newimage_options *i = &o->create.image;

  for (size_t n = 0; n < sizeof qcow2_printed / sizeof qcow2_printed[0]; n++) {
    const char *key = qcow2_printed[n].key, *value = key_values_get (&o->given, key);

    if (value == NULL)
      value = qcow2_printed[n].value;
    if (strcmp (key, "size") == 0)
      printf (" size=%" PRIu64, size);
    else if (strcmp (key, "cluster_size") == 0)
      printf (" cluster_size=%" PRIu64, i->cluster_size);
    else if (strcmp (key, "backing_file") == 0 && i->backing_file)
      print_name (key, i->backing_file);
    else if (strcmp (key, "backing_fmt") == 0 && i->backing_format)
      printf (" backing_fmt=%s", i->backing_format);
    else if (value && strcmp (key, "data_file") == 0)
      print_name (key, value);
    else if (value)
      printf (" %s=%s", key, value);
  }
}

static void
print (const struct arguments *a, const struct imagefile *f, const struct newoptions *o,
       uint64_t size)
{
  const char *preallocation = key_values_get (&o->given, "preallocation");

  if (is_given (a, &option_quiet))
    return;
  printf ("Formatting '%s', fmt=%s", f->given, f->raw ? "raw" : "qcow2");
  if (!f->raw)
    print_qcow2 (o, size);
  else {
    printf (" size=%" PRIu64, size);
    if (preallocation)
      printf (" preallocation=%s", preallocation);
  }
  putchar ('\n');
}

/* --- raw --- */

static int
create_raw_device (const char *path, const struct storage_options *options, uint64_t size)
{
  struct storage *s;
  int r;

  if (newdevice_open (path, options, &s) == -1)
    return -1;
  r = rawsize_set (s, size, PREALLOCATION_OFF);
  storage_close (s);
  return r;
}

static int
create_raw_file (const char *path, const struct storage_options *options, uint64_t size,
                 enum preallocation p)
{
  struct newfile *n;
  int r;

  if (newfile_begin_over (path, options, &n) == -1)
    return -1;
  r = rawsize_set (newfile_file (n), size, p);
  if (r == 0)
    r = newfile_publish (n);
  newfile_end (n);
  return r;
}

static int
create_raw (const struct arguments *a, const struct imagefile *f, struct newoptions *o)
{
  const struct storage_options options = { .lock = true, .link = &f->options.link };
  const uint64_t size = o->create.image.size;
  const enum preallocation p = o->create.image.preallocation;

  if (f->uri)
    return fail ("the size of an NBD export cannot be changed");
  if (size > INT64_MAX - SECTOR)
    return fail ("the size is too large");
  print (a, f, o, size);
  progress_begin (a, false);
  return newdevice_is (f->options.path)
    ? create_raw_device (f->options.path, &options, round_up (size, SECTOR))
    : create_raw_file (f->options.path, &options, round_up (size, SECTOR), p);
}

/* --- qcow2 --- */

static int
step (void *opaque, uint64_t done, uint64_t total)
{
  (void) opaque;
  if (progress_step (NULL, done, total, 0))
    return 0;
  return report_refusal (EINTR, "interrupted while creating the image");
}

static void
tell_most (const struct imagefile *f, const struct created *c)
{
  uint64_t most, size;

  if (created_may_outgrow (c, &most, &size))
    report_error ("%s: the image can need up to %" PRIu64 " bytes; the device has %" PRIu64,
                  f->given, most, size);
}

static int
create_qcow2 (const struct arguments *a, struct imagefile *f, struct newoptions *o)
{
  struct created *c;

  if (newoptions_complete (o, f) == -1)
    return -1;
  o->create.unsafe = is_given (a, &option_unsafe);
  o->create.progress = step;
  progress_begin (a, false);
  if (create_image (&o->create, &c) == -1)
    return -1;
  progress_end (true);          /* its lines come before what follows */
  print (a, f, o, o->has_size ? o->create.image.size : created_disk_size (c));
  tell_most (f, c);
  if (created_publish (c) == -1) {
    KEEP_ERRNO_FOR_BLOCK;

    created_withdraw (c);
    return -1;
  }
  created_keep (c);
  return 0;
}

/* --- the command --- */

static int
take_size (const struct arguments *a, struct newoptions *o)
{
  if (a->nr_operands > 1) {
    if (o->has_size)
      return fail ("the size of the disk is given twice");
    o->has_size = true;
    return parse_size ("size", a->operands[1], &o->create.image.size);
  }
  if (o->has_size)
    return 0;
  if (o->create.image.backing_file == NULL)
    return fail ("the size of the disk is required");
  return is_given (a, &option_unsafe) ? fail ("-u requires the size of the disk") : 0;
}

static int
create (const struct arguments *a, const char *format, const struct secrets *s,
        struct newoptions *o)
{
  struct imagefile *f = imagefile_new (a, a->operands[0], format, NULL);
  int r = -1;

  if (f && newoptions_read (a, f->raw, value_of (a, &option_backing),
                            value_of (a, &option_backing_format), s, o) == 0 &&
      newoptions_check_backing (o) == 0 && take_size (a, o) == 0) {
    r = f->raw ? create_raw (a, f, o) : create_qcow2 (a, f, o);
    progress_end (r == 0);
  }
  imagefile_free (f);
  return r;
}

static int
run (const struct arguments *a)
{
  const char *format = value_of (a, &option_new_format);
  struct newoptions o = { .data_path = NULL };
  struct secrets *s;
  int r = -1;

  if (format == NULL)
    format = "raw";
  if (newoptions_help (a, strcmp (format, "raw") == 0))
    return EXIT_SUCCESS;
  if (a->nr_operands == 0) {
    report_error ("usage: %s create [OPTION...] IMAGE [SIZE]", PROGRAM);
    return EXIT_FAILURE;
  }
  if (is_given (a, &option_image_opts)) {
    report_error ("--image-opts cannot be used with create");
    return EXIT_FAILURE;
  }
  s = secrets_read (a);
  if (s)
    r = create (a, format, s, &o);
  newoptions_free (&o);
  secrets_free (s);
  return r == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}

static const struct option *const options[] = {
  &option_new_format, &option_backing, &option_backing_format, &option_unsafe,
  &option_options, &option_quiet, &option_progress, IMAGE_OPTIONS, NULL
};

const struct command create_command = {
  "create", "IMAGE [SIZE]",
  "Create an image.  Its disk has SIZE bytes, by default as many as that of the backing "
  "file.  What exists under that name is replaced when the new image is complete.",
  options, 0, 2, .run = run
};
