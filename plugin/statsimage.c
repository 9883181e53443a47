/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What do statistics say of one image?
 *
 * An object of JSON, which both stats= and query-blockstats show: how the image is now,
 * what its disk has done, and what clients have asked of each export (iostats.c).
 *
 * Any number of images may be in a directory: STATSIMAGE_MOST of them are described.
 *
 * Locks: none of its own.
 */

#include <config.h>

#include <string.h>

#include "util/bytes.h"
#include "util/jsontext.h"
#include "plugin/statsimage.h"

static const char *const words[] = {
  [DISK_WRITABLE] = "ok", [DISK_READONLY] = "read-only", [DISK_FAILED] = "failed",
  [DISK_CORRUPT] = "corrupt", [DISK_REFUSED] = "refused",
};

/* --- exports --- */

static json_t *
describe_numbers (const uint64_t *numbers, size_t n)
{
  json_t *list = json_array ();

  for (size_t i = 0; i < n; i++)
    list = jsontext_append (list, jsontext_number (numbers[i]));
  return list;
}

json_t *
statsimage_bounds (void)
{
  return describe_numbers (iostats_bounds, IOSTATS_BOUNDS);
}

static json_t *
describe_kind (const struct iocounts *c, enum iostats_kind k)
{
  json_t *kind = jsontext_object (
    { "operations", jsontext_number (c->of[k].operations) },
    { "errors", jsontext_number (c->of[k].failed) },
    { "running", jsontext_number (c->of[k].running) },
    { "ns", jsontext_number (c->of[k].ns) },
    { "times", describe_numbers (c->of[k].times, IOSTATS_BOUNDS + 1) });

  return k == IOSTATS_FLUSH || k == IOSTATS_EXTENTS ? kind
    : jsontext_add (kind, { "bytes", jsontext_number (c->of[k].bytes) });
}

static json_t *
describe_export (const char *name, const struct iocounts *c)
{
  json_t *export = jsontext_object (
    { "export", jsontext_string (name) },
    { "clients", jsontext_number (c->clients) },
    { "ever", jsontext_number (c->ever) });

  for (int k = 0; k < IOSTATS_KINDS; k++)
    export = jsontext_add (export, { iostats_words[k], describe_kind (c, k) });
  return export;
}

static void
add_export (void *opaque, const char *device, const char *export, const struct iocounts *c)
{
  json_t **list = opaque;

  (void) device;
  *list = jsontext_append (*list, describe_export (export, c));
}

static json_t *
describe_exports (const char *device, struct iostats *iostats)
{
  json_t *list = json_array ();

  iostats_each (iostats, device, add_export, &list);
  return list;
}

/* --- the image --- */

json_t *
statsimage_clusters (const struct alloc_stats *a)
{
  return jsontext_object (
    { "allocated", jsontext_number (a->allocated) },
    { "freed", jsontext_number (a->freed) },
    { "punched", jsontext_number (a->punched) },
    { "free", jsontext_number (a->free) },
    { "deferred", jsontext_number (a->deferred) });
}

json_t *
statsimage_flush (const struct checkpoint_stats *c)
{
  return jsontext_object (
    { "requests", jsontext_number (c->flushes) },
    { "shared", jsontext_number (c->shared) },
    { "checkpoints", jsontext_number (c->runs) },
    { "checkpoint_ns", jsontext_number (c->ns) },
    { "longest_ns", jsontext_number (c->longest_ns) },
    { "syncs", jsontext_number (c->syncs) },
    { "timed", jsontext_number (c->timed) });
}

json_t *
statsimage_storage (const struct disk_stats *s)
{
  const uint64_t end = s->alloc.high_water, size = s->file_size;
  const bool known = end > 0;   /* not before there is a client that may write */

  return jsontext_object (
    { "device", json_boolean (s->is_device) },
    { "size", jsontext_number (size) },
    { "high_water", known ? jsontext_number (end) : json_null () },
    { "left", known && s->is_device ? jsontext_number (size - min64 (end, size))
      : json_null () },
    { "low", jsontext_number (s->alloc.low) });
}

static json_t *
describe_bitmaps (const struct disk_state *state)
{
  return jsontext_object (
    { "all", jsontext_number (state->bitmaps) },
    { "inconsistent", jsontext_number (state->inconsistent) });
}

/* What is known of any image. */
static json_t *
describe_state (const char *device, const char *state, const char *why)
{
  return jsontext_object (
    { "image", jsontext_string (device) },
    { "state", jsontext_string (state) },
    { "reason", why[0] ? jsontext_string (why) : json_null () });
}

json_t *
statsimage_open (const char *device, struct disk *disk, struct iostats *iostats)
{
  struct disk_state state;
  struct disk_stats stats;

  disk_get_state (disk, &state);
  disk_get_stats (disk, &stats);
  return jsontext_add (describe_state (device, words[state.health], state.why),
    { "size", jsontext_number (state.size) },
    { "clusters", jsontext_add (statsimage_clusters (&stats.alloc),
      { "bytes", jsontext_number (state.cluster_size) }) },
    { "flush", statsimage_flush (&stats.checkpoint) },
    { "storage", jsontext_add (statsimage_storage (&stats),
      { "waiting", jsontext_number (stats.space.waiting) }) },
    { "bitmaps", describe_bitmaps (&state) },
    { "exports", describe_exports (device, iostats) });
}

/* --- all images --- */

struct all {
  struct iostats *iostats;
  json_t *list;
  json_t *known;                /* an object, with the names of images that were met */
  json_t *open;                 /* the same of those that are open */
  uint64_t omitted;
};

/* Adds it to the set.  Was it not there? */
static bool
add_name (json_t *set, const char *device)
{
  json_t *name = jsontext_string (device);
  const bool is_new = name && !json_object_get (set, json_string_value (name));

  if (is_new)
    json_object_set_new_nocheck (set, json_string_value (name), json_true ());
  json_decref (name);
  return is_new;
}

/* Is the image to be described: is it new, and is there room for it? */
static bool
meet (struct all *all, const char *device)
{
  const bool is_new = add_name (all->known, device);
  const bool fits = json_array_size (all->list) < STATSIMAGE_MOST;

  all->omitted += is_new && !fits;
  return is_new && fits;
}

static int
add_open (void *opaque, const char *device, struct disk *disk)
{
  struct all *all = opaque;

  if (meet (all, device))
    all->list = jsontext_append (all->list, statsimage_open (device, disk, all->iostats));
  return all->list ? 0 : -1;
}

/* If it is bad: that is never left out for others. */
static int
add_open_bad (void *opaque, const char *device, struct disk *disk)
{
  struct disk_state state;

  add_name (((struct all *) opaque)->open, device);
  disk_get_state (disk, &state);
  return disk_is_bad (&state) ? add_open (opaque, device, disk) : 0;
}

/* An image that is not open. */
static void
add_closed (struct all *all, const char *device, const char *state, const char *why)
{
  if (all->list && meet (all, device))
    all->list = jsontext_append (all->list, jsontext_add (
      describe_state (device, state, why),
      { "exports", describe_exports (device, all->iostats) }));
}

static void
add_bad (void *opaque, const char *name, const struct disk_state *state)
{
  const struct all *const all = opaque;

  /* (It may have been opened again just now.) */
  if (add_name (all->open, name))
    add_closed (opaque, name, words[state->health], state->why);
}

static void
add_used (void *opaque, const char *device, const char *export, const struct iocounts *c)
{
  (void) export, (void) c;
  add_closed (opaque, device, "closed", "");
}

json_t *
statsimage_all (const char *device, struct disk *disk, struct dir *dir,
                struct iostats *iostats, uint64_t *omitted)
{
  struct all all = {
    .iostats = iostats, .list = json_array (), .known = json_object (),
    .open = json_object (),
  };

  if (dir == NULL)
    add_open (&all, device, disk);
  else {
    dir_each (dir, add_open_bad, &all);
    dir_each_bad (dir, add_bad, &all);
    dir_each (dir, add_open, &all);
    iostats_each (iostats, NULL, add_used, &all);
  }
  json_decref (all.open);
  json_decref (all.known);
  *omitted = all.omitted;
  return all.list;
}
