/* SPDX-License-Identifier: BSD-3-Clause
 *
 * advise-cache: how much l2-cache does an image need?
 *
 * This is measured: the mapping of the whole disk is read, including all backing files,
 * with a cache that is large enough in any case.  There is one counter for all that the
 * cache holds; what it holds as soon as the image is open does not depend on the size of
 * the disk.
 *
 * Locks: none.
 */

#include <config.h>

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "util/bytes.h"
#include "disk/export.h"
#include "img/imagefile.h"
#include "img/values.h"

#define AMPLE (UINT64_C (8) << 30)      /* bytes */

static const struct option option_size = {
  0, "cache", "SIZE", "the size for the table (default 32M)"
};

struct found {
  uint64_t size, cluster_size, entry_size;      /* of the image, bytes */
  uint64_t base;                /* bytes of the cache that any image takes */
  struct map_stats map;         /* after all was read */
};

/* --- measuring --- */

static int
ignore_extent (void *opaque, uint64_t offset, uint64_t len, enum extent_type type)
{
  (void) opaque, (void) offset, (void) len, (void) type;
  return 0;
}

static int
map_all (struct disk *disk, struct found *found)
{
  struct export *export = export_open (disk, "", false);
  const uint64_t size = export ? export_size (export) : 0;
  struct disk_stats stats;
  int r;

  if (export == NULL)
    return -1;
  disk_get_stats (disk, &stats);
  found->base = stats.map.peak_bytes;
  r = size ? export_extents (export, size, 0, false, ignore_extent, NULL) : 0;
  disk_get_stats (disk, &stats);
  found->map = stats.map;
  export_close (export);        /* nothing was written */
  return r;
}

static int
measure (const struct imagefile *f, struct found *found)
{
  struct disk_options options = f->options;
  const struct header *h;
  struct disk *disk;
  int r;

  if (imagefile_need_qcow2 (f, "this") == -1)
    return -1;
  options.l2_cache = AMPLE;
  if (disk_open (&options, &disk) == -1)
    return -1;
  h = &disk_inside (disk).view->image->header;
  found->size = h->size;
  found->cluster_size = h->cluster_size;
  found->entry_size = h->l2_entry_size;
  r = map_all (disk, found);
  disk_close (disk);
  return r;
}

/* --- telling --- */

/* Such as "1.5G" or "512 bytes". */
static const char *
short_size (uint64_t n, char buf[32])
{
  static const char *const units[] = { " bytes", "K", "M", "G", "T", "P", "E" };
  unsigned unit = 0;
  double value = n;
  char *end;

  for (; value >= 1024 && unit < 6; unit++)
    value /= 1024;
  end = buf + snprintf (buf, 24, "%.1f", value);
  if (end[-1] == '0')
    end -= 2;
  strcpy (end, units[unit]);
  return buf;
}

/* With a quarter to spare: half of the cache may hold changes, each slice of them in
 * full. */
static uint64_t
advised (uint64_t need)
{
  uint64_t advice = 1 << 20;

  while (advice < need + need / 4)
    advice *= 2;
  return advice;
}

static void
tell_coverage (const struct found *found, uint64_t cache)
{
  char size[32], plain[32], extended[32];

  printf ("\nIn the worst case, where no two clusters are contiguous, a cache of %s covers:\n"
          "cluster size   disk   with extended L2   (* this image)\n",
          short_size (cache, size));
  for (unsigned bits = QCOW2_MIN_CLUSTER_BITS; bits <= QCOW2_MAX_CLUSTER_BITS; bits++) {
    const double covered = (double) ((cache - min64 (found->base, cache)) / 5 * 4)
      * (UINT64_C (1) << bits);

    printf ("%-14s %-6s %s%s\n", short_size (UINT64_C (1) << bits, size),
            short_size (covered / 8, plain), short_size (covered / 16, extended),
            found->cluster_size == UINT64_C (1) << bits ? " *" : "");
  }
}

static void
tell (const struct found *found, uint64_t cache)
{
  const uint64_t tables = div_up (found->size, found->cluster_size) * found->entry_size;
  const uint64_t advice = advised (found->map.peak_bytes);
  char a[32], b[32];

  printf ("disk                    %s, clusters of %s\n", short_size (found->size, a),
          short_size (found->cluster_size, b));
  printf ("L2 tables of the disk   %s, the cache that QEMU needs for full speed\n",
          short_size (tables, a));
  printf ("its mappings, packed    %s, in %" PRIu64 " slices\n",
          short_size (found->map.peak_bytes, a), found->map.loaded);
  printf ("to read at full speed   l2-cache=%s\n", short_size (advice, a));
  printf ("however it is written   l2-cache=%s\n",
          short_size (max64 (advice, advised (tables)), a));
  tell_coverage (found, cache);
}

/* --- the command --- */

static int
take_size (const struct arguments *a, uint64_t *cache)
{
  const char *text = value_of (a, &option_size);

  *cache = 32 << 20;
  if (text == NULL)
    return 0;
  if (parse_size ("--cache", text, cache) == -1)
    return -1;
  return *cache ? 0 : bad_value ("--cache", text, "must be more than 0");
}

static int
run (const struct arguments *a)
{
  struct secrets *secrets = NULL;
  struct imagefile *f = NULL;
  struct found found;
  uint64_t cache;
  int status = EXIT_FAILURE;

  if (take_size (a, &cache) == 0 && (secrets = secrets_read (a)) != NULL &&
      (f = imagefile_named (a, a->operands[0], value_of (a, &option_format),
                            secrets)) != NULL && measure (f, &found) == 0) {
    tell (&found, cache);
    status = EXIT_SUCCESS;
  }
  imagefile_free (f);
  secrets_free (secrets);
  return status;
}

static const struct option *const options[] = {
  &option_size, &option_format, &option_force_share, IMAGE_OPTIONS, NULL
};

const struct command advise_command = {
  "advise-cache", "IMAGE",
  "Measure how much l2-cache an image needs: so much that no mapping is read twice.  Tell "
  "how much of a disk a cache of some size covers, for each cluster size.",
  options, 1, 1, .run = run
};
