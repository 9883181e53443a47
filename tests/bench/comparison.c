/* SPDX-License-Identifier: BSD-3-Clause
 *
 * How fast is the plugin's core, in one process and without NBD?
 *
 *   comparison IMAGE WORK BLOCK DEPTH SECONDS
 *
 * DEPTH threads read or rewrite BLOCK bytes at random places, or one reads in order,
 * again and again, for so many seconds.  It prints requests per second.  The programs in
 * lab/comparison.d do the same with other libraries, and lab/comparison compares them.
 *
 *   WORK: randread, randwrite, read (in order); or crc, which prints the CRC-32 of the
 *   whole disk
 */

#include <config.h>

#include <limits.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <zlib.h>

#include "util/bytes.h"
#include "disk/export.h"
#include "lib/stubs.h"

struct worker {
  pthread_t thread;
  uint64_t requests;
  struct rng rng;
};

static struct export *e;
static const char *work;
static uint64_t block, end;

static uint64_t
now (void)
{
  struct timespec ts;

  clock_gettime (CLOCK_MONOTONIC, &ts);
  return ts.tv_sec * UINT64_C (1000000000) + ts.tv_nsec;
}

static void *
run (void *opaque)
{
  struct worker *w = opaque;
  const uint64_t blocks = export_size (e) / block;
  const bool in_order = strcmp (work, "read") == 0;
  const bool writes = strcmp (work, "randwrite") == 0;
  char *buf = malloc (block);
  uint64_t n = 0;

  CHECK (buf != NULL);
  memset (buf, 'x', block);
  while (now () < end) {
    const uint64_t offset = (in_order ? n : rng_next (&w->rng) >> 8) % blocks * block;

    CHECK ((writes ? export_write (e, buf, block, offset, false)
            : export_read (e, buf, block, offset)) == 0);
    n++;
  }
  w->requests = n;
  free (buf);
  return NULL;
}

static void
checksum (void)
{
  char *buf = malloc (block);
  uLong crc = crc32 (0, NULL, 0);

  CHECK (buf != NULL);
  for (uint64_t offset = 0; offset < export_size (e); offset += block) {
    const uint64_t n = min64 (block, export_size (e) - offset);

    CHECK (export_read (e, buf, n, offset) == 0);
    crc = crc32 (crc, (const Bytef *) buf, n);
  }
  printf ("%lu\n", crc);
  free (buf);
}

int
main (int argc, char **argv)
{
  struct disk_options options = {
    .l2_cache = 32 << 20, .l2_slice = 4096, .lock = true,
  };
  const bool writes = argc == 6 && strcmp (argv[2], "randwrite") == 0;
  char *path;
  struct worker *workers;
  uint64_t start, requests = 0;
  unsigned depth;
  struct disk *d;

  if (argc != 6) {
    fprintf (stderr,
             "usage: comparison IMAGE crc|randread|randwrite|read BLOCK DEPTH SECONDS\n");
    return 1;
  }
  path = realpath (argv[1], NULL);
  work = argv[2];
  block = strtoull (argv[3], NULL, 10);
  depth = strtoul (argv[4], NULL, 10);
  CHECK (path != NULL && block > 0 && depth > 0);
  options.path = path;
  CHECK (disk_open (&options, &d) == 0);
  disk_allow_ahead (d);
  CHECK ((e = export_open (d, "", writes)) && export_is_writable (e) == writes);
  if (strcmp (work, "crc") == 0)
    checksum ();
  else {
    CHECK ((workers = calloc (depth, sizeof *workers)) != NULL);
    start = now ();
    end = start + strtod (argv[5], NULL) * 1e9;
    for (unsigned i = 0; i < depth; i++) {
      rng_init (&workers[i].rng, start, i);
      CHECK (pthread_create (&workers[i].thread, NULL, run, &workers[i]) == 0);
    }
    for (unsigned i = 0; i < depth; i++) {
      CHECK (pthread_join (workers[i].thread, NULL) == 0);
      requests += workers[i].requests;
    }
    printf ("%.1f\n", requests * 1e9 / (now () - start));
    free (workers);
  }
  disk_end_ahead (d);
  CHECK (export_close (e) == 0);
  CHECK (disk_close (d) == 0);
  free (path);
  return 0;
}
