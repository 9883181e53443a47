/* SPDX-License-Identifier: BSD-3-Clause
 *
 * How are zeros stored in a raw external data file?  See datafile.c.
 */

#ifndef QCOW2_DATAFILE_H
#define QCOW2_DATAFILE_H

#include <stdint.h>

#include "request/view.h"

/* Both are for a view whose external data file is raw.  They return what requests that
 * change the disk return: see request.h. */

/* Makes the range read as zeros in the file itself; the mapping does not change.  FLAGS:
 * as for request_zero. */
extern int datafile_zero (const struct view *, uint64_t count, uint64_t offset,
                          unsigned flags);
/* The same for a trim; ranges that the host cannot punch stay as they are. */
extern int datafile_trim (const struct view *, uint64_t count, uint64_t offset);

#endif /* QCOW2_DATAFILE_H */
