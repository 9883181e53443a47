/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What was found to be wrong with an image, with a bound.  See findings.c.
 */

#ifndef QCOW2_FINDINGS_H
#define QCOW2_FINDINGS_H

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

enum finding_kind {
  FINDING_LEAK,                 /* a refcount is higher than its references */
  /* All others are corruptions. */
  FINDING_REFCOUNT,             /* ... lower */
  FINDING_COPIED,               /* a COPIED flag that does not agree with it (R7) */
  FINDING_REFTABLE,             /* an entry of the refcount table */
  FINDING_OVERLAP,              /* one cluster is two things */
  FINDING_ALIGNMENT,
  FINDING_BEYOND,               /* it lies beyond the end of the file */
  FINDING_RESERVED,             /* reserved bits are set */
  FINDING_ENTRY,                /* an L1 or L2 entry that this image can't have */
  FINDING_SUBCLUSTERS,          /* bitmaps of extended L2 entries */
  FINDING_SNAPSHOT,
  FINDING_BITMAP,
  FINDING_ENCRYPTION,
  FINDING_COMPRESSED,           /* compressed data that can't be inflated */
  FINDING_UNREADABLE,           /* the host can't read it */
  FINDING_HEADER,
  FINDING_CHAIN,                /* the backing chain */
  FINDING_KINDS
};

struct finding {
  enum finding_kind kind;
  uint64_t offset;              /* in the file, bytes */
  uint64_t times;               /* how often it counts */
  char text[168];               /* fit for a message */
};

struct findings;

/* Keeps the texts of at most LIMIT findings; all are counted.  NULL on ENOMEM
 * (reported). */
extern struct findings *findings_new (size_t limit);
extern void findings_free (struct findings *);  /* NULL is fine */

/* Any thread. */
extern void findings_add (struct findings *, enum finding_kind, uint64_t times,
                          uint64_t offset, const char *fmt, ...)
  __attribute__ ((__format__ (__printf__, 5, 6)));
extern void findings_vadd (struct findings *, enum finding_kind, uint64_t times,
                           uint64_t offset, const char *fmt, va_list)
  __attribute__ ((__format__ (__printf__, 5, 0)));

/* The rest while nobody adds any. */
extern uint64_t findings_count (const struct findings *, enum finding_kind);
/* Of all kinds but leaks. */
extern uint64_t findings_corruptions (const struct findings *);
/* Those that were kept: corruptions first, each sorted by offset. */
extern const struct finding *findings_list (struct findings *, size_t *n);
/* How many are not in the list. */
extern uint64_t findings_omitted (const struct findings *);

/* "leak", "refcount-too-low", ...: for machines. */
extern const char *finding_name (enum finding_kind);

#endif /* QCOW2_FINDINGS_H */
