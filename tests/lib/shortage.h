/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Memory that runs out while the core works for a test.  See shortage.c.
 */

#ifndef TEST_SHORTAGE_H
#define TEST_SHORTAGE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifndef __has_feature
#define __has_feature(x) 0
#endif
#if defined __SANITIZE_THREAD__ || __has_feature (thread_sanitizer)
#define TRACES_THREADS 1
#else
#define TRACES_THREADS 0
#endif

/* For what allocations call before ThreadSanitizer is ready for its own calls. */
#ifdef __clang__
#define NO_TRACING __attribute__ ((disable_sanitizer_instrumentation))
#else
#define NO_TRACING __attribute__ ((no_sanitize_thread))
#endif

struct rng;

/* AFTER allocations succeed, then TIMES ones fail. */
struct shortage {
  uint64_t after, times;
};
#define SHORTAGE_NONE ((struct shortage) { .times = 0 })

/* From now on, until it ends, allocations are counted, and some fail.  (They are counted
 * in programs that include lib/allocations.h.) */
extern void shortage_begin (struct shortage);
/* The same, but one of so many fails; which ones, the seed says. */
extern void shortage_begin_scarcity (unsigned one_in, uint64_t seed);
/* Returns how many failed. */
extern uint64_t shortage_end (void);
/* How many have failed since it began. */
extern uint64_t shortage_failures (void);
/* In all shortages of this program. */
extern uint64_t shortage_all_failures (void);

/* After a SHORTAGE_NONE has ended: which allocations shall fail one day?  Each place of
 * the core from which allocations were made is among them with its first and last one,
 * and a random one between.  *N numbers, in random order and no more than MOST, to be
 * freed.  ALLOCATIONS in the environment replaces MOST; if it is "all", all allocations
 * are chosen. */
extern uint64_t *shortage_choose (struct rng *, size_t most, size_t *n);

/* SPARE: what this thread does is not the core's work, and always finds memory.  Returns
 * what it was before (at first, false). */
extern bool shortage_spare (bool spare);

/* A call of the core, by a thread that may be spared otherwise. */
#define SHORTAGE_MEETS(call)                                            \
  ({                                                                    \
    const bool spared_ = shortage_spare (false);                        \
    __typeof__ (call) result_ = (call);                                 \
    shortage_spare (spared_);                                           \
    result_;                                                            \
  })

/* Does the allocation fail that the function at CALLER asks for?  For
 * lib/allocations.h. */
extern bool shortage_hits (const void *caller);

#endif /* TEST_SHORTAGE_H */
