/* SPDX-License-Identifier: BSD-3-Clause
 *
 * How do zeros get into a raw external data file?  See datafile.c.
 */

#ifndef QCOW2_DATAFILE_H
#define QCOW2_DATAFILE_H

#include <stdbool.h>
#include <stdint.h>

#include "request/view.h"

/* All for a view whose external data file is raw; 0, or -1 with errno (reported). */

/* The range reads as zeros, in the file itself; the mapping stays as it is.  UNMAP:
 * without keeping the space.  FAST:  ENOTSUP, before anything was changed, if zeros
 * would have to be written. */
extern int datafile_zero (const struct view *, uint64_t count, uint64_t offset,
                          bool unmap, bool fast, bool *settle);
/* The same for a trim: what the host can't do is left. */
extern int datafile_trim (const struct view *, uint64_t count, uint64_t offset,
                          bool *settle);

#endif /* QCOW2_DATAFILE_H */
