/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Does the core open the test's images as files, or through NBD?  See reach.c.
 */

#ifndef TEST_REACH_H
#define TEST_REACH_H

#include "check/check.h"
#include "disk/disk.h"
#include "lib/remoteserver.h"

/* The server, or NULL: images are opened as files. */
extern struct remoteserver *reach_server (void);

/* Begins to serve the files in the directory DIR (absolute) if the environment says so
 * (images_enter calls this), and stops. */
extern void reach_begin (const char *dir);
extern void reach_end (void);
/* The server's manners, for this trial (trials_run calls this). */
extern void reach_choose_manners (struct rng *);
/* Can the storage punch holes that begin and end at multiples of these SIZES (or-ed
 * together)? */
extern bool reach_punches (uint64_t sizes);
/* Do several sectors share a block, of which the storage writes all or nothing? */
extern bool reach_shares_blocks (void);
/* Is a durable write one operation, or a write and a sync? */
extern bool reach_writes_durably (void);

/* How many descriptors are open once the server has no connections?  (The lowest that is
 * free says nothing: who waits for a client has reserved one.) */
extern unsigned reach_open_descriptors (void);

/* What the header of an image calls the file NAME in the directory; to be freed.  (QEMU
 * finds only backing files by URI.  Relative names mean nothing below one.) */
extern char *reach_backing_in_header (const char *name);
extern char *reach_data_file_in_header (const char *name);

/* What the server does with the file at PATH goes through these hooks.  Waits until
 * nobody uses it. */
extern void reach_hook (const char *path, const struct storage_hooks *);
/* What the core opens instead of the file at PATH.  *HOOKS are then the server's, and
 * become NULL.  The string is valid until reach_end. */
extern const char *reach_path (const char *path, const struct storage_hooks **hooks);
/* The same, for the options of a disk. */
extern struct disk_options reach_disk (const struct disk_options *);
/* disk_open and check_image, with such options. */
extern int reach_open (const struct disk_options *, struct disk **);
extern int reach_check (const struct check_options *, struct check **);

/* The names in headers that may be followed. */
extern struct filename_rules reach_rules (void);

#endif /* TEST_REACH_H */
