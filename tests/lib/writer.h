/* SPDX-License-Identifier: BSD-3-Clause
 *
 * A client that uses a disk while that changes as a whole, again and again.  See
 * writer.c.
 */

#ifndef TEST_WRITER_H
#define TEST_WRITER_H

#include "lib/attempt.h"

struct writer {
  /* Set by the test: */
  struct image_spec spec;       /* the image that it writes first, ... */
  bool trims;                   /* ... in which trimmed clusters become zeros */
  bool idle;                    /* nobody uses the disk */
  uint64_t seed;                /* of the requests: the same each time */

  /* Its own. */
  struct attempt_image image;
  struct attempt attempt;
  struct rng rng;
  bool beside, failed;
  atomic_bool ends;
};

/* Before the disk is used: it shows INITIAL now, which the writer frees. */
extern void writer_begin (struct writer *, struct blob initial);
extern void writer_free (struct writer *);

/* Makes the CHANGE of the disk while the writer uses it, before and afterwards, too.
 * BESIDE: in a thread of its own (then no operation, and no allocation, may fail);
 * otherwise whenever CHANGE calls writer_step.  Then the writer leaves: what it has
 * written is durable.  Returns what CHANGE has returned, or -1 if a request fails. */
extern int writer_use (struct writer *, struct disk *, bool beside,
                       int (*change) (void *opaque), void *opaque);
/* A few requests.  0, or -1. */
extern int writer_step (struct writer *);

/* What FILE shows over BELOW (the contents of its backing file; NULL: there is none), for
 * writer_begin or for a file above it.  Fails the trial if its mapping is invalid. */
extern struct blob writer_shown (const struct blob *file, const struct blob *below);
/* After a power cut: is that in each sector what was flushed, or something that was
 * written later? */
extern bool writer_allows (struct writer *, const struct blob *shown);

#endif /* TEST_WRITER_H */
