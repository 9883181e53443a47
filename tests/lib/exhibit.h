/* SPDX-License-Identifier: BSD-3-Clause
 *
 * A disk on which a test repeats a published accident.  See exhibit.c.
 */

#ifndef TEST_EXHIBIT_H
#define TEST_EXHIBIT_H

#include <stdbool.h>
#include <stdint.h>

#include "disk/export.h"
#include "lib/images.h"
#include "lib/simdisk.h"

/* The image, for image_create and so on. */
#define EXHIBIT "exhibit.qcow2"

struct exhibit;

/* What a test may choose. */
struct exhibit_options {
  bool compress, l2_cache_small;
  bool no_cuts;                 /* the power is not cut until the end */
};

/* Enters a private directory, named for the test.  Exits with 77 if tools are missing. */
extern void exhibit_enter (const char *name);
/* Leaves it.  Returns 0, for main. */
extern int exhibit_leave (void);

/* Makes the image EXHIBIT over a raw file with N changes. */
extern void exhibit_over_raw (struct image_spec *, int n);

/* Opens the image EXHIBIT: it is loaded into a simulated disk.  From now on the power is
 * cut before each operation that changes the file, in all ways.  What is left must have
 * no corruption, and each sector what the ledger allows.  Ends the test if it cannot be
 * opened for writing. */
extern struct exhibit *exhibit_open (const struct exhibit_options *);
/* Closes the disk.  Must succeed, with no leaks, all data durable and no sector wrong,
 * also when it is read with untrusted=true (which refuses a backing file).  Frees the
 * exhibit. */
extern void exhibit_close (struct exhibit *);
/* Closes the disk, writes the file EXHIBIT, and opens that.  Returns whether closing
 * succeeded. */
extern bool exhibit_reopen (struct exhibit *);
/* Closes the disk, whether that succeeds or not, and judges what is left. */
extern void exhibit_abandon (struct exhibit *);

extern struct simdisk *exhibit_disk (struct exhibit *);
/* The file as it is now; valid until the next power cut. */
extern const struct blob *exhibit_file (struct exhibit *);

enum exhibit_request { EXHIBIT_WRITE, EXHIBIT_ZERO, EXHIBIT_TRIM, EXHIBIT_FLUSH };

/* A request.  Returns 0 or its errno; only faults that the test has ordered may make it
 * fail.  A zero request may trim; a trim must be of whole clusters. */
extern int exhibit_do (struct exhibit *, enum exhibit_request, uint64_t offset,
                       uint64_t count);
#define exhibit_write(e, offset, count) exhibit_do (e, EXHIBIT_WRITE, offset, count)
#define exhibit_zero(e, offset, count) exhibit_do (e, EXHIBIT_ZERO, offset, count)
#define exhibit_trim(e, offset, count) exhibit_do (e, EXHIBIT_TRIM, offset, count)
#define exhibit_flush(e) exhibit_do (e, EXHIBIT_FLUSH, 0, 0)
/* The same, and it must succeed. */
extern void exhibit_must (struct exhibit *, enum exhibit_request, uint64_t offset,
                          uint64_t count);

/* Reads the disk and checks each sector. */
extern void exhibit_check (struct exhibit *);

/* Begins a request in another thread, and stops it before its first operation OP on the
 * file.  Returns when it is there, or has ended. */
extern void exhibit_hold (struct exhibit *, enum storage_op, enum exhibit_request,
                          uint64_t offset, uint64_t count);
/* Begins a request in another thread.  Returns when it has ended or, most probably, waits
 * for another request. */
extern void exhibit_start (struct exhibit *, enum exhibit_request, uint64_t offset,
                           uint64_t count);
/* Lets the request that is held go on, and waits for all threads. */
extern void exhibit_go (struct exhibit *);

#endif /* TEST_EXHIBIT_H */
