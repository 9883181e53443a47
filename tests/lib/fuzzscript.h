/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Bytes from a fuzzer that decide what happens.  Behind their end are zeros.
 */

#ifndef TEST_FUZZSCRIPT_H
#define TEST_FUZZSCRIPT_H

#include <stdbool.h>
#include <stdint.h>

struct fuzz_script {
  const uint8_t *at, *end;
};

static inline bool
fuzz_script_ended (const struct fuzz_script *s)
{
  return s->at == s->end;
}

static inline uint8_t
fuzz_byte (struct fuzz_script *s)
{
  return s->at < s->end ? *s->at++ : 0;
}

static inline uint16_t
fuzz_word (struct fuzz_script *s)
{
  const uint8_t high = fuzz_byte (s);

  return high << 8 | fuzz_byte (s);
}

#endif /* TEST_FUZZSCRIPT_H */
