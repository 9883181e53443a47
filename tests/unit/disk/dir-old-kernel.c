/* SPDX-License-Identifier: BSD-3-Clause
 *
 * A kernel without openat2 cannot watch where symbolic links lead: a directory whose
 * links shall be followed is refused when the server starts, with a message that says
 * why.  It can be served without them.
 */

#include <config.h>

#include <errno.h>
#include <linux/openat2.h>
#include <string.h>
#include <sys/syscall.h>

#include "disk/dir.h"
#include "lib/images.h"
#include "lib/reach.h"
#include "lib/stubs.h"

#define IMAGE "disk.qcow2"

static unsigned calls;

/* The linker has the core call this one (Makefile.am). */
extern long __wrap_syscall (long number, ...);

long
__wrap_syscall (long number, ...)
{
  CHECK (number == SYS_openat2);
  calls++;
  errno = ENOSYS;
  return -1;
}

int
main (void)
{
  const struct image_spec spec = {
    .version = 3, .cluster_size = 4096, .refcount_bits = 16, .size = 1 << 20,
  };
  struct disk_options options = {
    .l2_cache = 1 << 20, .l2_slice = 4096, .lock = true, .in_dir.follow = true,
  };
  struct dir_image *image;
  unsigned descriptors;
  const char *rest;
  struct dir *dir;
  char *path;

  images_enter ("dir-old-kernel");
  image_create (IMAGE, &spec);
  options.path = path = images_path (".");
  descriptors = reach_open_descriptors ();
  quiet_errors = true;
  CHECK (dir_open (&options, &dir) == -1 && errno == ENOSYS);
  quiet_errors = false;
  CHECK (calls == 1 && error_count () == 1);
  CHECK (strstr (last_error (), "openat2, Linux 5.6") != NULL);
  CHECK (reach_open_descriptors () == descriptors);

  options.in_dir.follow = false;
  CHECK (dir_open (&options, &dir) == 0);
  CHECK ((image = dir_enter (dir, IMAGE, &rest)) != NULL);
  dir_leave (dir, image);
  CHECK (dir_close (dir) == 0 && calls == 1);
  free (path);
  images_leave ();
  return 0;
}
