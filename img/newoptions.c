/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Which new image does the user want?
 *
 * The options -o have the names of qemu-img, and become those of create.c in the core,
 * which judges what can be combined.
 *
 * Locks: none.
 */

#include <config.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "util/report.h"
#include "storage/nbduri.h"
#include "format/format.h"
#include "img/newoptions.h"

const struct option option_options = {
  'o', "options", "OPTIONS", "KEY=VALUE,...: options of the format; help lists them"
};

struct choice { const char *word; unsigned value; };    /* word NULL: the end */

static int
parse_choice (const char *what, const char *text, const struct choice *choices,
              unsigned *value)
{
  char words[100] = "";

  for (const struct choice *c = choices; c->word; c++) {
    if (strcmp (c->word, text) == 0) {
      *value = c->value;
      return 0;
    }
    if (words[0])
      strncat (words, " or ", sizeof words - strlen (words) - 1);
    strncat (words, c->word, sizeof words - strlen (words) - 1);
  }
  return bad_value (what, text, "must be %s", words);
}

int
parse_preallocation (const char *what, const char *text, enum preallocation *p)
{
  static const struct choice choices[] = {
    { "off", PREALLOCATION_OFF }, { "metadata", PREALLOCATION_METADATA },
    { "falloc", PREALLOCATION_FALLOC }, { "full", PREALLOCATION_FULL }, { NULL, 0 }
  };
  unsigned value;

  if (parse_choice (what, text, choices, &value) == -1)
    return -1;
  *p = value;
  return 0;
}

/* --- each option --- */

static int
set_backing_file (struct newoptions *o, const char *what, const char *text)
{
  (void) what;
  o->create.image.backing_file = text;
  return 0;
}

static int
set_backing_format (struct newoptions *o, const char *what, const char *text)
{
  bool raw;

  o->create.image.backing_format = text;
  return imagefile_parse_format (what, text, &raw);
}

static int
set_cluster_size (struct newoptions *o, const char *what, const char *text)
{
  return parse_size (what, text, &o->create.image.cluster_size);
}

int
parse_compat (const char *what, const char *text, unsigned *version)
{
  static const struct choice choices[] = {
    { "0.10", 2 }, { "v2", 2 }, { "1.1", 3 }, { "v3", 3 }, { NULL, 0 }
  };

  return parse_choice (what, text, choices, version);
}

static int
set_compat (struct newoptions *o, const char *what, const char *text)
{
  return parse_compat (what, text, &o->create.image.version);
}

static int
set_compression (struct newoptions *o, const char *what, const char *text)
{
  static const struct choice choices[] = {
    { "zlib", QCOW2_COMPRESSION_DEFLATE }, { "zstd", QCOW2_COMPRESSION_ZSTD }, { NULL, 0 }
  };

  return parse_choice (what, text, choices, &o->create.image.compression_type);
}

static int
set_data_file (struct newoptions *o, const char *what, const char *text)
{
  if (nbduri_is (text))
    return bad_value (what, "", "a new data file must be a file");
  o->create.image.data_file = text;
  return 0;
}

static int
set_data_file_raw (struct newoptions *o, const char *what, const char *text)
{
  return parse_switch (what, text, &o->create.image.data_file_raw);
}

static int
set_encrypt (struct newoptions *o, const char *what, const char *text)
{
  o->create.encrypt = strcmp (text, "luks") == 0;
  return o->create.encrypt ? 0 : bad_value (what, text, "must be luks");
}

static int
set_iter_time (struct newoptions *o, const char *what, const char *text)
{
  uint64_t ms;

  if (parse_number (what, text, 1, MAX_ITER_TIME, &ms) == -1)
    return -1;
  o->create.iter_ms = ms;
  return 0;
}

static int
set_nothing (struct newoptions *o, const char *what, const char *text)
{
  (void) o;
  (void) what;
  (void) text;
  return 0;
}

static int
set_extended_l2 (struct newoptions *o, const char *what, const char *text)
{
  return parse_switch (what, text, &o->create.image.extended_l2);
}

static int
set_lazy_refcounts (struct newoptions *o, const char *what, const char *text)
{
  return parse_switch (what, text, &o->create.image.lazy_refcounts);
}

static int
set_preallocation (struct newoptions *o, const char *what, const char *text)
{
  return parse_preallocation (what, text, &o->create.image.preallocation);
}

static int
set_refcount_bits (struct newoptions *o, const char *what, const char *text)
{
  uint64_t bits;

  if (parse_number (what, text, 1, 64, &bits) == -1)
    return -1;
  o->create.image.refcount_bits = bits;
  return 0;
}

static int
set_size (struct newoptions *o, const char *what, const char *text)
{
  o->has_size = true;
  return parse_size (what, text, &o->create.image.size);
}

static const struct newoption {
  const char *name, *text;
  int (*set) (struct newoptions *, const char *what, const char *text);
  bool raw;                     /* raw images have it, too */
} all[] = {
  { "backing_file", "the backing file (as -b)", set_backing_file, false },
  { "backing_fmt", "the format of the backing file (as -F)", set_backing_format, false },
  { "cluster_size", "the cluster size (default 64K)", set_cluster_size, false },
  { "compat", "the version of the format: 0.10 (v2) or 1.1 (v3, the default)", set_compat,
    false },
  { "compression_type", "zlib (the default) or zstd", set_compression, false },
  { "data_file", "the new external data file", set_data_file, false },
  { "data_file_raw", "the data file is a raw image at any time", set_data_file_raw, false },
  { "encrypt.format", "luks: encrypt the disk", set_encrypt, false },
  { "encrypt.iter-time", "milliseconds to test a passphrase (2000)", set_iter_time, false },
  { "encrypt.key-secret", "the id of the secret (--object) with the passphrase",
    set_nothing, false },
  { "extended_l2", "divide clusters into 32 subclusters", set_extended_l2, false },
  { "lazy_refcounts", "postpone updates of refcounts", set_lazy_refcounts, false },
  { "preallocation", "off (the default), metadata (qcow2), falloc or full",
    set_preallocation, true },
  { "refcount_bits", "the width of refcounts (default 16)", set_refcount_bits, false },
  { "size", "the size of the disk", set_size, true },
};
#define NR_ALL (sizeof all / sizeof all[0])

/* --- all of them --- */

bool
newoptions_asks_for_help (const struct arguments *a, const struct option *option)
{
  struct key_values kv = { .n = 0 };
  const char *text;
  unsigned i = 0;
  bool asks = false;

  report_silence (true);        /* they are read again */
  while (!asks && (text = next_value (a, option, &i)) &&
         key_values_add (&kv, text, NULL) == 0)
    asks = key_values_get (&kv, "help") || key_values_get (&kv, "?");
  report_silence (false);
  key_values_free (&kv);
  return asks;
}

bool
newoptions_help (const struct arguments *a, bool raw)
{
  if (!newoptions_asks_for_help (a, &option_options))
    return false;
  puts ("Supported options:");
  for (size_t i = 0; i < NR_ALL; i++)
    if (!raw || all[i].raw)
      printf ("  %-20s %s\n", all[i].name, all[i].text);
  return true;
}

static int
set (struct newoptions *o, const struct key_value *kv, bool raw)
{
  char what[40];

  for (size_t i = 0; i < NR_ALL; i++)
    if (strcmp (all[i].name, kv->key) == 0 && (!raw || all[i].raw)) {
      snprintf (what, sizeof what, "%s=", kv->key);
      return all[i].set (o, what, kv->value);
    }
  if (strcmp (kv->key, "encryption") == 0)
    report_error ("encryption: use encrypt.format=luks");
  else
    report_error ("-o: '%s' is not an option of %s images (-o help lists them)", kv->key,
                  raw ? "raw" : "qcow2");
  errno = EINVAL;
  return -1;
}

static int
impossible (const char *why)
{
  return report_refusal (EINVAL, "%s", why);
}

int
newoptions_check_backing (const struct newoptions *o)
{
  const struct newimage_options *i = &o->create.image;

  if (i->backing_file && i->backing_format == NULL)
    return impossible ("the format of the backing file is required: -F qcow2 or raw");
  return i->backing_format && i->backing_file == NULL
    ? impossible ("-F requires the name of a backing file") : 0;
}

static int
take_passphrase (struct newoptions *o, const struct secrets *s)
{
  const char *id = key_values_get (&o->given, "encrypt.key-secret");

  if (!o->create.encrypt)
    return id || key_values_get (&o->given, "encrypt.iter-time")
      ? impossible ("encrypt.key-secret and encrypt.iter-time require encrypt.format=luks")
      : 0;
  if (id == NULL)
    return impossible ("encrypt.format requires encrypt.key-secret=ID and --object "
                       "secret,id=ID,...");
  o->passphrase = secrets_get (s, id);
  if (o->passphrase == NULL)
    return -1;
  if (o->passphrase[0] == '\0')
    return impossible ("the passphrase of a new image must not be empty");
  o->create.secret = (struct image_secret) {
    .passphrase = o->passphrase, .len = strlen (o->passphrase)
  };
  return 0;
}

void
newoptions_default (struct newoptions *o)
{
  *o = (struct newoptions) {
    .create = {
      .image = { .cluster_size = 65536, .version = 3, .refcount_bits = 16 },
      .iter_ms = 2000,
    },
  };
}

int
newoptions_read (const struct arguments *a, bool raw, const char *backing,
                 const char *backing_format, const struct secrets *s,
                 struct newoptions *o)
{
  const char *text;
  unsigned i = 0;

  newoptions_default (o);
  while ((text = next_value (a, &option_options, &i)))
    if (key_values_add_options (&o->given, text) == -1)
      return -1;
  for (unsigned k = 0; k < o->given.n; k++)
    if (set (o, &o->given.list[k], raw) == -1)
      return -1;
  if (raw)
    return backing || backing_format ? impossible ("raw images have no backing file") : 0;
  if (backing)
    o->create.image.backing_file = backing;
  if (backing_format && set_backing_format (o, "-F", backing_format) == -1)
    return -1;
  return take_passphrase (o, s);
}

int
newoptions_complete (struct newoptions *o, struct imagefile *f)
{
  struct create_options *const c = &o->create;
  const struct disk_options *const disk = &f->options;

  if (c->image.backing_file && nbduri_is (c->image.backing_file) &&
      imagefile_allow_uri (f, c->image.backing_file) == -1)
    return -1;
  c->path = disk->path;
  c->file = (struct storage_options) {
    /* (NBD has no locks.) */
    .lock = !f->uri, .cache = disk->cache, .link = &disk->link
  };
  c->rules = disk->rules;
  c->replace = c->overwrite = true;
  c->size_of_backing = !o->has_size;
  if (c->image.data_file == NULL)
    return 0;
  o->data_path = imagefile_path (c->image.data_file);
  if (o->data_path == NULL)
    return -1;
  if (strcmp (o->data_path, c->path) == 0)
    return impossible ("data_file= names the image itself");
  c->data_path = o->data_path;
  c->image.data_file = create_data_name (c->image.data_file, c->data_path, c->path);
  return 0;
}

void
newoptions_free (struct newoptions *o)
{
  free (o->data_path);
  key_values_free (&o->given);
}
