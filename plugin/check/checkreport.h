/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What a check found, for people and for machines.  See checkreport.c.
 */

#ifndef QCOW2_CHECKREPORT_H
#define QCOW2_CHECKREPORT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "image/image.h"
#include "check/findings.h"
#include "check/scan.h"

enum check_verdict {
  CHECK_CLEAN,
  CHECK_LEAKS,                  /* space is lost, and nothing else */
  CHECK_DIRTY,                  /* not closed properly: refcounts may be out of date */
  CHECK_CORRUPT,
  CHECK_FAILED,                 /* it could not be looked at to the end */
};

/* One file of the chain. */
struct check_layer {
  char *path;
  bool raw;                     /* nothing below but path, findings, file_size */
  struct image *image;          /* NULL: could not be opened; a raw file is only that */
  bool parsed;                  /* image->header and stats are set */
  struct scan_stats stats;
  uint64_t file_size;
  struct findings *findings;
  uint64_t leaks, corruptions;  /* that count: see check.c */
  uint64_t stale;               /* refcounts and flags out of date in a dirty image */
  uint64_t leaks_fixed, corruptions_fixed;
};

struct check_result {
  const char *mode;             /* "quick", ... */
  enum check_verdict verdict;
  bool repaired;
  struct check_layer **layers;
  size_t n;
};

/* One line about all of it, of at most SIZE bytes; begins with the path. */
extern const char *checkreport_line (const struct check_result *, char *text,
                                     size_t size);
/* Tells what was found, with a bound, as errors. */
extern void checkreport_tell (const struct check_result *);

/* May PATH be replaced by a report?  0; or -1 with errno = EEXIST (reported). */
extern int checkreport_check (const char *path);

/* Writes it as JSON to PATH: see reportfile_write.
 * -1: reported. */
extern int checkreport_write (const struct check_result *, const char *path);

#endif /* QCOW2_CHECKREPORT_H */
