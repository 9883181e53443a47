/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The files of the generations in a repository.  See generationfile.c.
 *
 * Functions that return int return 0, or -1 (reported).
 */

#ifndef QCOW2_IMG_GENERATIONFILE_H
#define QCOW2_IMG_GENERATIONFILE_H

#include "img/repository.h"

struct generationfile {
  uint64_t size;                /* bytes */
  char sum[65];                 /* SHA-256, in hexadecimal; "": not wanted */
};

/* What has the file of a repository now?  SUM: its checksum, too, which takes a while. */
extern int generationfile_measure (const struct repository *, const char *file, bool sum,
                                   struct generationfile *);

/* Are the files of generation I, and of those below it, what the manifest says?  SUMS:
 * have they the bytes, too? */
extern int generationfile_check (const struct repository *, unsigned i, bool sums);
/* Of all generations.  All that is wrong is reported. */
extern int generationfile_check_all (const struct repository *);
/* Of how many of these files (I == -1: of all) does the manifest know no checksum? */
extern unsigned generationfile_unknown (const struct repository *, int i);
/* Do the files of generation I, and of those below it, exist, with the sizes, disks and
 * backing files that the manifest says?  (Not reported.) */
extern bool generationfile_is_there (const struct repository *, unsigned i);

#endif /* QCOW2_IMG_GENERATIONFILE_H */
