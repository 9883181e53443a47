/* SPDX-License-Identifier: BSD-3-Clause
 *
 * How does the header come to name another bitmap directory?
 *
 * Specification: "Header extensions", "Bitmaps extension".
 *
 * The directory is named by an extension of the header, which counts only while the
 * autoclear bit of bitmaps is set.  What may be torn by a power cut is a write of more than
 * one sector.  So each step below is a write within one sector, or concerns bytes
 * that nobody reads yet; and each is durable before the next:
 *
 *   replaced  the extension's 24 bytes.  If they lie across two sectors: the bit is
 *             cleared before and set after that, as QEMU does it for each change
 *   new       its data and a new end mark behind the old end mark; then type and length, over
 *             the old one; then the bit
 *   removed   the bit; then an end mark over its type and length
 *
 * Who must change the extension and fields of the header at once needs it in the first
 * sector: it is moved to the front of the list, in steps that all mean the same:
 *
 *   - the new list, and the name of the backing file, go into unused space behind
 *     the old ones
 *   - in the first sector: the list and the name are there (header_length says where the
 *     list begins)
 *   - what of the new list lies behind the first sector goes to its place
 *   - in the first sector: the rest of it; list and name are here
 *
 * A new extension may need the place where the name of the backing file is: that is
 * copied further back in the header's cluster first.  An extension is removed only if it is
 * the last one, where QEMU and we put it: to move others is to risk them.
 *
 * Locks: none; the caller is alone with the header.
 */

#include <config.h>

#include <errno.h>
#include <inttypes.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "bitmapext.h"
#include "bytes.h"
#include "cleanup.h"
#include "format.h"
#include "report.h"

#define SECTOR 512
#define WHOLE (sizeof (struct qcow2_extension) + sizeof (struct qcow2_ext_bitmaps))

/* The header's cluster, and what was found there. */
struct place {
  uint8_t *buf;
  uint64_t name, name_len;      /* backing file; 0: none */
  uint64_t end;                 /* of the room for extensions */
  uint64_t at;                  /* of the bitmaps extension, or of the end mark */
  bool found, last;             /* the extension is there; and is the last */
  uint64_t new_name;            /* where the name has to go; 0: it may stay */
};

static int
refuse (struct hostfile *file, const char *why)
{
  nbdkit_error ("%s: bitmaps can't be changed: %s", hostfile_path (file), why);
  errno = ENOTSUP;
  return -1;
}

/* The header was parsed: all extensions are well-formed. */
static void
scan (struct place *p, const struct header *h)
{
  struct qcow2_extension ext;
  uint64_t pos, len;

  for (pos = h->header_length; pos + sizeof ext <= p->end; pos += len) {
    memcpy (&ext, p->buf + pos, sizeof ext);
    if (get32 (ext.type) == QCOW2_EXT_END)
      break;
    p->last = false;
    len = sizeof ext + round_up (get32 (ext.len), 8);
    if (get32 (ext.type) == QCOW2_EXT_BITMAPS) {
      p->found = p->last = true;
      p->at = pos;
    }
  }
  if (!p->found)
    p->at = pos;
}

/* Is there room for a new extension? */
static int
find_room (struct place *p, struct hostfile *file, const struct header *h)
{
  const uint64_t need = p->at + WHOLE + sizeof (struct qcow2_extension);

  if (need <= p->end)
    return 0;
  if (p->name == 0)
    return refuse (file, "there is no room in the header");
  /* Not over the old copy of the name, which counts until the new one does. */
  p->new_name = round_up (max64 (need, p->name + p->name_len), 8);
  if (!range_within (p->new_name, p->name_len, h->cluster_size))
    return refuse (file, "there is no room in the header, which has the name of the "
                   "backing file");
  return 0;
}

/* P->buf is to be freed, in any case. */
static int
look (struct place *p, struct hostfile *file, const struct header *h, bool none)
{
  struct qcow2_header raw;

  memset (p, 0, sizeof *p);
  if (h->version < 3)
    return refuse (file, "only images of version 3 can have bitmaps");
  p->buf = malloc (h->cluster_size);
  if (p->buf == NULL) {
    nbdkit_error ("malloc: %m");
    return -1;
  }
  if (hostfile_read (file, p->buf, h->cluster_size, 0) == -1)
    return -1;
  memcpy (&raw, p->buf, min64 (sizeof raw, h->cluster_size));
  p->name = get64 (raw.backing_file_offset);
  p->name_len = p->name ? get32 (raw.backing_file_size) : 0;
  p->end = p->name ? min64 (p->name, h->cluster_size) : h->cluster_size;
  scan (p, h);
  if (none && p->found && !p->last)
    return refuse (file, "an unknown extension of the header follows that of "
                   "bitmaps, so the last bitmap can't be removed");
  return none || p->found ? 0 : find_room (p, file, h);
}

int
bitmapext_check (struct hostfile *file, const struct header *h, bool none)
{
  struct place p;
  const int r = look (&p, file, h, none);

  free (p.buf);
  return r;
}

/* Writes and syncs. */
static int
put (struct hostfile *file, const void *data, size_t size, uint64_t at)
{
  return hostfile_write (file, data, size, at) == -1 ? -1
    : hostfile_sync (file);
}

static int
set_autoclear (struct hostfile *file, struct header *h, bool on)
{
  const uint64_t value = on ? h->autoclear | QCOW2_AUTOCLEAR_BITMAPS
    : h->autoclear & ~QCOW2_AUTOCLEAR_BITMAPS;
  const struct be64 raw = put64 (value);

  if (value == h->autoclear)
    return 0;
  if (put (file, &raw, sizeof raw,
           offsetof (struct qcow2_header, autoclear_features)) == -1)
    return -1;
  h->autoclear = value;
  return 0;
}

static int
insert (struct place *p, struct hostfile *file,
        const struct qcow2_ext_bitmaps *data)
{
  const struct qcow2_extension ext = {
    put32 (QCOW2_EXT_BITMAPS), put32 (sizeof *data),
  };
  struct { struct qcow2_ext_bitmaps data; struct qcow2_extension end; } rest =
    { .data = *data };
  const struct be64 name = put64 (p->new_name);

  if (p->new_name != 0 &&
      (put (file, p->buf + p->name, p->name_len, p->new_name) == -1 ||
       put (file, &name, sizeof name,
            offsetof (struct qcow2_header, backing_file_offset)) == -1))
    return -1;
  return put (file, &rest, sizeof rest, p->at + sizeof ext) == -1 ? -1
    : put (file, &ext, sizeof ext, p->at);
}

static int
replace (struct place *p, struct hostfile *file, struct header *h,
         const struct qcow2_ext_bitmaps *data)
{
  const uint64_t at = p->at + sizeof (struct qcow2_extension);

  if (at / SECTOR != (at + sizeof *data - 1) / SECTOR &&
      set_autoclear (file, h, false) == -1)
    return -1;
  return put (file, data, sizeof *data, at);
}

int
bitmapext_set (struct hostfile *file, struct header *h, uint32_t count,
               uint64_t size, uint64_t offset)
{
  const struct qcow2_ext_bitmaps data = {
    .nb_bitmaps = put32 (count), .directory_size = put64 (size),
    .directory_offset = put64 (offset),
  };
  const struct qcow2_extension end = { put32 (QCOW2_EXT_END), put32 (0) };
  struct place p;
  int r = look (&p, file, h, count == 0);

  if (r == 0 && count == 0) {
    r = set_autoclear (file, h, false);
    if (r == 0 && p.found)
      r = put (file, &end, sizeof end, p.at);
  }
  else if (r == 0) {
    r = p.found ? replace (&p, file, h, &data) : insert (&p, file, &data);
    if (r == 0)
      r = set_autoclear (file, h, true);
  }
  free (p.buf);
  if (r == -1)
    return -1;
  h->has_bitmaps = count != 0;
  h->bitmaps.count = count;
  h->bitmaps.dir_size = size;
  h->bitmaps.dir_offset = offset;
  return 0;
}

/* --- to the front --- */

/* The list, from header_length on, without an end mark: its length. */
static uint64_t
list_length (const struct place *p, const struct header *h)
{
  struct qcow2_extension ext;
  uint64_t pos = h->header_length;

  while (pos + sizeof ext <= p->end) {
    memcpy (&ext, p->buf + pos, sizeof ext);
    if (get32 (ext.type) == QCOW2_EXT_END)
      break;
    pos += sizeof ext + round_up (get32 (ext.len), 8);
  }
  return min64 (pos, p->end) - h->header_length;
}

/* SECTOR_0: the first sector, which is to say that the list and the name are there. */
static int
point_to (struct place *p, struct hostfile *file, const uint8_t *sector_0,
          uint64_t list, uint64_t name)
{
  struct qcow2_header raw;
  uint8_t buf[SECTOR];

  memcpy (buf, sector_0, SECTOR);
  memcpy (&raw, buf, sizeof raw);
  /* A header that was shorter had no such fields; what is there is of the list. */
  if (list > get32 (raw.header_length) &&
      get32 (raw.header_length) < sizeof raw)
    memset ((char *) &raw + get32 (raw.header_length), 0,
            sizeof raw - get32 (raw.header_length));
  raw.header_length = put32 (list);
  if (p->name != 0)
    raw.backing_file_offset = put64 (name);
  memcpy (buf, &raw, sizeof raw);
  return put (file, buf, SECTOR, 0);
}

/* SPARE: where list and name can be for a while, ROOM bytes. */
static int
move_to_front (struct place *p, struct hostfile *file, uint64_t list,
               uint64_t len, uint64_t spare, uint64_t room)
{
  const uint64_t name = spare + room - p->name_len;
  CLEANUP_FREE uint8_t *away = calloc (1, room);
  uint8_t mine[WHOLE];

  if (away == NULL) {
    nbdkit_error ("calloc: %m");
    return -1;
  }
  memcpy (away, p->buf + p->at, WHOLE);
  memcpy (away + WHOLE, p->buf + list, p->at - list);
  memcpy (away + WHOLE + (p->at - list), p->buf + p->at + WHOLE,
          list + len - (p->at + WHOLE));
  memcpy (away + (name - spare), p->buf + p->name, p->name_len);
  if (put (file, away, room, spare) == -1 ||
      point_to (p, file, p->buf, spare, name) == -1)
    return -1;

  memcpy (mine, p->buf + p->at, WHOLE);
  memmove (p->buf + list + WHOLE, p->buf + list, p->at - list);
  memcpy (p->buf + list, mine, WHOLE);
  if (put (file, p->buf + SECTOR, list + len - SECTOR, SECTOR) == -1 ||
      point_to (p, file, p->buf, list, p->name) == -1)
    return -1;
  memset (away, 0, room);
  return hostfile_write (file, away, room, spare);
}

int
bitmapext_lead (struct hostfile *file, const struct header *h, uint64_t *at)
{
  const uint64_t list = h->header_length;
  uint64_t len, spare, room;
  struct place p;
  int r = look (&p, file, h, false);

  if (r == 0 && !p.found)
    r = refuse (file, "the header has no extension for them");
  if (r == -1 || p.at + WHOLE <= SECTOR)
    goto out;
  len = list_length (&p, h);
  spare = round_up (max64 (list + len + sizeof (struct qcow2_extension),
                           p.name + p.name_len), 8);
  room = len + sizeof (struct qcow2_extension) + p.name_len;
  if (list + WHOLE > SECTOR || !range_within (spare, room, h->cluster_size))
    r = refuse (file, "there is no room in the header");
  else if (at) {
    r = move_to_front (&p, file, list, len, spare, room);
    p.at = list;
  }
 out:
  free (p.buf);
  if (r == 0 && at)
    *at = p.at + sizeof (struct qcow2_extension);
  return r;
}
