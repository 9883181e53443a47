/* SPDX-License-Identifier: BSD-3-Clause
 *
 * By what is known which target a backup was written to in place.  See ontomarks.c.
 *
 * Functions that return int return 0, or -1 (reported).
 */

#ifndef QCOW2_IMG_ONTOMARKS_H
#define QCOW2_IMG_ONTOMARKS_H

#include <stdint.h>

#include <jansson.h>

#include "copy/copyend.h"

/* *MARKS, for the manifest, of a TARGET that now shows the SIZE bytes of ALL; of these,
 * CHANGES (NULL: all) are new.  The caller frees *MARKS. */
extern int ontomarks_make (const struct copy_end *all, const struct copy_end *changes,
                           const struct copy_end *target, uint64_t size, json_t **marks);
/* A backup that was cut off has perhaps written where CHANGES has something, or ALL has
 * no data any more. */
struct ontomarks_cut { const struct copy_end *all, *changes; };
/* Has the TARGET, called PATH in messages, all MARKS?  CUT: not those; NULL: there was no
 * such backup. */
extern int ontomarks_check (const json_t *marks, const struct copy_end *target,
                            const char *path, const struct ontomarks_cut *cut);

#endif /* QCOW2_IMG_ONTOMARKS_H */
