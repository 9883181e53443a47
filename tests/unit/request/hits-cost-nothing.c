/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The cost of a request whose mapping is in memory: one operation on the host for each
 * run of adjacent host clusters, no memory allocation by the plugin, and no lock, for
 * which threads would wait, if the mapping was in memory for a while.  Hooks count
 * operations, and replacements of functions (the linker's --wrap) the others.
 */

#include <config.h>

#include <pthread.h>
#include <string.h>

#include "disk/export.h"
#include "lib/images.h"
#include "lib/stubs.h"

#define MIB (1u << 20)
#define SIZE (32 * MIB)
#define TIMES 1000

static char buf[8 * MIB];

/* --- counting --- */

static bool counting;
static unsigned long reads, writes, others, allocations, locks;

extern void *__real_malloc (size_t);
extern void *__real_calloc (size_t, size_t);
extern void *__real_realloc (void *, size_t);
extern void *__wrap_malloc (size_t);
extern void *__wrap_calloc (size_t, size_t);
extern void *__wrap_realloc (void *, size_t);

void *
__wrap_malloc (size_t size)
{
  allocations += counting;
  return __real_malloc (size);
}

void *
__wrap_calloc (size_t n, size_t size)
{
  allocations += counting;
  return __real_calloc (n, size);
}

void *
__wrap_realloc (void *p, size_t size)
{
  allocations += counting;
  return __real_realloc (p, size);
}

/* Whatever else the plugin may call. */
extern void *__real_reallocarray (void *, size_t, size_t);
extern void *__wrap_reallocarray (void *, size_t, size_t);
extern void *__real_aligned_alloc (size_t, size_t);
extern void *__wrap_aligned_alloc (size_t, size_t);

void *
__wrap_reallocarray (void *p, size_t n, size_t size)
{
  allocations += counting;
  return __real_reallocarray (p, n, size);
}

void *
__wrap_aligned_alloc (size_t alignment, size_t size)
{
  allocations += counting;
  return __real_aligned_alloc (alignment, size);
}

extern int __real_pthread_mutex_lock (pthread_mutex_t *);
extern int __wrap_pthread_mutex_lock (pthread_mutex_t *);

int
__wrap_pthread_mutex_lock (pthread_mutex_t *lock)
{
  locks += counting;
  return __real_pthread_mutex_lock (lock);
}

extern int __real_pthread_rwlock_rdlock (pthread_rwlock_t *);
extern int __wrap_pthread_rwlock_rdlock (pthread_rwlock_t *);

int
__wrap_pthread_rwlock_rdlock (pthread_rwlock_t *lock)
{
  locks += counting;
  return __real_pthread_rwlock_rdlock (lock);
}

static int
count (void *opaque, const char *path, enum storage_op op,
       const struct iovec *iov, int niov, uint64_t offset, uint64_t bytes,
       bool dsync)
{
  (void) opaque; (void) path; (void) iov; (void) niov; (void) offset;
  (void) bytes;
  if (op == STORAGE_OP_READ)
    reads++;
  else if (op == STORAGE_OP_WRITE && !dsync)
    writes++;
  else
    others++;
  return 0;
}

static void
begin (void)
{
  reads = writes = others = allocations = locks = 0;
  counting = true;
}

static void
end (const char *what)
{
  counting = false;
  fprintf (stderr, "%s: %lu reads, %lu writes, %lu other operations, %lu allocations, "
           "%lu locks\n", what, reads, writes, others, allocations, locks);
}

/* --- what is asked for --- */

/* N bytes TIMES times, at multiples of N in [from, from + 8M). */
static void
read_some (struct export *e, uint64_t from, uint64_t n, struct rng *rng)
{
  for (int i = 0; i < TIMES; i++)
    CHECK (export_read (e, buf, n, from + rng_below (rng, 8 * MIB / n) * n) == 0);
}

static void
rewrite_some (struct export *e, uint64_t from, uint64_t n, struct rng *rng)
{
  for (int i = 0; i < TIMES; i++)
    CHECK (export_write (e, buf, n, from + rng_below (rng, 8 * MIB / n) * n, false) == 0);
}

static int
ignore (void *opaque, uint64_t offset, uint64_t n, enum extent_type type)
{
  (void) opaque; (void) offset; (void) n; (void) type;
  return 0;
}

static void
test_requests (struct export *e, struct rng *rng)
{
  static const struct { const char *what; uint64_t from; unsigned ops; } places[] = {
    { "from the image", 0, TIMES },
    { "from its backing file", 8 * MIB, TIMES },
    { "from nowhere", 16 * MIB, 0 },
  };
  static const uint64_t sizes[] = { 4096, 65536, MIB };
  uint64_t from;

  for (unsigned i = 0; i < 3; i++) {
    from = places[i].from;
    /* Now all is known, and known to be in use. */
    CHECK (export_read (e, buf, 8 * MIB, from) == 0);
    CHECK (export_read (e, buf, 8 * MIB, from) == 0);
    for (unsigned k = 0; k < 3; k++) {
      begin ();
      read_some (e, from, sizes[k], rng);
      end (places[i].what);
      CHECK (reads == places[i].ops && writes == 0 && others == 0);
      CHECK (allocations == 0 && locks == 0);
    }
  }

  CHECK (export_write (e, buf, 8 * MIB, 0, true) == 0);
  for (unsigned k = 0; k < 3; k++) {
    begin ();
    rewrite_some (e, 0, sizes[k], rng);
    end ("rewritten");
    CHECK (reads == 0 && writes == TIMES && others == 0);
    CHECK (allocations == 0 && locks == 0);
  }

  for (int i = 0; i < 2; i++)
    CHECK (export_extents (e, SIZE, 0, false, ignore, NULL) == 0);
  begin ();
  for (int i = 0; i < TIMES; i++)
    CHECK (export_extents (e, SIZE, 0, false, ignore, NULL) == 0);
  end ("extents");
  CHECK (reads == 0 && writes == 0 && others == 0 && allocations == 0 && locks == 0);
}

/* Writes a file's whole contents in one go: they are neighbours. */
static void
fill (const char *name, uint64_t from)
{
  char *path = images_path (name);
  const struct disk_options options = {
    .path = path, .l2_cache = MIB, .l2_slice = 4096, .lock = true,
  };
  struct export *e;
  struct disk *d;

  CHECK (disk_open (&options, &d) == 0);
  CHECK ((e = export_open (d, "", true)) && export_is_writable (e));
  memset (buf, 1 + from / MIB, sizeof buf);
  CHECK (export_write (e, buf, sizeof buf, from, false) == 0);
  CHECK (export_close (e) == 0);
  CHECK (disk_close (d) == 0);
  free (path);
}

static void
test_cluster_size (uint64_t cluster_size, struct rng *rng)
{
  const struct storage_hooks hooks = { .before = count };
  struct image_spec spec = {
    .version = 3, .cluster_size = cluster_size, .refcount_bits = 16, .size = SIZE,
  };
  char *path = images_path ("top.qcow2");
  const struct disk_options options = {
    .path = path, .l2_cache = 8 * MIB, .l2_slice = 4096, .lock = true, .hooks = &hooks,
  };
  struct export *e;
  struct disk *d;

  fprintf (stderr, "clusters of %u\n", (unsigned) cluster_size);
  image_create ("below.qcow2", &spec);
  fill ("below.qcow2", 8 * MIB);
  spec.backing = "below.qcow2";
  image_create ("top.qcow2", &spec);
  fill ("top.qcow2", 0);

  begin ();
  CHECK (disk_open (&options, &d) == 0);
  CHECK ((e = export_open (d, "", true)) && export_is_writable (e));
  end ("opened");
  CHECK (allocations > 0 && locks > 0); /* they are seen */
  test_requests (e, rng);
  CHECK (export_close (e) == 0);
  CHECK (disk_close (d) == 0);
  CHECK (image_check ("top.qcow2") == 0);
  free (path);
}

int
main (void)
{
  struct rng rng;

  rng_init (&rng, seed_from_env (), 0);
  images_enter ("hits-cost-nothing");
  test_cluster_size (65536, &rng);
  test_cluster_size (4096, &rng);
  images_leave ();
  return 0;
}
