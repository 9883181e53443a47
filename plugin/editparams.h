/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Which changes of its bitmaps, snapshots and size shall an image get before it is
 * served?  See editparams.c.
 */

#ifndef QCOW2_EDITPARAMS_H
#define QCOW2_EDITPARAMS_H

#include <stddef.h>

#include "change/bitmapedit.h"
#include "change/edit.h"

struct editparams {
  struct bitmapedit *bitmaps;   /* their names belong to nbdkit; the granularities are
                                   complete after editparams_complete */
  size_t nr_bitmaps;
  unsigned granularity_bits;    /* of new bitmaps; 0: as QEMU would choose */
  struct edit *edits;           /* of snapshots and of the size; their names belong to
                                   nbdkit */
  unsigned nr_edits;
  struct edit_options options;  /* of these */
};

/* Each takes the value of a parameter, which must outlive the struct.  Returns 0, or -1
 * (reported). */
extern int editparams_set_granularity (struct editparams *, const char *key,
                                       const char *value);
extern int editparams_add_bitmap (struct editparams *, const char *key,
                                  const char *value);
extern int editparams_clear_bitmap (struct editparams *, const char *key,
                                    const char *value);
extern int editparams_remove_bitmap (struct editparams *, const char *key,
                                     const char *value);
extern int editparams_create_snapshot (struct editparams *, const char *key,
                                       const char *value);
extern int editparams_apply_snapshot (struct editparams *, const char *key,
                                      const char *value);
extern int editparams_delete_snapshot (struct editparams *, const char *key,
                                       const char *value);
extern int editparams_resize (struct editparams *, const char *key, const char *value);

/* Call it after all parameters were set and checked. */
extern void editparams_complete (struct editparams *);
extern void editparams_free (struct editparams *);

#endif /* QCOW2_EDITPARAMS_H */
