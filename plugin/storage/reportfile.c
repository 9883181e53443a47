/* SPDX-License-Identifier: BSD-3-Clause
 *
 * How does a report get into a file, and what may it replace?
 *
 * What a name leads to decides, never how the name begins:
 *
 *   nothing              a new file is made
 *   a regular file       it is replaced, as a whole, if it begins like a report of ours
 *                        or is empty: stats=disk.qcow2 must not cost anybody a disk
 *   a descriptor of ours (/dev/stdout, /dev/fd/3) the report is written through it, where
 *                        it stands: whoever opened it, and still writes to it, would not
 *                        find a file that was replaced.  Nothing is overwritten
 *   a stream             (terminal, pipe, character device) it is opened and written to
 *   anything else        (block device, directory, file that another process has open)
 *                        is refused
 *
 * Symbolic links are followed one by one, since the last one tells a descriptor from a
 * file: the links of procfs that lead to open files do not have those files' names.
 *
 * A file is replaced by renaming: the report is written next to it first, so a reader
 * never meets half of one.  The look at what is there is repeated after it has been
 * moved away, and if it is no report it is put back: nothing that gets that name
 * meanwhile is lost.
 *
 * Reports are no images: they do not go through hostfile.
 *
 * Locks: none; each writer has a file of its own until it is renamed.
 */

#include <config.h>

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/magic.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "util/cleanup.h"
#include "util/report.h"
#include "storage/reportfile.h"

/* As many symbolic links as the kernel follows. */
#define MAX_LINKS 40

struct place {
  enum { NOTHING, REGULAR, DESCRIPTOR, STREAM, OTHER } kind;
  char *name;                   /* after all symbolic links; to be freed */
  int fd;                       /* of a DESCRIPTOR; it is not ours to close */
};

static int
failed (const char *key, const char *path)
{
  nbdkit_error ("%s=%s: cannot write the file: %m", key, path);
  return -1;
}

static int
refused (const char *key, const char *path, const char *why)
{
  nbdkit_error ("%s=%s: %s", key, path, why);
  errno = EEXIST;
  return -1;
}

static int
refused_stranger (const char *key, const char *path)
{
  return refused (key, path,
                  "it is there already, and holds something other than a report");
}

/* --- where the name leads --- */

/* The directory that NAME is in, with a slash at its end; to be freed. */
static char *
directory_of (const char *name)
{
  const char *slash = strrchr (name, '/');

  return slash ? strndup (name, slash - name + 1) : strdup ("./");
}

/* NAME is a symbolic link of procfs.  Returns the descriptor of this process that it
 * stands for, or -1. */
static int
own_descriptor (const char *name)
{
  CLEANUP_FREE char *directory = directory_of (name);
  CLEANUP_FREE char *real = directory ? realpath (directory, NULL) : NULL;
  CLEANUP_FREE char *own = realpath ("/proc/self/fd", NULL);
  const char *digits = strrchr (name, '/');
  unsigned long n;
  char *end;

  if (real == NULL || own == NULL || strcmp (real, own) != 0 || digits == NULL ||
      digits[1] < '0' || digits[1] > '9')
    return -1;
  n = strtoul (digits + 1, &end, 10);
  return *end == '\0' && n <= INT_MAX ? (int) n : -1;
}

/* What is the name P->name itself?  1: a symbolic link to follow, *TARGET (to be freed)
 * says where; 0: something else, or nothing, or a link of procfs that is not followed but
 * stands for an open file (*OPEN).  -1 with errno. */
static int
look_at_link (const struct place *p, char **target, bool *open_file)
{
  char text[PATH_MAX];
  struct statfs fs;
  struct stat st;
  ssize_t n;
  int fd = open (p->name, O_PATH | O_NOFOLLOW | O_CLOEXEC);
  int r = -1;

  *target = NULL;
  *open_file = false;
  if (fd == -1)
    return errno == ENOENT ? 0 : -1;
  if (fstat (fd, &st) == -1 || fstatfs (fd, &fs) == -1)
    r = -1;
  else if (!S_ISLNK (st.st_mode))
    r = 0;
  else if (fs.f_type == PROC_SUPER_MAGIC) {
    *open_file = true;
    r = 0;
  }
  else if ((n = readlinkat (fd, "", text, sizeof text)) == sizeof text)
    errno = ENAMETOOLONG;
  else if (n > 0 && (*target = strndup (text, n)) != NULL)
    r = 1;
  close (fd);
  return r;
}

/* Goes on to where the link P->name leads:  TARGET is relative to the directory of the
 * link. */
static int
go_to (struct place *p, const char *target)
{
  CLEANUP_FREE char *directory = directory_of (p->name);
  char *name;

  if (target[0] == '/')
    name = strdup (target);
  else if (directory == NULL || asprintf (&name, "%s%s", directory, target) == -1)
    name = NULL;
  if (name == NULL)
    return -1;
  free (p->name);
  p->name = name;
  return 0;
}

/* *P receives where PATH leads; free its name in any case.  -1 with errno. */
static int
find_place (const char *path, struct place *p)
{
  bool open_file = false;
  struct stat st;
  char *target;
  int r, links;

  p->kind = OTHER;
  p->fd = -1;
  p->name = strdup (path);
  if (p->name == NULL)
    return -1;
  /* The kernel may forbid us to follow a link, or be unable to: ask it first. */
  if (stat (path, &st) == 0)
    p->kind = S_ISREG (st.st_mode) ? REGULAR
      : S_ISCHR (st.st_mode) || S_ISFIFO (st.st_mode) || S_ISSOCK (st.st_mode)
      ? STREAM : OTHER;
  else if (errno == ENOENT)
    p->kind = NOTHING;
  else
    return -1;

  for (links = 0; (r = look_at_link (p, &target, &open_file)) == 1; links++) {
    r = links < MAX_LINKS ? go_to (p, target) : -1;
    free (target);
    if (r == -1)
      return -1;
  }
  if (r == -1)
    return -1;
  if (open_file) {
    p->fd = own_descriptor (p->name);
    if (p->kind == REGULAR || p->kind == STREAM)
      p->kind = p->fd >= 0 ? DESCRIPTOR : p->kind == REGULAR ? OTHER : STREAM;
  }
  return 0;
}

/* --- what may be written to --- */

/* Does the file of that name begin like a report, or is it empty?  1, or 0, or -1 with
 * errno. */
static int
is_report (const char *name)
{
  const int fd = open (name, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW);
  char first;
  ssize_t n;

  if (fd == -1)
    return -1;
  n = read (fd, &first, 1);
  close (fd);
  return n == -1 ? -1 : n == 0 || first == '{';
}

/* May a report be written through descriptor FD, where it stands? */
static int
check_descriptor (const char *key, const char *path, int fd)
{
  const int flags = fcntl (fd, F_GETFL);
  struct stat st;

  if (flags == -1 || fstat (fd, &st) == -1)
    return failed (key, path);
  if ((flags & O_ACCMODE) == O_RDONLY || (flags & O_PATH)) {
    errno = EBADF;
    return failed (key, path);
  }
  if (S_ISREG (st.st_mode) && !(flags & O_APPEND) &&
      lseek (fd, 0, SEEK_CUR) < st.st_size)
    return refused (key, path, "the report would overwrite what is in the file; open it "
                    "for appending, or empty");
  return 0;
}

/* Finds where PATH leads, and whether we may write there.  -1: no; reported. */
static int
examine (const char *key, const char *path, struct place *p)
{
  int r;

  if (find_place (path, p) == -1)
    return failed (key, path);
  if (p->kind == OTHER)
    return refused (key, path, "it is neither a file, nor a pipe or a terminal");
  if (p->kind == DESCRIPTOR)
    return check_descriptor (key, path, p->fd);
  if (p->kind != REGULAR)
    return 0;
  r = is_report (p->name);
  return r == 1 ? 0 : r == 0 ? refused_stranger (key, path) : failed (key, path);
}

int
reportfile_check (const char *key, const char *path, bool repeatedly)
{
  struct place p;
  int r = examine (key, path, &p);

  if (r == 0 && repeatedly && p.kind != NOTHING && p.kind != REGULAR)
    r = refused (key, path, "it is not a regular file, and cannot be replaced");
  free (p.name);
  return r;
}

/* --- writing --- */

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

/* Opens a stream, which has not turned into something else. */
static int
open_stream (const char *path)
{
  int fd = open (path, O_WRONLY | O_CLOEXEC | O_NOCTTY);
  struct stat st;

  if (fd >= 0 && (fstat (fd, &st) == -1 || S_ISREG (st.st_mode) ||
                  S_ISBLK (st.st_mode))) {
    close (fd);
    errno = EEXIST;
    fd = -1;
  }
  return fd;
}

/* TEMPORARY has become the name of what NAME was until now: that goes if it is a report,
 * and else it gets its name back. */
static int
settle (const char *temporary, const char *name)
{
  if (is_report (temporary) == 1)
    return unlink (temporary);
  if (renameat2 (AT_FDCWD, temporary, AT_FDCWD, name, RENAME_EXCHANGE) == 0)
    unlink (temporary);
  errno = EEXIST;
  return -1;
}

/* Gives the complete report TEMPORARY the name NAME; on errors removes it.  -1 with
 * errno; EEXIST: NAME is something other than a report, and stays. */
static int
give_name (const char *temporary, const char *name)
{
  int err;

  do {
    if (renameat2 (AT_FDCWD, temporary, AT_FDCWD, name, RENAME_NOREPLACE) == 0)
      return 0;
    if (errno != EEXIST)
      break;
    if (renameat2 (AT_FDCWD, temporary, AT_FDCWD, name, RENAME_EXCHANGE) == 0)
      return settle (temporary, name);
  } while (errno == ENOENT);    /* what was there has gone meanwhile */

  /* A filesystem that can't do these (NFS): what is there was looked at a moment ago. */
  if ((errno == EINVAL || errno == ENOSYS) && rename (temporary, name) == 0)
    return 0;
  err = errno;
  unlink (temporary);
  errno = err;
  return -1;
}

/* Writes a file next to NAME and gives it that name.  -1 with errno, as give_name. */
static int
write_file (const char *name, bool durable, void (*print) (FILE *, const void *),
            const void *opaque)
{
  static atomic_uint number;
  CLEANUP_FREE char *temporary = NULL;
  int fd, err;

  if (asprintf (&temporary, "%s.%d-%u.tmp", name, (int) getpid (), number++) == -1) {
    temporary = NULL;
    return -1;
  }
  fd = open (temporary, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
  if (fd == -1) {
    if (errno == EEXIST)        /* give_name's word for something else */
      errno = EAGAIN;
    return -1;
  }
  if (write_to (fd, durable, print, opaque) == 0)
    return give_name (temporary, name);
  err = errno;
  unlink (temporary);
  errno = err;
  return -1;
}

int
reportfile_write (const char *key, const char *path, bool durable,
                  void (*print) (FILE *, const void *), const void *opaque)
{
  struct place p;
  int fd, r = examine (key, path, &p);

  if (r == 0 && (p.kind == NOTHING || p.kind == REGULAR)) {
    r = write_file (p.name, durable, print, opaque);
    if (r == -1)
      errno == EEXIST ? refused_stranger (key, path) : failed (key, path);
  }
  else if (r == 0) {
    fd = p.kind == DESCRIPTOR ? fcntl (p.fd, F_DUPFD_CLOEXEC, 0) : open_stream (p.name);
    if (fd == -1 || write_to (fd, false, print, opaque) == -1)
      r = failed (key, path);
  }
  free (p.name);
  return r;
}
