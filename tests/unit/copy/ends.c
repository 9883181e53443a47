/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Whatever is copied to whatever, with any options, the target shows what the source
 * does, as QEMU reads it: disks, views of them, raw files, pipes, and parts of several,
 * of any length.  What the target shows already is not written, if that is wanted.  Only
 * the sectors that cannot be read are lost, if that is wanted; otherwise it fails.  No
 * pace is exceeded.
 *
 * Environment: SEED repeats a run; ITERATIONS: how many copies.
 */

#include <config.h>

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "util/bytes.h"
#include "util/clock.h"
#include "copy/copy.h"
#include "disk/export.h"
#include "lib/images.h"

#define SIZE (UINT64_C (9) << 20)
#define PARTS 4

static const struct chunks_words words = { .path = "copy", .what = "copying" };

static struct {
  struct rng rng;
  struct blob contents;         /* of the source */
  struct disk *disk;
  struct export *export;
  struct storage *raw;          /* the same bytes */
  uint64_t bad, bad_len;        /* what cannot be read of "raw" */
  uint64_t lost;                /* bytes that were told of */
} t;

static int
before (void *opaque, const char *path, enum storage_op op, const struct iovec *iov,
        int niov, uint64_t offset, uint64_t count, bool dsync)
{
  (void) opaque, (void) path, (void) iov, (void) niov, (void) dsync;
  if (op != STORAGE_OP_READ || t.bad_len == 0 ||
      !ranges_overlap (offset, count, t.bad, t.bad_len))
    return 0;
  errno = EIO;
  return -1;
}

static const struct storage_hooks hooks = { .before = before };

/* --- pipes --- */

struct pump {
  pthread_t thread;
  int fds[2];
  struct blob *data;
};

static void *
feed (void *opaque)
{
  struct pump *p = opaque;
  ssize_t n;

  for (uint64_t at = 0; at < p->data->len; at += n) {
    n = write (p->fds[1], p->data->data + at, p->data->len - at);
    CHECK (n > 0);
  }
  return NULL;
}

static void *
drain (void *opaque)
{
  struct pump *p = opaque;
  ssize_t n;

  for (uint64_t at = 0; at < p->data->len; at += n) {
    n = read (p->fds[0], p->data->data + at, p->data->len - at);
    CHECK (n > 0);
  }
  return NULL;
}

static void
pump_begin (struct pump *p, struct blob *data, void *(*run) (void *))
{
  p->data = data;
  CHECK (pipe (p->fds) == 0);
  CHECK (pthread_create (&p->thread, NULL, run, p) == 0);
}

static void
pump_end (struct pump *p)
{
  pthread_join (p->thread, NULL);
  close (p->fds[0]);
  close (p->fds[1]);
}

/* --- sources --- */

struct source {
  struct copy_end end;
  struct blob expected;
  struct copy_part parts[PARTS];
  struct pump pump;
  struct copy_stream stream;
  bool piped;
};

/* Of those that need no order. */
static struct copy_end
choose_end (void)
{
  switch (rng_below (&t.rng, 3)) {
  case 0: return copy_export (t.disk, t.export);
  case 1: return copy_view (disk_inside (t.disk).view);
  default: return copy_storage (t.raw, false);
  }
}

/* Some of them reach beyond the end of their disk. */
static void
join (struct source *s)
{
  const unsigned n = 1 + rng_below (&t.rng, PARTS), unit = rng_below (&t.rng, 2) ? 512 : 1;
  const struct blob nothing = { .len = 0 };
  uint64_t at = 0;

  s->expected = blob_resized (&nothing, 2 * PARTS * SIZE);
  for (unsigned i = 0; i < n; i++) {
    struct copy_part *p = &s->parts[i];

    *p = (struct copy_part) {
      .end = choose_end (), .from = rng_below (&t.rng, SIZE / unit + 51200) * unit,
      .at = at, .len = (1 + rng_below (&t.rng, SIZE / unit)) * unit,
    };
    if (p->from < SIZE)
      memcpy (s->expected.data + at, t.contents.data + p->from,
              min64 (p->len, SIZE - p->from));
    at += p->len;
  }
  s->expected.len = at;
  s->end = copy_join (s->parts, n);
}

static void
source_begin (struct source *s)
{
  const unsigned kind = rng_below (&t.rng, 5);

  s->piped = kind == 0;
  if (kind > 2) {
    join (s);
    return;
  }
  s->expected = blob_copy (&t.contents);
  s->end = choose_end ();
  if (s->piped) {
    pump_begin (&s->pump, &s->expected, feed);
    s->stream = (struct copy_stream) { s->pump.fds[0], "pipe" };
    s->end = copy_stream (&s->stream, SIZE);
  }
}

static void
source_end (struct source *s)
{
  if (s->piped)
    pump_end (&s->pump);
  blob_free (&s->expected);
}

/* --- targets --- */

static void
check (const struct source *s, const struct blob *found)
{
  CHECK (blob_same (found, &s->expected));
}

static void
choose (struct copy *c, bool zeros_there, uint64_t unit)
{
  c->zeros = zeros_there ? rng_below (&t.rng, 3) : rng_below (&t.rng, 2) * COPY_ZEROS_WRITE;
  c->unit = rng_below (&t.rng, 2) ? unit : 0;
  c->sparse = rng_below (&t.rng, 2) ? max64 (c->unit, 512u << rng_below (&t.rng, 8)) : 0;
}

static uint64_t
copy (struct copy *c)
{
  uint64_t copied;

  CHECK (copy_all (c, &words, rng_below (&t.rng, 2), NULL, &copied) == 0);
  CHECK (copied <= c->from.size && c->to.ops->sync (&c->to) == 0);
  return copied;
}

static struct storage *
open_file (const char *name, const struct blob *contents)
{
  const struct storage_options options = { .try_writable = true };
  char *path = images_path (name);
  struct storage *file;

  blob_save (name, contents);
  CHECK (storage_open (path, &options, &file) == 0);
  free (path);
  return file;
}

static void
to_file (struct source *s)
{
  const bool is_new = rng_below (&t.rng, 2);
  struct blob found = blob_copy (&s->expected);
  struct copy c = { .from = s->end };
  struct storage *file;

  memset (found.data, 0x55, found.len);
  found.len = is_new ? 0 : found.len;
  file = open_file ("target", &found);
  blob_free (&found);
  CHECK (storage_truncate (file, s->end.size) == 0);
  c.to = copy_storage (file, rng_below (&t.rng, 2));
  choose (&c, is_new, 4096);
  copy (&c);
  storage_close (file);
  blob_load ("target", &found);
  check (s, &found);
  blob_free (&found);
}

/* To a file, much of which shows the same already, as another one tells. */
static void
to_similar (struct source *s)
{
  const uint64_t block = 512u << rng_below (&t.rng, 8), size = s->expected.len;
  struct blob found = blob_copy (&s->expected);
  struct copy c = { .from = s->end, .sparse = block };
  struct storage *target, *other;
  struct copy_end beside;
  uint64_t most = 0;

  for (unsigned i = rng_below (&t.rng, 40); i > 0; i--)
    memset (found.data + rng_below (&t.rng, size), rng_below (&t.rng, 2) * 0x55, 1);
  for (uint64_t at = 0; at < size; at += block)
    if (memcmp (found.data + at, s->expected.data + at, min64 (block, size - at)) != 0)
      most += min64 (block, size - at);
  target = open_file ("target", &found);
  other = open_file ("other", &found);
  blob_free (&found);
  c.to = copy_storage (target, rng_below (&t.rng, 2));
  beside = copy_storage (other, false);
  c.beside = &beside;
  c.zeros = rng_below (&t.rng, 2) * COPY_ZEROS_WRITE;
  CHECK (copy (&c) <= most);
  storage_close (target);
  storage_close (other);
  blob_load ("target", &found);
  check (s, &found);
  blob_free (&found);
}

/* New, or over a file that shows something else. */
static void
to_disk (struct source *s)
{
  const uint64_t size = round_up (s->end.size, 512);
  struct image_spec spec = {
    .version = 2 + rng_below (&t.rng, 2), .refcount_bits = 16, .size = size,
    .cluster_size = 512u << rng_below (&t.rng, 12),
  };
  struct disk_options options = {
    .path = images_path ("target.qcow2"), .l2_cache = 1 << 20, .l2_slice = 4096,
    .backing = BACKING_FOLLOW, .compress = rng_below (&t.rng, 3), .discard = true,
  };
  struct copy c = { .from = s->end };
  struct export *export;
  struct blob found;
  struct disk *disk;

  if (rng_below (&t.rng, 2)) {
    image_over_raw (&spec, &t.rng, 1 + rng_below (&t.rng, s->end.size), 2, &found);
    blob_free (&found);
  }
  unlink ("target.qcow2");
  image_create ("target.qcow2", &spec);
  CHECK (disk_open (&options, &disk) == 0);
  CHECK ((export = export_open (disk, "", true)) != NULL && export_is_writable (export));
  c.to = copy_export (disk, export);
  choose (&c, spec.backing == NULL, spec.cluster_size);
  copy (&c);
  CHECK (export_close (export) == 0 && disk_close (disk) == 0);
  CHECK (image_check ("target.qcow2") == 0);
  image_contents ("target.qcow2", NULL, &found);
  CHECK (found.len == size);
  found.len = s->end.size;
  check (s, &found);
  blob_free (&found);
  free ((char *) options.path);
}

static void
to_pipe (struct source *s)
{
  struct copy c = { .from = s->end };
  struct copy_stream stream = { .path = "pipe" };
  struct blob found = blob_resized (&s->expected, s->expected.len);
  struct pump pump;

  memset (found.data, 0x55, found.len);
  pump_begin (&pump, &found, drain);
  stream.fd = pump.fds[1];
  c.to = copy_stream (&stream, s->end.size);
  c.sparse = rng_below (&t.rng, 2) * 4096;
  copy (&c);
  pump_end (&pump);
  check (s, &found);
  blob_free (&found);
}

static void
copy_anything (void)
{
  void (*const to[]) (struct source *) = {
    to_file, to_similar, to_disk, to_disk, to_pipe
  };
  struct source s = { .piped = false };

  source_begin (&s);
  to[rng_below (&t.rng, 5)] (&s);
  source_end (&s);
}

/* --- what cannot be read --- */

static void
lose (void *opaque, uint64_t at, uint64_t len, int err)
{
  (void) opaque;
  CHECK (err == EIO && at >= t.bad && at + len <= t.bad + t.bad_len && len % 512 == 0);
  __atomic_fetch_add (&t.lost, len, __ATOMIC_RELAXED);
}

static void
salvage (void)
{
  struct source s = { .expected = blob_copy (&t.contents) };
  const unsigned long told = error_count ();
  struct copy c = { .from = copy_storage (t.raw, false) };
  uint64_t copied, bad = rng_below (&t.rng, SIZE / 512 - 64) * 512;
  struct storage *file;
  struct blob found;

  s.end = c.from;
  memset (s.expected.data + bad, 0xaa, 512);    /* data in any case */
  blob_save ("raw", &s.expected);
  t.bad = bad;
  t.bad_len = (1 + rng_below (&t.rng, 64)) * 512;
  c.to = c.from;
  quiet_errors = true;
  CHECK (copy_all (&c, &words, false, NULL, &copied) == -1 && errno == EIO);
  CHECK (error_count () == told + 2);
  quiet_errors = false;

  c.lost = lose;
  t.lost = 0;
  memset (s.expected.data + bad, 0, t.bad_len);
  file = open_file ("target", &t.contents);
  c.to = copy_storage (file, true);
  CHECK (copy_all (&c, &words, false, NULL, &copied) == 0);
  storage_close (file);
  t.bad_len = 0;
  blob_load ("target", &found);
  check (&s, &found);
  blob_free (&found);
  CHECK (t.lost >= 512 && error_count () == told + 2);
  blob_save ("raw", &t.contents);
  blob_free (&s.expected);
}

static void
keep_pace (void)
{
  const int64_t began = clock_ms ();
  const struct copy_part part = {
    .end = copy_export (t.disk, t.export), .len = UINT64_C (4) << 20,
  };
  struct copy c = { .from = copy_join (&part, 1), .rate = 20 << 20 };
  const struct copy_stream null = { open ("/dev/null", O_WRONLY), "/dev/null" };
  uint64_t copied;

  c.to = copy_stream (&null, part.len);
  c.zeros = COPY_ZEROS_WRITE;
  CHECK (copy_all (&c, &words, false, NULL, &copied) == 0 && copied == part.len);
  /* (The last piece of a MiB is not waited for.) */
  CHECK (clock_ms () - began >= 3 * 1000 / 20 - 1);
  close (null.fd);
}

int
main (void)
{
  const char *iterations = getenv ("ITERATIONS");
  const struct storage_options options = { .try_writable = true, .hooks = &hooks };
  struct disk_options disk = {
    .l2_cache = 1 << 20, .l2_slice = 4096, .backing = BACKING_FOLLOW,
  };
  struct image_spec spec = {
    .version = 3, .cluster_size = 65536, .refcount_bits = 16, .size = SIZE,
    .compressed = true,
  };
  char *raw;

  images_enter ("ends");
  rng_init (&t.rng, seed_from_env (), 0);
  raw = images_path ("raw");
  image_create ("disk.qcow2", &spec);
  image_fill ("disk.qcow2", &spec, &t.rng, 12);
  image_contents ("disk.qcow2", NULL, &t.contents);
  blob_save ("raw", &t.contents);
  disk.path = images_path ("disk.qcow2");
  CHECK (disk_open (&disk, &t.disk) == 0);
  CHECK ((t.export = export_open (t.disk, "", false)) != NULL);
  CHECK (storage_open (raw, &options, &t.raw) == 0);
  for (int i = 0; i < (iterations ? atoi (iterations) : 20); i++)
    copy_anything ();
  salvage ();
  keep_pace ();
  storage_close (t.raw);
  CHECK (export_close (t.export) == 0 && disk_close (t.disk) == 0);
  blob_free (&t.contents);
  free ((char *) disk.path);
  free (raw);
  images_leave ();
  return 0;
}
