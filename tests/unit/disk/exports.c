/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What does the name of an export mean, and what do its clients share?
 *
 * Each listed export has the description that the list gave.  A name that is no text is
 * not listed, but the id of that snapshot.  A name that begins like
 * that of a layer is a layer, even if a snapshot has that name; the snapshot can be
 * reached by its id.  Bitmaps that are marked as inconsistent are not listed; those after
 * them are.  Only the active disk can be written.  If a snapshot was chosen for
 * the disk, there are no other exports.  Mappings of snapshots and layers are read for
 * the first client and kept for the next, also if several come at once.  A disk can be
 * closed while it has clients, as when the server ends.
 */

#include <config.h>

#include <errno.h>
#include <stdatomic.h>
#include <string.h>

#include "util/bytes.h"
#include "format/format.h"
#include "disk/export.h"
#include "lib/images.h"

#define IMAGE "top.qcow2"
#define BELOW "below.qcow2"
#define OTHER "other.qcow2"
#define SIZE (UINT64_C (1) << 20)
#define NO_TEXT "\xff"          /* the name of a snapshot */

static atomic_uint reads;

static int
count_reads (void *opaque, const char *path, enum storage_op op,
             const struct iovec *iov, int niov, uint64_t offset, uint64_t count,
             bool dsync)
{
  (void) opaque, (void) path, (void) iov, (void) niov, (void) offset, (void) count;
  (void) dsync;
  reads += op == STORAGE_OP_READ;
  return 0;
}

static const struct storage_hooks hooks = { .before = count_reads };
static char *path;

static struct disk *
open_disk (const char *snapshot)
{
  const struct disk_options options = {
    .path = path, .l2_cache = 1 << 20, .l2_slice = 4096, .backing = BACKING_FOLLOW,
    .snapshot = snapshot, .hooks = &hooks,
  };
  struct disk *d;

  CHECK (disk_open (&options, &d) == 0);
  return d;
}

/* Is there an export of that name, and does its description begin with WHAT?  A client
 * that wants to write it may do so only if it is WRITABLE. */
static bool
means (struct disk *d, const char *name, const char *what, bool writable)
{
  struct export *e = export_open (d, name, true);
  bool r;

  if (e == NULL)
    return false;
  r = strncmp (export_description (e), what, strlen (what)) == 0;
  CHECK (export_is_writable (e) == writable);
  CHECK (export_size (e) == SIZE);
  CHECK (export_close (e) == 0);
  return r;
}

static bool
is_missing (struct disk *d, const char *name)
{
  struct export *e;

  quiet_errors = true;
  errno = 0;
  e = export_open (d, name, false);
  quiet_errors = false;
  return e == NULL && errno == ENOENT;
}

/* --- names --- */

struct list {
  struct disk *disk;
  const char *const *next;      /* the name that is expected */
};

static int
must_be_next (void *opaque, const char *name, const char *description)
{
  struct list *l = opaque;

  CHECK (*l->next != NULL && strcmp (name, *l->next++) == 0);
  CHECK (means (l->disk, name, description, name[0] == '\0'));
  return 0;
}

static void
check_list (struct disk *d, const char *const *names)
{
  struct list l = { d, names };
  unsigned unlisted = 1;

  CHECK (exports_list (d, must_be_next, &l, &unlisted) == 0);
  CHECK (*l.next == NULL && unlisted == 0);
}

static void
test_names (void)
{
  static const char *const names[] = {
    "", "s", "2", "3", "layer:0", "layer:1", "bitmap:b", NULL,
  };
  struct disk *d = open_disk (NULL);

  check_list (d, names);
  CHECK (means (d, "", "qcow2 ", true));
  CHECK (means (d, "1", "snapshot ", false));
  CHECK (means (d, "2", "snapshot ", false));
  CHECK (means (d, NO_TEXT, "snapshot ", false));
  CHECK (means (d, "layer:0", "layer 0 ", false));
  CHECK (means (d, "layer:1", "layer 1 ", false));
  CHECK (means (d, "bitmap:b", "what has changed", false));
  CHECK (is_missing (d, "layer:2") && is_missing (d, "layer:") &&
         is_missing (d, "layer:0x") && is_missing (d, "layer:-1"));
  CHECK (is_missing (d, "bitmap:") && is_missing (d, "bitmap:bb"));
  CHECK (is_missing (d, "4") && is_missing (d, "layer") && is_missing (d, "S"));
  CHECK (disk_close (d) == 0);
}

/* The bitmap that somebody was changing. */
static void
test_inconsistent (void)
{
  static const char *const names[] = {
    "", "s", "2", "3", "layer:0", "layer:1", "bitmap:c", NULL,
  };
  struct blob before, b;
  struct disk *d;
  uint64_t at;

  blob_load (IMAGE, &before);
  image_bitmap (IMAGE, "c", 9);
  blob_load (IMAGE, &b);
  at = blob_get (&b, 100, 4);
  while (blob_get (&b, at, 4) != QCOW2_EXT_BITMAPS)
    at += 8 + round_up (blob_get (&b, at + 4, 4), 8);
  at = blob_get (&b, at + 8 + 16, 8);   /* the directory: "b" comes first */
  blob_put (&b, at + 12, blob_get (&b, at + 12, 4) | QCOW2_BITMAP_IN_USE, 4);
  blob_save (IMAGE, &b);
  d = open_disk (NULL);
  check_list (d, names);
  quiet_errors = true;
  CHECK (export_open (d, "bitmap:b", false) == NULL);
  quiet_errors = false;
  CHECK (disk_close (d) == 0);
  blob_save (IMAGE, &before);
  blob_free (&before);
  blob_free (&b);
}

/* The descriptions name the sizes of clusters. */
static void
test_descriptions (void)
{
  static const struct { unsigned size; const char *text; } sizes[] = {
    { 512, "qcow2 v3, 512 clusters, " }, { 65536, "qcow2 v3, 64K clusters, " },
    { 2 << 20, "qcow2 v3, 2M clusters, " },
  };
  struct image_spec spec = { .version = 3, .refcount_bits = 16, .size = SIZE };
  char *const image = path;

  for (unsigned i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
    struct disk *d;

    spec.cluster_size = sizes[i].size;
    image_create (OTHER, &spec);
    path = images_path (OTHER);
    d = open_disk (NULL);
    CHECK (means (d, "", sizes[i].text, true));
    CHECK (disk_close (d) == 0);
    free (path);
  }
  path = image;
}

static void
test_longest_name (void)
{
  char name[EXPORTS_MAX_NAME + 2];

  memset (name, 'a', EXPORTS_MAX_NAME + 1);
  name[EXPORTS_MAX_NAME + 1] = '\0';
  CHECK (!exports_may_list (name));
  name[EXPORTS_MAX_NAME] = '\0';
  CHECK (exports_may_list (name));
}

static void
test_one_snapshot (void)
{
  struct disk *d = open_disk ("layer:0");

  CHECK (means (d, "", "snapshot ", false));
  CHECK (means (d, "layer:0", "snapshot ", false));
  CHECK (is_missing (d, "s") && is_missing (d, "layer:1") && is_missing (d, "2"));
  CHECK (disk_close (d) == 0);

  d = open_disk ("nonesuch");
  CHECK (is_missing (d, "") && is_missing (d, "nonesuch"));
  CHECK (disk_close (d) == 0);
}

/* --- what is kept --- */

/* How many reads of host files it takes to read one sector. */
static unsigned
reads_of (struct disk *d, const char *name)
{
  struct export *e = export_open (d, name, false);
  const unsigned before = reads;
  char buf[512];
  unsigned n;

  CHECK (e != NULL);
  CHECK (export_read (e, buf, sizeof buf, 0) == 0);
  n = reads - before;
  CHECK (export_close (e) == 0);
  return n;
}

static void
test_mappings_are_kept (void)
{
  static const char *const names[] = { "s", "layer:0", "layer:1" };
  struct disk *d = open_disk (NULL);

  for (unsigned i = 0; i < 3; i++) {
    CHECK (reads_of (d, names[i]) > 1);
    CHECK (reads_of (d, names[i]) == 1);
  }
  CHECK (disk_close (d) == 0);
}

struct visitor {
  struct disk *disk;
  const char *name;
};

static void *
visit (void *opaque)
{
  const struct visitor *v = opaque;
  struct export *e = export_open (v->disk, v->name, false);
  char c;

  CHECK (e && export_read (e, &c, 1, 0) == 0 && c == 'x' && export_close (e) == 0);
  return NULL;
}

static void
test_clients_at_once (void)
{
  static const char *const names[] = { "", "s", "layer:0", "layer:1" };

  for (unsigned i = 0; i < 4; i++) {
    struct disk *d = open_disk (NULL);
    struct visitor visitors[3] = { { d, names[i] }, { d, names[i] }, { d, names[i] } };

    run_threads (visit, visitors, sizeof visitors[0], 3);
    CHECK (disk_close (d) == 0);
  }
}

/* --- the server ends --- */

/* nbdkit does not close connections then. */
static void
test_clients_that_stay (void)
{
  static const char *const names[] = { "", "s", "layer:0", "bitmap:b" };
  struct export *clients[4];
  struct disk *d = open_disk (NULL);

  for (unsigned i = 0; i < 4; i++)
    CHECK ((clients[i] = export_open (d, names[i], true)));
  CHECK (export_write (clients[0], "y", 1, SIZE - 1, false) == 0);
  CHECK (disk_close (d) == 0);
  for (unsigned i = 0; i < 4; i++)
    free (clients[i]);          /* (there is nothing to leave any more) */
}

/* Both images have data at 0. */
static void
make_images (void)
{
  struct image_spec spec = {
    .version = 3, .cluster_size = 65536, .refcount_bits = 16, .size = SIZE,
  };
  struct export *e;
  struct disk *d;

  image_create (BELOW, &spec);
  spec.backing = BELOW;
  image_create (IMAGE, &spec);
  for (unsigned i = 0; i < 2; i++) {
    path = images_path (i == 0 ? BELOW : IMAGE);
    d = open_disk (NULL);
    CHECK ((e = export_open (d, "", true)) && export_is_writable (e));
    CHECK (export_write (e, "x", 1, 0, false) == 0);
    CHECK (export_close (e) == 0 && disk_close (d) == 0);
    if (i == 0)
      free (path);
  }
  image_snapshot (IMAGE, "s");
  image_snapshot (IMAGE, "layer:0");
  image_snapshot (IMAGE, NO_TEXT);
  image_bitmap (IMAGE, "b", 0);
}

int
main (void)
{
  images_enter ("exports");
  make_images ();
  test_names ();
  test_inconsistent ();
  test_descriptions ();
  test_longest_name ();
  test_one_snapshot ();
  test_mappings_are_kept ();
  test_clients_at_once ();
  test_clients_that_stay ();
  CHECK (image_check (IMAGE) == 0);
  free (path);
  images_leave ();
  return 0;
}
