/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Making, applying and deleting snapshots, and resizing, happen completely or not at all.
 *
 * A random image gets a series of random edits.  During each, the power is cut at every
 * operation, and each operation fails once.  What is then on the disk must be in order,
 * without leaks (unless the end of the last cluster had to be zeroed), and all of it,
 * the disk and every snapshot, is as before or as after.  After the edit it is as
 * after, and qemu-img agrees; now and then it is qemu-img that does the edit.
 *
 * Environment: SEED replays; ITERATIONS: how many images (default: as many as can be
 * had in SECONDS, 5); FIRST: begin with this one.
 */

#include <config.h>

#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <unistd.h>

#include "bytes.h"
#include "edit.h"
#include "images.h"
#include "simdisk.h"
#include "survivor.h"
#include "trials.h"

#define IMAGE "top.qcow2"

#define MAX_SNAPSHOTS 6
#define EDITS 5

/* A disk as it is to be, and its snapshots in the order of the table. */
struct state {
  struct blob active;
  unsigned n;
  struct { char name[16]; struct blob contents; } snapshots[MAX_SNAPSHOTS];
};

struct trial {
  struct image_spec spec;
  struct blob below;
  struct state before, after;
  bool tail;                    /* this edit may write data first, which allocates
                                   ahead */
  struct disk_options options;
  struct edit_options edit_options;
  struct edit edit;
  char name[16];                /* of the snapshot */
  unsigned next_name;
  struct blob image;            /* the file, before the edit */
  struct simdisk *sim;
  struct hostfile_hooks hooks;
  struct rng rng;               /* within the watch: under the simdisk's lock */
};

static unsigned nr_cuts, nr_edits, nr_faults, nr_old, nr_new;

/* --- states --- */

static struct blob
blob_copy (const struct blob *b, uint64_t len)
{
  struct blob c = { .data = calloc (1, len + 1), .len = len };

  CHECK (c.data != NULL);
  memcpy (c.data, b->data, min64 (b->len, len));
  return c;
}

static void
state_free (struct state *s)
{
  unsigned i;

  blob_free (&s->active);
  for (i = 0; i < s->n; i++)
    blob_free (&s->snapshots[i].contents);
  memset (s, 0, sizeof *s);
}

static struct state
state_copy (const struct state *s)
{
  struct state c = { .active = blob_copy (&s->active, s->active.len), .n = s->n };
  unsigned i;

  for (i = 0; i < s->n; i++) {
    memcpy (c.snapshots[i].name, s->snapshots[i].name, 16);
    c.snapshots[i].contents = blob_copy (&s->snapshots[i].contents,
                                         s->snapshots[i].contents.len);
  }
  return c;
}

static bool
holds (struct trial *t, const struct blob *image, const struct blob *expected)
{
  return survivor_shows (image, t->spec.backing ? &t->below : NULL, expected);
}

/* The image with a snapshot's L1 table and size in its header. */
static bool
snapshot_is (struct trial *t, const struct blob *image, uint64_t at,
             const char *name, const struct blob *expected)
{
  const uint64_t id = blob_get (image, at + 12, 2), len = blob_get (image, at + 14, 2);
  const uint64_t extra = blob_get (image, at + 36, 4);
  struct blob b;
  bool ok;

  if (len != strlen (name) || extra < 16 ||
      memcmp (image->data + at + 40 + extra + id, name, len) != 0)
    return false;
  b = blob_copy (image, image->len);
  blob_put (&b, 24, blob_get (image, at + 48, 8), 8);
  blob_put (&b, 36, blob_get (image, at + 8, 4), 4);
  blob_put (&b, 40, blob_get (image, at, 8), 8);
  ok = holds (t, &b, expected);
  blob_free (&b);
  return ok;
}

static bool
state_is (struct trial *t, const struct blob *image, const struct state *s)
{
  uint64_t at = blob_get (image, 64, 8);
  unsigned i;

  if (blob_get (image, 60, 4) != s->n || !holds (t, image, &s->active))
    return false;
  for (i = 0; i < s->n; i++) {
    if (!snapshot_is (t, image, at, s->snapshots[i].name,
                      &s->snapshots[i].contents))
      return false;
    at += (40 + blob_get (image, at + 12, 2) + blob_get (image, at + 14, 2) +
           blob_get (image, at + 36, 4) + 7) / 8 * 8;
  }
  return true;
}

/* --- judging --- */

static void
judge (struct trial *t, const struct blob *b, const char *when)
{
  nr_cuts++;
  survivor_check (b, t->tail, when);
  if (state_is (t, b, &t->before))
    nr_old++;
  else if (state_is (t, b, &t->after))
    nr_new++;
  else
    survivor_fail (b, "%s: neither as before nor as after", when);
}

static void
watch (void *opaque, enum hostfile_op op)
{
  struct trial *t = opaque;
  enum power_cut kind;

  (void) op;
  for (kind = 0; kind < CUT_KINDS; kind++)
    judge (t, simdisk_cut (t->sim, &t->rng, kind), "power cut");
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

/* A resize opens the file several times, and the host says how long it is. */
static int
before_operation (void *opaque, const char *path, enum hostfile_op op,
                  const struct iovec *iov, int niov, uint64_t offset,
                  uint64_t count, bool dsync)
{
  struct trial *t = opaque;
  const struct hostfile_hooks *sim = simdisk_hooks (t->sim);
  const int r = sim->before (sim->opaque, path, op, iov, niov, offset, count,
                             dsync);
  const int err = errno;

  if (strcmp (path, t->options.path) == 0)
    CHECK (truncate (path, simdisk_size (t->sim)) == 0);
  errno = err;
  return r;
}

static void
begin (struct trial *t, uint64_t number)
{
  blob_save (IMAGE, &t->image);
  t->sim = simdisk_new (t->options.path, number);
  t->hooks = (struct hostfile_hooks) { before_operation, t };
  t->options.hooks = &t->hooks;
}

/* Returns how many operations it took that can fail. */
static uint64_t
cut_everywhere (struct trial *t, struct blob *result)
{
  const unsigned ops = 1 << HOSTFILE_OP_WRITE | 1 << HOSTFILE_OP_SYNC |
    1 << HOSTFILE_OP_TRUNCATE;
  enum power_cut kind;
  uint64_t n;

  begin (t, rng_next (&t->rng));
  simdisk_watch (t->sim, watch, t);
  if (edit_image (&t->options, &t->edit_options, &t->edit, 1) == -1)
    FAIL ("the edit failed");
  n = simdisk_operations (t->sim, ops);
  simdisk_watch (t->sim, NULL, NULL);
  for (kind = 0; kind < CUT_KINDS; kind++) {
    const struct blob *b = simdisk_cut (t->sim, &t->rng, kind);

    survivor_check (b, false, "after the edit");
    if (!state_is (t, b, &t->after))
      survivor_fail (b, "after the edit: not as it should be");
  }
  *result = blob_copy (simdisk_cut (t->sim, &t->rng, CUT_ALL),
                       simdisk_size (t->sim));
  simdisk_free (t->sim);
  return n;
}

/* The operation after the NTHth fails. */
static void
fail_once (struct trial *t, uint64_t nth)
{
  const struct fault fault = {
    .ops = 1 << HOSTFILE_OP_WRITE | 1 << HOSTFILE_OP_SYNC |
      1 << HOSTFILE_OP_TRUNCATE,
    .after = nth, .times = rng_below (&t->rng, 2) ? 1 : 1000000,
    .err = rng_below (&t->rng, 2) ? EIO : ENOSPC,
    .partial = rng_below (&t->rng, 2),
  };
  int i;

  begin (t, nth);
  simdisk_fault (t->sim, &fault);
  quiet_errors = true;
  edit_image (&t->options, &t->edit_options, &t->edit, 1);
  quiet_errors = false;
  CHECK (simdisk_failures (t->sim) > 0);
  for (i = 0; i < 4; i++)
    judge (t, simdisk_cut (t->sim, &t->rng, rng_below (&t->rng, CUT_KINDS)),
           "an operation failed");
  judge (t, simdisk_cut (t->sim, &t->rng, CUT_ALL), "an operation failed");
  simdisk_free (t->sim);
  nr_faults++;
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
  if (kind == 1 || kind == 2)
    strcpy (t->name, a->snapshots[k].name);
  switch (kind) {
  case 0:
    t->edit.kind = EDIT_SNAPSHOT_CREATE;
    snprintf (t->name, sizeof t->name, "s%u", t->next_name++);
    strcpy (a->snapshots[a->n].name, t->name);
    a->snapshots[a->n++].contents = blob_copy (&a->active, a->active.len);
    break;
  case 1:
    t->edit.kind = EDIT_SNAPSHOT_APPLY;
    blob_free (&a->active);
    a->active = blob_copy (&a->snapshots[k].contents,
                           a->snapshots[k].contents.len);
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

    t->edit.kind = EDIT_RESIZE;
    t->edit.size = 512 * (1 + rng_below (rng, 1500));
    if (t->edit.size > old.len)
      t->edit_options.preallocation = rng_below (rng, 8) % 4;
    t->tail = min64 (old.len, t->edit.size) % t->spec.cluster_size != 0;
    a->active = blob_copy (&old, t->edit.size);
    blob_free (&old);
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
  command_add (&c, "qemu-img");
  command_add (&c, "snapshot");
  command_add (&c, "%s", flags[t->edit.kind]);
  command_add (&c, "%s", t->name);
  command_add (&c, "%s", IMAGE);
  command_must (&c);
  return true;
}

static void
one_edit (struct trial *t, struct rng *rng)
{
  struct blob result;
  uint64_t i, n;

  t->after = state_copy (&t->before);
  choose (t, rng);
  if (rng_below (rng, 4) > 0 || !let_qemu_do_it (t)) {
    blob_load (IMAGE, &t->image);
    n = cut_everywhere (t, &result);
    for (i = 0; i < n; i += 1 + n / 12)
      fail_once (t, i);
    fail_once (t, n - 1);
    blob_save (IMAGE, &result);
    blob_free (&result);
    blob_free (&t->image);
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
  image_contents (IMAGE, NULL, &t->before.active);
  CHECK (t->before.active.len == spec->size);
  printf ("%u: %s: ", trials_number, themes[theme]);
  image_print (spec);
  puts ("");
  fflush (stdout);
}

static void
one_image (struct rng *rng)
{
  struct trial t = { .next_name = 0 };
  int i;

  make_image (&t, rng);
  rng_init (&t.rng, rng_next (rng), 500);
  t.options.path = images_path (IMAGE);
  t.options.l2_cache = 32 << 20;
  t.options.l2_slice = 512;
  t.options.backing = BACKING_FOLLOW;
  t.options.discard = rng_below (rng, 4) > 0;
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
  const unsigned done = trials_run ("test-edit-crash", 5, 5, one_image);

  printf ("%u images, %u edits, %u power cuts (%u old, %u new), %u failures\n",
          done, nr_edits, nr_cuts, nr_old, nr_new, nr_faults);
  return 0;
}
