/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What is wrong with this image, all of it?
 *
 * Everything that names a host cluster is walked, as in census.c.  But a census
 * wants to know what the refcounts should be, and gives up at the first fault; a scan
 * goes on, compares with the refcounts that are there, and says what it found.
 * What it can't follow (it is not aligned, or lies outside of the file) it does not
 * follow.
 *
 * For each window of SCAN_WINDOW clusters:
 *
 *    scanrefs     which stored refcounts are 1?  (for COPIED flags)
 *    scantables   count references; look at L1, L2 and other tables
 *    scanrefs     compare the stored refcounts with the references
 *    scandata     if all is to be read: inflate compressed clusters, read the file
 *
 * L2 tables and refcount blocks don't depend on each other: a few threads take a few of
 * them at a time.
 *
 * Memory has a bound, whatever the image says: counters (64 MiB), gathered tables
 * (24 MiB), the refcount table (8 MiB), and what each of at most MAX_THREADS threads
 * needs (1 MiB, or a few clusters).  So has time, as far as the file takes space on the
 * host: a table that lies in a hole of the file names nothing and is not read; L1
 * tables that share clusters are walked once; a table that lies where something else is
 * is not walked.  In a corrupt file of more than MAX_CORRUPT_WINDOWS windows the rest is
 * not counted.
 *
 * A counter is   shared : 1 | role : 3 | stored refcount is 1 : 1 | references : 27
 *
 * Locks: none; counters and statistics are atomic.  What the orders are does not matter:
 * joining the threads makes all of it visible.
 */

#include <config.h>

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cleanup.h"
#include "report.h"
#include "scan-impl.h"

#define MIN_THREADS 2
#define MAX_THREADS 8

/* Each window is a walk over all metadata: this many are more than any image of
 * QEMU's needs (256 TiB with clusters of 64K). */
#define MAX_WINDOWS 256

/* One that is corrupt, and larger than any sane one, is looked at no further. */
#define MAX_CORRUPT_WINDOWS 8

/* Entries of a table that are read at a time. */
#define CHUNK 8192

#define SHARED (UINT32_C (1) << 31)
#define ROLE_SHIFT 28
#define ROLE_MASK UINT32_C (7)
#define STORED_ONE (UINT32_C (1) << 27)
#define MAX_COUNT (STORED_ONE - 1)

const uint32_t scan_max_count = MAX_COUNT;

/* --- references --- */

static const char *
role_name (enum scan_role role)
{
  switch (role) {
  case SCAN_NOTHING: break;
  case SCAN_TABLE: return "other metadata";
  case SCAN_L2: return "an L2 table";
  case SCAN_DATA: return "data";
  case SCAN_REFCOUNTS: return "a part of the refcounts";
  }
  abort ();
}

/* The cluster of a counter gets TIMES more references. */
static bool
count_one (struct scan *s, uint64_t cluster, enum scan_role role,
           uint32_t times, const char *what)
{
  _Atomic uint32_t *counter = &s->counters[cluster - s->first];
  uint32_t old = atomic_load_explicit (counter, memory_order_relaxed), new;
  enum scan_role known;
  bool conflict;

  do {
    known = old >> ROLE_SHIFT & ROLE_MASK;
    conflict = known != SCAN_NOTHING &&
      (known != role || role == SCAN_TABLE || role == SCAN_REFCOUNTS);
    new = (old & (SHARED | STORED_ONE)) | (conflict ? SHARED : 0) |
      (uint32_t) (known != SCAN_NOTHING ? known : role) << ROLE_SHIFT |
      (uint32_t) min64 ((uint64_t) (old & MAX_COUNT) + times, MAX_COUNT);
  } while (!atomic_compare_exchange_weak_explicit (counter, &old, new,
                                                   memory_order_relaxed,
                                                   memory_order_relaxed));
  if (conflict && !(old & SHARED))
    findings_add (s->findings, FINDING_OVERLAP, 1,
                  cluster << s->h->cluster_bits,
                  "the %s at %" PRIu64 " is where %s is", what,
                  cluster << s->h->cluster_bits, role_name (known));
  return !conflict;
}

bool
scan_refer (struct scan *s, uint64_t offset, uint64_t bytes,
            enum scan_role role, uint32_t times, const char *what)
{
  const unsigned bits = s->h->cluster_bits;
  const uint64_t first = offset >> bits;
  uint64_t end, i, next;
  bool alone = true;

  if (bytes == 0)
    return true;
  if (offset & (s->h->cluster_size - 1)) {
    if (scan_first (s))
      findings_add (s->findings, FINDING_ALIGNMENT, times, offset,
                    "the %s at %" PRIu64 " is not aligned to a cluster",
                    what, offset);
    return false;
  }
  if (!range_within (offset, bytes, QCOW2_MAX_HOST_OFFSET) ||
      (end = ((offset + bytes - 1) >> bits) + 1) > s->clusters) {
    if (scan_first (s))
      findings_add (s->findings, FINDING_BEYOND, times, offset,
                    "the %s at %" PRIu64 " lies beyond the end of the file",
                    what, offset);
    return false;
  }

  if (end > s->first + SCAN_WINDOW) {
    i = round_down (max64 (first, s->first + SCAN_WINDOW), SCAN_WINDOW);
    next = atomic_load (&s->next);
    while (i < next && !atomic_compare_exchange_weak (&s->next, &next, i))
      ;
  }
  end = min64 (end, s->first + s->n);
  for (i = max64 (first, s->first); i < end; i++)
    alone &= count_one (s, i, role, times, what);
  return alone;
}

int
scan_stored_one (const struct scan *s, uint64_t cluster)
{
  if (cluster - s->first >= s->n)       /* wraps before the window */
    return -1;
  return (s->counters[cluster - s->first] & STORED_ONE) != 0;
}

void
scan_set_stored_one (struct scan *s, uint64_t cluster)
{
  atomic_fetch_or (&s->counters[cluster - s->first], STORED_ONE);
}

uint32_t
scan_count (const struct scan *s, uint64_t cluster, bool *shared)
{
  const uint32_t counter = s->counters[cluster - s->first];

  *shared = (counter & SHARED) != 0;
  return counter & MAX_COUNT;
}

/* --- many things at once --- */

struct crowd {
  struct scan *s;
  uint64_t items, batch;
  size_t size;
  int (*work) (struct scan *, void *, uint64_t, uint64_t);
  _Atomic uint64_t taken;
  _Atomic int err;              /* of the first that failed */
};

static void *
worker (void *opaque)
{
  struct crowd *c = opaque;
  CLEANUP_FREE void *buffer = malloc (c->size);
  uint64_t from;
  int none = 0;

  if (buffer == NULL) {
    nbdkit_error ("%s: check: %m", hostfile_path (c->s->file));
    atomic_store (&c->err, ENOMEM);
    return NULL;
  }
  while (atomic_load (&c->err) == 0) {
    from = atomic_fetch_add (&c->taken, c->batch);
    if (from >= c->items)
      break;
    if (c->work (c->s, buffer, from, min64 (c->items, from + c->batch)) == -1)
      atomic_compare_exchange_strong (&c->err, &none, errno ? errno : EIO);
  }
  return NULL;
}

int
scan_parallel (struct scan *s, uint64_t items, uint64_t batch, size_t size,
               int (*work) (struct scan *, void *, uint64_t, uint64_t))
{
  struct crowd c = {
    .s = s, .items = items, .batch = batch, .size = size, .work = work,
  };
  const long cpus = sysconf (_SC_NPROCESSORS_ONLN);
  /* A few more than there are processors: some wait for the disk. */
  const uint64_t want = min64 (min64 (MAX_THREADS,
                                      max64 (MIN_THREADS, cpus > 0 ? cpus : 1)),
                               div_up (items, batch));
  pthread_t threads[MAX_THREADS];
  unsigned n = 0;

  while (n + 1 < want && pthread_create (&threads[n], NULL, worker, &c) == 0)
    n++;
  worker (&c);
  while (n > 0)
    pthread_join (threads[--n], NULL);
  errno = c.err;
  return c.err == 0 ? 0 : -1;
}

int
scan_entries (struct scan *s, uint64_t offset, uint64_t entries,
              int (*fn) (struct scan *, uint64_t, uint64_t, void *),
              void *opaque)
{
  CLEANUP_FREE struct be64 *chunk = malloc (CHUNK * sizeof *chunk);
  uint64_t done, n, i, len;
  bool hole;

  if (chunk == NULL) {
    nbdkit_error ("%s: check: %m", hostfile_path (s->file));
    return -1;
  }
  for (done = 0; done < entries; done += n) {
    n = min64 (entries - done, CHUNK);
    if (s->sparse) {
      len = (entries - done) * sizeof *chunk;
      if (hostfile_hole (s->file, offset + done * sizeof *chunk, &len,
                         &hole) == -1)
        return -1;
      if (hole && len >= sizeof *chunk) {
        n = len / sizeof *chunk;
        continue;
      }
    }
    if (hostfile_read (s->file, chunk, n * sizeof *chunk,
                       offset + done * sizeof *chunk) == -1)
      return -1;
    for (i = 0; i < n; i++)
      if (chunk[i].be != 0 && fn (s, done + i, get64 (chunk[i]), opaque) == -1)
        return -1;
  }
  return 0;
}

/* --- the scan --- */

static int
scan_window (struct scan *s, uint64_t first)
{
  free ((void *) s->counters);
  s->first = first;
  s->n = min64 (s->clusters - first, SCAN_WINDOW);
  s->counters = calloc (s->n, sizeof *s->counters);
  if (s->counters == NULL) {
    nbdkit_error ("%s: check: %m", hostfile_path (s->file));
    return -1;
  }
  s->next = UINT64_MAX;
  s->bitmap_entries = 0;
  s->bitmaps_in_use = 0;

  scan_refer (s, 0, s->h->cluster_size, SCAN_TABLE, 1, "header");
  if (scan_load_refcounts (s) == -1 ||
      scan_refer_refcounts (s) == -1 ||
      scan_encryption (s) == -1 ||
      scan_bitmaps (s) == -1 ||
      scan_active (s) == -1 ||
      scan_snapshots (s) == -1 ||
      scan_l2_tables (s) == -1)
    return -1;
  return scan_compare_refcounts (s);
}

static int
scan_windows (struct scan *s)
{
  uint64_t window;
  unsigned n = 0;

  for (window = 0; window != UINT64_MAX; window = s->next) {
    if (++n > MAX_WINDOWS) {
      nbdkit_error ("%s: check: its clusters are spread too far over the file",
                    hostfile_path (s->file));
      errno = EFBIG;
      return -1;
    }
    if (scan_window (s, window) == -1)
      return -1;
    if (n >= MAX_CORRUPT_WINDOWS && findings_corruptions (s->findings) > 0)
      break;
  }
  return 0;
}

static int
scan_begin (struct scan *s)
{
  s->clusters = div_up (hostfile_size (s->file), s->h->cluster_size);
  s->sparse = hostfile_allocated (s->file) < hostfile_size (s->file);
  s->data_file = (s->h->incompatible & QCOW2_INCOMPAT_DATA_FILE) != 0;
  s->tables = malloc (SCAN_TABLES * sizeof *s->tables);
  if (s->full)
    s->pool = compress_pool_new ();
  if (s->tables == NULL || (s->full && s->pool == NULL)) {
    nbdkit_error ("%s: check: %m", hostfile_path (s->file));
    return -1;
  }
  return scan_read_reftable (s);
}

int
scan_image (struct hostfile *file, const struct header *h, bool full,
            struct findings *findings, struct scan_stats *stats)
{
  struct scan s = { .file = file, .h = h, .findings = findings, .full = full };
  int r = scan_begin (&s) == -1 || scan_windows (&s) == -1 ||
    (full && scan_read_all (&s) == -1) ? -1 : 0;
  int err = errno;

  stats->total_clusters = div_up (h->size, h->cluster_size);
  stats->allocated = s.allocated;
  stats->compressed = s.compressed;
  stats->fragmented = s.fragmented;
  stats->end = s.end;
  stats->bitmaps_in_use = s.bitmaps_in_use;
  free ((void *) s.counters);
  free (s.tables);
  free (s.reftable);
  free (s.skip);
  compress_pool_free (s.pool);
  errno = err;
  return r;
}

int
scan_raw (struct hostfile *file, struct findings *findings)
{
  struct scan s = { .file = file, .findings = findings, .full = true };

  return scan_read_all (&s);
}
