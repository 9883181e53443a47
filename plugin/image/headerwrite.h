/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Changes the header of an image, all at once.  See headerwrite.c.
 *
 * Use: headerwrite_new; describe the change; headerwrite_fits, headerwrite_commit;
 * headerwrite_free.  One thread; no other thread may use the header in the meantime.
 */

#ifndef QCOW2_HEADERWRITE_H
#define QCOW2_HEADERWRITE_H

#include <stdbool.h>
#include <stdint.h>

#include "storage/storage.h"
#include "format/header.h"

struct headerwrite;

/* Reads the first cluster of a file whose header was parsed, and plans no changes yet.
 * The pointers must outlive it.  NULL on error (reported). */
extern struct headerwrite *headerwrite_new (struct storage *, const struct header *);
extern void headerwrite_free (struct headerwrite *);    /* NULL is allowed */

/* --- describing the change --- */

/* The fields.  The caller changes them in place, except header_length and those of the
 * backing file.  Fields past the length of this header are 0, and are not written. */
extern struct qcow2_header *headerwrite_fields (struct headerwrite *);

/* Sets the data of the extension TYPE to the LEN bytes (at most a cluster) at DATA.  A
 * new extension becomes the last one. */
extern void headerwrite_put_extension (struct headerwrite *, uint32_t type,
                                       const void *data, uint32_t len);
extern void headerwrite_drop_extension (struct headerwrite *, uint32_t type);
/* Removes the backing file. */
extern void headerwrite_drop_backing (struct headerwrite *);

/* --- making the change --- */

/* Has the first cluster enough space for the new header, and for the steps of the
 * change? */
extern bool headerwrite_fits (struct headerwrite *);

/* Makes the change, durably.  After a power cut at any time the header is either
 * completely new or completely old.  Returns 0; or -1, reported, with errno, and *BEGUN
 * (unless it is NULL) says whether the header may have changed.  ENOSPC if it does not
 * fit. */
extern int headerwrite_commit (struct headerwrite *, bool *begun);

#endif /* QCOW2_HEADERWRITE_H */
