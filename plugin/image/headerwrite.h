/* SPDX-License-Identifier: BSD-3-Clause
 *
 * How does the header of an image come to say something else, all at once?  See
 * headerwrite.c.
 *
 * Use: headerwrite_new; describe the change; headerwrite_fits, headerwrite_commit;
 * headerwrite_free.  One thread, which is alone with the header meanwhile.
 */

#ifndef QCOW2_HEADERWRITE_H
#define QCOW2_HEADERWRITE_H

#include <stdbool.h>
#include <stdint.h>

#include "storage/storage.h"
#include "format/header.h"

struct headerwrite;

/* Reads the first cluster of a file whose header was parsed: nothing is to change yet.
 * The pointers must outlive it.  NULL: reported. */
extern struct headerwrite *headerwrite_new (struct storage *, const struct header *);
extern void headerwrite_free (struct headerwrite *);    /* NULL is fine */

/* --- the change --- */

/* The fields, to be changed in place: all but header_length and those of the backing
 * file.  What a header of this length does not have is 0, and is not written. */
extern struct qcow2_header *headerwrite_fields (struct headerwrite *);

/* The data of the extension of TYPE, LEN bytes (at most those of a cluster), are to be
 * DATA.  If there is none, it becomes the last one. */
extern void headerwrite_put_extension (struct headerwrite *, uint32_t type,
                                       const void *data, uint32_t len);
extern void headerwrite_drop_extension (struct headerwrite *, uint32_t type);
/* The image has no backing file. */
extern void headerwrite_drop_backing (struct headerwrite *);

/* --- doing it --- */

/* Is there room in the first cluster for what the header is to say, and for the way to
 * get there? */
extern bool headerwrite_fits (struct headerwrite *);

/* Makes it so, durably, in such a way that after a power cut at any time the header says
 * all of it, or what it said before.  0; -1, reported, with errno: *BEGUN (or NULL) tells
 * whether the header may have changed.  ENOSPC where it does not fit. */
extern int headerwrite_commit (struct headerwrite *, bool *begun);

#endif /* QCOW2_HEADERWRITE_H */
