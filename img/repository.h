/* SPDX-License-Identifier: BSD-3-Clause
 *
 * A directory of backups of one disk.  See repository.c.
 *
 * Functions that return int return 0, or -1 (reported).
 */

#ifndef QCOW2_IMG_REPOSITORY_H
#define QCOW2_IMG_REPOSITORY_H

#include <stdbool.h>
#include <stdint.h>

#include <jansson.h>

struct repository;

/* Opens the repository in a directory, to read it.  NULL: reported. */
extern struct repository *repository_open (const char *directory);
/* The same for a backup: no other process makes one meanwhile, and what an earlier one
 * has left half done is removed.  Creates it, if there is none, for the disk that is
 * called DISK, whose image must not be in it. */
extern struct repository *repository_begin (const char *directory, const char *disk,
                                            const char *image);
/* Removes it again, if repository_begin has created it, and there is no generation. */
extern void repository_abandon (struct repository *);
extern void repository_free (struct repository *);      /* NULL is allowed */

/* The name by which it is known in images: bitmaps and snapshots that are made for it
 * begin with this. */
extern const char *repository_prefix (const struct repository *);
/* Where a file of it is, for messages too; the caller frees it.  NULL: reported. */
extern char *repository_path (const struct repository *, const char *file);

/* Is that file (which need not exist), or what the symbolic link leads to, in its
 * directory?  What is written there would replace a generation. */
extern bool repository_contains (const struct repository *, const char *file);

/* A generation, as the manifest has it; it belongs to the repository. */
struct repository_generation {
  uint64_t number;
  const char *file;             /* without its directory; ONTO: absolute, or a URI */
  bool onto;                    /* it is the only one, and written in place */
  bool incomplete;              /* and that was cut off: it must not be relied on */
  const char *copying;          /* INCOMPLETE: the bitmap of the instant that was being
                                   copied; NULL: by a full backup */
  const json_t *marks;          /* see ontomarks.c; NULL: none */
  bool estranged;               /* the disk may be another one than that of older ones */
  bool raw;
  const char *backing;          /* the file below it; NULL: it is complete by itself */
  bool raw_backing;
  const char *bitmap;           /* records in the image what has changed since */
  const char *date;             /* of the instant */
  uint64_t size;                /* of the disk, bytes */
  uint64_t bytes;               /* that were copied */
  uint64_t file_size;           /* of the file, bytes; 0: not known */
  const char *sum;              /* SHA-256 of the file, in hexadecimal; NULL: not known */
};
/* The next generation, of which a backup that was cut off has copied a part.  Its file
 * has the name repository_part_path, unless it is written in place. */
struct repository_part {
  const char *instant;          /* the bitmap and the snapshot of that instant; NULL:
                                   there is no part */
  const char *base;             /* the bitmap whose changes it has; NULL: it has all */
  const char *date;             /* of the instant */
  unsigned disks;               /* that show the same instant */
  bool raw;
  const char *onto;             /* where it is written in place; NULL: it is not */
  const json_t *marks;          /* ONTO: of what is durable */
  uint64_t done;                /* so many bytes of the disk are durable in the file */
  uint64_t bytes;               /* that were copied for it */
  uint64_t inode;               /* of the file; 0: it is written in place */
  uint64_t changed;             /* BASE: bytes that it says to have changed */
};
/* How many there are, from the oldest (0) to the newest. */
extern unsigned repository_count (const struct repository *);
extern struct repository_generation repository_get (const struct repository *, unsigned i);
/* The file into which the oldest one is to be merged, as that of a generation that is
 * none any more; file == NULL: there is none. */
extern struct repository_generation repository_below (const struct repository *);
/* The description of one, for people's programs; the caller frees it. */
extern json_t *repository_describe (const struct repository *, unsigned i);
/* Which one has that number?  -1: none (not reported). */
extern int repository_find (const struct repository *, uint64_t number);
/* The number of the next one. */
extern uint64_t repository_next (const struct repository *);

/* What the manifest says of the part, and how its file, or a new one, is called; the
 * caller frees it.  NULL: reported. */
extern struct repository_part repository_get_part (const struct repository *);
extern char *repository_part_path (const struct repository *, bool raw);
/* The next generation has become that far. */
extern int repository_set_part (struct repository *, const struct repository_part *);
/* There is none any more: it is removed, with its file. */
extern int repository_drop_part (struct repository *);

/* These change the manifest, durably and at once; the file of a new generation is durable
 * before, and gets its name here, which was that of the part. */
extern int repository_add (struct repository *, const struct repository_generation *);
/* The same, in place of all that there are. */
extern int repository_replace (struct repository *, const struct repository_generation *);
/* From now on the newest one, if there is one, is incomplete.  What BASE has recorded is
 * copied, and the bitmap COPYING records on; BASE == NULL: all is copied. */
extern int repository_begin_onto (struct repository *, const char *base,
                                  const char *copying);
/* Forgets the oldest N ones.  A file of them stays, as long as others need it; then the
 * next one is to be merged into it. */
extern int repository_forget (struct repository *, unsigned n);
/* The OLDEST one is now in the file below it, and the NEXT one, or NULL, lies over that:
 * what is known of their files. */
extern int repository_merge (struct repository *,
                             const struct repository_generation *oldest,
                             const struct repository_generation *next);
/* Removes files that no generation needs. */
extern int repository_sweep (const struct repository *);

#endif /* QCOW2_IMG_REPOSITORY_H */
