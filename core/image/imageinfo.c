/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What does qemu-img info say about an image?
 *
 * Specification: "Header", "Snapshots", "Bitmaps".  Keys and values are those of QEMU 10
 * (--output=json).  Older versions lack some of them: before 8.0 `children', before 9.0
 * `detached-header'.
 *
 * Only the header is read, and what it names directly: the snapshot table, the bitmap
 * directory, and the LUKS header.  So this takes no longer for a large image, and needs
 * neither the passphrase nor any other file.
 *
 * Locks: none; the caller's thread reads the file.
 */

#include <config.h>

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "util/bytes.h"
#include "util/cleanup.h"
#include "util/jsontext.h"
#include "util/publicname.h"
#include "util/report.h"
#include "format/compress.h"
#include "format/luks.h"
#include "image/bitmapdir.h"
#include "image/filename.h"
#include "image/imageinfo.h"

/* What is read of the file, besides the header. */
struct facts {
  struct snapshots snapshots;
  struct bitmapdir bitmaps;
  struct luks_header luks;
};

static bool
is_luks (const struct header *h)
{
  return h->crypt_method == QCOW2_CRYPT_LUKS;
}

/* --- reading --- */

static int
read_luks (const struct image *im, struct luks_header *luks)
{
  const struct header *h = &im->header;
  const char *why = NULL;

  if (h->crypto.length < sizeof *luks)
    why = "it is too short";
  else if (storage_read (im->file, luks, sizeof *luks, h->crypto.offset) == -1)
    return -1;
  else if (memcmp (luks->magic, LUKS_MAGIC, sizeof luks->magic) != 0)
    why = "it does not begin with \"LUKS\\xba\\xbe\"";
  else if (get16 (luks->version) != 1)
    why = "its version is not 1";
  if (why == NULL)
    return 0;
  return report_refusal (EINVAL, "%s: LUKS header at offset %" PRIu64 ": %s",
                         storage_path (im->file), h->crypto.offset, why);
}

static void
free_facts (struct facts *f)
{
  KEEP_ERRNO_FOR_BLOCK;

  snapshots_free (&f->snapshots);
  bitmapdir_free (&f->bitmaps);
}

/* Those of a file that was cut off cannot be told: it still has the rest. */
static int
read_snapshots (const struct image *im, struct snapshots *list)
{
  int r;

  report_keep ();
  r = snapshots_list (im->file, &im->header, list);
  report_end_keeping (r == -1 && !list->cut);
  if (r == 0 || !list->cut)
    return r;
  report_event (EVENT_DAMAGED, storage_path (im->file), "the file ends before the end of its "
                "snapshot table (at %" PRIu64 "), or of what this names: snapshots are not "
                "described", im->header.snapshots_offset);
  snapshots_free (list);
  return 0;
}

/* The caller calls free_facts in any case. */
static int
read_facts (const struct image *im, struct facts *f)
{
  const struct header *h = &im->header;

  memset (f, 0, sizeof *f);
  if (read_snapshots (im, &f->snapshots) == -1 ||
      (h->has_bitmaps && bitmapdir_list (im->file, h, NULL, &f->bitmaps) == -1))
    return -1;
  return is_luks (h) ? read_luks (im, &f->luks) : 0;
}

/* --- encryption --- */

/* A text of a LUKS header, whose last byte may be missing. */
static json_t *
luks_text (const char *text, size_t size)
{
  char copy[sizeof ((struct luks_header *) NULL)->uuid + 1] = "";

  memcpy (copy, text, strnlen (text, size));
  return jsontext_string (copy);
}
#define LUKS_TEXT(field) luks_text (field, sizeof field)

/* Such as "aes-256".  XTS divides the key into two. */
static json_t *
describe_cipher (const struct luks_header *l, const char *mode)
{
  char text[sizeof l->cipher + 16];
  const uint64_t bits = get32 (l->key_bytes) * UINT64_C (8);

  snprintf (text, sizeof text, "%.*s-%" PRIu64, (int) sizeof l->cipher, l->cipher,
            strcmp (mode, "xts") == 0 ? bits / 2 : bits);
  return jsontext_string (text);
}

static json_t *
describe_slots (const struct luks_header *l)
{
  json_t *slots = json_array ();

  for (unsigned i = 0; i < LUKS_SLOTS; i++) {
    const struct luks_slot_header *s = &l->slots[i];
    const bool active = get32 (s->active) == LUKS_SLOT_ACTIVE;
    json_t *slot = jsontext_object ({ "active", json_boolean (active) });

    if (active)
      slot = jsontext_add (slot,
        { "iters", jsontext_number (get32 (s->iterations)) },
        { "stripes", jsontext_number (get32 (s->stripes)) });
    slots = jsontext_append (slots, jsontext_add (slot,
      { "key-offset", jsontext_number (get32 (s->material_sector) * UINT64_C (512)) }));
  }
  return slots;
}

/* The mode is MODE-IV[:HASH], such as "xts-plain64" and "cbc-essiv:sha256". */
static json_t *
describe_luks (const struct luks_header *l)
{
  char text[sizeof l->mode + 1] = "", *rest = text;
  const char *mode, *iv, *iv_hash;
  json_t *luks;

  memcpy (text, l->mode, strnlen (l->mode, sizeof l->mode));
  mode = strsep (&rest, "-");
  iv = strsep (&rest, ":");
  iv_hash = rest;
  luks = jsontext_object (
    { "format", jsontext_string ("luks") },
    { "detached-header", json_false () },
    { "cipher-alg", describe_cipher (l, mode) },
    { "cipher-mode", jsontext_string (mode) },
    { "ivgen-alg", jsontext_string (iv ? iv : "") },
    { "hash-alg", LUKS_TEXT (l->hash) });
  if (iv_hash)
    luks = jsontext_add (luks, { "ivgen-hash-alg", jsontext_string (iv_hash) });
  return jsontext_add (luks,
    { "payload-offset", jsontext_number (get32 (l->payload_sector) * UINT64_C (512)) },
    { "master-key-iters", jsontext_number (get32 (l->digest_iterations)) },
    { "uuid", LUKS_TEXT (l->uuid) },
    { "slots", describe_slots (l) });
}

/* --- lists --- */

static json_t *
describe_bitmaps (const struct bitmapdir *dir)
{
  json_t *bitmaps = json_array ();

  for (size_t i = 0; i < dir->nr_all; i++) {
    const struct bitmapdir_any *b = &dir->all[i];
    json_t *flags = json_array ();

    if (b->flags & QCOW2_BITMAP_IN_USE)
      flags = jsontext_append (flags, jsontext_string ("in-use"));
    if (b->flags & QCOW2_BITMAP_AUTO)
      flags = jsontext_append (flags, jsontext_string ("auto"));
    bitmaps = jsontext_append (bitmaps, jsontext_object (
      { "name", jsontext_string (b->name) },
      { "granularity", jsontext_number (UINT64_C (1) << b->e.granularity_bits) },
      { "flags", flags }));
  }
  return bitmaps;
}

json_t *
imageinfo_snapshot (const struct snapshot *s)
{
  json_t *snapshot = jsontext_object (
    { "id", jsontext_string (s->id) },
    { "name", jsontext_string (s->name) },
    { "vm-state-size", jsontext_number (s->vm_state_size) },
    { "date-sec", jsontext_number (s->date_sec) },
    { "date-nsec", jsontext_number (s->date_nsec) },
    { "vm-clock-sec", jsontext_number (s->vm_clock_nsec / 1000000000) },
    { "vm-clock-nsec", jsontext_number (s->vm_clock_nsec % 1000000000) });

  return !s->has_icount ? snapshot
    : jsontext_add (snapshot, { "icount", jsontext_number (s->icount) });
}

static json_t *
describe_snapshots (const struct snapshots *snapshots)
{
  json_t *list = json_array ();

  for (uint32_t i = 0; i < snapshots->n; i++)
    list = jsontext_append (list, imageinfo_snapshot (&snapshots->list[i]));
  return list;
}

/* --- the image --- */

/* A name in the header, without secrets.  NULL on ENOMEM. */
static json_t *
name_for_report (const char *name)
{
  CLEANUP_FREE char *shown = publicname (name);

  return shown ? jsontext_string (shown) : NULL;
}

/* The member `data' of `format-specific'. */
static json_t *
describe_format (const struct header *h, const struct facts *f)
{
  json_t *data = jsontext_object (
    { "compat", jsontext_string (h->version == 2 ? "0.10" : "1.1") },
    { "compression-type", jsontext_string (compress_name (h->compression_type)) },
    { "refcount-bits", jsontext_number (1u << h->refcount_order) });

  if (h->version > 2)
    data = jsontext_add (data,
      { "lazy-refcounts", json_boolean (h->compatible & QCOW2_COMPAT_LAZY_REFCOUNTS) },
      { "corrupt", json_boolean (h->incompatible & QCOW2_INCOMPAT_CORRUPT) },
      { "extended-l2", json_boolean (h->incompatible & QCOW2_INCOMPAT_EXTENDED_L2) });
  if (h->data_file)
    data = jsontext_add (data, { "data-file", name_for_report (h->data_file) });
  if (h->incompatible & QCOW2_INCOMPAT_DATA_FILE)
    data = jsontext_add (data,
      { "data-file-raw", json_boolean (h->autoclear & QCOW2_AUTOCLEAR_RAW_DATA_FILE) });
  if (f->bitmaps.nr_all > 0)
    data = jsontext_add (data, { "bitmaps", describe_bitmaps (&f->bitmaps) });
  if (is_luks (h))
    data = jsontext_add (data, { "encrypt", describe_luks (&f->luks) });
  else if (h->crypt_method == QCOW2_CRYPT_AES)
    data = jsontext_add (data,
      { "encrypt", jsontext_object ({ "format", jsontext_string ("aes") }) });
  return data;
}

/* What the host has allocated for the file; unknown for an NBD export. */
static json_t *
add_actual_size (json_t *info, const struct storage *file)
{
  return storage_is_remote (file) ? info : jsontext_add (info,
    { "actual-size", jsontext_number (storage_allocated (file)) });
}

/* The member `children': the storage below the format. */
static json_t *
describe_children (const struct storage *file, const char *name)
{
  const char *driver = storage_is_remote (file) ? "nbd"
    : storage_is_regular (file) ? "file" : "host_device";
  json_t *info = jsontext_object (
    { "virtual-size", jsontext_number (round_up (storage_size (file), 512)) },
    { "filename", jsontext_string (name) },
    { "format", jsontext_string (driver) });

  if (!storage_is_remote (file))
    info = jsontext_add (add_actual_size (info, file),
      { "format-specific", jsontext_object (
        { "type", jsontext_string ("file") },
        { "data", json_object () }) },
      { "dirty-flag", json_false () });
  return jsontext_append (json_array (), jsontext_object (
    { "name", jsontext_string ("file") },
    { "info", jsontext_add (info, { "children", json_array () }) }));
}

static json_t *
add_backing (json_t *info, const struct header *h, const char *name)
{
  CLEANUP_FREE char *full = NULL;

  if (h->backing_file == NULL)
    return info;
  full = filename_shown (name, h->backing_file);
  info = jsontext_add (info,
    { "backing-filename", name_for_report (h->backing_file) },
    { "full-backing-filename", full ? name_for_report (full) : NULL });
  return h->backing_format == NULL ? info : jsontext_add (info,
    { "backing-filename-format", jsontext_string (h->backing_format) });
}

static json_t *
describe_qcow2 (const struct image *im, const char *name, const struct facts *f)
{
  const struct header *h = &im->header;
  json_t *info = add_actual_size (jsontext_object (
    { "virtual-size", jsontext_number (h->size) },
    { "filename", jsontext_string (name) },
    { "format", jsontext_string ("qcow2") }), im->file);

  if (h->crypt_method != QCOW2_CRYPT_NONE)
    info = jsontext_add (info, { "encrypted", json_true () });
  info = add_backing (jsontext_add (info,
    { "cluster-size", jsontext_number (h->cluster_size) },
    { "dirty-flag", json_boolean (h->incompatible & QCOW2_INCOMPAT_DIRTY) }), h, name);
  if (f->snapshots.n > 0)
    info = jsontext_add (info, { "snapshots", describe_snapshots (&f->snapshots) });
  return jsontext_add (info,
    { "format-specific", jsontext_object (
      { "type", jsontext_string ("qcow2") },
      { "data", describe_format (h, f) }) },
    { "children", describe_children (im->file, name) });
}

static json_t *
describe_raw (const struct storage *file, const char *name)
{
  return jsontext_add (add_actual_size (jsontext_object (
    { "virtual-size", jsontext_number (round_up (storage_size (file), 512)) },
    { "filename", jsontext_string (name) },
    { "format", jsontext_string ("raw") }), file),
    { "dirty-flag", json_false () },
    { "children", describe_children (file, name) });
}

json_t *
imageinfo_describe (const struct image *im, bool raw, const char *name)
{
  struct facts f = { 0 };
  json_t *info;

  if (!raw && read_facts (im, &f) == -1) {
    free_facts (&f);
    return NULL;
  }
  info = raw ? describe_raw (im->file, name) : describe_qcow2 (im, name, &f);
  free_facts (&f);
  if (info == NULL) {
    report_error ("%s: info: no memory", storage_path (im->file));
    errno = ENOMEM;
  }
  return info;
}
