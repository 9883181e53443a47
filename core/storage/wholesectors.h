/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Writes that end between two sectors if the process is killed.  See wholesectors.c.
 */

#ifndef QCOW2_WHOLESECTORS_H
#define QCOW2_WHOLESECTORS_H

#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

/* Bytes of a file that are written together or not at all, at a multiple of this. */
#define SECTOR_SIZE 512u

/* A position in an iov array: everything before it has been written. */
struct cursor {
  const struct iovec *iov;
  int niov;
  size_t skip;                  /* bytes of iov[0] that have been written */
  uint64_t offset;              /* file offset of the next byte */
};

extern void cursor_advance (struct cursor *, size_t n);

/* If a sector of the file would be written from two pages: the number of bytes from the
 * cursor on.  0: there is no such sector. */
extern size_t wholesectors_torn (const struct cursor *);

/* Bytes in whole sectors that are written in place of those at a cursor. */
struct wholesectors {
  struct iovec iov;
  char *room;                   /* NULL: they are in `little' */
  _Alignas (SECTOR_SIZE) char little[16u << 10];
};

/* Copies the beginning of the N bytes from the cursor on. */
extern void wholesectors_copy (struct wholesectors *, const struct cursor *, size_t n);
extern void wholesectors_end (struct wholesectors *);

#endif /* QCOW2_WHOLESECTORS_H */
