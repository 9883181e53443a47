/* SPDX-License-Identifier: BSD-3-Clause
 *
 * How does a report get into a file, and what may it replace?
 *
 * A report is written next to its place and then renamed, so a reader never meets half of
 * one.  That takes away what was there before.  Hence only a file that begins like a
 * report of ours, or is empty, is replaced: stats=disk.qcow2 must not cost anybody a
 * disk.
 *
 * And a name is not always a file's.  A symbolic link is followed, and stays.  /dev/stdout is
 * a link to whatever the shell has opened, perhaps a file without any name: to replace
 * that would replace the link for everybody, so what /dev and /proc lead to is
 * appended to.
 *
 * Reports are no images: they do not go through hostfile.
 *
 * Locks: none; each writer has a file of its own until it is renamed.
 */

#include <config.h>

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cleanup.h"
#include "report.h"
#include "reportfile.h"

static bool
is_below (const char *path, const char *directory)
{
  return strncmp (path, directory, strlen (directory)) == 0;
}

/* Where the report goes.  NULL: it is to be written in place.  To be freed. */
static char *
place_of (const char *path)
{
  struct stat st;
  char *real;

  if (is_below (path, "/dev/") || is_below (path, "/proc/"))
    return NULL;
  if (stat (path, &st) == -1)   /* there is nothing, or only a link to nothing */
    return lstat (path, &st) == -1 ? strdup (path) : NULL;
  if (!S_ISREG (st.st_mode))
    return NULL;
  real = realpath (path, NULL);
  if (real && (is_below (real, "/dev/") || is_below (real, "/proc/"))) {
    free (real);
    real = NULL;
  }
  return real;
}

static int
failed (const char *key, const char *path)
{
  nbdkit_error ("%s=%s: cannot write the file: %m", key, path);
  return -1;
}

int
reportfile_check (const char *key, const char *path, bool repeatedly)
{
  CLEANUP_FREE char *place = place_of (path);
  struct stat st;
  bool ours = true;
  char first;
  ssize_t n;
  int fd;

  if (stat (path, &st) == -1)
    return errno == ENOENT ? 0 : failed (key, path);    /* (writing may tell) */
  if (S_ISBLK (st.st_mode) || (place == NULL && repeatedly))
    ours = false;
  else if (place && st.st_size > 0) {
    fd = open (place, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd == -1)
      return failed (key, path);
    n = read (fd, &first, 1);
    close (fd);
    ours = n == 0 || (n == 1 && first == '{');
  }
  if (ours)
    return 0;
  nbdkit_error ("%s=%s: it is there already, and holds something other than a report",
                key, path);
  errno = EEXIST;
  return -1;
}

/* Writes all to FD, and closes it. */
static int
write_to (int fd, bool durable, void (*print) (FILE *, const void *),
          const void *opaque)
{
  FILE *fp = fdopen (fd, "w");
  int err;

  if (fp == NULL) {
    close (fd);
    return -1;
  }
  print (fp, opaque);
  if (fflush (fp) == EOF || ferror (fp) || (durable && fsync (fd) == -1)) {
    err = errno;
    fclose (fp);
    errno = err;
    return -1;
  }
  return fclose (fp) == EOF ? -1 : 0;
}

int
reportfile_write (const char *key, const char *path, bool durable,
                  void (*print) (FILE *, const void *), const void *opaque)
{
  static atomic_uint number;
  CLEANUP_FREE char *place = place_of (path);
  CLEANUP_FREE char *temporary = NULL;
  int fd, err;

  if (place == NULL) {
    fd = open (path, O_WRONLY | O_APPEND | O_CLOEXEC | O_NOCTTY);
    if (fd == -1 || write_to (fd, false, print, opaque) == -1)
      return failed (key, path);
    return 0;
  }
  if (asprintf (&temporary, "%s.%d-%u.tmp", place, (int) getpid (), number++) == -1) {
    temporary = NULL;
    return failed (key, path);
  }
  fd = open (temporary, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
  if (fd == -1)
    return failed (key, path);
  if (write_to (fd, durable, print, opaque) == 0 && rename (temporary, place) == 0)
    return 0;
  err = errno;
  unlink (temporary);
  errno = err;
  return failed (key, path);
}
