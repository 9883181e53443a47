/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Is a snapshot deleted with copies of L2 tables that were made while clients write?
 *
 * All tables of the disk need COPIED flags then, but for one with clusters that are new
 * already.  A client writes to another one when copies are being made.  That is read
 * again, the others only once, for the copy, and not behind the gate.  If no copy can be
 * made, the snapshot is deleted all the same.  The image is then clean, with all COPIED
 * flags, and shows what was written.
 */

#include <config.h>

#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "util/cleanup.h"
#include "format/format.h"
#include "change/edit.h"
#include "disk/export.h"
#include "lib/images.h"
#include "lib/stubs.h"

#define TABLES 6
#define LATE 4                  /* the table that is written meanwhile */
#define PIECE 4096

static struct disk *disk;
static struct export *client;
static uint64_t stride;         /* bytes that a table maps */
static uint64_t tables[TABLES]; /* their places */
static unsigned reads[TABLES];  /* by the change */
static unsigned char values[TABLES];
static uint64_t table_bytes;

static _Thread_local bool deletes;
static bool fails;
static bool copied;             /* copies have begun to be written */

static void
write_piece (unsigned table)
{
  static unsigned char buf[PIECE];

  memset (buf, ++values[table], PIECE);
  CHECK (export_write (client, buf, PIECE, table * stride, false) == 0);
}

/* When the copies are written, the client comes, and makes what it writes durable. */
static int
watch (void *opaque, const char *path, enum storage_op op, const struct iovec *iov,
       int niov, uint64_t offset, uint64_t count, bool dsync)
{
  (void) opaque, (void) path, (void) iov, (void) niov, (void) dsync;
  if (!deletes)
    return 0;
  if (op == STORAGE_OP_READ)
    for (unsigned i = 0; i < TABLES; i++)
      reads[i] += offset == tables[i];
  if (op != STORAGE_OP_WRITE || copied || count % table_bytes != 0)
    return 0;
  copied = true;
  deletes = false;
  write_piece (LATE);
  CHECK (export_flush (client) == 0);
  deletes = true;
  if (fails)
    errno = ENOSPC;
  return fails ? -1 : 0;
}

static void
change_snapshot (enum edit_kind kind)
{
  const struct edit_options options = { .shrink = false };
  const struct edit edit = { .kind = kind, .name = "s" };

  CHECK (edit_disk (disk, &options, &edit, 1) == 0);
}

static void
find_tables (void)
{
  struct blob b;
  uint64_t l1;

  blob_load ("a.qcow2", &b);
  l1 = blob_get (&b, 40, 8);
  for (unsigned i = 0; i < TABLES; i++) {
    tables[i] = blob_get (&b, l1 + 8 * i, 8) & QCOW2_L1_OFFSET_MASK;
    CHECK (tables[i] != 0 && (i == 0 || tables[i] != tables[i - 1]));
  }
  blob_free (&b);
}

static void
delete_snapshot (bool copies)
{
  memset (reads, 0, sizeof reads);
  copied = false;
  fails = !copies;
  quiet_errors = true;
  deletes = true;
  change_snapshot (EDIT_SNAPSHOT_DELETE);
  deletes = false;
  quiet_errors = false;
  CHECK (copied);
  for (unsigned i = 0; i < TABLES; i++)
    CHECK (reads[i] == (i == LATE || !copies ? 2 : 1));
}

static void
check_image (struct disk_options *options)
{
  static unsigned char buf[PIECE];

  CHECK (disk_open (options, &disk) == 0);
  client = export_open (disk, "", false);
  CHECK (client != NULL);
  for (unsigned i = 0; i < TABLES; i++) {
    CHECK (export_read (client, buf, PIECE, i * stride) == 0);
    for (unsigned k = 0; k < PIECE; k++)
      CHECK (buf[k] == values[i]);
  }
  CHECK (export_close (client) == 0);
  CHECK (disk_close (disk) == 0);
  CHECK (image_check ("a.qcow2") == 0);
}

static void
one_image (uint64_t cluster_size, bool extended, bool copies)
{
  static const struct storage_hooks hooks = { .before = watch };
  struct image_spec spec = {
    .version = 3, .cluster_size = cluster_size, .extended = extended, .refcount_bits = 16,
  };
  CLEANUP_FREE char *path = images_path ("a.qcow2");
  struct disk_options options = {
    .path = path, .l2_cache = 1 << 20, .l2_slice = 4096, .lock = true, .discard = true,
    .hooks = &hooks,
  };

  stride = cluster_size * cluster_size / (extended ? 16 : 8);
  table_bytes = cluster_size;
  spec.size = TABLES * stride;
  unlink ("a.qcow2");
  image_create ("a.qcow2", &spec);
  CHECK (disk_open (&options, &disk) == 0);
  client = export_open (disk, "", true);
  CHECK (client && export_is_writable (client));
  for (unsigned i = 0; i < TABLES; i++)
    write_piece (i);
  change_snapshot (EDIT_SNAPSHOT_CREATE);
  find_tables ();
  write_piece (0);
  CHECK (export_flush (client) == 0);
  delete_snapshot (copies);
  for (unsigned i = 0; i < TABLES; i++)
    write_piece (i);
  CHECK (export_close (client) == 0);
  CHECK (disk_close (disk) == 0);
  check_image (&options);
}

int
main (void)
{
  images_enter ("delete-ahead");
  for (int copies = 0; copies < 2; copies++) {
    one_image (4096, false, copies);
    one_image (65536, false, copies);
    one_image (16384, true, copies);
  }
  images_leave ();
  return 0;
}
