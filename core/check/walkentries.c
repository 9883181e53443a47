/* SPDX-License-Identifier: BSD-3-Clause
 *
 * How is a table of 64-bit entries read that may be large, and is often sparse?
 *
 * Part of walk.c.  The table is read in chunks, and holes of the file are skipped.
 *
 * Locks: none.
 */

#include <config.h>

#include <stdlib.h>

#include "util/cleanup.h"
#include "util/report.h"
#include "check/walk-impl.h"

/* Entries that are read at once. */
#define CHUNK 8192

/* Returns how many of the next ENTRIES at OFFSET lie in a hole. */
static uint64_t
in_hole (struct walk *w, uint64_t offset, uint64_t entries)
{
  uint64_t len = entries * sizeof (struct be64);

  return w->sparse && storage_hole (w->file, offset, &len)
    ? len / sizeof (struct be64) : 0;
}

int
walk_entries (struct walk *w, uint64_t offset, uint64_t entries,
              int (*fn) (struct walk *, uint64_t, uint64_t, const void *),
              const void *opaque)
{
  CLEANUP_FREE struct be64 *chunk = malloc (CHUNK * sizeof *chunk);
  uint64_t done, n, i, at, empty;

  if (chunk == NULL) {
    report_error ("%s: counting references: %m", storage_path (w->file));
    return -1;
  }
  for (done = 0; done < entries; done += n) {
    at = offset + done * sizeof *chunk;
    empty = in_hole (w, at, entries - done);
    n = empty > 0 ? empty : min64 (entries - done, CHUNK);
    if (empty > 0)
      continue;
    if (storage_read (w->file, chunk, n * sizeof *chunk, at) == -1)
      return -1;
    for (i = 0; i < n; i++)
      if (chunk[i].be != 0 && fn (w, done + i, get64 (chunk[i]), opaque) == -1)
        return -1;
  }
  return 0;
}
