/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What is left of an encrypted image if a passphrase is being added, exchanged or erased,
 * and that is interrupted, at any moment?
 *
 * The power is cut at every operation, and each operation fails once, and some
 * allocations.  Each time some passphrase opens the image that is left, always those
 * that stay, and each key slot in use is opened by one.  Nothing outside the LUKS header
 * has changed.  After the change the image is opened by exactly those that are to open
 * it, and so after the same change of what is left; key slots that are not in use are
 * then wiped.
 *
 * Environment: SEED repeats a run; ITERATIONS: how many images (default: as many as are
 * possible in SECONDS, 4); FIRST: start with this one.
 */

#include <config.h>

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "format/luks.h"
#include "lib/allocations.h"
#include "lib/changes.h"
#include "lib/images.h"
#include "lib/powercut.h"
#include "lib/survivor.h"
#include "lib/trials.h"

#define IMAGE "top.qcow2"
#define NR 3

static const char *const passphrases[NR] = { IMAGES_SECRET, "second", "third" };

struct trial {
  struct blob file;             /* before */
  unsigned before, after;       /* sets of passphrases that open it */
  struct keyedit edit;
  struct disk_options options;
  struct blob result;           /* the file after the change */
  struct power_cut_trial power;
};

static unsigned nr_again, nr_opened;

static struct disk_options
with_passphrase (const struct disk_options *options, const char *passphrase)
{
  struct disk_options o = *options;

  o.secret = (struct image_secret) {
    .passphrase = passphrase, .len = strlen (passphrase),
  };
  return o;
}

/* The set of passphrases that open the file SURVIVOR, of those in question. */
static unsigned
find_openers (const struct trial *t)
{
  unsigned set = 0;

  for (unsigned i = 0; i < NR; i++) {
    struct disk_options o = with_passphrase (&t->options, passphrases[i]);
    struct disk *disk;

    if (!((t->before | t->after) & 1u << i))
      continue;
    o.path = images_path (SURVIVOR);
    o.hooks = &without_sync;
    if (reach_open (&o, &disk) == 0) {
      set |= 1u << i;
      disk_close (disk);
    }
    else
      CHECK (errno == EACCES);
    free ((char *) o.path);
    nr_opened++;
  }
  return set;
}

/* Where the LUKS header is. */
static void
find_header (const struct blob *b, uint64_t *at, uint64_t *len)
{
  uint64_t ext = blob_get (b, 4, 4) == 3 ? blob_get (b, 100, 4) : 72;

  while (blob_get (b, ext, 4) != QCOW2_EXT_CRYPTO) {
    CHECK (blob_get (b, ext, 4) != 0);
    ext += 8 + (blob_get (b, ext + 4, 4) + 7) / 8 * 8;
  }
  *at = blob_get (b, ext + 8, 8);
  *len = blob_get (b, ext + 16, 8);
}

static void
check_rest (const struct trial *t, const struct blob *b, const char *when)
{
  uint64_t at, len;

  find_header (&t->file, &at, &len);
  if (b->len != t->file.len || memcmp (b->data, t->file.data, at) != 0 ||
      memcmp (b->data + at + len, t->file.data + at + len, b->len - at - len) != 0)
    survivor_fail (b, "%s: something outside the LUKS header has changed", when);
}

/* A key slot that is in use is complete: each is opened by one passphrase.  TWICE: one
 * may have been added before the change failed, and again when it was repeated. */
static void
check_slots (const struct blob *b, unsigned openers, bool twice, const char *when)
{
  unsigned active = 0;
  uint64_t at, len;

  find_header (b, &at, &len);
  for (unsigned i = 0; i < LUKS_SLOTS; i++)
    active += blob_get (b, at + offsetof (struct luks_header, slots) +
                        i * sizeof (struct luks_slot_header), 4) == LUKS_SLOT_ACTIVE;
  const unsigned least = __builtin_popcount (openers);

  if (active < least || active > least + twice)
    survivor_fail (b, "%s: %u key slots are in use, but the passphrases %x open them",
                   when, active, openers);
}

static void
check_wiped (const struct blob *b)
{
  static const uint8_t zeros[LUKS_SALT_SIZE];
  uint64_t at, len;

  find_header (b, &at, &len);
  for (unsigned i = 0; i < LUKS_SLOTS; i++) {
    const uint64_t slot = at + offsetof (struct luks_header, slots) +
      i * sizeof (struct luks_slot_header);

    if (blob_get (b, slot, 4) == LUKS_SLOT_INACTIVE &&
        memcmp (b->data + slot + 8, zeros, sizeof zeros) != 0)
      FAIL ("key slot %u was not wiped", i);
  }
}

/* Somebody finds what is left, and does it again, or what is missing of it. */
static void
again (struct trial *t, unsigned openers)
{
  struct disk_options o =
    with_passphrase (&t->options, passphrases[__builtin_ctz (openers)]);
  struct keyedit edit = t->edit;
  struct blob b;
  int r;

  o.path = images_path (SURVIVOR);
  o.hooks = &without_sync;
  if (openers & t->after & ~t->before)
    edit.add = NULL;            /* it is there */
  if (edit.add || edit.erase) {
    r = change_keys (&o, &edit);
    /* If it is erased already, this is refused; but what was left of it is wiped. */
    if ((r == -1) != (edit.erase && !(openers & t->before & ~t->after)))
      FAIL ("what is left is changed again: %d (%m)", r);
  }
  if (find_openers (t) != t->after)
    FAIL ("changed again, %x open it, not %x", find_openers (t), t->after);
  if (edit.erase) {
    blob_load (SURVIVOR, &b);
    check_wiped (&b);
    blob_free (&b);
  }
  free ((char *) o.path);
  nr_again++;
}

static void
judge (void *opaque, const struct remains *left)
{
  struct trial *t = opaque;
  unsigned openers;

  survivor_check (left->file, false, left->when);
  check_rest (t, left->file, left->when);
  blob_save (SURVIVOR, left->file);
  openers = find_openers (t);
  if (openers == 0 ||
      (openers & t->before & t->after) != (t->before & t->after) ||
      (left->done && openers != t->after))
    survivor_fail (left->file, "%s: the passphrases %x open it (before %x, after %x)",
                   left->when, openers, t->before, t->after);
  check_slots (left->file, openers, left->fault && t->edit.add, left->when);
  if (left->done && left->kind == CUT_ALL && t->edit.erase)
    check_wiped (left->file);
  if (!left->done && rng_below (&t->power.rng, 6) == 0)
    again (t, openers);
}

static unsigned
cuts (void *opaque, enum storage_op op)
{
  struct trial *t = opaque;

  return op == STORAGE_OP_SYNC || rng_below (&t->power.rng, 3) == 0;
}

static int
change (void *opaque, const struct storage_hooks *hooks)
{
  struct trial *t = opaque;

  t->options.hooks = hooks;
  return change_keys (&t->options, &t->edit);
}

/* Nobody can erase a passphrase twice. */
static bool
is_made (void *opaque)
{
  struct trial *t = opaque;
  struct blob b;

  if (t->edit.erase == NULL)
    return false;
  blob_load (t->power.path, &b);
  blob_save (SURVIVOR, &b);
  blob_free (&b);
  return find_openers (t) == t->after;
}

static void
ended (void *opaque, bool fault)
{
  struct trial *t = opaque;

  if (!fault)
    t->result = blob_copy (simdisk_cut (t->power.sim, &t->power.rng, CUT_ALL));
}

/* Adds, exchanges or erases one. */
static void
one_change (struct trial *t, struct rng *rng)
{
  const unsigned mine = __builtin_ctz (t->before), other = (mine + 1) % NR;
  const bool has_other = t->before & 1u << other;
  const char *what;

  t->options = with_passphrase (&t->options, passphrases[mine]);
  t->edit = (struct keyedit) { KEYEDIT_NONE, .iter_ms = 1 };
  t->after = t->before;
  if (has_other) {
    what = "erase";
    t->edit.erase = passphrases[other];
    t->after &= ~(1u << other);
  }
  else {
    what = "add";
    t->edit.add = passphrases[other];
    t->after |= 1u << other;
    if (rng_below (rng, 2)) {
      what = "exchange";
      t->edit.erase = passphrases[mine];
      t->after &= ~(1u << mine);
    }
  }
  printf ("  %s: %x to %x\n", what, t->before, t->after);
  fflush (stdout);
  blob_load (IMAGE, &t->file);
  power_cut_everywhere (&t->power);
  power_cut_fail_each (&t->power);
  blob_save (IMAGE, &t->result);
  blob_free (&t->result);
  blob_free (&t->file);
  t->before = t->after;
}

static void
one_image (struct rng *rng)
{
  struct trial t = { .before = 1 };
  struct image_spec spec = {
    .version = 2 + rng_below (rng, 2), .cluster_size = 4096 << 4 * rng_below (rng, 2),
    .refcount_bits = 16, .size = 1 << 20, .encrypt = "luks",
  };

  quiet_errors = true;          /* of wrong passphrases */
  image_create (IMAGE, &spec);
  image_fill (IMAGE, &spec, rng, 2);
  printf ("%u: ", trials_number);
  image_print (&spec);
  printf ("\n");
  t.options = (struct disk_options) {
    .path = images_path (IMAGE), .l2_cache = 32 << 20, .l2_slice = 512,
    .backing = BACKING_FOLLOW,
  };
  t.power = (struct power_cut_trial) {
    .path = t.options.path, .opaque = &t, .change = change, .judge = judge, .cuts = cuts,
    .is_made = is_made, .ended = ended,
    .can_fail = 1 << STORAGE_OP_WRITE | 1 << STORAGE_OP_SYNC,
  };
  rng_init (&t.power.rng, rng_next (rng), 500);
  for (unsigned i = 0; i < 2; i++)
    one_change (&t, rng);
  free ((char *) t.power.path);
}

int
main (void)
{
  const unsigned done = trials_run ("keys", 4, 1, one_image);

  printf ("%u images, %u power cuts, %u passphrases tried, %u changed again, "
          "%u failures, %u times no memory\n", done, power_cuts.cuts, nr_opened, nr_again,
          power_cuts.faults, power_cuts.shortages);
  return 0;
}
