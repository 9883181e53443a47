/* SPDX-License-Identifier: BSD-3-Clause
 *
 * How is data from the layers below copied into the top image?  See copyup.c.
 */

#ifndef QCOW2_COPYUP_H
#define QCOW2_COPYUP_H

#include <stdint.h>

#include "mapping/places.h"
#include "request/view.h"

/* The state of copy-on-read for one disk.  NULL on ENOMEM (reported). */
extern struct copyup *copyup_new (void);
extern void copyup_free (struct copyup *);  /* accepts NULL */

/* Reads like request_read (see request.h), and stores the clusters that came from the
 * layers below in the top image.  If they cannot be stored (the file system is full),
 * that is reported, but the read does not fail.  BUF may be NULL, to store only.  Returns
 * 1 if something was stored, which waits for a checkpoint; 0 if not; or -1.  The view
 * must be writable and have a `copyup'. */
extern int copyup_read (const struct view *, void *buf, uint64_t count,
                        uint64_t offset);

/* Stores what the top image does not contain, and would not show if it lay over other
 * layers. */
struct copyup_store {
  const struct places *over;    /* those; NULL: none */
  void *buf;                    /* COPYUP_STORE_PIECE bytes, or a cluster if that is
                                   larger */
  uint64_t at;                  /* everything before this is done; a guest offset */
  uint64_t copied;              /* bytes that were stored */
  bool reads;                   /* an error was one of reading */
};
#define COPYUP_STORE_PIECE (UINT64_C (512) << 10)

/* Does the beginning of [S->at, END), and changes S: a piece, or what need not be stored.
 * END is a multiple of the unit, or the end of the disk; so is S->at.  Requests of
 * clients may run.  Returns 1 if something was stored, 0 if not, or -1 (reported). */
extern int copyup_store (const struct view *, struct copyup_store *, uint64_t end);

#endif /* QCOW2_COPYUP_H */
