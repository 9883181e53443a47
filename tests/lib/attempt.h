/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The same work on the same image, again and again, with another accident each time.  See
 * attempt.c.
 */

#ifndef TEST_ATTEMPT_H
#define TEST_ATTEMPT_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "disk/export.h"
#include "lib/images.h"
#include "lib/ledger.h"
#include "lib/mixture.h"
#include "lib/pieces.h"
#include "lib/simdisk.h"

/* The longest request. */
#define ATTEMPT_LONGEST (64u << 10)
/* An autoclear bit without a meaning, which images of version 3 have. */
#define ATTEMPT_AUTOCLEAR_AT 88
#define ATTEMPT_AUTOCLEAR_UNKNOWN (UINT64_C (1) << 40)
/* So many requests are the work. */
#define ATTEMPT_REQUESTS 60

/* The image, and what is done to it. */
struct attempt_image {
  struct image_spec spec;
  struct disk_options options;
  struct blob initial, below;
  bool has_below, dirty;
  struct mixture mixture;       /* if it has a name, what SPEC does not say */
  struct crypt_cipher *cipher;  /* NULL: not encrypted, or only the core and QEMU can read
                                   it */
  uint64_t work_seed;           /* of the requests: the same each time */
  bool shaped;                  /* see attempt_make_shape */
  bool no_cache;                /* all memory for mappings is in use, so each lookup
                                   reads tables */
};

/* Makes a random image, and prints what it is: one that QEMU's users have (lib/mixture),
 * or one that the checker can always read, or whose refcount table becomes too small. */
extern void attempt_make_image (struct attempt_image *, struct rng *);
extern void attempt_free_image (struct attempt_image *);

/* Makes one of ATTEMPT_SHAPES small images, which are always the same, and prints what it
 * is.  The work on them consists of few requests, one of each kind that there is. */
#define ATTEMPT_SHAPES 10
extern void attempt_make_shape (struct attempt_image *, unsigned which);

/* One time that the work is done. */
struct attempt {
  const struct attempt_image *image;
  struct simdisk *sim;
  struct disk *disk;
  struct export *client;
  struct ledger *ledger;
  struct rng cut_rng;
  unsigned char *contents;
  struct blob plain;
  atomic_bool lost;             /* the test says that the storage has lost writes: reads
                                   may find anything */
};

struct attempt_counts {
  unsigned attempts, cuts;
};
extern struct attempt_counts attempt_counts;

/* Puts the image on a simulated disk, and opens it.  NAME and K, which operation fails,
 * are for messages. */
extern void attempt_begin (struct attempt *, const struct attempt_image *,
                           const char *name, uint64_t k);
extern void attempt_end (struct attempt *);
/* The same without opening it. */
extern void attempt_prepare (struct attempt *, const struct attempt_image *,
                             const char *name, uint64_t k);
/* Opens what is on the simulated disk, and closes it.  0, or errno. */
extern int attempt_open (struct attempt *);
extern int attempt_close (struct attempt *);
/* The writer comes, and leaves.  0, or errno. */
extern int attempt_come (struct attempt *);
extern int attempt_leave (struct attempt *);

struct attempt_request {
  enum { WRITE, ZERO, TRIM, FLUSH, READ, EXTENTS, CACHE } kind; /* from READ on: it
                                                                    changes nothing */
  uint64_t offset, count;
  bool fua, may_trim, fast;     /* fast: zeros, or nothing at all */
};

extern void attempt_make_request (const struct attempt_image *, const struct piece *,
                                  struct rng *, struct attempt_request *);
/* Carries it out, keeps the ledger, and checks what it read.  BUF: ATTEMPT_LONGEST bytes.
 * 0, or errno. */
extern int attempt_execute (struct attempt *, const struct attempt_request *,
                            unsigned char *buf);
/* Calls STEP for each request of the work, until it returns false. */
extern void attempt_work (struct attempt *,
                          bool (*step) (struct attempt *, const struct attempt_request *,
                                        unsigned char *buf));

/* Cuts the power, and judges what is left. */
extern void attempt_judge (struct attempt *, enum power_cut, bool leaks_allowed,
                           const char *when);
extern void attempt_judge_some (struct attempt *, const char *when);
/* Reads the whole disk. */
extern void attempt_read_all (struct attempt *, const char *when);

#endif /* TEST_ATTEMPT_H */
