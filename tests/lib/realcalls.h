/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The functions of the C library that a test replaces with its own.
 */

#ifndef TEST_REALCALLS_H
#define TEST_REALCALLS_H

#include <dlfcn.h>

#include "lib/stubs.h"

/* Where files of 32 bits can be had too, a program calls NAME, and links NAME64. */
static inline void *
real_call (const char *name, const char *name64)
{
  void *f = dlsym (RTLD_NEXT, name64);

  if (f == NULL)
    f = dlsym (RTLD_NEXT, name);
  CHECK (f != NULL);
  return f;
}
#define REAL(name, name64) ((__typeof__ (name) *) real_call (#name, #name64))

#endif /* TEST_REALCALLS_H */
