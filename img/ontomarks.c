/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Is a target that is written in place still the one of the last backup, and untouched?
 *
 * All of it is the disk, so there is no place for an id: /dev/sdb may be another disk
 * today.  But the manifest can have the hashes of some blocks, the marks: a few of all
 * data, which other disks do not have, and a few of what the last backup has written,
 * which older copies of this disk do not have.
 *
 * This is no proof: a target that differs elsewhere is not noticed.
 *
 * Locks: none.
 */

#include <config.h>

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include <openssl/evp.h>

#include "util/bytes.h"
#include "util/cleanup.h"
#include "util/jsontext.h"
#include "util/report.h"
#include "img/ontomarks.h"

#define BLOCK 4096
#define MARKS 64                /* of all data, and as many of what is new */

struct hash { char text[17]; };

static int
hash_block (const struct copy_end *target, uint64_t at, struct hash *h)
{
  unsigned char buf[BLOCK], digest[EVP_MAX_MD_SIZE] = { 0 };

  if (target->ops->read (target, buf, sizeof buf, at) == -1)
    return -1;
  if (EVP_Digest (buf, sizeof buf, digest, NULL, EVP_sha256 (), NULL) != 1)
    return report_refusal (EIO, "cannot make a checksum");
  for (unsigned i = 0; i < sizeof h->text / 2; i++)
    snprintf (h->text + 2 * i, 3, "%02x", digest[i]);
  return 0;
}

/* --- making --- */

struct walk {
  const struct copy_end *target;
  uint64_t size;                /* of the disk */
  uint64_t data;                /* that came by */
  uint64_t step, next;          /* marks are as far apart, in data; 0: none */
  json_t *marks;
};

/* (Of a whole block.) */
static int
add_mark (struct walk *w, uint64_t at)
{
  struct hash h;

  if (!range_within (at, BLOCK, w->size))
    return 0;
  if (hash_block (w->target, at, &h) == -1)
    return -1;
  w->marks = jsontext_append (w->marks, jsontext_object (
    { "offset", jsontext_number (at) }, { "hash", jsontext_string (h.text) }));
  return 0;
}

static int
take_data (struct walk *w, uint64_t at, uint64_t len)
{
  for (; w->step > 0 && w->next < w->data + len; w->next += w->step)
    if (add_mark (w, round_down (at + (w->next - w->data), BLOCK)) == -1)
      return -1;
  w->data += len;
  return 0;
}

static int
walk_data (const struct copy_end *end, struct walk *w)
{
  const uint64_t size = min64 (end->size, w->size);
  struct storage_holes known;
  struct extent x;

  storage_holes_begin (&known, false);
  for (uint64_t at = 0; at < size; at += x.len) {
    x.len = size - at;
    if (end->ops->extent (end, at, &x, &known) == -1)
      return -1;
    x.len = min64 (x.len, size - at);
    if (x.type == EXTENT_DATA && take_data (w, at, x.len) == -1)
      return -1;
  }
  return 0;
}

/* The data is looked at twice, to know how much it is. */
static int
mark (const struct copy_end *end, struct walk *w)
{
  w->data = w->step = 0;
  if (walk_data (end, w) == -1)
    return -1;
  w->step = round_up (div_up (w->data, MARKS), BLOCK);
  w->data = w->next = 0;
  return w->step == 0 ? 0 : walk_data (end, w);
}

int
ontomarks_make (const struct copy_end *all, const struct copy_end *changes,
                const struct copy_end *target, uint64_t size, json_t **marks)
{
  struct walk w = { .target = target, .size = size, .marks = json_array () };

  if (mark (all, &w) == -1 || (changes && mark (changes, &w) == -1)) {
    json_decref (w.marks);
    return -1;
  }
  *marks = w.marks;
  if (w.marks)
    return 0;
  return report_refusal (ENOMEM, "no memory for the manifest");
}

/* --- checking --- */

/* Does END show something other than TYPE in the block at AT?  -1: reported. */
static int
has_other (const struct copy_end *end, uint64_t at, enum extent_type type)
{
  const uint64_t to = min64 (at + BLOCK, end->size);
  struct storage_holes known;
  struct extent x;

  for (; at < to; at += x.len) {
    x.len = to - at;
    storage_holes_begin (&known, true);
    if (end->ops->extent (end, at, &x, &known) == -1)
      return -1;
    if (x.type != type)
      return 1;
  }
  return 0;
}

/* Was the mark perhaps replaced by the backup that was cut off?  The same. */
static int
may_differ (const struct ontomarks_cut *cut, uint64_t at)
{
  const int r = cut ? has_other (cut->changes, at, EXTENT_HOLE) : 0;

  return cut && r == 0 ? has_other (cut->all, at, EXTENT_DATA) : r;
}

int
ontomarks_check (const json_t *marks, const struct copy_end *target, const char *path,
                 const struct ontomarks_cut *cut)
{
  const json_t *m;
  size_t i;

  json_array_foreach (marks, i, m) {
    const uint64_t at = json_integer_value (json_object_get (m, "offset"));
    const bool there = range_within (at, BLOCK, target->size);
    struct hash h = { "" };
    const int skipped = may_differ (cut, at);

    if (skipped == -1 || (!skipped && there && hash_block (target, at, &h) == -1))
      return -1;
    if (skipped || strcmp (h.text, jsontext_text (m, "hash")) == 0)
      continue;
    return report_refusal (EINVAL, "%s: at offset %" PRIu64 " is not what the last "
                           "backup has left there: this is another target, or it was "
                           "written to (--full replaces all of it)", path, at);
  }
  return 0;
}
