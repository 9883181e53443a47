/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What becomes of each service of the core when memory runs out, or the host fails?
 *
 * Random images (lib/mixture) are served with all their exports, alone and from their
 * directory, written with random options, described, mapped and checked with a
 * report.  Each of these is done again and again, and each time another
 * allocation fails (once, or all from then on), or another operation on a file:
 *
 *   - it succeeds nevertheless, or fails with ENOMEM, or with the host's error, and says
 *     why
 *   - an image is not called corrupt for lack of memory
 *   - a report that failed leaves nothing behind, under any name, but an older report as
 *     it was
 *   - no descriptor stays open (nor, with AddressSanitizer, memory allocated)
 *   - the next time it succeeds
 *   - who only reads changes no byte; who writes leaves metadata without faults, and
 *     without leaks if nothing failed, nor autoclear bits that nobody knows (R8)
 *
 * (What was written is there: see crash/every-allocation and crash/faults.)
 *
 * Environment: SEED repeats a run; ITERATIONS: how many images (default: as many as are
 * possible in SECONDS, 4); FIRST: start with this one; ALLOCATIONS=all: see
 * lib/shortage.h.  Image 0 is always the same small one, and unless it is behind NBD, it
 * meets all accidents.
 */

#include <config.h>

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

#include "util/bytes.h"
#include "util/cleanup.h"
#include "check/check.h"
#include "disk/dir.h"
#include "disk/export.h"
#include "disk/chaininfo.h"
#include "disk/chainmap.h"
#include "lib/allocations.h"
#include "lib/checker.h"
#include "lib/images.h"
#include "lib/mixture.h"
#include "lib/reach.h"
#include "lib/trials.h"

#define IMAGE "top.qcow2"
#define REPORT "report"
#define BIG (64u << 10)         /* of a request */
#define MOST_NAMES 16
#define REQUESTS 16             /* of a client that writes */
/* An autoclear bit without a meaning. */
#define AUTOCLEAR_AT 88
#define AUTOCLEAR_UNKNOWN (UINT64_C (1) << 40)

/* Accidents of each kind for a service: even if there is no time, and even if there is
 * more (other images are more of a change). */
#define LEAST 2
#define MOST 25

static struct mixture image;            /* of this trial */
static struct disk_options options;
static uint64_t requests_seed;
static bool thorough;           /* all accidents */
static char *report_path, *directory;
static bool was_written;        /* a client could write */
static unsigned nr_failures;

/* --- operations that fail --- */

#define GROWING (1 << STORAGE_OP_WRITE | 1 << STORAGE_OP_TRUNCATE | \
                 1 << STORAGE_OP_ALLOCATE)

static const struct kind {
  const char *name;
  unsigned ops;
  int err;
} kinds[] = {
  { "read", 1 << STORAGE_OP_READ, EIO },
  { "change", GROWING | 1 << STORAGE_OP_PUNCH | 1 << STORAGE_OP_SYNC, EIO },
  { "growth", GROWING, ENOSPC },
};
#define NR_KINDS (sizeof kinds / sizeof kinds[0])

static const struct kind *kind = &kinds[0];     /* of which ... */
static atomic_uint_fast64_t operations;
static uint64_t failing;        /* ... this one fails; from 1 */

static int
before (void *opaque, const char *path, enum storage_op op, const struct iovec *iov,
        int niov, uint64_t offset, uint64_t count, bool dsync)
{
  (void) opaque, (void) path, (void) iov, (void) niov, (void) offset, (void) count;
  (void) dsync;
  if ((kind->ops & 1u << op) && ++operations == failing) {
    errno = kind->err;
    return -1;
  }
  return op == STORAGE_OP_SYNC; /* no power is cut here */
}

static const struct storage_hooks hooks = { .before = before };

/* --- services: each returns 0, or -1 with errno --- */

struct names {
  char *list[MOST_NAMES];
  unsigned n;
};

static int
add_name (void *opaque, const char *name, const char *description)
{
  struct names *names = opaque;
  const bool was_spared = shortage_spare (true);
  char *copy = strdup (name);

  (void) description;
  shortage_spare (was_spared);
  CHECK (copy && names->n < MOST_NAMES);
  names->list[names->n++] = copy;
  return 0;
}

static void
free_names (struct names *names)
{
  for (unsigned i = 0; i < names->n; i++)
    free (names->list[i]);
}

static int
ignore_extent (void *opaque, uint64_t offset, uint64_t len,
               enum extent_type type)
{
  (void) opaque, (void) offset, (void) len, (void) type;
  return 0;
}

/* All that a client can ask for without writing. */
static int
use_export (struct disk *disk, const char *name)
{
  static char buf[BIG];
  struct export *e = export_open (disk, name, false);
  uint64_t n, size;
  int r = 0;

  if (e == NULL)
    return -1;
  size = export_size (e);
  for (uint64_t at = 0; r == 0 && at < size; at += n) {
    n = min64 (BIG, size - at);
    r = export_read (e, buf, n, at);
  }
  if (r == 0)
    r = export_cache (e, size, 0);
  if (r == 0)
    r = export_extents (e, size, 0, false, ignore_extent, NULL);
  KEEP_ERRNO_FOR_BLOCK;
  CHECK (export_close (e) == 0);
  return r;
}

static int
use_exports (struct disk *disk)
{
  struct names names = { .n = 0 };
  unsigned unlisted;
  int r = exports_list (disk, add_name, &names, &unlisted);

  for (unsigned i = 0; r == 0 && i < names.n; i++)
    r = use_export (disk, names.list[i]);
  KEEP_ERRNO_FOR_BLOCK;
  free_names (&names);
  return r;
}

static int
serve (void)
{
  struct disk *disk;
  int r;

  if (reach_open (&options, &disk) == -1)
    return -1;
  r = use_exports (disk);
  KEEP_ERRNO_FOR_BLOCK;
  CHECK (disk_close (disk) == 0);
  return r;
}

static int
serve_from_directory (void)
{
  struct disk_options all = options;
  struct names names = { .n = 0 };
  struct disk_stats stats;
  struct dir_image *entered;
  const char *export;
  unsigned unlisted;
  struct dir *dir;
  int r;

  all.path = directory;
  if (dir_open (&all, &dir) == -1)
    return -1;
  r = dir_list (dir, add_name, &names, &unlisted);
  free_names (&names);
  entered = r == -1 ? NULL : dir_enter (dir, IMAGE, &export);
  r = entered ? use_export (dir_disk (entered), export) : -1;
  KEEP_ERRNO_FOR_BLOCK;
  dir_get_stats (dir, &stats);
  if (entered)
    dir_leave (dir, entered);
  CHECK (dir_close (dir) == 0);
  return r;
}

/* Request number I, always the same. */
static int
make_request (struct export *e, struct rng *rng)
{
  static char buf[BIG];
  const uint64_t size = export_size (e);
  const uint64_t at = rng_below (rng, size);
  const uint64_t n = 1 + rng_below (rng, min64 (BIG, size - at));
  const bool fua = rng_below (rng, 4) == 0;

  memset (buf, rng_below (rng, 3) ? rng_next (rng) : 0, n);
  switch (rng_below (rng, 6)) {
  case 0: return export_zero (e, n, at, rng_below (rng, 2) ? REQUEST_MAY_TRIM : 0, fua);
  case 1: return export_trim (e, n, at, fua);
  case 2: return export_flush (e);
  case 3: return export_read (e, buf, n, at);
  default: return export_write (e, buf, n, at, fua);
  }
}

/* The first failure counts; the client goes on.  In the end it reads everything. */
static int
write_export (struct export *e)
{
  struct rng rng;
  int err = 0;

  rng_init (&rng, requests_seed, 0);
  for (unsigned i = 0; i < REQUESTS; i++)
    if (make_request (e, &rng) == -1 && err == 0)
      err = errno;
  errno = err;
  return err ? -1 : 0;
}

/* (What a failure leaves may be read-only.) */
static int
serve_writer (void)
{
  struct export *e = NULL;
  struct disk *disk;
  int r = -1, err;

  if (reach_open (&options, &disk) == -1)
    return -1;
  e = export_open (disk, "", true);
  was_written = e && export_is_writable (e);
  if (e)
    r = was_written ? write_export (e) : 0;
  err = errno;
  if (r == 0 && image.bitmap && (r = use_export (disk, "bitmap:" MIXTURE_BITMAP)) == -1)
    err = errno;
  if (e && export_close (e) == -1 && r == 0) {
    r = -1;
    err = errno;
  }
  if (disk_close (disk) == -1 && r == 0) {
    r = -1;
    err = errno;
  }
  errno = err;
  return r;
}

static int
describe (void)
{
  const struct disk_options o = reach_disk (&options);
  json_t *info = chaininfo_describe (&o, IMAGE, true);
  KEEP_ERRNO_FOR_BLOCK;

  json_decref (info);
  return info ? 0 : -1;
}

static int
ignore_entry (void *opaque, const struct map_entry *e)
{
  (void) opaque, (void) e;
  return 0;
}

static int
map (void)
{
  struct disk *disk;
  int r;

  if (reach_open (&options, &disk) == -1)
    return -1;
  r = chainmap_each (disk_inside (disk).view->layers, NULL, ignore_entry, NULL);
  KEEP_ERRNO_FOR_BLOCK;
  CHECK (disk_close (disk) == 0);
  return r;
}

static int
check (void)
{
  const struct check_options o = {
    .mode = CHECK_FULL, .path = options.path, .report = report_path,
    .chain = disk_chain_options (&options),
  };
  struct check *c;
  int r;

  if (reach_check (&o, &c) == -1)
    return -1;
  r = check_finish (c, true);
  KEEP_ERRNO_FOR_BLOCK;
  check_free (c);
  return r;
}

static const struct service {
  const char *name;
  int (*run) (void);
  bool needs_files;             /* it cannot be had over NBD */
  bool writes;
  bool judges;                  /* what cannot be read is a corruption, in its report */
} services[] = {
  { "exports", serve, .writes = false },
  { "directory", serve_from_directory, .needs_files = true },
  { "writer", serve_writer, .writes = true },
  { "info", describe, .writes = false },
  { "map", map, .writes = false },
  { "check", check, .judges = true },
};
#define NR_SERVICES (sizeof services / sizeof services[0])

/* --- accidents --- */

static unsigned
count_files (void)
{
  DIR *d = opendir (".");
  unsigned n = 0;

  CHECK (d != NULL);
  while (readdir (d))
    n++;
  closedir (d);
  return n;
}

/* The files that a writer changes, as they were. */
static struct blob first, first_data;

static void
judge_image (const struct service *s, bool fault, bool good)
{
  struct check_result result;
  struct blob now;

  blob_load (IMAGE, &now);
  if (!s->writes && !blob_same (&first, &now))
    FAIL ("%s has changed the image", s->name);
  checker_check (&now, &result);
  if (result.corruptions > 0 || (result.leaks > 0 && !fault))
    FAIL ("%s leaves faults: %s", s->name, result.first);
  if (s->writes && good && was_written && image.spec.version == 3 &&
      blob_get (&now, AUTOCLEAR_AT, 8) & AUTOCLEAR_UNKNOWN)
    FAIL ("%s keeps an autoclear bit that nobody knows", s->name);
  blob_free (&now);
  if (!s->writes)
    return;
  blob_save (IMAGE, &first);
  if (image.spec.data_file)
    blob_save (image.spec.data_file, &first_data);
}

/* The last report of each service: there when the next one is written, every other
 * time. */
static struct blob reports[NR_SERVICES];

static struct blob *
put_older_report (const struct service *s)
{
  static unsigned n;
  struct blob *older = &reports[s - services];

  if (n++ % 2 || older->data == NULL)
    return NULL;
  blob_save (REPORT, older);
  return older;
}

/* FAILED, and which report there was before. */
static void
judge_report (const struct service *s, bool failed, const struct blob *older)
{
  struct blob *last = &reports[s - services], now;

  if (access (REPORT, F_OK) == -1) {
    if (older)
      FAIL ("%s takes away the older report", s->name);
    return;
  }
  blob_load (REPORT, &now);
  if (failed && !s->judges && !(older && blob_same (older, &now)))
    FAIL ("%s fails, and leaves a report", s->name);
  blob_free (last);
  *last = now;
  unlink (REPORT);
}

/* The service may fail with ERR; 0: it must succeed. */
static void
run (const struct service *s, int err)
{
  const unsigned long errors = error_count ();
  const unsigned descriptors = reach_open_descriptors ();
  const unsigned files = count_files ();
  const struct blob *older = put_older_report (s);
  int r, reason;

  operations = 0;
  errno = 0;
  r = SHORTAGE_MEETS (s->run ());
  reason = errno;
  failing = 0;
  if (r == -1 && reason != err && !(s->judges && err == EIO && reason == EUCLEAN))
    FAIL ("%s fails with %s, not %s (%s)", s->name, strerror (reason),
          err ? strerror (err) : "at all", last_error ());
  if (r == -1 && error_count () == errors)
    FAIL ("%s fails, and does not say why", s->name);
  judge_report (s, r == -1, older);
  if (count_files () != files)
    FAIL ("%s leaves a file behind", s->name);
  if (reach_open_descriptors () != descriptors)
    FAIL ("%s leaves a file open", s->name);
  nr_failures += r == -1;
  judge_image (s, err != 0, r == 0);
}

/* What can fail in a service. */
struct accidents {
  const struct service *service;
  uint64_t *allocations;
  size_t nr_allocations;
  uint64_t operations[NR_KINDS];
};

static void
prepare (struct accidents *a, const struct service *s, struct rng *rng)
{
  *a = (struct accidents) { .service = s };
  trials_about ("no accident");
  for (size_t k = 0; k < NR_KINDS; k++) {
    kind = &kinds[k];
    run (s, 0);
    a->operations[k] = operations;
  }
  shortage_begin (SHORTAGE_NONE);
  run (s, 0);
  shortage_end ();
  a->allocations = shortage_choose (rng, thorough ? SIZE_MAX : MOST,
                                    &a->nr_allocations);
}

static void
fail_allocation (const struct service *s, struct shortage shortage)
{
  trials_about ("memory runs out %s at allocation %" PRIu64,
                shortage.times == 1 ? "once," : "for good", shortage.after);
  shortage_begin (shortage);
  run (s, ENOMEM);
  shortage_end ();
}

static void
fail_operation (const struct service *s, const struct kind *which, uint64_t number)
{
  trials_about ("%s %" PRIu64 " fails", which->name, number);
  kind = which;
  failing = number;
  run (s, kind->err);
}

/* Number I of each kind.  Returns whether there was one. */
static bool
have_accident (const struct accidents *a, size_t i, struct rng *rng)
{
  bool had = i < a->nr_allocations;

  if (had) {
    fail_allocation (a->service, (struct shortage) { a->allocations[i], 1 });
    fail_allocation (a->service, (struct shortage) { a->allocations[i], UINT64_MAX });
  }
  for (size_t k = 0; k < NR_KINDS; k++)
    if (i < (thorough ? a->operations[k] : min64 (a->operations[k], MOST))) {
      fail_operation (a->service, &kinds[k],
                      1 + (thorough ? i : rng_below (rng, a->operations[k])));
      had = true;
    }
  return had;
}

static void
have_accidents (struct rng *rng)
{
  struct accidents accidents[NR_SERVICES];
  bool more = true;

  for (size_t k = 0; k < NR_SERVICES; k++)
    if (services[k].needs_files && reach_server ())
      accidents[k] = (struct accidents) { .service = &services[k] };
    else
      prepare (&accidents[k], &services[k], rng);
  for (size_t i = 0; more && (i < LEAST || thorough || trials_time_left ()); i++) {
    more = false;
    for (size_t k = 0; k < NR_SERVICES; k++)
      more |= have_accident (&accidents[k], i, rng);
  }
  trials_about ("in the end");
  for (size_t k = 0; k < NR_SERVICES; k++) {
    if (!(services[k].needs_files && reach_server ()))
      run (&services[k], 0);
    free (accidents[k].allocations);
  }
}

static void
set_unknown_bit (void)
{
  struct blob b;

  blob_load (IMAGE, &b);
  blob_put (&b, AUTOCLEAR_AT, blob_get (&b, AUTOCLEAR_AT, 8) | AUTOCLEAR_UNKNOWN, 8);
  blob_save (IMAGE, &b);
  blob_free (&b);
}

static void
choose_options (struct rng *rng)
{
  const bool plain = image.spec.data_file == NULL && image.spec.encrypt == NULL;

  options = (struct disk_options) {
    .path = images_path (IMAGE), .l2_cache = rng_below (rng, 2) ? 0 : 1 << 20,
    .l2_slice = rng_below (rng, 2) ? 512 : image.spec.cluster_size,
    .backing = BACKING_FOLLOW, .hooks = &hooks,
    .discard = rng_below (rng, 4) != 0, .detect_zeroes = rng_below (rng, 3),
    .compress = plain && rng_below (rng, 3) == 0,
    .copy_on_read = rng_below (rng, 2), .cache = rng_below (rng, 3),
    .secret = { .passphrase = IMAGES_SECRET, .len = strlen (IMAGES_SECRET) },
  };
  requests_seed = rng_next (rng);
}

/* Something of everything: layers, a snapshot, a bitmap, data to be copied. */
static void
make_small_image (struct rng *rng)
{
  struct image_spec spec = {
    .version = 3, .cluster_size = 4096, .refcount_bits = 16, .size = 40 << 10,
  };
  struct blob raw;

  image = (struct mixture) {
    .name = IMAGE, .layers = 2, .nr_snapshots = 1, .bitmap = true,
  };
  image_over_raw (&spec, rng, 36 << 10, 2, &raw);
  blob_free (&raw);
  image_create ("middle", &spec);
  image_fill ("middle", &spec, rng, 2);
  spec.backing = "middle";
  spec.backing_raw = false;
  image_create (IMAGE, &spec);
  image_fill (IMAGE, &spec, rng, 2);
  image_snapshot (IMAGE, mixture_snapshot_names[0]);
  image_contents (IMAGE, mixture_snapshot_names[0], &image.snapshots[0]);
  image_bitmap (IMAGE, MIXTURE_BITMAP, 9);
  image_fill (IMAGE, &spec, rng, 2);
  image.spec = spec;
}

static void
one_image (struct rng *rng)
{
  const bool small = trials_number == 0;

  /* (Over NBD this would take minutes.) */
  thorough = small && reach_server () == NULL;
  if (small)
    make_small_image (rng);
  else
    mixture_make (&image, IMAGE, rng);
  printf ("%u: ", trials_number);
  mixture_print (&image);
  choose_options (rng);
  if (small) {
    options.copy_on_read = true;
    options.compress = false;
    options.cache = STORAGE_CACHE_NONE;
  }
  printf ("%s%s\n", options.compress ? ", compress" : "",
          options.copy_on_read ? ", copy on read" : "");
  fflush (stdout);
  if (small || (image.spec.version == 3 && rng_below (rng, 3) == 0))
    set_unknown_bit ();
  report_path = images_path (REPORT);
  directory = images_path (".");
  blob_load (IMAGE, &first);
  if (image.spec.data_file)
    blob_load (image.spec.data_file, &first_data);
  quiet_errors = true;          /* they are what we want */
  have_accidents (rng);
  quiet_errors = false;
  for (size_t k = 0; k < NR_SERVICES; k++)
    blob_free (&reports[k]);
  blob_free (&first);
  blob_free (&first_data);
  free ((char *) options.path);
  free (report_path);
  free (directory);
  mixture_free (&image);
}

int
main (void)
{
  unsigned done;

  shortage_spare (true);
  done = trials_run ("services", 4, 2, one_image);
  printf ("%u images, %" PRIu64 " allocations failed, %u calls failed\n", done,
          shortage_all_failures (), nr_failures);
  return 0;
}
