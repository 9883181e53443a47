/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What has the server done?
 *
 * The same counters for people (-D qcow2.stats=1) and for programs (stats=FILE, JSON).
 * The file is written next to its place and then renamed, so a reader never meets half
 * of one.  What was there before is replaced, hence only a file that looks like one
 * of ours, or is empty: stats=disk.qcow2 must not cost anybody a disk.
 *
 * Locks: none; each writer has a file of its own until it is renamed.
 */

#include <config.h>

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#define NBDKIT_API_VERSION 2
#include <nbdkit-plugin.h>

#include "cleanup.h"
#include "stats.h"

void
stats_print (const struct stats *stats)
{
  const struct disk_stats *s = &stats->disk;

  fprintf (stderr,
           "qcow2: map: %" PRIu64 " hits, %" PRIu64 " misses, %" PRIu64
           " evictions, %" PRIu64 " bytes held, %" PRIu64 " at most\n"
           "qcow2: inflated: %" PRIu64 " clusters, %" PRIu64 " hits, %" PRIu64
           " evictions, %" PRIu64 " bytes at most\n"
           "qcow2: clusters: %" PRIu64 " allocated, %" PRIu64 " freed, %"
           PRIu64 " punched\n"
           "qcow2: flush: %" PRIu64 " requests, %" PRIu64 " shared, %" PRIu64
           " checkpoints, %" PRIu64 " syncs\n",
           s->map.hits, s->map.misses, s->map.evictions,
           s->map.bytes, s->map.peak_bytes,
           s->inflated.inflations, s->inflated.hits, s->inflated.evictions,
           s->inflated.peak_bytes,
           s->alloc.allocated, s->alloc.freed, s->alloc.punched,
           s->checkpoint.flushes, s->checkpoint.shared,
           s->checkpoint.runs, s->checkpoint.syncs);
}

static int
print_json (FILE *fp, const struct stats *stats)
{
  const struct disk_stats *s = &stats->disk;

  return fprintf (fp,
                  "{\n"
                  "  \"connections\": { \"open\": %" PRIu64 ", \"ever\": %" PRIu64
                  " },\n"
                  "  \"map\": { \"hits\": %" PRIu64 ", \"misses\": %" PRIu64
                  ", \"evictions\": %" PRIu64 ",\n"
                  "    \"bytes\": %" PRIu64 ", \"peak_bytes\": %" PRIu64
                  ", \"limit_bytes\": %" PRIu64 " },\n"
                  "  \"inflated\": { \"clusters\": %" PRIu64 ", \"hits\": %" PRIu64
                  ", \"waits\": %" PRIu64 ",\n"
                  "    \"evictions\": %" PRIu64 ", \"bytes\": %" PRIu64
                  ", \"peak_bytes\": %" PRIu64 " },\n"
                  "  \"clusters\": { \"allocated\": %" PRIu64 ", \"freed\": %" PRIu64
                  ", \"punched\": %" PRIu64 " },\n"
                  "  \"flush\": { \"requests\": %" PRIu64 ", \"shared\": %" PRIu64
                  ", \"checkpoints\": %" PRIu64 ", \"syncs\": %" PRIu64 " }\n"
                  "}\n",
                  stats->open, stats->ever,
                  s->map.hits, s->map.misses, s->map.evictions,
                  s->map.bytes, s->map.peak_bytes, stats->limit,
                  s->inflated.inflations, s->inflated.hits, s->inflated.waits,
                  s->inflated.evictions, s->inflated.bytes,
                  s->inflated.peak_bytes,
                  s->alloc.allocated, s->alloc.freed, s->alloc.punched,
                  s->checkpoint.flushes, s->checkpoint.shared,
                  s->checkpoint.runs, s->checkpoint.syncs);
}

static int
failed (const char *path)
{
  nbdkit_error ("stats=%s: cannot write the file: %m", path);
  return -1;
}

int
stats_check (const char *path)
{
  struct stat st;
  char first;
  ssize_t n = 0;
  int fd;

  if (stat (path, &st) == -1)
    return errno == ENOENT ? 0 : failed (path);
  if (S_ISREG (st.st_mode) && st.st_size > 0) {
    fd = open (path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd == -1)
      return failed (path);
    n = read (fd, &first, 1);
    close (fd);
  }
  if (!S_ISREG (st.st_mode) || n == -1 || (n == 1 && first != '{')) {
    nbdkit_error ("stats=%s: the file is there already, and holds something other "
                  "than statistics", path);
    errno = EEXIST;
    return -1;
  }
  return 0;
}

int
stats_write (const char *path, const struct stats *stats)
{
  static atomic_uint number;
  CLEANUP_FREE char *name = NULL;
  FILE *fp;
  int fd, err;

  if (asprintf (&name, "%s.%d-%u", path, (int) getpid (), number++) == -1) {
    name = NULL;
    return failed (path);
  }
  fd = open (name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
  if (fd == -1)
    return failed (path);
  fp = fdopen (fd, "w");
  if (fp == NULL)
    close (fd);
  else if (print_json (fp, stats) < 0)
    fclose (fp);
  else if (fclose (fp) == 0 && rename (name, path) == 0)
    return 0;
  err = errno;
  unlink (name);
  errno = err;
  return failed (path);
}
