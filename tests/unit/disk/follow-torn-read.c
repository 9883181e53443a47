/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Is a piece that a client wrote while it was read kept from a target that is a layer?
 *
 * The copy reads each piece of the disk while a client writes in it, and gets bytes that
 * are neither old nor new.  The target never gets those; in the end it has what the
 * client wrote.
 */

#include <config.h>

#include <string.h>

#include "util/cleanup.h"
#include "change/follow.h"
#include "disk/export.h"
#include "lib/images.h"
#include "lib/stubs.h"

#define PIECE 65536
#define PIECES 16
#define SIZE (PIECES * PIECE)
#define TORN 0xee

static struct export *client;
static unsigned char model[SIZE], target[SIZE];
static unsigned torn;           /* pieces that were */

static int
all_data (const struct copy_end *e, uint64_t at, struct extent *x,
          struct storage_holes *known)
{
  (void) known;
  *x = (struct extent) { .len = e->size - at };
  return 0;
}

/* A client writes in each piece but the first, as it is read for the first time. */
static int
tear (const struct copy_end *e, void *buf, uint64_t count, uint64_t at)
{
  unsigned char *const b = buf;
  const uint64_t end = at + count;

  (void) e;
  memcpy (b, model + at, count);
  for (uint64_t i = (at + PIECE - 1) / PIECE; (i + 1) * PIECE <= end; i++)
    if (i > 0 && model[i * PIECE] == 0) {
      memset (b + i * PIECE - at, TORN, PIECE / 2);
      memset (model + i * PIECE, i, 512);
      CHECK (export_write (client, model + i * PIECE, 512, i * PIECE, false) == 0);
      torn++;
    }
  return 0;
}

static int
put (const struct copy_end *e, const void *buf, uint64_t count, uint64_t at)
{
  (void) e;
  CHECK (memchr (buf, TORN, count) == NULL);
  memcpy (target + at, buf, count);
  return 0;
}

static int
put_zeros (const struct copy_end *e, uint64_t count, uint64_t at)
{
  (void) e;
  memset (target + at, 0, count);
  return 0;
}

static int
sync_nothing (const struct copy_end *e)
{
  (void) e;
  return 0;
}

int
main (void)
{
  static const struct copy_ops from = { .extent = all_data, .read = tear };
  static const struct copy_ops to = {
    .write = put, .zero = put_zeros, .sync = sync_nothing,
  };
  const struct image_spec spec = {
    .version = 3, .cluster_size = PIECE, .refcount_bits = 16, .size = SIZE,
  };
  struct disk_options options = { .l2_cache = SIZE, .l2_slice = 4096, .lock = true };
  struct follow_options follow = {
    .path = "target", .granularity = PIECE,
    .copy = {
      .from = { .ops = &from, .size = SIZE },
      .to = { .ops = &to, .size = SIZE, .piece = PIECE },
      .contained = true,
    },
  };
  CLEANUP_FREE char *path = NULL;
  struct follow *f;
  uint64_t copied;
  int r;

  images_enter ("follow-torn-read");
  image_create ("a.qcow2", &spec);
  options.path = path = images_path ("a.qcow2");
  CHECK (disk_open (&options, &follow.disk) == 0);
  client = export_open (follow.disk, "", true);
  CHECK (client && export_is_writable (client));
  memset (target, 0xff, SIZE);

  f = follow_new (&follow);
  CHECK (f && follow_add (f, NULL) == 0);
  while ((r = follow_step (f, PIECE, &copied)) == 1)
    ;
  CHECK (r == 0 && torn == PIECES - 1);
  CHECK (follow_near (f) == 0 && follow_begin_end (f) == 0 && follow_rest (f) == 0);
  follow_free (f);
  CHECK (memcmp (target, model, SIZE) == 0);

  CHECK (export_close (client) == 0);
  CHECK (disk_close (follow.disk) == 0);
  CHECK (image_check ("a.qcow2") == 0);
  images_leave ();
  return 0;
}
