/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What is a kind of export?
 *
 * A file exportNAME.c, which defines one struct export_kind, and a line in the table of
 * exports.c.  Only export*.c and serve.c include this.
 */

#ifndef QCOW2_EXPORTKIND_H
#define QCOW2_EXPORTKIND_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "disk/disk-impl.h"
#include "disk/export.h"

/* An export that there is, whether a client uses it or not. */
struct export_slot {
  const struct export_kind *kind;
  uint32_t number;              /* among those of its kind, from 0 */
  int which;                    /* of its names a client is told; -1: none */
  void *kept;                   /* what its kind keeps for all clients, also for those
                                   that are still to come; under the disk's lock */
};

/* For one client.  A kind that needs more has a struct of its own that begins with this.
 * Constant while requests run. */
struct export {
  struct disk *disk;
  struct export_slot *slot;
  const struct export_kind *kind;       /* slot->kind */
  bool writable;
  uint64_t size;                /* bytes; the kind's `open' sets it */
  char description[160];
};

/* Names that are made up fit in so many bytes. */
#define EXPORT_NUMBER 24

struct export_kind {
  /* --- which there are, and what they are called: constant once the disk is open --- */

  const char *noun;             /* for messages */
  const char *prefix;           /* of all names; the functions here leave it out */
  size_t (*count) (const struct disk *);
  /* Which one does NAME mean?  SIZE_MAX: none. */
  size_t (*find) (const struct disk *, const char *name);
  /* By which names it is found: WHICH 0 is the best; NULL: it has no more.  In BUF if the
   * name is made up. */
  const char *(*name) (const struct disk *, size_t number, unsigned which,
                       char buf[EXPORT_NUMBER]);
  void (*describe) (const struct disk *, size_t number, char *text, size_t size);
  /* What a message adds when `find' finds none: ": ..."; NULL: nothing. */
  void (*hint) (const struct disk *, char *text, size_t size);
  /* Would a client be refused?  Then it is not listed.  NULL: no. */
  bool (*is_void) (const struct disk *, size_t number);

  /* --- coming and going --- */

  size_t bytes;                 /* of its struct, which begins with struct export */
  bool may_write;               /* for clients that want to */
  int (*open) (struct export *);        /* -1: reported */
  void (*close) (struct export *);      /* NULL: nothing to do */
  /* Frees what is kept when the disk is closed, perhaps for clients that have not left.
   * NULL: nothing is ever kept. */
  void (*forget) (void *kept);

  /* --- requests, with a pin --- */

  /* What they work on, perhaps in MADE.  CURRENT: the active disk at this moment.  NULL:
   * that. */
  const struct view *(*view) (const struct export *, const struct view *current,
                              struct view *made);
  /* As in request.h; NULL: the one there.  Where they change something, 1: a checkpoint
   * must make that durable. */
  int (*read) (const struct export *, const struct view *, void *buf, uint64_t count,
               uint64_t offset);
  int (*cache) (const struct export *, const struct view *, uint64_t count,
                uint64_t offset);
  int (*extents) (const struct export *, const struct view *, uint64_t count,
                  uint64_t offset, bool one, extent_fn emit, void *opaque);
};

extern const struct export_kind export_active, export_snapshot, export_layer,
  export_bitmap;

/* The one that NAME means.  NULL: there is none (reported). */
extern struct export_slot *exports_find (const struct disk *, const char *name);

#endif /* QCOW2_EXPORTKIND_H */
