/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Refcounts, when the host fails: after ENOSPC at any write all refcounts are correct and
 * can be written again; if there is no space or no memory for the refcounts of clusters,
 * nothing changes.
 */

#include <config.h>

#include <errno.h>
#include <stdlib.h>

#include "util/bytes.h"
#include "lib/counts-model.h"
#include "lib/nocalloc.h"

static size_t fail_at, nwrites;
static int fail_reads;          /* errno, or 0 */

static int
before (void *opaque, const char *path, enum storage_op op,
        const struct iovec *iov, int niov, uint64_t offset, uint64_t count,
        bool dsync)
{
  (void) opaque; (void) path; (void) iov; (void) niov; (void) offset; (void) count;
  (void) dsync;
  if (op == STORAGE_OP_READ && fail_reads) {
    errno = fail_reads;
    return -1;
  }
  if (op == STORAGE_OP_WRITE && ++nwrites == fail_at) {
    errno = ENOSPC;
    return -1;
  }
  return op == STORAGE_OP_SYNC;        /* the host need not sync for us */
}

static const struct storage_hooks hooks = { .before = before };

/* --- tests --- */

static void
test_enospc (unsigned cluster_size, unsigned refcount_bits)
{
  size_t total = 1;
  struct blob first;

  create_counts (cluster_size, refcount_bits);
  blob_load (IMAGE, &first);
  for (size_t k = 1; k <= total; k++) {
    blob_save (IMAGE, &first);
    open_counts (IMAGE, &hooks);
    read_model ();
    nwrites = 0;
    fail_at = k;
    quiet_errors = true;
    scenario ();
    quiet_errors = false;
    fail_at = 0;
    total = nwrites - (k <= nwrites);
    compare_model ();
    close_counts ();

    open_counts (IMAGE, &hooks);
    compare_model ();
    close_counts ();
    if (k % 8 == 1)
      check_counts_image (IMAGE);
  }
}

/* When clusters can't be made countable, nothing has changed: it can be tried again.  The
 * new table and the new blocks are together more than what is kept as single clusters.
 * FORGED: an entry of the table names a block behind all that is in use. */
static void
test_failed_extend (bool forged)
{
  struct be64 entry;
  uint64_t end, used, value;

  create_counts (512, 64);       /* 64 counts in a block, 64 blocks in a table */
  open_counts (IMAGE, &hooks);
  read_model ();
  grow (50 * 64 - model_end % 64);
  model_write_all ();
  end = model_end;
  CHECK (end % 64 != 0);        /* an old block counts the new ones */
  entry = put64 ((end + 5000) << bits);
  if (forged)
    CHECK (storage_write (file, &entry, 8,
                          header.reftable_offset + 60 * 8) == 0);
  close_counts ();

  open_counts (IMAGE, &hooks);
  fail_reads = EIO;
  quiet_errors = true;
  for (int i = 0; i < 3; i++)
    CHECK (refcount_extend (refcounts, end, end, 18 * 64, &used) == -1 &&
           errno == EIO);
  quiet_errors = false;
  fail_reads = 0;
  CHECK (overlap_find (overlap, end << bits, 64 << bits) == OVERLAP_NONE);
  CHECK (!refcount_is_dirty (refcounts));
  CHECK (refcount_get (refcounts, end + 18 * 64, &value) == 0 && value == 0);
  CHECK (refcount_extend (refcounts, end, end, 18 * 64, &used) == 0);
  CHECK (used > 16);
  CHECK (refcount_get (refcounts, end + used - 1, &value) == 0 && value == 1);
  model_write_all ();
  close_counts ();
  if (!forged)
    check_counts_image (IMAGE);
}

/* Who has to take back what he did reads blocks as he needs them, without memory. */
static void
test_no_memory (void)
{
  uint64_t first, value;

  create_counts (512, 16);       /* 256 counts in a block */
  open_counts (IMAGE, &hooks);
  read_model ();
  first = grow (3 * 256);
  model_write_all ();
  close_counts ();

  open_counts (IMAGE, &hooks);
  CHECK (refcount_get (refcounts, 0, &value) == 0 && value == 1);
  no_memory = true;
  CHECK (refcount_dec (refcounts, first + 300, 1, NULL, NULL) == 0);
  /* That was the only one that could go. */
  quiet_errors = true;
  CHECK (refcount_dec (refcounts, first + 600, 1, NULL, NULL) == -1 &&
         errno == ENOMEM);
  quiet_errors = false;
  no_memory = false;
  CHECK (refcount_dec (refcounts, first + 600, 1, NULL, NULL) == 0);
  model[first + 300] = model[first + 600] = 0;
  compare_model ();
  model_write_all ();
  close_counts ();
  open_counts (IMAGE, &hooks);
  compare_model ();
  close_counts ();
}

int
main (void)
{
  rng_init (&rng, seed_from_env (), 0);
  images_enter ("refcount-faults");
  test_failed_extend (false);
  test_failed_extend (true);
  test_no_memory ();
  test_enospc (512, 64);
  test_enospc (4096, 16);
  images_leave ();
  return 0;
}
