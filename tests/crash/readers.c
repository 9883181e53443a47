/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What becomes of those who only read an image when memory runs out, or a read fails?
 *
 * Random images (lib/mixture) are served with all their exports, alone and from their
 * directory, described with info=, mapped with map=, and checked with a report.  Each of
 * these is done again and again, and each time another allocation fails (once, or all from
 * then on), or another read of a file:
 *
 *   - it succeeds nevertheless, or fails with ENOMEM or EIO, and says why
 *   - an image is not called corrupt for lack of memory
 *   - a report that failed leaves nothing behind, under any name
 *   - no descriptor stays open (nor, with AddressSanitizer, memory allocated)
 *   - the next time it succeeds, and no byte of the image has changed
 *
 * Environment: SEED repeats a run; ITERATIONS: how many images (default: as many as are
 * possible in SECONDS, 6); FIRST: start with this one; ALLOCATIONS=all: see lib/shortage.h.
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
#include "disk/inforeport.h"
#include "disk/mapreport.h"
#include "lib/allocations.h"
#include "lib/images.h"
#include "lib/mixture.h"
#include "lib/reach.h"
#include "lib/trials.h"

#define IMAGE "top.qcow2"
#define REPORT "report"
#define BIG (64u << 10)         /* of a request */
#define MOST_NAMES 16

/* Accidents of each kind for a service, even if there is no time. */
#define LEAST 2

static struct disk_options options;     /* of the image of this trial */
static char *report_path, *directory;
static unsigned nr_failures;

/* --- reads that fail --- */

static atomic_uint_fast64_t reads;
static uint64_t failing_read;   /* the number of one; from 1 */

static int
before (void *opaque, const char *path, enum storage_op op, const struct iovec *iov,
        int niov, uint64_t offset, uint64_t count, bool dsync)
{
  (void) opaque, (void) path, (void) iov, (void) niov, (void) offset, (void) count;
  (void) dsync;
  if (op != STORAGE_OP_READ || ++reads != failing_read)
    return 0;
  errno = EIO;
  return -1;
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
  struct dir_image *image;
  const char *export;
  unsigned unlisted;
  struct dir *dir;
  int r;

  all.path = directory;
  if (dir_open (&all, &dir) == -1)
    return -1;
  r = dir_list (dir, add_name, &names, &unlisted);
  free_names (&names);
  image = r == -1 ? NULL : dir_enter (dir, IMAGE, &export);
  r = image ? use_export (dir_disk (image), export) : -1;
  KEEP_ERRNO_FOR_BLOCK;
  dir_get_stats (dir, &stats);
  if (image)
    dir_leave (dir, image);
  CHECK (dir_close (dir) == 0);
  return r;
}

static int
describe (void)
{
  const struct inforeport info = { .path = report_path, .chain = true, .name = IMAGE };
  const struct disk_options o = reach_disk (&options);

  return inforeport_write (&info, &o);
}

static int
map (void)
{
  struct disk *disk;
  int r;

  if (reach_open (&options, &disk) == -1)
    return -1;
  r = mapreport_write (report_path, disk_inside (disk).view->layers);
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
  bool judges;                  /* what cannot be read is a corruption, in its report */
} services[] = {
  { "export", serve, false, false },
  { "directory", serve_from_directory, true, false },
  { "info", describe, false, false },
  { "map", map, false, false },
  { "check", check, false, true },
};

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

/* The service may fail with ERR; 0: it must succeed. */
static void
run (const struct service *s, int err)
{
  const unsigned long errors = error_count ();
  const int descriptor = dup (0);
  const unsigned files = count_files ();
  int r, reason;

  CHECK (descriptor >= 0 && close (descriptor) == 0);
  reads = 0;
  errno = 0;
  r = SHORTAGE_MEETS (s->run ());
  reason = errno;
  failing_read = 0;
  if (r == -1 && reason != err && !(s->judges && err == EIO && reason == EUCLEAN))
    FAIL ("%s fails with %s, not %s (%s)", s->name, strerror (reason),
          err ? strerror (err) : "at all", last_error ());
  if (r == -1 && error_count () == errors)
    FAIL ("%s fails, and does not say why", s->name);
  if (r == -1 && !s->judges && access (REPORT, F_OK) == 0)
    FAIL ("%s fails, and leaves a report", s->name);
  unlink (REPORT);
  if (count_files () != files)
    FAIL ("%s leaves a file behind", s->name);
  if (dup (0) != descriptor || close (descriptor) != 0)
    FAIL ("%s leaves a file open", s->name);
  nr_failures += r == -1;
}

static void
fail_allocation (const struct service *s, struct shortage shortage)
{
  trials_about ("%s: memory runs out %s at allocation %" PRIu64, s->name,
                shortage.times == 1 ? "once," : "for good", shortage.after);
  shortage_begin (shortage);
  run (s, ENOMEM);
  shortage_end ();
}

static void
fail_allocations (const struct service *s, struct rng *rng)
{
  uint64_t *which;
  size_t n;

  if (reach_server () || !SHORTAGE_IS_POSSIBLE)
    return;
  trials_about ("no accident");
  shortage_begin (SHORTAGE_NONE);
  run (s, 0);
  shortage_end ();
  which = shortage_choose (rng, SIZE_MAX, &n);
  for (size_t i = 0; i < n && (i < LEAST || trials_time_left ()); i++) {
    fail_allocation (s, (struct shortage) { which[i], 1 });
    fail_allocation (s, (struct shortage) { which[i], UINT64_MAX });
  }
  free (which);
}

static void
fail_reads (const struct service *s, struct rng *rng)
{
  uint64_t n;

  trials_about ("no accident");
  run (s, 0);
  n = reads;
  for (unsigned i = 0; n > 0 && i < 40 && (i < LEAST || trials_time_left ()); i++) {
    failing_read = n <= 40 ? 1 + i % n : 1 + rng_below (rng, n);
    trials_about ("%s: read %" PRIu64 " fails", s->name, failing_read);
    run (s, EIO);
  }
}

static void
one_image (struct rng *rng)
{
  struct blob first, last;
  struct mixture image;

  mixture_make (&image, IMAGE, rng);
  printf ("%u: ", trials_number);
  mixture_print (&image);
  printf ("\n");
  fflush (stdout);
  options = (struct disk_options) {
    .path = images_path (IMAGE), .l2_cache = 1 << 20, .l2_slice = 4096,
    .backing = BACKING_FOLLOW, .hooks = &hooks,
    .secret = { .passphrase = IMAGES_SECRET, .len = strlen (IMAGES_SECRET) },
  };
  report_path = images_path (REPORT);
  directory = images_path (".");
  blob_load (IMAGE, &first);
  quiet_errors = true;          /* they are what we want */
  for (const struct service *s = services; s < services + 5; s++)
    if (!(s->needs_files && reach_server ())) {
      fail_reads (s, rng);
      fail_allocations (s, rng);
      trials_about ("in the end");
      run (s, 0);
    }
  quiet_errors = false;
  blob_load (IMAGE, &last);
  CHECK (blob_same (&first, &last));
  blob_free (&first);
  blob_free (&last);
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
  done = trials_run ("readers", 6, 1, one_image);
  printf ("%u images, %" PRIu64 " allocations failed, %u calls failed\n", done,
          shortage_all_failures (), nr_failures);
  return 0;
}
