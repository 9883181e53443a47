/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Snapshots and resizes of images with extended L2 entries, which have two words each.
 *
 * The test calls the rooms directly; qemu-img and qemu-io judge.
 */

#include <config.h>

#include <fcntl.h>
#include <stdarg.h>
#include <string.h>
#include <unistd.h>

#include "storage/storage.h"
#include "format/header.h"
#include "change/resize.h"
#include "change/snapedit.h"
#include "lib/images.h"

#define IMAGE "top.qcow2"
#define SIZE (UINT64_C (3) << 20)

static struct image *
open_image (void)
{
  const struct image_options options = { .file.try_writable = true };
  char *path = images_path (IMAGE);
  struct image *image = image_open (path, &options);

  CHECK (image != NULL && image->header.l2_entry_size == 16);
  CHECK (image_load (image) == 0 && image_read_snapshots (image) == 0);
  free (path);
  return image;
}

static void
close_image (struct image *image)
{
  image_close (image);
  CHECK (image_check (IMAGE) == 0);
}

static void
release (struct image *image, struct shadow *done)
{
  shadow_release (done, NULL);
  shadow_free (done);
  close_image (image);
}

static void
edit (int (*fn) (const struct image *, bool, const char *, struct shadow **),
      const char *name)
{
  struct image *image = open_image ();
  struct shadow *done;

  CHECK (fn (image, true, name, &done) == 0);
  release (image, done);
}

static int
delete (const struct image *image, bool discard, const char *name, struct shadow **done)
{
  return snapedit_delete (image, discard, name, NULL, done);
}

static int
create (const struct image *image, bool discard, const char *name, struct shadow **done)
{
  return snapedit_create (image, discard, name, NULL, done);
}

static void
resize (uint64_t size, enum preallocation how, uint64_t backing)
{
  const struct resize_options ro = {
    .size = size, .preallocation = how, .backing_size = backing, .discard = true,
  };
  struct image *image = open_image ();
  struct shadow *done;

  CHECK (resize_check (image, &ro) == 0);
  CHECK (resize_image (image, &ro, &done) == 0);
  release (image, done);
}

static void
run (const char *program, ...)
{
  struct command c = { .n = 0 };
  const char *arg = program;
  va_list args;

  va_start (args, program);
  for (; arg; arg = va_arg (args, const char *))
    command_add (&c, "%s", arg);
  va_end (args);
  command_must (&c);
}

static void
io (const char *request)
{
  run ("qemu-io", "-f", "qcow2", "-d", "unmap", "-c", request, IMAGE, NULL);
}

/* The disk holds EXPECTED, then zeros. */
static void
check_contents (const struct blob *expected, uint64_t size)
{
  struct blob b;
  uint64_t i;

  image_contents (IMAGE, NULL, &b);
  CHECK (b.len == size);
  for (i = 0; i < size; i++)
    CHECK (b.data[i] == (i < expected->len ? expected->data[i] : 0));
  blob_free (&b);
}

static void
one_kind (const char *cluster_size, bool backing)
{
  struct blob before, after;
  char options[80];

  unlink (IMAGE);
  snprintf (options, sizeof options, "extended_l2=on,cluster_size=%s",
            cluster_size);
  if (backing)
    run ("qemu-img", "create", "-q", "-f", "qcow2", "-o", options, "-b", "below",
         "-F", "raw", IMAGE, "3M", NULL);
  else
    run ("qemu-img", "create", "-q", "-f", "qcow2", "-o", options, IMAGE, "3M",
         NULL);
  /* Subclusters of all kinds, and a compressed cluster. */
  io ("write -P 1 0 512k");
  io ("write -P 2 601k 1k");
  io ("write -z 1M 3k");
  io ("discard 64k 128k");
  if (strcmp (cluster_size, "64k") == 0)
    io ("write -c -P 5 2M 64k");
  image_contents (IMAGE, NULL, &before);

  edit (create, "ours");
  check_contents (&before, SIZE);
  io ("write -P 7 3k 200k");
  io ("write -z 2M 300k");
  io ("write -P 8 1100k 3k");
  image_contents (IMAGE, NULL, &after);
  image_snapshot (IMAGE, "theirs");
  edit (snapedit_apply, "ours");
  check_contents (&before, SIZE);
  run ("qemu-img", "snapshot", "-a", "theirs", IMAGE, NULL);
  check_contents (&after, SIZE);
  edit (snapedit_apply, "1");
  run ("qemu-img", "snapshot", "-a", "ours", IMAGE, NULL);
  check_contents (&before, SIZE);
  edit (snapedit_apply, "theirs");
  edit (delete, "ours");
  edit (delete, "theirs");
  check_contents (&after, SIZE);

  resize (SIZE * 2, PREALLOCATION_OFF, backing ? SIZE * 3 : 0);
  check_contents (&after, SIZE * 2);
  resize (SIZE * 4, PREALLOCATION_METADATA, backing ? SIZE * 3 : 0);
  check_contents (&after, SIZE * 4);
  io ("write -P 9 7M 100k");
  CHECK (image_check (IMAGE) == 0);
  resize (1 << 20, PREALLOCATION_OFF, 0);
  after.len = 1 << 20;
  check_contents (&after, 1 << 20);
  resize (SIZE * 4, PREALLOCATION_OFF, backing ? SIZE * 3 : 0);
  check_contents (&after, SIZE * 4);
  blob_free (&before);
  blob_free (&after);
}

int
main (void)
{
  static unsigned char below[SIZE * 3];
  const struct blob b = { below, sizeof below };

  images_enter ("edit-extended");
  memset (below, 0x77, sizeof below);
  blob_save ("below", &b);
  one_kind ("16k", false);
  one_kind ("64k", false);
  one_kind ("16k", true);
  one_kind ("1M", true);
  images_leave ();
  return 0;
}
