/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Can all data that is stored in this image be read?
 *
 * Each compressed cluster of the active disk and of all snapshots is decompressed, and
 * each byte of the file that the host has allocated is read.  These bytes, and the
 * decompressed clusters, are all that clients of the server can read.
 *
 * Bytes that several entries point to are decompressed once (scanseen.c).
 *
 * L2 tables are cut into pieces, so that a single table keeps all threads busy.
 * Compressed clusters mostly follow one another in the file, so a thread reads far ahead,
 * and looks for the next cluster in its buffer first.
 *
 * If the host cannot read some bytes, the check goes on.  After MAX_UNREADABLE places it
 * ends, because more reads would only harm a failing disk.
 *
 * Locks: see scan.c.
 */

#include <config.h>

#include <errno.h>
#include <inttypes.h>

#include "util/report.h"
#include "format/entry.h"
#include "check/parallel.h"
#include "check/scan-impl.h"

/* Bytes of an L2 table that a thread takes at a time. */
#define PIECE 4096

#define MAX_UNREADABLE 16

/* Bytes of the file that a thread reads at once, and the number of such pieces that are
 * gathered before the threads start. */
#define READ_SIZE (UINT64_C (4) << 20)
#define PIECES 1024

/* The buffer of a thread: a piece of the L2 table, a cluster, and the bytes of the file
 * that were read last. */
struct inflating {
  struct scan *s;
  const struct walk_l2 *table;
  struct be64 *piece;
  unsigned char *out, *in;
  size_t room;                  /* the size of `in' */
  uint64_t at, len;             /* the range of the file that `in' contains */
  uint64_t work;                /* for scan_work, which was not told yet */
};

/* After a read has failed.  A lack of memory is no fault of the image: an export of an
 * NBD server may need some for a range that is not aligned. */
static int
unreadable (struct scan *s, uint64_t offset, uint64_t bytes)
{
  if (errno == ENOMEM)
    return -1;
  findings_add (s->findings, FINDING_UNREADABLE, 1, offset,
                "cannot read %" PRIu64 " bytes at offset %" PRIu64 ": %m", bytes,
                offset);
  if (atomic_fetch_add (&s->unreadable, 1) < MAX_UNREADABLE)
    return 0;
  errno = EIO;
  return -1;
}

/* Returns the BYTES at OFFSET of the file, which are valid until the next call.  NULL if
 * they cannot be read (errno is set). */
static const unsigned char *
get_bytes (struct inflating *f, uint64_t offset, uint64_t bytes)
{
  /* Read ahead only for a cluster that follows the previous one. */
  const bool follows = offset >= f->at && offset <= f->at + f->len;

  if (f->len > 0 && offset >= f->at && bytes <= f->len &&
      offset - f->at <= f->len - bytes)
    return f->in + (offset - f->at);
  f->at = offset;
  f->len = follows ? f->room : bytes;
  f->work += f->len;
  if (storage_read (f->s->file, f->in, f->len, offset) == 0)
    return f->in + 0;
  f->len = 0;
  return NULL;
}

/* Decompresses BYTES at OFFSET.  Returns 1; 0 if that cannot be done; -1 on error. */
static int
inflate (struct inflating *f, const unsigned char *in, uint64_t offset, uint64_t bytes)
{
  struct scan *s = f->s;
  const struct header *h = s->h;

  if (scan_work (s, f->work + h->cluster_size) == -1)
    return -1;
  f->work = 0;
  if (compress_inflate (s->pool, h->compression_type, in, bytes, f->out,
                        h->cluster_size) == 0)
    return 1;
  if (errno == EIO)
    return 0;
  report_error ("%s: compressed cluster at %" PRIu64 ": %m", storage_path (s->file),
                offset);
  return -1;
}

static int
inflate_one (struct inflating *f, uint64_t entry, uint64_t index)
{
  struct scan *s = f->s;
  const struct header *h = s->h;
  const uint64_t guest =
    (((uint64_t) f->table->l1_index << h->l2_bits) + index) << h->cluster_bits;
  const uint64_t descriptor = entry & (QCOW2_OFLAG_COMPRESSED - 1);
  const unsigned char *in;
  uint64_t offset, bytes;
  int good;

  if (!compress_descriptor (h, descriptor, &offset, &bytes))
    return 0;                   /* already reported by the walk */
  good = seen_ask (s->seen, descriptor);
  if (good == -1) {
    in = get_bytes (f, offset, bytes);
    if (in == NULL)
      return unreadable (s, offset, bytes);
    good = inflate (f, in, offset, bytes);
    if (good == -1)
      return -1;
    seen_tell (s->seen, descriptor, good);
  }
  if (good)
    return 0;
  findings_add (s->findings, FINDING_COMPRESSED, f->table->times, offset,
                "the compressed cluster at %" PRIu64 ", for %s offset %" PRIu64 ", "
                "cannot be decompressed", offset,
                f->table->active ? "guest" : "a snapshot's", guest);
  return 0;
}

static uint64_t
pieces_of_table (const struct scan *s)
{
  return div_up (s->h->cluster_size, PIECE);
}

static int
inflate_pieces (void *opaque, void *buffer, uint64_t from, uint64_t to)
{
  struct scan *s = opaque;
  const uint64_t cs = s->h->cluster_size;
  const uint64_t bytes = min64 (cs, PIECE);
  const unsigned step = entry_words (s->h);
  struct inflating f = {
    .s = s, .piece = buffer, .out = (unsigned char *) buffer + PIECE,
    .in = (unsigned char *) buffer + PIECE + cs,
    .room = max64 (SCAN_BUFFER, 2 * cs),
  };
  uint64_t at, i, entry;

  for (; from < to; from++) {
    f.table = &s->tables[from / pieces_of_table (s)];
    if (!f.table->compressed)
      continue;
    at = from % pieces_of_table (s) * PIECE;
    if (storage_read (s->file, f.piece, bytes, f.table->offset + at) == -1)
      return -1;
    for (i = 0; i < bytes / sizeof *f.piece; i += step) {
      entry = get64 (f.piece[i]);
      if ((entry & QCOW2_OFLAG_COMPRESSED) &&
          inflate_one (&f, entry, at / s->h->l2_entry_size + i / step) == -1)
        return -1;
    }
  }
  return 0;
}

int
scan_inflate_all (void *opaque, const struct walk_l2 *tables, uint32_t n)
{
  struct scan *s = opaque;
  const uint64_t cs = s->h->cluster_size;

  if (!s->full)
    return 0;
  s->tables = tables;
  /* (That many bytes of data are made.) */
  pace_expect (s->pace, s->compressed * cs);
  pace_part (s->pace, s->compressed * cs);
  return parallel_run (storage_path (s->file), n * pieces_of_table (s), 1,
                       PIECE + cs + max64 (SCAN_BUFFER, 2 * cs), inflate_pieces, s,
                       s->pace);
}

/* --- the file --- */

static int
read_pieces (void *opaque, void *buffer, uint64_t from, uint64_t to)
{
  struct scan *s = opaque;

  for (; from < to; from++)
    if (storage_read (s->file, buffer, s->pieces[from].bytes,
                      s->pieces[from].offset) == -1 &&
        unreadable (s, s->pieces[from].offset, s->pieces[from].bytes) == -1)
      return -1;
  return 0;
}

static int
read_gathered (struct scan *s, uint64_t items)
{
  uint64_t bytes = 0;

  for (uint64_t i = 0; i < items; i++)
    bytes += s->pieces[i].bytes;
  pace_part (s->pace, bytes);
  return parallel_run (storage_path (s->file), items, 1, READ_SIZE, read_pieces, s,
                       s->pace);
}

/* Skips holes, whatever their size. */
int
scan_read_all (struct scan *s)
{
  const uint64_t size = storage_size (s->file);
  struct scan_piece pieces[PIECES];
  struct storage_holes known;
  uint64_t at, n, items = 0;

  storage_holes_begin (&known, false);
  s->pieces = pieces;
  for (at = 0; at < size; at += n) {
    n = size - at;
    if (!storage_hole_ahead (s->file, &known, at, size, &n)) {
      n = min64 (n, READ_SIZE);
      pieces[items++] = (struct scan_piece) { at, n };
    }
    if (items == PIECES) {
      if (read_gathered (s, items) == -1)
        return -1;
      items = 0;
    }
  }
  return read_gathered (s, items);
}
