/* SPDX-License-Identifier: BSD-3-Clause
 *
 * A commit into a layer below is given up while there is no space for what it has
 * written.  The next one says so, as long as that is the case, and then succeeds, unless
 * a client still sees the layer as it was.  If metadata could not be written at all, the
 * next one begins with the layer as after a crash.
 *
 * Afterwards the disk shows the same, also to qemu-img, which finds neither faults nor
 * leaks.
 */

#include <config.h>

#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "disk/export.h"
#include "change/commit.h"
#include "lib/images.h"
#include "lib/trials.h"

#define SIZE (UINT64_C (16) << 20)

static char *base_path;
static atomic_int fails;        /* errno of writes to the base, or 0 */
static const struct commit_layers layers = { .top = 1, .base = 2 };

static int
before (void *opaque, const char *path, enum storage_op op, const struct iovec *iov,
        int niov, uint64_t offset, uint64_t count, bool dsync)
{
  (void) opaque, (void) iov, (void) niov, (void) offset, (void) count, (void) dsync;
  if (fails == 0 || strcmp (path, base_path) != 0 || op == STORAGE_OP_READ)
    return 0;
  errno = fails;
  return -1;
}

static const struct storage_hooks hooks = { .before = before };

static void
refused (struct disk *d, int err, const char *why)
{
  quiet_errors = true;
  CHECK (commit_new (d, &layers) == NULL);
  quiet_errors = false;
  CHECK (errno == err);
  if (strstr (last_error (), why) == NULL)
    FAIL ("not about \"%s\": %s", why, last_error ());
}

static void
give_up (struct disk *d, int err)
{
  struct commit *c = commit_new (d, &layers);
  uint64_t copied = 0;

  CHECK (c && commit_range (c, 0, SIZE / 2, &copied, NULL) == 0 && copied > 0);
  fails = err;
  quiet_errors = true;
  commit_free (c);
  quiet_errors = false;
}

static void
do_all (struct disk *d)
{
  struct commit *c = commit_new (d, &layers);
  uint64_t copied = 0;

  if (c == NULL)
    FAIL ("the commit cannot begin: %m (%s)", last_error ());
  CHECK (commit_range (c, 0, commit_size (c), &copied, NULL) == 0);
  CHECK (commit_finish (c) == 0);
  commit_free (c);
}

static void
check_shown (struct disk *d, const struct blob *b)
{
  unsigned char *buf = malloc (SIZE);
  struct export *e = export_open (d, "", false);

  CHECK (buf && e && export_read (e, buf, SIZE, 0) == 0);
  CHECK (memcmp (buf, b->data, SIZE) == 0);
  CHECK (export_close (e) == 0);
  free (buf);
}

static void
make_chain (void)
{
  struct image_spec spec = {
    .version = 3, .cluster_size = 4096, .refcount_bits = 16, .size = SIZE,
  };
  struct rng rng = { 1 };

  image_create ("base", &spec);
  image_fill ("base", &spec, &rng, 20);
  spec.backing = "base";
  image_create ("middle", &spec);
  image_fill ("middle", &spec, &rng, 20);
  spec.backing = "middle";
  image_create ("top", &spec);
  image_fill ("top", &spec, &rng, 5);
}

/* CLIENT: one reads the base. */
static void
test (int err, bool client)
{
  struct disk_options options = {
    .l2_cache = 1 << 20, .l2_slice = 4096, .discard = true, .lock = true, .hooks = &hooks,
  };
  struct export *e, *reader;
  struct blob shown, is;
  struct disk *d;

  make_chain ();
  image_contents ("top", NULL, &shown);
  options.path = images_path ("top");
  base_path = images_path ("base");
  CHECK (disk_open (&options, &d) == 0);
  e = export_open (d, "", true);
  CHECK (e);

  give_up (d, err);
  check_shown (d, &shown);
  reader = client ? export_open (d, "layer:2", false) : NULL;
  CHECK (!client || reader);
  if (err != EIO)
    refused (d, err, "there is still no space or memory");
  fails = 0;
  if (reader) {
    refused (d, EBUSY, "a client has used");
    CHECK (export_close (reader) == 0);
  }
  quiet_errors = err == EIO;    /* what was lost then is told now */
  do_all (d);
  quiet_errors = false;
  CHECK (image_check ("base") == 0);    /* it is locked no more */
  check_shown (d, &shown);
  CHECK (export_close (e) == 0);
  CHECK (disk_close (d) == 0);

  CHECK (unlink ("middle") == 0);
  CHECK (image_check ("top") == 0);
  image_contents ("top", NULL, &is);
  CHECK (blob_same (&shown, &is));
  blob_free (&shown);
  blob_free (&is);
  free (base_path);
  free ((char *) options.path);
}

int
main (void)
{
  images_enter ("commit-again");
  test (ENOSPC, false);
  test (ENOSPC, true);
  test (EIO, false);
  test (EIO, true);
  images_leave ();
  return 0;
}
