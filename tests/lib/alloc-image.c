/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What do tests of refcounts and of the allocator have in common?
 *
 * A file that contains only the metadata that these rooms read, or an image from
 * elsewhere, and the rooms themselves, without a disk around them.
 */

#include <config.h>

#include <string.h>
#include <unistd.h>

#include "util/bytes.h"
#include "format/format.h"
#include "lib/alloc-image.h"

struct storage *file;
struct header header;
struct overlap *overlap;
struct refcounts *refcounts;
struct epoch *epoch;
struct alloc *alloc;
unsigned bits;
struct rng rng;

static char path[4200];

void
image_begin (const char *name)
{
  int fd;

  CHECK (getcwd (path, sizeof path - 40));
  CHECK (strlen (name) < 30);
  strcat (path, "/");
  strcat (path, name);
  strcat (path, "-XXXXXX");
  fd = mkstemp (path);
  CHECK (fd >= 0);
  close (fd);
}

void
image_end (void)
{
  CHECK (unlink (path) == 0);
}

/* Sets the counts of the four clusters to 1. */
static void
set_counts (unsigned char *counts, unsigned order)
{
  const unsigned width = 1u << order;

  for (unsigned i = 0; i < 4; i++)
    if (width < 8)
      counts[i * width / 8] |= 1 << i * width % 8;
    else
      counts[(i + 1) * width / 8 - 1] = 1;
}

void
make_alloc_image (unsigned cluster_bits, unsigned order)
{
  const uint64_t cs = UINT64_C (1) << cluster_bits;
  const struct qcow2_header h = {
    .magic = put32 (QCOW2_MAGIC), .version = put32 (3),
    .cluster_bits = put32 (cluster_bits), .size = put64 (cs),
    .l1_size = put32 (1), .l1_table_offset = put64 (3 * cs),
    .refcount_table_offset = put64 (cs),
    .refcount_table_clusters = put32 (1),
    .refcount_order = put32 (order), .header_length = put32 (104),
  };
  const struct be64 block = put64 (2 * cs);
  unsigned char counts[64] = { 0 };
  FILE *fp = fopen (path, "wb");

  set_counts (counts, order);
  CHECK (fp && fwrite (&h, 104, 1, fp) == 1);
  CHECK (fseek (fp, cs, SEEK_SET) == 0 && fwrite (&block, 8, 1, fp) == 1);
  CHECK (fseek (fp, 2 * cs, SEEK_SET) == 0 &&
         fwrite (counts, sizeof counts, 1, fp) == 1);
  CHECK (fseek (fp, 4 * cs - 1, SEEK_SET) == 0 && fputc (0, fp) == 0);
  CHECK (fclose (fp) == 0);
}

void
open_counts (const char *name, const struct storage_hooks *hooks)
{
  const struct storage_options options = { .try_writable = true, .hooks = hooks };
  unsigned char *buf;
  uint64_t len;

  CHECK (storage_open (name, &options, &file) == 0);
  len = min64 (storage_size (file), HEADER_READ_SIZE);
  buf = malloc (len);
  CHECK (buf && storage_read (file, buf, len, 0) == 0);
  CHECK (header_parse (name, buf, len, storage_size (file), &header) == 0);
  free (buf);
  bits = header.cluster_bits;
  overlap = overlap_new (bits);
  CHECK (overlap);
  CHECK (overlap_add (overlap, header.l1_offset, header.l1_entries * 8,
                      OVERLAP_L1) == 0);
  refcounts = refcount_open (file, &header, overlap);
  CHECK (refcounts);
}

void
close_counts (void)
{
  refcount_close (refcounts);
  overlap_free (overlap);
  header_free (&header);
  storage_close (file);
}

void
open_image (bool discard, const struct storage_hooks *hooks)
{
  const struct alloc_options options = { .discard = discard };

  open_counts (path, hooks);
  epoch = epoch_new ();
  CHECK (epoch);
  alloc = alloc_open (file, bits, refcounts, overlap, epoch, &options);
  CHECK (alloc);
}

void
close_image (void)
{
  alloc_close (alloc);
  epoch_free (epoch);
  close_counts ();
}

void
write_counts (void)
{
  struct refcount_moved moved;

  do {
    CHECK (refcount_write (refcounts, &moved) == 0);
    CHECK (storage_sync (file) == 0);
    if (moved.n > 0) {
      overlap_remove (overlap, moved.first << bits, moved.n << bits);
      CHECK (refcount_dec (refcounts, moved.first, moved.n, NULL, NULL) == 0);
    }
  } while (moved.n > 0);
}

void
end_session (void)
{
  for (int i = 0; i < 4; i++)
    CHECK (alloc_reap (alloc) == 0);
  CHECK (alloc_give_back (alloc) == 0);
  CHECK (alloc_deferred (alloc) == 0);
  write_counts ();
  CHECK (alloc_trim_file (alloc) == 0);
}
