/* SPDX-License-Identifier: BSD-3-Clause
 *
 * tcmu-runner, pull request 223: refcounts are no longer found.
 *
 * It set the COPIED flag, which belongs into L1 and L2 entries, in entries of the
 * refcount table too.  All clusters that the new refcount blocks counted seemed to be
 * free.
 *
 * https://github.com/open-iscsi/tcmu-runner/pull/223
 * Broken: flags-in-refcount-table
 */

#include <config.h>

#include "lib/regression.h"

int
main (void)
{
  const struct image_spec spec = { .version = 3, .cluster_size = 512,
                                   .refcount_bits = 16, .size = 1 << 20 };
  struct regression *e;
  const struct blob *file;
  uint64_t table, entries, i, entry, blocks = 0;

  regression_enter ("flags-in-refcount-table");
  image_create (REGRESSION, &spec);
  e = regression_open (&(struct regression_options) { .no_cuts = true });
  regression_must (e, REGRESSION_WRITE, 0, spec.size);
  regression_must (e, REGRESSION_FLUSH, 0, 0);
  file = regression_file (e);
  table = blob_get (file, 48, 8);
  entries = blob_get (file, 56, 4) * spec.cluster_size / 8;
  for (i = 0; i < entries; i++) {
    entry = blob_get (file, table + i * 8, 8);
    CHECK (entry < file->len && entry % spec.cluster_size == 0);
    blocks += entry != 0;
  }
  CHECK (blocks > 4);
  regression_close (e);
  return regression_leave ();
}
