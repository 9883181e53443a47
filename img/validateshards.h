/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Several runs that validate parts of the same images.  See validateshards.c.
 */

#ifndef QCOW2_IMG_VALIDATESHARDS_H
#define QCOW2_IMG_VALIDATESHARDS_H

#include <stdbool.h>

#include <jansson.h>

#define MAX_SHARDS 1000000

/* Sorts names by their bytes. */
extern void names_sort (char **names, unsigned n);
/* Of the sorted names, those of part INDEX of COUNT, from 1 on, go to the beginning; the
 * names may be in another order then.  BALANCE: by the sizes of the files.  Returns their
 * number, or -1 (reported). */
extern int shards_part (char **names, unsigned n, unsigned index, unsigned count,
                        bool balance);
/* What identifies a list of texts.  The caller frees it.  NULL: no memory (not
 * reported). */
extern json_t *shards_digest (char *const *texts, unsigned n);

/* The entries of all reports, by the names of images, and one for all that is not as it
 * should be.  NULL: reported. */
extern json_t *shards_merge (const char *const *paths, unsigned n);

#endif /* QCOW2_IMG_VALIDATESHARDS_H */
