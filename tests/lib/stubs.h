/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Functions that test programs link in place of nbdkit's, and small helpers.
 */

#ifndef TEST_STUBS_H
#define TEST_STUBS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

/* The text of the last error on this thread ("" if there was none), and the number
 * of errors in the whole process.  Errors are also printed to stderr with the prefix
 * "error: ", unless quiet_errors is true. */
extern const char *last_error (void);
extern void clear_last_error (void);
extern unsigned long error_count (void);
extern atomic_bool quiet_errors;

/* NULL, or called with what a change of a disk says about its steps; set it before there
 * are threads. */
extern void (*trace_changes) (const char *text);

/* Like assert, but always compiled in. */
#define CHECK(cond)                                                     \
  do {                                                                  \
    if (!(cond)) {                                                      \
      fprintf (stderr, "%s:%d: check failed: %s\n",                     \
               __FILE__, __LINE__, #cond);                              \
      abort ();                                                         \
    }                                                                   \
  } while (0)

/* Is this the long suite (QCOW2_TEST_LONG, as scripts/test --long sets it)?  In the short
 * one, tests that try many things try some of them, chosen by the seed. */
extern bool long_suite (void);

/* Random numbers that can be replayed: the seed is taken from the environment variable
 * SEED, otherwise from the clock, and printed.  xorshift generator, one per thread. */
struct rng { uint64_t s; };
extern uint64_t seed_from_env (void);
extern void rng_init (struct rng *, uint64_t seed, uint64_t stream);
extern uint64_t rng_next (struct rng *);
static inline uint64_t
rng_below (struct rng *r, uint64_t n)
{
  return n ? rng_next (r) % n : 0;
}

/* Does not wait for the host's disk: the power is not cut in these tests. */
struct storage_hooks;
extern const struct storage_hooks without_sync;

/* Calls WORK for each of the N elements (of SIZE bytes) of ARRAY, each in its own thread,
 * and waits for all threads. */
extern void run_threads (void *(*work) (void *), void *array, size_t size,
                         unsigned n);

#endif /* TEST_STUBS_H */
