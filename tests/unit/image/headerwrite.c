/* SPDX-License-Identifier: BSD-3-Clause
 *
 * headerwrite.c: after a power cut at any moment, the header contains all of a change or
 * nothing of it, wherever fields, extensions and the name of the backing file lie.
 *
 * Random first clusters, of both versions: lists of extensions of all lengths, with an
 * end mark or without space for one, headers longer than those we know, at odd offsets,
 * and names that are in the way.  Each gets random changes.  Before each operation the
 * power is cut in all ways; now and then an operation fails.  A change that does not fit
 * changes nothing.  What is done ahead of some is part of them, and writes no field.
 *
 * Environment: SEED, ITERATIONS, FIRST, SECONDS (2) as for crash/requests.
 */

#include <config.h>

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "image/headerwrite.h"
#include "lib/images.h"
#include "lib/powercut.h"
#include "lib/trials.h"

#define IMAGE "top.qcow2"
#define MAX_CLUSTER 4096
#define MAX_EXTS 8
#define OURS QCOW2_EXT_BITMAPS

/* What a header means. */
struct meaning {
  uint8_t fields[112];          /* without what says where things are */
  unsigned n;
  struct { uint32_t type, len; uint8_t data[MAX_CLUSTER]; } exts[MAX_EXTS + 1];
  bool backing;
  uint32_t name_len;
  uint8_t name[1024];
};

struct trial {
  uint64_t cs;
  struct storage *file;
  struct header header;
  struct headerwrite *change;
  char name[1024];              /* that it sets */
  bool begun;                   /* is it, for all that is known? */
  bool ahead;                   /* some of it is done before */
  struct power_cut_trial power;
  struct meaning before, after, now;
};

static unsigned nr_full, nr_failed, nr_detours;

/* --- reading, without the core --- */

static void
understand (const struct blob *b, uint64_t cs, struct meaning *m)
{
  const bool v3 = blob_get (b, 4, 4) == 3;
  const uint64_t list = v3 ? blob_get (b, 100, 4) : 72;
  const uint64_t name = blob_get (b, 8, 8), limit = name ? name : cs;
  uint64_t at = list;

  memset (m, 0, sizeof *m);
  memcpy (m->fields, b->data, list < 112 ? list : 112);
  memset (m->fields + 8, 0, 8);
  if (v3)
    memset (m->fields + 100, 0, 4);
  while (at < limit) {
    if (at + 8 > limit)
      FAIL ("no room for an extension at %" PRIu64, at);
    if (blob_get (b, at, 4) == 0)
      break;
    if (m->n > MAX_EXTS)
      FAIL ("too many extensions");
    m->exts[m->n].type = blob_get (b, at, 4);
    m->exts[m->n].len = blob_get (b, at + 4, 4);
    if (m->exts[m->n].len > limit - at - 8)
      FAIL ("extension at %" PRIu64 " does not fit", at);
    memcpy (m->exts[m->n].data, b->data + at + 8, m->exts[m->n].len);
    at += 8 + (m->exts[m->n].len + 7) / 8 * 8;
    m->n++;
  }
  m->backing = name != 0;
  m->name_len = name ? blob_get (b, 16, 4) : 0;
  if (name + m->name_len > cs)
    FAIL ("the name does not fit");
  memcpy (m->name, b->data + name, m->name_len);
}

static bool
shows (void *opaque, const struct blob *b, bool after)
{
  struct trial *t = opaque;

  understand (b, t->cs, &t->now);
  if (after && !t->begun)
    return false;
  return memcmp (&t->now, after ? &t->after : &t->before, sizeof t->now) == 0;
}

/* --- making --- */

static uint64_t
put_extension (struct blob *b, uint64_t at, uint32_t type, uint64_t len)
{
  blob_put (b, at, type, 4);
  blob_put (b, at + 4, len, 4);
  memset (b->data + at + 8, type, len);
  return at + 8 + (len + 7) / 8 * 8;
}

static void
make_image (struct trial *t, struct rng *rng)
{
  const bool v3 = rng_below (rng, 6) != 0;
  uint64_t list = 72, at, room, len;
  struct blob b;
  unsigned n;

  t->cs = UINT64_C (512) << rng_below (rng, 4);
  b = (struct blob) { calloc (1, t->cs), t->cs };
  CHECK (b.data);
  for (at = 16; at < 112; at++)
    b.data[at] = rng_next (rng);
  blob_put (&b, 0, QCOW2_MAGIC, 4);
  blob_put (&b, 4, v3 ? 3 : 2, 4);
  blob_put (&b, 20, __builtin_ctzll (t->cs), 4);
  if (v3) {
    list = rng_below (rng, 3) == 0 ? 104 : rng_below (rng, 4) ? 112
      : 104 + rng_below (rng, t->cs / 2);
    blob_put (&b, 100, list, 4);
  }
  memset (b.data + list, 0, t->cs - list);
  at = list;
  room = t->cs - list;
  for (n = rng_below (rng, MAX_EXTS); n > 0 && room >= 48; n--) {
    len = rng_below (rng, 3) ? rng_below (rng, 40) : rng_below (rng, room / 2);
    /* An end mark fits behind it, though the list may lie at an odd offset. */
    if (8 + (len + 7) / 8 * 8 + 8 > room)
      break;
    /* Some have this type twice, or more often. */
    at = put_extension (&b, at, rng_below (rng, 6) ? 100 + n : QCOW2_EXT_BACKING_FORMAT,
                        len);
    room = t->cs - at;
  }
  if (v3 && rng_below (rng, 2) && room >= 48)
    at = put_extension (&b, at, OURS, 24);
  memset (b.data + 8, 0, 12);
  if (rng_below (rng, 2) && t->cs - at > 16) {
    /* With an end mark, or right behind the list. */
    at += rng_below (rng, 4) ? 8 + rng_below (rng, 2) * rng_below (rng, 64) : 0;
    if (at < t->cs) {
      len = rng_below (rng, t->cs - at < 1023 ? t->cs - at : 1023);
      blob_put (&b, 8, at, 8);
      blob_put (&b, 16, len, 4);
      memset (b.data + at, 'n', len);
    }
  }
  blob_save (IMAGE, &b);
  understand (&b, t->cs, &t->before);
  blob_free (&b);
}

/* --- changing --- */

/* All of this type, from the I-th one on. */
static void
drop_from (struct meaning *m, uint32_t type, unsigned i)
{
  while (i < m->n)
    if (m->exts[i].type == type) {
      memmove (&m->exts[i], &m->exts[i + 1], (m->n - i - 1) * sizeof m->exts[0]);
      memset (&m->exts[--m->n], 0, sizeof m->exts[0]);
    }
    else
      i++;
}

static void
drop (struct meaning *m, uint32_t type)
{
  drop_from (m, type, 0);
}

static void
put (struct meaning *m, uint32_t type, const void *data, uint32_t len)
{
  unsigned i;

  for (i = 0; i < m->n && m->exts[i].type != type; i++)
    ;
  m->n += i == m->n;
  memset (&m->exts[i], 0, sizeof m->exts[i]);
  m->exts[i].type = type;
  m->exts[i].len = len;
  memcpy (m->exts[i].data, data, len);
  drop_from (m, type, i + 1);
}

/* LEN 0: there is no backing file any more. */
static void
name_backing (struct trial *t, struct headerwrite *w, uint32_t len, uint8_t letter)
{
  struct meaning *m = &t->after;

  memset (t->name, letter, len);
  t->name[len] = '\0';
  headerwrite_set_backing (w, t->name);
  m->backing = len > 0;
  m->name_len = len;
  memset (m->name, 0, sizeof m->name);
  memset (m->name, letter, len);
  m->fields[16] = m->fields[17] = 0;
  m->fields[18] = len >> 8;
  m->fields[19] = len;
}

/* To the other version. */
static void
change_version (struct trial *t, struct headerwrite *w)
{
  struct meaning *m = &t->after;

  m->fields[7] = m->fields[7] == 3 ? 2 : 3;
  memset (m->fields + 72, 0, sizeof m->fields - 72);
  if (m->fields[7] == 3)
    m->fields[99] = 4;          /* refcounts of 16 bits */
  headerwrite_set_version (w, m->fields[7]);
}

/* The same to W and to t->after. */
static void
choose (struct trial *t, struct headerwrite *w, struct rng *rng)
{
  struct meaning *m = &t->after;
  uint8_t data[48];
  const uint32_t len = rng_below (rng, 3) ? 24 : rng_below (rng, sizeof data);

  memset (data, rng_next (rng), sizeof data);
  *m = t->before;
  if (rng_below (rng, 2)) {
    headerwrite_fields (w)->size = put64 (77);
    memset (m->fields + 24, 0, 8);
    m->fields[31] = 77;
  }
  if (rng_below (rng, 4) == 0)
    change_version (t, w);
  switch (rng_below (rng, 6)) {
  case 0:
    headerwrite_drop_extension (w, OURS);
    drop (m, OURS);
    break;
  case 1:
    headerwrite_drop_extension (w, QCOW2_EXT_BACKING_FORMAT);
    drop (m, QCOW2_EXT_BACKING_FORMAT);
    name_backing (t, w, 0, 0);
    break;
  case 2:
    headerwrite_put_extension (w, QCOW2_EXT_BACKING_FORMAT, "qcow2", 5);
    put (m, QCOW2_EXT_BACKING_FORMAT, "qcow2", 5);
    /* fall through */
  case 3:
    name_backing (t, w, 1 + rng_below (rng, rng_below (rng, 2) ? 40 : 1023),
                  'a' + rng_below (rng, 20));
    break;
  default:
    headerwrite_put_extension (w, OURS, data, len);
    put (m, OURS, data, len);
  }
}

static int
do_ahead (struct trial *t)
{
  const uint32_t len = t->header.header_length;
  uint8_t before[MAX_CLUSTER], after[MAX_CLUSTER];
  int r;

  t->begun = false;
  if (!t->ahead)
    return 0;
  CHECK (storage_read (t->file, before, len, 0) == 0);
  r = headerwrite_ahead (t->change, &t->begun);
  CHECK (storage_read (t->file, after, len, 0) == 0);
  if (memcmp (before, after, len) != 0)
    FAIL ("a field was written ahead");
  return r;
}

static int
commit (void *opaque, const struct storage_hooks *hooks)
{
  struct trial *t = opaque;
  const bool fits = headerwrite_fits (t->change);
  bool again;
  int r = do_ahead (t);

  (void) hooks;                 /* the file is open */
  if (r == -1)
    return r;
  r = headerwrite_commit (t->change, t->begun ? &again : &t->begun);
  if (fits)
    return r;
  if (r == 0 || errno != ENOSPC || t->begun)
    FAIL ("no room, but: %d, %m, %d", r, t->begun);
  t->after = t->before;
  t->begun = true;
  return 0;
}

/* Says whether there can be another. */
static bool
one_change (struct trial *t, struct rng *rng)
{
  const struct fault fault = {
    .ops = 1 << STORAGE_OP_WRITE | 1 << STORAGE_OP_SYNC,
    .after = rng_below (rng, 8), .times = 100, .err = EIO,
    .partial = rng_below (rng, 2),
  };
  bool fits;
  int r;

  t->change = headerwrite_new (t->file, &t->header);
  CHECK (t->change);
  choose (t, t->change, rng);
  t->ahead = rng_below (rng, 2);
  fits = headerwrite_fits (t->change);
  r = power_cut_change (&t->power, rng_below (rng, 8) == 0 ? &fault : NULL);
  headerwrite_free (t->change);
  power_cut_all_ways (&t->power);
  t->before = t->after;
  nr_full += !fits;
  nr_failed += fits && r == -1;
  return fits && r == 0;
}

static void
run_trial (struct rng *rng)
{
  struct trial *t = calloc (1, sizeof *t);
  char *path = images_path (IMAGE);
  struct storage_options options = { .try_writable = true };
  struct header *h = &t->header;
  const struct blob *b;
  unsigned i, version;

  CHECK (t && path);
  make_image (t, rng);
  t->power = (struct power_cut_trial) {
    .path = path, .opaque = t, .change = commit, .shows = shows,
  };
  rng_init (&t->power.rng, rng_next (rng), 500);
  power_cut_begin (&t->power, rng_next (rng));
  options.hooks = simdisk_hooks (t->power.sim);
  CHECK (storage_open (path, &options, &t->file) == 0);
  for (i = 0; i < 4; i++) {
    b = simdisk_cut (t->power.sim, &t->power.rng, CUT_ALL);
    version = h->version;
    h->version = blob_get (b, 4, 4);
    h->cluster_size = t->cs;
    nr_detours += i > 0 && h->version == 3 && h->version == version &&
      h->header_length != blob_get (b, 100, 4);
    h->header_length = h->version == 3 ? blob_get (b, 100, 4) : 72;
    if (!one_change (t, rng))
      break;
  }
  storage_close (t->file);
  power_cut_end (&t->power);
  free (path);
  free (t);
}

int
main (void)
{
  unsigned done;

  quiet_errors = true;
  done = trials_run ("headerwrite", 2, 200, run_trial);
  printf ("%u headers, %u cuts: %u old, %u new; %u did not fit, %u failed\n", done,
          power_cuts.cuts, power_cuts.old, power_cuts.new, nr_full, nr_failed);
  CHECK (nr_detours == 0);
  return power_cuts.old > 0 && power_cuts.new > 0 ? 0 : 1;
}
