/* SPDX-License-Identifier: BSD-3-Clause
 *
 * aliasing.c: reads to memory at any distance behind the bytes of the file, modulo pages,
 * are complete, also on a host that does short ones, and over the end of the file, and
 * change nothing else.  The processors that copy there slowly do not have to.
 */

#include <config.h>

#include "util/bytes.h"
#include "storage/aliasing.h"
#include "lib/hostcalls.h"

enum { PAGE = 4096, SIZE = 40 * PAGE, MAX = 9 * PAGE };

static char model[SIZE], room[PAGE + MAX + PAGE] __attribute__ ((aligned (PAGE)));

/* Memory for COUNT bytes of the file at OFFSET, at DISTANCE behind them. */
static char *
memory_for (uint64_t offset, size_t count, unsigned distance)
{
  char *const buf = room + (offset + distance) % PAGE;

  CHECK (count < MAX && aliasing_distance (buf, offset) == distance);
  memset (room, 0x55, sizeof room);
  return buf;
}

static void
check_read (const char *buf, uint64_t offset, size_t count)
{
  CHECK (memcmp (buf, model + offset, count) == 0);
  for (const char *p = room; p < room + sizeof room; p++)
    CHECK (*p == 0x55 || (p >= buf && p < buf + count));
}

static void
test_call (struct rng *rng, int fd)
{
  for (unsigned i = 0; i < 40 * (ALIASING_DISTANCE - 1); i++) {
    const unsigned distance = 1 + i % (ALIASING_DISTANCE - 1);
    const size_t count = ALIASING_COUNT + rng_below (rng, MAX - ALIASING_COUNT);
    const uint64_t offset = rng_below (rng, SIZE);
    const size_t there = min64 (count, SIZE - offset);
    char *const buf = memory_for (offset, count, distance);
    size_t done = 0;
    ssize_t n;

    while (done < there) {
      n = count - done >= ALIASING_DISTANCE
        ? aliasing_read (fd, buf + done, count - done, offset + done)
        : pread (fd, buf + done, count - done, offset + done);
      if (n == -1 && errno == EINTR)
        continue;
      CHECK (n > 0 && (size_t) n <= there - done);
      done += n;
    }
    if (there == count)
      check_read (buf, offset, count);
    else                        /* pread may change what it does not reach, too */
      CHECK (memcmp (buf, model + offset, there) == 0);
  }
}

static void
test_file (struct rng *rng, struct storage *f)
{
  for (unsigned i = 0; i < 4 * PAGE; i++) {
    const unsigned distance = rng_below (rng, 2) ? i % 64 : i % PAGE;
    const size_t count = rng_below (rng, MAX);
    const uint64_t offset = rng_below (rng, SIZE - count);
    char *const buf = memory_for (offset, count, distance);
    const unsigned before = host.reads_aliasing;

    CHECK (storage_read (f, buf, count, offset) == 0);
    check_read (buf, offset, count);
    if (!host.short_transfers)
      CHECK (host.reads_aliasing - before ==
             (distance >= 1 && distance < ALIASING_DISTANCE &&
              count >= ALIASING_COUNT && aliasing_processor ()));
  }
}

static void
test_errors (struct storage *f, int fd)
{
  char *const buf = memory_for (0, PAGE, 16);

  host.read_errno = EIO;
  CHECK (aliasing_read (fd, buf, PAGE, 0) == -1 && errno == EIO);
  CHECK_FAILS (storage_read (f, buf, PAGE, 0), EIO, "cannot read 4096 bytes at offset 0");
  calm_host ();
  check_read (buf, 0, 0);
  CHECK (aliasing_read (fd, buf, PAGE, SIZE) == 0);
  CHECK (storage_read (f, buf, 3 * PAGE, SIZE - PAGE) == 0);
  CHECK (memcmp (buf, model + SIZE - PAGE, PAGE) == 0);
  for (int i = PAGE; i < 3 * PAGE; i++)
    CHECK (buf[i] == 0);
}

int
main (void)
{
  const uint64_t seed = seed_from_env ();
  struct storage *f;
  struct rng rng;
  int fd;

  host_begin (seed);
  rng_init (&rng, seed, 0);
  for (size_t i = 0; i < SIZE; i++)
    model[i] = rng_next (&rng);
  f = fresh (&rw);
  CHECK (storage_write (f, model, SIZE, 0) == 0);
  fd = open (path, O_RDONLY | O_CLOEXEC);
  CHECK (fd >= 0);
  for (int i = 0; i < 2; i++) {
    host.short_transfers = i > 0;
    test_call (&rng, fd);
    test_file (&rng, f);
  }
  calm_host ();
  test_errors (f, fd);
  close (fd);
  storage_close (f);
  host_end ();
  return 0;
}
