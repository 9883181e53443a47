/* SPDX-License-Identifier: BSD-3-Clause
 *
 * By what is known which target a backup was written to in place.  See ontomarks.c.
 *
 * Functions that return int return 0, or -1 (reported).
 */

#ifndef QCOW2_IMG_ONTOMARKS_H
#define QCOW2_IMG_ONTOMARKS_H

#include <stdbool.h>
#include <stdint.h>

#include <jansson.h>

#include "copy/copyend.h"

/* How the marks of a copy are made while it goes on. */
struct ontomarks {
  /* Belong to ontomarks.c: */
  const struct copy_end *target;
  uint64_t before;              /* looked at */
  struct ontomarks_sample {
    const struct copy_end *end; /* or NULL */
    uint64_t step;              /* marks are as far apart, in bytes of data */
    uint64_t data;              /* that came by */
    uint64_t last;              /* block of it; UINT64_MAX: there was none */
    json_t *list;
  } of[2];                      /* all, and what is new */
};
/* Of a TARGET that is to show ALL, which is not smaller; of that, CHANGES (NULL: all) are
 * new.  The ends must outlive it. */
extern void ontomarks_begin (struct ontomarks *, const struct copy_end *all,
                             const struct copy_end *changes,
                             const struct copy_end *target);
extern void ontomarks_end (struct ontomarks *);         /* zeros are accepted */
/* *MARKS, for the manifest: what is before BEFORE is there, and changes no more; the next
 * time it is no less.  The caller frees *MARKS, also on failure. */
extern int ontomarks_make (struct ontomarks *, uint64_t before, json_t **marks);
/* Does an empty target not have all of them? */
extern bool ontomarks_tell (const json_t *marks);
/* A backup that was cut off has perhaps written where CHANGES has something, or ALL has
 * no data any more. */
struct ontomarks_cut { const struct copy_end *all, *changes; };
/* *OTHER: a mark that the TARGET does not have, or UINT64_MAX.  CUT: its own are not
 * looked at; NULL: there was no such backup. */
extern int ontomarks_check (const json_t *marks, const struct copy_end *target,
                            const struct ontomarks_cut *cut, uint64_t *other);

#endif /* QCOW2_IMG_ONTOMARKS_H */
