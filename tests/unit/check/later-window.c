/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What does a scan say about a file that needs more than one window of clusters?
 *
 * In a file of a little more than 8 GiB, most of it a hole, entries point to its last
 * clusters, which the second window counts.  Faults of single entries are reported once;
 * those that depend on counts, in the window that has the counts.
 */

#include <config.h>

#include <inttypes.h>
#include <string.h>
#include <unistd.h>

#include "image/image.h"
#include "check/scan.h"
#include "check/refwindow.h"
#include "lib/images.h"

#define IMAGE "far.qcow2"
#define CLUSTER UINT64_C (512)
#define FAR (REFWINDOW_CLUSTERS * CLUSTER + 7 * CLUSTER)
#define COPIED (UINT64_C (1) << 63)

/* One L2 table, for 64 clusters, 4 of which have data. */
static void
make (void)
{
  const struct image_spec spec = {
    .version = 3, .cluster_size = CLUSTER, .refcount_bits = 16, .size = 1 << 20,
  };
  struct command c = { .n = 0 };

  image_create (IMAGE, &spec);
  command_words (&c, "qemu-io -t unsafe -f qcow2 -c");
  command_add (&c, "write 0 2k");
  command_add (&c, IMAGE);
  command_must (&c);
}

static struct findings *
scan (struct scan_stats *stats)
{
  const struct scan_options metadata = { .full = false };
  const struct storage_options options = { .hooks = NULL };
  struct findings *findings = findings_new (100);
  char *path = images_path (IMAGE);
  struct image *image = image_open_file (path, &options);

  CHECK (findings != NULL && image != NULL);
  CHECK (image_read_header (image) == 0);
  CHECK (scan_image (image->file, &image->header, metadata, findings, stats) == 0);
  image_close (image);
  free (path);
  return findings;
}

/* The only finding of this kind. */
static void
expect (struct findings *f, enum finding_kind kind, uint64_t offset)
{
  size_t n, i, found = 0;
  const struct finding *list = findings_list (f, &n);

  for (i = 0; i < n; i++) {
    printf ("%s: %s\n", finding_name (list[i].kind), list[i].text);
    if (list[i].kind == kind) {
      CHECK (list[i].offset == offset && list[i].times == 1);
      found++;
    }
  }
  CHECK (found == 1 && findings_count (f, kind) == 1);
}

int
main (void)
{
  struct scan_stats stats;
  struct findings *f;
  uint64_t l1, l2;
  struct blob b;

  images_enter ("later-window");
  make ();
  blob_load (IMAGE, &b);
  l1 = blob_get (&b, 40, 8);
  l2 = blob_get (&b, l1, 8) & ~COPIED;
  blob_put (&b, l2 + 10 * 8, FAR | COPIED, 8);          /* data ... */
  blob_put (&b, l2 + 11 * 8, UINT64_C (1) << 40, 8);    /* behind the end */
  blob_put (&b, l1 + 8, FAR, 8);                        /* ... and an L2 table */
  blob_put (&b, l2 + 12 * 8, FAR + CLUSTER, 8);
  blob_save (IMAGE, &b);
  blob_free (&b);
  CHECK (truncate (IMAGE, FAR + 2 * CLUSTER) == 0);

  f = scan (&stats);
  expect (f, FINDING_BEYOND, UINT64_C (1) << 40);
  expect (f, FINDING_OVERLAP, FAR);
  expect (f, FINDING_COPIED, l2 + 10 * 8);
  expect (f, FINDING_REFCOUNT, FAR + CLUSTER);
  CHECK (findings_corruptions (f) == 4 && findings_count (f, FINDING_LEAK) == 0);
  CHECK (stats.allocated == 7);
  findings_free (f);
  images_leave ();
  return 0;
}
