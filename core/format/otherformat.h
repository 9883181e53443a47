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

/* The same, if it is a disk in a format of QEMU other than qcow2 and raw: returns the
 * name of the format, as formatmarks.h has it, else NULL. */
extern const char *otherformat_disk (const void *buf, size_t len);

/* Is a qcow2 file also a file of another format?  Some have their mark in a place that
 * qcow2 leaves free.  In the first cluster, a mark can only have been put there on
 * purpose.  Elsewhere it may be data of the disk, so only those marks count that are
 * exactly where other programs look first, and that data does not have there by
 * accident. */

#define OTHERFORMAT_MOST 16
/* BUF contains the first LEN bytes of a file with clusters of this size, and of these the
 * first OTHERFORMAT_BEGIN bytes, as far as there are any.  Sets FOUND to the names of
 * formats; returns their number. */
#define OTHERFORMAT_BEGIN ((32 << 10) + 4096)
extern unsigned otherformat_at_begin (const void *buf, size_t len, size_t cluster,
                                      const char *found[OTHERFORMAT_MOST]);
/* The same for the last bytes of the file: OTHERFORMAT_END of them, or all. */
#define OTHERFORMAT_END (65535 + 22)
extern unsigned otherformat_at_end (const void *buf, size_t len,
                                    const char *found[OTHERFORMAT_MOST]);

#endif /* QCOW2_OTHERFORMAT_H */
