/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The refcounts that an image of qemu-img's should have.  See counts-model.c.
 */

#ifndef TEST_COUNTS_MODEL_H
#define TEST_COUNTS_MODEL_H

#include <stdbool.h>
#include <stdint.h>

#include "lib/alloc-image.h"
#include "lib/images.h"

#define IMAGE "counts.qcow2"

/* The counts of clusters that we expect. */
#define MAX_MODEL 70000
extern uint64_t model[MAX_MODEL];
extern uint64_t model_end;      /* clusters */
/* So many counts are durable after the sync that model_write begins next. */
extern uint64_t promised;

/* A new, empty image. */
extern void create_counts (unsigned cluster_size, unsigned refcount_bits);
/* qemu-img finds leaks at most: nothing points to the clusters that we count. */
extern void check_counts_image (const char *name);

/* Those of the image that is open (open_counts) are what is expected from now on; and are
 * they? */
extern void read_model (void);
extern void compare_model (void);

/* Makes N more clusters countable at the end and takes them.  Returns the first. */
extern uint64_t grow (uint64_t n);
/* Writes, syncs, and lets go of the table that was left behind. */
extern int model_write (void);
extern void model_write_all (void);

/* Grows the table several times over, with more than one level of new blocks.  Writes
 * may fail with ENOSPC: then again. */
extern void scenario (void);

#endif /* TEST_COUNTS_MODEL_H */
