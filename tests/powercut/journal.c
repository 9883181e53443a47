/* SPDX-License-Identifier: BSD-3-Clause
 *
 * In which order did things happen in several processes?
 *
 * The journal is a file to which the server (record.c) and the clients (load.c) append.
 * The kernel puts appended entries in one order.  An operation has an entry before it
 * begins and one after it has ended; likewise a request, before it is sent and after the
 * answer has come.  So if A's end is before B's beginning in the journal, A had ended
 * before B began.
 *
 * No locks: an entry is one system call.
 */

#include <config.h>

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

#include "powercut/journal.h"

int
journal_open (const char *path)
{
  const int fd = open (path, O_WRONLY | O_APPEND | O_CLOEXEC);
  int high;

  if (fd == -1)
    return -1;
  /* Out of the way of programs that close descriptors which they do not know. */
  high = fcntl (fd, F_DUPFD_CLOEXEC, 700);
  if (high == -1)
    return fd;
  close (fd);
  return high;
}

void
journal_append (int fd, const struct journal_entry *e, const void *data)
{
  const struct iovec iov[] = {
    { .iov_base = (void *) e, .iov_len = sizeof *e },
    { .iov_base = (void *) data, .iov_len = e->count },
  };
  const int n = data && e->count > 0 ? 2 : 1;
  const size_t all = sizeof *e + (n == 2 ? e->count : 0);
  ssize_t r;

  do
    r = writev (fd, iov, n);
  while (r == -1 && errno == EINTR);
  if (r != (ssize_t) all) {
    fprintf (stderr, "powercut: cannot write the journal: %s\n",
             r == -1 ? strerror (errno) : "no space");
    abort ();
  }
}

uint64_t
journal_number (void)
{
  static atomic_uint_least64_t last;

  return (uint64_t) getpid () << 36 | ++last;
}
