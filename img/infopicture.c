/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What does an image's file contain?  As a picture.
 *
 * Bars show the sizes.  A strip shows what uses which part of the file: the disk, one of
 * the first snapshots, one of the others, or several of them.  There is a byte for each
 * cluster of the file, or for more of them if the file is huge, which says who uses it.
 * The maps of the disk and the snapshots tell that, one after the other, and what they
 * have in common.
 *
 * Compressed and encrypted data is counted, but maps do not say where it is.
 *
 * Locks: none.
 */

#include <config.h>

#include <stdlib.h>
#include <string.h>

#include "util/bytes.h"
#include "util/jsontext.h"
#include "util/memory.h"
#include "util/report.h"
#include "img/diskmap.h"
#include "img/infopicture.h"
#include "img/print.h"
#include "img/svg.h"

#define SNAPSHOTS 7             /* most that are drawn */
#define UNITS (1 << 24)         /* most parts of a file whose users are counted */
#define DEFAULT_CLUSTER 65536

/* Who uses a part of the file. */
enum user {
  DISK, LAST_SNAPSHOT = DISK + SNAPSHOTS, OTHERS, MANY_SNAPSHOTS, DISK_TOO, NOBODY,
  MINE = 0x80                   /* the one whose map is read, too */
};

static const char *const colours[SVG_KINDS] = {
  SVG_COLOURS, [OTHERS] = "#6b4226", [MANY_SNAPSHOTS] = "#b39ddb", [DISK_TOO] = "#6a51a3"
};

/* The disk, a snapshot, or all snapshots that have no row of their own. */
struct row {
  const char *name;             /* in JSON; NULL: the disk */
  uint64_t stored;              /* bytes of its disk */
  uint64_t placed, shared;      /* units in the file; those that the disk uses, too */
};

struct users {
  uint64_t unit, n;             /* bytes, and how many of them the file has */
  uint8_t *of;                  /* enum user */
  struct row rows[OTHERS + 1];
  unsigned nr_rows;             /* up to OTHERS */
};

/* --- who uses what --- */

static int
mark (void *opaque, const struct map_entry *e)
{
  struct users *u = opaque;
  uint64_t end;

  if (e->depth > 0 || !e->data)
    return 0;
  u->rows[u->nr_rows].stored += e->length;
  if (!e->has_offset)
    return 0;
  end = min64 (u->n, div_up (e->offset + e->length, u->unit));
  for (uint64_t i = e->offset / u->unit; i < end; i++)
    u->of[i] |= MINE;
  return 0;
}

/* The next one, which USER is, uses what is marked. */
static void
settle (struct users *u, enum user user)
{
  struct row *row = &u->rows[user];

  for (uint64_t i = 0; i < u->n; i++) {
    const enum user before = u->of[i] & ~MINE;
    const bool disk = before == DISK || before == DISK_TOO;

    if (!(u->of[i] & MINE))
      continue;
    row->placed++;
    row->shared += disk;
    u->of[i] = before == NOBODY ? user : disk ? DISK_TOO : MANY_SNAPSHOTS;
  }
}

/* NAME (NULL: the disk) is found as KEY. */
static int
add_row (struct users *u, const struct imagefile *f, const char *name, const char *key)
{
  char *bytes = key ? jsontext_bytes (key) : NULL;
  int r = -1;

  u->rows[u->nr_rows].name = name;
  if (key && bytes == NULL)
    report_error ("malloc: %m");
  else
    r = diskmap_each (f, bytes, mark, u);
  free (bytes);
  if (r == 0)
    settle (u, u->nr_rows);
  u->nr_rows += u->nr_rows < OTHERS;
  return r;
}

static const char *
text_of (const json_t *object, const char *key)
{
  return json_string_value (json_object_get (object, key));
}

/* What finds it: several can have one name, but a name takes precedence over an id. */
static const char *
key_of (const json_t *snapshots, const json_t *snapshot)
{
  const char *id = text_of (snapshot, "id");
  const json_t *other;
  size_t i;

  json_array_foreach (snapshots, i, other)
    if (strcmp (text_of (other, "name"), id) == 0)
      return text_of (snapshot, "name");
  return id;
}

static int
find_users (struct users *u, const struct imagefile *f, const json_t *info, uint64_t length)
{
  const json_t *snapshots = json_object_get (info, "snapshots"), *snapshot;
  const json_t *cluster = json_object_get (info, "cluster-size");
  size_t i;

  u->unit = cluster ? json_integer_value (cluster) : DEFAULT_CLUSTER;
  while (div_up (length, u->unit) > UNITS)
    u->unit *= 2;
  u->n = div_up (length, u->unit);
  u->of = memory_get (u->n);
  if (u->of == NULL)
    return -1;
  memset (u->of, NOBODY, u->n);
  if (add_row (u, f, NULL, NULL) == -1)
    return -1;
  json_array_foreach (snapshots, i, snapshot)
    if (add_row (u, f, text_of (snapshot, "name"), key_of (snapshots, snapshot)) == -1)
      return -1;
  return 0;
}

/* --- drawing --- */

static void
draw_facts (struct svg *s, const json_t *info, const json_t *data)
{
  const json_t *snapshots = json_object_get (info, "snapshots");
  const json_t *bitmaps = json_object_get (data, "bitmaps");
  const struct { const char *what, *text; size_t count; } facts[] = {
    { "format: ", text_of (info, "format"), 0 },
    { "backing file: ", text_of (info, "backing-filename"), 0 },
    { "data file: ", text_of (data, "data-file"), 0 },
    { "encrypted", json_is_true (json_object_get (info, "encrypted")) ? "" : NULL, 0 },
    { " snapshot", NULL, json_array_size (snapshots) },
    { " bitmap", NULL, json_array_size (bitmaps) },
  };
  char name[SVG_NAME];

  for (size_t i = 0; i < sizeof facts / sizeof facts[0]; i++)
    if (facts[i].text)
      svg_line (s, "%s%s", facts[i].what, svg_name (facts[i].text, name));
    else if (facts[i].count)
      svg_line (s, "%zu%s%s", facts[i].count, facts[i].what,
                facts[i].count == 1 ? "" : "s");
}

static void
draw_sizes (struct svg *s, const json_t *info, uint64_t length)
{
  const json_t *allocated = json_object_get (info, "actual-size");
  const uint64_t disk = json_integer_value (json_object_get (info, "virtual-size"));
  const uint64_t host = json_integer_value (allocated);
  const uint64_t most = max64 (max64 (disk, length), host);

  svg_heading (s, "Sizes");
  svg_bar (s, "disk", disk, most);
  svg_bar (s, "file", length, most);
  if (allocated)
    svg_bar (s, "on the host", host, most);
}

static void
draw_row (struct svg *s, const struct users *u, unsigned i, uint64_t only)
{
  const struct row *row = &u->rows[i];
  char name[SVG_NAME], bytes[SVG_BYTES], alone[SVG_BYTES];

  svg_bytes (row->stored, bytes);
  if (row->name)
    svg_key (s, colours[i], "snapshot \"%s\": stored: %s", svg_name (row->name, name), bytes);
  else
    svg_key (s, colours[i], "the disk: stored: %s", bytes);
  if (row->placed == 0 && row->stored) {
    svg_key (s, NULL, "compressed or encrypted: its places are not known");
    return;
  }
  svg_key (s, NULL, "in the file: %s; used by nothing else: %s",
           svg_bytes (row->placed * u->unit, bytes), svg_bytes (only * u->unit, alone));
  if (row->name)
    svg_key (s, NULL, "shared with the disk: %s", svg_bytes (row->shared * u->unit, bytes));
}

static void
draw_keys (struct svg *s, const struct users *u, const uint64_t counts[NOBODY + 1],
           size_t snapshots)
{
  char bytes[SVG_BYTES];

  for (unsigned i = 0; i < u->nr_rows; i++)
    draw_row (s, u, i, counts[i]);
  if (snapshots > SNAPSHOTS)
    svg_key (s, colours[OTHERS], "%zu more snapshots: used by only one of them: %s",
             snapshots - SNAPSHOTS, svg_bytes (counts[OTHERS] * u->unit, bytes));
  if (u->nr_rows > 1) {
    svg_key (s, colours[DISK_TOO], "the disk and snapshots: %s",
             svg_bytes (counts[DISK_TOO] * u->unit, bytes));
    svg_key (s, colours[MANY_SNAPSHOTS], "several snapshots: %s",
             svg_bytes (counts[MANY_SNAPSHOTS] * u->unit, bytes));
  }
  svg_key (s, SVG_NOTHING, "metadata, compressed or encrypted data, and free space: %s",
           svg_bytes (counts[NOBODY] * u->unit, bytes));
}

static int
draw_users (struct svg *s, const struct users *u, uint64_t length, size_t snapshots)
{
  struct svg_strip *strip = svg_strip_new (u->n, 1);
  uint64_t counts[NOBODY + 1] = { 0 };
  char bytes[SVG_BYTES], step[READABLE];

  if (strip == NULL)
    return -1;
  for (uint64_t i = 0; i < u->n; i++) {
    counts[u->of[i]]++;
    if (u->of[i] != NOBODY)
      svg_strip_add (strip, i, 1, u->of[i]);
  }
  svg_heading (s, "The file: %s", svg_bytes (length, bytes));
  svg_strip_draw (strip, s, colours);
  svg_line (s, "Each cell is %s.  Its colour is that of the user with most of it.",
            readable (svg_strip_step (strip) * u->unit, step));
  svg_strip_free (strip);
  draw_keys (s, u, counts, snapshots);
  return 0;
}

/* --- all of it --- */

static uint64_t
file_length (const json_t *info)
{
  const json_t *child;
  size_t i;

  json_array_foreach (json_object_get (info, "children"), i, child)
    if (strcmp (text_of (child, "name"), "file") == 0)
      return json_integer_value (json_object_get (json_object_get (child, "info"),
                                                  "virtual-size"));
  return 0;
}

int
infopicture_print (const struct imagefile *f, const json_t *info)
{
  const json_t *data = json_object_get (json_object_get (info, "format-specific"), "data");
  const uint64_t length = file_length (info);
  /* What an external data file contains is the disk. */
  const bool uses = !f->raw && length > 0 && json_object_get (data, "data-file") == NULL;
  struct users u = { .n = 0 };
  struct svg *s = NULL;
  char name[SVG_NAME];
  int r = uses ? find_users (&u, f, info, length) : 0;

  if (r == 0)
    s = svg_new ("What %s contains", svg_name (text_of (info, "filename"), name));
  if (s) {
    draw_facts (s, info, data);
    draw_sizes (s, info, length);
    if (uses)
      r = draw_users (s, &u, length, json_array_size (json_object_get (info, "snapshots")));
    r |= svg_print (s);
  }
  free (u.of);
  return s ? r : -1;
}
