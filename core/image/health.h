/* SPDX-License-Identifier: BSD-3-Clause
 *
 * May this image still be changed?  See health.c.
 */

#ifndef QCOW2_HEALTH_H
#define QCOW2_HEALTH_H

#include <stdbool.h>

#include "storage/storage.h"
#include "format/header.h"

struct health;

/* Both pointers must outlive it, the header until another one is adopted.  NULL on
 * ENOMEM.  At first, corruption is not recorded in the file (see health_set_writable). */
extern struct health *health_new (struct storage *, struct header *);
extern void health_free (struct health *);
/* From now on HEADER is what the file says: the image was changed as a whole, and read
 * again (image_again).  What has happened to the image so far is not forgotten. */
extern void health_adopt (struct health *, struct header *);

/* Call this before changed metadata reaches the file: marks the image as being changed,
 * durably, if it is not marked yet.  -1, reported: ENOSPC or ENOMEM (try again later)
 * or EIO. */
extern int health_begin_changes (struct health *);
/* Call this when all changes are durable and everything is in order: removes the mark,
 * durably, if there is one.  -1, reported: as before. */
extern int health_end_changes (struct health *);

/* A change of the image as a whole begins, which writes the header itself: until it ends,
 * corruption is not recorded in the file, which may get another header.  -1: it was found
 * before (reported). */
extern int health_begin_switch (struct health *);
/* It has ended, and another header was adopted if it was made. */
extern void health_end_switch (struct health *);

/* From now on corruption is recorded in the file. */
extern void health_set_writable (struct health *);

/* Records that metadata is wrong.  The text says what and where; it is reported, the
 * first time.  On a writable version 3 image, sets the corrupt bit in the file.  In any
 * case no more changes are made.  Sets errno to EIO.  Call it with no lock held, because
 * it writes and syncs. */
extern void health_corrupt (struct health *, const char *fmt, ...)
  __attribute__ ((__format__ (__printf__, 2, 3)));

/* R9: memory and file may no longer agree.  WHY is reported, the first time.  Keeps
 * errno. */
extern void health_fail (struct health *, const char *why);

/* Returns 0 if changes are still allowed, else -1 with errno EIO (the cause has been
 * reported). */
extern int health_check (struct health *);

/* If not: *CORRUPT: metadata is wrong; or else it has failed (R9).  WHY: what was found
 * first.  False: they are. */
#define HEALTH_WHY 256
extern bool health_why (struct health *, bool *corrupt, char why[HEALTH_WHY]);

#endif /* QCOW2_HEALTH_H */
