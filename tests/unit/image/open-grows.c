/* SPDX-License-Identifier: BSD-3-Clause
 *
 * An image can be opened by name while a server makes its file longer: what the header
 * names at the new end is within the file.  (The size is known before the header is
 * read.)
 */

#include <config.h>

#include "util/cleanup.h"
#include "image/image.h"
#include "lib/images.h"

#define IMAGE "grows.qcow2"

static struct blob later;       /* what the file contains from the first read on */

static int
grow (void *opaque, const char *path, enum storage_op op, const struct iovec *iov, int niov,
      uint64_t offset, uint64_t count, bool dsync)
{
  bool *grown = opaque;

  (void) path, (void) iov, (void) niov, (void) offset, (void) count, (void) dsync;
  CHECK (op == STORAGE_OP_READ);
  if (!*grown)
    blob_save (IMAGE, &later);
  *grown = true;
  return 0;
}

/* Makes `later', and a file that is shorter than what its header will name. */
static void
make_images (void)
{
  const struct image_spec spec = {
    .version = 3, .cluster_size = 512, .refcount_bits = 16, .size = 16 << 20,
  };
  struct command c = { .n = 0 };
  struct blob before;

  image_create (IMAGE, &spec);
  blob_load (IMAGE, &before);
  command_words (&c, "qemu-io -f qcow2 -c");
  command_add (&c, "write 0 12M");
  command_add (&c, IMAGE);
  command_must (&c);
  blob_load (IMAGE, &later);
  CHECK (blob_get (&later, 48, 8) >= before.len);       /* the refcount table */
  blob_save (IMAGE, &before);
  blob_free (&before);
}

int
main (void)
{
  bool grown = false;
  const struct storage_hooks hooks = { .before = grow, .opaque = &grown };
  const struct storage_options options = { .hooks = &hooks };
  CLEANUP_FREE char *path = NULL;
  struct image *image;

  images_enter ("open-grows");
  path = images_path (IMAGE);
  make_images ();
  image = image_open_file (path, &options);
  CHECK (image && image_read_header (image) == 0);
  CHECK (grown && storage_size (image->file) == later.len);
  image_close (image);
  blob_free (&later);
  images_leave ();
  return 0;
}
