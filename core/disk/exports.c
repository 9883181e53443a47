/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Which exports does a disk have, and which one does a name mean?
 *
 * The table of kinds determines what the beginning of a name means, and in which order
 * exports are listed.
 *
 * An export may have several names (a snapshot has a name and an ID).  A client may use
 * any of them.  Lists contain one of them: the best one that means this export and no
 * other (not another snapshot of the same name, nor a layer), and that NBD can carry.  An
 * image may have 65,536 snapshots and as many bitmaps, so the names are chosen once for
 * each generation.
 *
 * bitmap:NAME@SNAPSHOT joins two of them.  There may be 2^32 such pairs, so they are not
 * listed.
 *
 * With snapshot= the only export is "", which means that snapshot.
 *
 * Locks: the disk's lock guards `kept' of the slots; nothing else changes.
 */

#include <config.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "util/memory.h"
#include "util/printable.h"
#include "util/report.h"
#include "util/utf8.h"
#include "disk/exportkind.h"

static const struct export_kind *const kinds[] = {
  &export_active,
  &export_snapshot,
  &export_layer,
  &export_bitmap,
};
#define NR_KINDS (sizeof kinds / sizeof kinds[0])

/* A name that is cut off at this size is too long. */
#define NAME_BUFFER (EXPORTS_MAX_NAME + 2)

/* --- names --- */

bool
exports_may_list (const char *name)
{
  return strlen (name) <= EXPORTS_MAX_NAME && utf8_is_text (name) &&
    strcmp (name, EXPORTS_HEALTH) != 0;
}

/* The empty name is the active disk.  Any other name belongs to the last kind whose
 * prefix it has.  (The prefix of snapshots is empty.) */
static const struct export_kind *
kind_of (const char *name)
{
  size_t i = name[0] == '\0' ? 1 : NR_KINDS;

  do
    i--;
  while (strncmp (name, kinds[i]->prefix, strlen (kinds[i]->prefix)) != 0);
  return kinds[i];
}

/* NAME is without the prefix. */
static struct export_slot *
find_in (const struct generation *g, const struct export_kind *kind, const char *name)
{
  const size_t number = kind->find (g, name);
  struct export_slot *slot = g->exports;

  if (number == SIZE_MAX)
    return NULL;
  while (slot->kind != kind)
    slot += slot->kind->count (g);
  return slot + number;
}

/* NAME@SNAPSHOT.  Both may contain an @: the last one that gives two names counts. */
static struct export_slot *
find_at_instant (const struct generation *g, const char *name,
                 struct export_slot **instant)
{
  char bitmap[NAME_BUFFER];
  struct export_slot *slot;

  for (size_t i = strlen (name); i-- > 0;) {
    if (name[i] != '@' || i >= sizeof bitmap)
      continue;
    memcpy (bitmap, name, i);
    bitmap[i] = '\0';
    slot = find_in (g, &export_bitmap, bitmap);
    *instant = slot ? find_in (g, &export_snapshot, name + i + 1) : NULL;
    if (*instant)
      return slot;
  }
  return NULL;
}

struct export_slot *
exports_find (const struct generation *g, const char *name, struct export_slot **instant)
{
  const struct export_kind *kind = kind_of (name);
  const struct disk_options *o = &g->disk->options;
  const char *only = o->snapshot, *image = o->in_dir.name;
  char text[PRINTABLE_SIZE (64)], hint[BITMAPDIR_WHY + 64] = "";
  struct export_slot *slot;

  if (only && name[0] != '\0' && strcmp (name, only) != 0) {
    report_public ("only snapshot \"%s\" is served, as export \"\"", only);
    errno = ENOENT;
    return NULL;
  }
  if (only)
    kind = &export_snapshot;
  name = only ? only : name + strlen (kind->prefix);
  if (only && snapshots_differ (storage_path (g->image->file), &g->image->snapshots, only))
    return NULL;
  *instant = NULL;
  slot = find_in (g, kind, name);
  if (slot == NULL && kind == &export_bitmap)
    slot = find_at_instant (g, name, instant);
  if (slot)
    return slot;
  if (kind->hint)
    kind->hint (g, hint, sizeof hint);
  printable (name, strlen (name), text, sizeof text);
  if (hint[0])                  /* it may show what was found in the image */
    report_error ("%s: there is no %s \"%s\"%s", storage_path (g->image->file),
                  kind->noun, text, hint);
  else
    report_public ("%s%sthere is no %s \"%s\"", image ? image : "", image ? ": " : "",
                   kind->noun, text);
  errno = ENOENT;
  return NULL;
}

/* --- the exports of a disk --- */

static bool
get_name (const struct generation *g, const struct export_slot *slot, unsigned which,
          char text[NAME_BUFFER])
{
  char buf[EXPORT_NUMBER];
  const char *name = slot->kind->name (g, slot->number, which, buf);

  if (name)
    snprintf (text, NAME_BUFFER, "%s%s", slot->kind->prefix, name);
  return name != NULL;
}

/* Returns which of its names is listed to clients, or -1 if none can be. */
static int
choose_name (const struct generation *g, const struct export_slot *slot)
{
  const struct export_kind *kind;
  char text[NAME_BUFFER];

  for (unsigned i = 0; get_name (g, slot, i, text); i++) {
    kind = kind_of (text);
    if (exports_may_list (text) &&
        find_in (g, kind, text + strlen (kind->prefix)) == slot)
      return i;
  }
  return -1;
}

int
exports_index (struct generation *g)
{
  struct export_slot *slot;
  size_t n = 0;

  for (size_t k = 0; k < NR_KINDS; k++)
    n += kinds[k]->count (g);
  g->exports = slot = memory_new (n, sizeof *slot);
  if (slot == NULL)
    return -1;
  g->nr_exports = n;
  for (size_t k = 0; k < NR_KINDS; k++)
    for (size_t i = 0; i < kinds[k]->count (g); i++)
      *slot++ = (struct export_slot) { .kind = kinds[k], .number = i };
  for (slot = g->exports; slot < g->exports + n; slot++)
    slot->which = choose_name (g, slot);
  return 0;
}

int
exports_each (const struct generation *g, export_fn emit, void *opaque, unsigned *unlisted)
{
  const struct export_slot *slot = g->exports;
  const struct export_slot *end = slot + (g->disk->options.snapshot ? 1 : g->nr_exports);
  char name[NAME_BUFFER], text[sizeof (((struct export *) NULL)->description)];
  int r = 0;

  *unlisted = 0;
  for (; r == 0 && slot < end; slot++) {
    if (slot->kind->is_void && slot->kind->is_void (g, slot->number))
      continue;
    if (slot->which == -1) {
      ++*unlisted;
      continue;
    }
    get_name (g, slot, slot->which, name);
    slot->kind->describe (g, slot->number, text, sizeof text);
    r = emit (opaque, name, text);
  }
  return r;
}

void
exports_free (struct generation *g)
{
  for (size_t i = 0; i < g->nr_exports; i++)
    if (g->exports[i].kept)
      g->exports[i].kind->forget (g->exports[i].kept);
  free (g->exports);
}
