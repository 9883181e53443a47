/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Refcounts: against a model, with all widths; after ENOSPC at every write; and
 * after a crash at every write, with any part of the unsynced sectors lost.
 * qemu-img makes the images and judges them: leaks are fine here (nothing points
 * to the clusters that we count), corruption is not.
 */

#include <config.h>

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "util/bytes.h"
#include "storage/hostfile.h"
#include "format/header.h"
#include "format/overlap.h"
#include "space/refblock.h"
#include "space/refcount.h"
#include "lib/stubs.h"

static char dir[4096], image[4200], scratch[4200];
static struct rng rng;

static int
run (const char *fmt, const char *a, const char *b)
{
  char cmd[10000];
  int r;

  snprintf (cmd, sizeof cmd, fmt, a, b);
  r = system (cmd);
  CHECK (r != -1 && WIFEXITED (r));
  return WEXITSTATUS (r);
}

/* Clean (0) or leaks only (3). */
static void
check_image (const char *path)
{
  int r = run ("qemu-img check -q -f qcow2 '%s' >'%s/check.log' 2>&1",
               path, dir);

  if (r != 0 && r != 3) {
    run ("tail -n 20 '%s/check.log'; ls -l '%s' >&2", dir, path);
    fprintf (stderr, "qemu-img check: %d\n", r);
    abort ();
  }
}

static void
create_image (unsigned cluster_size, unsigned refcount_bits)
{
  char options[100];

  snprintf (options, sizeof options, "cluster_size=%u,refcount_bits=%u",
            cluster_size, refcount_bits);
  CHECK (run ("qemu-img create -q -f qcow2 -o %s '%s' 1M", options,
              image) == 0);
}

/* --- what reaches the file --- */

struct op {
  enum hostfile_op op;
  uint64_t offset, count;
  unsigned char *data, *before;
  uint64_t promised;            /* of the model, at a sync: see below */
};

static struct op *ops;
static size_t nops, fail_at, nwrites;
static int fail_reads;          /* errno, or 0 */
static bool recording;
static uint64_t promised;

static int
before (void *opaque, const char *path, enum hostfile_op op,
        const struct iovec *iov, int niov, uint64_t offset, uint64_t count,
        bool dsync)
{
  struct op *o;
  unsigned char *p;

  (void) opaque; (void) path; (void) dsync;
  if (op == HOSTFILE_OP_READ && fail_reads) {
    errno = fail_reads;
    return -1;
  }
  if (op == HOSTFILE_OP_WRITE && ++nwrites == fail_at) {
    errno = ENOSPC;
    return -1;
  }
  if (!recording || op == HOSTFILE_OP_READ || op == HOSTFILE_OP_ALLOCATE)
    return op == HOSTFILE_OP_SYNC;      /* the host need not sync for us */
  ops = realloc (ops, (nops + 1) * sizeof *ops);
  CHECK (ops);
  o = &ops[nops++];
  *o = (struct op) { .op = op, .offset = offset, .count = count,
                     .promised = promised };
  if (op == HOSTFILE_OP_WRITE) {
    o->data = p = malloc (count);
    CHECK (p);
    for (int i = 0; i < niov; i++) {
      memcpy (p, iov[i].iov_base, iov[i].iov_len);
      p += iov[i].iov_len;
    }
    CHECK (p == o->data + count);
  }
  return op == HOSTFILE_OP_SYNC;
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

static const struct hostfile_hooks hooks = { .before = before };

/* --- memory that fails (the linker's --wrap) --- */

static bool no_memory;

extern void *__real_calloc (size_t, size_t);
extern void *__wrap_calloc (size_t, size_t);

void *
__wrap_calloc (size_t n, size_t size)
{
  if (no_memory) {
    errno = ENOMEM;
    return NULL;
  }
  return __real_calloc (n, size);
}

/* --- the image under test --- */

struct fixture {
  struct hostfile *file;
  struct header header;
  struct overlap *overlap;
  struct refcounts *refcounts;
  unsigned bits;
};

static void
open_image (struct fixture *f)
{
  const struct hostfile_options options = {
    .try_writable = true, .hooks = &hooks,
  };
  unsigned char *buf;
  uint64_t len;

  CHECK (hostfile_open (image, &options, &f->file) == 0);
  len = min64 (hostfile_size (f->file), HEADER_READ_SIZE);
  buf = malloc (len);
  CHECK (buf && hostfile_read (f->file, buf, len, 0) == 0);
  CHECK (header_parse (image, buf, len, hostfile_size (f->file),
                       &f->header) == 0);
  free (buf);
  f->bits = f->header.cluster_bits;
  f->overlap = overlap_new (f->bits);
  CHECK (f->overlap);
  CHECK (overlap_add (f->overlap, f->header.l1_offset,
                      f->header.l1_entries * 8, OVERLAP_L1) == 0);
  f->refcounts = refcount_open (f->file, &f->header, f->overlap);
  CHECK (f->refcounts);
}

static void
close_image (struct fixture *f)
{
  refcount_close (f->refcounts);
  overlap_free (f->overlap);
  header_free (&f->header);
  hostfile_close (f->file);
}

/* --- the model: the counts that we expect --- */

#define MAX_MODEL 70000
static uint64_t model[MAX_MODEL];
static uint64_t model_end;      /* clusters */
static uint64_t table_first, table_n;   /* a new table, not written yet */

/* Clusters that are set aside for the next refcount blocks, as the allocator does. */
static bool set_aside;
static uint64_t spare_first, spare_n;

static void
read_model (struct fixture *f)
{
  CHECK (refcount_end (f->refcounts, &model_end) == 0);
  CHECK (model_end < MAX_MODEL);
  spare_n = 0;
  for (uint64_t i = 0; i < model_end; i++)
    CHECK (refcount_get (f->refcounts, i, &model[i]) == 0);
  memset (model + model_end, 0, (MAX_MODEL - model_end) * sizeof model[0]);
}

static void
compare_model (struct fixture *f)
{
  uint64_t value, last = 0, end;

  for (uint64_t i = 0; i < MAX_MODEL; i++) {
    CHECK (refcount_get (f->refcounts, i, &value) == 0);
    CHECK (value == model[i]);
    if (value)
      last = i + 1;
  }
  CHECK (refcount_end (f->refcounts, &end) == 0);
  CHECK (end == last);
}

/* New metadata in the clusters from PLACE on. */
static void
note_metadata (struct fixture *f, uint64_t place, uint64_t n)
{
  for (uint64_t i = 0; i < n; i++) {
    const enum overlap_kind kind =
      overlap_find (f->overlap, (place + i) << f->bits, 1);

    CHECK (kind == OVERLAP_REFTABLE || kind == OVERLAP_REFBLOCK);
    if (i == 0 && kind == OVERLAP_REFTABLE) {
      /* It takes the place of one that was never written. */
      for (uint64_t k = 0; k < table_n; k++)
        model[table_first + k]--;
      table_first = place;
      table_n = 0;
    }
    table_n += kind == OVERLAP_REFTABLE;
    model[place + i] = 1;
  }
}

/* Makes N more clusters countable at the end and takes them. */
static uint64_t
grow (struct fixture *f, uint64_t n)
{
  uint64_t used, first, place = spare_n > 0 ? spare_first : model_end;

  if (set_aside)
    n += rng_below (&rng, 200);
  CHECK (model_end + n < MAX_MODEL);
  CHECK (refcount_extend_cost (f->refcounts, place, model_end, n, &used) == 0);
  if (place < model_end && used > spare_n)
    place = model_end;
  CHECK (refcount_extend (f->refcounts, place, model_end, n, &used) == 0);
  CHECK (model_end + used + n < MAX_MODEL);
  note_metadata (f, place, used);
  first = place == model_end ? model_end + used : model_end;
  CHECK (refcount_claim (f->refcounts, first, n) == 0);
  for (uint64_t i = 0; i < n; i++)
    model[first + i] = 1;
  model_end = first + n;
  if (set_aside) {
    spare_n = rng_below (&rng, n);
    spare_first = model_end - spare_n;
  }
  return first;
}

/* Writes, syncs, and lets go of the table that was left behind. */
static int
write_counts (struct fixture *f)
{
  struct refcount_moved moved;
  uint64_t end = model_end;

  if (refcount_write (f->refcounts, &moved) == -1)
    return -1;
  promised = end;
  table_n = 0;
  CHECK (hostfile_sync (f->file) == 0);
  if (moved.n > 0) {
    overlap_remove (f->overlap, moved.first << f->bits, moved.n << f->bits);
    CHECK (refcount_dec (f->refcounts, moved.first, moved.n, NULL, NULL) == 0);
    for (uint64_t i = 0; i < moved.n; i++)
      model[moved.first + i]--;
  }
  return 0;
}

static void
write_all (struct fixture *f)
{
  while (refcount_is_dirty (f->refcounts))
    CHECK (write_counts (f) == 0);
}

/* --- tests --- */

static void
test_bits (void)
{
  unsigned char raw[512];
  uint64_t values[4096];

  for (unsigned order = 0; order <= 6; order++) {
    const unsigned n = 4096 >> order;
    const uint64_t max = order == 6 ? UINT64_MAX
                                    : (UINT64_C (1) << (1 << order)) - 1;
    uint64_t i, zero, last = 0;

    memset (raw, 0, sizeof raw);
    memset (values, 0, sizeof values);
    CHECK (refblock_end (raw, order, sizeof raw) == 0);
    for (unsigned k = 0; k < n * 2; k++) {
      i = rng_below (&rng, n);
      values[i] = rng_next (&rng) & max;
      refblock_set (raw, order, i, values[i]);
    }
    for (i = 0; i < n; i++) {
      CHECK (refblock_get (raw, order, i) == values[i]);
      if (values[i])
        last = i + 1;
    }
    CHECK (refblock_end (raw, order, sizeof raw) == last);
    for (i = 0; i < n; i++) {
      for (zero = i; zero < n && values[zero] != 0; zero++)
        ;
      CHECK (refblock_find_zero (raw, order, i, n) == zero);
    }
    memset (raw, 0xff, sizeof raw);
    CHECK (refblock_find_zero (raw, order, 0, n) == n);
    refblock_set (raw, order, n - 1, 0);
    CHECK (refblock_find_zero (raw, order, 3, n) == n - 1);
  }

  /* The layout in the file: lowest index in the lowest bits, then big-endian. */
  memset (raw, 0, sizeof raw);
  refblock_set (raw, 0, 9, 1);
  CHECK (raw[1] == 0x02);
  refblock_set (raw, 2, 4, 0xa);
  refblock_set (raw, 2, 5, 0x5);
  CHECK (raw[2] == 0x5a);
  refblock_set (raw, 4, 4, 0x1234);
  CHECK (raw[8] == 0x12 && raw[9] == 0x34);
}

static uint64_t freed_first[MAX_MODEL], freed_n[MAX_MODEL];
static size_t nfreed;

static void
freed (void *opaque, uint64_t first, uint64_t n)
{
  (void) opaque;
  freed_first[nfreed] = first;
  freed_n[nfreed++] = n;
}

static void
random_step (struct fixture *f, uint64_t base)
{
  const uint64_t max = refcount_max (f->refcounts);
  const uint64_t first = base + rng_below (&rng, model_end - base);
  const uint64_t n = 1 + rng_below (&rng, min64 (200, model_end - first));
  bool fits = true;
  uint64_t i, found, len, next;
  int r;

  switch (rng_below (&rng, 8)) {
  case 0: case 1: case 2:
    for (i = 0; i < n; i++)
      fits &= model[first + i] < max;
    r = refcount_inc (f->refcounts, first, n);
    CHECK (r == 0 ? fits : (!fits && errno == EOVERFLOW));
    for (i = 0; r == 0 && i < n; i++)
      model[first + i]++;
    break;
  case 3: case 4: case 5:
    for (i = 0; i < n; i++)
      fits &= model[first + i] > 0 &&
        overlap_find (f->overlap, (first + i) << f->bits, 1) == OVERLAP_NONE;
    if (!fits && rng_below (&rng, 2))
      break;
    for (i = 0; i < n; i++)     /* never touch metadata */
      if (overlap_find (f->overlap, (first + i) << f->bits, 1) != OVERLAP_NONE)
        return;
    nfreed = 0;
    r = refcount_dec (f->refcounts, first, n, freed, NULL);
    CHECK (r == 0 ? fits : (!fits && errno == EUCLEAN && nfreed == 0));
    for (i = 0; r == 0 && i < n; i++)
      model[first + i]--;
    /* The parts that became free, each as long as can be. */
    for (i = 0; i < nfreed; i++) {
      const uint64_t end = freed_first[i] + freed_n[i];

      for (uint64_t c = freed_first[i]; c < end; c++)
        CHECK (model[c] == 0);
      CHECK (freed_first[i] == first || model[freed_first[i] - 1] != 0);
      CHECK (end == first + n || model[end] != 0);
    }
    break;
  case 6:
    r = refcount_find_free (f->refcounts, first, model_end, 50, &found, &len,
                            &next);
    CHECK (r >= 0 && next > first && next <= model_end);
    for (i = first; i < (r ? found : next); i++)
      CHECK (model[i] != 0 ||
             overlap_find (f->overlap, i << f->bits, 1) != OVERLAP_NONE);
    for (i = 0; r == 1 && i < len; i++)
      CHECK (model[found + i] == 0);
    break;
  case 7:
    if (rng_below (&rng, 4) == 0)
      CHECK (write_counts (f) == 0);
    else if (model_end < 30000)
      grow (f, 1 + rng_below (&rng, 300));
    break;
  }
}

static void
test_widths (void)
{
  static const unsigned sizes[] = { 512, 4096, 65536 };

  for (unsigned s = 0; s < 3; s++)
    for (unsigned order = 0; order <= 6; order++) {
      struct fixture f;
      uint64_t base, used;

      create_image (sizes[s], 1 << order);
      open_image (&f);
      read_model (&f);
      base = grow (&f, 1000);
      for (int i = 0; i < 500; i++)
        random_step (&f, base);
      if (s == 0)
        grow (&f, 20000);
      write_all (&f);
      compare_model (&f);
      CHECK (hostfile_truncate (f.file, model_end << f.bits) == 0);
      close_image (&f);

      check_image (image);
      open_image (&f);
      compare_model (&f);
      /* Nothing to do for what can be counted already; too much is refused. */
      CHECK (refcount_extend (f.refcounts, model_end - 1, model_end - 1, 1,
                              &used) == 0 && used == 0);
      CHECK (refcount_extend (f.refcounts, model_end, model_end,
                              UINT64_C (1) << 57, &used) == -1);
      CHECK (errno == ENOSPC && !refcount_is_dirty (f.refcounts));
      close_image (&f);
    }
}

/* The file as it is in memory, for crashes. */
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
  FILE *fp = fopen (image, "rb");
  struct stat st;

  CHECK (fp && fstat (fileno (fp), &st) == 0);
  disk_size = 0;
  disk_reserve (st.st_size);
  CHECK (fread (disk, 1, disk_size, fp) == disk_size);
  fclose (fp);
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
disk_count (const struct fixture *f, uint64_t cluster)
{
  const unsigned order = f->header.refcount_order;
  const unsigned block_bits = f->bits + 3 - order;
  const uint64_t table = disk_u64 (48);
  const uint64_t entries = (disk_u64 (56) >> 32) << f->bits >> 3;
  const uint64_t index = cluster >> block_bits;
  uint64_t block;

  if (index >= entries || table + index * 8 >= disk_size)
    return 0;
  block = disk_u64 (table + index * 8);
  if (block == 0 || block + (UINT64_C (1) << f->bits) > disk_size)
    return 0;
  return refblock_get (disk + block, order,
                       cluster & ((UINT64_C (1) << block_bits) - 1));
}

/* Everything that the file refers to has a count, and so has what was promised. */
static void
disk_check (const struct fixture *f, uint64_t promise)
{
  const uint64_t table = disk_u64 (48);
  const uint64_t clusters = disk_u64 (56) >> 32;

  CHECK (disk_count (f, 0) == 1);
  for (uint64_t i = 0; i < clusters; i++)
    CHECK (disk_count (f, (table >> f->bits) + i) >= 1);
  for (uint64_t i = 0; i < clusters << f->bits >> 3; i++) {
    const uint64_t block = disk_u64 (table + i * 8);

    if (block != 0) {
      CHECK ((block & ((UINT64_C (1) << f->bits) - 1)) == 0);
      CHECK (block < disk_size);
      CHECK (disk_count (f, block >> f->bits) >= 1);
    }
  }
  for (uint64_t i = 0; i < promise; i++)
    if (model[i] != 0)
      CHECK (disk_count (f, i) >= 1);
}

static void
disk_store (const char *path)
{
  FILE *fp = fopen (path, "wb");

  CHECK (fp && fwrite (disk, 1, disk_size, fp) == disk_size);
  CHECK (fclose (fp) == 0);
}

static void
disk_judge (void)
{
  disk_store (scratch);
  check_image (scratch);
}

/* Some pieces of it reach the disk, others don't.  They are smaller than
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
crash_everywhere (const struct fixture *f)
{
  const size_t every = nops / 12 + 1;
  size_t done = 0;

  for (size_t i = 0; i <= nops; i++) {
    const uint64_t promise = done ? ops[done - 1].promised : 0;

    /* In order up to here: a process that was killed. */
    if (i < nops && ops[i].op == HOSTFILE_OP_SYNC)
      for (int round = 0; round < 5; round++) {
        const uint64_t saved_size = disk_size;

        for (size_t k = done; k < i; k++)
          if (ops[k].op == HOSTFILE_OP_WRITE)
            apply_in_part (&ops[k]);
        disk_check (f, promise);
        if (round == 0 && i % every == 0)
          disk_judge ();
        for (size_t k = i; k-- > done; )
          if (ops[k].op == HOSTFILE_OP_WRITE)
            undo (&ops[k]);
        disk_size = saved_size;
      }
    if (i == nops || ops[i].op == HOSTFILE_OP_SYNC) {
      for (size_t k = done; k < i; k++)
        if (ops[k].op == HOSTFILE_OP_WRITE) {
          disk_reserve (ops[k].offset + ops[k].count);
          memcpy (disk + ops[k].offset, ops[k].data, ops[k].count);
          disk_check (f, promise);
        }
      done = i + 1;
    }
  }
  disk_judge ();
}

/* Grows the table several times over, with more than one level of new blocks. */
static void
scenario (struct fixture *f)
{
  static const uint64_t steps[] = { 10, 700, 1, 4000, 9000, 100 };

  set_aside = rng_below (&rng, 2);
  for (size_t i = 0; i < sizeof steps / sizeof steps[0]; i++) {
    grow (f, steps[i]);
    if (i == 3)                 /* twice without a write between */
      grow (f, 5000);
    while (write_counts (f) == -1)
      CHECK (errno == ENOSPC);
  }
  /* The table is long enough now: new blocks that are counted by new blocks. */
  for (int i = 0; i < 12; i++) {
    grow (f, 300 + rng_below (&rng, 900));
    while (write_counts (f) == -1)
      CHECK (errno == ENOSPC);
  }
  write_all (f);
  set_aside = false;
}

static void
test_crash (unsigned cluster_size, unsigned refcount_bits)
{
  struct fixture f;

  create_image (cluster_size, refcount_bits);
  disk_load ();
  open_image (&f);
  read_model (&f);
  recording = true;
  promised = 0;
  scenario (&f);
  recording = false;
  crash_everywhere (&f);
  forget_ops ();
  close_image (&f);
}

static void
test_enospc (unsigned cluster_size, unsigned refcount_bits)
{
  size_t total = 1;

  create_image (cluster_size, refcount_bits);
  disk_load ();
  for (size_t k = 1; k <= total; k++) {
    struct fixture f;

    disk_store (image);
    open_image (&f);
    read_model (&f);
    nwrites = 0;
    fail_at = k;
    quiet_errors = true;
    scenario (&f);
    quiet_errors = false;
    fail_at = 0;
    total = nwrites - (k <= nwrites);
    compare_model (&f);
    close_image (&f);

    open_image (&f);
    compare_model (&f);
    close_image (&f);
    if (k % 8 == 1)
      check_image (image);
  }
}

/* A corrupt refcount structure is an error, nothing worse. */
static void
test_corrupt (void)
{
  static const struct { uint64_t entry; const char *text; } bad[] = {
    { 0x10200, "not aligned" },
    { 0x20001, "reserved bits" },
    { 0x40000000, "beyond the end" },
    { 0x30000, "L1 table" },
    { 0x10000, "refcount table" },
  };
  struct fixture f;
  uint64_t value;

  for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
    const struct be64 entry = put64 (bad[i].entry);

    create_image (65536, 16);
    open_image (&f);
    CHECK (hostfile_write (f.file, &entry, 8, f.header.reftable_offset) == 0);
    close_image (&f);
    open_image (&f);
    quiet_errors = true;
    CHECK (refcount_get (f.refcounts, 5, &value) == -1 && errno == EUCLEAN);
    CHECK (strstr (last_error (), bad[i].text));
    CHECK (refcount_inc (f.refcounts, 5, 1) == -1 && errno == EUCLEAN);
    quiet_errors = false;
    /* Clusters that it does not count are not concerned. */
    CHECK (refcount_get (f.refcounts, 40000, &value) == 0 && value == 0);
    close_image (&f);
  }

  /* Two entries that name the same block. */
  create_image (65536, 16);
  open_image (&f);
  {
    struct be64 entries[2];

    CHECK (hostfile_read (f.file, entries, 8, f.header.reftable_offset) == 0);
    entries[1] = entries[0];
    CHECK (hostfile_write (f.file, entries, 16,
                           f.header.reftable_offset) == 0);
  }
  quiet_errors = true;
  CHECK (refcount_open (f.file, &f.header, f.overlap) == NULL);
  CHECK (errno == EUCLEAN);
  /* Inc without a block, dec of 0, claim of what is in use. */
  CHECK (refcount_inc (f.refcounts, 100000, 1) == -1 && errno == EUCLEAN);
  CHECK (refcount_dec (f.refcounts, 100, 1, NULL, NULL) == -1 &&
         errno == EUCLEAN);
  CHECK (refcount_claim (f.refcounts, 0, 1) == -1 && errno == EUCLEAN);
  CHECK (!refcount_is_dirty (f.refcounts));
  quiet_errors = false;
  close_image (&f);
}

/* When clusters can't be made countable, nothing has changed: it can be tried again.  The
 * new table and the new blocks are together more than what is kept as single clusters.
 * FORGED: an entry of the table names a block behind all that is in use. */
static void
test_failed_extend (bool forged)
{
  struct fixture f;
  struct be64 entry;
  uint64_t end, used, value;

  create_image (512, 64);       /* 64 counts in a block, 64 blocks in a table */
  open_image (&f);
  read_model (&f);
  grow (&f, 50 * 64 - model_end % 64);
  write_all (&f);
  end = model_end;
  CHECK (end % 64 != 0);        /* an old block counts the new ones */
  entry = put64 ((end + 5000) << f.bits);
  if (forged)
    CHECK (hostfile_write (f.file, &entry, 8,
                           f.header.reftable_offset + 60 * 8) == 0);
  close_image (&f);

  open_image (&f);
  fail_reads = EIO;
  quiet_errors = true;
  for (int i = 0; i < 3; i++)
    CHECK (refcount_extend (f.refcounts, end, end, 18 * 64, &used) == -1 &&
           errno == EIO);
  quiet_errors = false;
  fail_reads = 0;
  CHECK (overlap_find (f.overlap, end << f.bits, 64 << f.bits) == OVERLAP_NONE);
  CHECK (!refcount_is_dirty (f.refcounts));
  CHECK (refcount_get (f.refcounts, end + 18 * 64, &value) == 0 && value == 0);
  CHECK (refcount_extend (f.refcounts, end, end, 18 * 64, &used) == 0);
  CHECK (used > 16);
  CHECK (refcount_get (f.refcounts, end + used - 1, &value) == 0 && value == 1);
  write_all (&f);
  close_image (&f);
  if (!forged)
    check_image (image);
}

/* Who has to take back what he did reads blocks as he needs them, without memory. */
static void
test_no_memory (void)
{
  struct fixture f;
  uint64_t first, value;

  create_image (512, 16);       /* 256 counts in a block */
  open_image (&f);
  read_model (&f);
  first = grow (&f, 3 * 256);
  write_all (&f);
  close_image (&f);

  open_image (&f);
  CHECK (refcount_get (f.refcounts, 0, &value) == 0 && value == 1);
  no_memory = true;
  CHECK (refcount_dec (f.refcounts, first + 300, 1, NULL, NULL) == 0);
  /* That was the only one that could go. */
  quiet_errors = true;
  CHECK (refcount_dec (f.refcounts, first + 600, 1, NULL, NULL) == -1 &&
         errno == ENOMEM);
  quiet_errors = false;
  no_memory = false;
  CHECK (refcount_dec (f.refcounts, first + 600, 1, NULL, NULL) == 0);
  model[first + 300] = model[first + 600] = 0;
  compare_model (&f);
  write_all (&f);
  close_image (&f);
  open_image (&f);
  compare_model (&f);
  close_image (&f);
}

int
main (void)
{
  const uint64_t seed = seed_from_env ();

  rng_init (&rng, seed, 0);
  test_bits ();

  if (system ("qemu-img --version >/dev/null 2>&1") != 0) {
    fprintf (stderr, "qemu-img is not installed\n");
    return 77;
  }
  CHECK (getcwd (dir, sizeof dir - 40));
  strcat (dir, "/test-refcount-XXXXXX");
  CHECK (mkdtemp (dir));
  snprintf (image, sizeof image, "%s/image", dir);
  snprintf (scratch, sizeof scratch, "%s/scratch", dir);

  quiet_errors = true;
  test_widths ();
  quiet_errors = false;
  test_corrupt ();
  test_failed_extend (false);
  test_failed_extend (true);
  test_no_memory ();
  for (int i = 0; i < 2; i++) {
    test_crash (512, 64);
    test_crash (512, 16);
  }
  test_crash (4096, 1);
  test_crash (4096, 16);
  test_enospc (512, 64);
  test_enospc (4096, 16);

  free (disk);
  unlink (image);
  unlink (scratch);
  snprintf (scratch, sizeof scratch, "%s/check.log", dir);
  unlink (scratch);
  CHECK (rmdir (dir) == 0);
  return 0;
}
