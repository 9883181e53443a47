/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Zeros to write from.
 */

#ifndef QCOW2_ZEROS_H
#define QCOW2_ZEROS_H

#define ZEROS_SIZE (256u << 10)

/* ZEROS_SIZE bytes.  They begin with a page (so writing them need not copy them), and are
 * not in the library's file, only in memory that all their pages share. */
extern const char *const zero_bytes;

#endif /* QCOW2_ZEROS_H */
