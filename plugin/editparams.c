/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Which changes of its passphrases, bitmaps, snapshots and size shall an image get before
 * it is served?
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
#include "util/report.h"
#include "format/format.h"
#include "format/luks.h"
#include "plugin/editparams.h"
#include "plugin/paramvalue.h"

/* The format allows longer names, but QEMU's tools do not create them. */
#define MAX_SNAPSHOT_NAME 255

/* --- passphrases --- */

int
editparams_add_key (struct editparams *e, const char *key, const char *value)
{
  if (parse_passphrase (key, value, &e->key_add) == -1)
    return -1;
  e->keyedit.add = e->key_add;
  if (e->key_add[0] != '\0')
    return 0;
  report_error ("%s=: the passphrase must not be empty", key);
  return -1;
}

int
editparams_erase_key (struct editparams *e, const char *key, const char *value)
{
  if (parse_passphrase (key, value, &e->key_erase) == -1)
    return -1;
  e->keyedit.erase = e->key_erase;
  return 0;
}

static int
parse_slot (const char *key, const char *value, int *r)
{
  unsigned slot;

  if (parse_number (key, value, &slot) == -1)
    return -1;
  if (slot >= LUKS_SLOTS)
    return bad_value (key, value, "must be 0 to %d", LUKS_SLOTS - 1);
  *r = slot;
  return 0;
}

int
editparams_add_key_slot (struct editparams *e, const char *key, const char *value)
{
  return parse_slot (key, value, &e->keyedit.add_slot);
}

int
editparams_erase_key_slot (struct editparams *e, const char *key, const char *value)
{
  return parse_slot (key, value, &e->keyedit.erase_slot);
}

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
  struct bitmapedit *list =
    memory_resize (e->bitmaps, e->nr_bitmaps + 1, sizeof *list);

  if (list == NULL)
    return -1;
  e->bitmaps = list;
  list[e->nr_bitmaps++] = (struct bitmapedit) { .what = what, .name = name };
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

int
editparams_enable_bitmap (struct editparams *e, const char *key, const char *value)
{
  return append_bitmap (e, BITMAP_ENABLE, value);
}

int
editparams_disable_bitmap (struct editparams *e, const char *key, const char *value)
{
  return append_bitmap (e, BITMAP_DISABLE, value);
}

/* The Nth merge of the list; the first of its two names appends it. */
static struct bitmapedit *
merge_number (struct editparams *e, size_t n)
{
  if (n == max64 (e->nr_merges, e->nr_into) &&
      append_bitmap (e, BITMAP_MERGE, NULL) == -1)
    return NULL;
  for (size_t i = 0; i < e->nr_bitmaps; i++)
    if (e->bitmaps[i].what == BITMAP_MERGE && n-- == 0)
      return &e->bitmaps[i];
  abort ();
}

int
editparams_merge_bitmap (struct editparams *e, const char *key, const char *value)
{
  struct bitmapedit *merge = merge_number (e, e->nr_merges);

  if (merge == NULL)
    return -1;
  merge->merged = value;
  e->nr_merges++;
  return 0;
}

int
editparams_merge_into_bitmap (struct editparams *e, const char *key, const char *value)
{
  struct bitmapedit *merge = merge_number (e, e->nr_into);

  if (merge == NULL)
    return -1;
  merge->name = value;
  e->nr_into++;
  return 0;
}

/* --- snapshots and the size --- */

static int
add_edit (struct editparams *e, const struct edit *edit)
{
  struct edit *edits = memory_resize (e->edits, e->nr_edits + 1, sizeof *edits);

  if (edits == NULL)
    return -1;
  e->edits = edits;
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
editparams_complete (struct editparams *e, unsigned iter_ms)
{
  for (size_t i = 0; i < e->nr_bitmaps; i++)
    e->bitmaps[i].granularity_bits = e->granularity_bits;
  e->keyedit.iter_ms = iter_ms;
}

void
editparams_forget_passphrases (struct editparams *e)
{
  forget_passphrase (&e->key_add);
  forget_passphrase (&e->key_erase);
  e->keyedit.add = e->keyedit.erase = NULL;
}

void
editparams_free (struct editparams *e)
{
  editparams_forget_passphrases (e);
  free (e->bitmaps);
  free (e->edits);
}
