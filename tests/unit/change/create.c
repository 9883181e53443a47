/* SPDX-License-Identifier: BSD-3-Clause
 *
 * create.c, newimage.c, newfile.c: images are created with random options and judged by
 * checker.c and header.c; each operation on the host fails in turn, and each allocation;
 * the order of syncs and names is checked; another program takes the name meanwhile;
 * hosts lack files without names, renameat2's flags, or fallocate.
 *
 * Functions below replace the system calls in question.
 *
 * Environment: SEED repeats a run; ITERATIONS: how many images (default 200, and 50
 * in the short suite).
 */

#include <config.h>

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "util/bytes.h"
#include "storage/newfile.h"
#include "format/format.h"
#include "format/header.h"
#include "change/create.h"
#include "change/newimage.h"
#include "lib/allocations.h"
#include "lib/checker.h"
#include "lib/images.h"
#include "lib/realcalls.h"

#define IMAGE "new.qcow2"
#define DATA "data.raw"

/* --- a host that can do less --- */

static struct {
  bool no_tmpfile, no_noreplace, no_fallocate;
} host;

int
openat (int dir, const char *name, int flags, ...)
{
  va_list args;
  unsigned mode;

  va_start (args, flags);
  mode = va_arg (args, unsigned);       /* 0 or so if there is none */
  va_end (args);
  if (host.no_tmpfile && (flags & O_TMPFILE) == O_TMPFILE) {
    errno = EOPNOTSUPP;
    return -1;
  }
  return REAL (openat, openat64) (dir, name, flags, mode);
}

int
renameat2 (int from_dir, const char *from, int to_dir, const char *to, unsigned flags)
{
  if (host.no_noreplace) {
    errno = EINVAL;
    return -1;
  }
  return REAL (renameat2, renameat2) (from_dir, from, to_dir, to, flags);
}

int
fallocate (int fd, int mode, off_t offset, off_t len)
{
  if (host.no_fallocate) {
    errno = EOPNOTSUPP;
    return -1;
  }
  return REAL (fallocate, fallocate64) (fd, mode, offset, len);
}

/* --- what the hooks see --- */

/* One file's life, as far as durability goes. */
struct life {
  bool dirty;                   /* changed since the last sync */
  bool linked, finished;
};

static struct {
  struct life image, data;
  unsigned count;               /* operations so far */
  unsigned fail_at;             /* this one fails; 0: none does */
  int fail_errno;
  bool failed;
  enum storage_op failed_op;
  const char *intruder;         /* appears just before it is linked; or NULL */
} seen;

static int
before (void *opaque, const char *path, enum storage_op op, const struct iovec *iov,
        int niov, uint64_t offset, uint64_t count, bool dsync)
{
  struct life *l = strstr (path, DATA) ? &seen.data : &seen.image;

  (void) opaque, (void) iov, (void) niov, (void) offset, (void) count, (void) dsync;
  seen.count++;
  switch (op) {
  case STORAGE_OP_WRITE:
  case STORAGE_OP_TRUNCATE:
  case STORAGE_OP_ALLOCATE:
  case STORAGE_OP_PUNCH:
    CHECK (!l->linked);         /* who has a name does not change */
    l->dirty = true;
    break;
  case STORAGE_OP_SYNC:
    l->dirty = false;
    break;
  case STORAGE_OP_LINK:
    CHECK (!l->dirty && !l->linked);
    /* The image names its data file, so that is there for good. */
    if (l == &seen.image && (seen.data.linked || seen.data.dirty))
      CHECK (seen.data.finished);
    break;
  case STORAGE_OP_SYNC_DIR:
    CHECK (l->linked);
    break;
  case STORAGE_OP_READ:
    break;
  }
  if (seen.count == seen.fail_at) {
    seen.failed = true;
    seen.failed_op = op;
    errno = seen.fail_errno;
    return -1;
  }
  if (op == STORAGE_OP_LINK) {
    if (seen.intruder && strstr (path, seen.intruder)) {
      FILE *f = fopen (path, "w");

      CHECK (f && fputs ("mine", f) >= 0 && fclose (f) == 0);
    }
    l->linked = true;
  }
  if (op == STORAGE_OP_SYNC_DIR)
    l->finished = true;
  return 0;
}

static const struct storage_hooks hooks = { .before = before };

static void
look_again (unsigned fail_at, int fail_errno)
{
  memset (&seen, 0, sizeof seen);
  seen.fail_at = fail_at;
  seen.fail_errno = fail_errno;
}

/* --- helpers --- */

static char *image_path, *data_path;

static void
tidy (void)
{
  unlink (IMAGE);
  unlink (DATA);
  CHECK (files_in (".") == 0);
}

static struct create_options
basic (void)
{
  return (struct create_options) {
    .path = image_path,
    .image = { .size = 1 << 20, .cluster_size = 65536, .version = 3,
               .refcount_bits = 16 },
    .iter_ms = 1, .secret = { .passphrase = "secret", .len = 6 },
    .file = { .hooks = &hooks },
  };
}

/* It stays. */
static int
make (const struct create_options *o)
{
  struct created *created = NULL;
  const int r = create_image (o, &created);

  CHECK ((created != NULL) == (r == 0));
  created_keep (created);
  return r;
}

static bool
fails (const struct create_options *o, int err, const char *text)
{
  const unsigned long n = error_count ();
  bool r;

  quiet_errors = true;
  r = make (o) == -1 && errno == err;
  quiet_errors = false;
  r = r && error_count () == n + 1 && strstr (last_error (), text) != NULL;
  if (!r)
    fprintf (stderr, "expected \"%s\", errno %d; got \"%s\", %m\n", text, err,
             last_error ());
  return r;
}

/* --- tests --- */

/* What checker.c knows; other features: see the shell tests. */
static struct create_options
random_options (struct rng *rng)
{
  struct create_options o = basic ();
  struct newimage_options *const i = &o.image;

  i->version = 2 + (rng_below (rng, 4) != 0);
  i->cluster_size = 512u << rng_below (rng, 13);
  i->size = rng_below (rng, i->cluster_size * (rng_below (rng, 2) ? 9000 : 20));
  i->size = min64 (i->size, 40 << 20);
  i->preallocation = rng_below (rng, 4);
  if (i->version == 3) {
    i->refcount_bits = 1u << rng_below (rng, 7);
    i->lazy_refcounts = rng_below (rng, 2);
    i->extended_l2 = i->cluster_size >= 16384 && rng_below (rng, 2);
  }
  return o;
}

/* A header that header.c accepts says what was asked for. */
static void
check_header (const struct blob *b, const struct create_options *o)
{
  const struct newimage_options *const i = &o->image;
  struct header h;

  CHECK (header_parse (IMAGE, b->data, min64 (b->len, HEADER_READ_SIZE), b->len,
                       &h) == 0);
  CHECK (h.version == i->version);
  CHECK (h.size == round_up (i->size, 512));
  CHECK (h.cluster_size == i->cluster_size);
  CHECK (1u << h.refcount_order == i->refcount_bits);
  CHECK (!(h.compatible & QCOW2_COMPAT_LAZY_REFCOUNTS) == !i->lazy_refcounts);
  CHECK (h.incompatible == (i->extended_l2 ? QCOW2_INCOMPAT_EXTENDED_L2 : 0));
  CHECK (h.autoclear == 0 && h.crypt_method == 0);
  CHECK (h.backing_file == NULL && h.data_file == NULL && h.nb_snapshots == 0);
  CHECK (h.l1_entries == h.l1_needed);
  header_free (&h);
}

#define HOST_BLOCK 4096

/* How many blocks of the image are stored.  To be called before the image is read: then
 * space that is only allocated would count, too. */
static uint64_t
stored_blocks (void)
{
  const int fd = open (IMAGE, O_RDONLY);
  off_t from = 0, to;
  uint64_t n = 0;

  CHECK (fd >= 0);
  for (; (from = lseek (fd, from, SEEK_DATA)) != -1; from = to) {
    to = lseek (fd, from, SEEK_HOLE);
    n += div_up (to, HOST_BLOCK) - from / HOST_BLOCK;
  }
  CHECK (close (fd) == 0);
  return n;
}

static uint64_t
blocks_with_data (const struct blob *b)
{
  uint64_t n = 0;

  for (size_t at = 0; at < b->len; at += HOST_BLOCK)
    n += !bytes_are_zero (b->data + at, min64 (HOST_BLOCK, b->len - at));
  return n;
}

static void
test_random (uint64_t seed, unsigned n)
{
  struct rng rng;

  rng_init (&rng, seed, 1);
  for (unsigned k = 0; k < n; k++) {
    const struct create_options o = random_options (&rng);
    struct check_result result;
    struct blob b;
    unsigned char *out;
    uint64_t stored;

    look_again (0, 0);
    CHECK (make (&o) == 0);
    CHECK (seen.image.finished && !seen.image.dirty);
    stored = stored_blocks ();
    blob_load (IMAGE, &b);
    CHECK (b.len % o.image.cluster_size == 0);
    checker_check (&b, &result);
    if (result.corruptions || result.leaks) {
      fprintf (stderr, "image %u: %s\n", k, result.first);
      abort ();
    }
    CHECK (result.allocated_end == b.len);      /* nothing behind, nothing missing */
    if (o.image.preallocation <= PREALLOCATION_METADATA)
      CHECK (stored == blocks_with_data (&b));  /* no zeros */
    check_header (&b, &o);
    if (o.image.size > 0) {
      const uint64_t size = round_up (o.image.size, 512);

      out = malloc (size);
      CHECK (out != NULL && checker_read (&b, NULL, out, size) == 0);
      CHECK (out[0] == 0 && memcmp (out, out + 1, size - 1) == 0);
      free (out);
    }
    blob_free (&b);
    tidy ();
  }
}

/* What newimage_fill makes does not depend on how it is asked. */
static void
test_pieces (uint64_t seed)
{
  struct rng rng;

  rng_init (&rng, seed, 2);
  for (unsigned k = 0; k < 100; k++) {
    struct create_options o = random_options (&rng);
    struct newimage n;
    uint8_t *whole, *pieces;
    uint64_t at, len;

    o.image.size = min64 (o.image.size, 4 << 20);
    CHECK (newimage_plan (&o.image, &n) == 0);
    whole = malloc (n.metadata_end);
    pieces = malloc (n.metadata_end);
    CHECK (whole && pieces);
    newimage_fill (&n, 0, whole, n.metadata_end);
    for (at = 0; at < n.metadata_end; at += len) {
      len = min64 (512 * (1 + rng_below (&rng, 40)), n.metadata_end - at);
      newimage_fill (&n, at, pieces + at, len);
    }
    CHECK (memcmp (whole, pieces, n.metadata_end) == 0);
    free (whole);
    free (pieces);
  }
}

/* Every operation fails once: there is nothing then, and no open files. */
static void
test_faults (const struct create_options *o, const char *name)
{
  static const int errors[] = { ENOSPC, EIO };
  const int fd = dup (0);
  unsigned k, n = 0;

  close (fd);
  for (unsigned e = 0; e < 2; e++)
    for (k = 1; ; k++) {
      look_again (k, errors[e]);
      quiet_errors = true;
      if (make (o) == 0) {
        quiet_errors = false;
        CHECK (!seen.failed);
        tidy ();
        break;
      }
      quiet_errors = false;
      /* (A failed sync is EIO, whatever the host said.) */
      if (!seen.failed ||
          errno != (seen.failed_op == STORAGE_OP_SYNC ? EIO : errors[e])) {
        fprintf (stderr, "operation %u: %s: %m\n", k, last_error ());
        abort ();
      }
      CHECK (files_in (".") == 0);
      n++;
    }
  CHECK (n >= 8);
  printf ("%s: %u failures\n", name, n);
  CHECK (dup (0) == fd);        /* the lowest that is free is the same */
  close (fd);
}

/* With this shortage; if that fails, again with memory. */
static void
make_in (const struct create_options *o, struct shortage shortage)
{
  const int fd = dup (0);
  int r, err;

  close (fd);
  look_again (0, 0);
  quiet_errors = shortage.times > 0;
  shortage_begin (shortage);
  r = SHORTAGE_MEETS (make (o));
  err = errno;
  quiet_errors = false;
  if (shortage_end () == 0)
    CHECK (r == 0);
  if (r == -1) {
    if (err != ENOMEM || files_in (".") > 0) {
      fprintf (stderr, "allocation %" PRIu64 " fails, times %" PRIu64 ": %s (%s), "
               "%u files are left\n", shortage.after, shortage.times, last_error (),
               strerror (err), files_in ("."));
      abort ();
    }
    look_again (0, 0);
    CHECK (make (o) == 0);
  }
  CHECK (seen.image.finished && !seen.image.dirty);
  CHECK (dup (0) == fd);
  close (fd);
  tidy ();
}

/* Memory runs out at each allocation, or at MOST ones: there is nothing then, or the
 * image. */
static void
test_memory (const struct create_options *o, size_t most, struct rng *rng,
             const char *name)
{
  uint64_t *which;
  size_t n;

  make_in (o, SHORTAGE_NONE);
  which = shortage_choose (rng, most, &n);
  for (size_t i = 0; i < n; i++) {
    make_in (o, (struct shortage) { which[i], 1 });
    make_in (o, (struct shortage) { which[i], UINT64_MAX });
  }
  CHECK (n > 0);
  free (which);
  printf ("%s: %zu times no memory\n", name, 2 * n);
}

static void
test_all_memory (uint64_t seed)
{
  struct create_options o = basic ();
  struct rng rng;

  rng_init (&rng, seed, 3);
  test_memory (&o, SIZE_MAX, &rng, "plain");
  o.image.preallocation = PREALLOCATION_FULL;
  test_memory (&o, SIZE_MAX, &rng, "full");
  o.image.preallocation = PREALLOCATION_FALLOC;
  o.image.data_file = DATA;
  o.data_path = data_path;
  o.encrypt = true;
  test_memory (&o, 15, &rng, "external data file, encrypted");
  o = basic ();
  o.image.backing_file = "../below.qcow2";
  o.image.backing_format = "qcow2";
  o.size_of_backing = true;
  test_memory (&o, SIZE_MAX, &rng, "over a backing file");
  host.no_tmpfile = host.no_noreplace = true;
  test_memory (&o, SIZE_MAX, &rng, "with a temporary name");
  memset (&host, 0, sizeof host);
}

static void
must_be_mine (const char *name)
{
  struct blob b;

  blob_load (name, &b);
  CHECK (b.len == 4 && memcmp (b.data, "mine", 4) == 0);
  blob_free (&b);
}

/* Somebody else takes the name while the image is being made. */
static void
test_races (struct create_options o)
{
  look_again (0, 0);
  seen.intruder = IMAGE;
  CHECK (fails (&o, EEXIST, "exists already"));
  must_be_mine (IMAGE);
  CHECK (files_in (".") == 1);        /* the data file was taken away again */
  tidy ();
  if (o.data_path) {
    look_again (0, 0);
    seen.intruder = DATA;
    CHECK (fails (&o, EEXIST, "exists already"));
    must_be_mine (DATA);
    CHECK (files_in (".") == 1);
    tidy ();
  }
}

static void
test_host (void)
{
  struct create_options plain = basic (), full = basic (), external = basic ();
  struct stat st;

  full.image.preallocation = PREALLOCATION_FULL;
  full.image.cluster_size = 512;
  external.image.preallocation = PREALLOCATION_FALLOC;
  external.image.data_file = DATA;
  external.data_path = data_path;
  for (int kind = 0; kind < 3; kind++) {
    host.no_tmpfile = kind >= 1;
    host.no_noreplace = kind >= 2;
    test_faults (&plain, "plain");
    test_faults (&full, "full");
    test_faults (&external, "external data file");
    test_races (plain);
    test_races (external);
  }
  memset (&host, 0, sizeof host);

  /* Space that can't be promised is written. */
  host.no_fallocate = true;
  look_again (0, 0);
  CHECK (make (&external) == 0);
  CHECK (stat (DATA, &st) == 0 && st.st_blocks * 512 >= st.st_size);
  CHECK (stat (IMAGE, &st) == 0 && st.st_blocks * 512 >= st.st_size);
  host.no_fallocate = false;
  tidy ();
}

static void
test_check (void)
{
  CHECK (newfile_check (image_path) == 0);
  CHECK (symlink ("nowhere", IMAGE) == 0);
  quiet_errors = true;
  CHECK (newfile_check (image_path) == -1 && errno == EEXIST);
  quiet_errors = false;
  tidy ();
}

static void
make_and_remove (const struct create_options *o)
{
  look_again (0, 0);
  CHECK (make (o) == 0);
  tidy ();
}

/* The last value that is possible, and the first one that is not. */
static void
test_limits (void)
{
  struct create_options o = basic ();

  for (unsigned i = 0; i < 2; i++) {
    o.image.cluster_size = i ? 512 : 2 << 20;
    make_and_remove (&o);
    o.image.cluster_size = i ? 256 : 4 << 20;
    CHECK (fails (&o, EINVAL, "between 512 and 2M"));
  }
  o.image.cluster_size = 3 * 512;
  CHECK (fails (&o, EINVAL, "between 512 and 2M"));

  o = basic ();
  for (unsigned i = 0; i < 2; i++) {
    o.image.refcount_bits = i ? 1 : 64;
    make_and_remove (&o);
    o.image.refcount_bits = i ? 3 : 128;
    CHECK (fails (&o, EINVAL, "power of two, up to 64"));
  }

  o = basic ();
  o.image.extended_l2 = true;
  o.image.cluster_size = 16 << 10;
  make_and_remove (&o);
  o.image.cluster_size = 8 << 10;
  CHECK (fails (&o, EINVAL, "16K or more"));

  o = basic ();
  o.image.data_file_raw = true;
  CHECK (fails (&o, EINVAL, "only an external data file can be raw"));

  o = basic ();
  o.image.data_file = "a\nb";
  o.data_path = data_path;
  CHECK (fails (&o, EINVAL, "contains the control character 0x0a"));
  CHECK (files_in (".") == 0);
}

static bool
there (const char *name)
{
  struct stat st;

  return lstat (name, &st) == 0;
}

/* What is withdrawn is what was made, and nobody else's. */
static void
test_withdraw (void)
{
  const struct storage_options reader = { .lock = true };
  struct create_options o = basic ();
  struct created *created;
  struct storage *file;

  o.image.data_file = DATA;
  o.data_path = data_path;
  o.file.lock = true;
  created_withdraw (NULL);
  created_keep (NULL);
  for (unsigned kind = 0; kind < 3; kind++) {
    host.no_tmpfile = kind >= 1;
    host.no_noreplace = kind >= 2;

    look_again (0, 0);
    CHECK (create_image (&o, &created) == 0 && files_in (".") == 2);
    created_withdraw (created);
    CHECK (files_in (".") == 0);

    /* Another file has its name by now. */
    look_again (0, 0);
    CHECK (create_image (&o, &created) == 0);
    CHECK (rename (IMAGE, "mine") == 0 && symlink ("mine", IMAGE) == 0);
    created_withdraw (created);
    CHECK (there (IMAGE) && there ("mine") && !there (DATA));
    CHECK (unlink ("mine") == 0);
    tidy ();

    /* It was deleted. */
    look_again (0, 0);
    CHECK (create_image (&o, &created) == 0 && unlink (IMAGE) == 0);
    created_withdraw (created);
    CHECK (files_in (".") == 0);

    /* Somebody reads it. */
    look_again (0, 0);
    CHECK (create_image (&o, &created) == 0);
    CHECK (storage_open (image_path, &reader, &file) == 0);
    quiet_errors = true;
    created_withdraw (created);
    quiet_errors = false;
    CHECK (strstr (last_error (), "the new image was not removed") != NULL);
    CHECK (there (IMAGE) && there (DATA));
    storage_close (file);
    tidy ();
  }
  memset (&host, 0, sizeof host);
}

/* Progress begins with nothing, goes up to the whole, and may stop it. */
static struct {
  unsigned steps, stop_at;      /* 0: never */
  uint64_t done, total;
} told;

static int
progress (void *opaque, uint64_t done, uint64_t total)
{
  (void) opaque;
  /* The first step, before any file is there, does not know the whole yet. */
  CHECK (told.steps == 0 ? done == 0 && files_in (".") == 0
         : done > told.done && done <= total);
  CHECK (told.steps <= 1 || told.total == total);
  told.steps++;
  told.done = done;
  told.total = total;
  if (told.steps != told.stop_at)
    return 0;
  errno = EINTR;
  return -1;
}

static void
test_progress (void)
{
  struct create_options o = basic ();
  unsigned steps;

  for (o.image.preallocation = PREALLOCATION_OFF;
       o.image.preallocation <= PREALLOCATION_FULL; o.image.preallocation++) {
    o.progress = progress;
    memset (&told, 0, sizeof told);
    look_again (0, 0);
    CHECK (make (&o) == 0);
    CHECK (told.done == told.total && told.total > 0);
    tidy ();
    /* In the first piece, and, if there are several, in the last one. */
    steps = told.steps;
    for (unsigned at = 1; at <= steps; at += at == 2 && steps > 3 ? steps - 2 : 1) {
      memset (&told, 0, sizeof told);
      told.stop_at = at;
      look_again (0, 0);
      CHECK (make (&o) == -1 && errno == EINTR && told.steps == at);
      CHECK (files_in (".") == 0);
    }
  }
}

int
main (void)
{
  const uint64_t seed = seed_from_env ();
  const char *iterations = getenv ("ITERATIONS");
  const struct image_spec below = {
    .version = 3, .cluster_size = 65536, .refcount_bits = 16, .size = 1 << 20,
  };

  images_enter ("create");
  shortage_spare (true);
  image_create ("below.qcow2", &below);
  CHECK (mkdir ("d", 0755) == 0 && chdir ("d") == 0);
  image_path = images_path ("d/" IMAGE);
  data_path = images_path ("d/" DATA);
  test_check ();
  test_limits ();
  test_withdraw ();
  test_random (seed, iterations ? atoi (iterations)
               : long_suite () ? 200 : 50);
  test_pieces (seed);
  test_host ();
  test_progress ();
  test_all_memory (seed);
  free (image_path);
  free (data_path);
  CHECK (chdir ("..") == 0);
  images_leave ();
  return 0;
}
