/* SPDX-License-Identifier: BSD-3-Clause
 *
 * A file that appears completely or not at all: see newfile.c.
 *
 * Functions that return int return 0, or -1 with errno set and the error reported.
 */

#ifndef QCOW2_NEWFILE_H
#define QCOW2_NEWFILE_H

#include "storage/storage.h"

struct newfile;

/* Is there nothing at PATH (absolute)?  -1 with EEXIST if there is, if only a dangling
 * link.  This spares work; newfile_publish is what makes sure. */
extern int newfile_check (const char *path);

/* An empty file that will be at PATH (absolute), and is nowhere until then.  Of the
 * options, hooks and drop_cache are used. */
extern int newfile_begin (const char *path, const struct storage_options *,
                          struct newfile **);
/* To be written.  Belongs to the newfile. */
extern struct storage *newfile_file (struct newfile *);

/* Makes what was written durable and puts the file in its place, durably too.  EEXIST:
 * something is there by now, and was left alone.  Once only; nothing may be
 * written later. */
extern int newfile_publish (struct newfile *);

/* Takes a published file out of its place, if it still is there.  Failures are ignored:
 * this is for when something else has failed. */
extern void newfile_withdraw (struct newfile *);

/* Closes it; if it was not published, it vanishes.  Keeps errno.  NULL is fine. */
extern void newfile_end (struct newfile *);

#endif /* QCOW2_NEWFILE_H */
