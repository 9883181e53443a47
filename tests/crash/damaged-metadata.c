/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What does a change do to an image with damaged metadata?
 *
 * In the image of a change (lib/eachchange), one field after the other gets another
 * value: a refcount, an entry of a table of any kind, a word of a snapshot, of a bitmap,
 * or of a header.  If the change is refused, errno and a message say why, no descriptor
 * is left open, and one that is made all at once has written only where the refcounts say
 * that nothing is.  If it is made, an image that was without faults, as far as
 * lib/checker knows, has none.
 *
 * Environment: SEED repeats a run; ITERATIONS: how many changes (default: as many as are
 * possible in SECONDS, 3); FIRST: start with this one; FAULTS: how many fields for each
 * (if it is set, each change is made).
 */

#include <config.h>

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "util/bytes.h"
#include "format/format.h"
#include "format/luks.h"
#include "lib/checker.h"
#include "lib/eachchange.h"
#include "lib/reach.h"
#include "lib/trials.h"

#define IMAGE EACHCHANGE_IMAGE
#define SOME 100
#define POINTER UINT64_C (0x00fffffffffffe00)

static unsigned nr_refused, nr_made;

/* --- fields --- */

struct field {
  uint64_t at;
  unsigned bytes;
};

struct fields {
  struct field list[20000];
  size_t n;
};

static void
add (struct fields *f, uint64_t at, unsigned bytes)
{
  CHECK (f->n < sizeof f->list / sizeof f->list[0]);
  f->list[f->n++] = (struct field) { at, bytes };
}

/* Those of N entries that are not 0. */
static void
add_entries (struct fields *f, const struct blob *b, uint64_t at, uint64_t n,
             unsigned bytes)
{
  for (; n > 0; n--, at += bytes)
    if (blob_get (b, at, bytes) != 0)
      add (f, at, bytes);
}

static uint64_t
cluster_size (const struct blob *b)
{
  return UINT64_C (1) << blob_get (b, 20, 4);
}

static void
find_counts (struct fields *f, const struct blob *b)
{
  const uint64_t table = blob_get (b, 48, 8), cs = cluster_size (b);
  const unsigned order = blob_get (b, 4, 4) == 2 ? 4 : blob_get (b, 96, 4);

  for (uint64_t i = 0; i < blob_get (b, 56, 4) * cs / 8; i++)
    if (blob_get (b, table + i * 8, 8) != 0)
      add_entries (f, b, blob_get (b, table + i * 8, 8), cs >> order << 3,
                   1u << order >> 3);
}

static void
find_blocks (struct fields *f, const struct blob *b)
{
  add_entries (f, b, blob_get (b, 48, 8), blob_get (b, 56, 4) * cluster_size (b) / 8, 8);
}

static void
find_l1 (struct fields *f, const struct blob *b)
{
  add_entries (f, b, blob_get (b, 40, 8), blob_get (b, 36, 4), 8);
}

static void
add_l2 (struct fields *f, const struct blob *b, uint64_t l1, uint64_t n)
{
  for (uint64_t i = 0; i < n; i++) {
    const uint64_t table = blob_get (b, l1 + i * 8, 8) & POINTER;

    if (table != 0)
      add_entries (f, b, table, cluster_size (b) / 8, 8);
  }
}

static void
find_l2 (struct fields *f, const struct blob *b)
{
  add_l2 (f, b, blob_get (b, 40, 8), blob_get (b, 36, 4));
}

/* There is one at most. */
static void
find_snapshot (struct fields *f, const struct blob *b)
{
  const uint64_t at = blob_get (b, 64, 8);

  if (blob_get (b, 60, 4) == 0)
    return;
  for (unsigned i = 0; i < 16; i++)
    add (f, at + i * 4, 4);
  add_entries (f, b, blob_get (b, at, 8), blob_get (b, at + 8, 4), 8);
}

static void
find_l2_of_snapshot (struct fields *f, const struct blob *b)
{
  const uint64_t at = blob_get (b, 64, 8);

  if (blob_get (b, 60, 4) != 0)
    add_l2 (f, b, blob_get (b, at, 8), blob_get (b, at + 8, 4));
}

/* The data of the extension of bitmaps, or 0. */
static uint64_t
find_extension (const struct blob *b)
{
  uint64_t at = blob_get (b, 4, 4) == 2 ? 72 : blob_get (b, 100, 4);

  while (blob_get (b, at, 4) != QCOW2_EXT_BITMAPS) {
    if (blob_get (b, at, 4) == 0)
      return 0;
    at += 8 + round_up (blob_get (b, at + 4, 4), 8);
  }
  return at + 8;
}

static void
find_bitmaps (struct fields *f, const struct blob *b)
{
  const uint64_t e = find_extension (b);
  uint64_t at, table;

  if (e == 0)
    return;
  for (unsigned i = 0; i < 6; i++)
    add (f, e + i * 4, 4);
  at = blob_get (b, e + 16, 8);
  for (uint64_t n = blob_get (b, e, 4); n > 0; n--) {
    for (unsigned i = 0; i < 6; i++)
      add (f, at + i * 4, 4);
    table = blob_get (b, at, 8);
    for (uint64_t i = 0; i < blob_get (b, at + 8, 4); i++)
      add (f, table + i * 8, 8);
    at += round_up (24 + blob_get (b, at + 18, 2) + blob_get (b, at + 20, 4), 8);
  }
}

static void
find_header (struct fields *f, const struct blob *b)
{
  (void) b;
  for (unsigned at = 4; at < 112; at += 4)
    add (f, at, 4);
}

/* The first fields, and those of the first key slots. */
static void
find_luks (struct fields *f, const struct blob *b)
{
  uint64_t at = 0;

  if (blob_get (b, 32, 4) != QCOW2_CRYPT_LUKS)
    return;
  while (memcmp (b->data + at, LUKS_MAGIC, sizeof (LUKS_MAGIC) - 1) != 0)
    at += cluster_size (b);
  for (unsigned i = 0; i < 10; i++)
    add (f, at + i * 4, 4);
  for (unsigned i = 0; i < 2 * sizeof (struct luks_slot_header); i += 4)
    add (f, at + offsetof (struct luks_header, slots) + i, 4);
}

static void (*const finders[]) (struct fields *, const struct blob *) = {
  find_counts, find_counts, find_blocks, find_l1, find_l2, find_snapshot,
  find_l2_of_snapshot, find_bitmaps, find_luks, find_header,
};

/* --- damage --- */

static uint64_t
choose_value (const struct blob *b, uint64_t old, struct rng *rng)
{
  switch (rng_below (rng, 10)) {
  case 0: return old + 1;
  case 1: return old ^ UINT64_C (1) << rng_below (rng, 64);
  case 2: return old + cluster_size (b);
  case 3: return old + cluster_size (b) / 2;
  case 4: return (old & ~POINTER) | UINT64_C (1) << 40;
  case 5: return (old & ~POINTER) | blob_get (b, 40, 8);
  case 6: return (old & ~POINTER) | blob_get (b, 48, 8);
  case 7: return UINT64_MAX;
  default: return 0;
  }
}

static void
damage (struct blob *b, struct rng *rng)
{
  static struct fields fields;
  const struct field *f;
  uint64_t old, value;

  do {
    fields.n = 0;
    finders[rng_below (rng, sizeof finders / sizeof finders[0])] (&fields, b);
  } while (fields.n == 0);
  f = &fields.list[rng_below (rng, fields.n)];
  old = blob_get (b, f->at, f->bytes);
  value = choose_value (b, old, rng);
  blob_put (b, f->at, value, f->bytes);
  trials_about ("%u bytes at %" PRIu64 ": %" PRIx64 ", not %" PRIx64, f->bytes, f->at,
                value, old);
}

/* --- judging --- */

static unsigned long
corruptions (const struct blob *b)
{
  struct check_result r;

  checker_check (b, &r);
  return r.corruptions;
}

/* What the image says, whether it is true or not. */
static uint64_t
refcount (const struct blob *b, uint64_t cluster)
{
  const unsigned order = blob_get (b, 4, 4) == 2 ? 4 : blob_get (b, 96, 4);
  const uint64_t per_block = cluster_size (b) << 3 >> order, index = cluster / per_block;
  const uint64_t block = index >= blob_get (b, 56, 4) * cluster_size (b) / 8 ? 0
    : blob_get (b, blob_get (b, 48, 8) + index * 8, 8) & POINTER;
  const uint64_t bit = cluster % per_block << order;

  if (block == 0)
    return 0;
  return order >= 3 ? blob_get (b, block + bit / 8, 1u << order >> 3)
    : blob_get (b, block + bit / 8, 1) >> bit % 8 & ((1u << (1u << order)) - 1);
}

/* Are all clusters as before that have a refcount?  (If the header cannot say how large
 * they are: is everything as before?) */
static bool
is_kept (const struct blob *before, const struct blob *now)
{
  const uint64_t bits = blob_get (before, 20, 4);
  uint64_t cs;

  if (now->len != before->len)
    return false;
  if (bits < 9 || bits > 21)
    return memcmp (before->data, now->data, now->len) == 0;
  cs = cluster_size (before);
  for (uint64_t at = 0; at < now->len; at += cs) {
    const uint64_t n = min64 (cs, now->len - at);

    if (memcmp (before->data + at, now->data + at, n) != 0 &&
        refcount (before, at / cs) > 0)
      return false;
  }
  return true;
}

static void
judge (const struct each_change *c, const struct blob *before, int r, int err,
       unsigned long errors)
{
  struct blob now;

  if (r == -1 && (err == 0 || error_count () == errors))
    FAIL ("%s fails, and does not say why", c->name);
  blob_load (IMAGE, &now);
  if (r == -1 && !c->stops_anywhere && !c->repairs && !is_kept (before, &now))
    FAIL ("%s was refused (%s), and has changed the image", c->name, last_error ());
  if (r == 0 && !c->huge && corruptions (before) == 0 && corruptions (&now) > 0)
    FAIL ("%s has damaged the image", c->name);
  blob_free (&now);
}

static void
one_field (const struct each_change *c, const struct disk_options *options,
           const struct blob *image, struct rng *rng)
{
  const unsigned descriptors = reach_open_descriptors ();
  const unsigned long errors = error_count ();
  struct blob b = blob_copy (image);
  int r, err;

  damage (&b, rng);
  blob_save (IMAGE, &b);
  quiet_errors = true;          /* they are what we want */
  errno = 0;
  r = c->run (options);
  err = errno;
  quiet_errors = false;
  judge (c, &b, r, err, errors);
  if (reach_open_descriptors () != descriptors)
    FAIL ("%s leaves a file open", c->name);
  nr_refused += r == -1;
  nr_made += r == 0;
  blob_free (&b);
}

static void
one_change (struct rng *rng)
{
  const struct each_change *const c = each_change_now ();
  const char *asked = getenv ("FAULTS");
  const unsigned n = asked ? strtoul (asked, NULL, 10) : SOME;
  char *path = images_path (IMAGE);
  const struct disk_options options = each_change_options (path, &without_sync);
  struct blob image, second = { .len = 0 };

  printf ("%u: %s\n", trials_number, c->name);
  fflush (stdout);
  c->make ();
  blob_load (IMAGE, &image);
  if (c->second)
    blob_load (c->second, &second);
  for (unsigned i = 0; i < n; i++) {
    one_field (c, &options, &image, rng);
    if (c->second)
      blob_save (c->second, &second);
  }
  blob_free (&image);
  blob_free (&second);
  free (path);
}

int
main (void)
{
  const unsigned done = each_change_run ("damaged-metadata", one_change);

  printf ("%u changes of images: %u times refused, %u times made\n", done, nr_refused,
          nr_made);
  return 0;
}
