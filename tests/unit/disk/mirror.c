/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Can a disk be copied to another image, and move there, while clients use it?
 *
 * Several threads write, zero, flush and read, and others come and go.  Meanwhile the
 * disk moves from one image to the next: all of it (the new image stands alone), or what
 * its top image contains (the new one lies over the same files), with clusters of various
 * sizes; and it is copied to raw files.  What each thread has written is there at any
 * time, and at the end in the last image, for us and for qemu-img.  The image that a move
 * leaves behind, and each copy, shows one instant: of each thread all it had done by
 * then, in its order, no less than before the last step began, and no more than after
 * that.
 *
 * A target that fails, at any operation and for lack of memory, ends the copy and leaves
 * the disk as it was.  Targets that cannot be right are refused.
 *
 * Environment: SEED repeats a run; ROUNDS: how many moves (default: 4; with
 * ThreadSanitizer, in the short suite, 2).
 */

#include <config.h>

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "util/bytes.h"
#include "util/cleanup.h"
#include "change/overlay.h"
#include "disk/export.h"
#include "lib/allocations.h"
#include "lib/changes.h"
#include "lib/images.h"
#include "lib/shortage.h"
#include "lib/stubs.h"
#include "lib/trials.h"

#define MIB (UINT64_C (1) << 20)
#define THREADS 3
#define SHARE (2 * MIB)         /* of each thread, in bytes */
#define PART (SHARE / 8)        /* of a share, which is read now and then */
#define SIZE (THREADS * SHARE)
#define MOST_OPS 200000

struct op {
  uint32_t at, len;             /* in the share */
  uint8_t value;                /* 0: zeros */
};

/* What a thread has done, in its order. */
struct story {
  struct op *ops;
  atomic_uint done;
  unsigned char model[SHARE];   /* the end of it; the thread's own, as is the next one */
  unsigned char seen[SHARE];
  unsigned char told[SHARE];    /* after `told_ops' of them; the judge's own */
  unsigned told_ops;
};

static struct story stories[THREADS];
static struct disk *disk;
static atomic_bool ends;
static struct rng seeds;

/* Which operation on files called "target..." fails; UINT_MAX: none. */
static atomic_uint countdown = UINT_MAX;
static atomic_int fail_with;

static int
before (void *opaque, const char *path, enum storage_op op, const struct iovec *iov,
        int niov, uint64_t offset, uint64_t count, bool dsync)
{
  const char *name = strrchr (path, '/');

  (void) opaque, (void) op, (void) iov, (void) niov, (void) offset, (void) count;
  (void) dsync;
  if (countdown == UINT_MAX || name == NULL || strncmp (name, "/target", 7) != 0)
    return 0;
  if (countdown > 0) {
    countdown--;
    return 0;
  }
  errno = fail_with;
  return -1;
}

/* --- clients --- */

static void
change (struct export *e, struct rng *rng, struct story *s, uint64_t from)
{
  const unsigned i = s->done;
  const uint32_t len = 512 * (1 + rng_below (rng, rng_below (rng, 20) ? 60 : 1000));
  const uint32_t at = 512 * rng_below (rng, (SHARE - len) / 512 + 1);
  const uint8_t value = rng_below (rng, 4) ? 1 + rng_below (rng, 255) : 0;

  CHECK (i < MOST_OPS);
  s->ops[i] = (struct op) { at, len, value };
  memset (s->model + at, value, len);
  if (value && rng_below (rng, 8) == 0)
    CHECK (export_flush (e) == 0);
  if (value)
    CHECK (export_write (e, s->model + at, len, from + at, rng_below (rng, 9) == 0) == 0);
  else
    CHECK (export_zero (e, len, from + at, REQUEST_MAY_TRIM, false) == 0);
  s->done = i + 1;
}

static void
check_share (struct export *e, struct story *s, uint64_t from, uint32_t at, uint32_t len)
{
  CHECK (export_read (e, s->seen + at, len, from + at) == 0);
  CHECK (memcmp (s->seen + at, s->model + at, len) == 0);
}

static void *
client (void *opaque)
{
  struct story *s = opaque;
  const uint64_t from = SHARE * (s - stories);
  struct rng rng;

  rng_init (&rng, 1000 + from, 7);
  while (!ends) {
    struct export *e = export_open (disk, "", true);

    CHECK (e && export_is_writable (e));
    for (unsigned i = 0; i < 30 && s->done < MOST_OPS; i++) {
      change (e, &rng, s, from);
      if (i % 10 == 0)
        check_share (e, s, from, PART * rng_below (&rng, SHARE / PART), PART);
      usleep (rng_below (&rng, TRACES_THREADS ? 3000 : 300));
    }
    check_share (e, s, from, 0, SHARE);
    CHECK (export_close (e) == 0);
    if (s->done == MOST_OPS)    /* the machine is busy: only comes and leaves */
      usleep (10000);
  }
  return NULL;
}

/* --- instants --- */

static void
tell_one (struct story *s)
{
  const struct op *o = &s->ops[s->told_ops++];

  memset (s->told + o->at, o->value, o->len);
}

/* What each thread has surely done before, and may have done after. */
struct moments {
  unsigned from[THREADS], to[THREADS];
};

static void
note_done (unsigned done[THREADS])
{
  for (unsigned i = 0; i < THREADS; i++)
    done[i] = stories[i].done;
}

/* AT: where they differed.  (Under ThreadSanitizer, memcmp takes long.) */
static bool
shows_told (const struct story *s, const unsigned char *share, uint32_t *at)
{
  if (s->told[*at] != share[*at])
    return false;
  if (memcmp (s->told, share, SHARE) == 0)
    return true;
  for (*at = 0; *at < SHARE - 512 && s->told[*at] == share[*at]; *at += 512)
    ;
  return false;
}

static void
check_instant (const char *name, const struct blob *shown, const struct moments *m)
{
  CHECK (shown->len == SIZE);
  for (unsigned i = 0; i < THREADS; i++) {
    struct story *s = &stories[i];
    const unsigned char *share = shown->data + i * SHARE;
    uint32_t at = 0;

    while (s->told_ops < m->from[i])
      tell_one (s);
    while (!shows_told (s, share, &at)) {
      if (s->told_ops >= m->to[i] + 1)
        FAIL ("%s: the share of thread %u is that of no instant between %u and %u of its "
              "operations", name, i, m->from[i], m->to[i] + 1);
      while (s->told_ops >= s->done)    /* it was about to end */
        usleep (1000);
      tell_one (s);
    }
  }
}

static void
check_moment_of (const char *name, const struct moments *m)
{
  struct blob shown;

  CHECK (image_check (name) == 0);
  image_contents (name, NULL, &shown);
  check_instant (name, &shown, m);
  blob_free (&shown);
}

/* --- moves --- */

static struct disk_options options;

static void
make (const char *name, uint64_t size, const char *backing)
{
  const struct image_spec spec = {
    .version = 3, .cluster_size = 512u << rng_below (&seeds, 12), .refcount_bits = 16,
    .size = size, .backing = backing,
  };

  image_create (name, &spec);
}

/* (The memory is the test's.) */
static char *
path_of (const char *name)
{
  const bool before = shortage_spare (true);
  char *path = images_path (name);

  shortage_spare (before);
  return path;
}

static struct image *
open_image (const char *name, char **path)
{
  *path = path_of (name);
  return change_open_target (&options, *path);
}

static struct storage *
open_raw (const char *name)
{
  CLEANUP_FREE char *path = images_path (name);
  const struct storage_options o = {
    .try_writable = true, .lock = true, .hooks = options.hooks,
  };
  struct storage *raw;

  return storage_open (path, &o, &raw) == 0 ? raw : NULL;
}

/* Copies until it is ready; then follows for a moment. */
static int
copy (struct follow *f)
{
  unsigned idle = 0;
  uint64_t copied;

  while (idle < 3)
    switch (follow_step (f, 128 * 1024, &copied)) {
    case -1:
      return -1;
    case 0:
      idle++;
      usleep (2000);
    }
  return 0;
}

static int
run_to_end (struct follow *f, int (*finish) (void *), void *opaque, struct moments *moments)
{
  int r;

  do {
    do
      r = copy (f);
    while (r == 0 && (r = follow_near (f)) == 1);
    note_done (moments->from);
    if (r == 0)
      r = finish (opaque);
    note_done (moments->to);
  }
  while (r == -1 && errno == EAGAIN);
  return r;
}

static int
pivot (void *opaque)
{
  return mirror_pivot (opaque);
}

static int
finish_copy (void *opaque)
{
  return mirror_finish (opaque);
}

static int
pivot_down (void *opaque)
{
  return commit_pivot (opaque);
}

static int
stay (void *opaque)
{
  return commit_stay (opaque);
}

static int
run (struct mirror *m, int (*finish) (void *), struct moments *moments)
{
  return run_to_end (mirror_follow (m), finish, m, moments);
}

/* The disk moves to the image NAME.  -1: it stays. */
static int
move (const char *name, enum mirror_sync sync, struct moments *moments)
{
  struct mirror_options o = { .sync = sync };
  CLEANUP_FREE char *path = NULL;
  struct mirror *m;
  int r;

  o.target.image = open_image (name, &path);
  if (o.target.image == NULL)
    return -1;
  o.target.backing = sync == MIRROR_TOP ? BACKING_FOLLOW : BACKING_IGNORE;
  r = mirror_begin (disk, &o, &m);
  if (r == 0) {
    r = run (m, pivot, moments);
    KEEP_ERRNO_FOR_BLOCK;
    mirror_end (m);
  }
  KEEP_ERRNO_FOR_BLOCK;
  image_close (o.target.image);
  return r;
}

static int
copy_to_raw (const char *name, struct moments *moments)
{
  struct mirror_options o = { .sync = MIRROR_FULL };
  struct mirror *m;
  int r;

  o.target.raw = open_raw (name);
  if (o.target.raw == NULL)
    return -1;
  r = mirror_begin (disk, &o, &m);
  if (r == 0) {
    CHECK (mirror_why_no_pivot (m));
    r = run (m, finish_copy, moments);
    KEEP_ERRNO_FOR_BLOCK;
    mirror_end (m);
  }
  KEEP_ERRNO_FOR_BLOCK;
  storage_close (o.target.raw);
  return r;
}

static void
make_raw (const char *name, uint64_t size, int value)
{
  struct blob b = { .data = malloc (size), .len = size };

  CHECK (b.data);
  memset (b.data, value, size);
  blob_save (name, &b);
  blob_free (&b);
}

/* Clients do not wait for much: the copy has to go on before. */
static void
check_much (void)
{
  CLEANUP_FREE char *path = images_path ("memory.qcow2"), *to = NULL;
  struct mirror_options o = { .sync = MIRROR_FULL };
  struct blob shown = { .data = malloc (8 * MIB), .len = 8 * MIB };
  const unsigned long errors = error_count ();
  struct moments moments;
  struct export *e;
  struct mirror *m;

  make ("memory.qcow2", shown.len, NULL);
  make ("target.qcow2", shown.len, NULL);
  options.path = path;
  CHECK (shown.data && disk_open (&options, &disk) == 0);
  memset (shown.data, 7, shown.len);
  e = export_open (disk, "", true);
  o.target.image = open_image ("target.qcow2", &to);
  o.target.backing = BACKING_IGNORE;
  CHECK (e && o.target.image && mirror_begin (disk, &o, &m) == 0);
  CHECK (copy (mirror_follow (m)) == 0 && follow_near (mirror_follow (m)) == 0);
  CHECK (export_write (e, shown.data, shown.len, 0, false) == 0);
  CHECK (follow_near (mirror_follow (m)) == 1);
  CHECK (mirror_finish (m) == -1 && errno == EAGAIN);
  CHECK (mirror_pivot (m) == -1 && errno == EAGAIN);
  CHECK (error_count () == errors);
  CHECK (run (m, pivot, &moments) == 0);
  mirror_end (m);
  image_close (o.target.image);
  CHECK (export_close (e) == 0 && disk_close (disk) == 0);
  CHECK (image_check ("target.qcow2") == 0);
  CHECK (image_shows ("target.qcow2", NULL, &shown));
  blob_free (&shown);
}

static void
check_raw_copy (unsigned i)
{
  struct moments moments;
  struct blob shown;
  char name[24];

  snprintf (name, sizeof name, "copy%u.raw", i);
  make_raw (name, SIZE, i % 2 ? 0x55 : 0);
  CHECK (copy_to_raw (name, &moments) == 0);
  blob_load (name, &shown);
  check_instant (name, &shown, &moments);
  blob_free (&shown);
  unlink (name);
}

/* What a target contains already would hide what is below it. */
static void
check_used_top (const char *backing)
{
  CLEANUP_FREE char *path = images_path ("used.qcow2");
  struct disk_options o = options;
  struct moments moments;
  struct disk *used;
  struct export *e;

  make ("used.qcow2", SIZE, backing);
  o.path = path;
  CHECK (disk_open (&o, &used) == 0);
  e = export_open (used, "", true);
  CHECK (e && export_write (e, "x", 1, SIZE - 1, false) == 0);
  CHECK (export_close (e) == 0 && disk_close (used) == 0);
  quiet_errors = true;
  CHECK (move ("used.qcow2", MIRROR_TOP, &moments) == -1 && errno == ENOTSUP);
  quiet_errors = false;
  CHECK (strstr (last_error (), "data of its own"));
  unlink ("used.qcow2");
}

/* The disk moves to an image of its own, gets one on top, and moves the top alone. */
static void
move_on (unsigned i, char last[24])
{
  struct moments moments;
  char whole[24], top[24], next[24];
  CLEANUP_FREE char *path = NULL;
  struct overlay overlay = { .create = true };

  snprintf (whole, sizeof whole, "whole%u.qcow2", i);
  snprintf (top, sizeof top, "top%u.qcow2", i);
  snprintf (next, sizeof next, "next%u.qcow2", i);
  make (whole, SIZE, NULL);
  CHECK (move (whole, MIRROR_FULL, &moments) == 0);
  check_moment_of (last, &moments);
  unlink (last);

  overlay.path = path = images_path (top);
  CHECK (overlay_disk (disk, &overlay) == 0);
  usleep (rng_below (&seeds, 20000));
  check_used_top (whole);
  make (next, SIZE, whole);
  CHECK (move (next, MIRROR_TOP, &moments) == 0);
  check_moment_of (top, &moments);
  unlink (top);
  CHECK (image_check (whole) == 0);
  snprintf (last, 24, "%s", next);
}

static void
commit_to (const char *base, bool pivots)
{
  static const struct commit_layers layers = { .base = 1, .follows = true };
  struct moments moments;
  struct commit *c;

  while ((c = commit_new (disk, &layers)) == NULL)      /* a request takes long */
    CHECK (errno == EBUSY);
  CHECK (commit_begin (c) == 0);
  CHECK (run_to_end (commit_follow (c), pivots ? pivot_down : stay, c, &moments) == 0);
  commit_free (c);
  if (!pivots)
    check_moment_of (base, &moments);
}

/* The top is copied to the image below it, and the disk moves there. */
static void
move_down (unsigned i, char last[24])
{
  char whole[24];

  snprintf (whole, sizeof whole, "whole%u.qcow2", i);
  commit_to (whole, false);
  commit_to (whole, true);
  unlink (last);
  memcpy (last, whole, sizeof whole);
}

/* --- what cannot be --- */

static void
check_refused (const char *name, enum mirror_sync sync, int err)
{
  struct moments moments;

  if (move (name, sync, &moments) == 0 || errno != err)
    FAIL ("%s: %m (%s)", name, last_error ());
}

static void
check_refusals (const char *last)
{
  struct moments moments;
  const unsigned long errors = error_count ();

  quiet_errors = true;
  make ("short.qcow2", SIZE - 512, NULL);
  check_refused ("short.qcow2", MIRROR_FULL, EINVAL);
  make ("long.qcow2", SIZE + 512, NULL);
  check_refused ("long.qcow2", MIRROR_FULL, EINVAL);
  make ("alone.qcow2", SIZE, NULL);
  check_refused ("alone.qcow2", MIRROR_TOP, ENOTSUP);
  check_refused ("alone.qcow2", MIRROR_NONE, ENOTSUP);
  CHECK (move (last, MIRROR_FULL, &moments) == -1);
  make_raw ("short.raw", SIZE - 512, 0);
  CHECK (copy_to_raw ("short.raw", &moments) == -1 && errno == EINVAL);
  quiet_errors = false;
  CHECK (error_count () >= errors + 6);
  unlink ("short.qcow2");
  unlink ("long.qcow2");
  unlink ("alone.qcow2");
}

/* --- targets that fail --- */

static unsigned nr_failed;

static void
fail_after (unsigned n, bool raw)
{
  const char *name = raw ? "target.raw" : "target.qcow2";
  struct moments moments;
  int r, err;

  if (raw)
    make_raw (name, SIZE, 0x33);
  else
    make (name, SIZE, NULL);
  fail_with = n % 2 ? EIO : ENOSPC;
  countdown = n;
  quiet_errors = true;
  r = raw ? copy_to_raw (name, &moments) : move (name, MIRROR_FULL, &moments);
  err = errno;
  countdown = UINT_MAX;
  quiet_errors = false;
  nr_failed += r == -1;
  if (r == -1 && err != fail_with && err != EIO)
    FAIL ("after %u operations: %s", n, strerror (err));
  CHECK (r == -1 || raw);       /* so many operations there are */
  unlink (name);
}

static void
fail_targets (void)
{
  for (unsigned n = 0; n < 40; n += 1 + n / 4) {
    fail_after (n, false);
    fail_after (n, true);
  }
  CHECK (nr_failed > 10);
}

/* One move, of a disk of its own. */
static void
move_without_memory (struct shortage shortage)
{
  struct moments moments;
  struct export *e;
  uint64_t failures;
  int r;

  make ("memory.qcow2", SIZE, NULL);
  make ("target.qcow2", SIZE, NULL);
  CHECK (disk_open (&options, &disk) == 0);
  e = export_open (disk, "", true);
  CHECK (e && export_is_writable (e));
  CHECK (export_write (e, "x", 1, 0, false) == 0);
  shortage_begin (shortage);
  r = move ("target.qcow2", MIRROR_FULL, &moments);
  failures = shortage_end ();
  CHECK (r == 0 || failures > 0);
  /* (The new image may not have become writable.) */
  if (export_write (e, "y", 1, 512, true) == -1)
    CHECK (r == 0 && failures > 0 && errno == EIO);
  export_close (e);
  disk_close (disk);
  CHECK (image_check ("memory.qcow2") == 0);
  CHECK (r == -1 || image_check ("target.qcow2") == 0);
}

static void
fail_memory (void)
{
  CLEANUP_FREE uint64_t *chosen = NULL;
  CLEANUP_FREE char *path = images_path ("memory.qcow2");
  size_t n;

  options.path = path;
  quiet_errors = true;
  move_without_memory (SHORTAGE_NONE);
  chosen = shortage_choose (&seeds, 60, &n);
  CHECK (n > 10);
  for (size_t i = 0; i < n; i++)
    move_without_memory ((struct shortage) { chosen[i], 1 });
  quiet_errors = false;
}

static void
check_end (const char *last)
{
  struct blob shown = { .data = malloc (SIZE), .len = SIZE };

  CHECK (shown.data);
  for (unsigned i = 0; i < THREADS; i++)
    memcpy (shown.data + i * SHARE, stories[i].model, SHARE);
  CHECK (image_check (last) == 0);
  CHECK (image_shows (last, NULL, &shown));
  blob_free (&shown);
}

int
main (void)
{
  static const struct storage_hooks hooks = { .before = before };
  const char *asked = getenv ("ROUNDS");
  const unsigned rounds = asked ? strtoul (asked, NULL, 10)
    : TRACES_THREADS && !long_suite () ? 2 : 4;
  char last[24] = "first.qcow2";
  CLEANUP_FREE char *path = NULL;
  pthread_t threads[THREADS];

  options = (struct disk_options) {
    .l2_cache = MIB, .l2_slice = 4096, .lock = true, .discard = true,
    .backing = BACKING_FOLLOW, .hooks = &hooks,
  };
  images_enter ("mirror");
  rng_init (&seeds, seed_from_env (), 1);
  fail_memory ();
  check_much ();
  make ("first.qcow2", SIZE, NULL);
  options.path = path = images_path ("first.qcow2");
  options.checkpoint_interval_ms = 50;
  CHECK (disk_open (&options, &disk) == 0);
  for (unsigned i = 0; i < THREADS; i++) {
    stories[i].ops = malloc (MOST_OPS * sizeof (struct op));
    CHECK (stories[i].ops);
    CHECK (pthread_create (&threads[i], NULL, client, &stories[i]) == 0);
  }
  for (unsigned i = 0; i < rounds; i++) {
    check_raw_copy (i);
    move_on (i, last);
    if (i % 2 == 0)
      move_down (i, last);
  }
  check_refusals (last);
  fail_targets ();
  ends = true;
  for (unsigned i = 0; i < THREADS; i++) {
    CHECK (pthread_join (threads[i], NULL) == 0);
    free (stories[i].ops);
  }
  CHECK (disk_close (disk) == 0);
  check_end (last);
  images_leave ();
  return 0;
}
