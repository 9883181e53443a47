/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Guest data in a host file, plain or encrypted.  See payload.c.
 */

#ifndef QCOW2_PAYLOAD_H
#define QCOW2_PAYLOAD_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/uio.h>

#include "storage/storage.h"
#include "format/crypt.h"

struct payload;

/* By which number does the cipher identify a sector? */
enum payload_sectors {
  PAYLOAD_HOST_SECTORS,         /* LUKS: the offset in the host file */
  PAYLOAD_GUEST_SECTORS,        /* the older AES method: the guest offset */
};

/* CIPHER: NULL for plain data.  CIPHER and FILE must outlive the payload.  NULL on ENOMEM
 * (reported). */
extern struct payload *payload_new (struct storage *file,
                                    struct crypt_cipher *cipher,
                                    enum payload_sectors);
extern void payload_free (struct payload *);  /* NULL is allowed */

extern bool payload_is_encrypted (const struct payload *);

/* The file, if it contains the guest data as it is, and is far (storage_is_far): then
 * many reads are better done at once.  Otherwise NULL. */
extern struct storage *payload_far_file (const struct payload *);

/* Like storage_read and storage_writev.  HOST is the offset in the file, GUEST the guest
 * offset, both in bytes, with any alignment.  In an encrypted image, bytes that were
 * never written read as garbage. */
extern int payload_read (struct payload *, void *buf, uint64_t count,
                         uint64_t host, uint64_t guest);
extern int payload_write (struct payload *, const struct iovec *iov, int niov,
                          uint64_t host, uint64_t guest, bool dsync);

#endif /* QCOW2_PAYLOAD_H */
