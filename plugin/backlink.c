/* SPDX-License-Identifier: BSD-3-Clause
 *
 * How does a header stop naming a backing file?
 *
 * Specification: "Header" (backing_file_offset), "Header extensions".
 *
 * Two things go: the name, for which eight and four bytes of the header are set to 0;
 * and the extension with the format's name, for which those that follow move up (R8:
 * byte for byte).  A crash may tear a write between sectors of 512 bytes, so each step
 * is durable before the next, and what matters of it lies in one sector:
 *
 *   if the list of extensions ends in the first sector: all in one write.
 *
 *   else, if there is room behind it, and the header has all fields (header_length says
 *   where the list begins):
 *     1  write the new list into unused space behind the old one and the name
 *     2  in the first sector: no backing file, and the list is there
 *     3  write the new list in the place of the old one
 *     4  in the first sector: the list is here
 *
 *   else only the name goes.  A format without a file means nothing.
 *
 * What is not in use afterwards is set to 0.
 *
 * Locks: none; the writer's lock is held, and nobody else writes these bytes.
 */

#include <config.h>

#include <stdlib.h>
#include <string.h>

#include "backlink.h"
#include "bytes.h"
#include "cleanup.h"
#include "report.h"

#define SECTOR 512

/* The beginning of the file, and what is where. */
struct layout {
  struct hostfile *file;
  unsigned char *buf;           /* the first cluster */
  uint64_t size;                /* of it, bytes */
  uint64_t list, list_end;      /* extensions, with the one that ends them */
  uint64_t used_end;            /* of list and name */
  unsigned char *new;           /* the new list */
  uint64_t new_len;
};

static int
write_bytes (struct layout *l, const void *buf, uint64_t from, uint64_t to)
{
  return from < to ? hostfile_write (l->file, buf, to - from, from) : 0;
}

static int
write_zeros (struct layout *l, uint64_t from, uint64_t to)
{
  if (from >= to)
    return 0;
  memset (l->buf + from, 0, to - from);
  return write_bytes (l, l->buf + from, from, to);
}

/* Finds the extensions, which header.c has checked, and makes the new list. */
static void
read_list (struct layout *l, const struct header *h, uint64_t limit)
{
  struct qcow2_extension ext;
  uint64_t pos = h->header_length, len;

  l->list = pos;
  while (range_within (pos, sizeof ext, limit)) {
    memcpy (&ext, l->buf + pos, sizeof ext);
    if (get32 (ext.type) == QCOW2_EXT_END)
      break;
    len = min64 (sizeof ext + round_up (get32 (ext.len), 8), limit - pos);
    if (get32 (ext.type) != QCOW2_EXT_BACKING_FORMAT) {
      memcpy (l->new + l->new_len, l->buf + pos, len);
      l->new_len += len;
    }
    pos += len;
  }
  /* NEW is zeros from here on, and so ends the list. */
  l->new_len += sizeof ext;
  l->list_end = min64 (pos + sizeof ext, limit);
}

/* Changes the header in the first sector: no backing file, and extensions from LIST. */
static int
write_header (struct layout *l, const struct header *h, uint64_t list)
{
  struct qcow2_header raw;
  uint64_t end = QCOW2_V2_HEADER_SIZE;

  memcpy (&raw, l->buf, sizeof raw);
  raw.backing_file_offset = put64 (0);
  raw.backing_file_size = put32 (0);
  if (h->version >= 3) {
    raw.header_length = put32 (list);
    end = QCOW2_V3_HEADER_MIN;
  }
  memcpy (l->buf, &raw, end);
  if (write_bytes (l, l->buf, 0, end) == -1)
    return -1;
  return hostfile_sync (l->file);
}

static int
remove_in_one_sector (struct layout *l)
{
  struct qcow2_header *raw = (struct qcow2_header *) l->buf;

  raw->backing_file_offset = put64 (0);
  raw->backing_file_size = put32 (0);
  memset (l->buf + l->list, 0, min64 (l->used_end, SECTOR) - l->list);
  memcpy (l->buf + l->list, l->new, l->new_len);
  if (write_bytes (l, l->buf, 0, min64 (l->size, SECTOR)) == -1 ||
      hostfile_sync (l->file) == -1)
    return -1;
  return write_zeros (l, SECTOR, l->used_end);
}

static int
remove_in_steps (struct layout *l, const struct header *h, uint64_t spare)
{
  if (write_bytes (l, l->new, spare, spare + l->new_len) == -1 ||
      hostfile_sync (l->file) == -1 ||
      write_header (l, h, spare) == -1)
    return -1;
  if (write_bytes (l, l->new, l->list, l->list + l->new_len) == -1 ||
      hostfile_sync (l->file) == -1 ||
      write_header (l, h, l->list) == -1)
    return -1;
  return write_zeros (l, l->list + l->new_len, spare + l->new_len);
}

int
backlink_remove (struct hostfile *file, const struct header *h)
{
  CLEANUP_FREE unsigned char *buf = calloc (1, h->cluster_size);
  CLEANUP_FREE unsigned char *new = calloc (1, h->cluster_size);
  struct layout l = {
    .file = file, .buf = buf, .new = new,
    .size = min64 (h->cluster_size, hostfile_size (file)),
  };
  struct qcow2_header raw;
  uint64_t name, name_end, spare;
  int r;

  if (buf == NULL || new == NULL) {
    nbdkit_error ("calloc: %m");
    return -1;
  }
  if (hostfile_read (file, buf, l.size, 0) == -1)
    return -1;
  memcpy (&raw, buf, sizeof raw);
  name = get64 (raw.backing_file_offset);
  name_end = name + get32 (raw.backing_file_size);
  if (name == 0)
    return 0;

  read_list (&l, h, min64 (name, l.size));
  l.used_end = max64 (l.list_end, name_end);
  spare = round_up (l.used_end, 8);
  if (l.list + l.new_len <= SECTOR && l.list_end <= SECTOR)
    r = remove_in_one_sector (&l);
  /* (In a longer header than one of 104 bytes, the next byte is no extension's but the
   * compression type.) */
  else if (h->version >= 3 && h->header_length > QCOW2_V3_HEADER_MIN &&
           l.new_len < l.list_end - l.list &&
           range_within (spare, l.new_len, l.size))
    r = remove_in_steps (&l, h, spare);
  else {
    r = write_header (&l, h, l.list);
    if (r == 0)
      r = write_zeros (&l, name, name_end);
  }
  return r == -1 ? -1 : hostfile_sync (file);
}
