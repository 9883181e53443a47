/* SPDX-License-Identifier: BSD-3-Clause
 *
 * A raw external data file on a host that knows neither holes nor zeros: zeros are
 * written into the file, byte for byte, and only when the client does not want them at
 * once.  If there is no space for them, the request fails, no other byte has changed, and
 * the same request succeeds the next time.
 */

#include <config.h>

#include <errno.h>
#include <string.h>

#include "disk/export.h"
#include "lib/hostcalls.h"
#include "lib/images.h"
#include "lib/stubs.h"

#define IMAGE "disk.qcow2"
#define DATA "disk.data"
#define SIZE (2u << 20)

static unsigned char model[SIZE], buf[SIZE];

static void
check (struct export *e)
{
  struct blob data;

  CHECK (export_read (e, buf, SIZE, 0) == 0 && memcmp (buf, model, SIZE) == 0);
  blob_load (DATA, &data);
  CHECK (data.len == SIZE && memcmp (data.data, model, SIZE) == 0);
  blob_free (&data);
}

static void
test_zeros (struct export *e, unsigned flags)
{
  static const struct { uint64_t offset, count; } ranges[] = {
    { 5, 1000 }, { 65536, 65536 }, { 70000, 1 << 20 }, { 0, SIZE },
  };

  for (size_t i = 0; i < sizeof ranges / sizeof ranges[0]; i++) {
    memset (model, 'a' + i, SIZE);
    CHECK (export_write (e, model, SIZE, 0, false) == 0);
    errno = 0;
    quiet_errors = true;
    CHECK (export_zero (e, ranges[i].count, ranges[i].offset, flags | REQUEST_FAST,
                        false) == -1 && errno == ENOTSUP);
    quiet_errors = false;
    check (e);
    CHECK (export_zero (e, ranges[i].count, ranges[i].offset, flags, false) == 0);
    memset (model + ranges[i].offset, 0, ranges[i].count);
    check (e);
  }
}

static void
test_no_space (struct export *e, unsigned flags)
{
  const uint64_t offset = 70000, count = 1 << 20;

  memset (model, 'n', SIZE);
  CHECK (export_write (e, model, SIZE, 0, false) == 0);
  host.write_errno = ENOSPC;
  host.write_room = count / 2;
  quiet_errors = true;
  CHECK (export_zero (e, count, offset, flags, false) == -1 && errno == ENOSPC);
  quiet_errors = false;
  host.write_errno = 0;
  memset (model + offset, 0, count / 2);
  check (e);
  CHECK (export_zero (e, count, offset, flags, false) == 0);
  memset (model + offset, 0, count);
  check (e);
}

int
main (void)
{
  const struct image_spec spec = {
    .version = 3, .cluster_size = 65536, .refcount_bits = 16, .size = SIZE,
    .data_file = DATA, .data_file_raw = true,
  };
  struct disk_options options = {
    .l2_slice = 4096, .backing = BACKING_FOLLOW, .discard = true,
  };
  struct export *e;
  struct disk *d;

  images_enter ("raw-data-without-holes");
  image_create (IMAGE, &spec);
  host.punch_errno = EOPNOTSUPP;
  options.path = images_path (IMAGE);
  CHECK (disk_open (&options, &d) == 0);
  CHECK ((e = export_open (d, "", true)) != NULL && export_is_writable (e));
  test_zeros (e, 0);
  test_zeros (e, REQUEST_MAY_TRIM);
  test_no_space (e, 0);
  test_no_space (e, REQUEST_MAY_TRIM);
  memset (model, 'z', SIZE);
  CHECK (export_write (e, model, SIZE, 0, false) == 0);
  CHECK (export_trim (e, SIZE / 2, 0, false) == 0);
  check (e);
  CHECK (export_close (e) == 0);
  CHECK (disk_close (d) == 0);
  CHECK (host.punches > 0);
  CHECK (image_check (IMAGE) == 0);
  free ((char *) options.path);
  images_leave ();
  return 0;
}
