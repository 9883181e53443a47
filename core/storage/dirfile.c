/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Which file does a name in a directory mean?
 *
 * The file with this name, and never one that a symbolic link leads to; or, if links may
 * be followed, the one at their end, as long as no step of the way leaves the directory
 * and what is below it.  The kernel watches each step while it takes it (openat2), so a
 * link or a directory that changes meanwhile leads nowhere else.  An absolute link leaves
 * the directory, wherever it leads.
 *
 * A file that was created without a name (newfile.c) is found by its descriptor.  It is
 * opened anew all the same: locks belong to what one call of open has opened.
 *
 * Locks: none.
 */

#include <config.h>

#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "util/cleanup.h"
#include "storage/dirfile.h"

/* The kernel gives up if something below the directory is renamed while a link leads
 * through "..", so this is tried again; but not forever, since another process may rename
 * all the time. */
#define TRIES 100

static int
open_beneath (int dir, const char *name, int flags)
{
  const struct open_how how = {
    .flags = flags, .resolve = RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS,
  };
  int fd = -1;

  for (unsigned i = 0; i < TRIES; i++) {
    fd = syscall (SYS_openat2, dir, name, &how, sizeof how);
    if (fd >= 0 || errno != EAGAIN)
      break;
  }
  return fd;
}

int
dirfile_can_follow (int dir)
{
  const int fd = open_beneath (dir, ".", O_PATH | O_CLOEXEC);

  if (fd == -1)
    return -1;
  close (fd);
  return 0;
}

int
dirfile_stat (const struct dirfile *p, struct stat *st)
{
  int fd, r;

  if (p->opened)
    return fstat (p->dir, st);
  if (!p->follow)
    return fstatat (p->dir, p->name, st, AT_SYMLINK_NOFOLLOW);
  fd = open_beneath (p->dir, p->name, O_PATH | O_CLOEXEC);
  if (fd == -1)
    return -1;
  r = fstat (fd, st);
  KEEP_ERRNO_FOR_BLOCK;
  close (fd);
  return r;
}

int
dirfile_open (const struct dirfile *p, int flags)
{
  char buf[40];

  if (p->opened) {
    snprintf (buf, sizeof buf, "/proc/self/fd/%d", p->dir);
    return open (buf, flags);
  }
  return p->follow ? open_beneath (p->dir, p->name, flags)
    : openat (p->dir, p->name, flags | O_NOFOLLOW);
}
