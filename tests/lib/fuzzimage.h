/* SPDX-License-Identifier: BSD-3-Clause
 *
 * An image, with the files that it names and what happens to it, as the input of a
 * fuzzer.  See fuzzimage.c.
 */

#ifndef TEST_FUZZIMAGE_H
#define TEST_FUZZIMAGE_H

#include <stddef.h>

#include "lib/fuzzscript.h"
#include "lib/stubs.h"

/* Inputs are not larger. */
#define FUZZIMAGE_MAX (256u << 10)

/* Writes the files (FUZZSERVER_IMAGE ...) of this input, and finds the script in it. */
extern void fuzzimage_unpack (const uint8_t *data, size_t size, struct fuzz_script *);

/* The opposite, of files in the current directory.  Returns the size of the input in DATA
 * (FUZZIMAGE_MAX bytes); 0: it would be too large. */
extern size_t fuzzimage_pack (uint8_t *data, const uint8_t *script, size_t script_size);

/* Changes the script, or a few fields of the image: those that have a meaning.  Now and
 * then it raises the refcount of what a new pointer names.  Returns the new size, at most
 * MAX. */
extern size_t fuzzimage_mutate (uint8_t *data, size_t size, size_t max, struct rng *);

#endif /* TEST_FUZZIMAGE_H */
