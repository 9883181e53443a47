/* SPDX-License-Identifier: BSD-3-Clause
 *
 * A flush moves the refcount table, and loses no clusters:
 *
 *    When it has ended, an image of version 2 says that the clusters of the old table are
 *    free: no start would give them back.
 *    Nor are those of other clients lost that write meanwhile: a server that is killed
 *    when it has answered all requests leaks at most 1 MiB.
 *    If these make the table grow once more, or twice, nothing is leaked in the end, in
 *    any version.
 *    The first promise holds for all clients whose flushes are the same checkpoint.
 */

#include <config.h>

#include <inttypes.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "util/bytes.h"
#include "util/clock.h"
#include "storage/storage.h"
#include "space/refcount.h"
#include "disk/export.h"
#include "lib/images.h"
#include "lib/survivor.h"
#include "lib/trials.h"

#define IMAGE "a.qcow2"
#define CLUSTER UINT64_C (512)
#define SIZE (UINT64_C (64) << 20)
#define MB (UINT64_C (1) << 20)

struct situation {
  int version;
  unsigned refcount_bits;
  uint64_t flushed, written;    /* before the flush */
  uint64_t meanwhile;           /* during its first sync */
  bool bounded;
};

static const struct situation situations[] = {
  { 2, 16, 0, 9 * MB, 0, true },
  { 2, 16, 7 * MB, 2 * MB, 6 * MB, true },
  { 2, 16, 0, 9 * MB, 8 * MB, true },
  { 2, 16, 6 * MB, MB, 30 * MB, false },
  { 3, 64, MB, 7 * MB, 24 * MB, false },
};

static struct disk *d;
static struct export *client;
static char buf[30 * MB];
static uint64_t at, meanwhile;
static uint64_t tables[64];     /* places of the table, as the syncs saw it */
static unsigned nr_tables;

static void
look_for_table (void)
{
  unsigned char field[8];
  uint64_t place = 0;
  FILE *f = fopen (IMAGE, "r");

  CHECK (f && fseek (f, 48, SEEK_SET) == 0 && fread (field, 1, 8, f) == 8);
  fclose (f);
  for (unsigned i = 0; i < 8; i++)
    place = place << 8 | field[i];
  if (nr_tables > 0 && tables[nr_tables - 1] == place)
    return;
  CHECK (nr_tables < sizeof tables / sizeof tables[0]);
  tables[nr_tables++] = place;
}

/* --- two that flush at the same time --- */

#define SHARED_BY 2
static pthread_t sharing[SHARED_BY];
static bool share;              /* in the next sync */
static bool shared;
static atomic_uint returned;

static void *flush_and_look (void *);

static unsigned
flushes (void)
{
  struct disk_stats stats;

  disk_get_stats (d, &stats);
  return stats.checkpoint.flushes;
}

/* They wait for the checkpoint after this one, which moves the table. */
static void
begin_sharing (void)
{
  const unsigned before = flushes ();

  CHECK (export_write (client, buf, 9 * MB, 0, false) == 0);
  shared = true;
  for (unsigned i = 0; i < SHARED_BY; i++)
    CHECK (pthread_create (&sharing[i], NULL, flush_and_look, NULL) == 0);
  while (flushes () < before + SHARED_BY)
    sched_yield ();
}

/* One of them writes the counts of the old table.  Does the other one return meanwhile?
 * (It is given a moment for that.) */
static void
let_others_return (void)
{
  const int64_t deadline = clock_ms () + 50;

  while (returned == 0 && clock_ms () < deadline)
    sched_yield ();
}

extern int __real_refcount_write (struct refcounts *, struct refcount_moved *);
extern int __wrap_refcount_write (struct refcounts *, struct refcount_moved *);

int
__wrap_refcount_write (struct refcounts *r, struct refcount_moved *moved)
{
  if (shared && nr_tables > 1)
    let_others_return ();
  return __real_refcount_write (r, moved);
}

extern int __real_storage_sync (struct storage *);
extern int __wrap_storage_sync (struct storage *);

int
__wrap_storage_sync (struct storage *s)
{
  const uint64_t now = meanwhile;

  look_for_table ();
  if (share) {
    share = false;
    begin_sharing ();
  }
  meanwhile = 0;
  if (now > 0)
    CHECK (export_write (client, buf, now, at, false) == 0);
  return __real_storage_sync (s);
}

/* A field of the image. */
static uint64_t
number (const struct blob *b, uint64_t where, unsigned bytes)
{
  uint64_t v = 0;

  CHECK (where + bytes <= b->len);
  while (bytes-- > 0)
    v = v << 8 | b->data[where++];
  return v;
}

static uint64_t
table_of (const struct blob *b)
{
  return number (b, 48, 8);
}

/* Of a cluster, with refcounts of 16 bits. */
static uint64_t
count_of (const struct blob *b, uint64_t offset)
{
  const uint64_t cluster = offset / CLUSTER, in_block = CLUSTER / 2;
  const uint64_t block = number (b, table_of (b) + cluster / in_block * 8, 8);

  return number (b, block + cluster % in_block * 2, 2);
}

/* What is in the file now is what a killed server would leave. */
static uint64_t
leaked (void)
{
  struct blob b;
  uint64_t leaks;

  blob_load (IMAGE, &b);
  leaks = survivor_check (&b, true, "now");
  blob_free (&b);
  return leaks * CLUSTER;
}

static void
check_old_tables (void)
{
  struct blob b;

  blob_load (IMAGE, &b);
  for (unsigned i = 0; i < nr_tables; i++)
    if (tables[i] != table_of (&b) && count_of (&b, tables[i]) != 0)
      FAIL ("the old table at %" PRIu64 " is in use", tables[i]);
  blob_free (&b);
}

/* Makes an image, and connects a client.  Returns its path, to be freed. */
static char *
begin (int version, unsigned refcount_bits)
{
  const struct image_spec spec = {
    .version = version, .cluster_size = CLUSTER, .refcount_bits = refcount_bits,
    .size = SIZE,
  };
  char *path = images_path (IMAGE);
  const struct disk_options options = {
    .path = path, .l2_cache = SIZE, .l2_slice = CLUSTER,
  };

  nr_tables = 0;
  image_create (IMAGE, &spec);
  CHECK (disk_open (&options, &d) == 0);
  CHECK ((client = export_open (d, "", true)) != NULL);
  return path;
}

/* Nothing is leaked in the end. */
static void
end (char *path)
{
  CHECK (export_close (client) == 0);
  CHECK (disk_close (d) == 0);
  if (leaked () > 0)
    FAIL ("%u KiB leaked in the end", (unsigned) (leaked () >> 10));
  CHECK (image_check (IMAGE) == 0);
  free (path);
}

static void
test (const struct situation *s)
{
  char *path = begin (s->version, s->refcount_bits);
  uint64_t old;
  struct blob b;

  if (s->flushed > 0) {
    CHECK (export_write (client, buf, s->flushed, 0, false) == 0);
    CHECK (export_flush (client) == 0);
  }
  blob_load (IMAGE, &b);
  old = table_of (&b);
  blob_free (&b);

  CHECK (export_write (client, buf, s->written, s->flushed, false) == 0);
  at = s->flushed + s->written;
  meanwhile = s->meanwhile;
  CHECK (export_flush (client) == 0);
  CHECK (meanwhile == 0);

  blob_load (IMAGE, &b);
  CHECK (table_of (&b) != old || !s->bounded);
  blob_free (&b);
  if (s->bounded)
    check_old_tables ();
  if (leaked () > MB && s->bounded)
    FAIL ("%u KiB leaked", (unsigned) (leaked () >> 10));
  end (path);
}

static void *
flush_and_look (void *unused)
{
  CHECK (export_flush (client) == 0);
  returned++;
  check_old_tables ();
  return unused;
}

static void
test_shared (void)
{
  char *path = begin (2, 16);

  share = true;
  CHECK (export_flush (client) == 0);
  CHECK (shared);
  for (unsigned i = 0; i < SHARED_BY; i++)
    CHECK (pthread_join (sharing[i], NULL) == 0);
  CHECK (nr_tables > 1);
  shared = false;
  end (path);
}

int
main (void)
{
  images_enter ("table-moved");
  memset (buf, 'a', sizeof buf);
  for (size_t i = 0; i < sizeof situations / sizeof situations[0]; i++)
    test (&situations[i]);
  test_shared ();
  images_leave ();
  return 0;
}
