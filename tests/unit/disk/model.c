/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Does a disk contain what was written to it, whatever the image and the timing?
 *
 * Random images, made by qemu-img and qemu-io (all cluster sizes and refcount widths,
 * backing chains, internal snapshots, compressed clusters, preallocation, subclusters,
 * external data files, encryption, bitmaps, in any mixture), are changed by several
 * threads at once and compared with a plain array of bytes.  Each byte has one thread
 * that may change it, so its value is known at any time, but threads share clusters.
 * Some bytes may be changed by all threads: such a byte has its first value, or 0, or the
 * one value that is ever written there, and its changes must not harm others.
 *
 * Clients connect and leave meanwhile.  And the disk changes as a whole: snapshots,
 * bitmaps and features come and go, it grows, backing files are copied into it, layers
 * come and go, and it moves to another image.  A snapshot that was taken in use must show
 * the same as long as it exists.  Whenever the last writer has left, the file must have
 * no faults and no leaks.  At the end qemu-img judges metadata, contents and the internal
 * snapshots.
 *
 * Environment: SEED repeats a run; ITERATIONS: how many images (default: as many as are
 * possible in SECONDS, 5); FIRST: start with this one.
 */

#include <config.h>

#include <errno.h>
#include <inttypes.h>
#include <sched.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

#include "util/bytes.h"
#include "disk/export.h"
#include "lib/changer.h"
#include "lib/checker.h"
#include "lib/images.h"
#include "lib/mixture.h"
#include "lib/pieces.h"
#include "lib/reach.h"
#include "lib/survivor.h"
#include "lib/trials.h"

#define IMAGE "top.qcow2"

/* One image and what must be in it. */
struct trial {
  struct mixture image;
  unsigned threads, ops;
  bool lives;                   /* the disk changes as a whole meanwhile */
  bool moves;                   /* so do its layers */
  char top[24];                 /* the file of the image on top */
  bool slow;                    /* delay I/O at random, for other timings */
  struct disk_options options;
  struct disk *disk;
  unsigned changes, refused;    /* of the disk as a whole */
  uint64_t size;                /* of the disk; the model knows its beginning */
  struct pieces pieces;
  unsigned char *model;
  unsigned char *first;         /* what was there before */
  unsigned char *either;        /* byte may be 0, too: trimmed, version 2 */
};

struct worker {
  struct trial *t;
  unsigned id;
  struct export *export;
  struct rng rng;
  unsigned char *buf;
};


/* --- the model --- */

static void
compare (struct trial *t, const unsigned char *buf, uint64_t offset,
         uint64_t count, const char *what)
{
  uint64_t i;

  for (i = 0; i < count; i++) {
    const uint64_t n = min64 (count - i, 512);

    if (memcmp (buf + i, t->model + offset + i, n) == 0) {
      i += n - 1;
      continue;
    }
    if (buf[i] == t->model[offset + i])
      continue;
    if (buf[i] == 0 && t->either[offset + i]) {
      t->model[offset + i] = 0; /* from now on */
      continue;
    }
    FAIL ("%s: offset %" PRIu64 " (cluster %" PRIu64 " + %" PRIu64
          "): 0x%02x, must be 0x%02x; request %" PRIu64 "+%" PRIu64, what,
          offset + i, (offset + i) / t->image.spec.cluster_size,
          (offset + i) % t->image.spec.cluster_size, buf[i], t->model[offset + i],
          offset, count);
  }
}

static void
model_set (struct trial *t, const unsigned char *buf, uint64_t offset,
           uint64_t count)
{
  if (buf)
    memcpy (t->model + offset, buf, count);
  else
    memset (t->model + offset, 0, count);
  memset (t->either + offset, 0, count);
}

/* Layers that others made may be on top meanwhile. */
static bool
has_other_clusters (const struct trial *t)
{
  return t->moves && t->image.layers > 0;
}

/* In version 2, a trim may leave data that hides a backing file.  In a raw data file it
 * does nothing where holes cannot be punched. */
static bool
trim_is_certain (const struct trial *t)
{
  const struct image_spec *spec = &t->image.spec;

  return (spec->version >= 3 || !spec->backing) && !has_other_clusters (t) &&
    (!spec->data_file_raw || reach_punches (spec->cluster_size | spec->size));
}

static void
model_trim (struct trial *t, uint64_t offset, uint64_t count)
{
  const uint64_t cs = has_other_clusters (t) ? 512 : t->image.spec.cluster_size;
  const uint64_t size = t->image.spec.size;
  const uint64_t start = round_up (offset, cs);
  const bool to_end = offset + count == size;
  const uint64_t end = to_end ? size : round_down (offset + count, cs);

  if (!t->options.discard || start >= end)
    return;
  if (trim_is_certain (t) && !(to_end && t->lives))
    model_set (t, NULL, start, end - start);
  else                          /* (The disk may have grown: a part of a cluster
                                   stays.) */
    memset (t->either + start, 1, end - start);
}

/* What is written where everybody writes: one value for each byte. */
static unsigned char
shared_value (uint64_t offset)
{
  return (offset * UINT64_C (0x9e3779b97f4a7c15)) >> 56 | 1;
}

static void
compare_shared (struct trial *t, const unsigned char *buf, uint64_t offset,
                uint64_t count)
{
  uint64_t i;

  for (i = 0; i < count; i++)
    if (buf[i] != 0 && buf[i] != t->first[offset + i] &&
        buf[i] != shared_value (offset + i))
      FAIL ("shared byte at offset %" PRIu64 " (cluster %" PRIu64 " + %" PRIu64
            ") is 0x%02x", offset + i, (offset + i) / t->image.spec.cluster_size,
            (offset + i) % t->image.spec.cluster_size, buf[i]);
}

/* --- requests --- */

static void
read_own (struct worker *w, uint64_t offset, uint64_t count)
{
  if (export_read (w->export, w->buf, count, offset) == -1)
    FAIL ("read %" PRIu64 "+%" PRIu64 ": %m", offset, count);
  compare (w->t, w->buf, offset, count, "read");
}

/* A read across the pieces of many; we know only our own bytes. */
static void
read_any (struct worker *w)
{
  const uint64_t size = w->t->image.spec.size;
  const uint64_t offset = rng_below (&w->rng, size);
  const uint64_t count = 1 + rng_below (&w->rng, min64 (size - offset,
                                                        1 << 18));
  unsigned low = 0, high = w->t->pieces.n;

  if (export_read (w->export, w->buf, count, offset) == -1)
    FAIL ("read %" PRIu64 "+%" PRIu64 ": %m", offset, count);
  while (high - low > 1) {
    const unsigned mid = (low + high) / 2;

    if (w->t->pieces.all[mid].start <= offset)
      low = mid;
    else
      high = mid;
  }
  for (; low < w->t->pieces.n; low++) {
    const struct piece *p = &w->t->pieces.all[low];
    const uint64_t from = max64 (p->start, offset);
    const uint64_t to = min64 (p->start + p->len, offset + count);

    if (from >= to)
      break;
    if (p->owner == w->id)
      compare (w->t, w->buf + (from - offset), from, to - from, "long read");
  }
}

static void
write_own (struct worker *w, uint64_t offset, uint64_t count, bool fua)
{
  const unsigned kind = rng_below (&w->rng, 8);
  uint64_t i, word = rng_next (&w->rng);

  if (kind == 0)
    memset (w->buf, 0, count);
  else
    for (i = 0; i < count; i += 8) {
      memcpy (w->buf + i, &word, 8);
      word += UINT64_C (0x0101010101010101);
    }
  if (kind == 1)
    memset (w->buf + count / 2, 0, count - count / 2);

  if (export_write (w->export, w->buf, count, offset, fua) == -1)
    FAIL ("write %" PRIu64 "+%" PRIu64 ": %m", offset, count);
  model_set (w->t, w->buf, offset, count);
}

/* Requests for the same bytes at the same time. */
static void
race (struct worker *w, uint64_t offset, uint64_t count)
{
  struct export *e = w->export;
  uint64_t i;
  int r;

  switch (rng_below (&w->rng, 6)) {
  case 0: case 1:
    for (i = 0; i < count; i++)
      w->buf[i] = shared_value (offset + i);
    r = export_write (e, w->buf, count, offset, false);
    break;
  case 2:
    r = export_zero (e, count, offset, REQUEST_MAY_TRIM, false);
    break;
  case 3:
    r = export_trim (e, count, offset, false);
    break;
  case 4:
    r = export_flush (e);
    break;
  default:
    r = export_read (e, w->buf, count, offset);
    if (r == 0)
      compare_shared (w->t, w->buf, offset, count);
  }
  if (r == -1)
    FAIL ("shared piece %" PRIu64 "+%" PRIu64 ": %m", offset, count);
}

static void
zero_own (struct worker *w, uint64_t offset, uint64_t count, bool fua)
{
  const unsigned may_trim = rng_below (&w->rng, 2) ? REQUEST_MAY_TRIM : 0;
  const unsigned fast = rng_below (&w->rng, 4) == 0 ? REQUEST_FAST : 0;

  if (export_zero (w->export, count, offset, may_trim | fast, fua) == 0)
    model_set (w->t, NULL, offset, count);
  else if (!fast || errno != ENOTSUP)
    FAIL ("zero %" PRIu64 "+%" PRIu64 ": %m", offset, count);
}

struct extents {
  struct worker *w;
  uint64_t start, next, end;
  bool own, one;
  unsigned n;
};

static int
got_extent (void *opaque, uint64_t offset, uint64_t len, enum extent_type type)
{
  static const unsigned char zeros[512];
  struct extents *e = opaque;
  struct trial *t = e->w->t;
  uint64_t i;

  if (offset != e->next || len == 0 || len > e->end - offset ||
      (e->one && e->n > 0))
    FAIL ("extents of %" PRIu64 "..%" PRIu64 ": got %" PRIu64 "+%" PRIu64,
          e->start, e->end, offset, len);
  e->next = offset + len;
  e->n++;
  if (!e->own || type == EXTENT_DATA)
    return 0;
  for (i = offset; i < offset + len; i++) {
    const uint64_t n = min64 (offset + len - i, sizeof zeros);

    if (memcmp (t->model + i, zeros, n) == 0) {
      i += n - 1;
      continue;
    }
    if (t->model[i] != 0 && !t->either[i])
      FAIL ("extent %" PRIu64 "+%" PRIu64 " of type %d, but there is data at %"
            PRIu64, offset, len, type, i);
    t->model[i] = 0;
  }
  return 0;
}

static void
extents (struct worker *w, uint64_t offset, uint64_t count, bool own)
{
  struct extents e = {
    .w = w, .start = offset, .next = offset, .end = offset + count,
    .own = own, .one = rng_below (&w->rng, 4) == 0,
  };

  if (export_extents (w->export, count, offset, e.one, got_extent, &e) == -1)
    FAIL ("extents %" PRIu64 "+%" PRIu64 ": %m", offset, count);
  if (e.n == 0 || (!e.one && e.next != e.end))
    FAIL ("extents of %" PRIu64 "..%" PRIu64 " end at %" PRIu64,
          e.start, e.end, e.next);
}

/* --- threads --- */

static _Thread_local struct rng *hook_rng;

static int
delay (void *opaque, const char *path, enum storage_op op,
       const struct iovec *iov, int niov, uint64_t offset, uint64_t count,
       bool dsync)
{
  (void) opaque; (void) path; (void) iov; (void) niov;
  (void) offset; (void) count; (void) dsync;
  if (hook_rng)
    switch (rng_below (hook_rng, 32)) {
    case 0: usleep (3000); break;
    case 1: case 2: usleep (rng_below (hook_rng, 200)); break;
    case 3: case 4: case 5: case 6: sched_yield ();
    }
  /* A real sync takes longer than most races. */
  return op == STORAGE_OP_SYNC;
}

static const struct storage_hooks delaying = { .before = delay };

static void
one_request (struct worker *w)
{
  struct trial *t = w->t;
  const uint64_t cs = t->image.spec.cluster_size;
  static const uint64_t units[] = { 1, 512, 4096 };
  const uint64_t unit = units[rng_below (&w->rng, 3)];
  const bool fua = rng_below (&w->rng, 32) == 0;
  /* Long requests are rare: they take the time of many short ones. */
  const uint64_t longest = rng_below (&w->rng, 16) ? 64 << 10 : 3 << 20;
  const bool data = rng_below (&w->rng, 100) < 72;
  const struct piece *piece;
  uint64_t offset, count;

  if (rng_below (&w->rng, t->image.hot ? 2 : 3) == 0) {
    piece = pieces_pick (&t->pieces, &w->rng, t->pieces.owners);
    if (piece) {
      piece_part (piece, &w->rng, cs, cs, 3 << 20, &offset, &count);
      race (w, offset, count);
      return;
    }
  }
  piece_part (pieces_pick (&t->pieces, &w->rng, w->id), &w->rng, unit, cs,
              data ? longest : UINT64_MAX, &offset, &count);
  if (data) {
    switch (rng_below (&w->rng, 8)) {
    case 0: case 1: read_own (w, offset, count); break;
    case 2: read_any (w); break;
    default: write_own (w, offset, count, fua);
    }
    return;
  }
  switch (rng_below (&w->rng, 14)) {
  case 0: case 1: case 2: case 3: case 4:
    zero_own (w, offset, count, fua);
    break;
  case 5: case 6: case 7: case 8:
    if (export_trim (w->export, count, offset, fua) == -1)
      FAIL ("trim %" PRIu64 "+%" PRIu64 ": %m", offset, count);
    model_trim (t, offset, count);
    break;
  case 9:
    if (export_flush (w->export) == -1)
      FAIL ("flush: %m");
    break;
  case 10: case 11:
    extents (w, offset, count, true);
    break;
  case 12:
    offset = rng_below (&w->rng, t->image.spec.size);
    extents (w, offset, 1 + rng_below (&w->rng, t->image.spec.size - offset), false);
    break;
  default:
    if (export_cache (w->export, count, offset) == -1)
      FAIL ("cache %" PRIu64 "+%" PRIu64 ": %m", offset, count);
  }
}

static void
check_own (struct worker *w)
{
  const struct pieces *p = &w->t->pieces;
  uint64_t at, n;
  unsigned i;

  for (i = 0; i < p->n; i++)
    if (p->all[i].owner == w->id)
      for (at = 0; at < p->all[i].len; at += n) {
        n = min64 (p->all[i].len - at, 3 << 20);
        read_own (w, p->all[i].start + at, n);
      }
}

static void
come (struct worker *w, bool want)
{
  w->export = export_open (w->t->disk, "", want);
  if (w->export == NULL || export_is_writable (w->export) != want)
    FAIL ("connect: %s", disk_why_readonly (w->t->disk));
}

static void
leave (struct worker *w)
{
  if (export_close (w->export) == -1)
    FAIL ("disconnect: %m");
}

static void *
work (void *opaque)
{
  struct worker *w = opaque;
  const unsigned left_for = rng_below (&w->rng, w->t->ops);
  unsigned i, k;

  hook_rng = &w->rng;
  come (w, true);
  for (i = 0; i < w->t->ops; i++) {
    one_request (w);
    if (i == left_for) {
      /* Comes back as a mere reader for a while. */
      leave (w);
      come (w, false);
      for (k = 0; k < 8; k++)
        read_any (w);
      leave (w);
      come (w, true);
    }
  }
  check_own (w);
  leave (w);
  return NULL;
}

/* --- threads, and changes of the whole disk meanwhile --- */

/* (An image that stayed has its path from here.) */
static void
has_moved (struct trial *t, const char *top)
{
  if (strcmp (t->top, top) == 0)
    return;
  strcpy (t->top, top);
  free ((char *) t->options.path);
  t->options.path = images_path (top);
}

static void
run_workers (struct trial *t, struct rng *rng)
{
  struct changer changer = {
    .disk = t->disk, .grows = true, .streams = true, .moves = t->moves, .lazy = true,
    .keeps_counts = t->image.nr_snapshots > 0,
  };
  struct worker workers[8];
  unsigned i;

  for (i = 0; i < t->pieces.owners; i++) {
    struct worker *w = &workers[i];

    *w = (struct worker) { .t = t, .id = i };
    rng_init (&w->rng, rng_next (rng), i);
    w->buf = malloc ((3 << 20) + 8);
    CHECK (w->buf != NULL);
  }
  rng_init (&changer.rng, rng_next (rng), 100);
  if (t->lives)
    changer_start (&changer);
  run_threads (work, workers, sizeof workers[0], t->pieces.owners);
  if (t->lives)
    changer_stop (&changer);
  t->changes += changer.changes;
  t->refused += changer.refused;
  t->size += changer.grown;
  if (changer.alone)
    t->image.spec.backing = NULL;
  if (t->moves)
    has_moved (t, changer.top);
  else
    image_remember (IMAGE, &t->image.spec);
  for (i = 0; i < t->pieces.owners; i++)
    free (workers[i].buf);
}

/* --- images --- */

static void
random_options (struct trial *t, struct rng *rng)
{
  static const uint64_t caches[] = { 0, 64 << 10, 32 << 20 };

  t->options.path = images_path (IMAGE);
  t->options.l2_cache = caches[rng_below (rng, 3)];
  do
    t->options.l2_slice = UINT64_C (512) << rng_below (rng, 13);
  while (t->options.l2_slice > t->image.spec.cluster_size);
  t->options.backing = BACKING_FOLLOW;
  t->options.discard = rng_below (rng, 4) != 0;
  t->options.detect_zeroes = rng_below (rng, 3);
  t->options.secret.passphrase = IMAGES_SECRET;
  t->options.secret.len = strlen (IMAGES_SECRET);
  t->options.compress = t->image.spec.data_file == NULL &&
    t->image.spec.encrypt == NULL && rng_below (rng, 3) == 0;
  t->options.cache =
    rng_below (rng, 8) == 0 ? STORAGE_CACHE_NONE : STORAGE_CACHE_DEFAULT;
  t->options.copy_on_read = rng_below (rng, 2);
  t->options.lock = rng_below (rng, 2);
  t->slow = rng_below (rng, 2);
  t->lives = rng_below (rng, 3) != 0;
  t->moves = t->lives && reach_server () == NULL && rng_below (rng, 2);
  t->threads = 1 + rng_below (rng, 8);
  t->ops = 20 + rng_below (rng, 150);
  if (t->image.hot) {
    t->slow = t->options.discard = true;
    t->threads = 4 + rng_below (rng, 5);
    t->ops = 200;
  }
  t->options.hooks = t->slow ? &delaying : NULL;
}

static void
open_disk (struct trial *t)
{
  if (reach_open (&t->options, &t->disk) == -1)
    FAIL ("open failed");
  CHECK (disk_inside (t->disk).view->size == t->size);
}

static void
close_disk (struct trial *t)
{
  if (disk_close (t->disk) == -1)
    FAIL ("close: %m");
  t->disk = NULL;
}

/* Nobody can write: the file is in order. */
static void
check_file (const struct trial *t)
{
  struct blob b;

  blob_load (t->top, &b);
  survivor_check (&b, false, "nobody can write");
  blob_free (&b);
}

/* It knows of everything that has changed. */
static void
check_bitmap (const struct trial *t)
{
  unsigned char *sectors = calloc (1, t->size / 512 + 1);
  struct checked_bitmap b;
  struct blob file;
  uint64_t at;

  CHECK (sectors != NULL);
  blob_load (IMAGE, &file);
  CHECK (checker_bitmap (&file, MIXTURE_BITMAP, &b, sectors));
  if (b.in_use)
    FAIL ("the bitmap is in use");
  for (at = 0; at < t->image.spec.size; at += 512)
    if (!sectors[at / 512] && memcmp (t->model + at, t->first + at, 512) != 0)
      FAIL ("the bitmap does not know of a change at %" PRIu64, at);
  blob_free (&file);
  free (sectors);
}

static void
check_contents (struct trial *t)
{
  struct blob b;
  const bool stayed = strcmp (t->top, IMAGE) == 0;
  int r = image_check (t->top);

  if (r != 0)
    FAIL ("qemu-img check: exit status %d", r);
  image_contents (t->top, NULL, &b);
  CHECK (b.len == t->size);
  compare (t, b.data, 0, t->image.spec.size, "qemu-img convert");
  for (uint64_t i = t->image.spec.size; i < b.len; i++)
    if (b.data[i] != 0)
      FAIL ("the disk has grown, and shows 0x%02x at %" PRIu64, b.data[i], i);
  blob_free (&b);
  if (stayed && t->image.spec.data_file_raw) {
    blob_load (t->image.spec.data_file, &b);
    CHECK (b.len >= t->image.spec.size);
    compare (t, b.data, 0, t->image.spec.size, "the raw data file");
    blob_free (&b);
  }
  mixture_check_snapshots (&t->image);
  if (stayed && t->image.bitmap)
    check_bitmap (t);
}

/* From now on it is known what everybody's bytes are. */
static void
adopt_shared (struct trial *t)
{
  struct export *e = export_open (t->disk, "", false);
  unsigned i;

  CHECK (e != NULL);
  for (i = t->pieces.first[t->pieces.owners]; i < t->pieces.n; i++) {
    const struct piece *p = &t->pieces.all[t->pieces.index[i]];

    if (export_read (e, t->model + p->start, p->len, p->start) == -1)
      FAIL ("read: %m");
    compare_shared (t, t->model + p->start, p->start, p->len);
  }
  CHECK (export_close (e) == 0);
}

/* A client that only reads must see the same, and change nothing. */
static void
read_only_visit (struct trial *t, struct rng *rng)
{
  struct worker w = { .t = t };
  unsigned i;

  rng_init (&w.rng, rng_next (rng), 99);
  w.buf = malloc (3 << 20);
  CHECK (w.buf != NULL);
  come (&w, false);
  for (i = 0; i <= t->pieces.owners; i++) {
    w.id = i;
    check_own (&w);
  }
  leave (&w);
  free (w.buf);
}

static void
one_image (struct rng *rng)
{
  struct trial t = { .top = IMAGE };
  unsigned i, cycles;
  struct blob b;

  mixture_make (&t.image, IMAGE, rng);
  random_options (&t, rng);
  image_contents (IMAGE, NULL, &b);
  CHECK (b.len == t.image.spec.size);
  t.size = b.len;
  t.model = b.data;
  t.first = malloc (b.len);
  t.either = calloc (1, t.image.spec.size);
  CHECK (t.first != NULL && t.either != NULL);
  memcpy (t.first, b.data, b.len);
  printf ("%u: ", trials_number);
  mixture_print (&t.image);
  printf ("; %u threads, %u requests, cache %" PRIu64 ", slice %" PRIu64
          "%s%s%s%s%s%s\n", t.threads, t.ops, t.options.l2_cache, t.options.l2_slice,
          t.options.discard ? ", discard" : "",
          t.options.detect_zeroes ? ", detect zeroes" : "",
          t.options.compress ? ", compress" : "",
          t.options.copy_on_read ? ", copy on read" : "", t.moves ? ", moves" : "",
          t.image.hot ? ", hot" : t.slow ? ", slow" : "");
  fflush (stdout);

  pieces_make (&t.pieces, rng, t.image.spec.size, t.image.spec.cluster_size, 1, t.threads,
               t.image.hot || rng_below (rng, 2));
  cycles = 1 + rng_below (rng, 3);
  open_disk (&t);
  if (rng_below (rng, 2))
    read_only_visit (&t, rng);
  for (i = 0; i < cycles; i++) {
    run_workers (&t, rng);
    check_file (&t);
    adopt_shared (&t);
    if (rng_below (rng, 2)) {
      close_disk (&t);
      check_file (&t);
      open_disk (&t);
    }
    read_only_visit (&t, rng);
  }
  close_disk (&t);
  if (t.lives)
    printf ("%u changes, %u of them not possible\n", t.changes, t.refused);
  check_contents (&t);

  mixture_free (&t.image);
  pieces_free (&t.pieces);
  free ((char *) t.options.path);
  free (t.model);
  free (t.first);
  free (t.either);
}

int
main (void)
{
  printf ("%u images\n", trials_run ("model", 5, 1, one_image));
  return 0;
}
