/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Snapshots with more extra data than is known are listed as they are, and with too much
 * of it they are not.  If memory runs out, there is no list; an empty one would say that
 * nothing needs the clusters of snapshots.
 */

#include <config.h>

#include <errno.h>
#include <string.h>

#include "util/bytes.h"
#include "image/image.h"
#include "lib/allocations.h"
#include "lib/images.h"

#define IMAGE "extra.qcow2"
#define SIZE (1u << 20)
#define FIXED 40                /* bytes of an entry before its extra data */

/* Gives the only snapshot EXTRA bytes of extra data, in a new table. */
static void
enlarge (unsigned extra)
{
  struct blob b, longer;
  uint64_t from, to, known, strings;

  blob_load (IMAGE, &b);
  from = blob_get (&b, 64, 8);
  known = blob_get (&b, from + 36, 4);
  strings = blob_get (&b, from + 12, 2) + blob_get (&b, from + 14, 2);
  CHECK (known >= 16 && known < extra);
  to = round_up (b.len, 65536);
  longer = blob_resized (&b, to + 65536);
  memcpy (longer.data + to, longer.data + from, FIXED + known);
  memset (longer.data + to + FIXED + known, 0xff, extra - known);
  memcpy (longer.data + to + FIXED + extra, longer.data + from + FIXED + known, strings);
  blob_put (&longer, to + 36, extra, 4);
  blob_put (&longer, 64, to, 8);
  blob_save (IMAGE, &longer);
  blob_free (&longer);
  blob_free (&b);
}

static struct image *
open_image (void)
{
  const struct storage_options options = { .hooks = NULL };
  char *path = images_path (IMAGE);
  struct image *image = image_open_file (path, &options);

  CHECK (image != NULL && image_read_header (image) == 0);
  free (path);
  return image;
}

static void
test (unsigned extra, bool listed)
{
  struct image *image = open_image ();
  struct snapshots list;
  const int r = snapshots_list (image->file, &image->header, &list);

  printf ("%u bytes: %d %s\n", extra, r, last_error ());
  CHECK (r == (listed ? 0 : -1));
  if (listed) {
    CHECK (list.n == 1 && strcmp (list.list[0].name, "snap") == 0);
    CHECK (strcmp (list.list[0].id, "1") == 0 && list.list[0].disk_size == SIZE);
  }
  else
    CHECK (strstr (last_error (), "extra data is too long") != NULL);
  snapshots_free (&list);
  image_close (image);
}

/* Each allocation fails in turn. */
static void
test_no_memory (void)
{
  struct image *image = open_image ();
  struct snapshots list;
  unsigned failed = 0;
  bool met = true;
  int r, err;

  quiet_errors = true;
  for (uint64_t n = 0; met; n++) {
    shortage_begin ((struct shortage) { n, 1 });
    r = snapshots_list (image->file, &image->header, &list);
    err = errno;
    met = shortage_end () > 0;
    CHECK (met ? r == -1 && err == ENOMEM : r == 0 && list.n == 1);
    snapshots_free (&list);
    failed += met;
  }
  quiet_errors = false;
  CHECK (failed > 2);
  image_close (image);
}

int
main (void)
{
  static const unsigned extras[] = { 200, 1024 };
  const struct image_spec spec = {
    .version = 3, .cluster_size = 65536, .refcount_bits = 16, .size = SIZE,
  };

  images_enter ("snapshots");
  image_create (IMAGE, &spec);
  image_snapshot (IMAGE, "snap");
  for (unsigned i = 0; i < 2; i++) {
    enlarge (extras[i]);
    test (extras[i], true);
  }
  test_no_memory ();
  enlarge (1032);
  test (1032, false);
  images_leave ();
  return 0;
}
