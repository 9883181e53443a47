/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The bytes of a snapshot table.  See snaptable.c.
 */

#ifndef QCOW2_SNAPTABLE_H
#define QCOW2_SNAPTABLE_H

#include <stdbool.h>
#include <stdint.h>

#include "storage/storage.h"
#include "format/format.h"
#include "format/header.h"

/* --- a table in a file, which may have any faults --- */

struct snaptable_entry {
  uint32_t i;
  uint64_t at;                  /* its offset in the file */
  bool whole;                   /* it lies within the file; if not, it is the last */
  bool excess;                  /* programs read no table that is so large */
  struct qcow2_snapshot raw;

  uint64_t next, kept;          /* for snaptable_next */
};

/* Goes to the next entry, or at first, with all fields 0, to the first.  Returns 1; 0 if
 * there is none, or the file ends before it; or -1 (reported). */
extern int snaptable_next (struct storage *, const struct header *,
                           struct snaptable_entry *);

/* --- a table in memory --- */

struct snaptable {
  unsigned char *bytes;         /* freed by the caller */
  uint64_t size, room;          /* bytes; 0 is a valid room for any table */
  uint32_t n;
};

/* The bytes of an entry, with the padding after it. */
extern uint64_t snaptable_bytes (const struct qcow2_snapshot *);
/* Appends an entry.  EXTRA: its extra data.  STRINGS: its id and its name.  -1: reported;
 * the table is unchanged. */
extern int snaptable_append (struct snaptable *, const struct qcow2_snapshot *,
                             const void *extra, const void *strings);
extern void snaptable_remove (struct snaptable *, uint32_t i);

#endif /* QCOW2_SNAPTABLE_H */
