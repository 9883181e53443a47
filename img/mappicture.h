/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What map --svg draws.  See mappicture.c.
 */

#ifndef QCOW2_IMG_MAPPICTURE_H
#define QCOW2_IMG_MAPPICTURE_H

#include "disk/chainmap.h"
#include "img/svg.h"

struct mappicture;

/* Of the bytes from BEGIN to END of a disk whose chain has N files.  NULL: reported. */
extern struct mappicture *mappicture_new (uint64_t begin, uint64_t end, unsigned n);
extern void mappicture_free (struct mappicture *);      /* NULL is allowed */
/* An entry within these bytes, in order. */
extern void mappicture_add (struct mappicture *, const struct map_entry *);
/* NAMES: of the N files. */
extern void mappicture_draw (const struct mappicture *, struct svg *,
                             const char *const *names);

#endif /* QCOW2_IMG_MAPPICTURE_H */
