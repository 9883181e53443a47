/* SPDX-License-Identifier: BSD-3-Clause
 *
 * apply-changes: how does an incremental backup get into an older copy of the disk?
 *
 * The source is an NBD export that has holes where nothing has changed: there the older
 * copy stays as it is (copy_changes in the core).
 *
 * Locks: none.
 */

#include <config.h>

#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

#include "util/report.h"
#include "copy/copy.h"
#include "img/imagefile.h"
#include "img/progress.h"

/* Zeros are looked for in blocks of this size, in bytes. */
#define BLOCK (UINT64_C (64) << 10)

static _Atomic uint64_t zeroed; /* bytes */

/* --- applying --- */

static int
zero_and_count (const struct copy_end *e, uint64_t count, uint64_t at)
{
  const struct copy_end plain = copy_storage (e->storage, e->frees);

  atomic_fetch_add (&zeroed, count);
  return plain.ops->zero (&plain, count, at);
}

static int
apply (const struct arguments *a, const struct copy *c)
{
  const struct chunks_words words = {
    .path = storage_path (c->to.storage), .what = "applying changes",
    .remedy = "apply them again",
  };
  const struct chunks_watch watch = PROGRESS_WATCH;
  uint64_t copied;
  int r;

  progress_begin (a, false);
  r = copy_all (c, &words, false, &watch, &copied);
  if (r == 0)
    r = storage_sync (c->to.storage);
  progress_end (r == 0);
  if (r == -1)
    return EXIT_FAILURE;
  if (!is_given (a, &option_quiet))
    printf ("%" PRIu64 " bytes written, %" PRIu64 " zeroed\n", copied, zeroed);
  return EXIT_SUCCESS;
}

/* --- the ends --- */

static int
check_ends (struct storage *from, struct storage *to)
{
  const char *const path = storage_path (to);

  if (!storage_is_writable (to))
    report_error ("%s: the destination is read-only", path);
  else if (storage_size (from) > storage_size (to))
    report_error ("%s: the destination is smaller than the source: %" PRIu64 " < %" PRIu64
                  " bytes", path, storage_size (to), storage_size (from));
  else
    return 0;
  return -1;
}

static int
apply_storage (const struct arguments *a, struct storage *from, struct storage *to)
{
  struct copy c = {
    .from = copy_changes (from), .to = copy_storage (to, true), .contained = true,
    .sparse = BLOCK,
  };
  struct copy_ops ops = *c.to.ops;

  ops.zero = zero_and_count;
  c.to.ops = &ops;
  return check_ends (from, to) == -1 ? EXIT_FAILURE : apply (a, &c);
}

/* NULL: reported. */
static struct storage *
open_end (const struct imagefile *f, bool writable)
{
  const struct storage_options options = {
    .try_writable = writable, .link = &f->options.link
  };
  struct storage *s;

  if (!f->uri) {
    report_error ("%s: not an NBD URI", f->given);
    return NULL;
  }
  return storage_open (f->path, &options, &s) == 0 ? s : NULL;
}

static int
run (const struct arguments *a)
{
  struct imagefile *from = imagefile_new (a, a->operands[0], "raw", NULL);
  struct imagefile *to = from ? imagefile_new (a, a->operands[1], "raw", NULL) : NULL;
  struct storage *source = to ? open_end (from, false) : NULL;
  struct storage *destination = source ? open_end (to, true) : NULL;
  const int status = destination ? apply_storage (a, source, destination) : EXIT_FAILURE;

  storage_close (destination);
  storage_close (source);
  imagefile_free (to);
  imagefile_free (from);
  return status;
}

static const struct option *const options[] = {
  &option_progress, &option_quiet, NULL
};

const struct command apply_command = {
  "apply-changes", "SOURCE DESTINATION",
  "Apply an incremental backup to an older copy of the disk: both are NBD URIs, and where "
  "the source (an export bitmap:NAME or layer:N) has holes, the destination does not change.",
  options, 2, 2, .run = run
};
