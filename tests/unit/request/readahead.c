/* SPDX-License-Identifier: BSD-3-Clause
 *
 * When are compressed clusters decompressed ahead of their reader, when are they not, and
 * what becomes of the threads?  A hook sees, holds or fails reads of the file by threads
 * that are not clients.
 */

#include <config.h>

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "util/bytes.h"
#include "util/unwanted.h"
#include "format/format.h"
#include "request/readahead.h"
#include "disk/export.h"
#include "change/create.h"
#include "lib/images.h"
#include "lib/stubs.h"

#if defined __SANITIZE_THREAD__
#define WITH_TSAN true
#elif defined __has_feature
#define WITH_TSAN __has_feature (thread_sanitizer)
#else
#define WITH_TSAN false
#endif

#define CS (UINT64_C (64) << 10)
#define CLUSTERS 256u
#define SIZE (CLUSTERS * CS)
/* The window, and those that a thread has begun. */
#define MOST_AHEAD (16 + 4)

static char *path;
static struct readahead_load load;
static struct disk *d;
static struct export *client;
static unsigned char buf[SIZE];
static unsigned threads_before; /* in this process, at the beginning */

/* --- the hook --- */

static _Thread_local bool is_client;
static atomic_bool held;        /* ahead of readers, reads last until they are unwanted */
static atomic_bool failing;     /* and these fail */
static atomic_bool patient;     /* clients' reads wait for one of these */
static atomic_uint ahead_reads, loading;

static int
at_gate (void *opaque, const char *name, enum storage_op op, const struct iovec *iov,
         int niov, uint64_t offset, uint64_t count, bool dsync)
{
  (void) opaque; (void) name; (void) iov; (void) niov; (void) offset; (void) count;
  (void) dsync;
  if (op != STORAGE_OP_READ)
    return op == STORAGE_OP_SYNC;       /* these are left out */
  while (is_client && patient && ahead_reads == 0)
    sched_yield ();
  if (is_client)
    return 0;
  loading++;
  ahead_reads++;
  while (held && !unwanted ())
    sched_yield ();
  loading--;
  errno = EIO;
  return failing ? -1 : 0;
}

static const struct storage_hooks hooks = { .before = at_gate };

/* What has been looked up ahead, and is about to be used. */
static atomic_bool stopped;     /* it waits */
static atomic_uint looked_up;
static atomic_uint_fast64_t watched;    /* a descriptor */
static atomic_uint watched_seen;

extern void __real_cluster_cache_ahead (struct cluster_cache *, struct storage *,
                                        const struct header *, unsigned, uint64_t);
extern void __wrap_cluster_cache_ahead (struct cluster_cache *, struct storage *,
                                        const struct header *, unsigned, uint64_t);

void
__wrap_cluster_cache_ahead (struct cluster_cache *c, struct storage *file,
                            const struct header *h, unsigned layer, uint64_t descriptor)
{
  looked_up++;
  if (descriptor == watched)
    watched_seen++;
  while (stopped && !is_client)
    sched_yield ();
  __real_cluster_cache_ahead (c, file, h, layer, descriptor);
}

/* Is the file "a.qcow2" said to be behind a link? */
static atomic_bool pretended;

extern bool __real_storage_is_remote (const struct storage *);
extern bool __wrap_storage_is_remote (const struct storage *);

bool
__wrap_storage_is_remote (const struct storage *s)
{
  return (pretended && strstr (storage_path (s), "a.qcow2")) ||
    __real_storage_is_remote (s);
}

/* --- the image --- */

static void
fill (unsigned char *p, unsigned cluster, unsigned version)
{
  for (uint64_t i = 0; i < CS; i++)
    p[i] = i % 8 == 0 ? i / 512 + cluster * 7 + version : i % 3;
}

static bool
has (const unsigned char *p, unsigned cluster, unsigned version)
{
  static unsigned char wanted[CS];

  fill (wanted, cluster, version);
  return memcmp (p, wanted, CS) == 0;
}

static void
open_disk (bool writable)
{
  const struct disk_options serve = {
    .path = path, .l2_cache = 1 << 20, .l2_slice = 4096, .discard = true, .lock = true,
    .compress = true, .hooks = &hooks, .load = &load,
  };

  CHECK (disk_open (&serve, &d) == 0);
  CHECK ((client = export_open (d, "", writable)) != NULL);
  ahead_reads = 0;
}

static void
close_disk (void)
{
  CHECK (export_close (client) == 0);
  CHECK (disk_close (d) == 0);
  CHECK (load.readers == 0 && load.working == 0);
}

static void
make_image (const char *backing, unsigned clusters)
{
  const struct create_options options = {
    .path = path,
    .image = { .size = SIZE, .cluster_size = CS, .version = 3, .refcount_bits = 16,
               .backing_file = backing, .backing_format = backing ? "qcow2" : NULL },
  };
  struct created *created;

  CHECK (create_image (&options, &created) == 0);
  created_keep (created);
  for (unsigned i = 0; i < clusters; i++)
    fill (buf + i * CS, i, 0);
  open_disk (true);
  CHECK (export_write (client, buf, clusters * CS, 0, false) == 0);
  close_disk ();
  CHECK (image_check (backing ? "over.qcow2" : "a.qcow2") == 0);
}

static struct cluster_cache_stats
stats (void)
{
  struct disk_stats s;

  disk_get_stats (d, &s);
  return s.cluster_cache;
}

/* ThreadSanitizer has a thread of its own, and none can be started after a fork. */
static unsigned
threads (void)
{
  return WITH_TSAN ? 1 : files_in ("/proc/self/task");
}

/* Waits until the threads are gone that have been joined. */
static void
await_end (void)
{
  while (threads () > threads_before)
    sched_yield ();
}

static void
read_cluster (unsigned i)
{
  CHECK (export_read (client, buf, CS, i * CS) == 0);
  CHECK (has (buf, i, 0));
}

/* After these three, the next one but one is loaded ahead. */
static void
begin_order (void)
{
  for (unsigned i = 0; i < 3; i++)
    read_cluster (i);
}

static void
await_ahead (void)
{
  while (ahead_reads == 0)
    sched_yield ();
}

/* --- in order --- */

static void
test_in_order (void)
{
  struct cluster_cache_stats s;

  open_disk (false);
  disk_allow_ahead (d);
  begin_order ();
  await_ahead ();
  for (unsigned i = 3; i < CLUSTERS; i++) {
    read_cluster (i);
    s = stats ();
    CHECK (s.ahead <= s.ahead_hits + MOST_AHEAD + i / 8);
    CHECK (threads () < threads_before + load.processors);
  }
  s = stats ();
  CHECK (s.ahead_hits > 0);
  /* None twice, unless its reader overtook a thread. */
  CHECK (s.inflations == CLUSTERS + s.ahead - s.ahead_hits);
  CHECK (s.bytes <= 2 * MOST_AHEAD * CS);
  close_disk ();
}

/* The same with small requests. */
static void
test_small (void)
{
  open_disk (false);
  disk_allow_ahead (d);
  for (uint64_t at = 0; at < SIZE; at += 4096) {
    CHECK (export_read (client, buf + at, 4096, at) == 0);
    if (at == 4 * CS)
      await_ahead ();
  }
  for (unsigned i = 0; i < CLUSTERS; i++)
    CHECK (has (buf + i * CS, i, 0));
  CHECK (stats ().ahead_hits > 0);
  CHECK (stats ().inflations == CLUSTERS + stats ().ahead - stats ().ahead_hits);
  close_disk ();
}

/* One request over many clusters has help, but nothing after it is read. */
static void
test_large (void)
{
  open_disk (false);
  disk_allow_ahead (d);
  read_cluster (200);           /* and its table */
  patient = true;
  CHECK (export_read (client, buf, 16 * CS, 32 * CS) == 0);
  patient = false;
  for (unsigned i = 0; i < 16; i++)
    CHECK (has (buf + i * CS, 32 + i, 0));
  CHECK (stats ().ahead_hits > 0);
  CHECK (stats ().inflations == 17 + stats ().ahead - stats ().ahead_hits);
  close_disk ();
}

/* --- nothing is read ahead --- */

static void
test_random (void)
{
  await_end ();
  open_disk (false);
  disk_allow_ahead (d);
  for (unsigned i = 0; i < CLUSTERS; i++)
    read_cluster (i * 77 % CLUSTERS);
  CHECK (stats ().ahead == 0 && stats ().inflations == CLUSTERS && stats ().hits == 0);
  close_disk ();

  /* Two that are adjacent mean nothing. */
  open_disk (false);
  disk_allow_ahead (d);
  for (unsigned i = 0; i < CLUSTERS; i++)
    read_cluster (i / 2 * 45 % (CLUSTERS / 2) * 2 + i % 2);
  CHECK (stats ().ahead == 0 && stats ().inflations == CLUSTERS);
  CHECK (threads () == threads_before);
  close_disk ();
}

static void
test_none (void)
{
  for (unsigned i = 0; i < CLUSTERS; i++)
    read_cluster (i);
  CHECK (stats ().ahead == 0 && stats ().inflations == CLUSTERS);
  CHECK (threads () == threads_before);
  close_disk ();
}

static void
test_not_allowed (void)
{
  open_disk (false);
  test_none ();
}

static void
test_one_processor (void)
{
  load.processors = 1;
  open_disk (false);
  disk_allow_ahead (d);
  test_none ();
  load.processors = 4;
}

static void
test_busy (void)
{
  load.readers = 3;
  open_disk (false);
  disk_allow_ahead (d);
  for (unsigned i = 0; i < CLUSTERS; i++)
    read_cluster (i);
  CHECK (stats ().ahead == 0);
  load.readers = 0;
  close_disk ();
}

/* --- faults --- */

static void
test_faults (void)
{
  open_disk (false);
  disk_allow_ahead (d);
  failing = true;
  begin_order ();
  await_ahead ();
  for (unsigned i = 3; i < CLUSTERS; i++)
    read_cluster (i);
  failing = false;
  CHECK (error_count () == 0 && stats ().ahead > 0);
  close_disk ();
}

/* A reader that has to wait takes the next work itself.  If what it waited for cannot be
 * loaded, it tries that, too. */
static void *
read_waiting (void *arg)
{
  (void) arg;
  is_client = true;
  read_cluster (3);
  read_cluster (4);
  return NULL;
}

static void
test_waiting (void)
{
  pthread_t t;

  load.processors = 2;
  open_disk (false);
  disk_allow_ahead (d);
  held = failing = true;
  begin_order ();
  await_ahead ();
  CHECK (stats ().ahead == 1);
  CHECK (pthread_create (&t, NULL, read_waiting, NULL) == 0);
  while (stats ().waits == 0)
    sched_yield ();
  CHECK (stats ().ahead == 2 && ahead_reads == 1);
  held = false;
  CHECK (pthread_join (t, NULL) == 0);
  failing = false;
  CHECK (error_count () == 0);
  close_disk ();
  load.processors = 4;
}

/* A reader that waits for a cluster here is not to wait for one that is far. */
static void
test_remote (void)
{
  char *const below = path;
  pthread_t t;

  path = images_path ("over.qcow2");
  make_image ("a.qcow2", 5);
  load.processors = 2;
  open_disk (false);
  disk_allow_ahead (d);
  held = failing = true;
  begin_order ();
  await_ahead ();
  pretended = true;
  CHECK (pthread_create (&t, NULL, read_waiting, NULL) == 0);
  while (stats ().waits == 0)
    sched_yield ();
  CHECK (stats ().ahead == 1);
  held = false;
  CHECK (pthread_join (t, NULL) == 0);
  failing = pretended = false;
  CHECK (error_count () == 0);
  close_disk ();
  load.processors = 4;
  free (path);
  path = below;
}

/* The client that reads a damaged cluster is told; nobody else is. */
static void
damage (unsigned cluster)
{
  const struct view *v = disk_inside (d).view;
  const int fd = open (path, O_RDWR);
  uint64_t host, bytes;
  struct run run;

  CHECK (fd >= 0 && l2_lookup (v->w->l2, cluster * CS, CS, &run) == 0 &&
         run.kind == RUN_COMPRESSED &&
         compress_descriptor (&v->image->header, run.host, &host, &bytes));
  CHECK (pwrite (fd, "\377\377\377\377", 4, host) == 4);
  close (fd);
}

static void
test_damage (void)
{
  open_disk (true);
  disk_allow_ahead (d);
  for (unsigned i = 3; i < CLUSTERS; i++)
    damage (i);
  begin_order ();
  await_ahead ();
  while (loading > 0 || load.working > 0)
    sched_yield ();
  CHECK (error_count () == 0 && stats ().ahead > 0);
  quiet_errors = true;
  for (unsigned i = 3; i < CLUSTERS; i++) {
    CHECK (export_read (client, buf, CS, i * CS) == -1 && errno == EIO);
    CHECK (error_count () == i - 2);
  }
  quiet_errors = false;
  CHECK (export_write (client, buf, 4096, 0, true) == 0);
  CHECK (error_count () == CLUSTERS - 3);
  close_disk ();
  CHECK (remove (path) == 0);
  make_image (NULL, CLUSTERS);
}

/* The same for an entry of an L2 table that makes the image corrupt.  Nobody reads that
 * cluster, so the image stays as it is. */
static void
test_corrupt (void)
{
  const int fd = open (path, O_RDWR);
  const unsigned long errors = error_count ();
  struct be64 entry;
  uint64_t l1, l2;

  CHECK (fd >= 0 && pread (fd, &entry, 8, 40) == 8);
  l1 = get64 (entry);
  CHECK (pread (fd, &entry, 8, l1) == 8);
  l2 = (get64 (entry) & QCOW2_L1_OFFSET_MASK) + 6 * 8;
  CHECK (pread (fd, &entry, 8, l2) == 8);
  entry = put64 (QCOW2_OFLAG_COPIED | l1);
  CHECK (pwrite (fd, &entry, 8, l2) == 8);
  close (fd);

  open_disk (true);
  disk_allow_ahead (d);
  begin_order ();
  await_ahead ();
  read_cluster (3);
  while (stats ().ahead < 5)    /* then one after it was begun */
    sched_yield ();
  CHECK (error_count () == errors);
  CHECK (export_write (client, buf, 4096, 100 * CS, true) == 0);
  close_disk ();
  CHECK (remove (path) == 0);
  make_image (NULL, CLUSTERS);
}

/* --- threads end --- */

static void
child (void)
{
  ahead_reads = 0;
  begin_order ();
  await_ahead ();
  CHECK (disk_close (d) == 0);
  _exit (0);
}

static void
test_end (void)
{
  int status;
  pid_t pid;

  open_disk (false);
  disk_allow_ahead (d);
  held = true;
  begin_order ();
  await_ahead ();
  CHECK (loading > 0);
  disk_end_ahead (d);
  CHECK (loading == 0);
  held = false;
  await_end ();

  if (!WITH_TSAN) {
    pid = fork ();
    if (pid == 0)
      child ();
    CHECK (waitpid (pid, &status, 0) == pid && status == 0);
  }
  close_disk ();
}

/* The disk comes to rest without waiting for what a thread reads. */
static void
test_rest (void)
{
  struct export *reader;

  open_disk (true);
  disk_allow_ahead (d);
  CHECK ((reader = export_open (d, "", false)) != NULL);
  held = true;
  begin_order ();
  await_ahead ();
  CHECK (export_close (client) == 0);
  CHECK (loading == 0);
  await_end ();
  held = false;
  client = reader;
  ahead_reads = 0;
  begin_order ();
  await_ahead ();
  close_disk ();
}

static struct alloc_stats
alloc_stats (void)
{
  struct disk_stats s;

  disk_get_stats (d, &s);
  return s.alloc;
}

/* R4: between the lookup and the reading, freed clusters are not reused. */
static void
test_pin (void)
{
  open_disk (true);
  disk_allow_ahead (d);
  looked_up = 0;
  stopped = true;
  begin_order ();
  while (looked_up == 0)
    sched_yield ();
  CHECK (export_trim (client, SIZE, 0, false) == 0);
  for (unsigned i = 0; i < 3; i++)
    CHECK (export_flush (client) == 0);
  CHECK (alloc_stats ().punched == 0);
  stopped = false;
  while (alloc_stats ().punched == 0)
    CHECK (export_write (client, buf, 4096, SIZE - CS, false) == 0 &&
           export_flush (client) == 0);
  close_disk ();
  CHECK (remove (path) == 0);
  make_image (NULL, CLUSTERS);
}

/* When the disk has become writable, no thread looks at the view of readers before. */
static void
test_old_view (void)
{
  struct export *writer;
  struct run run;

  open_disk (false);
  disk_allow_ahead (d);
  load.readers = 3;             /* no processor is left */
  begin_order ();
  CHECK ((writer = export_open (d, "", true)) != NULL);
  CHECK (l2_lookup (disk_inside (d).view->w->l2, 4 * CS, CS, &run) == 0 &&
         run.kind == RUN_COMPRESSED);
  watched = run.host;
  watched_seen = 0;
  CHECK (export_trim (writer, 100 * CS, 0, true) == 0);
  load.readers = 0;
  ahead_reads = 0;
  for (unsigned i = 120; i < CLUSTERS; i++) {
    read_cluster (i);
    if (i == 122)
      await_ahead ();
  }
  CHECK (stats ().ahead > 0 && watched_seen == 0);
  CHECK (export_close (writer) == 0);
  close_disk ();
  CHECK (remove (path) == 0);
  make_image (NULL, CLUSTERS);
}

/* What is written ahead of the reader is what it reads, also if it came before the disk
 * became writable. */
static void
test_writer (void)
{
  static unsigned char data[CS];
  struct export *writer;

  open_disk (false);
  disk_allow_ahead (d);
  begin_order ();
  await_ahead ();
  CHECK ((writer = export_open (d, "", true)) != NULL);
  for (unsigned i = 3; i < CLUSTERS; i++) {
    fill (data, i, 1);
    CHECK (export_trim (writer, CS, i * CS, false) == 0);
    CHECK (export_write (writer, data, CS, i * CS, i % 8 == 0) == 0);
  }
  for (unsigned i = 3; i < CLUSTERS; i++) {
    CHECK (export_read (client, buf, CS, i * CS) == 0);
    CHECK (has (buf, i, 1));
  }
  CHECK (export_close (writer) == 0);
  close_disk ();
  CHECK (image_check ("a.qcow2") == 0);
}

int
main (void)
{
  is_client = true;
  threads_before = threads ();
  readahead_load_init (&load);
  CHECK (load.processors >= 1);
  load.processors = 4;
  images_enter ("readahead");
  path = images_path ("a.qcow2");
  make_image (NULL, CLUSTERS);

  test_in_order ();
  test_small ();
  test_large ();
  test_random ();
  test_not_allowed ();
  test_one_processor ();
  test_busy ();
  test_faults ();
  test_waiting ();
  test_remote ();
  test_end ();
  test_rest ();
  test_pin ();
  test_old_view ();
  CHECK (error_count () == 0);
  test_damage ();
  test_corrupt ();
  test_writer ();
  free (path);
  images_leave ();
  return 0;
}
