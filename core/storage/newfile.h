/* SPDX-License-Identifier: BSD-3-Clause
 *
 * A file that appears completely or not at all.  See newfile.c.
 *
 * Functions that return int return 0, or -1 with errno set and the error reported.
 */

#ifndef QCOW2_NEWFILE_H
#define QCOW2_NEWFILE_H

#include "storage/storage.h"

struct newfile;

/* Returns -1 with EEXIST (reported) if anything exists at PATH (absolute), even a
 * dangling link.  This only avoids needless work; newfile_publish makes sure. */
extern int newfile_check (const char *path);

/* Creates an empty file for PATH (absolute), which does not appear there yet.  The only
 * options that are used are hooks and cache. */
extern int newfile_begin (const char *path, const struct storage_options *,
                          struct newfile **);
/* The same for a file that may exist, or be at the end of a symbolic link:
 * newfile_publish replaces it.  With the option `lock', it is locked as by a writer until
 * newfile_end. */
extern int newfile_begin_over (const char *path, const struct storage_options *,
                               struct newfile **);
/* The file to write to.  Belongs to the newfile. */
extern struct storage *newfile_file (struct newfile *);
/* The file that will be replaced, or NULL.  Belongs to the newfile. */
extern struct storage *newfile_old (struct newfile *);
/* How others can open the file before it has its name.  Belongs to the newfile. */
extern struct dirfile newfile_place (const struct newfile *);

/* Makes the file durable and gives it its name, durably too.  EEXIST, ESTALE: there is
 * another file by now, or none, which was left alone.  Call it once; do not write to the
 * file afterwards. */
extern int newfile_publish (struct newfile *);

/* Removes a published file, if it has replaced none and still has its name.  Failures are
 * ignored: this is for the case that something else has failed. */
extern void newfile_withdraw (struct newfile *);

/* Closes the file; if it was not published, it disappears.  Keeps errno.  May be NULL. */
extern void newfile_end (struct newfile *);

#endif /* QCOW2_NEWFILE_H */
