/* SPDX-License-Identifier: BSD-3-Clause
 *
 * How do zeros get into a raw external data file?  See datafile.c.
 */

#ifndef QCOW2_DATAFILE_H
#define QCOW2_DATAFILE_H

#include <stdint.h>

#include "request/view.h"

/* All for a view whose external data file is raw; they return what requests that change
 * the disk do: see request.h. */

/* The range reads as zeros, in the file itself; the mapping stays as it is.  FLAGS as of
 * request_zero. */
extern int datafile_zero (const struct view *, uint64_t count, uint64_t offset,
                          unsigned flags);
/* The same for a trim: what the host can't do is left. */
extern int datafile_trim (const struct view *, uint64_t count, uint64_t offset);

#endif /* QCOW2_DATAFILE_H */
