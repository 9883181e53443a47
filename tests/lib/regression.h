/* SPDX-License-Identifier: BSD-3-Clause
 *
 * A disk on which a test repeats a published accident.  See regression.c.
 */

#ifndef TEST_REGRESSION_H
#define TEST_REGRESSION_H

#include <stdbool.h>
#include <stdint.h>

#include "disk/export.h"
#include "lib/images.h"
#include "lib/simdisk.h"

/* The image, for image_create and so on. */
#define REGRESSION "regression.qcow2"

struct regression;

/* What a test may choose. */
struct regression_options {
  bool compress, l2_cache_small;
  bool no_cuts;                 /* the power is not cut until the end */
};

/* Enters a private directory, named for the test.  Exits with 77 if tools are missing. */
extern void regression_enter (const char *name);
/* Leaves it.  Returns 0, for main. */
extern int regression_leave (void);

/* Makes the image REGRESSION over a raw file with N changes. */
extern void regression_over_raw (struct image_spec *, int n);

/* Opens the image REGRESSION: it is loaded into a simulated disk.  From now on the power
 * is cut before each operation that changes the file, in all ways.  What is left must
 * have no corruption, and each sector what the ledger allows.  Ends the test if it cannot
 * be opened for writing. */
extern struct regression *regression_open (const struct regression_options *);
/* Closes the disk.  Must succeed, with no leaks, all data durable and no sector wrong,
 * also when it is read with untrusted=true (which refuses a backing file).  Frees the
 * case. */
extern void regression_close (struct regression *);
/* Closes the disk, writes the file REGRESSION, and opens that.  Returns whether closing
 * succeeded. */
extern bool regression_reopen (struct regression *);
/* Closes the disk, whether that succeeds or not, and judges what is left. */
extern void regression_abandon (struct regression *);

extern struct simdisk *regression_disk (struct regression *);
/* The file as it is now; valid until the next power cut. */
extern const struct blob *regression_file (struct regression *);

enum regression_request {
  REGRESSION_WRITE, REGRESSION_ZERO, REGRESSION_TRIM, REGRESSION_FLUSH,
};

/* A request.  Returns 0 or its errno; only faults that the test has ordered may make it
 * fail.  A zero request may trim; a trim must be of whole clusters. */
extern int regression_do (struct regression *, enum regression_request, uint64_t offset,
                          uint64_t count);
#define regression_write(e, offset, count) \
  regression_do (e, REGRESSION_WRITE, offset, count)
#define regression_zero(e, offset, count) \
  regression_do (e, REGRESSION_ZERO, offset, count)
#define regression_trim(e, offset, count) \
  regression_do (e, REGRESSION_TRIM, offset, count)
#define regression_flush(e) regression_do (e, REGRESSION_FLUSH, 0, 0)
/* The same, and it must succeed. */
extern void regression_must (struct regression *, enum regression_request,
                             uint64_t offset, uint64_t count);

/* Reads the disk and checks each sector. */
extern void regression_check (struct regression *);

/* Begins a request in another thread, and stops it before its first operation OP on the
 * file.  Returns when it is there, or has ended. */
extern void regression_hold (struct regression *, enum storage_op,
                             enum regression_request, uint64_t offset, uint64_t count);
/* Begins a request in another thread.  Returns when it has ended or, most probably, waits
 * for another request. */
extern void regression_start (struct regression *, enum regression_request,
                              uint64_t offset, uint64_t count);
/* Lets the request that is held go on, and waits for all threads. */
extern void regression_go (struct regression *);

#endif /* TEST_REGRESSION_H */
