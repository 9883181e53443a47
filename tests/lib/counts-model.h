/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The refcounts that an image created by qemu-img should have.  See counts-model.c.
 */

#ifndef TEST_COUNTS_MODEL_H
#define TEST_COUNTS_MODEL_H

#include <stdbool.h>
#include <stdint.h>

#include "lib/alloc-image.h"
#include "lib/images.h"

#define IMAGE "counts.qcow2"

/* The expected counts of all clusters. */
#define MAX_MODEL 70000
extern uint64_t model[MAX_MODEL];
extern uint64_t model_end;      /* in clusters */
/* This number of clusters have durable counts after the sync that model_write starts
 * next. */
extern uint64_t promised;

/* Creates a new, empty image. */
extern void create_counts (unsigned cluster_size, unsigned refcount_bits);
/* qemu-img may find leaks but nothing else: no pointer names the clusters that the test
 * counts. */
extern void check_counts_image (const char *name);

/* read_model takes the counts of the open image (open_counts) as the expected ones;
 * compare_model compares them. */
extern void read_model (void);
extern void compare_model (void);

/* Makes N more clusters countable at the end and allocates them.  Returns the first
 * one. */
extern uint64_t grow (uint64_t n);
/* Writes, syncs, and frees the table that was left behind. */
extern int model_write (void);
extern void model_write_all (void);

/* Grows the table several times, with more than one level of new blocks.  Writes that
 * fail with ENOSPC are tried again. */
extern void scenario (void);

#endif /* TEST_COUNTS_MODEL_H */
