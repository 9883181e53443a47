/* SPDX-License-Identifier: BSD-3-Clause
 *
 * No secret may remain in freed memory.  All memory from OpenSSL's allocator, which
 * OpenSSL uses itself and in which the core keeps secrets, is searched when it is freed.
 * If a block still contains a secret, the test fails.
 */

#ifndef TEST_WIPED_H
#define TEST_WIPED_H

#include <stddef.h>
#include <string.h>

#include <openssl/crypto.h>

#include "lib/stubs.h"

/* Written only while there is one thread. */
static struct { const void *bytes; size_t n; } wiped_secrets[20];
static unsigned wiped_count;

/* From now on, these N bytes must not be found.  They must stay valid. */
static inline void
wiped_watch (const void *bytes, size_t n)
{
  CHECK (wiped_count < sizeof wiped_secrets / sizeof wiped_secrets[0]);
  wiped_secrets[wiped_count].bytes = bytes;
  wiped_secrets[wiped_count++].n = n;
}

/* The size of each block is stored before it. */
#define WIPED_HEAD 16

static void *
wiped_malloc (size_t n, const char *file, int line)
{
  char *p = calloc (1, n + WIPED_HEAD);  /* all of it is searched */

  (void) file;
  (void) line;
  if (p == NULL)
    return NULL;
  memcpy (p, &n, sizeof n);
  return p + WIPED_HEAD;
}

static void
wiped_free (void *ptr, const char *file, int line)
{
  char *p = ptr;
  size_t n;

  (void) file;
  (void) line;
  if (p == NULL)
    return;
  memcpy (&n, p - WIPED_HEAD, sizeof n);
  for (unsigned i = 0; i < wiped_count; i++)
    CHECK (memmem (p, n, wiped_secrets[i].bytes, wiped_secrets[i].n) == NULL);
  free (p - WIPED_HEAD);
}

static void *
wiped_realloc (void *ptr, size_t n, const char *file, int line)
{
  char *p = ptr, *q = wiped_malloc (n, file, line);
  size_t old;

  if (p && q) {
    memcpy (&old, p - WIPED_HEAD, sizeof old);
    memcpy (q, p, old < n ? old : n);
    wiped_free (p, file, line);
  }
  return q;
}

/* To be called before OpenSSL is used for anything. */
static inline void
wiped_start (void)
{
  CHECK (CRYPTO_set_mem_functions (wiped_malloc, wiped_realloc, wiped_free));
}

#endif /* TEST_WIPED_H */
