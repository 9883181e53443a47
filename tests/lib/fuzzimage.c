/* SPDX-License-Identifier: BSD-3-Clause
 *
 * How can a fuzzer change an image in a way that matters?
 *
 * An input is a script (its length in two bytes, then its bytes), and then pieces of
 * files.  A piece has a head of 8 bytes:
 *
 *    0-3   offset in the file, big-endian
 *    4-5   length in bytes; of a piece that is filled with one byte, in sectors of 512
 *    6     bits 0-1: which file (1: below, 2: data, else the image); bit 7: it is filled
 *    7     what with
 *
 * and, unless it is filled, its bytes.  Later pieces overwrite earlier ones, so a field
 * of a table is changed with a small piece at the end.  The last piece may be cut off.
 * The rest of the files is a hole.
 *
 * The mutator reads the image as the format describes it, as far as it makes sense, to
 * find the fields: of the header and its extensions, of the tables (L1, L2, refcounts,
 * snapshots, bitmaps), of the LUKS header, and compressed data.
 *
 * Locks: none; one thread.
 */

#include <config.h>

#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "util/bytes.h"
#include "format/format.h"
#include "lib/fuzzimage.h"
#include "lib/fuzzserver.h"
#include "lib/images.h"

#define HEAD 8
#define FILLED 0x80
#define SECTOR 512
#define NR_FILES 3

static const char *const names[NR_FILES] = {
  FUZZSERVER_IMAGE, FUZZSERVER_BELOW, FUZZSERVER_DATA,
};

struct piece {
  unsigned file;
  uint32_t offset, length;
  int fill;                     /* -1: no */
  const uint8_t *bytes;
};

/* Where the pieces begin. */
static size_t
pieces_at (const uint8_t *data, size_t size)
{
  return size < 2 ? size : min64 (size, 2 + (data[0] << 8 | data[1]));
}

/* The piece at *AT; moves on.  False: there are no more. */
static bool
next_piece (const uint8_t *data, size_t size, size_t *at, struct piece *p)
{
  const uint8_t *head = data + *at;

  if (size - *at < HEAD)
    return false;
  p->offset = ((uint32_t) head[0] << 24 | head[1] << 16 | head[2] << 8 | head[3]) %
    (FUZZSERVER_MAX_FILE / 2);
  p->length = head[4] << 8 | head[5];
  p->file = (head[6] & 3) % NR_FILES;
  p->fill = head[6] & FILLED ? head[7] : -1;
  *at += HEAD;
  if (p->fill >= 0)
    p->length *= SECTOR;
  else {
    p->length = min64 (p->length, size - *at);
    p->bytes = data + *at;
    *at += p->length;
  }
  p->length = min64 (p->length, FUZZSERVER_MAX_FILE / 2 - p->offset);
  return true;
}

void
fuzzimage_unpack (const uint8_t *data, size_t size, struct fuzz_script *script)
{
  static uint8_t buf[65536];
  size_t at = pieces_at (data, size);
  struct piece p;
  int fds[NR_FILES];
  char path[4096];

  *script = (struct fuzz_script) { data + min64 (size, 2), data + at };
  for (unsigned i = 0; i < NR_FILES; i++) {
    fuzzserver_path (names[i], path);
    unlink (path);              /* its holes are holes again */
    fds[i] = open (path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    CHECK (fds[i] >= 0);
  }
  while (next_piece (data, size, &at, &p)) {
    if (p.fill < 0) {
      CHECK (pwrite (fds[p.file], p.bytes, p.length, p.offset) == (ssize_t) p.length);
      continue;
    }
    memset (buf, p.fill, min64 (p.length, sizeof buf));
    for (uint32_t done = 0; done < p.length; done += sizeof buf) {
      const size_t n = min64 (p.length - done, sizeof buf);

      CHECK (pwrite (fds[p.file], buf, n, p.offset + done) == (ssize_t) n);
    }
  }
  for (unsigned i = 0; i < NR_FILES; i++)
    close (fds[i]);
}

/* --- packing --- */

struct packer {
  uint8_t *data;
  size_t size;
  bool full;
};

static void
append (struct packer *k, const struct piece *p)
{
  const uint32_t length = p->fill >= 0 ? p->length / SECTOR : p->length;
  const uint8_t head[HEAD] = {
    p->offset >> 24, p->offset >> 16, p->offset >> 8, p->offset, length >> 8, length,
    p->file | (p->fill >= 0 ? FILLED : 0), p->fill >= 0 ? p->fill : 0,
  };
  const size_t rest = p->fill >= 0 ? 0 : p->length;

  if (k->size + HEAD + rest > FUZZIMAGE_MAX) {
    k->full = true;
    return;
  }
  memcpy (k->data + k->size, head, HEAD);
  if (rest > 0)
    memcpy (k->data + k->size + HEAD, p->bytes, rest);
  k->size += HEAD + rest;
}

/* The byte that fills the sector at OFFSET, or -1. */
static int
filling (const struct blob *b, uint64_t offset)
{
  const uint64_t n = min64 (SECTOR, b->len - offset);

  if (n < SECTOR || memcmp (b->data + offset, b->data + offset + 1, n - 1) != 0)
    return -1;
  return b->data[offset];
}

/* The sectors from OFFSET on that have the same filling, or none. */
static uint32_t
same_length (const struct blob *b, uint64_t offset, uint64_t max)
{
  const int fill = filling (b, offset);
  uint64_t n = SECTOR;

  while (n < max && offset + n < b->len && filling (b, offset + n) == fill)
    n += SECTOR;
  return min64 (n, b->len - offset);
}

static void
pack_file (struct packer *k, unsigned file)
{
  struct blob b;
  uint64_t at;

  if (access (names[file], F_OK) == -1)
    return;
  blob_load (names[file], &b);
  for (at = 0; at < b.len; ) {
    struct piece p = { .file = file, .offset = at, .fill = filling (&b, at),
                       .bytes = b.data + at };

    p.length = same_length (&b, at, p.fill >= 0 ? 65535 * SECTOR : 127 * SECTOR);
    at += p.length;
    if (p.fill != 0 || at == b.len)     /* the last one gives the file its size */
      append (k, &p);
  }
  blob_free (&b);
}

size_t
fuzzimage_pack (uint8_t *data, const uint8_t *script, size_t script_size)
{
  struct packer k = { .data = data, .size = 2 + script_size };

  CHECK (script_size <= UINT16_MAX);
  data[0] = script_size >> 8;
  data[1] = script_size;
  memcpy (data + 2, script, script_size);
  for (unsigned i = 0; i < NR_FILES; i++)
    pack_file (&k, i);
  return k.full ? 0 : k.size;
}

/* --- mutation --- */

struct mutation {
  uint8_t *data;
  size_t size, max;
  struct rng *rng;
  unsigned cluster_bits;
  uint64_t file_end;
};

static uint64_t
get (const struct mutation *m, uint64_t offset, unsigned bytes)
{
  uint8_t value[8] = { 0 };
  size_t at = pieces_at (m->data, m->size);
  uint64_t r = 0;
  struct piece p;

  while (next_piece (m->data, m->size, &at, &p))
    for (unsigned i = 0; p.file == 0 && i < bytes; i++)
      if (offset + i >= p.offset && offset + i - p.offset < p.length)
        value[i] = p.fill >= 0 ? p.fill : p.bytes[offset + i - p.offset];
  for (unsigned i = 0; i < bytes; i++)
    r = r << 8 | value[i];
  return r;
}

static void
put (struct mutation *m, uint64_t offset, uint64_t value, unsigned bytes)
{
  struct packer k = { m->data, m->size, m->size + HEAD + bytes > m->max };
  struct piece p = { .offset = offset, .length = bytes, .fill = -1 };
  uint8_t v[8];

  if (k.full || offset >= FUZZSERVER_MAX_FILE / 2)
    return;
  for (unsigned i = 0; i < bytes; i++)
    v[i] = value >> 8 * (bytes - 1 - i);
  p.bytes = v;
  append (&k, &p);
  m->size = k.size;
}

static uint64_t
cluster_size (const struct mutation *m)
{
  return UINT64_C (1) << m->cluster_bits;
}

static uint64_t
random_cluster (const struct mutation *m)
{
  return rng_below (m->rng, (m->file_end >> m->cluster_bits) + 2) << m->cluster_bits;
}

/* A number, perhaps near to OLD. */
static uint64_t
random_number (const struct mutation *m, uint64_t old)
{
  static const uint64_t favourites[] = {
    0, 1, 2, 3, 4, 7, 8, 9, 12, 14, 16, 21, 22, 63, 64, 65, 72, 104, 112, 255, 256, 511,
    512, 1023, 1024, 4096, 65535, 65536, 65537, 1 << 20, 4 << 20, INT32_MAX, UINT32_MAX,
    UINT64_C (1) << 32, UINT64_C (1) << 55, UINT64_C (1) << 56, INT64_MAX, UINT64_MAX,
  };

  switch (rng_below (m->rng, 6)) {
  case 0: return old + 1;
  case 1: return old - 1;
  case 2: return old ^ UINT64_C (1) << rng_below (m->rng, 64);
  case 3: return random_cluster (m);
  case 4: return old + (rng_below (m->rng, 2) ? cluster_size (m) : -cluster_size (m));
  default:
    return favourites[rng_below (m->rng, sizeof favourites / sizeof favourites[0])];
  }
}

static void
change (struct mutation *m, uint64_t offset, unsigned bytes)
{
  put (m, offset, random_number (m, get (m, offset, bytes)), bytes);
}

/* The refcount of the cluster at OFFSET becomes N larger. */
static void
count (struct mutation *m, uint64_t offset, int n)
{
  const uint64_t order = get (m, 4, 4) >= 3 ? get (m, 96, 4) : 4;
  const uint64_t cluster = offset >> m->cluster_bits;
  uint64_t per_block, block, at;

  if (order < 3 || order > 6)
    return;
  per_block = cluster_size (m) >> (order - 3);
  if (per_block == 0)
    return;
  block = get (m, get (m, 48, 8) + cluster / per_block * 8, 8);
  at = block + ((cluster % per_block) << (order - 3));
  if (block != 0)
    put (m, at, get (m, at, 1 << (order - 3)) + n, 1 << (order - 3));
}

#define POINTER UINT64_C (0x00fffffffffffe00)

/* Changes an entry of a table: its flags, or where it points, perhaps with refcounts that
 * agree. */
static void
change_entry (struct mutation *m, uint64_t at)
{
  static const unsigned flags[] = { 63, 62, 0 };
  const uint64_t old = get (m, at, 8);
  const uint64_t there = random_cluster (m);

  switch (rng_below (m->rng, 6)) {
  case 0:
    put (m, at, old ^ UINT64_C (1) << flags[rng_below (m->rng, 3)], 8);
    break;
  case 1:
    put (m, at, random_number (m, old), 8);
    break;
  case 2:
    put (m, at, rng_below (m->rng, 2) ? 0 : 1, 8);
    count (m, old & POINTER, -1);
    break;
  case 3:
    put (m, at, (old & ~POINTER) | there, 8);
    break;
  default:
    put (m, at, there, 8);
    count (m, there, 1);
    count (m, old & POINTER, -1);
  }
}

/* One of the first entries of a table, mostly. */
static uint64_t
random_entry (const struct mutation *m, uint64_t n)
{
  return rng_below (m->rng, rng_below (m->rng, 4) ? min64 (n, 8) : n);
}

static void
change_header (struct mutation *m)
{
  static const struct { uint8_t at, bytes; } fields[] = {
    { 4, 4 }, { 8, 8 }, { 16, 4 }, { 20, 4 }, { 24, 8 }, { 32, 4 }, { 36, 4 }, { 40, 8 },
    { 48, 8 }, { 56, 4 }, { 60, 4 }, { 64, 8 }, { 72, 8 }, { 80, 8 }, { 88, 8 },
    { 96, 4 }, { 100, 4 }, { 104, 1 },
  };
  const unsigned i = rng_below (m->rng, sizeof fields / sizeof fields[0]);

  if (fields[i].at >= 72 && fields[i].at < 96)  /* features */
    put (m, fields[i].at, get (m, fields[i].at, 8) ^
         UINT64_C (1) << rng_below (m->rng, rng_below (m->rng, 4) ? 6 : 64), 8);
  else
    change (m, fields[i].at, fields[i].bytes);
}

/* Extensions, and names behind them. */
static void
change_extensions (struct mutation *m)
{
  const uint64_t at = 104 + rng_below (m->rng, 400);

  if (rng_below (m->rng, 2))
    change (m, at / 8 * 8 + (rng_below (m->rng, 2) ? 4 : 0), 4);
  else
    put (m, at, rng_next (m->rng), 1);
}

static void
change_l1 (struct mutation *m)
{
  change_entry (m, get (m, 40, 8) + random_entry (m, get (m, 36, 4)) * 8);
}

static void
change_l2 (struct mutation *m)
{
  const bool extended = get (m, 4, 4) >= 3 && (get (m, 72, 8) & 16);
  const uint64_t table =
    get (m, get (m, 40, 8) + random_entry (m, get (m, 36, 4)) * 8, 8) & POINTER;
  const unsigned size = extended ? 16 : 8;
  const uint64_t entry = table + random_entry (m, cluster_size (m) / size) * size;

  if (table == 0)
    change_l1 (m);
  else if (extended && rng_below (m->rng, 2))
    put (m, entry + 8, get (m, entry + 8, 8) ^
         (rng_below (m->rng, 2) ? UINT64_C (1) << rng_below (m->rng, 64)
          : rng_next (m->rng)), 8);
  else
    change_entry (m, entry);
}

static void
change_refcounts (struct mutation *m)
{
  const uint64_t table = get (m, 48, 8);

  if (rng_below (m->rng, 3) == 0)
    change_entry (m, table + random_entry (m, cluster_size (m) / 8) * 8);
  else
    count (m, random_cluster (m), rng_below (m->rng, 2) ? 1 : -1);
}

static void
change_snapshots (struct mutation *m)
{
  const uint64_t table = get (m, 64, 8), l1 = get (m, table, 8);

  if (table == 0)
    change_header (m);
  else if (l1 != 0 && rng_below (m->rng, 2))
    change_entry (m, l1 + random_entry (m, get (m, table + 8, 4)) * 8);
  else if (rng_below (m->rng, 2))
    change (m, table, 8);
  else
    change (m, table + rng_below (m->rng, 80) / 4 * 4, 4);
}

/* The data of an extension, or 0. */
static uint64_t
find_extension (const struct mutation *m, uint32_t type)
{
  uint64_t at = get (m, 4, 4) >= 3 ? get (m, 100, 4) : 72;

  for (int i = 0; i < 8; i++) {
    if (get (m, at, 4) == type)
      return at + 8;
    at += 8 + round_up (get (m, at + 4, 4), 8);
  }
  return 0;
}

static void
change_bitmaps (struct mutation *m)
{
  const uint64_t e = find_extension (m, QCOW2_EXT_BITMAPS);
  const uint64_t directory = e ? get (m, e + 16, 8) : 0;

  if (e == 0)
    change_extensions (m);
  else if (rng_below (m->rng, 4) == 0)
    change (m, e + rng_below (m->rng, 6) * 4, 4);
  else if (rng_below (m->rng, 2))
    change (m, directory + rng_below (m->rng, 48) / 4 * 4, 4);
  else
    change_entry (m, get (m, directory, 8) +
                  random_entry (m, get (m, directory + 8, 4)) * 8);
}

/* Also its extension.  (What the passphrase unlocks stays mostly intact.) */
static void
change_luks (struct mutation *m)
{
  const uint64_t e = find_extension (m, QCOW2_EXT_CRYPTO);

  if (e == 0)
    change_extensions (m);
  else if (rng_below (m->rng, 3) == 0)
    change (m, e + rng_below (m->rng, 2) * 8, 8);
  else
    change (m, get (m, e, 8) + rng_below (m->rng, 592) / 4 * 4, 4);
}

/* A byte of what the file contains, compressed clusters for example. */
static void
change_data (struct mutation *m)
{
  const uint64_t at = random_cluster (m) + rng_below (m->rng, cluster_size (m));

  put (m, at, rng_next (m->rng), 1);
}

static void
change_script (struct mutation *m)
{
  const size_t n = pieces_at (m->data, m->size);

  if (n > 2)
    m->data[2 + rng_below (m->rng, n - 2)] = rng_next (m->rng);
}

size_t
fuzzimage_mutate (uint8_t *data, size_t size, size_t max, struct rng *rng)
{
  static void (*const changes[]) (struct mutation *) = {
    change_header, change_extensions, change_l1, change_l2, change_l2, change_refcounts,
    change_snapshots, change_bitmaps, change_luks, change_data, change_script,
    change_script, change_script,
  };
  struct mutation m = { .data = data, .size = size, .max = max, .rng = rng };
  size_t at = pieces_at (data, size);
  struct piece p;

  while (next_piece (data, size, &at, &p))
    if (p.file == 0)
      m.file_end = max64 (m.file_end, p.offset + (uint64_t) p.length);
  m.cluster_bits = get (&m, 20, 4) % 23;
  for (uint64_t i = 1 + rng_below (rng, 3); i > 0; i--)
    changes[rng_below (rng, sizeof changes / sizeof changes[0])] (&m);
  return m.size;
}
