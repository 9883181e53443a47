/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Reports the results of a check, to people and to programs.  See checkreport.c.
 */

#ifndef QCOW2_CHECKREPORT_H
#define QCOW2_CHECKREPORT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <jansson.h>

#include "image/image.h"
#include "check/findings.h"
#include "check/scan.h"

enum check_verdict {
  CHECK_CLEAN,
  CHECK_LEAKS,                  /* space is wasted; no other fault */
  CHECK_DIRTY,                  /* not closed properly: refcounts may be out of date */
  CHECK_MARKED,                 /* marked corrupt, but no such fault was found */
  /* Not fit to be served: */
  CHECK_INCOMPLETE,             /* a file below the image, or its data file, is missing */
  CHECK_FAILED,                 /* the check could not be completed */
  CHECK_CORRUPT,
};

/* One file of the chain. */
struct check_layer {
  char *path;
  bool raw;                     /* only path, image, findings and file_size are used */
  struct image *image;          /* NULL: could not be opened; if raw, only file is used */
  bool parsed;                  /* the header was read, and stats is set */
  struct scan_stats stats;
  uint64_t file_size;
  struct findings *findings;
  struct findings *lost;        /* what a repair left out of snapshots; or NULL */
  uint64_t leaks, corruptions;  /* those that count: see check.c */
  uint64_t stale;               /* outdated refcounts and flags of a dirty image */
  uint64_t leaks_fixed, corruptions_fixed;
};

struct check_result {
  const char *mode;             /* "quick", ... */
  bool serves;                  /* for a server (check=), which may refuse the image */
  enum check_verdict verdict;
  bool repaired;
  struct check_layer **layers;
  size_t n;
};

/* Writes one line that sums up the check to TEXT, of at most SIZE bytes.  The line begins
 * with the path.  Returns TEXT. */
extern const char *checkreport_line (const struct check_result *, char *text,
                                     size_t size);
/* Reports the findings, up to a limit. */
extern void checkreport_tell (const struct check_result *);

/* Reports what a repair has taken out, up to a limit. */
extern void checkreport_tell_lost (const struct check_layer *);

/* May a report replace the file at PATH?  Returns 0, or -1 with errno = EEXIST
 * (reported). */
extern int checkreport_check (const char *path);

/* The results as a document.  The caller frees it.  NULL on ENOMEM (not reported). */
extern json_t *checkreport_describe (const struct check_result *);
/* Writes them to PATH: see reportfile_write.  -1: reported. */
extern int checkreport_write (const struct check_result *, const char *path);

#endif /* QCOW2_CHECKREPORT_H */
