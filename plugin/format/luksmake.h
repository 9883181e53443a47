/* SPDX-License-Identifier: BSD-3-Clause
 *
 * A new LUKS header: see luksmake.c.  Pure: no files.
 */

#ifndef QCOW2_LUKSMAKE_H
#define QCOW2_LUKSMAKE_H

#include <stddef.h>

/* How long it is: the header and the places of eight keys of 64 bytes. */
#define LUKSMAKE_BYTES ((8 + 8 * 504) * 512)

/* Makes the header of a disk with a new key, AES-256 in mode xts-plain64, which
 * PASSPHRASE (LEN bytes) unlocks in the first key slot.  Trying a passphrase shall take
 * ITER_MS milliseconds of this machine, and this takes a little longer.  BUF has
 * LUKSMAKE_BYTES and holds no secret afterwards.  0, or -1 (reported; PATH is for
 * messages). */
extern int luksmake (const char *path, const void *passphrase, size_t len,
                     unsigned iter_ms, void *buf);

#endif /* QCOW2_LUKSMAKE_H */
