/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Guest data in a host file, plain or encrypted.  See guestdata.c.
 */

#ifndef QCOW2_GUESTDATA_H
#define QCOW2_GUESTDATA_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/uio.h>

#include "storage/storage.h"
#include "format/crypt.h"

struct guestdata;

/* By which number does the cipher identify a sector? */
enum guestdata_sectors {
  GUESTDATA_HOST_SECTORS,       /* LUKS: the offset in the host file */
  GUESTDATA_GUEST_SECTORS,      /* the older AES method: the guest offset */
};

/* CIPHER: NULL for plain data.  CIPHER and FILE must outlive the result.  NULL on ENOMEM
 * (reported). */
extern struct guestdata *guestdata_new (struct storage *file,
                                        struct crypt_cipher *cipher,
                                        enum guestdata_sectors);
extern void guestdata_free (struct guestdata *);  /* NULL is allowed */

extern bool guestdata_is_encrypted (const struct guestdata *);

/* The file, if it contains the guest data as it is, and is remote (storage_is_remote):
 * then many reads are better done at once.  Otherwise NULL. */
extern struct storage *guestdata_remote_file (const struct guestdata *);

/* Like storage_read and storage_writev.  HOST is the offset in the file, GUEST the guest
 * offset, both in bytes, with any alignment.  In an encrypted image, bytes that were
 * never written read as garbage. */
extern int guestdata_read (struct guestdata *, void *buf, uint64_t count,
                           uint64_t host, uint64_t guest);
extern int guestdata_write (struct guestdata *, const struct iovec *iov, int niov,
                            uint64_t host, uint64_t guest, enum storage_writing);

#endif /* QCOW2_GUESTDATA_H */
