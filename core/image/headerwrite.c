/* SPDX-License-Identifier: BSD-3-Clause
 *
 * How is the header of an image changed, all at once?
 *
 * Specification: "Header", "Header extensions".
 *
 *    0         header_length        backing_file_offset       cluster size
 *    | fields  | list of extensions |   | name |   unused     |
 *
 * A power cut may tear a write between sectors of 512 bytes.  All changes, of fields,
 * extensions and the name of the backing file, must become visible together or not at
 * all.  So one write within one sector publishes them:
 *
 *   if all bytes that both the old and the new header use, and that differ, lie in one
 *   sector:
 *     1  write bytes that the old header does not use
 *     2  write that sector                               <- the new header counts
 *     3  write bytes that the new header does not use: zeros
 *
 *   else the list and the name are moved out of the way for a while:
 *     1  write the new list and the new name into unused space behind the old ones
 *     2  in the first sector: the new fields; list and name are there (header_length
 *        says where the list begins)                     <- the new header counts
 *     3  write what of the new list and name is in other sectors, to its place
 *     4  in the first sector: list and name are here
 *     5  write zeros where they were
 *
 * Each step is durable before the next one.  After a power cut between 2 and 4 the list
 * stays at its temporary place, which is just as valid.
 *
 * The second way needs the field header_length (version 3, before and after) and unused
 * space.  If the list has grown up to the name, the name needs a new place too.  If there
 * is no way, headerwrite_fits says so before anything is changed.
 *
 * R8: fields and extensions that the caller does not name keep their bytes, and
 * extensions keep their order.
 *
 * Other modules change single fields directly (refwrite, repair, health, check,
 * writable).  Each of these writes lies within the first sector.
 *
 * Locks: none; no other thread uses the header.
 */

#include <config.h>

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "util/bytes.h"
#include "util/cleanup.h"
#include "util/report.h"
#include "format/format.h"
#include "image/headerwrite.h"

#define SECTOR 512
#define EXTS_CLUSTERS 3         /* buffer size for the new extensions */

/* The used parts of the first cluster: [0, list_end), [name, name + name_len). */
struct layout {
  uint64_t list;                /* start of the extensions: header_length */
  uint64_t list_end;            /* including the end mark, if there is one */
  uint64_t name, name_len;      /* name 0: no backing file */
};

struct headerwrite {
  struct storage *file;
  uint64_t cs;                  /* cluster size */
  unsigned version;             /* new */
  uint64_t list;                /* new: start of the extensions */
  uint8_t *old, *new;           /* the first cluster before and after the change */
  struct layout was, will;      /* find_way sets `new' and `will' */
  struct qcow2_header fields;   /* new */
  uint8_t *exts;                /* new, without an end mark */
  uint64_t exts_len;
  bool backing;                 /* new: the image has a backing file */
  const void *name;             /* its name, in `old' or the caller's */
  uint64_t name_len;
};

enum way { NO_WAY, ONE_SECTOR, ELSEWHERE };

/* --- the old header --- */

/* The size, with padding, of the extension at AT in a list that ends at END; 0 at the end
 * of the list. */
static uint64_t
extension_at (const uint8_t *bytes, uint64_t at, uint64_t end,
              struct qcow2_extension *ext)
{
  if (!range_within (at, sizeof *ext, end))
    return 0;
  memcpy (ext, bytes + at, sizeof *ext);
  return get32 (ext->type) == QCOW2_EXT_END ? 0
    : min64 (sizeof *ext + round_up (get32 (ext->len), 8), end - at);
}

/* header.c has checked that everything is well-formed. */
static void
find_extensions (struct headerwrite *w)
{
  struct qcow2_extension ext;
  uint64_t limit = w->cs, end = w->list, len;

  w->was.list = w->list;
  memcpy (&w->fields, w->old, min64 (w->list, sizeof w->fields));
  w->was.name = get64 (w->fields.backing_file_offset);
  w->was.name_len = w->was.name ? get32 (w->fields.backing_file_size) : 0;
  w->backing = w->was.name != 0;
  w->name = w->old + w->was.name;
  w->name_len = w->was.name_len;
  if (w->backing)
    limit = min64 (limit, w->was.name);
  while ((len = extension_at (w->old, end, limit, &ext)) != 0)
    end += len;
  w->exts_len = end - w->list;
  memcpy (w->exts, w->old + w->list, w->exts_len);
  w->was.list_end = end + (range_within (end, sizeof ext, limit) ? sizeof ext : 0);
}

struct headerwrite *
headerwrite_new (struct storage *file, const struct header *h)
{
  struct headerwrite *w = calloc (1, sizeof *w);

  if (w) {
    w->file = file;
    w->cs = h->cluster_size;
    w->version = h->version;
    w->list = h->header_length;
    w->old = malloc (w->cs);
    w->new = malloc (w->cs);
    w->exts = calloc (EXTS_CLUSTERS, w->cs);
  }
  if (w == NULL || w->old == NULL || w->new == NULL || w->exts == NULL) {
    report_error ("%s: header: %m", storage_path (file));
    headerwrite_free (w);
    return NULL;
  }
  if (storage_read (file, w->old, w->cs, 0) == -1) {
    headerwrite_free (w);
    return NULL;
  }
  find_extensions (w);
  return w;
}

void
headerwrite_free (struct headerwrite *w)
{
  KEEP_ERRNO_FOR_BLOCK;

  if (w == NULL)
    return;
  free (w->old);
  free (w->new);
  free (w->exts);
  free (w);
}

/* --- the new header --- */

struct qcow2_header *
headerwrite_fields (struct headerwrite *w)
{
  return &w->fields;
}

void
headerwrite_drop_foreign (struct headerwrite *w)
{
  w->fields.autoclear_features =
    put64 (get64 (w->fields.autoclear_features) &
           (QCOW2_AUTOCLEAR_BITMAPS | QCOW2_AUTOCLEAR_RAW_DATA_FILE));
}

/* The position of the extension in w->exts, at FROM or behind it, and its size in *LEN.
 * UINT64_MAX: there is none. */
static uint64_t
find (const struct headerwrite *w, uint32_t type, uint64_t from, uint64_t *len)
{
  struct qcow2_extension ext;
  uint64_t at;

  for (at = from; (*len = extension_at (w->exts, at, w->exts_len, &ext)) != 0; at += *len)
    if (get32 (ext.type) == type)
      return at;
  return UINT64_MAX;
}

/* Removes all of this type at FROM or behind it.  (QEMU takes the last one of two.) */
static void
drop_from (struct headerwrite *w, uint32_t type, uint64_t from)
{
  uint64_t at, len;

  while ((at = find (w, type, from, &len)) != UINT64_MAX) {
    memmove (w->exts + at, w->exts + at + len, w->exts_len - (at + len));
    w->exts_len -= len;
    memset (w->exts + w->exts_len, 0, len);
  }
}

void
headerwrite_put_extension (struct headerwrite *w, uint32_t type, const void *data,
                           uint32_t len)
{
  const struct qcow2_extension ext = { put32 (type), put32 (len) };
  const uint64_t want = sizeof ext + round_up (len, 8);
  uint64_t is, at = find (w, type, 0, &is);

  if (at == UINT64_MAX) {
    /* (The padding of the last one may have been cut off.) */
    w->exts_len = at = round_up (w->exts_len, 8);
    is = 0;
  }
  else
    drop_from (w, type, at + is);
  assert (w->exts_len - is + want <= EXTS_CLUSTERS * w->cs);
  memmove (w->exts + at + want, w->exts + at + is, w->exts_len - (at + is));
  w->exts_len = w->exts_len - is + want;
  memset (w->exts + at, 0, want);
  memcpy (w->exts + at, &ext, sizeof ext);
  memcpy (w->exts + at + sizeof ext, data, len);
}

void
headerwrite_drop_extension (struct headerwrite *w, uint32_t type)
{
  drop_from (w, type, 0);
}

bool
headerwrite_has_extension (const struct headerwrite *w, uint32_t type)
{
  uint64_t ignored;

  return find (w, type, 0, &ignored) != UINT64_MAX;
}

void
headerwrite_set_backing (struct headerwrite *w, const char *name)
{
  w->name = name;
  w->name_len = strlen (name);
  w->backing = w->name_len > 0;
  w->fields.backing_file_offset = put64 (0);
  w->fields.backing_file_size = put32 (w->name_len);
}

void
headerwrite_set_version (struct headerwrite *w, unsigned version)
{
  struct qcow2_header *const h = &w->fields;
  const size_t since_3 = offsetof (struct qcow2_header, incompatible_features);

  w->version = version;
  w->list = version >= 3 ? sizeof *h : QCOW2_V2_HEADER_SIZE;
  memset ((char *) h + since_3, 0, sizeof *h - since_3);
  h->version = put32 (version);
  h->refcount_order = put32 (QCOW2_V2_REFCOUNT_ORDER);
  h->header_length = put32 (w->list);
  if (version < 3)
    headerwrite_drop_extension (w, QCOW2_EXT_FEATURE_NAMES);
}

/* --- the new first cluster --- */

/* Makes the new first cluster, with the name at NAME.  False: it does not fit. */
static bool
make_new (struct headerwrite *w, uint64_t name)
{
  const uint64_t limit = w->backing ? name : w->cs;
  const uint64_t mark = sizeof (struct qcow2_extension);

  w->will.list = w->list;
  w->will.name = w->backing ? name : 0;
  w->will.name_len = w->name_len;
  w->will.list_end = w->list + w->exts_len;
  if (range_within (w->will.list_end, mark, limit))
    w->will.list_end += mark;
  else if (w->will.list_end < limit ||
           (w->will.list_end > limit && (w->exts_len != 0 || w->name_len != 0)))
    return false;
  if (!range_within (w->will.name, w->will.name_len, w->cs))
    return false;

  memcpy (w->new, w->old, w->cs);
  memset (w->new + min64 (w->was.list, w->list), 0,
          w->was.list_end - min64 (w->was.list, w->list));
  memset (w->new + w->was.name, 0, w->was.name_len);
  memset (w->new + w->list, 0, w->will.list_end - w->list);
  w->fields.backing_file_offset = put64 (w->will.name);
  memcpy (w->new, &w->fields, min64 (w->list, sizeof w->fields));
  memcpy (w->new + w->list, w->exts, w->exts_len);
  memcpy (w->new + w->will.name, w->name, w->will.name_len);
  return true;
}

/* --- planning the steps --- */

static bool
used (const struct layout *l, uint64_t at)
{
  return at < l->list_end || (at >= l->name && at - l->name < l->name_len);
}

/* The kind of the byte at AT.  SAME: does not change; BEFORE: only the new header uses
 * it; CORE: both use it; AFTER: only the old header uses it. */
enum byte { SAME, BEFORE, CORE, AFTER };

static enum byte
kind_of (const struct headerwrite *w, uint64_t at)
{
  return w->old[at] == w->new[at] ? SAME
    : !used (&w->was, at) ? BEFORE
    : used (&w->will, at) ? CORE : AFTER;
}

/* The sector that contains all CORE bytes; the first sector if there are none.
 * UINT64_MAX if they lie in several sectors. */
static uint64_t
core_sector (const struct headerwrite *w)
{
  uint64_t at, sector = UINT64_MAX;

  for (at = 0; at < w->cs; at++)
    if (kind_of (w, at) == CORE) {
      if (sector != UINT64_MAX && at / SECTOR != sector)
        return UINT64_MAX;
      sector = at / SECTOR;
    }
  return sector == UINT64_MAX ? 0 : sector;
}

/* The temporary place of list and name. */
static uint64_t
spare_place (const struct headerwrite *w)
{
  return round_up (max64 (max64 (w->was.list_end, w->was.name + w->was.name_len),
                          max64 (w->will.list_end, w->will.name + w->will.name_len)),
                   8);
}

static uint64_t
spare_size (const struct headerwrite *w)
{
  return w->exts_len + sizeof (struct qcow2_extension) + w->will.name_len;
}

static enum way
find_way_with (struct headerwrite *w, uint64_t name)
{
  if (!make_new (w, name))
    return NO_WAY;
  if (core_sector (w) != UINT64_MAX)
    return ONE_SECTOR;
  return w->version >= 3 && w->will.list == w->was.list &&
    range_within (spare_place (w), spare_size (w), w->cs) ? ELSEWHERE : NO_WAY;
}

/* Tries to keep the name in its place, then to move it past its old place, then to right
 * after the list. */
static enum way
find_way (struct headerwrite *w)
{
  const uint64_t after_list =
    round_up (w->list + w->exts_len + sizeof (struct qcow2_extension), 8);
  const uint64_t places[] = {
    w->was.name ? w->was.name : after_list,
    round_up (max64 (after_list, w->was.name + w->was.name_len), 8),
    after_list,
  };
  enum way way = NO_WAY;

  for (unsigned i = 0; i < sizeof places / sizeof *places && way == NO_WAY; i++)
    way = find_way_with (w, places[i]);
  return way;
}

bool
headerwrite_fits (struct headerwrite *w)
{
  return find_way (w) != NO_WAY;
}

/* --- making the change --- */

static int
put (struct headerwrite *w, const void *data, uint64_t size, uint64_t at)
{
  return storage_write (w->file, data, size, at) == -1 ? -1
    : storage_sync (w->file);
}

/* Writes all new bytes of KIND, and no bytes of other kinds, outside sector EXCEPT. */
static int
put_kind (struct headerwrite *w, enum byte kind, uint64_t except)
{
  uint64_t at, end, next;
  bool any = false;
  enum byte k;

  for (at = 0; at < w->cs; at = end) {
    end = at + 1;
    if (at / SECTOR == except || kind_of (w, at) != kind)
      continue;
    for (next = end; next < w->cs && next / SECTOR != except; next++) {
      k = kind_of (w, next);
      if (k == kind)
        end = next + 1;
      else if (k != SAME)
        break;
    }
    any = true;
    if (storage_write (w->file, w->new + at, end - at, at) == -1)
      return -1;
  }
  return any ? storage_sync (w->file) : 0;
}

/* Changes the LEN bytes WAS, which are at AT in the file, to IS.  Only writes the range
 * from the first to the last difference. */
static int
put_difference (struct headerwrite *w, const uint8_t *was, const uint8_t *is,
                uint64_t len, uint64_t at)
{
  uint64_t first = 0;

  while (len > 0 && was[len - 1] == is[len - 1])
    len--;
  while (first < len && was[first] == is[first])
    first++;
  return first == len ? 0 : put (w, is + first, len - first, at + first);
}

static int
change_one_sector (struct headerwrite *w, bool *begun)
{
  const uint64_t sector = core_sector (w), at = sector * SECTOR;

  if (put_kind (w, BEFORE, sector) == -1)
    return -1;
  *begun = true;
  if (put_difference (w, w->old + at, w->new + at, SECTOR, at) == -1)
    return -1;
  return put_kind (w, AFTER, sector);
}

/* Makes the first sector of a header whose list and name are in other places. */
static void
make_detour (const struct headerwrite *w, uint64_t list, uint64_t name,
             uint8_t *sector)
{
  struct qcow2_header fields = w->fields;

  fields.header_length = put32 (list);
  if (w->backing)
    fields.backing_file_offset = put64 (name);
  /* (If the header was shorter, these bytes belong to the old list.) */
  memcpy (sector, w->old, SECTOR);
  memcpy (sector, &fields, min64 (list, sizeof fields));
}

static int
change_elsewhere (struct headerwrite *w, bool *begun)
{
  const uint64_t spare = spare_place (w), size = spare_size (w);
  const uint64_t name = spare + size - w->will.name_len;
  CLEANUP_FREE uint8_t *away = calloc (1, size);
  uint8_t detour[SECTOR];

  if (away == NULL) {
    report_error ("%s: header: %m", storage_path (w->file));
    return -1;
  }
  memcpy (away, w->exts, w->exts_len);
  memcpy (away + (name - spare), w->name, w->will.name_len);
  make_detour (w, spare, name, detour);

  if (put (w, away, size, spare) == -1)
    return -1;
  *begun = true;
  if (put_difference (w, w->old, detour, SECTOR, 0) == -1 ||
      put_difference (w, w->old + SECTOR, w->new + SECTOR, w->cs - SECTOR,
                      SECTOR) == -1 ||
      put_difference (w, detour, w->new, SECTOR, 0) == -1)
    return -1;
  memset (away, 0, size);
  return put (w, away, size, spare);
}

int
headerwrite_commit (struct headerwrite *w, bool *begun)
{
  bool unused;

  if (begun == NULL)
    begun = &unused;
  *begun = false;
  switch (find_way (w)) {
  case ONE_SECTOR:
    return change_one_sector (w, begun);
  case ELSEWHERE:
    return change_elsewhere (w, begun);
  case NO_WAY:
    break;
  }
  return report_refusal (ENOSPC, "%s: the header cluster of %" PRIu64 " bytes has no "
                         "space for this change", storage_path (w->file), w->cs);
}

int
headerwrite_ahead (struct headerwrite *w, bool *begun)
{
  *begun = false;
  if (find_way (w) != ONE_SECTOR)
    return 0;
  return memcmp (w->old, w->new, w->was.list) == 0 ? change_one_sector (w, begun)
    : put_kind (w, BEFORE, core_sector (w));
}

/* --- single fields, in place --- */

static int
write_durably (struct storage *file, const void *fields, size_t bytes, size_t offset)
{
  return storage_write (file, fields, bytes, offset) == -1 ? -1 : storage_sync (file);
}

int
headerwrite_incompatible (struct storage *file, uint64_t bits)
{
  const struct be64 field = put64 (bits);

  return write_durably (file, &field, sizeof field,
                        offsetof (struct qcow2_header, incompatible_features));
}

int
headerwrite_autoclear (struct storage *file, uint64_t bits)
{
  const struct be64 field = put64 (bits);

  return write_durably (file, &field, sizeof field,
                        offsetof (struct qcow2_header, autoclear_features));
}

int
headerwrite_features (struct storage *file, uint64_t incompatible, uint64_t compatible,
                      uint64_t autoclear)
{
  const struct be64 fields[] = {
    put64 (incompatible), put64 (compatible), put64 (autoclear),
  };

  return write_durably (file, fields, sizeof fields,
                        offsetof (struct qcow2_header, incompatible_features));
}

int
headerwrite_reftable (struct storage *file, uint64_t offset, uint32_t clusters)
{
  const struct {
    struct be64 offset;
    struct be32 clusters;
  } __attribute__ ((packed)) fields = { put64 (offset), put32 (clusters) };
  _Static_assert (sizeof fields == 12, "two neighbouring header fields");

  return storage_write (file, &fields, sizeof fields,
                        offsetof (struct qcow2_header, refcount_table_offset));
}

int
headerwrite_tables (struct storage *file, const struct header *h)
{
  const struct {
    struct be64 reftable;
    struct be32 clusters, nr_snapshots;
    struct be64 snapshots;
  } __attribute__ ((packed)) fields = {
    put64 (h->reftable_offset), put32 (h->reftable_clusters), put32 (h->nb_snapshots),
    put64 (h->snapshots_offset),
  };
  _Static_assert (sizeof fields == 24, "four neighbouring header fields");

  return storage_write (file, &fields, sizeof fields,
                        offsetof (struct qcow2_header, refcount_table_offset));
}
