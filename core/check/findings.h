/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Collects the faults of an image, in limited memory.  See findings.c.
 */

#ifndef QCOW2_FINDINGS_H
#define QCOW2_FINDINGS_H

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

enum finding_kind {
  FINDING_LEAK,                 /* the refcount is higher than the number of references */
  FINDING_WORK,                 /* the image causes too much work */
  FINDING_MISSING,              /* a backing file does not exist */
  /* All other kinds are corruptions. */
  FINDING_REFCOUNT,             /* the refcount is lower than the number of references */
  FINDING_COPIED,               /* a COPIED flag does not agree with the refcount (R7) */
  FINDING_REFTABLE,             /* an invalid entry of the refcount table */
  FINDING_OVERLAP,              /* a cluster has two uses */
  FINDING_ALIGNMENT,
  FINDING_BEYOND,               /* an offset lies beyond the end of the file */
  FINDING_RESERVED,             /* reserved bits are set */
  FINDING_ENTRY,                /* an L1 or L2 entry that is not allowed in this image */
  FINDING_SUBCLUSTERS,          /* bitmaps of extended L2 entries */
  FINDING_SNAPSHOT,
  FINDING_ENTRIES,              /* of the snapshot table: see snapmend.c */
  FINDING_BITMAP,
  FINDING_ENCRYPTION,
  FINDING_COMPRESSED,           /* compressed data that cannot be decompressed */
  FINDING_UNREADABLE,           /* data that the host cannot read */
  FINDING_HEADER,
  FINDING_CHAIN,                /* the backing chain */
  FINDING_KINDS
};

struct finding {
  enum finding_kind kind;
  uint64_t offset;              /* in the file, in bytes */
  uint64_t times;               /* how many faults this finding stands for */
  char text[168];               /* the description, as used in messages */
};

struct findings;

/* Keeps the descriptions of at most LIMIT findings; all findings are counted.  NULL on
 * ENOMEM (reported). */
extern struct findings *findings_new (size_t limit);
extern void findings_free (struct findings *);  /* NULL is allowed */

/* These two may be called by any thread. */
extern void findings_add (struct findings *, enum finding_kind, uint64_t times,
                          uint64_t offset, const char *fmt, ...)
  __attribute__ ((__format__ (__printf__, 5, 6)));
extern void findings_vadd (struct findings *, enum finding_kind, uint64_t times,
                           uint64_t offset, const char *fmt, va_list)
  __attribute__ ((__format__ (__printf__, 5, 0)));

/* The other functions may be called only when no thread adds findings. */
extern uint64_t findings_count (const struct findings *, enum finding_kind);
/* The number of faults of all kinds that are corruptions. */
extern uint64_t findings_corruptions (const struct findings *);
/* The findings whose descriptions were kept: corruptions first, then leaks, each sorted
 * by offset.  They belong to the findings. */
extern const struct finding *findings_list (struct findings *, size_t *n);
/* The number of faults that are not in the list. */
extern uint64_t findings_omitted (const struct findings *);

/* "leak", "refcount-too-low", ...: the name of a kind in the JSON report. */
extern const char *finding_name (enum finding_kind);

#endif /* QCOW2_FINDINGS_H */
