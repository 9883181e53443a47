/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Everything that writes the header of an image.  See headerwrite.c.
 *
 * For any change, all at once: headerwrite_new; describe the change; headerwrite_fits,
 * headerwrite_commit; headerwrite_free.  One thread; no other thread may use the header
 * in the meantime (but see headerwrite_ahead).
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
extern bool headerwrite_has_extension (const struct headerwrite *, uint32_t type);
/* Names the backing file; "": there is none.  The name must outlive the change. */
extern void headerwrite_set_backing (struct headerwrite *, const char *name);
/* Changes between versions 2 and 3.  Of the fields that only version 3 has, all are then
 * 0, except that refcounts have 16 bits; they can be set after this. */
extern void headerwrite_set_version (struct headerwrite *, unsigned version);
/* R8: clears the autoclear bits that the plugin does not maintain.  Those of bitmaps and
 * of raw data files stay: a change that makes them wrong is not made. */
extern void headerwrite_drop_foreign (struct headerwrite *);

/* --- making the change --- */

/* Has the first cluster enough space for the new header, and for the steps of the
 * change? */
extern bool headerwrite_fits (struct headerwrite *);

/* Makes the change, durably.  After a power cut at any time the header is either
 * completely new or completely old.  Returns 0; or -1, reported, with errno, and *BEGUN
 * (unless it is NULL) says whether the header may have changed.  ENOSPC if it does not
 * fit. */
extern int headerwrite_commit (struct headerwrite *, bool *begun);

/* The same, as far as it does no harm while other threads change single fields: all of it
 * if it changes no field, or else what lies in space that the old header does not use.
 * The rest is for another headerwrite_commit. */
extern int headerwrite_ahead (struct headerwrite *, bool *begun);

/* --- single fields, in place --- */

/* Each changes fields of one sector (512 bytes), so after a power cut they are completely
 * new or completely old.  The caller keeps its struct header up to date.  0, or -1
 * (reported); ENOSPC: nothing was written; ENOMEM: either may be in the file. */

/* Version 3: the feature bits that a program must know to open the image.  Durable. */
extern int headerwrite_incompatible (struct storage *, uint64_t bits);
/* Version 3: those that a program clears if it does not maintain them.  Durable. */
extern int headerwrite_autoclear (struct storage *, uint64_t bits);
/* Both at once, with the compatible feature bits between them.  Durable. */
extern int headerwrite_features (struct storage *, uint64_t incompatible,
                                 uint64_t compatible, uint64_t autoclear);
/* Where the refcount table is: host offset in bytes, size in clusters.  The next sync
 * makes it durable. */
extern int headerwrite_reftable (struct storage *, uint64_t offset, uint32_t clusters);
/* The same, and where the snapshot table is and how many snapshots it has, as H says. */
extern int headerwrite_tables (struct storage *, const struct header *h);

#endif /* QCOW2_HEADERWRITE_H */
