/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Does another program use this image in a way that excludes ours?
 *
 * This is QEMU's convention, byte for byte, so that QEMU's tools and the plugin respect
 * each other's locks.  There are permissions, numbered 0..3.  A program that uses
 * permission i locks byte 100+i of the file.  A program that does not let others use it
 * locks byte 200+i.  All these locks are shared.  To find out whether another program has
 * locked a byte, a program asks whether an exclusive lock would be possible, without
 * taking it.
 *
 * Order: first take all bytes of the new role, then test the bytes that must be free.
 * Two programs that start at the same time may both fail, but can never both succeed.
 * Bytes that only the old role needed are released last, so that a change of role that
 * fails leaves everything as it was.
 *
 * Open file description locks belong to the open file and not to the process: they
 * survive the fork of the server, and closing another descriptor of the same file does
 * not release them.
 *
 * The process that is in the way is looked up after a failure, only for the message.
 * The kernel does not report the owner of such a lock, but lists the locks of each
 * descriptor in /proc/PID/fdinfo, if the plugin is allowed to read that.
 */

#include <config.h>

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "util/printable.h"
#include "util/remedy.h"
#include "util/report.h"
#include "storage/hostlock.h"

#define PERMISSIONS 4
#define USED_BYTE 100
#define UNSHARED_BYTE 200

#define WRITE 1                 /* its number */

enum {
  PERM_READ = 1 << 0,           /* "consistent read" */
  PERM_WRITE = 1 << WRITE,
  PERM_RESIZE = 1 << 3,
};

/* The number of descriptors of other processes to examine for an error message. */
#define MAX_FDS_SEEN 50000

struct role {
  unsigned used, unshared;      /* masks of permissions */
};

static struct role
role_of (enum storage_lock lock)
{
  switch (lock) {
  case STORAGE_READER:
    return (struct role) { PERM_READ, PERM_WRITE | PERM_RESIZE };
  case STORAGE_WRITER:
    return (struct role) { PERM_READ | PERM_WRITE | PERM_RESIZE,
                           PERM_WRITE | PERM_RESIZE };
  case STORAGE_DATA_READER:
    return (struct role) { PERM_READ, PERM_RESIZE };
  case STORAGE_DATA_WRITER:
    return (struct role) { PERM_READ | PERM_WRITE | PERM_RESIZE, PERM_RESIZE };
  case STORAGE_UNLOCKED:
    break;
  }
  return (struct role) { 0, 0 };
}

static const char *
permission_name (unsigned i)
{
  static const char *const names[PERMISSIONS] = {
    "consistent read", "write", "write unchanged", "resize"
  };

  return names[i];
}

/* --- which process holds a byte --- */

/* Does this line of fdinfo show a lock on BYTE of the file ST?  FD_LINK is the link to
 * the descriptor. */
static bool
line_matches (const char *line, unsigned byte, const struct stat *st,
              const char *fd_link)
{
  unsigned long long ino, start, end;
  unsigned maj, min;
  char last[24];
  struct stat other;

  /* lock: 1: OFDLCK ADVISORY READ -1 fe:00:1234 100 101 */
  if (strncmp (line, "lock:", 5) != 0 ||
      sscanf (line + 5, "%*s %*s %*s %*s %*s %x:%x:%llu %llu %23s",
              &maj, &min, &ino, &start, last) != 5)
    return false;
  end = strcmp (last, "EOF") == 0 ? UINT64_MAX : strtoull (last, NULL, 10);
  if (ino != st->st_ino || byte < start || byte > end)
    return false;
  if (maj == major (st->st_dev) && min == minor (st->st_dev))
    return true;
  /* Some file systems show another device number here than in stat. */
  return stat (fd_link, &other) == 0 &&
         other.st_dev == st->st_dev && other.st_ino == st->st_ino;
}

/* Does any descriptor of process PID except our FD hold BYTE? */
static bool
process_holds (const char *pid, int fd, unsigned byte, const struct stat *st,
               unsigned *seen)
{
  char name[600], fd_link[600], line[256];
  bool ours = (long) getpid () == atol (pid);
  bool found = false;
  struct dirent *d;
  DIR *dir;

  snprintf (name, sizeof name, "/proc/%.20s/fdinfo", pid);
  dir = opendir (name);
  if (dir == NULL)
    return false;
  while (!found && *seen < MAX_FDS_SEEN && (d = readdir (dir)) != NULL) {
    FILE *fp;

    if (!isdigit ((unsigned char) d->d_name[0]) ||
        (ours && atoi (d->d_name) == fd))
      continue;
    ++*seen;
    snprintf (name, sizeof name, "/proc/%.20s/fdinfo/%.20s", pid, d->d_name);
    snprintf (fd_link, sizeof fd_link, "/proc/%.20s/fd/%.20s", pid, d->d_name);
    fp = fopen (name, "re");
    if (fp == NULL)
      continue;
    while (!found && fgets (line, sizeof line, fp) != NULL)
      found = line_matches (line, byte, st, fd_link);
    fclose (fp);
  }
  closedir (dir);
  return found;
}

/* The process that holds BYTE through another descriptor, or -1. */
static long
find_holder (int fd, unsigned byte)
{
  unsigned seen = 0;
  struct dirent *d;
  struct stat st;
  long pid = -1;
  DIR *dir;

  if (fstat (fd, &st) == -1 || (dir = opendir ("/proc")) == NULL)
    return -1;
  while (pid == -1 && seen < MAX_FDS_SEEN && (d = readdir (dir)) != NULL)
    if (isdigit ((unsigned char) d->d_name[0]) &&
        process_holds (d->d_name, fd, byte, &st, &seen))
      pid = atol (d->d_name);
  closedir (dir);
  return pid;
}

#define MOST_SOCKET 108         /* bytes of its name, as Unix has it */

/* Where commands for the process's disk can be sent, if its command line says so: what
 * follows "=" after the word "control", or the longer one for it. */
static void
find_control (long pid, char socket[PRINTABLE_SIZE (MOST_SOCKET)])
{
  static const char longer[] = "qcow2-control", *const key = longer + strlen ("qcow2-");
  char name[64];
  char *word = NULL, *value;
  size_t size = 0;
  FILE *fp;

  snprintf (name, sizeof name, "/proc/%ld/cmdline", pid);
  fp = fopen (name, "re");
  while (fp && socket[0] == '\0' && getdelim (&word, &size, '\0', fp) > 0) {
    value = strchr (word, '=');
    if (value == NULL)
      continue;
    *value = '\0';
    if (strcmp (word, key) == 0 || strcmp (word, longer) == 0)
      printable (value + 1, MOST_SOCKET, socket, PRINTABLE_SIZE (MOST_SOCKET));
  }
  free (word);
  if (fp)
    fclose (fp);
}

/* Writes " (held by PID 1, name)", or an empty string, to TEXT. */
static void
describe_holder (long pid, char *text, size_t size)
{
  char name[64], comm[64] = "", shown[PRINTABLE_SIZE (sizeof comm)];
  char socket[PRINTABLE_SIZE (MOST_SOCKET)] = "";
  FILE *fp;

  text[0] = '\0';
  if (pid <= 0)
    return;
  snprintf (name, sizeof name, "/proc/%ld/comm", pid);
  fp = fopen (name, "re");
  if (fp != NULL) {
    if (fgets (comm, sizeof comm, fp) != NULL)
      comm[strcspn (comm, "\n")] = '\0';
    fclose (fp);
  }
  printable (comm, sizeof comm, shown, sizeof shown);
  find_control (pid, socket);
  snprintf (text, size, " (held by PID %ld%s%s%s%s)", pid, shown[0] ? ", " : "", shown,
            socket[0] ? ", which takes commands on " : "", socket);
}

/* --- taking and testing --- */

static int
set_byte (int fd, unsigned byte, short type)
{
  struct flock fl = {
    .l_type = type, .l_whence = SEEK_SET, .l_start = byte, .l_len = 1,
  };
  int r;

  do
    r = fcntl (fd, F_OFD_SETLK, &fl);
  while (r == -1 && errno == EINTR);
  return r;
}

/* Locks (F_RDLCK) or unlocks (F_UNLCK) all bytes of ROLE that OTHER does not have.  On
 * failure *BYTE is the one that could not be locked. */
static int
set_bytes (int fd, struct role role, struct role other, short type,
           unsigned *byte)
{
  for (unsigned i = 0; i < PERMISSIONS; i++) {
    if (role.used & ~other.used & 1u << i) {
      *byte = USED_BYTE + i;
      if (set_byte (fd, *byte, type) == -1)
        return -1;
    }
    if (role.unshared & ~other.unshared & 1u << i) {
      *byte = UNSHARED_BYTE + i;
      if (set_byte (fd, *byte, type) == -1)
        return -1;
    }
  }
  return 0;
}

/* Is BYTE free of locks of other programs?  Returns 0, or -1 with errno set.  EBUSY: it
 * is locked, by process *PID if that is > 0. */
static int
test_byte (int fd, unsigned byte, long *pid)
{
  struct flock fl = {
    .l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = byte, .l_len = 1,
  };

  if (fcntl (fd, F_OFD_GETLK, &fl) == -1)
    return -1;
  if (fl.l_type == F_UNLCK)
    return 0;
  *pid = fl.l_pid;              /* -1 if the lock belongs to an open file */
  errno = EBUSY;
  return -1;
}

static int
test_bytes (int fd, struct role role, unsigned *byte, long *pid)
{
  for (unsigned i = 0; i < PERMISSIONS; i++) {
    if (role.used & 1u << i) {
      *byte = UNSHARED_BYTE + i;
      if (test_byte (fd, *byte, pid) == -1)
        return -1;
    }
    if (role.unshared & 1u << i) {
      *byte = USED_BYTE + i;
      if (test_byte (fd, *byte, pid) == -1)
        return -1;
    }
  }
  return 0;
}

/* What to do.  Readers share an image with each other, and never with a writer. */
static const char *
way_out (int fd, bool taking)
{
  long ignored;

  return taking || test_byte (fd, USED_BYTE + WRITE, &ignored) == -1
    ? "it may write, so stop it first (to open the image read-only does not help)"
    : "stop it first, or open the image read-only";
}

/* Reports what errno means for BYTE, and sets errno for the caller. */
static void
report_failure (int fd, const char *path, bool taking, unsigned byte, long pid)
{
  char holder[400 + PRINTABLE_SIZE (MOST_SOCKET)];
  const char *shared;

  /* Only an exclusive lock of another program can prevent a shared one; QEMU never takes
   * exclusive locks. */
  if (taking && (errno == EAGAIN || errno == EACCES))
    errno = EBUSY;
  if (errno != EBUSY) {
    report_error ("%s: cannot lock the image: %m (%s)", path, remedy (REMEDY_NO_LOCK));
    return;
  }

  /* Another program uses what this role does not share, or vice versa. */
  shared = (byte >= UNSHARED_BYTE) == taking ? "shared " : "";
  if (pid <= 0)
    pid = find_holder (fd, byte);
  if (pid == getpid ()) {
    report_error ("%s: cannot get the %s\"%s\" lock: the file would be read and written at "
                  "the same time", path, shared, permission_name (byte % 100));
    errno = EDEADLK;
    return;
  }
  describe_holder (pid, holder, sizeof holder);
  report_error ("%s: cannot get the %s\"%s\" lock: "
                "is another process using the image?%s: %s",
                path, shared, permission_name (byte % 100), holder,
                way_out (fd, taking));
  errno = EBUSY;
}

int
hostlock_change (int fd, const char *path, enum storage_lock from,
                 enum storage_lock to)
{
  const struct role old = role_of (from), new = role_of (to);
  bool taking = true;
  unsigned byte = 0, ignored;
  long pid = -1;
  int err;

  if (set_bytes (fd, new, old, F_RDLCK, &byte) == 0) {
    taking = false;
    if (test_bytes (fd, new, &byte, &pid) == 0) {
      /* Releasing a lock that this process holds cannot fail. */
      set_bytes (fd, old, new, F_UNLCK, &ignored);
      return 0;
    }
  }

  err = errno;
  set_bytes (fd, new, old, F_UNLCK, &ignored);
  errno = err;
  report_failure (fd, path, taking, byte, pid);
  return -1;
}
