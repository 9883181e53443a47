/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Refcounts after a power cut at any write, with any part of the unsynced data lost: all
 * clusters that the file refers to are counted, and so are all refcounts that were
 * promised to be durable.  qemu-img agrees.
 */

#include <config.h>

#include <stdlib.h>
#include <string.h>

#include "util/bytes.h"
#include "space/refblock.h"
#include "lib/counts-model.h"

#define SCRATCH "scratch.qcow2"

/* --- what reaches the file --- */

struct op {
  enum storage_op op;
  uint64_t offset, count;
  unsigned char *data, *before;
  uint64_t promised;            /* of the model, at a sync: see below */
};

static struct op *ops;
static size_t nops;
static bool recording;

static int
before (void *opaque, const char *path, enum storage_op op,
        const struct iovec *iov, int niov, uint64_t offset, uint64_t count,
        bool dsync)
{
  struct op *o;
  unsigned char *p;

  (void) opaque; (void) path; (void) dsync;
  if (!recording || op == STORAGE_OP_READ || op == STORAGE_OP_ALLOCATE)
    return op == STORAGE_OP_SYNC;      /* the host need not sync for us */
  ops = realloc (ops, (nops + 1) * sizeof *ops);
  CHECK (ops);
  o = &ops[nops++];
  *o = (struct op) { .op = op, .offset = offset, .count = count,
                     .promised = promised };
  if (op == STORAGE_OP_WRITE) {
    o->data = p = malloc (count);
    CHECK (p);
    for (int i = 0; i < niov; i++) {
      memcpy (p, iov[i].iov_base, iov[i].iov_len);
      p += iov[i].iov_len;
    }
    CHECK (p == o->data + count);
  }
  return op == STORAGE_OP_SYNC;
}

static void
forget_ops (void)
{
  for (size_t i = 0; i < nops; i++)
    free (ops[i].data);
  free (ops);
  ops = NULL;
  nops = 0;
}

static const struct storage_hooks hooks = { .before = before };

/* --- the file as it is in memory --- */

static unsigned char *disk;
static uint64_t disk_size;

static void
disk_reserve (uint64_t size)
{
  if (size > disk_size) {
    disk = realloc (disk, size);
    CHECK (disk);
    memset (disk + disk_size, 0, size - disk_size);
    disk_size = size;
  }
}

static void
disk_load (void)
{
  struct blob b;

  blob_load (IMAGE, &b);
  disk_size = 0;
  disk_reserve (b.len);
  memcpy (disk, b.data, b.len);
  blob_free (&b);
}

static uint64_t
disk_u64 (uint64_t offset)
{
  struct be64 x;

  CHECK (offset + 8 <= disk_size);
  memcpy (&x, disk + offset, 8);
  return get64 (x);
}

/* The count of a cluster as a new reader of the file would see it. */
static uint64_t
disk_count (uint64_t cluster)
{
  const unsigned order = header.refcount_order;
  const unsigned block_bits = bits + 3 - order;
  const uint64_t table = disk_u64 (48);
  const uint64_t entries = (disk_u64 (56) >> 32) << bits >> 3;
  const uint64_t index = cluster >> block_bits;
  uint64_t block;

  if (index >= entries || table + index * 8 >= disk_size)
    return 0;
  block = disk_u64 (table + index * 8);
  if (block == 0 || block + (UINT64_C (1) << bits) > disk_size)
    return 0;
  return refblock_get (disk + block, order,
                       cluster & ((UINT64_C (1) << block_bits) - 1));
}

/* Everything that the file refers to has a count, and so has what was promised. */
static void
disk_check (const uint64_t promise)
{
  const uint64_t table = disk_u64 (48);
  uint64_t clusters = disk_u64 (56) >> 32;

  CHECK (disk_count (0) == 1);
  for (uint64_t i = 0; i < clusters; i++)
    CHECK (disk_count ((table >> bits) + i) >= 1);
  for (uint64_t i = 0; i < clusters << bits >> 3; i++) {
    const uint64_t block = disk_u64 (table + i * 8);

    if (block != 0) {
      CHECK ((block & ((UINT64_C (1) << bits) - 1)) == 0);
      CHECK (block < disk_size);
      CHECK (disk_count (block >> bits) >= 1);
    }
  }
  for (uint64_t i = 0; i < promise; i++)
    if (model[i] != 0)
      CHECK (disk_count (i) >= 1);
}

static void
disk_judge (void)
{
  const struct blob b = { disk, disk_size };

  blob_save (SCRATCH, &b);
  check_counts_image (SCRATCH);
}

/* Some pieces of it reach the disk, others don't.  They are smaller than
 * sectors, so that more can go wrong.
 */
#define PIECE 64/* Some pieces of it reach the disk, others don't.  They are smaller than
 * sectors, so that more can go wrong.
 */
#define PIECE 64

static void
apply_in_part (struct op *o)
{
  disk_reserve (round_up (o->offset + o->count, 512));
  o->before = malloc (o->count);
  CHECK (o->before);
  memcpy (o->before, disk + o->offset, o->count);
  for (uint64_t at = o->offset; at < o->offset + o->count; ) {
    const uint64_t end = min64 (o->offset + o->count,
                                round_down (at, PIECE) + PIECE);

    if (rng_below (&rng, 2))
      memcpy (disk + at, o->data + (at - o->offset), end - at);
    at = end;
  }
}

static void
undo (struct op *o)
{
  memcpy (disk + o->offset, o->before, o->count);
  free (o->before);
}

/* Plays all that was recorded.  Before every sync, writes all that came
 * since the last one in part.
 */
static void
crash_everywhere (void)
{
  const size_t every = nops / 12 + 1;
  size_t done = 0;

  for (size_t i = 0; i <= nops; i++) {
    const uint64_t promise = done ? ops[done - 1].promised : 0;

    /* In order up to here: a process that was killed. */
    if (i < nops && ops[i].op == STORAGE_OP_SYNC)
      for (int round = 0; round < 5; round++) {
        const uint64_t saved_size = disk_size;

        for (size_t k = done; k < i; k++)
          if (ops[k].op == STORAGE_OP_WRITE)
            apply_in_part (&ops[k]);
        disk_check (promise);
        if (round == 0 && i % every == 0)
          disk_judge ();
        for (size_t k = i; k-- > done; )
          if (ops[k].op == STORAGE_OP_WRITE)
            undo (&ops[k]);
        disk_size = saved_size;
      }
    if (i == nops || ops[i].op == STORAGE_OP_SYNC) {
      for (size_t k = done; k < i; k++)
        if (ops[k].op == STORAGE_OP_WRITE) {
          disk_reserve (ops[k].offset + ops[k].count);
          memcpy (disk + ops[k].offset, ops[k].data, ops[k].count);
          disk_check (promise);
        }
      done = i + 1;
    }
  }
  disk_judge ();
}

static void
test_crash (unsigned cluster_size, unsigned refcount_bits)
{
  create_counts (cluster_size, refcount_bits);
  disk_load ();
  open_counts (IMAGE, &hooks);
  read_model ();
  recording = true;
  promised = 0;
  scenario ();
  recording = false;
  crash_everywhere ();
  forget_ops ();
  close_counts ();
}

int
main (void)
{
  rng_init (&rng, seed_from_env (), 0);
  images_enter ("refcount-crash");
  for (int i = 0; i < 2; i++) {
    test_crash (512, 64);
    test_crash (512, 16);
  }
  test_crash (4096, 1);
  test_crash (4096, 16);
  free (disk);
  images_leave ();
  return 0;
}
