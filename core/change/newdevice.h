/* SPDX-License-Identifier: BSD-3-Clause
 *
 * A new image on a block device or an NBD export that exists.  See newdevice.c.
 *
 * Functions that return int return 0, or -1 with errno set and the error reported, unless
 * noted.  Offsets are in bytes.
 */

#ifndef QCOW2_NEWDEVICE_H
#define QCOW2_NEWDEVICE_H

#include <stdbool.h>
#include <stdint.h>

#include "storage/storage.h"

/* The sector whose contents decide whether there is an image. */
#define NEWDEVICE_FIRST 512

/* Is PATH an NBD URI, or a name that leads to a block device? */
extern bool newdevice_is (const char *path);

/* Opens a device that nothing else uses.  The options that are used are lock, hooks and
 * link. */
extern int newdevice_open (const char *path, const struct storage_options *,
                           struct storage **);

/* Called while a device is read or zeroed: BYTES more are done.  Returns 0, or -1 to stop
 * (reported by it). */
struct newdevice_watch {
  int (*advance) (void *opaque, uint64_t bytes);
  void *opaque;
};

/* Fails with EEXIST if any part of the device does not read as zeros.  BUF has CHUNK
 * bytes. */
extern int newdevice_check_zeros (struct storage *, void *buf, uint64_t chunk,
                                  const struct newdevice_watch *);

/* Makes [OFFSET, END) read as zeros.  Both limits are multiples of 512. */
enum newdevice_zeros {
  NEWDEVICE_FREE,               /* the space may be freed */
  NEWDEVICE_KEEP,               /* it is allocated, if the device can do that */
  NEWDEVICE_WRITE,              /* zeros are written */
};
extern int newdevice_zero (struct storage *, uint64_t offset, uint64_t end,
                           enum newdevice_zeros, const struct newdevice_watch *);

/* Removes what makes an image of the contents, durably. */
extern int newdevice_erase (struct storage *);
/* Everything else was written: writes the first sector.  The image is durable. */
extern int newdevice_publish (struct storage *, const void *first);
/* Removes the image, of which END bytes were written, perhaps followed by what was
 * allocated since.  WAS_ZEROS: makes all of that read as zeros again.  Failures are
 * ignored: something else has failed.  Keeps errno. */
extern void newdevice_withdraw (struct storage *, uint64_t end, bool was_zeros);

#endif /* QCOW2_NEWDEVICE_H */
