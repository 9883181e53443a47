/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The runs of one slice in as few bytes as possible.  See pack.c.  Pure.
 */

#ifndef QCOW2_PACK_H
#define QCOW2_PACK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "format/run.h"

/* Properties that all packs of a space share; packs do not contain them. */
struct pack_shape {
  unsigned unit_bits;   /* log2 of the guest bytes of a unit */
  unsigned units;       /* units per slice: a power of two, <= 2^24 */
};

/* Collects the runs of a slice, in order, from unit 0 on. */
struct pack_run {
  uint64_t host;        /* of the first unit, as in struct run */
  uint32_t start;       /* the first unit; a run ends where the next one begins */
  uint16_t layer;
  uint8_t kind;
  bool copied;
};

struct pack_builder {
  struct pack_shape shape;
  struct pack_run *runs;        /* adjacent runs that continue each other are merged */
  unsigned nr_runs, room;
  unsigned units;               /* covered so far */
};

extern void pack_begin (struct pack_builder *, struct pack_shape);
/* Returns 0, or -1 with errno = ENOMEM.  The units of all calls together are at most
 * shape.units. */
extern int pack_add (struct pack_builder *, unsigned units,
                     enum run_kind kind, bool copied, uint16_t layer,
                     uint64_t host);
extern void pack_end (struct pack_builder *);   /* frees the builder's memory */

/* A pack is one block of memory; release it with free(). */
struct pack;

/* All units must have been added.  NULL on ENOMEM. */
extern struct pack *pack_build (const struct pack_builder *);

/* Finds the run that contains UNIT, from UNIT on: returns its length in units, 1..MAX,
 * and sets kind, copied, layer and host (of UNIT) of *RUN.  UNIT + MAX must be within the
 * slice.  Runs are as long as possible, but a very long one may be returned in pieces. */
extern unsigned pack_find (const struct pack *, struct pack_shape,
                           unsigned unit, unsigned max, struct run *run);

/* For tests and statistics: "runs", "list" or "array", and the length in bytes. */
extern const char *pack_form (const struct pack *);
extern size_t pack_size (const struct pack *);

#endif /* QCOW2_PACK_H */
