/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Zeros to write from: see zeros.h.
 */

#include <config.h>

#include "util/zeros.h"

/* (What is constant would be in the file.) */
static _Alignas (4096) char bytes[ZEROS_SIZE];

const char *const zero_bytes = bytes;
