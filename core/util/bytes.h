/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Big-endian integers as types of their own, and arithmetic that detects overflow.
 *
 * A value from a file is a struct be16, be32 or be64, so that code cannot use it without
 * converting it.  Any size from an image may be chosen by an attacker: add and multiply
 * it with the checked functions before use.
 */

#ifndef QCOW2_BYTES_H
#define QCOW2_BYTES_H

#include <endian.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

struct be16 { uint16_t be; };
struct be32 { uint32_t be; };
struct be64 { uint64_t be; };

static inline uint16_t get16 (struct be16 x) { return be16toh (x.be); }
static inline uint32_t get32 (struct be32 x) { return be32toh (x.be); }
static inline uint64_t get64 (struct be64 x) { return be64toh (x.be); }

static inline struct be16
put16 (uint16_t x)
{
  return (struct be16) { htobe16 (x) };
}

static inline struct be32
put32 (uint32_t x)
{
  return (struct be32) { htobe32 (x) };
}

static inline struct be64
put64 (uint64_t x)
{
  return (struct be64) { htobe64 (x) };
}

/* *r = a + b or a * b.  False if the result does not fit. */
static inline bool
add_fits (uint64_t a, uint64_t b, uint64_t *r)
{
  return !__builtin_add_overflow (a, b, r);
}

static inline bool
mul_fits (uint64_t a, uint64_t b, uint64_t *r)
{
  return !__builtin_mul_overflow (a, b, r);
}

/* Does [offset, offset+len) lie within [0, size)?  Never overflows. */
static inline bool
range_within (uint64_t offset, uint64_t len, uint64_t size)
{
  return offset <= size && len <= size - offset;
}

/* Do [a, a+alen) and [b, b+blen) share a byte?  Neither may wrap. */
static inline bool
ranges_overlap (uint64_t a, uint64_t alen, uint64_t b, uint64_t blen)
{
  return a < b + blen && b < a + alen;
}

/* Round to a multiple of a power of two.  round_up may wrap: the caller checks before. */
static inline uint64_t
round_down (uint64_t x, uint64_t pow2)
{
  return x & ~(pow2 - 1);
}

static inline uint64_t
round_up (uint64_t x, uint64_t pow2)
{
  return (x + pow2 - 1) & ~(pow2 - 1);
}

static inline uint64_t
div_up (uint64_t x, uint64_t d)
{
  return x / d + (x % d != 0);
}

static inline bool
is_power_of_2 (uint64_t x)
{
  return x != 0 && (x & (x - 1)) == 0;
}

static inline uint64_t
min64 (uint64_t a, uint64_t b)
{
  return a < b ? a : b;
}

static inline uint64_t
max64 (uint64_t a, uint64_t b)
{
  return a > b ? a : b;
}

/* Bits FIRST to LAST of an array of words: those that are in this word; at least one
 * is. */
static inline uint64_t
word_mask (uint64_t word, uint64_t first, uint64_t last)
{
  uint64_t mask = UINT64_MAX;

  if (word == first / 64)
    mask &= UINT64_MAX << first % 64;
  if (word == last / 64)
    mask &= UINT64_MAX >> (63 - last % 64);
  return mask;
}

/* Are these LEN bytes (1 or more) all zeros? */
static inline bool
bytes_are_zero (const void *bytes, uint64_t len)
{
  const uint8_t *p = bytes;

  /* Compares the bytes with themselves, shifted by one: all equal the first one. */
  return p[0] == 0 && memcmp (p, p + 1, len - 1) == 0;
}

#endif /* QCOW2_BYTES_H */
