/* SPDX-License-Identifier: BSD-3-Clause
 *
 * How much memory does an input of a fuzzer take?
 *
 * A sanitizer keeps freed memory and needs much itself, but tells of each allocation.
 * Without one, the resident memory of the process is what counts; it includes memory
 * that was not allocated with malloc.
 *
 * Locks: none; the counters are atomic.
 */

#include <config.h>

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <sys/resource.h>
#include <unistd.h>

#include "lib/fuzzmemory.h"
#include "lib/stubs.h"

extern int __sanitizer_install_malloc_and_free_hooks
  (void (*allocated) (const volatile void *, size_t),
   void (*freed) (const volatile void *)) __attribute__ ((weak));
extern size_t __sanitizer_get_allocated_size (const volatile void *)
  __attribute__ ((weak));

static atomic_int_fast64_t now, most;
static int_fast64_t before;

static void
allocated (const volatile void *p, size_t size)
{
  int_fast64_t total, m = most;

  (void) p;
  total = atomic_fetch_add (&now, (int_fast64_t) size) + (int_fast64_t) size;
  while (total > m && !atomic_compare_exchange_weak (&most, &m, total))
    ;
}

static void
freed (const volatile void *p)
{
  if (p)
    now -= (int_fast64_t) __sanitizer_get_allocated_size (p);
}

static int_fast64_t
resident (void)
{
  unsigned long all, here;
  FILE *fp = fopen ("/proc/self/statm", "re");

  CHECK (fp != NULL && fscanf (fp, "%lu %lu", &all, &here) == 2);
  fclose (fp);
  return (int_fast64_t) here * sysconf (_SC_PAGESIZE);
}

void
fuzzmemory_begin (void)
{
  static bool installed;

  if (__sanitizer_install_malloc_and_free_hooks == NULL) {
    before = resident ();
    return;
  }
  if (!installed)
    CHECK (__sanitizer_install_malloc_and_free_hooks (allocated, freed) != 0);
  installed = true;
  before = now;
  most = before;
}

uint64_t
fuzzmemory_end (void)
{
  struct rusage usage;

  if (__sanitizer_install_malloc_and_free_hooks)
    return (uint64_t) (most - before);
  CHECK (getrusage (RUSAGE_SELF, &usage) == 0);
  return usage.ru_maxrss * UINT64_C (1024) > (uint64_t) before
    ? usage.ru_maxrss * UINT64_C (1024) - (uint64_t) before : 0;
}
