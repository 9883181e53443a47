/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Adds and erases passphrases of an encrypted image.  See keyedit.c.
 */

#ifndef QCOW2_KEYEDIT_H
#define QCOW2_KEYEDIT_H

#include <stdbool.h>

#include "disk/disk.h"

struct keyedit {
  const char *add, *erase;      /* passphrases; NULL: none.  The caller wipes them */
  int add_slot;                 /* where to add, or -1: in the first free slot */
  int erase_slot;               /* a number, or -1: see below */
  bool force;                   /* also erase the last one, and with it the disk */
  unsigned iter_ms;             /* time to test the one to add, in milliseconds */
  /* NULL, or called before each test of a key slot, which takes long: 0, or -1 with errno
   * to end. */
  int (*step) (void *opaque);
  void *opaque;
};

/* No change. */
#define KEYEDIT_NONE .add_slot = -1, .erase_slot = -1

/* Adds a passphrase, then erases all key slots that another one opens, or one by its
 * number; if both are given, this one, which the passphrase must open.  The image is
 * unlocked.  Returns 0: durable; or -1 (reported): nothing has changed, or, after a
 * failure of the host, a part of it. */
extern int keyedit_disk (struct disk *, const struct keyedit *);

/* The same in two steps, for disks in use. */
struct keychange;
/* What takes seconds: derives keys, while clients go on.  The passphrases are not needed
 * afterwards.  NULL: reported. */
extern struct keychange *keyedit_prepare (struct disk *, const struct keyedit *);
/* Makes the change, once. */
extern int keyedit_make (struct disk *, struct keychange *);
extern void keyedit_free (struct keychange *);  /* accepts NULL */

#endif /* QCOW2_KEYEDIT_H */
