/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What may a file contain after a power cut?
 *
 * The file exists in memory, twice: `now' is what programs read (the host's page cache),
 * `durable' is what the last sync left on the disk.  A log contains every change since
 * then, sector by sector (512 bytes): the whole contents of each sector that the change
 * touched, as they were after it.  After a power cut, a sector contains its durable
 * contents or any of the later ones; sectors are independent of each other, and so are
 * changes of the size.  Real disks are less malicious, but fdatasync promises no more.
 *
 * An external data file can be added, or one that does not exist yet: it appears under
 * its name, for programs that open it, when it is linked there.  Both files are on the
 * same disk and lose power together, but each has its own syncs: what is durable in one
 * file implies nothing about the other.
 *
 * A sync covers exactly the changes that had ended when it began.  It takes a moment to
 * return, so that tests detect code that relies on more.  Changes that are made through
 * the hooks begin and end at the same time; simdisk_begin and simdisk_end repeat what a
 * program did, in which operations of several threads overlapped.
 *
 * Tests make thousands of these disks, one after the other: their memory remains, as
 * `spare', for the next one.
 *
 * Locks: `lock' guards all fields below it, but `size'; spare_lock guards `spare'.
 */

#include <config.h>

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "lib/reach.h"
#include "lib/shortage.h"
#include "lib/simdisk.h"

#define SECTOR 512

struct change {
  uint64_t first, n;            /* sectors; n == 0: only the size changes */
  unsigned char *data;
  uint64_t old_size, new_size;
  bool hole;
  uint64_t began, ended;        /* when; ended == UINT64_MAX: it is under way */
  bool dsync;                   /* durable since it ended */
};

struct simfile {
  char *path;
  struct blob now, durable;     /* len is the size of the file */
  struct blob cut;              /* what the last power cut has left */
  uint64_t now_room, durable_room, cut_room;
  struct change *log;
  unsigned n, room;
  uint64_t clock;               /* counts what begins or ends */
  bool appears;                 /* it did not exist at first */
  _Atomic uint64_t size;        /* of `now'; who asks takes no lock */
};

struct simdisk {
  struct storage_hooks hooks;

  pthread_mutex_t lock;
  struct rng rng;
  struct simfile files[2];      /* the image, and its external data file */
  unsigned nr_files;
  void (*watch) (void *, enum storage_op);
  void *watch_opaque;
  bool hurries;
  struct fault fault;
  uint64_t failures;
  uint64_t operations[STORAGE_OP_SYNC_DIR + 1];
  uint64_t limit;               /* of the image */
};

static uint64_t
sectors (uint64_t bytes)
{
  return (bytes + SECTOR - 1) / SECTOR;
}

/* Contents without a disk: all zeros, and len is 0. */
static struct { struct blob b; uint64_t room; } spare[6];
static unsigned nr_spare;
static pthread_mutex_t spare_lock = PTHREAD_MUTEX_INITIALIZER;

static void
take_spare (struct blob *b, uint64_t *room)
{
  pthread_mutex_lock (&spare_lock);
  if (nr_spare > 0) {
    *b = spare[--nr_spare].b;
    *room = spare[nr_spare].room;
  }
  pthread_mutex_unlock (&spare_lock);
}

static void
give_spare (struct blob *b, uint64_t room)
{
  if (room > 0)
    memset (b->data, 0, b->len);
  b->len = 0;
  pthread_mutex_lock (&spare_lock);
  if (room > 0 && nr_spare < sizeof spare / sizeof spare[0]) {
    spare[nr_spare].b = *b;
    spare[nr_spare++].room = room;
  }
  else
    blob_free (b);
  pthread_mutex_unlock (&spare_lock);
}

/* Sets the size.  What is behind the end is zeros, in whole sectors. */
static void
resize (struct blob *b, uint64_t *room, uint64_t size)
{
  if (sectors (size) * SECTOR > *room) {
    uint64_t more = sectors (size) * SECTOR + (1 << 20);

    b->data = realloc (b->data, more);
    CHECK (b->data != NULL);
    memset (b->data + *room, 0, more - *room);
    *room = more;
  }
  if (size < b->len)
    memset (b->data + size, 0, b->len - size);
  b->len = size;
}

/* The contents of B become those of FROM. */
static void
copy_contents (struct blob *b, uint64_t *room, const struct blob *from)
{
  resize (b, room, from->len);
  if (from->len > 0)
    memcpy (b->data, from->data, from->len);
}

/* --- the log --- */

/* Sectors [first, first+n) have just changed in `now'. */
static void
record (struct simfile *s, uint64_t first, uint64_t n, uint64_t old_size)
{
  struct change *c;

  if (s->n == s->room) {
    s->room = s->room ? 2 * s->room : 64;
    s->log = realloc (s->log, s->room * sizeof *s->log);
    CHECK (s->log != NULL);
  }
  c = &s->log[s->n++];
  *c = (struct change) {
    .first = first, .n = n, .old_size = old_size, .new_size = s->now.len,
    .began = ++s->clock, .ended = UINT64_MAX,
  };
  if (n > 0) {
    c->data = malloc (n * SECTOR);
    CHECK (c->data != NULL);
    memcpy (c->data, s->now.data + first * SECTOR, n * SECTOR);
  }
}

/* Applies sector I of the change to B. */
static void
apply_sector (const struct change *c, uint64_t i, struct blob *b,
              uint64_t *room)
{
  const uint64_t start = (c->first + i) * SECTOR;
  uint64_t end = start + SECTOR;

  /* A write behind the end makes the file longer, but not beyond its size at that
   * time. */
  if (end > c->new_size)
    end = c->new_size;
  if (end > b->len)
    resize (b, room, end);
  memcpy (b->data + start, c->data + i * SECTOR, end - start);
}

static void
apply (const struct change *c, struct blob *b, uint64_t *room)
{
  uint64_t i;

  for (i = 0; i < c->n; i++)
    apply_sector (c, i, b, room);
  if (c->new_size > b->len || c->new_size < c->old_size)
    resize (b, room, c->new_size);
}

/* C, which is older than DURABLE and not durable itself, cannot bring back what DURABLE
 * has replaced. */
static void
forget_replaced (struct change *c, const struct change *durable)
{
  uint64_t k;

  for (k = 0; k < c->n; k++)
    if (c->first + k >= durable->first &&
        c->first + k < durable->first + durable->n)
      memcpy (c->data + k * SECTOR,
              durable->data + (c->first + k - durable->first) * SECTOR, SECTOR);
  if (c->new_size < c->old_size && c->new_size < durable->new_size)
    c->old_size = c->new_size = durable->new_size;
}

/* Makes the changes durable that had ended at the time NOW, and those with dsync. */
static void
make_durable (struct simfile *s, uint64_t now)
{
  unsigned i, j, kept = 0;

  for (i = 0; i < s->n; i++) {
    const struct change c = s->log[i];

    if (c.ended > now && !c.dsync) {
      s->log[kept++] = c;
      continue;
    }
    apply (&c, &s->durable, &s->durable_room);
    for (j = 0; j < kept; j++)
      forget_replaced (&s->log[j], &c);
    free (c.data);
  }
  s->n = kept;
}

/* --- operations --- */

static void
read_now (struct simfile *s, const struct iovec *iov, int niov, uint64_t offset)
{
  int i;

  for (i = 0; i < niov; i++) {
    const uint64_t len = iov[i].iov_len;
    uint64_t have = offset >= s->now.len ? 0 : s->now.len - offset;

    if (have > len)
      have = len;
    if (have > 0)
      memcpy (iov[i].iov_base, s->now.data + offset, have);
    memset ((char *) iov[i].iov_base + have, 0, len - have);
    offset += len;
  }
}

static void
write_now (struct simfile *s, const struct iovec *iov, int niov,
           uint64_t offset, uint64_t count)
{
  const uint64_t old_size = s->now.len;
  const uint64_t first = offset / SECTOR;
  const uint64_t end = offset + count;
  int i;

  if (count == 0)
    return;
  if (end > s->now.len)
    resize (&s->now, &s->now_room, end);
  for (i = 0; i < niov && offset < end; i++) {
    const uint64_t len = iov[i].iov_len < end - offset ?
      iov[i].iov_len : end - offset;

    memcpy (s->now.data + offset, iov[i].iov_base, len);
    offset += len;
  }
  record (s, first, sectors (end) - first, old_size);
}

static void
punch_now (struct simfile *s, uint64_t offset, uint64_t count)
{
  uint64_t end = offset + count;

  if (end > s->now.len)
    end = s->now.len;
  if (offset >= end)
    return;
  memset (s->now.data + offset, 0, end - offset);
  record (s, offset / SECTOR, sectors (end) - offset / SECTOR, s->now.len);
  s->log[s->n - 1].hole = true;
}

static void
truncate_now (struct simfile *s, uint64_t size)
{
  const uint64_t old_size = s->now.len;

  resize (&s->now, &s->now_room, size);
  record (s, 0, 0, old_size);
}

/* An operation begins.  Returns what end_now must be told. */
static uint64_t
begin_now (struct simfile *f, enum storage_op op, const struct iovec *iov, int niov,
           uint64_t offset, uint64_t count)
{
  const unsigned n = f->n;

  switch (op) {
  case STORAGE_OP_WRITE:
    write_now (f, iov, niov, offset, count);
    break;
  case STORAGE_OP_PUNCH:
    punch_now (f, offset, count);
    break;
  case STORAGE_OP_TRUNCATE:
    truncate_now (f, offset);
    break;
  case STORAGE_OP_SYNC:
    return f->clock;
  case STORAGE_OP_READ:
  case STORAGE_OP_LINK:
  case STORAGE_OP_SYNC_DIR:
  case STORAGE_OP_ALLOCATE:
    break;                      /* no contents change */
  }
  return f->n > n ? f->clock : 0;
}

static void
end_now (struct simfile *f, enum storage_op op, uint64_t began, bool dsync)
{
  unsigned i = f->n;

  f->size = f->now.len;
  if (op == STORAGE_OP_SYNC) {
    make_durable (f, began);
    return;
  }
  while (i > 0 && f->log[i - 1].began != began)
    i--;
  if (i == 0)
    return;                     /* it changed nothing */
  f->log[i - 1].ended = ++f->clock;
  f->log[i - 1].dsync = dsync;
  if (dsync)
    make_durable (f, 0);
}

/* Returns errno if this operation shall fail, or 0. */
static int
fails (struct simdisk *s, const struct simfile *file, enum storage_op op,
       uint64_t end)
{
  struct fault *f = &s->fault;

  if ((op == STORAGE_OP_WRITE || op == STORAGE_OP_TRUNCATE) &&
      file == &s->files[0] && end > file->now.len && end > s->limit)
    return ENOSPC;
  if (!(f->ops & 1 << op))
    return 0;
  if (f->after > 0) {
    f->after--;
    return 0;
  }
  if (f->times == 0)
    return 0;
  f->times--;
  return f->err;
}

static int
operate (struct simdisk *s, struct simfile *f, enum storage_op op,
         const struct iovec *iov, int niov, uint64_t offset, uint64_t count,
         bool dsync)
{
  uint64_t began;
  int err;

  if (op != STORAGE_OP_READ && s->watch)
    s->watch (s->watch_opaque, op);

  CHECK (op <= STORAGE_OP_SYNC_DIR);
  s->operations[op]++;
  if (op == STORAGE_OP_SYNC_DIR && f->appears)
    blob_save (f->path, &f->now);
  err = fails (s, f, op, offset + count);
  if (err != 0) {
    s->failures++;
    if (op == STORAGE_OP_WRITE && s->fault.partial &&
        offset + count <= s->limit) {
      /* Up to the end of a sector. */
      const uint64_t end = (offset + rng_below (&s->rng, count)) /
        SECTOR * SECTOR;

      if (end > offset) {
        began = begin_now (f, op, iov, niov, offset, end - offset);
        end_now (f, op, began, false);
      }
    }
    errno = err;
    return -1;
  }

  if (op == STORAGE_OP_LINK && f->appears)
    return 0;
  if (op == STORAGE_OP_READ)
    read_now (f, iov, niov, offset);
  began = begin_now (f, op, iov, niov, offset, count);
  end_now (f, op, began, dsync);
  return 1;
}

/* A file that is not simulated. */
static int
operate_elsewhere (struct simdisk *s, enum storage_op op)
{
  int err = 0;

  pthread_mutex_lock (&s->lock);
  if (s->fault.elsewhere) {
    s->operations[op]++;
    err = fails (s, NULL, op, 0);
    s->failures += err != 0;
  }
  pthread_mutex_unlock (&s->lock);
  errno = err;
  return err ? -1 : 0;
}

static struct simfile *
find (struct simdisk *s, const char *path)
{
  for (unsigned i = 0; i < s->nr_files; i++)
    if (strcmp (path, s->files[i].path) == 0)
      return &s->files[i];
  return NULL;
}

static int
before (void *opaque, const char *path, enum storage_op op,
        const struct iovec *iov, int niov, uint64_t offset, uint64_t count,
        bool dsync)
{
  struct simdisk *s = opaque;
  struct simfile *f = find (s, path);
  unsigned wait;
  bool spared;
  int r, err;

  if (f == NULL)
    return operate_elsewhere (s, op);

  spared = shortage_spare (true);
  pthread_mutex_lock (&s->lock);
  r = operate (s, f, op, iov, niov, offset, count, dsync);
  err = errno;
  wait = rng_below (&s->rng, op == STORAGE_OP_SYNC ? 4 : 32);
  pthread_mutex_unlock (&s->lock);
  shortage_spare (spared);

  if (s->hurries)
    ;
  else if (wait == 0)
    usleep (100);
  else if (wait == 1)
    sched_yield ();
  errno = err;
  return r;
}

/* A file that has not appeared yet has its real size. */
static uint64_t
size_now (void *opaque, const char *path, uint64_t size)
{
  struct simfile *f = find (opaque, path);

  return f && f->size > 0 ? f->size : size;
}

uint64_t
simdisk_begin (struct simdisk *s, enum storage_op op, const void *buf, uint64_t offset,
               uint64_t count)
{
  const struct iovec iov = { .iov_base = (void *) buf, .iov_len = count };

  return begin_now (&s->files[0], op, &iov, 1, offset, count);
}

void
simdisk_end (struct simdisk *s, enum storage_op op, uint64_t began, bool dsync)
{
  end_now (&s->files[0], op, began, dsync);
}

/* --- power cuts --- */

/* SHIFT is log2 of the sectors of a cluster. */
static void
cut_file (struct simfile *s, struct rng *rng, enum power_cut kind, unsigned shift)
{
  const unsigned chosen = rng_below (rng, s->n);
  /* Probabilities of 2 % to 98 %. */
  const unsigned chance = 1 + rng_below (rng, 63);
  const bool sizes = rng_below (rng, 4) == 0;   /* longer, but no data */
  const uint64_t coin = rng_next (rng);
  struct blob *out = &s->cut;
  uint64_t k;
  unsigned i;

  copy_contents (out, &s->cut_room, &s->durable);
  for (i = 0; i < s->n; i++) {
    const struct change *c = &s->log[i];
    bool whole = false;

    switch (kind) {
    case CUT_ALL: whole = true; break;
    case CUT_PREFIX: case CUT_TORN: whole = i < chosen; break;
    case CUT_SUFFIX: whole = i >= chosen; break;
    case CUT_ONE: whole = i == chosen; break;
    case CUT_ALL_BUT_ONE: whole = i != chosen; break;
    case CUT_CHANGES: whole = rng_below (rng, 64) < chance; break;
    case CUT_SECTORS: case CUT_CLUSTERS:
      whole = c->n == 0 && rng_below (rng, 64) < chance;
    default: ;
    }
    if (whole) {
      apply (c, out, &s->cut_room);
      continue;
    }
    for (k = 0; k < c->n; k++) {
      struct rng place;

      rng_init (&place, coin, (c->first + k) >> shift);
      if ((kind == CUT_SECTORS && rng_below (rng, 64) < chance) ||
          (kind == CUT_TORN && i == chosen && rng_below (rng, 2)) ||
          (kind == CUT_CLUSTERS && rng_below (&place, 64) < chance))
        apply_sector (c, k, out, &s->cut_room);
    }
    if (sizes && c->new_size > out->len)
      resize (out, &s->cut_room, c->new_size);
  }
}

const struct blob *
simdisk_cut (struct simdisk *s, struct rng *rng, enum power_cut kind)
{
  const struct blob *image = &s->files[0].now;
  /* Bytes 20-23 of the header: cluster_bits. */
  const unsigned shift = image->len > 23 && image->data[23] > 9 ? image->data[23] - 9 : 0;

  cut_file (&s->files[0], rng, kind, shift);
  /* What is durable in one file implies nothing about the other. */
  if (s->nr_files > 1)
    cut_file (&s->files[1], rng, rng_below (rng, 2) ? kind :
              (enum power_cut) rng_below (rng, CUT_KINDS), shift);
  return &s->files[0].cut;
}

const struct blob *
simdisk_data_cut (struct simdisk *s)
{
  return &s->files[1].cut;
}

bool
simdisk_is_durable (struct simdisk *s, bool raw)
{
  bool r = true;

  pthread_mutex_lock (&s->lock);
  for (unsigned k = 0; k < s->nr_files; k++)
    for (unsigned i = 0; i < s->files[k].n; i++)
      r &= s->files[k].log[i].hole && !(raw && k == 1);
  pthread_mutex_unlock (&s->lock);
  return r;
}

void
simdisk_lose (struct simdisk *s, struct rng *rng, enum power_cut kind)
{
  pthread_mutex_lock (&s->lock);
  simdisk_cut (s, rng, kind);
  for (struct simfile *f = s->files; f < s->files + s->nr_files; f++) {
    copy_contents (&f->now, &f->now_room, &f->cut);
    f->size = f->now.len;
    copy_contents (&f->durable, &f->durable_room, &f->cut);
    while (f->n > 0)
      free (f->log[--f->n].data);
  }
  pthread_mutex_unlock (&s->lock);
}

enum power_cut
simdisk_random_cut (struct rng *rng)
{
  static const enum power_cut often[] = {
    CUT_ALL_BUT_ONE, CUT_ONE, CUT_SECTORS, CUT_CLUSTERS,
  };

  return rng_below (rng, 2) ? often[rng_below (rng, 4)] :
    rng_below (rng, CUT_KINDS);
}

/* --- other functions --- */

void
simdisk_add (struct simdisk *s, const char *path)
{
  struct simfile *f = &s->files[s->nr_files++];
  struct blob b = { .len = 0 };

  CHECK (s->nr_files <= 2);
  f->path = strdup (path);
  CHECK (f->path != NULL);
  take_spare (&f->now, &f->now_room);
  take_spare (&f->durable, &f->durable_room);
  take_spare (&f->cut, &f->cut_room);
  f->appears = access (path, F_OK) == -1;
  if (!f->appears)
    blob_load (path, &b);
  copy_contents (&f->now, &f->now_room, &b);
  f->size = b.len;
  copy_contents (&f->durable, &f->durable_room, &b);
  blob_free (&b);
  reach_hook (path, &s->hooks);
}

struct simdisk *
simdisk_new (const char *path, uint64_t seed)
{
  struct simdisk *s = calloc (1, sizeof *s);

  CHECK (s != NULL);
  s->hooks.before = before;
  s->hooks.size = size_now;
  s->hooks.opaque = s;
  pthread_mutex_init (&s->lock, NULL);
  rng_init (&s->rng, seed, 1000);
  s->limit = UINT64_MAX;
  simdisk_add (s, path);
  return s;
}

void
simdisk_free (struct simdisk *s)
{
  struct simfile *f;
  unsigned i;

  for (f = s->files; f < s->files + s->nr_files; f++) {
    reach_hook (f->path, NULL);
    for (i = 0; i < f->n; i++)
      free (f->log[i].data);
    free (f->log);
    give_spare (&f->now, f->now_room);
    give_spare (&f->durable, f->durable_room);
    give_spare (&f->cut, f->cut_room);
    free (f->path);
  }
  pthread_mutex_destroy (&s->lock);
  free (s);
}

void
simdisk_hurry (struct simdisk *s)
{
  s->hurries = true;
}

const struct storage_hooks *
simdisk_hooks (struct simdisk *s)
{
  return &s->hooks;
}

void
simdisk_watch (struct simdisk *s, void (*watch) (void *, enum storage_op),
               void *opaque)
{
  pthread_mutex_lock (&s->lock);
  s->watch = watch;
  s->watch_opaque = opaque;
  pthread_mutex_unlock (&s->lock);
}

void
simdisk_fault (struct simdisk *s, const struct fault *fault)
{
  static const struct fault none;

  pthread_mutex_lock (&s->lock);
  s->fault = fault ? *fault : none;
  pthread_mutex_unlock (&s->lock);
}

uint64_t
simdisk_failures (struct simdisk *s)
{
  uint64_t n;

  pthread_mutex_lock (&s->lock);
  n = s->failures;
  pthread_mutex_unlock (&s->lock);
  return n;
}

uint64_t
simdisk_operations (struct simdisk *s, unsigned ops)
{
  uint64_t n = 0;
  int op;

  pthread_mutex_lock (&s->lock);
  for (op = 0; op <= STORAGE_OP_SYNC_DIR; op++)
    if (ops & 1 << op)
      n += s->operations[op];
  pthread_mutex_unlock (&s->lock);
  return n;
}

void
simdisk_limit (struct simdisk *s, uint64_t limit)
{
  pthread_mutex_lock (&s->lock);
  s->limit = limit;
  pthread_mutex_unlock (&s->lock);
}

uint64_t
simdisk_size (struct simdisk *s)
{
  uint64_t size;

  pthread_mutex_lock (&s->lock);
  size = s->files[0].now.len;
  pthread_mutex_unlock (&s->lock);
  return size;
}

void
simdisk_save (struct simdisk *s)
{
  for (struct simfile *f = s->files; f < s->files + s->nr_files; f++)
    blob_save (f->path, &f->now);
}
