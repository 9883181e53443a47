/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What do the queries of QMP say about the disks that are served?
 *
 * Keys are QEMU's.  A file of the chain is one node here: QEMU has another one for the
 * storage below its format.  An image is described as qemu-img info does (imageinfo.c).
 *
 * Locks: none of its own; see qmptarget.c.
 */

#include <config.h>

#include <stdio.h>
#include <string.h>

#include "util/cleanup.h"
#include "util/jsontext.h"
#include "util/report.h"
#include "image/imageinfo.h"
#include "request/bitmap.h"
#include "plugin/qmpnodes.h"
#include "plugin/qmpquery.h"
#include "plugin/statsimage.h"

/* A list that is being made, of one answer for each disk. */
struct query {
  const struct qmp_host *host;
  bool nodes;                   /* one for each node */
  bool flat;                    /* without what is below an image */
  json_t *list;                 /* NULL: there was no memory, or an error */
};

/* --- bitmaps --- */

/* The number of marked bytes. */
static uint64_t
count_marked (const struct dirtyset *set, uint64_t size)
{
  uint64_t count = 0, len;

  for (uint64_t at = 0; at < size; at += len) {
    len = size - at;
    if (dirtyset_find (set, at, &len))
      count += len;
  }
  return count;
}

static json_t *
describe_bitmap (struct bitmaps *bitmaps, size_t i, uint64_t size)
{
  const struct bitmapdir_any *b = bitmap_get (bitmaps, i);
  const bool valid = !(b->flags & QCOW2_BITMAP_IN_USE);
  struct dirtyset *set = NULL;
  json_t *info;

  if (valid && bitmap_freeze (bitmaps, i, &set) == -1)
    return NULL;
  info = jsontext_object (
    { "name", jsontext_string (b->name) },
    { "recording", json_boolean (valid && b->flags & QCOW2_BITMAP_AUTO) },
    { "persistent", json_true () },
    { "busy", json_false () },
    { "granularity", jsontext_number (UINT64_C (1) << b->e.granularity_bits) },
    { "count", jsontext_number (set ? count_marked (set, size) : 0) });
  dirtyset_free (set);
  return valid ? info : jsontext_add (info, { "inconsistent", json_true () });
}

/* The member `dirty-bitmaps', if there are some. */
static json_t *
add_bitmaps (json_t *node, struct disk *disk)
{
  struct bitmaps *const bitmaps = disk_bitmaps (disk);
  const uint64_t size = disk_inside (disk).view->size;
  const size_t n = bitmap_count (bitmaps);
  json_t *list = json_array ();

  if (n == 0) {
    json_decref (list);
    return node;
  }
  for (size_t i = 0; i < n; i++)
    list = jsontext_append (list, describe_bitmap (bitmaps, i, size));
  return jsontext_add (node, { "dirty-bitmaps", list });
}

/* --- nodes --- */

/* What qemu-img info says about layer I and, unless FLAT, those below it. */
static json_t *
describe_image (const struct layers *layers, unsigned i, bool flat)
{
  struct storage *file = layers_file (layers, i);
  const struct image raw = { .file = file };
  const struct image *image = layers_image (layers, i);
  json_t *info = imageinfo_describe (image ? image : &raw, image == NULL,
                                     storage_path (file));

  if (flat || i + 1 == layers_count (layers))
    return info;
  return jsontext_add (info, { "backing-image", describe_image (layers, i + 1, flat) });
}

/* Limits that QEMU has, and this server has not. */
static json_t *
add_limits (json_t *node)
{
  static const char *const limits[] = {
    "iops", "iops_rd", "iops_wr", "bps", "bps_rd", "bps_wr",
  };

  for (size_t i = 0; i < sizeof limits / sizeof limits[0]; i++)
    node = jsontext_add (node, { limits[i], json_integer (0) });
  return node;
}

static json_t *
describe_cache (const struct disk_options *o)
{
  return jsontext_object (
    { "writeback", json_true () },
    { "direct", json_boolean (o->cache == STORAGE_CACHE_NONE) },
    { "no-flush", json_boolean (o->cache == STORAGE_CACHE_UNSAFE) });
}

static json_t *
describe_zeroes (const struct disk_options *o)
{
  static const char *const words[] = {
    [DETECT_ZEROES_OFF] = "off", [DETECT_ZEROES_ON] = "on",
    [DETECT_ZEROES_UNMAP] = "unmap",
  };

  return jsontext_string (words[o->detect_zeroes]);
}

static bool
is_readonly (const struct qmp_host *host, struct disk *disk, unsigned i)
{
  return i > 0 || host->why_fixed || disk_why_readonly (disk);
}

/* What all nodes have.  IMAGE then belongs to the node.  THRESHOLD: qmpthreshold.c. */
static json_t *
describe_any (const char *name, const char *driver, bool readonly, const char *file,
              uint64_t threshold, const struct disk_options *o, json_t *image)
{
  return add_limits (jsontext_object (
    { "node-name", name ? jsontext_string (name) : NULL },
    { "drv", jsontext_string (driver) },
    { "ro", json_boolean (readonly) },
    { "encrypted", json_false () },
    { "detect_zeroes", describe_zeroes (o) },
    { "cache", describe_cache (o) },
    { "file", jsontext_string (file) },
    { "backing_file_depth", json_integer (0) },
    { "write_threshold", jsontext_number (threshold) },
    { "image", image }));
}

/* Layer I of a stack. */
static json_t *
describe_layer (const struct query *q, const char *name, const struct layers *layers,
                unsigned i, bool readonly, uint64_t threshold, const struct disk_options *o)
{
  const struct header *h = layers_header (layers, i);
  const unsigned below = layers_count (layers) - i - 1;
  json_t *node = describe_any (name, h ? "qcow2" : "raw", readonly,
                               storage_path (layers_file (layers, i)), threshold, o,
                               describe_image (layers, i, q->flat));

  if (h && h->crypt_method != QCOW2_CRYPT_NONE)
    node = jsontext_add (node, { "encrypted", json_true () });
  if (below == 0)
    return node;
  return jsontext_add (node,
    { "backing_file_depth", json_integer (q->flat ? 0 : below) },
    { "backing_file", jsontext_string (storage_path (layers_file (layers, i + 1))) });
}

static json_t *
describe_node (const struct query *q, const char *device, struct disk *disk, unsigned i)
{
  CLEANUP_FREE char *name = qmptarget_node (q->host, device, i);
  json_t *node = describe_layer (q, name, disk_inside (disk).view->layers, i,
                                 is_readonly (q->host, disk, i),
                                 i == 0 ? disk_threshold (disk) : 0,
                                 disk_get_options (disk));

  return i == 0 ? add_bitmaps (node, disk) : node;
}

/* A node that a command has added. */
static json_t *
describe_added (const struct query *q, const struct qmp_node *n)
{
  const struct disk_options *const o = q->host->options;
  const struct image raw = { .file = n->storage };
  json_t *image;

  if (n->image)
    return describe_layer (q, n->name, n->layers, 0, n->readonly, 0, o);
  image = imageinfo_describe (&raw, true, n->path);
  return describe_any (n->name, n->driver, n->readonly, n->path, 0, o,
                       jsontext_add (image, { "format", jsontext_string (n->driver) }));
}

/* One that has left its disk.  (Its file may have been removed.) */
static json_t *
describe_left (const struct query *q, const struct qmp_node *n)
{
  const struct disk_options *const o = q->host->options;
  struct image *image = qmpnodes_look (n, o);
  json_t *info = image ? imageinfo_describe (image, false, n->path)
    : jsontext_object ({ "filename", jsontext_string (n->path) },
                       { "format", jsontext_string (n->driver) },
                       { "virtual-size", jsontext_number (n->size) });
  json_t *node = describe_any (n->name, n->driver, n->readonly, n->path, 0, o, info);

  image_close (image);
  return node;
}

static void
add_added (struct query *q)
{
  for (const struct qmp_node *n = q->host->added->first; n && q->list; n = n->next)
    if (n->name && !n->served)
      q->list = jsontext_append (q->list, n->left ? describe_left (q, n)
                                 : describe_added (q, n));
}

static int
add_nodes (void *opaque, const char *device, struct disk *disk)
{
  struct query *q = opaque;
  const unsigned n = qmptarget_count (disk);

  for (unsigned i = 0; i < n; i++)
    q->list = jsontext_append (q->list, describe_node (q, device, disk, i));
  return q->list ? 0 : -1;
}

/* --- devices --- */

static int
add_device (void *opaque, const char *device, struct disk *disk)
{
  struct query *q = opaque;

  q->list = jsontext_append (q->list, jsontext_object (
    { "device", jsontext_string (device) },
    { "type", jsontext_string ("unknown") },
    { "removable", json_false () },
    { "locked", json_false () },
    { "inserted", describe_node (q, device, disk, 0) }));
  return q->list ? 0 : -1;
}

static int
add_export (void *opaque, const char *device, struct disk *disk)
{
  struct query *q = opaque;
  CLEANUP_FREE char *node = qmptarget_node (q->host, device, 0);

  (void) disk;
  q->list = jsontext_append (q->list, jsontext_object (
    { "id", jsontext_string (device) },
    { "type", jsontext_string ("nbd") },
    { "node-name", node ? jsontext_string (node) : NULL },
    { "shutting-down", json_false () }));
  return q->list ? 0 : -1;
}

/* --- counters --- */

/* To QEMU, a request that zeroes is one that writes. */
static void
count_zeros_as_writes (struct iocounts *c)
{
  c->of[IOSTATS_WRITE].operations += c->of[IOSTATS_ZERO].operations;
  c->of[IOSTATS_WRITE].bytes += c->of[IOSTATS_ZERO].bytes;
  c->of[IOSTATS_WRITE].failed += c->of[IOSTATS_ZERO].failed;
  c->of[IOSTATS_WRITE].ns += c->of[IOSTATS_ZERO].ns;
}

/* C NULL: this counts no requests. */
static json_t *
describe_counts (const struct iocounts *c, uint64_t highest)
{
  static const struct { const char *name; enum iostats_kind kind; } kinds[] = {
    { "rd", IOSTATS_READ }, { "wr", IOSTATS_WRITE }, { "flush", IOSTATS_FLUSH },
    { "unmap", IOSTATS_TRIM },
  };
  static const struct iocounts none;
  struct iocounts sum;
  json_t *stats = json_object ();
  char key[64];

  if (c == NULL)
    c = &none;
  sum = *c;
  count_zeros_as_writes (&sum);
  c = &sum;
  for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
    const char *name = kinds[i].name;
    const enum iostats_kind k = kinds[i].kind;
    const struct { const char *fmt; uint64_t value; } members[] = {
      { "%s_bytes", c->of[k].bytes }, { "%s_operations", c->of[k].operations },
      { "failed_%s_operations", c->of[k].failed }, { "%s_total_time_ns", c->of[k].ns },
      { "invalid_%s_operations", 0 }, { "%s_merged", 0 },
    };

    for (size_t m = 0; m < sizeof members / sizeof members[0]; m++) {
      snprintf (key, sizeof key, members[m].fmt, name);
      if (k != IOSTATS_FLUSH || (strstr (key, "bytes") == NULL &&
                                 strstr (key, "merged") == NULL))
        stats = jsontext_add (stats, { key, jsontext_number (members[m].value) });
    }
  }
  return jsontext_add (stats,
    { "wr_highest_offset", jsontext_number (highest) },
    { "account_invalid", json_true () },
    { "account_failed", json_true () },
    { "timed_stats", json_array () });
}

/* The storage below the format: how far the image's file is used. */
static json_t *
describe_storage (struct disk *disk)
{
  struct disk_stats stats;

  disk_get_stats (disk, &stats);
  return jsontext_object ({ "stats", describe_counts (NULL, stats.alloc.high_water) });
}

static json_t *
describe_node_counts (const struct query *q, const char *device, struct disk *disk,
                      unsigned i, const struct iocounts *counts, uint64_t highest)
{
  CLEANUP_FREE char *name = qmptarget_node (q->host, device, i);
  json_t *node = jsontext_object (
    { "node-name", name ? jsontext_string (name) : NULL },
    { "stats", describe_counts (counts, i == 0 ? highest : 0) });

  return i > 0 ? node : jsontext_add (node, { "parent", describe_storage (disk) });
}

static int
add_counts (void *opaque, const char *device, struct disk *disk)
{
  struct query *q = opaque;
  const unsigned n = qmptarget_count (disk);
  struct iocounts counts;
  json_t *one;

  iostats_get (q->host->iostats, device, &counts);
  if (!q->nodes) {
    one = describe_node_counts (q, device, disk, 0, &counts, counts.highest);
    q->list = jsontext_append (q->list, jsontext_add (one,
      { "device", jsontext_string (device) },
      { "x-statistics", statsimage_open (device, disk, q->host->iostats) }));
  }
  for (unsigned i = 0; q->nodes && i < n; i++)
    q->list = jsontext_append (q->list, describe_node_counts (q, device, disk, i, NULL,
                                                              counts.highest));
  return q->list ? 0 : -1;
}

/* --- answers --- */

static json_t *
ask_each (const struct qmp_host *host, const json_t *arguments, dir_fn fn,
          struct qmp_error *e)
{
  struct query q = {
    .host = host, .flat = qmpargs_flag (arguments, "flat"),
    .nodes = qmpargs_flag (arguments, "query-nodes"), .list = json_array (),
  };
  CLEANUP_FREE char *why = NULL;

  report_watch ();
  qmptarget_each (host, fn, &q);
  if (fn == add_nodes)
    add_added (&q);
  why = report_first ();
  if (q.list == NULL)
    qmp_refuse (e, "%s", why ? why : "out of memory");
  return q.list;
}

json_t *
qmpquery_nodes (const struct qmp_host *host, const json_t *arguments, struct qmp_error *e)
{
  return ask_each (host, arguments, add_nodes, e);
}

json_t *
qmpquery_block (const struct qmp_host *host, const json_t *arguments, struct qmp_error *e)
{
  return ask_each (host, arguments, add_device, e);
}

json_t *
qmpquery_exports (const struct qmp_host *host, const json_t *arguments,
                  struct qmp_error *e)
{
  return ask_each (host, arguments, add_export, e);
}

json_t *
qmpquery_statistics (const struct qmp_host *host, const json_t *arguments,
                     struct qmp_error *e)
{
  json_t *const all = host->statistics ();

  (void) arguments;
  if (all == NULL)
    qmp_refuse (e, "out of memory");
  return all;
}

json_t *
qmpquery_blockstats (const struct qmp_host *host, const json_t *arguments,
                     struct qmp_error *e)
{
  return ask_each (host, arguments, add_counts, e);
}
