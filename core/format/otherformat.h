/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What is a file that is not a qcow2 image?  See otherformat.c.
 */

#ifndef QCOW2_OTHERFORMAT_H
#define QCOW2_OTHERFORMAT_H

#include <stddef.h>

/* BUF contains the first LEN bytes of a file; OTHERFORMAT_BYTES are enough.  Returns what
 * the file seems to be, with what to do, or NULL if it is unknown. */
#define OTHERFORMAT_BYTES ((64 << 10) + 4096)
extern const char *otherformat_name (const void *buf, size_t len);

/* The same, if it is a disk in a format of QEMU other than qcow2 and raw: returns the name
 * of the format, as formatmarks.h has it, else NULL. */
extern const char *otherformat_disk (const void *buf, size_t len);

#endif /* QCOW2_OTHERFORMAT_H */
