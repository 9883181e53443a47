/* SPDX-License-Identifier: BSD-3-Clause
 *
 * How is the active disk served?
 *
 * Through the current view of the disk.  With copy-on-read, data that a client with write
 * access reads from the layers below is stored in the image.
 *
 * Locks: none.
 */

#include <config.h>

#include <stdio.h>
#include <string.h>

#include "request/copyup.h"
#include "disk/exportkind.h"

static size_t
count_active (const struct generation *g)
{
  (void) g;
  return 1;
}

static size_t
find_active (const struct generation *g, const char *name)
{
  (void) g;
  return name[0] == '\0' ? 0 : SIZE_MAX;
}

static const char *
name_active (const struct generation *g, size_t number, unsigned which,
             char buf[EXPORT_NUMBER])
{
  (void) g, (void) number, (void) buf;
  return which == 0 ? "" : NULL;
}

static void
describe_active (const struct generation *g, size_t number, char *text, size_t size)
{
  (void) number;
  snprintf (text, size, "%s", g->description);
}

static int
open_active (struct export *e)
{
  e->size = e->generation->frozen.size;
  return 0;
}

/* BUF NULL: the data is not wanted. */
static int
read_plainly (const struct view *v, void *buf, uint64_t count, uint64_t offset)
{
  return buf ? request_read (v, buf, count, offset) : request_cache (v, count, offset);
}

/* This changes the image.  Behind the gate, or if the disk has changed meanwhile, it does
 * what other reads do. */
static int
read_and_copy (const struct export *e, const struct view *v, void *buf, uint64_t count,
               uint64_t offset)
{
  struct disk *const d = e->disk;
  const struct epoch_section section = epoch_enter (d->changes);
  const int r = gate_is_open (d) && v == atomic_load (&d->current)
    ? copyup_read (v, buf, count, offset) : read_plainly (v, buf, count, offset);

  epoch_leave (d->changes, section);
  return r;
}

static inline bool
copies_up (const struct export *e, const struct view *v)
{
  return e->writable && v->w && v->w->copyup != NULL;
}

static int
read_active (const struct export *e, const struct view *v, void *buf, uint64_t count,
             uint64_t offset)
{
  return copies_up (e, v) ? read_and_copy (e, v, buf, count, offset)
    : request_read (v, buf, count, offset);
}

static int
cache_active (const struct export *e, const struct view *v, uint64_t count,
              uint64_t offset)
{
  return copies_up (e, v) ? read_and_copy (e, v, NULL, count, offset)
    : request_cache (v, count, offset);
}

const struct export_kind export_active = {
  .noun = "disk", .prefix = "",
  .count = count_active, .find = find_active,
  .name = name_active, .describe = describe_active,
  .bytes = sizeof (struct export), .may_write = true, .follows = true,
  .open = open_active,
  .read = read_active, .cache = cache_active,
};
