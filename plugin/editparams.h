/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Which changes of its passphrases, bitmaps, snapshots and size shall an image get before
 * it is served?  See editparams.c.
 */

#ifndef QCOW2_EDITPARAMS_H
#define QCOW2_EDITPARAMS_H

#include <stddef.h>

#include "change/bitmapedit.h"
#include "change/edit.h"
#include "change/keyedit.h"

struct editparams {
  struct keyedit keyedit;       /* of passphrases; its strings are the next ones */
  char *key_add, *key_erase;
  struct bitmapedit *bitmaps;   /* their names belong to nbdkit; the granularities are
                                   complete after editparams_complete */
  size_t nr_bitmaps;
  size_t nr_merges, nr_into;    /* how often bitmap-merge= and bitmap-into= were given */
  unsigned granularity_bits;    /* of new bitmaps; 0: as QEMU would choose */
  struct edit *edits;           /* of snapshots and of the size; their names belong to
                                   nbdkit */
  unsigned nr_edits;
  struct edit_options options;  /* of these */
};

#define EDITPARAMS_DEFAULT { .keyedit = { KEYEDIT_NONE } }

/* Each takes the value of a parameter, which must outlive the struct.  Returns 0, or -1
 * (reported). */
extern int editparams_add_key (struct editparams *, const char *key, const char *value);
extern int editparams_add_key_slot (struct editparams *, const char *key,
                                    const char *value);
extern int editparams_erase_key (struct editparams *, const char *key, const char *value);
extern int editparams_erase_key_slot (struct editparams *, const char *key,
                                      const char *value);
extern int editparams_set_granularity (struct editparams *, const char *key,
                                       const char *value);
extern int editparams_add_bitmap (struct editparams *, const char *key,
                                  const char *value);
extern int editparams_clear_bitmap (struct editparams *, const char *key,
                                    const char *value);
extern int editparams_remove_bitmap (struct editparams *, const char *key,
                                     const char *value);
extern int editparams_enable_bitmap (struct editparams *, const char *key,
                                     const char *value);
extern int editparams_disable_bitmap (struct editparams *, const char *key,
                                      const char *value);
extern int editparams_merge_bitmap (struct editparams *, const char *key,
                                    const char *value);
extern int editparams_merge_into_bitmap (struct editparams *, const char *key,
                                         const char *value);
extern int editparams_create_snapshot (struct editparams *, const char *key,
                                       const char *value);
extern int editparams_apply_snapshot (struct editparams *, const char *key,
                                      const char *value);
extern int editparams_delete_snapshot (struct editparams *, const char *key,
                                       const char *value);
extern int editparams_resize (struct editparams *, const char *key, const char *value);

/* Call it after all parameters were set and checked.  ITER_MS: iter-time=, for new
 * passphrases. */
extern void editparams_complete (struct editparams *, unsigned iter_ms);
/* Wipes and frees the passphrases. */
extern void editparams_forget_passphrases (struct editparams *);
extern void editparams_free (struct editparams *);

#endif /* QCOW2_EDITPARAMS_H */
