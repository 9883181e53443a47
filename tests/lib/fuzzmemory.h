/* SPDX-License-Identifier: BSD-3-Clause
 *
 * How much memory does an input of a fuzzer take?  See fuzzmemory.c.
 */

#ifndef TEST_FUZZMEMORY_H
#define TEST_FUZZMEMORY_H

#include <stdint.h>

extern void fuzzmemory_begin (void);
/* The most, in bytes, that was in use at once since then, beyond what was before. */
extern uint64_t fuzzmemory_end (void);

#endif /* TEST_FUZZMEMORY_H */
