/* SPDX-License-Identifier: BSD-3-Clause
 *
 * How is the LUKS header of a new disk created, and a key slot?  See luksmake.c.  Pure:
 * no files.
 */

#ifndef QCOW2_LUKSMAKE_H
#define QCOW2_LUKSMAKE_H

#include <stddef.h>

#include "format/luks.h"

/* Its length in bytes: the header, and key material for eight keys of 64 bytes. */
#define LUKSMAKE_BYTES ((8 + 8 * 504) * 512)

/* Makes the header of a disk with a new key, AES-256 in mode xts-plain64, which
 * PASSPHRASE (LEN bytes) unlocks in the first key slot.  ITER_MS is the target time for
 * testing a passphrase on this machine, in milliseconds; this function takes a little
 * longer.  BUF has LUKSMAKE_BYTES, and contains no secret afterwards.  PATH is for
 * messages.  Returns 0, or -1 (reported). */
extern int luksmake (const char *path, const void *passphrase, size_t len,
                     unsigned iter_ms, void *buf);

/* Makes another key slot of an existing header, which luks_parse has accepted, for
 * PASSPHRASE.  KEY: that of the disk.  *SLOT: its entry, whose place in the header stays;
 * it becomes active.  MATERIAL: for its key material (luks_material), encrypted.  Returns
 * 0, or -1 (reported). */
extern int luksmake_slot (const char *path, const struct luks_header *,
                          const uint8_t *key, const void *passphrase, size_t len,
                          unsigned iter_ms, struct luks_slot_header *slot,
                          void *material);

#endif /* QCOW2_LUKSMAKE_H */
