/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What do many processors gain?
 *
 * Threads read and rewrite 4K at random places of one disk, in this process: no NBD, and
 * in most rows no I/O either, because a hook says that the bytes were transferred.  The
 * mapping of the whole disk is in memory.  What remains is what the plugin does itself
 * for a request, and what threads write there that others use, too.
 *
 * Each thread has a processor, and shares it if there are more threads.  For each number
 * of threads it prints the best of some samples:
 *
 *   Mops/s  requests per microsecond, of all threads together, and how many times as many
 *           that is as with the first number of threads
 *   ns      processor time for a request
 *   locks   how many locks a request takes (mutexes and rwlocks)
 *   waits   how many of a million requests find their lock taken
 *
 * lab/processors builds and runs it.
 */

#include <config.h>

#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <pthread.h>
#include <regex.h>
#include <sched.h>
#include <stdatomic.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "util/bytes.h"
#include "disk/export.h"
#include "change/create.h"
#include "lib/stubs.h"

#define MOST_THREADS 1024
#define BLOCK 4096
#define MIB (UINT64_C (1) << 20)
#define GIB (UINT64_C (1) << 30)
#define SLICE (32 * MIB)        /* guest bytes of a slice of 4K */
#define BATCH 32                /* requests between two looks at the clock's flag */

static double seconds = 0.5;
static unsigned rounds = 5;
static uint64_t disk_size = 16 * GIB;
static regex_t wanted;
static unsigned counts[32] = { 1, 2, 4, 8, 16, 32, 64 }, nr_counts = 7;

/* --- counting locks --- */

/* (Of the threads that are measured only.) */
static _Thread_local uint64_t locks, waits;

extern int __real_pthread_mutex_lock (pthread_mutex_t *);
extern int __wrap_pthread_mutex_lock (pthread_mutex_t *);
extern int __real_pthread_rwlock_rdlock (pthread_rwlock_t *);
extern int __wrap_pthread_rwlock_rdlock (pthread_rwlock_t *);
extern int __real_pthread_rwlock_wrlock (pthread_rwlock_t *);
extern int __wrap_pthread_rwlock_wrlock (pthread_rwlock_t *);

int
__wrap_pthread_mutex_lock (pthread_mutex_t *lock)
{
  locks++;
  if (pthread_mutex_trylock (lock) == 0)
    return 0;
  waits++;
  return __real_pthread_mutex_lock (lock);
}

int
__wrap_pthread_rwlock_rdlock (pthread_rwlock_t *lock)
{
  locks++;
  if (pthread_rwlock_tryrdlock (lock) == 0)
    return 0;
  waits++;
  return __real_pthread_rwlock_rdlock (lock);
}

int
__wrap_pthread_rwlock_wrlock (pthread_rwlock_t *lock)
{
  locks++;
  if (pthread_rwlock_trywrlock (lock) == 0)
    return 0;
  waits++;
  return __real_pthread_rwlock_wrlock (lock);
}

/* --- storage that costs nothing --- */

static bool is_free;            /* constant while threads run */

static int
transfer (void *opaque, const char *path, enum storage_op op, const struct iovec *iov,
          int niov, uint64_t offset, uint64_t count, bool durable)
{
  (void) opaque, (void) path, (void) iov, (void) niov, (void) offset, (void) durable;
  if (op == STORAGE_OP_SYNC)
    return 1;
  return is_free && count == BLOCK;
}

static const struct storage_hooks hooks = { .before = transfer };

/* --- threads --- */

struct row {
  const char *name;
  unsigned writes;              /* of 256 requests */
  uint64_t span;                /* of the disk's bytes; 0: all */
  bool io;                      /* to the file, in the page cache */
};

static const struct row rows[] = {
  { .name = "read" },
  { .name = "rewrite", .writes = 256 },
  { .name = "read and rewrite", .writes = 128 },
  { .name = "read one slice", .span = SLICE },
  { .name = "rewrite one slice", .writes = 256, .span = SLICE },
  { .name = "read with I/O", .span = 64 * MIB, .io = true },
  { .name = "rewrite with I/O", .writes = 256, .span = 64 * MIB, .io = true },
};

struct worker {
  _Alignas (128) struct export *e;
  const struct row *row;
  struct rng rng;
  uint64_t from, to;            /* CLOCK_MONOTONIC, ns */
  uint64_t requests, locks, waits, ns;
};

static pthread_barrier_t start;
static struct { _Alignas (128) atomic_bool stop; } end;

static uint64_t
now (clockid_t clock)
{
  struct timespec ts;

  clock_gettime (clock, &ts);
  return ts.tv_sec * UINT64_C (1000000000) + ts.tv_nsec;
}

static void *
work (void *opaque)
{
  struct worker *w = opaque;
  const uint64_t blocks = (w->row->span ? w->row->span : disk_size) / BLOCK;
  _Alignas (BLOCK) char buf[BLOCK];
  uint64_t requests = 0, spent;

  memset (buf, 'x', sizeof buf);
  pthread_barrier_wait (&start);
  locks = waits = 0;
  w->from = now (CLOCK_MONOTONIC);
  spent = now (CLOCK_THREAD_CPUTIME_ID);
  do
    for (unsigned i = 0; i < BATCH; i++) {
      const uint64_t r = rng_next (&w->rng);
      const uint64_t offset = (r >> 8) % blocks * BLOCK;

      CHECK (((r & 255) < w->row->writes ? export_write (w->e, buf, BLOCK, offset, false)
              : export_read (w->e, buf, BLOCK, offset)) == 0);
      requests++;
    }
  while (!atomic_load_explicit (&end.stop, memory_order_relaxed));
  w->ns = now (CLOCK_THREAD_CPUTIME_ID) - spent;
  w->to = now (CLOCK_MONOTONIC);
  w->requests = requests;
  w->locks = locks;
  w->waits = waits;
  return NULL;
}

/* What all threads did. */
struct sample {
  double speed;                 /* requests per second */
  uint64_t requests, locks, waits, ns;
};

/* Lets thread number I run on one processor only.  If that fails, it may use all. */
static void
settle (pthread_t thread, unsigned i)
{
  cpu_set_t all, one;
  int cpu;

  if (sched_getaffinity (0, sizeof all, &all) == -1)
    return;
  i %= CPU_COUNT (&all);
  for (cpu = 0; !CPU_ISSET (cpu, &all) || i-- > 0; cpu++)
    ;
  CPU_ZERO (&one);
  CPU_SET (cpu, &one);
  pthread_setaffinity_np (thread, sizeof one, &one);
}

static struct sample
measure (struct export *e, const struct row *row, unsigned n)
{
  struct worker *workers = aligned_alloc (_Alignof (struct worker), n * sizeof *workers);
  struct sample sum = { 0 };
  uint64_t from = UINT64_MAX, to = 0;
  pthread_t threads[MOST_THREADS];

  CHECK (workers != NULL);
  CHECK (pthread_barrier_init (&start, NULL, n + 1) == 0);
  atomic_store (&end.stop, false);
  for (unsigned i = 0; i < n; i++) {
    workers[i] = (struct worker) { .e = e, .row = row };
    rng_init (&workers[i].rng, n, i);
    CHECK (pthread_create (&threads[i], NULL, work, &workers[i]) == 0);
    settle (threads[i], i);
  }
  pthread_barrier_wait (&start);
  nanosleep (&(struct timespec) { seconds, (seconds - (time_t) seconds) * 1e9 }, NULL);
  atomic_store (&end.stop, true);
  for (unsigned i = 0; i < n; i++) {
    CHECK (pthread_join (threads[i], NULL) == 0);
    from = min64 (from, workers[i].from);
    to = max64 (to, workers[i].to);
    sum.requests += workers[i].requests;
    sum.locks += workers[i].locks;
    sum.waits += workers[i].waits;
    sum.ns += workers[i].ns;
  }
  sum.speed = sum.requests * 1e9 / (to - from);
  pthread_barrier_destroy (&start);
  free (workers);
  return sum;
}

static void
run_row (struct export *e, const struct row *row)
{
  struct sample best[32] = { 0 };

  /* The numbers of threads take turns. */
  for (unsigned round = 0; round < rounds; round++)
    for (unsigned i = 0; i < nr_counts; i++) {
      const struct sample s = measure (e, row, counts[i]);

      if (s.speed > best[i].speed)
        best[i] = s;
    }
  for (unsigned i = 0; i < nr_counts; i++) {
    const struct sample *s = &best[i];

    printf ("%-20s %7u %9.3f %7.2f %8.0f %7.2f %9.0f\n", row->name, counts[i],
            s->speed / 1e6, s->speed / best[0].speed, (double) s->ns / s->requests,
            (double) s->locks / s->requests, s->waits * 1e6 / s->requests);
  }
  fflush (stdout);
}

/* --- the disk --- */

/* All of its clusters have a place. */
static void
make_image (const char *path)
{
  const struct create_options options = {
    .path = path,
    .image = {
      .size = disk_size, .cluster_size = 64 << 10, .version = 3, .refcount_bits = 16,
      .preallocation = PREALLOCATION_METADATA,
    },
    .file = { .hooks = &hooks },
  };
  struct created *created;

  CHECK (create_image (&options, &created) == 0);
  created_keep (created);
}

static void
run_rows (struct export *e)
{
  char block[BLOCK];

  /* Now the mapping is known, and what rows with I/O use is in the page cache. */
  for (uint64_t at = 0; at < disk_size; at += at < 64 * MIB ? BLOCK : 2 * MIB) {
    memset (block, 'a', sizeof block);
    CHECK ((at < 64 * MIB ? export_write (e, block, BLOCK, at, false)
            : export_read (e, block, BLOCK, at)) == 0);
  }
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
    if (regexec (&wanted, rows[i].name, 0, NULL, 0) == 0) {
      is_free = !rows[i].io;
      run_row (e, &rows[i]);
    }
  is_free = false;
}

static void
run (const char *path)
{
  const struct disk_options options = {
    .path = path, .l2_cache = 32 * MIB, .l2_slice = 4096, .lock = true, .hooks = &hooks,
  };
  struct export *e;
  struct disk *d;

  make_image (path);
  CHECK (disk_open (&options, &d) == 0);
  CHECK ((e = export_open (d, "", true)) && export_is_writable (e));
  printf ("%ld processors, random requests of 4K\n\n", sysconf (_SC_NPROCESSORS_ONLN));
  printf ("%-20s %7s %9s %7s %8s %7s %9s\n", "", "threads", "Mops/s", "ratio", "ns",
          "locks", "waits");
  run_rows (e);
  CHECK (export_close (e) == 0);
  CHECK (disk_close (d) == 0);
}

/* --- options --- */

static void __attribute__ ((noreturn))
usage (int status)
{
  fprintf (status ? stderr : stdout,
           "usage: processors [--threads N,...] [--rows REGEX] [--rounds N]\n"
           "                  [--seconds S] [--size GIB]\n"
           "Reads and rewrites random blocks of a disk, in this process, with 1 to\n"
           "64 threads.  Prints, of the best of N samples of S seconds, requests per\n"
           "second, how many times as many that is as with the first number of\n"
           "threads, processor time for a request (ns), locks that a request takes,\n"
           "and how many of a million requests found a lock taken.\n");
  exit (status);
}

static void
read_threads (const char *list)
{
  char *rest;

  for (nr_counts = 0; nr_counts < 32; list = rest + 1) {
    counts[nr_counts] = strtoul (list, &rest, 10);
    if (counts[nr_counts] == 0 || counts[nr_counts] > MOST_THREADS)
      usage (1);
    nr_counts++;
    if (*rest == '\0')
      return;
    if (*rest != ',')
      usage (1);
  }
  usage (1);
}

static void
read_options (int argc, char **argv)
{
  static const struct option options[] = {
    { "threads", required_argument, NULL, 't' },
    { "rows", required_argument, NULL, 'r' },
    { "rounds", required_argument, NULL, 'n' },
    { "seconds", required_argument, NULL, 's' },
    { "size", required_argument, NULL, 'z' },
    { "help", no_argument, NULL, 'h' },
    { NULL, 0, NULL, 0 },
  };
  const char *rows_wanted = "";
  int c;

  while ((c = getopt_long (argc, argv, "h", options, NULL)) != -1)
    switch (c) {
    case 't': read_threads (optarg); break;
    case 'r': rows_wanted = optarg; break;
    case 'n': rounds = strtoul (optarg, NULL, 10); break;
    case 's': seconds = strtod (optarg, NULL); break;
    case 'z': disk_size = strtoull (optarg, NULL, 10) * GIB; break;
    case 'h': usage (0);
    default: usage (1);
    }
  if (optind < argc || !(seconds > 0) || rounds == 0 || disk_size == 0 ||
      disk_size > 1024 * GIB ||
      regcomp (&wanted, rows_wanted, REG_EXTENDED | REG_NOSUB) != 0)
    usage (1);
}

int
main (int argc, char **argv)
{
  char *directory, *path;
  int parent;

  read_options (argc, argv);
  if (access ("/dev/shm", W_OK) == 0)
    parent = asprintf (&directory, "/dev/shm/processors.XXXXXX");
  else
    parent = asprintf (&directory, "%s/processors.XXXXXX",
                       getenv ("TMPDIR") ? getenv ("TMPDIR") : "/tmp");
  CHECK (parent >= 0 && mkdtemp (directory));
  CHECK (asprintf (&path, "%s/disk.qcow2", directory) >= 0);
  run (path);
  unlink (path);
  rmdir (directory);
  free (path);
  free (directory);
  regfree (&wanted);
  return 0;
}
