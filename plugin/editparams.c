/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Which changes of its bitmaps, snapshots and size shall an image get before it is
 * served?
 *
 * Each parameter asks for one change.  Most can be repeated, and then make a list, in the
 * order of the command line.  (The table of params.c says which parameters there are.)
 *
 * Locks: none; nbdkit configures plugins before there are threads.
 */

#include <config.h>

#include <stdlib.h>

#define NBDKIT_API_VERSION 2
#include <nbdkit-plugin.h>

#include "util/bytes.h"
#include "util/memory.h"
#include "format/format.h"
#include "plugin/editparams.h"
#include "plugin/paramvalue.h"

/* The format allows longer names, but QEMU's tools do not create them. */
#define MAX_SNAPSHOT_NAME 255

/* --- bitmaps --- */

int
editparams_set_granularity (struct editparams *e, const char *key, const char *value)
{
  uint64_t size;

  if (parse_power (key, value, UINT64_C (1) << QCOW2_MIN_BITMAP_GRANULARITY,
                   UINT64_C (1) << QCOW2_MAX_BITMAP_GRANULARITY, "512 and 2G",
                   &size) == -1)
    return -1;
  e->granularity_bits = __builtin_ctzll (size);
  return 0;
}

static int
append_bitmap (struct editparams *e, enum bitmapedit_what what, const char *name)
{
  if (MEMORY_APPEND (e->bitmaps, e->nr_bitmaps) == -1)
    return -1;
  e->bitmaps[e->nr_bitmaps++] = (struct bitmapedit) { .what = what, .name = name };
  return 0;
}

int
editparams_add_bitmap (struct editparams *e, const char *key, const char *value)
{
  if (parse_new_name (key, value, QCOW2_MAX_BITMAP_NAME) == -1)
    return -1;
  return append_bitmap (e, BITMAP_ADD, value);
}

int
editparams_clear_bitmap (struct editparams *e, const char *key, const char *value)
{
  return append_bitmap (e, BITMAP_CLEAR, value);
}

int
editparams_remove_bitmap (struct editparams *e, const char *key, const char *value)
{
  return append_bitmap (e, BITMAP_REMOVE, value);
}

/* --- snapshots and the size --- */

static int
add_edit (struct editparams *e, const struct edit *edit)
{
  if (MEMORY_APPEND (e->edits, e->nr_edits) == -1)
    return -1;
  e->edits[e->nr_edits++] = *edit;
  return 0;
}

int
editparams_create_snapshot (struct editparams *e, const char *key, const char *value)
{
  if (parse_new_name (key, value, MAX_SNAPSHOT_NAME) == -1)
    return -1;
  return add_edit (e, &(struct edit) { .kind = EDIT_SNAPSHOT_CREATE, .name = value });
}

int
editparams_apply_snapshot (struct editparams *e, const char *key, const char *value)
{
  return add_edit (e, &(struct edit) { .kind = EDIT_SNAPSHOT_APPLY, .name = value });
}

int
editparams_delete_snapshot (struct editparams *e, const char *key, const char *value)
{
  return add_edit (e, &(struct edit) { .kind = EDIT_SNAPSHOT_DELETE, .name = value });
}

/* SIZE, +SIZE or -SIZE. */
int
editparams_resize (struct editparams *e, const char *key, const char *value)
{
  struct edit edit = { .kind = EDIT_RESIZE };

  if (parse_signed_bytes (key, value, &edit.sign, &edit.size) == -1)
    return -1;
  return add_edit (e, &edit);
}

/* --- all of them --- */

void
editparams_complete (struct editparams *e)
{
  for (size_t i = 0; i < e->nr_bitmaps; i++)
    e->bitmaps[i].granularity_bits = e->granularity_bits;
}

void
editparams_free (struct editparams *e)
{
  free (e->bitmaps);
  free (e->edits);
}
