/* SPDX-License-Identifier: BSD-3-Clause
 *
 * hostfile.c: several threads write one file, and its size is right at any time.
 */

#include <config.h>

#include <limits.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "storage/hostfile.h"
#include "lib/stubs.h"

static char path[PATH_MAX];

struct worker {
  struct hostfile *f;
  unsigned number;
};

static void *
work (void *arg)
{
  struct worker *w = arg;
  uint8_t buf[256], back[256];

  for (unsigned i = 0; i < 300; i++) {
    uint64_t offset = (i * 4 + w->number) * sizeof buf;

    memset (buf, i + w->number, sizeof buf);
    CHECK (hostfile_write (w->f, buf, sizeof buf, offset) == 0);
    CHECK (hostfile_size (w->f) >= offset + sizeof buf);
    CHECK (hostfile_read (w->f, back, sizeof back, offset) == 0);
    CHECK (memcmp (buf, back, sizeof buf) == 0);
    if (i % 100 == 0)
      CHECK (hostfile_sync (w->f) == 0);
  }
  return NULL;
}

static void
test_threads (bool drop_cache)
{
  const struct hostfile_options opts = {
    .try_writable = true, .drop_cache = drop_cache
  };
  char name[] = "hostfile-XXXXXX";
  struct worker workers[4];
  struct hostfile *f;
  struct stat st;
  int fd = mkstemp (name);

  CHECK (fd >= 0 && realpath (name, path) != NULL);
  close (fd);
  CHECK (hostfile_open (path, &opts, &f) == 0);
  for (unsigned i = 0; i < 4; i++)
    workers[i] = (struct worker) { f, i };
  run_threads (work, workers, sizeof workers[0], 4);
  CHECK (stat (path, &st) == 0);
  CHECK (hostfile_size (f) == (uint64_t) st.st_size);
  CHECK (hostfile_size (f) == 300 * 4 * 256);
  hostfile_close (f);
  unlink (path);
}

int
main (void)
{
  test_threads (false);
  test_threads (true);
  return 0;
}
