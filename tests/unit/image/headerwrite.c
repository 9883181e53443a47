/* SPDX-License-Identifier: BSD-3-Clause
 *
 * headerwrite.c: the header says all of a change or nothing of it when the power goes at
 * any instant, wherever fields, extensions and the name of the backing file lie.
 *
 * Random first clusters, of both versions: lists of extensions of all lengths, with an
 * end mark or without room for one, headers that are longer than we know, at odd offsets,
 * names that are in the way.  Each gets random changes.  Before each operation the power
 * is cut in all ways; now and then an operation fails.  A change that does not fit
 * changes nothing.
 *
 * Environment: SEED, ITERATIONS, FIRST, SECONDS (3) as for crash/requests.
 */

#include <config.h>

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "image/headerwrite.h"
#include "lib/images.h"
#include "lib/simdisk.h"
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
  struct rng rng;
  uint64_t cs;
  struct simdisk *sim;
  struct meaning before, after;
};

static unsigned nr_cuts, nr_old, nr_new, nr_full, nr_failed, nr_detours;

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

static void
watch (void *opaque, enum hostfile_op op)
{
  struct trial *t = opaque;
  struct meaning now;
  enum power_cut kind;

  (void) op;
  for (kind = 0; kind < CUT_KINDS; kind++) {
    const struct blob *b = simdisk_cut (t->sim, &t->rng, kind);

    nr_cuts++;
    understand (b, t->cs, &now);
    if (memcmp (&now, &t->before, sizeof now) == 0)
      nr_old++;
    else if (memcmp (&now, &t->after, sizeof now) == 0)
      nr_new++;
    else
      FAIL ("neither the old header nor the new one");
  }
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
make_image (struct trial *t)
{
  struct rng *rng = &t->rng;
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
    at = put_extension (&b, at, rng_below (rng, 6) ? 100 + n : QCOW2_EXT_BACKING_FORMAT,
                        len);
    /* Each type once. */
    if (blob_get (&b, at - 8 - (len + 7) / 8 * 8, 4) == QCOW2_EXT_BACKING_FORMAT)
      n = n > 3 ? 3 : 1;
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

static void
drop (struct meaning *m, uint32_t type)
{
  for (unsigned i = 0; i < m->n; i++)
    if (m->exts[i].type == type) {
      memmove (&m->exts[i], &m->exts[i + 1], (m->n - i - 1) * sizeof m->exts[0]);
      memset (&m->exts[--m->n], 0, sizeof m->exts[0]);
      return;
    }
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
}

/* The same to W and to t->after. */
static void
choose (struct trial *t, struct headerwrite *w)
{
  struct rng *rng = &t->rng;
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
  switch (rng_below (rng, 4)) {
  case 0:
    headerwrite_drop_extension (w, OURS);
    drop (m, OURS);
    break;
  case 1:
    headerwrite_drop_extension (w, QCOW2_EXT_BACKING_FORMAT);
    drop (m, QCOW2_EXT_BACKING_FORMAT);
    headerwrite_drop_backing (w);
    m->backing = false;
    m->name_len = 0;
    memset (m->name, 0, sizeof m->name);
    memset (m->fields + 16, 0, 4);
    break;
  default:
    headerwrite_put_extension (w, OURS, data, len);
    put (m, OURS, data, len);
  }
}

static void
maybe_fail (struct trial *t)
{
  const struct fault fault = {
    .ops = 1 << HOSTFILE_OP_WRITE | 1 << HOSTFILE_OP_SYNC,
    .after = rng_below (&t->rng, 8), .times = 100, .err = EIO,
    .partial = rng_below (&t->rng, 2),
  };

  simdisk_fault (t->sim, rng_below (&t->rng, 8) == 0 ? &fault : NULL);
}

/* Says whether there can be another. */
static bool
one_change (struct trial *t, struct hostfile *file, struct header *h)
{
  struct headerwrite *w = headerwrite_new (file, h);
  bool fits, begun;
  struct meaning now;
  int r;

  CHECK (w);
  choose (t, w);
  fits = headerwrite_fits (w);
  maybe_fail (t);
  simdisk_watch (t->sim, watch, t);
  r = headerwrite_commit (w, &begun);
  simdisk_watch (t->sim, NULL, NULL);
  headerwrite_free (w);
  understand (simdisk_cut (t->sim, &t->rng, CUT_ALL), t->cs, &now);
  if (r == 0) {
    if (!fits || memcmp (&now, &t->after, sizeof now) != 0)
      FAIL ("not the new header");
    understand (simdisk_cut (t->sim, &t->rng, CUT_NOTHING), t->cs, &now);
    if (memcmp (&now, &t->after, sizeof now) != 0)
      FAIL ("not durable");
  }
  else {
    if (!fits && (errno != ENOSPC || begun))
      FAIL ("no room, but: %m, %d", begun);
    if (fits && simdisk_failures (t->sim) == 0)
      FAIL ("it failed without a reason");
    if (!begun && memcmp (&now, &t->before, sizeof now) != 0)
      FAIL ("changed before it began");
    nr_full += !fits;
    nr_failed += fits;
  }
  t->before = now;
  return r == 0;
}

static void
run_trial (struct rng *rng)
{
  struct trial *t = calloc (1, sizeof *t);
  char *path = images_path (IMAGE);
  struct hostfile_options options = { .try_writable = true };
  struct hostfile *file;
  const struct blob *b;
  struct header h = { 0 };
  unsigned i;

  CHECK (t && path);
  t->rng = *rng;
  make_image (t);
  t->sim = simdisk_new (path, rng_next (rng));
  options.hooks = simdisk_hooks (t->sim);
  CHECK (hostfile_open (path, &options, &file) == 0);
  for (i = 0; i < 4; i++) {
    b = simdisk_cut (t->sim, &t->rng, CUT_ALL);
    h.version = blob_get (b, 4, 4);
    h.cluster_size = t->cs;
    nr_detours += i > 0 && h.version == 3 && h.header_length != blob_get (b, 100, 4);
    h.header_length = h.version == 3 ? blob_get (b, 100, 4) : 72;
    if (!one_change (t, file, &h))
      break;
  }
  hostfile_close (file);
  simdisk_free (t->sim);
  free (path);
  free (t);
}

int
main (void)
{
  unsigned done;

  quiet_errors = true;
  done = trials_run ("headerwrite", 3, 200, run_trial);
  printf ("%u headers, %u cuts: %u old, %u new; %u did not fit, %u failed\n", done,
          nr_cuts, nr_old, nr_new, nr_full, nr_failed);
  CHECK (nr_detours == 0);
  return nr_cuts > 0 && nr_old > 0 && nr_new > 0 ? 0 : 1;
}
