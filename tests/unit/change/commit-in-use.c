/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Layers below the active one are committed while clients read and write the disk: at
 * each moment everybody reads what was written, or what was there before.
 *
 * Random chains of images: of any version, with clusters of any size, compressed ones,
 * subclusters, snapshots, over a raw file or not, some shorter than others.  One client
 * each writes and reads half of the disk; now and then another one reads a snapshot, and
 * stays longer than the commit.  Some commits are given up halfway, and begun again.
 *
 * Afterwards the layers that were committed are removed: the disk still shows the same,
 * to qemu-img, and all that is left has neither faults nor leaks.
 *
 * Environment: SEED repeats a run; ITERATIONS: how many chains (default: as many as are
 * possible in SECONDS, 5); FIRST: start with this one.
 */

#include <config.h>

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "util/bytes.h"
#include "util/cleanup.h"
#include "disk/export.h"
#include "change/commit.h"
#include "lib/images.h"
#include "lib/trials.h"

#define MOST_LAYERS 5
#define CLIENTS 2
#define STEP (UINT64_C (64) << 10)

struct client {
  struct disk *disk;
  struct rng rng;
  unsigned char *shown;         /* what the disk shows; of it, [start, end) is the
                                   client's */
  uint64_t start, end;
  pthread_t thread;
  atomic_bool ends;
  uint64_t requests;
};

struct trial {
  unsigned n;                   /* layers */
  struct image_spec specs[MOST_LAYERS];         /* 0: the active one */
  char names[MOST_LAYERS][16];
  struct blob contents;         /* of the disk */
  struct blob snapshot;         /* of the snapshot "s"; or nothing */
  struct disk *disk;
  struct client clients[CLIENTS];
};

static unsigned nr_commits, nr_given_up, nr_snapshots, nr_grown;
static uint64_t nr_requests;

/* --- clients --- */

static void
use (struct client *c, struct export *e, unsigned char *buf)
{
  const uint64_t share = (c->end - c->start) / 512;
  const uint64_t first = rng_below (&c->rng, share);
  const uint64_t n = 1 + rng_below (&c->rng, min64 (share - first, 200));
  const uint64_t at = c->start + first * 512, len = n * 512;

  switch (rng_below (&c->rng, 8)) {
  case 0:
    memset (buf, 1 + rng_below (&c->rng, 255), len);
    CHECK (export_write (e, buf, len, at, false) == 0);
    memcpy (c->shown + at, buf, len);
    break;
  case 1:
    CHECK (export_zero (e, len, at, REQUEST_MAY_TRIM, false) == 0);
    memset (c->shown + at, 0, len);
    break;
  case 2:
    CHECK (export_flush (e) == 0);
    break;
  default:
    CHECK (export_read (e, buf, len, at) == 0);
    for (uint64_t i = 0; i < len; i++)
      if (buf[i] != c->shown[at + i])
        FAIL ("the disk shows %02x at %" PRIu64 ", not %02x", buf[i], at + i,
              c->shown[at + i]);
  }
}

static void *
be_client (void *opaque)
{
  struct client *c = opaque;
  CLEANUP_FREE unsigned char *buf = malloc (200 * 512);
  struct export *e = export_open (c->disk, "", true);

  CHECK (buf && e && export_is_writable (e));
  while (!c->ends) {
    use (c, e, buf);
    c->requests++;
  }
  CHECK (export_close (e) == 0);
  return NULL;
}

static void
start_clients (struct trial *t, struct rng *rng)
{
  const uint64_t share = t->contents.len / 512 / CLIENTS * 512;

  for (unsigned i = 0; i < CLIENTS; i++) {
    struct client *c = &t->clients[i];

    *c = (struct client) {
      .disk = t->disk, .shown = t->contents.data, .start = i * share,
      .end = i == CLIENTS - 1 ? t->contents.len : (i + 1) * share,
    };
    rng_init (&c->rng, rng_next (rng), i);
    CHECK (pthread_create (&c->thread, NULL, be_client, c) == 0);
  }
}

static void
stop_clients (struct trial *t)
{
  for (unsigned i = 0; i < CLIENTS; i++) {
    t->clients[i].ends = true;
    CHECK (pthread_join (t->clients[i].thread, NULL) == 0);
    nr_requests += t->clients[i].requests;
  }
}

/* A part of it, or all. */
static void
check_snapshot (const struct trial *t, struct export *e, uint64_t at, uint64_t len)
{
  CLEANUP_FREE unsigned char *buf = malloc (len);

  CHECK (buf && export_read (e, buf, len, at) == 0);
  for (uint64_t i = 0; i < len; i++)
    if (buf[i] != t->snapshot.data[at + i])
      FAIL ("the snapshot shows %02x at %" PRIu64 ", not %02x", buf[i], at + i,
            t->snapshot.data[at + i]);
}

/* --- the commit --- */

/* Returns whether it was done. */
static bool
commit (const struct trial *t, const struct commit_layers *layers, struct export *snapshot,
        struct rng *rng)
{
  struct commit *c = commit_new (t->disk, layers);
  uint64_t copied = 0, at, size, given_up;
  bool reads;

  if (c == NULL && errno == EBUSY)
    return false;               /* a client, or a slow request, holds what was there */
  if (c == NULL)
    FAIL ("the commit cannot begin: %m (%s)", last_error ());
  size = commit_size (c);
  given_up = rng_below (rng, 3) ? UINT64_MAX : rng_below (rng, size + 1);
  for (at = 0; at < size; at += STEP) {
    if (at >= given_up) {
      commit_free (c);
      nr_given_up++;
      return false;
    }
    if (commit_range (c, at, min64 (at + STEP, size), &copied, &reads) == -1)
      FAIL ("the commit fails: %m (%s)", last_error ());
    if (snapshot)
      check_snapshot (t, snapshot, rng_below (rng, t->snapshot.len / 512) * 512, 512);
  }
  if (commit_finish (c) == -1)
    FAIL ("the commit does not end: %m (%s)", last_error ());
  commit_free (c);
  nr_commits++;
  return true;
}

/* Returns how many layers have gone. */
static unsigned
commit_some (struct trial *t, struct rng *rng)
{
  const unsigned top = 1 + rng_below (rng, t->n - 2);
  const struct commit_layers layers = {
    .top = top, .base = top + 1 + rng_below (rng, t->n - top - 1),
  };
  struct export *s = t->snapshot.data && rng_below (rng, 2) ? export_open (t->disk, "s", false)
    : NULL;
  bool done = false;

  printf ("%u to %u%s; ", layers.top, layers.base, s ? ", a client reads the snapshot" : "");
  fflush (stdout);
  while (!done) {
    done = commit (t, &layers, s, rng);
    if (s && (!done || rng_below (rng, 2))) {
      check_snapshot (t, s, 0, t->snapshot.len);
      CHECK (export_close (s) == 0);
      s = NULL;
    }
  }
  nr_grown += t->specs[layers.base].size < t->specs[layers.top].size;
  if (s) {
    check_snapshot (t, s, 0, t->snapshot.len);
    CHECK (export_close (s) == 0);
  }
  for (unsigned i = layers.top; i < layers.base; i++)
    CHECK (unlink (t->names[i]) == 0);
  for (unsigned i = layers.base; i < t->n; i++) {
    t->specs[i - (layers.base - layers.top)] = t->specs[i];
    strcpy (t->names[i - (layers.base - layers.top)], t->names[i]);
  }
  return layers.base - layers.top;
}

/* --- chains --- */

static struct image_spec
choose_image (struct rng *rng, uint64_t most)
{
  struct image_spec spec = {
    .version = 2 + (rng_below (rng, 4) > 0), .cluster_size = 512u << rng_below (rng, 8),
    .refcount_bits = 16, .compressed = rng_below (rng, 2),
    .size = most - (rng_below (rng, 2) ? 512 * rng_below (rng, most / 1024) : 0),
  };

  spec.extended = spec.version == 3 && spec.cluster_size >= 16384 && rng_below (rng, 3) == 0;
  return spec;
}

static void
make_chain (struct trial *t, struct rng *rng)
{
  const uint64_t size = 512 * (2048 + rng_below (rng, 4000));

  t->n = 3 + rng_below (rng, MOST_LAYERS - 2);
  for (unsigned i = t->n; i-- > 0;) {
    struct image_spec *s = &t->specs[i];

    *s = choose_image (rng, size);
    if (i == t->n - 1 && rng_below (rng, 3) == 0)
      *s = (struct image_spec) { .raw = true, .size = s->size };
    sprintf (t->names[i], "image%u", i);
    if (i < t->n - 1) {
      s->backing = t->names[i + 1];
      s->backing_raw = t->specs[i + 1].raw;
    }
    image_create (t->names[i], s);
    image_fill (t->names[i], s, rng, 2 + rng_below (rng, 12));
    s->compressed = false;      /* it is made only once */
    if (i == t->n - 1 && !s->raw && s->version >= 3 && rng_below (rng, 3) == 0) {
      image_snapshot (t->names[i], "below");
      image_fill (t->names[i], s, rng, 3);
    }
    printf ("%s", i < t->n - 1 ? " < " : "");
    image_print (s);
  }
  printf ("\n");
  image_contents (t->names[0], NULL, &t->contents);
  t->snapshot = (struct blob) { .data = NULL };
  if (rng_below (rng, 2)) {
    image_snapshot (t->names[0], "s");
    image_contents (t->names[0], NULL, &t->snapshot);
    image_fill (t->names[0], &t->specs[0], rng, 3);
    blob_free (&t->contents);
    image_contents (t->names[0], NULL, &t->contents);
    nr_snapshots++;
  }
}

static void
judge (struct trial *t)
{
  struct blob b;

  for (unsigned i = 0; i < t->n; i++)
    if (!t->specs[i].raw && image_check (t->names[i]) != 0)
      FAIL ("qemu-img check finds faults in %s", t->names[i]);
  image_contents (t->names[0], NULL, &b);
  CHECK (b.len == t->contents.len);
  for (uint64_t i = 0; i < b.len; i++)
    if (b.data[i] != t->contents.data[i])
      FAIL ("afterwards, the disk shows %02x at %" PRIu64 ", not %02x", b.data[i], i,
            t->contents.data[i]);
  blob_free (&b);
}

static void
one_chain (struct rng *rng)
{
  struct trial *t = calloc (1, sizeof *t);
  CLEANUP_FREE char *path = NULL;
  struct disk_options options;

  CHECK (t);
  make_chain (t, rng);
  path = images_path (t->names[0]);
  options = (struct disk_options) {
    .path = path, .l2_cache = rng_below (rng, 2) ? 1 << 20 : 4096, .l2_slice = 512,
    .backing = BACKING_FOLLOW, .discard = rng_below (rng, 4), .lock = rng_below (rng, 4),
  };
  CHECK (disk_open (&options, &t->disk) == 0);
  start_clients (t, rng);
  while (t->n > 2 && rng_below (rng, 5))
    t->n -= commit_some (t, rng);
  printf ("\n");
  stop_clients (t);
  CHECK (disk_close (t->disk) == 0);
  judge (t);
  blob_free (&t->contents);
  blob_free (&t->snapshot);
  free (t);
}

int
main (void)
{
  const unsigned n = trials_run ("commit-in-use", 5, 1, one_chain);

  printf ("%u chains, %u with snapshots, %u commits, %u given up, %u to a smaller base; "
          "%" PRIu64 " requests\n", n, nr_snapshots, nr_commits, nr_given_up, nr_grown,
          nr_requests);
  return 0;
}
