/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Work in processes of its own, because what it works on may be hostile.  See pool.c.
 */

#ifndef QCOW2_IMG_POOL_H
#define QCOW2_IMG_POOL_H

#include <jansson.h>

struct pool_work {
  unsigned n;                   /* pieces of work */
  unsigned jobs;                /* how many are done at a time */
  void *opaque;
  /* Does piece I, in a process that ends when this returns. */
  void (*work) (void *opaque, unsigned i);
  /* In the process that called: piece I has ended.  LAST is what it said last; NULL:
   * nothing.  WHY: NULL, or why it ended too early.  LATE: because it took too long. */
  void (*done) (void *opaque, unsigned i, json_t *last, const char *why, bool late);
};

/* Does all of them.  The process that calls has no other thread. */
extern void pool_run (const struct pool_work *);

/* In work (): says how far it is, with any DOCUMENT, which is freed (NULL: there was no
 * memory for it; then this process ends).  SECONDS: the next word has to come within this
 * time, or the process is killed; 0: whenever it likes. */
extern void pool_tell (json_t *document, double seconds);

#endif /* QCOW2_IMG_POOL_H */
