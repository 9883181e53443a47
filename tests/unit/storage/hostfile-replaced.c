/* SPDX-License-Identifier: BSD-3-Clause
 *
 * A file that was opened to be read becomes writable, unless another one has its name by
 * then: that one is not touched, and the first one goes on to be read.  The descriptor
 * that it had, with which a thread may still read, locks nothing any more.
 */

#include <config.h>

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "storage/storage.h"
#include "lib/images.h"
#include "lib/stubs.h"

#define LEN 4096

static struct storage *
open_new (const char *name, unsigned char byte)
{
  static const struct storage_options options;
  unsigned char bytes[LEN];
  const struct blob b = { bytes, LEN };
  char *path = images_path (name);
  struct storage *f;

  memset (bytes, byte, LEN);
  blob_save (name, &b);
  CHECK (storage_open (path, &options, &f) == 0 && !storage_is_writable (f));
  free (path);
  return f;
}

static bool
contains (struct storage *f, unsigned char byte)
{
  unsigned char bytes[LEN];

  CHECK (storage_read (f, bytes, LEN, 0) == 0);
  return bytes[0] == byte && bytes[LEN - 1] == byte;
}

/* Another descriptor of the same open file, as a thread that reads has it. */
static int
dup_of (const struct storage *f)
{
  char link[64], path[4096];

  for (int fd = 3; fd < 64; fd++) {
    ssize_t n;

    snprintf (link, sizeof link, "/proc/self/fd/%d", fd);
    n = readlink (link, path, sizeof path - 1);
    if (n > 0 && (path[n] = '\0', strcmp (path, storage_path (f)) == 0))
      return dup (fd);
  }
  return -1;
}

int
main (void)
{
  struct storage *f, *other;
  int reads;

  images_enter ("hostfile-replaced");
  f = open_new ("file", 1);
  CHECK (storage_lock (f, STORAGE_READER) == 0 && (reads = dup_of (f)) != -1);
  CHECK (storage_become_writable (f) == 0 && storage_is_writable (f));
  CHECK (storage_lock (f, STORAGE_WRITER) == 0);
  CHECK (storage_write (f, "2", 1, 0) == 0);
  close (reads);
  storage_close (f);

  f = open_new ("file", 3);
  other = open_new ("other", 4);
  CHECK (rename ("other", "file") == 0);
  quiet_errors = true;
  CHECK (storage_become_writable (f) == -1 && errno == ESTALE);
  quiet_errors = false;
  CHECK (strstr (last_error (), "another file now") && !storage_is_writable (f));
  CHECK (contains (f, 3) && contains (other, 4));
  storage_close (f);
  storage_close (other);
  images_leave ();
  return 0;
}
