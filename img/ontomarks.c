/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Is a target that is written in place still the one of the last backup, and untouched?
 *
 * All of it is the disk, so there is no place for an id: /dev/sdb may be another disk
 * today.  But the manifest can have the hashes of some blocks, the marks: a few of all
 * data, which other disks do not have, and a few of what the last backup has written,
 * which older copies of this disk do not have.  The same of what a backup has copied that
 * was cut off.
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
#define MARKS 63                /* of all data, and as many of what is new; and the last
                                   block of each, which a target lacks that was cut off */

struct hash { char text[17]; };

static int
no_memory (void)
{
  return report_refusal (ENOMEM, "no memory for the manifest");
}

static int
hash_bytes (const unsigned char buf[BLOCK], struct hash *h)
{
  unsigned char digest[EVP_MAX_MD_SIZE] = { 0 };

  if (EVP_Digest (buf, BLOCK, digest, NULL, EVP_sha256 (), NULL) != 1)
    return report_refusal (EIO, "cannot make a checksum");
  for (unsigned i = 0; i < sizeof h->text / 2; i++)
    snprintf (h->text + 2 * i, 3, "%02x", digest[i]);
  return 0;
}

static int
hash_block (const struct copy_end *target, uint64_t at, struct hash *h)
{
  unsigned char buf[BLOCK];

  return target->ops->read (target, buf, sizeof buf, at) == -1 ? -1 : hash_bytes (buf, h);
}

/* --- making --- */

void
ontomarks_begin (struct ontomarks *m, const struct copy_end *all,
                 const struct copy_end *changes, const struct copy_end *target)
{
  *m = (struct ontomarks) {
    .target = target, .of[0] = { all, BLOCK, .last = UINT64_MAX, .list = json_array () },
    .of[1] = { changes, BLOCK, .last = UINT64_MAX, .list = json_array () },
  };
}

void
ontomarks_end (struct ontomarks *m)
{
  for (unsigned i = 0; i < 2; i++)
    json_decref (m->of[i].list);
}

/* The mark at this offset.  LIST, or NULL. */
static json_t *
append (json_t *list, uint64_t at)
{
  return jsontext_append (list, jsontext_object ({ "offset", jsontext_number (at) }));
}

/* They are a step apart; twice as far from now on. */
static void
thin_out (struct ontomarks_sample *s)
{
  for (size_t i = json_array_size (s->list); i-- > 0;)
    if (i % 2 == 1)
      json_array_remove (s->list, i);
  s->step *= 2;
}

static int
take_data (struct ontomarks_sample *s, uint64_t at, uint64_t len)
{
  for (uint64_t next = round_up (s->data, s->step); next < s->data + len; next += s->step) {
    s->list = append (s->list, round_down (at + (next - s->data), BLOCK));
    if (s->list == NULL)
      return no_memory ();
    if (json_array_size (s->list) > MARKS)
      thin_out (s);
  }
  s->data += len;
  s->last = round_down (at + len - 1, BLOCK);
  return 0;
}

static int
walk (struct ontomarks_sample *s, uint64_t at, uint64_t before)
{
  struct storage_holes known;
  struct extent x;

  storage_holes_begin (&known, false);
  for (before = min64 (before, s->end->size); at < before; at += x.len) {
    x.len = before - at;
    if (s->end->ops->extent (s->end, at, &x, &known) == -1)
      return -1;
    x.len = min64 (x.len, before - at);
    if (x.type == EXTENT_DATA && take_data (s, at, x.len) == -1)
      return -1;
  }
  return 0;
}

static int
hash_new (const struct ontomarks *m, const json_t *list)
{
  struct hash h;
  json_t *mark;
  size_t i;

  json_array_foreach (list, i, mark) {
    if (json_object_get (mark, "hash"))
      continue;
    if (hash_block (m->target, json_integer_value (json_object_get (mark, "offset")),
                    &h) == -1)
      return -1;
    if (json_object_set_new (mark, "hash", json_string (h.text)) == -1)
      return no_memory ();
  }
  return 0;
}

/* The sample, and the last block. */
static int
give (const struct ontomarks *m, const struct ontomarks_sample *s, json_t *marks)
{
  json_t *last = json_array ();
  int r = 0;

  if (s->last != UINT64_MAX)
    last = append (last, s->last);
  if (hash_new (m, s->list) == -1 || hash_new (m, last) == -1)
    r = -1;
  else if (last == NULL || json_array_extend (marks, s->list) == -1 ||
           json_array_extend (marks, last) == -1)
    r = no_memory ();
  json_decref (last);
  return r;
}

int
ontomarks_make (struct ontomarks *m, uint64_t before, json_t **marks)
{
  *marks = json_array ();
  before = round_down (before, BLOCK);
  for (unsigned i = 0; i < 2; i++)
    if ((m->of[i].end && walk (&m->of[i], m->before, before) == -1) ||
        give (m, &m->of[i], *marks) == -1)
      return -1;
  m->before = before;
  return 0;
}

bool
ontomarks_tell (const json_t *marks)
{
  static const unsigned char zeros[BLOCK];
  struct hash h = { "" };
  const json_t *m;
  size_t i;

  if (hash_bytes (zeros, &h) == 0)
    json_array_foreach (marks, i, m)
      if (strcmp (h.text, jsontext_text (m, "hash")) != 0)
        return true;
  return false;
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
ontomarks_check (const json_t *marks, const struct copy_end *target,
                 const struct ontomarks_cut *cut, uint64_t *other)
{
  const json_t *m;
  size_t i;

  *other = UINT64_MAX;
  json_array_foreach (marks, i, m) {
    const uint64_t at = json_integer_value (json_object_get (m, "offset"));
    const bool there = range_within (at, BLOCK, target->size);
    struct hash h = { "" };
    const int skipped = may_differ (cut, at);

    if (skipped == -1 || (!skipped && there && hash_block (target, at, &h) == -1))
      return -1;
    if (!skipped && strcmp (h.text, jsontext_text (m, "hash")) != 0) {
      *other = at;
      return 0;
    }
  }
  return 0;
}
