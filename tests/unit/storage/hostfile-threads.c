/* SPDX-License-Identifier: BSD-3-Clause
 *
 * hostfile.c: several threads write one file, and its size is correct at any time.
 */

#include <config.h>

#include <limits.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "storage/storage.h"
#include "lib/stubs.h"

static char path[PATH_MAX];

struct worker {
  struct storage *f;
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
    CHECK (storage_write (w->f, buf, sizeof buf, offset) == 0);
    CHECK (storage_size (w->f) >= offset + sizeof buf);
    CHECK (storage_read (w->f, back, sizeof back, offset) == 0);
    CHECK (memcmp (buf, back, sizeof buf) == 0);
    if (i % 100 == 0)
      CHECK (storage_sync (w->f) == 0);
  }
  return NULL;
}

static void
test_threads (enum storage_cache cache)
{
  const struct storage_options opts = {
    .try_writable = true, .cache = cache
  };
  char name[] = "hostfile-XXXXXX";
  struct worker workers[4];
  struct storage *f;
  struct stat st;
  int fd = mkstemp (name);

  CHECK (fd >= 0 && realpath (name, path) != NULL);
  close (fd);
  CHECK (storage_open (path, &opts, &f) == 0);
  for (unsigned i = 0; i < 4; i++)
    workers[i] = (struct worker) { f, i };
  run_threads (work, workers, sizeof workers[0], 4);
  CHECK (stat (path, &st) == 0);
  CHECK (storage_size (f) == (uint64_t) st.st_size);
  CHECK (storage_size (f) == 300 * 4 * 256);
  storage_close (f);
  unlink (path);
}

int
main (void)
{
  test_threads (STORAGE_CACHE_DEFAULT);
  test_threads (STORAGE_CACHE_NONE);
  return 0;
}
