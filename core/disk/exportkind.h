/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What is a kind of export?
 *
 * A kind is a file exportNAME.c, which defines one struct export_kind, and a line in the
 * table of exports.c.  Only export*.c and serve.c include this.
 */

#ifndef QCOW2_EXPORTKIND_H
#define QCOW2_EXPORTKIND_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "disk/disk-impl.h"
#include "disk/export.h"

/* An export that the disk has, whether a client uses it or not. */
struct export_slot {
  const struct export_kind *kind;
  uint32_t number;              /* among the exports of its kind, from 0 */
  int which;                    /* the name that is listed to clients; -1: none */
  void *kept;                   /* what the kind keeps for all clients of the export,
                                   including later ones; under the disk's lock */
};

/* The export as one client uses it.  A kind that needs more has a struct of its own that
 * begins with this one.  Constant while requests run. */
struct export {
  struct disk *disk;
  struct generation *generation;        /* that it holds; NULL: the kind follows */
  struct export_slot *slot;     /* of the generation; NULL: the kind follows */
  struct export_slot *instant;  /* the snapshot whose data a bitmap shows; or NULL */
  struct export *next;          /* that holds a generation; under the disk's lock */
  const struct export_kind *kind;       /* slot->kind */
  bool writable;
  uint64_t size;                /* bytes; the kind's `open' sets it */
  char description[160];
};

/* Size of a buffer for names that are made up, with the final 0. */
#define EXPORT_NUMBER 24

struct export_kind {
  /* --- exports and their names: constant in a generation --- */

  const char *noun;             /* for messages */
  const char *prefix;           /* of all names; the functions here omit it */
  size_t (*count) (const struct generation *);
  /* Returns the number of the export that NAME means, or SIZE_MAX if there is none. */
  size_t (*find) (const struct generation *, const char *name);
  /* Returns the names by which it is found: WHICH 0 is the best one; NULL: there are no
   * more.  BUF is used if the name is made up. */
  const char *(*name) (const struct generation *, size_t number, unsigned which,
                       char buf[EXPORT_NUMBER]);
  void (*describe) (const struct generation *, size_t number, char *text, size_t size);
  /* What a message adds when `find' finds no export: ": ...".  NULL: nothing. */
  void (*hint) (const struct generation *, char *text, size_t size);
  /* Would a client be refused?  Then the export is not listed.  NULL: no. */
  bool (*is_void) (const struct generation *, size_t number);

  /* --- clients come and leave --- */

  size_t bytes;                 /* size of its struct, which begins with struct export */
  bool may_write;               /* clients may write if they want to */
  bool follows;                 /* it shows each generation while it is the present one,
                                   and holds none */
  int (*open) (struct export *);        /* -1: reported */
  void (*close) (struct export *);      /* NULL: nothing to do */
  /* When the disk is closed, frees what is kept, perhaps for clients that have not left.
   * NULL: nothing is ever kept. */
  void (*forget) (void *kept);

  /* --- requests, in a read section --- */

  /* Returns the view on which requests work, perhaps in MADE.  CURRENT is the present
   * view of the active disk, which is used if this is NULL. */
  const struct view *(*view) (const struct export *, const struct view *current,
                              struct view *made);
  /* As in request.h; NULL: use those.  A function that changes something returns 1 if a
   * checkpoint must make the change durable. */
  int (*read) (const struct export *, const struct view *, void *buf, uint64_t count,
               uint64_t offset);
  int (*cache) (const struct export *, const struct view *, uint64_t count,
                uint64_t offset);
  int (*extents) (const struct export *, const struct view *, uint64_t count,
                  uint64_t offset, const struct extents_query *);
};

extern const struct export_kind export_active, export_snapshot, export_layer,
  export_bitmap;

/* As exports_list. */
extern int exports_each (const struct generation *, export_fn emit, void *opaque,
                         unsigned *unlisted);

/* Finds the export that NAME means.  *INSTANT: the snapshot whose data a bitmap shows, or
 * NULL.  NULL: there is none (reported). */
extern struct export_slot *exports_find (const struct generation *, const char *name,
                                         struct export_slot **instant);

/* Makes a view of the snapshot of SLOT, for a client of an export.  -1: reported. */
extern int exportsnapshot_view (const struct export *, struct export_slot *slot,
                                struct view *);

#endif /* QCOW2_EXPORTKIND_H */
