/* SPDX-License-Identifier: BSD-3-Clause
 *
 * How is a report written to a file, and which files may it replace?
 *
 * The file that a name leads to decides, not the form of the name:
 *
 *   nothing              a new file is created
 *   a regular file       it is replaced, as a whole, if it begins like a report of the
 *                        same kind or is empty: stats=disk.qcow2 must not destroy a disk
 *   a descriptor of this process (/dev/stdout, /dev/fd/3)
 *                        the report is written at its current position: the program that
 *                        opened it, and still writes to it, would not see a replacement.
 *                        Nothing is overwritten
 *   a stream             (terminal, pipe, character device) it is opened and written to
 *   anything else        (block device, directory, file that another process has open)
 *                        is refused
 *
 * A guest decides how a raw file begins, and a new data file is empty.  So files that
 * this process has opened itself are never written to, whatever they contain.  The kernel
 * knows these files (/proc/self/fd).  Descriptors that existed when the program began can
 * be told from others, because they are never closed by an exec (all others are:
 * O_CLOEXEC).
 *
 * Symbolic links are followed one by one, because the last link tells a descriptor from a
 * file: the links in procfs that lead to open files do not contain the files' names.
 *
 * A file is replaced by renaming: the report is first written to another one, so a reader
 * never sees an incomplete one.  That has no name while it is written (O_TMPFILE), so
 * that a process that is killed leaves nothing behind; but where there are no such files,
 * or none can be named, it is written with a name.  After the old file has been moved
 * away, it is examined again, and if it must not be replaced it is put back: a file that
 * gets this name in the meantime is not lost.  A durable report's directory is synced in
 * the end, so that the name is durable, too.
 *
 * Reports are not images: they do not use hostfile.
 *
 * Locks: none; each writer has its own file until the file is renamed.
 */

#include <config.h>

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <linux/magic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "util/cleanup.h"
#include "util/report.h"
#include "util/text.h"
#include "storage/reportfile.h"

/* As many symbolic links as the kernel follows. */
#define MAX_LINKS 40
/* More bytes than any kind of report has to begin with. */
#define MOST_BEGINNING 64

struct place {
  enum { NOTHING, REGULAR, DESCRIPTOR, STREAM, OTHER } kind;
  char *name;                   /* after all symbolic links; the caller frees it */
  int fd;                       /* of a DESCRIPTOR; not to be closed */
};

static int
failed (const struct report_kind *kind, const char *path)
{
  report_error ("%s=%s: cannot write the file: %m", kind->key, path);
  return -1;
}

static int
refused (const struct report_kind *kind, const char *path, const char *why)
{
  return report_refusal (EEXIST, "%s=%s: %s", kind->key, path, why);
}

static int
refused_stranger (const struct report_kind *kind, const char *path)
{
  return refused (kind, path,
                  "the file exists and is not a report");
}

static int
refused_open (const struct report_kind *kind, const char *path)
{
  return refused (kind, path, "it is a file of the disk, or another one that the server "
                  "has open itself");
}

/* --- where the name leads --- */

/* The directory that contains NAME, with a slash at its end.  The caller frees it. */
static char *
directory_of (const char *name)
{
  const char *slash = strrchr (name, '/');

  return slash ? strndup (name, slash - name + 1) : strdup ("./");
}

/* NAME is a symbolic link in procfs.  Sets *FD to the descriptor of this process that it
 * stands for, or to -1.  Returns 0, or -1 with errno. */
static int
own_descriptor (const char *name, int *fd)
{
  CLEANUP_FREE char *directory = directory_of (name);
  CLEANUP_FREE char *real = directory ? realpath (directory, NULL) : NULL;
  CLEANUP_FREE char *own = real ? realpath ("/proc/self/fd", NULL) : NULL;
  const char *slash = strrchr (name, '/'), *digits = slash ? slash + 1 : name;
  unsigned long n;
  char *end;

  *fd = -1;
  if (own == NULL)
    return -1;
  if (strcmp (real, own) != 0 || digits[0] < '0' || digits[0] > '9')
    return 0;
  n = strtoul (digits, &end, 10);
  if (*end == '\0' && n <= INT_MAX)
    *fd = n;
  return 0;
}

/* Examines the last part of P->name.  Returns 1 for a symbolic link to follow, whose
 * target is *TARGET (the caller frees it); 0 for anything else, or nothing, or for a link
 * in procfs that is not followed because it stands for an open file (then *OPEN_FILE is
 * true); or -1 with errno. */
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

/* Follows the link P->name.  TARGET is relative to the directory of the link. */
static int
go_to (struct place *p, const char *target)
{
  CLEANUP_FREE char *directory = directory_of (p->name);
  char *name = NULL;

  if (target[0] == '/')
    name = strdup (target);
  else if (directory)
    name = text_new ("%s%s", directory, target);
  if (name == NULL)
    return -1;
  free (p->name);
  p->name = name;
  return 0;
}

/* Sets *P to the place where PATH leads.  The caller frees P->name in any case.  Returns
 * 0, or -1 with errno. */
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
  /* The kernel may refuse to follow a link, or be unable to: ask it first. */
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
    if (own_descriptor (p->name, &p->fd) == -1)
      return -1;
    if (p->kind == REGULAR || p->kind == STREAM)
      p->kind = p->fd >= 0 ? DESCRIPTOR : p->kind == REGULAR ? OTHER : STREAM;
  }
  return 0;
}

/* --- which files may be written --- */

/* Has this process opened descriptor FD itself? */
static bool
is_ours (int fd)
{
  const int flags = fcntl (fd, F_GETFD);

  return flags != -1 && (flags & FD_CLOEXEC);
}

/* Has this process opened the file ST itself?  Returns 1, 0, or -1 with errno if that is
 * unknown. */
static int
is_open_here (const struct stat *st)
{
  DIR *dir = opendir ("/proc/self/fd");
  const struct dirent *entry;
  struct stat other;
  int found = 0;

  if (dir == NULL)
    return -1;
  while (errno = 0, !found && (entry = readdir (dir)) != NULL) {
    const int fd = atoi (entry->d_name);        /* "." and ".." become 0, which is
                                                   harmless */

    found = is_ours (fd) && fstat (fd, &other) == 0 &&
      other.st_dev == st->st_dev && other.st_ino == st->st_ino;
  }
  if (!found && errno != 0)
    found = -1;
  closedir (dir);
  return found;
}

/* Do these LEN bytes, the first ones of a file, begin a report of this kind? */
static bool
begins_like (const struct report_kind *kind, const char *bytes, size_t len)
{
  for (size_t i = 0; i < 2 && kind->begins[i]; i++) {
    const size_t n = strlen (kind->begins[i]);

    if (len >= n && memcmp (bytes, kind->begins[i], n) == 0)
      return true;
  }
  return false;
}

/* May the file NAME be replaced?  Returns 0, or -1 with errno.  EEXIST: it is not a
 * report, and not empty.  ETXTBSY: this process has it open. */
static int
check_replaceable (const struct report_kind *kind, const char *name)
{
  const int fd = open (name, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW);
  char begin[MOST_BEGINNING];
  struct stat st;
  ssize_t n;
  int open_here;

  if (fd == -1)
    return -1;
  n = fstat (fd, &st) == -1 ? -1 : pread (fd, begin, sizeof begin, 0);
  close (fd);                   /* so that the search below does not find it */
  if (n == -1)
    return -1;
  if (!S_ISREG (st.st_mode) || (n > 0 && !begins_like (kind, begin, n))) {
    errno = EEXIST;
    return -1;
  }
  open_here = is_open_here (&st);
  if (open_here == 1)
    errno = ETXTBSY;
  return open_here == 0 ? 0 : -1;
}

/* Reports why check_replaceable or write_file has failed. */
static int
not_replaced (const struct report_kind *kind, const char *path)
{
  return errno == EEXIST ? refused_stranger (kind, path)
    : errno == ETXTBSY ? refused_open (kind, path) : failed (kind, path);
}

/* May a report be written through descriptor FD, at its position? */
static int
check_descriptor (const struct report_kind *kind, const char *path, int fd)
{
  const int flags = fcntl (fd, F_GETFL);
  struct stat st;
  int open_here;

  if (flags == -1 || fstat (fd, &st) == -1)
    return failed (kind, path);
  open_here = is_ours (fd) ? 1 : S_ISREG (st.st_mode) ? is_open_here (&st) : 0;
  if (open_here != 0)
    return open_here == 1 ? refused_open (kind, path) : failed (kind, path);
  if ((flags & O_ACCMODE) == O_RDONLY || (flags & O_PATH)) {
    errno = EBADF;
    return failed (kind, path);
  }
  if (S_ISREG (st.st_mode) && !(flags & O_APPEND) &&
      lseek (fd, 0, SEEK_CUR) < st.st_size)
    return refused (kind, path, "the report would overwrite the contents of the file: "
                    "redirect with >>, or truncate it first");
  return 0;
}

/* Finds the place where PATH leads, and whether a report may be written there.  Returns 0
 * or -1 (reported). */
static int
examine (const struct report_kind *kind, const char *path, struct place *p)
{
  if (find_place (path, p) == -1)
    return failed (kind, path);
  if (p->kind == OTHER)
    return refused (kind, path, "it is not a file, pipe or terminal");
  if (p->kind == DESCRIPTOR)
    return check_descriptor (kind, path, p->fd);
  if (p->kind != REGULAR)
    return 0;
  return check_replaceable (kind, p->name) == 0 ? 0 : not_replaced (kind, path);
}

int
reportfile_check (const struct report_kind *kind, const char *path, bool repeatedly)
{
  struct place p;
  int r = examine (kind, path, &p);

  if (r == 0 && repeatedly && p.kind != NOTHING && p.kind != REGULAR)
    r = refused (kind, path, "it is not a regular file, and cannot be replaced");
  free (p.name);
  return r;
}

/* Are these the same directory? */
static bool
same_directory (const char *name, const char *other)
{
  struct stat st, other_st;

  return name && other && stat (name, &st) == 0 && stat (other, &other_st) == 0 &&
    st.st_dev == other_st.st_dev && st.st_ino == other_st.st_ino;
}

/* Do these names, neither of which ends in a symbolic link, name the same file, even if
 * it does not exist? */
static bool
same_name (const char *name, const char *other)
{
  CLEANUP_FREE char *directory = directory_of (name);
  CLEANUP_FREE char *other_directory = directory_of (other);

  return strcmp (strrchr (name, '/') ?: name, strrchr (other, '/') ?: other) == 0 &&
    same_directory (directory, other_directory);
}

bool
reportfile_same (const char *path, const char *other)
{
  struct place p = { .name = NULL }, q = p;
  const bool same = strcmp (path, other) == 0 ||
    (find_place (path, &p) == 0 && find_place (other, &q) == 0 &&
     same_name (p.name, q.name));

  free (p.name);
  free (q.name);
  return same;
}

/* --- writing --- */

/* Names an unnamed file. */
static int
name_file (int fd, const char *name)
{
  char link[40];

  snprintf (link, sizeof link, "/proc/self/fd/%d", fd);
  return linkat (AT_FDCWD, link, AT_FDCWD, name, AT_SYMLINK_FOLLOW);
}

/* Writes the report to FD, names it (NAME: NULL if it has a name), and closes it.
 * Returns what PRINT returns; or 1 with errno if unnamed files cannot be named here. */
static int
write_to (int fd, const char *name, bool durable, int (*print) (FILE *, const void *),
          const void *opaque)
{
  FILE *fp = fdopen (fd, "w");
  int r;

  if (fp == NULL) {
    close (fd);
    return -1;
  }
  r = print (fp, opaque);
  if (r == 0 &&
      (fflush (fp) == EOF || ferror (fp) || (durable && fsync (fd) == -1)))
    r = -1;
  if (r == 0 && name && name_file (fd, name) == -1)
    r = errno == EEXIST ? -1 : 1;
  if (r != 0) {
    KEEP_ERRNO_FOR_BLOCK;
    fclose (fp);
    return r;
  }
  return fclose (fp) == EOF ? -1 : 0;
}

/* Opens a stream, if it is still one. */
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

/* TEMPORARY is now the name of the file that was NAME.  Removes it if it may be replaced,
 * and otherwise gives it its name back. */
static int
settle (const struct report_kind *kind, const char *temporary, const char *name)
{
  int err;

  if (check_replaceable (kind, temporary) == 0)
    return unlink (temporary);
  err = errno == ETXTBSY || errno == ENOMEM ? errno : EEXIST;
  if (renameat2 (AT_FDCWD, temporary, AT_FDCWD, name, RENAME_EXCHANGE) == 0)
    unlink (temporary);
  errno = err;
  return -1;
}

/* Gives the complete report TEMPORARY the name NAME; on errors removes it.  Returns 0, or
 * -1 with errno.  EEXIST, ETXTBSY: as from check_replaceable; NAME stays as it is. */
static int
give_name (const struct report_kind *kind, const char *temporary, const char *name)
{
  do {
    if (renameat2 (AT_FDCWD, temporary, AT_FDCWD, name, RENAME_NOREPLACE) == 0)
      return 0;
    if (errno != EEXIST)
      break;
    if (renameat2 (AT_FDCWD, temporary, AT_FDCWD, name, RENAME_EXCHANGE) == 0)
      return settle (kind, temporary, name);
  } while (errno == ENOENT);    /* the old file has disappeared */

  /* A filesystem that does not support these (NFS): the old file was examined just
   * before. */
  if ((errno == EINVAL || errno == ENOSYS) && rename (temporary, name) == 0)
    return 0;
  KEEP_ERRNO_FOR_BLOCK;
  unlink (temporary);
  return -1;
}

/* Makes the names in a directory durable.  Some filesystems need no sync for that, and
 * say so with EINVAL. */
static int
sync_directory (const char *directory)
{
  const int fd = open (directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  const int r = fd == -1 || (fsync (fd) == -1 && errno != EINVAL) ? -1 : 0;

  if (fd >= 0) {
    KEEP_ERRNO_FOR_BLOCK;
    close (fd);
  }
  return r;
}

/* A name in a directory.  The caller frees it. */
static char *
temporary_name (const char *directory)
{
  uint64_t number;

  if (getrandom (&number, sizeof number, 0) != sizeof number)
    return NULL;
  return text_new ("%s.qcow2-report-%016" PRIx64, directory, number);
}

/* Writes a file next to NAME and gives it that name.  Returns 0, or -1 with errno, as
 * give_name does. */
static int
write_file (const struct report_kind *kind, const char *name, bool durable,
            int (*print) (FILE *, const void *), const void *opaque)
{
  CLEANUP_FREE char *directory = directory_of (name);
  CLEANUP_FREE char *temporary = directory ? temporary_name (directory) : NULL;
  int fd, r;

  if (temporary == NULL)
    return -1;
  fd = open (directory, O_TMPFILE | O_WRONLY | O_CLOEXEC, 0666);
  r = fd == -1 ? 1 : write_to (fd, temporary, durable, print, opaque);
  if (r == 1) {
    fd = open (temporary, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
    r = fd == -1 ? -1 : write_to (fd, NULL, durable, print, opaque);
    if (r == -1 && fd >= 0) {
      KEEP_ERRNO_FOR_BLOCK;
      unlink (temporary);
    }
  }
  if (r == 0) {
    r = give_name (kind, temporary, name);
    return r == 0 && durable ? sync_directory (directory) : r;
  }
  if (errno == EEXIST)          /* give_name uses it for something else */
    errno = EAGAIN;
  return r;
}

int
reportfile_write (const struct report_kind *kind, const char *path, bool durable,
                  int (*print) (FILE *, const void *), const void *opaque)
{
  struct place p;
  int fd, r = examine (kind, path, &p);

  if (r == 0 && (p.kind == NOTHING || p.kind == REGULAR)) {
    r = write_file (kind, p.name, durable, print, opaque);
    if (r == -1)
      not_replaced (kind, path);
  }
  else if (r == 0) {
    fd = p.kind == DESCRIPTOR ? fcntl (p.fd, F_DUPFD_CLOEXEC, 0) : open_stream (p.name);
    r = fd == -1 ? -1 : write_to (fd, NULL, false, print, opaque);
    if (r == -1)
      failed (kind, path);
  }
  free (p.name);
  return r;
}
