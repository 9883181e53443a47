/* SPDX-License-Identifier: BSD-3-Clause
 *
 * folios.c: while threads write to a file, which splits its folios, and read from it,
 * each read finds what was written.
 *
 * Each page has one thread that writes it.  Its 64 words are one number: the page's, with
 * the count of its writes.  In each round the file is cached in large folios again: what
 * one call writes is.
 */

#include <config.h>

#include <pthread.h>
#include <stdlib.h>

#include "lib/hostcalls.h"

enum { PAGE = 512, WORDS = PAGE / 8, SIZE = 16 << 20, PAGES = SIZE / PAGE };
enum { THREADS = 4, STEPS = 4000 };

static struct storage *file;

/* How often each page was written: begun, and ended. */
static atomic_uint begun[PAGES], ended[PAGES];

static uint64_t seed;
static unsigned round_number;

static void
write_page (unsigned page)
{
  const unsigned n = ++begun[page];
  uint64_t words[WORDS];

  for (unsigned i = 0; i < WORDS; i++)
    words[i] = (uint64_t) page << 32 | n;
  CHECK (storage_write (file, words, PAGE, (uint64_t) page * PAGE) == 0);
  ended[page] = n;
}

static void
check_page (unsigned page, const uint64_t *words, unsigned least)
{
  const unsigned most = begun[page];

  for (unsigned i = 0; i < WORDS; i++) {
    const unsigned n = words[i];

    CHECK (words[i] >> 32 == page && n >= least && n <= most);
  }
}

static void
read_page (unsigned page)
{
  const unsigned least = ended[page];
  uint64_t words[WORDS];

  CHECK (storage_read (file, words, PAGE, (uint64_t) page * PAGE) == 0);
  check_page (page, words, least);
}

static void *
work (void *opaque)
{
  const unsigned me = (uintptr_t) opaque;
  struct rng rng;

  rng_init (&rng, seed, round_number * THREADS + me + 1);
  for (unsigned i = 0; i < STEPS; i++) {
    const unsigned page = rng_below (&rng, PAGES);

    /* Reads are many, so that folios are clean when they are split. */
    if (i % 16 == 0)
      write_page (page - page % THREADS + me);
    else
      read_page (page);
  }
  return NULL;
}

/* Aligned, so that one system call writes all of it. */
static uint64_t content[SIZE / 8] __attribute__ ((aligned (65536)));

static void
read_all (void)
{
  CHECK (storage_read (file, content, SIZE, 0) == 0);
  for (unsigned page = 0; page < PAGES; page++)
    check_page (page, content + page * WORDS, ended[page]);
}

static void
cache_anew (void)
{
  int fd;

  read_all ();
  CHECK (storage_sync (file) == 0);
  fd = open (path, O_RDONLY | O_CLOEXEC);
  CHECK (fd >= 0 && posix_fadvise (fd, 0, 0, POSIX_FADV_DONTNEED) == 0);
  close (fd);
  CHECK (storage_write (file, content, SIZE, 0) == 0);
  CHECK (storage_sync (file) == 0);
}

int
main (void)
{
  const char *rounds = getenv ("ROUNDS");
  const unsigned n = rounds ? strtoul (rounds, NULL, 10) : 20;
  pthread_t threads[THREADS];

  seed = seed_from_env ();
  host_begin (seed);
  file = fresh (&rw);
  CHECK (storage_write (file, content, SIZE, 0) == 0);
  for (unsigned page = 0; page < PAGES; page++)
    write_page (page);
  for (round_number = 0; round_number < n; round_number++) {
    /* A storage that has just been opened asks for splits soon. */
    storage_close (file);
    CHECK (storage_open (path, &rw, &file) == 0);
    cache_anew ();
    for (uintptr_t i = 0; i < THREADS; i++)
      CHECK (pthread_create (&threads[i], NULL, work, (void *) i) == 0);
    for (unsigned i = 0; i < THREADS; i++)
      CHECK (pthread_join (threads[i], NULL) == 0);
  }
  read_all ();
  storage_close (file);
  host_end ();
  return 0;
}
