/* SPDX-License-Identifier: BSD-3-Clause
 *
 * bytes.h: byte order, and arithmetic at its limits.
 */

#include <config.h>

#include <string.h>

#include "util/bytes.h"
#include "lib/stubs.h"

static void
test_byte_order (void)
{
  const uint8_t b16[] = { 0x01, 0x02 };
  const uint8_t b32[] = { 0x51, 0x46, 0x49, 0xfb };
  const uint8_t b64[] = { 0x80, 1, 2, 3, 4, 5, 6, 0xff };
  struct be16 x16;
  struct be32 x32;
  struct be64 x64;

  _Static_assert (sizeof x16 == 2 && sizeof x32 == 4 && sizeof x64 == 8,
                  "big-endian types have no padding");

  memcpy (&x16, b16, 2);
  memcpy (&x32, b32, 4);
  memcpy (&x64, b64, 8);
  CHECK (get16 (x16) == 0x0102);
  CHECK (get32 (x32) == 0x514649fb);
  CHECK (get64 (x64) == UINT64_C (0x80010203040506ff));

  x16 = put16 (0x0102);
  x32 = put32 (0x514649fb);
  x64 = put64 (UINT64_C (0x80010203040506ff));
  CHECK (memcmp (&x16, b16, 2) == 0);
  CHECK (memcmp (&x32, b32, 4) == 0);
  CHECK (memcmp (&x64, b64, 8) == 0);
}

static void
test_checked (void)
{
  uint64_t r;

  CHECK (add_fits (1, 2, &r) && r == 3);
  CHECK (add_fits (UINT64_MAX - 1, 1, &r) && r == UINT64_MAX);
  CHECK (!add_fits (UINT64_MAX, 1, &r));
  CHECK (mul_fits (UINT64_C (1) << 32, UINT32_MAX, &r) &&
         r == (uint64_t) UINT32_MAX << 32);
  CHECK (!mul_fits (UINT64_C (1) << 32, UINT64_C (1) << 32, &r));
  CHECK (mul_fits (UINT64_MAX, 0, &r) && r == 0);
}

static void
test_ranges (void)
{
  CHECK (range_within (0, 0, 0));
  CHECK (range_within (10, 0, 10));
  CHECK (!range_within (11, 0, 10));
  CHECK (range_within (3, 7, 10));
  CHECK (!range_within (3, 8, 10));
  CHECK (!range_within (UINT64_MAX, 1, 10));
  CHECK (!range_within (1, UINT64_MAX, 10));
  CHECK (range_within (1, UINT64_MAX - 1, UINT64_MAX));

  CHECK (ranges_overlap (0, 10, 9, 1));
  CHECK (ranges_overlap (9, 1, 0, 10));
  CHECK (!ranges_overlap (0, 10, 10, 1));
  CHECK (!ranges_overlap (10, 1, 0, 10));
  CHECK (ranges_overlap (5, 1, 0, 100));
}

static void
test_rounding (void)
{
  CHECK (round_down (511, 512) == 0);
  CHECK (round_down (512, 512) == 512);
  CHECK (round_up (0, 512) == 0);
  CHECK (round_up (1, 512) == 512);
  CHECK (round_up (512, 512) == 512);
  CHECK (round_down (UINT64_MAX, 4096) == UINT64_MAX - 4095);
  CHECK (div_up (0, 7) == 0);
  CHECK (div_up (7, 7) == 1);
  CHECK (div_up (8, 7) == 2);
  CHECK (div_up (UINT64_MAX, 2) == UINT64_C (1) << 63);
  CHECK (is_power_of_2 (1) && is_power_of_2 (UINT64_C (1) << 63));
  CHECK (!is_power_of_2 (0) && !is_power_of_2 (3) &&
         !is_power_of_2 (UINT64_MAX));
  CHECK (min64 (1, UINT64_MAX) == 1 && max64 (1, UINT64_MAX) == UINT64_MAX);
}

int
main (void)
{
  test_byte_order ();
  test_checked ();
  test_ranges ();
  test_rounding ();
  return 0;
}
