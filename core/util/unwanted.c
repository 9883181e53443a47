/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Is what this thread works on still wanted?  See unwanted.h.
 *
 * Locks: none; the flag is atomic, and which one it is belongs to the thread.
 */

#include <config.h>

#include <stddef.h>

#include "util/unwanted.h"

static _Thread_local const atomic_bool *unwanted_flag;

void
unwanted_if (const atomic_bool *flag)
{
  unwanted_flag = flag;
}

bool
unwanted (void)
{
  return unwanted_flag && atomic_load (unwanted_flag);
}
