/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Does creating, applying and deleting snapshots, and resizing, happen completely or not
 * at all?
 *
 * A random image gets a series of random edits.  During each, the power is cut at every
 * operation, and each operation fails once, and some allocations.  The image that is
 * left has no faults and no leaks (unless the end of the last cluster had to be zeroed),
 * and the disk, every snapshot and every persistent bitmap are either all in the old or
 * all in the new state.  After the edit they are in the new state, and qemu-img agrees;
 * now and then qemu-img makes the edit.  Some headers have a long unknown extension,
 * which stays, while that of bitmaps lies across two sectors or behind the first.
 *
 * Environment: SEED repeats a run; ITERATIONS: how many images (default: as many as are
 * possible in SECONDS, 3); FIRST: start with this one.
 */

#include <config.h>

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "util/bytes.h"
#include "lib/allocations.h"
#include "lib/changes.h"
#include "lib/images.h"
#include "lib/powercut.h"
#include "lib/survivor.h"
#include "lib/trials.h"

#define IMAGE "top.qcow2"

#define MAX_SNAPSHOTS 6
#define MAX_BITMAPS 3
#define STILL 1         /* this one records nothing */
#define EDITS 5

/* A persistent bitmap: a byte for each bit. */
struct bits {
  unsigned granularity_bits;
  struct blob set;
};

/* A disk as it is to be, its bitmaps in the order of the directory, and its snapshots in
 * that of the table. */
struct state {
  struct blob active;
  unsigned nr_bitmaps;
  struct bits bitmaps[MAX_BITMAPS];
  unsigned n;
  struct { char name[16]; struct blob contents; } snapshots[MAX_SNAPSHOTS];
};

struct trial {
  struct image_spec spec;
  struct blob below;
  struct state before, after;
  unsigned longest;             /* sectors to resize to, if there are bitmaps */
  uint64_t pushed;              /* length of an unknown header extension, or 0 */
  bool tail;                    /* this edit may write data first, which allocates
                                   ahead */
  struct disk_options options;
  struct edit_options edit_options;
  struct edit edit;
  char name[16];                /* of the snapshot */
  unsigned next_name;
  struct blob result;           /* the file after the edit */
  struct power_cut_trial power;
};

static unsigned nr_edits;

/* --- states --- */

static void
state_free (struct state *s)
{
  unsigned i;

  blob_free (&s->active);
  for (i = 0; i < s->nr_bitmaps; i++)
    blob_free (&s->bitmaps[i].set);
  for (i = 0; i < s->n; i++)
    blob_free (&s->snapshots[i].contents);
  memset (s, 0, sizeof *s);
}

static struct state
state_copy (const struct state *s)
{
  struct state c = { .active = blob_copy (&s->active), .n = s->n };
  unsigned i;

  for (i = 0; i < s->n; i++) {
    memcpy (c.snapshots[i].name, s->snapshots[i].name, 16);
    c.snapshots[i].contents = blob_copy (&s->snapshots[i].contents);
  }
  c.nr_bitmaps = s->nr_bitmaps;
  for (i = 0; i < s->nr_bitmaps; i++)
    c.bitmaps[i] = (struct bits) {
      s->bitmaps[i].granularity_bits,
      blob_copy (&s->bitmaps[i].set),
    };
  return c;
}

/* --- bitmaps --- */

/* Bit I of a bitmap with that table. */
static bool
bit_of (const struct blob *image, uint64_t cluster_size, uint64_t table, uint64_t i)
{
  const uint64_t entry = blob_get (image, table + i / 8 / cluster_size * 8, 8);

  return entry == 1 ||
    (entry != 0 && blob_get (image, entry + i / 8 % cluster_size, 1) >> i % 8 & 1);
}

/* The bitmap whose directory entry is at AT.  False: it has not the table that a disk of
 * SIZE needs.  (What its bits say behind the end of the disk is nothing: QEMU sets them
 * where all are set.  When the disk grows they must not show.) */
static bool
bitmap_load (const struct blob *image, uint64_t at, uint64_t size, struct bits *b)
{
  const uint64_t cs = UINT64_C (1) << blob_get (image, 20, 4);
  const uint64_t table = blob_get (image, at, 8), n = blob_get (image, at + 8, 4);
  uint64_t i, bits;

  b->granularity_bits = blob_get (image, at + 17, 1);
  bits = div_up (size, UINT64_C (1) << b->granularity_bits);
  b->set = (struct blob) { calloc (1, bits + 1), bits };
  CHECK (b->set.data != NULL);
  if (blob_get (image, at + 12, 4) & 1 || n != div_up (bits, cs * 8))
    return false;
  for (i = 0; i < bits; i++)
    b->set.data[i] = bit_of (image, cs, table, i);
  return true;
}

/* All of them, into S, which has none; false as with bitmap_load. */
static bool
bitmaps_load (const struct blob *image, struct state *s)
{
  const uint64_t size = blob_get (image, 24, 8);
  uint64_t at = blob_get (image, 100, 4), n;
  bool ok = true;

  if (blob_get (image, 4, 4) < 3 || !(blob_get (image, 88, 8) & 1))
    return true;
  if (at > 104 && blob_get (image, 104, 1) != 0)        /* compression type */
    return false;
  while (blob_get (image, at, 4) != 0x23852875) {
    if (blob_get (image, at, 4) == 0)
      return false;
    at += 8 + (blob_get (image, at + 4, 4) + 7) / 8 * 8;
  }
  n = blob_get (image, at + 8, 4);
  if (n > MAX_BITMAPS)
    return false;
  at = blob_get (image, at + 24, 8);
  while (s->nr_bitmaps < n) {
    ok = bitmap_load (image, at, size, &s->bitmaps[s->nr_bitmaps++]) && ok;
    at += (24 + blob_get (image, at + 18, 2) + blob_get (image, at + 20, 4) + 7) / 8 * 8;
  }
  return ok;
}

static bool
bitmaps_are (const struct blob *image, const struct state *s)
{
  struct state is = { .n = 0 };
  bool ok = bitmaps_load (image, &is) && is.nr_bitmaps == s->nr_bitmaps;
  unsigned i;

  for (i = 0; ok && i < s->nr_bitmaps; i++)
    ok = is.bitmaps[i].granularity_bits == s->bitmaps[i].granularity_bits &&
      blob_same (&is.bitmaps[i].set, &s->bitmaps[i].set);
  state_free (&is);
  return ok;
}

/* QEMU has written to the image, which it would not if it had not understood them: it may
 * have set bits. */
static void
bitmaps_reload (struct state *s)
{
  struct state is = { .n = 0 };
  struct blob image;
  unsigned i;

  blob_load (IMAGE, &image);
  CHECK (bitmaps_load (&image, &is));
  CHECK (is.nr_bitmaps == s->nr_bitmaps);
  for (i = 0; i < s->nr_bitmaps; i++) {
    const struct blob *was = &s->bitmaps[i].set, *set = &is.bitmaps[i].set;

    CHECK (was->len == set->len);
    for (uint64_t j = 0; j < was->len; j++)
      CHECK (set->data[j] >= was->data[j]);
    blob_free (&s->bitmaps[i].set);
    s->bitmaps[i] = is.bitmaps[i];
  }
  blob_free (&image);
}

/* Makes some: of those that have no bits yet, some say "all ones" without a cluster. */
static void
bitmaps_make (struct trial *t, struct rng *rng, unsigned n)
{
  static const char *const names[MAX_BITMAPS] = { "b0", "still", "b2" };
  struct blob image;
  uint64_t at, next;
  unsigned i;

  for (i = 0; i < n; i++) {
    image_bitmap (IMAGE, names[i], 9 + rng_below (rng, 5));
    image_fill (IMAGE, &t->spec, rng, rng_below (rng, 4));
    if (i == STILL)
      image_bitmap_disable (IMAGE, names[i]);
  }
  if (n == 0)
    return;
  blob_load (IMAGE, &image);
  for (at = blob_get (&image, 100, 4); blob_get (&image, at, 4) != 0x23852875; at = next)
    next = at + 8 + (blob_get (&image, at + 4, 4) + 7) / 8 * 8;
  at = blob_get (&image, at + 24, 8);
  for (i = 0; i < n; i++) {
    if (blob_get (&image, blob_get (&image, at, 8), 8) == 0)
      blob_put (&image, blob_get (&image, at, 8), 1, 8);
    at += (24 + blob_get (&image, at + 18, 2) + 7) / 8 * 8;
  }
  /* As QEMU before 5.1 made it, without a compression type. */
  if (rng_below (rng, 2)) {
    const uint64_t name = blob_get (&image, 8, 8);

    memmove (image.data + 104, image.data + 112,
             (name ? name : min64 (t->spec.cluster_size, 1024)) - 112);
    blob_put (&image, 100, 104, 4);
  }
  blob_save (IMAGE, &image);
  CHECK (bitmaps_load (&image, &t->before) && t->before.nr_bitmaps == n);
  blob_free (&image);
}

static bool
holds (struct trial *t, const struct blob *image, const struct blob *expected)
{
  return survivor_shows (image, t->spec.backing ? &t->below : NULL, expected);
}

static bool
shows (void *opaque, const struct blob *image, bool after)
{
  struct trial *t = opaque;
  const struct state *s = after ? &t->after : &t->before;
  uint64_t at = blob_get (image, 64, 8);
  unsigned i;

  if (blob_get (image, 60, 4) != s->n || blob_get (image, 24, 8) != s->active.len ||
      !bitmaps_are (image, s) || !holds (t, image, &s->active))
    return false;
  for (i = 0; i < s->n; i++)
    if (!survivor_shows_snapshot (image, &at, t->spec.backing ? &t->below : NULL,
                                  s->snapshots[i].name, &s->snapshots[i].contents))
      return false;
  return true;
}

/* --- judging --- */

static void
judge (void *opaque, const struct remains *left)
{
  const struct trial *t = opaque;

  survivor_check (left->file,
                  t->tail && (left->fault || left->shortage || !left->done), left->when);
  if (t->pushed != 0 && !blob_has_pushed (left->file, t->pushed))
    survivor_fail (left->file, "%s: an unknown extension of the header has changed",
                   left->when);
}

static void
ask_qemu (struct trial *t)
{
  const struct state *s = &t->after;
  unsigned i;

  if (image_check (IMAGE) != 0)
    FAIL ("qemu-img check does not like it");
  for (i = 0; i <= s->n; i++) {
    const struct blob *expected = i ? &s->snapshots[i - 1].contents : &s->active;

    /* qemu-img shows snapshots at the size of the disk. */
    if (i > 0 && expected->len != s->active.len)
      continue;
    if (!image_shows (IMAGE, i ? s->snapshots[i - 1].name : NULL, expected))
      FAIL ("qemu-img reads something else: %s",
            i ? s->snapshots[i - 1].name : "the disk");
  }
}

/* --- edits --- */

static int
edit (void *opaque, const struct storage_hooks *hooks)
{
  struct trial *t = opaque;

  t->options.hooks = hooks;
  return change_edit (&t->options, &t->edit_options, &t->edit);
}

static void
ended (void *opaque, bool fault)
{
  struct trial *t = opaque;

  if (!fault)
    t->result = blob_copy (simdisk_cut (t->power.sim, &t->power.rng, CUT_ALL));
}

/* Where the data ends that a resize from LEN bytes adds. */
static uint64_t
added_data (const struct trial *t, uint64_t len)
{
  return t->edit.size <= len ? 0
    : t->edit_options.preallocation != PREALLOCATION_OFF ? t->edit.size
    : min64 (t->edit.size, div_up (len, t->spec.cluster_size) * t->spec.cluster_size);
}

/* Chooses t->edit and makes t->after. */
static void
choose (struct trial *t, struct rng *rng)
{
  struct state *a = &t->after;
  const unsigned k = rng_below (rng, a->n ? a->n : 1);
  unsigned kind = rng_below (rng, 4), i;

  t->edit = (struct edit) { .name = t->name };
  t->edit_options = (struct edit_options) { .shrink = true };
  t->tail = false;
  if (a->n == 0 && kind != 3)
    kind = 0;
  if (kind == 0 && a->n == MAX_SNAPSHOTS)
    kind = 2;
  if (kind == 3 && t->spec.version == 2 && a->n > 0)
    kind = 1;
  if (kind == 1 && a->nr_bitmaps > 0)   /* refused */
    kind = 3;
  if (kind == 1 || kind == 2)
    strcpy (t->name, a->snapshots[k].name);
  switch (kind) {
  case 0:
    t->edit.kind = EDIT_SNAPSHOT_CREATE;
    snprintf (t->name, sizeof t->name, "s%u", t->next_name++);
    strcpy (a->snapshots[a->n].name, t->name);
    a->snapshots[a->n++].contents = blob_copy (&a->active);
    break;
  case 1:
    t->edit.kind = EDIT_SNAPSHOT_APPLY;
    blob_free (&a->active);
    a->active = blob_copy (&a->snapshots[k].contents);
    break;
  case 2:
    t->edit.kind = EDIT_SNAPSHOT_DELETE;
    blob_free (&a->snapshots[k].contents);
    for (i = k; i + 1 < a->n; i++)
      a->snapshots[i] = a->snapshots[i + 1];
    a->n--;
    break;
  case 3: {
    struct blob old = a->active;
    const uint64_t len = old.len;

    t->edit.kind = EDIT_RESIZE;
    t->edit.size = 512 * (1 + rng_below (rng, a->nr_bitmaps > 0 ? t->longest : 1500));
    if (t->edit.size > len)
      t->edit_options.preallocation = rng_below (rng, 8) % 4;
    t->tail = min64 (len, t->edit.size) % t->spec.cluster_size != 0;
    a->active = blob_resized (&old, t->edit.size);
    blob_free (&old);
    for (i = 0; i < a->nr_bitmaps; i++) {
      struct bits *b = &a->bitmaps[i];

      old = b->set;
      b->set = blob_resized (&old, div_up (t->edit.size,
                                           UINT64_C (1) << b->granularity_bits));
      blob_free (&old);
      if (i != STILL)
        for (uint64_t at = len & ~511; at < added_data (t, len); at += 512)
          b->set.data[at >> b->granularity_bits] = 1;
    }
    break;
  }
  }
  printf ("  %s %s %" PRIu64 "\n", &"create\0apply\0\0delete\0resize\0"[kind * 7],
          kind == 3 ? "" : t->name, t->edit.size);
}

static bool
let_qemu_do_it (struct trial *t)
{
  static const char *const flags[] = { "-c", "-a", "-d" };
  struct command c = { .n = 0 };

  if (t->edit.kind == EDIT_RESIZE)
    return false;
  command_words (&c, "qemu-img snapshot");
  command_add (&c, "%s", flags[t->edit.kind]);
  command_add (&c, "%s", t->name);
  command_add (&c, "%s", IMAGE);
  command_must (&c);
  return true;
}

static void
one_edit (struct trial *t, struct rng *rng)
{
  t->after = state_copy (&t->before);
  choose (t, rng);
  if (rng_below (rng, 4) > 0 || !let_qemu_do_it (t)) {
    power_cut_everywhere (&t->power);
    power_cut_fail_each (&t->power);
    blob_save (IMAGE, &t->result);
    blob_free (&t->result);
    nr_edits++;
  }
  ask_qemu (t);
  state_free (&t->before);
  t->before = t->after;
  memset (&t->after, 0, sizeof t->after);
}

static void
write_a_little (struct trial *t, struct rng *rng)
{
  t->spec.size = t->before.active.len;
  image_fill (IMAGE, &t->spec, rng, rng_below (rng, 6));
  blob_free (&t->before.active);
  image_contents (IMAGE, NULL, &t->before.active);
  bitmaps_reload (&t->before);
}

static void
make_image (struct trial *t, struct rng *rng)
{
  static const unsigned bits[] = { 9, 9, 10, 12, 14, 16 };
  static const char *const themes[] = {
    "plain", "compressed", "backing", "version 2", "preallocated",
  };
  const unsigned theme = trials_number % 5;
  struct image_spec *spec = &t->spec;

  spec->version = theme == 3 ? 2 : 3;
  spec->cluster_size = UINT64_C (1) << bits[rng_below (rng, 6)];
  spec->extended = spec->version == 3 && spec->cluster_size >= 16384 &&
    rng_below (rng, 2);
  spec->refcount_bits = theme == 3 ? 16 : 1 << (3 + rng_below (rng, 4));
  spec->compressed = theme == 1;
  spec->size = 512 * (64 + rng_below (rng, 1000));
  if (spec->compressed)         /* they share host clusters: large counts */
    spec->refcount_bits = 16;
  if (theme == 2)
    image_over_raw (spec, rng, 512 * (1 + rng_below (rng, spec->size * 3 / 2 / 512)),
                    4, &t->below);
  if (theme == 4)
    spec->preallocation = "metadata";
  image_create (IMAGE, spec);
  image_fill (IMAGE, spec, rng, 1 + rng_below (rng, 8));
  spec->compressed = false;     /* done */
  /* A cluster of 512 bytes has the bits of 2 MiB at least. */
  t->longest = spec->cluster_size == 512 ? 9000 : 1500;
  if (spec->version == 3 && rng_below (rng, 2))
    bitmaps_make (t, rng, 1 + rng_below (rng, MAX_BITMAPS));
  if (rng_below (rng, 2))
    t->pushed = image_push_extensions (IMAGE, rng);
  image_contents (IMAGE, NULL, &t->before.active);
  CHECK (t->before.active.len == spec->size);
  printf ("%u: %s: ", trials_number, themes[theme]);
  image_print (spec);
  printf (", %u bitmaps, extension of %" PRIu64 " bytes\n", t->before.nr_bitmaps,
          t->pushed);
  fflush (stdout);
}

static void
one_image (struct rng *rng)
{
  struct trial t = { .next_name = 0 };
  int i;

  make_image (&t, rng);
  t.options.path = images_path (IMAGE);
  t.options.l2_cache = 32 << 20;
  t.options.l2_slice = 512;
  t.options.backing = BACKING_FOLLOW;
  t.options.discard = rng_below (rng, 4) > 0;
  t.power = (struct power_cut_trial) {
    .path = t.options.path, .opaque = &t, .change = edit, .judge = judge,
    .shows = shows, .ended = ended,
    .can_fail = 1 << STORAGE_OP_WRITE | 1 << STORAGE_OP_SYNC |
      1 << STORAGE_OP_TRUNCATE,
  };
  rng_init (&t.power.rng, rng_next (rng), 500);
  for (i = 0; i < EDITS; i++) {
    one_edit (&t, rng);
    write_a_little (&t, rng);
  }
  free ((char *) t.options.path);
  blob_free (&t.below);
  state_free (&t.before);
}

int
main (void)
{
  const unsigned done = trials_run ("edits", 3, 5, one_image);

  printf ("%u images, %u edits, %u power cuts (%u old, %u new), %u failures, "
          "%u times no memory\n", done, nr_edits, power_cuts.cuts, power_cuts.old,
          power_cuts.new, power_cuts.faults, power_cuts.shortages);
  return 0;
}
