/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What do statistics say of one image?  See statsimage.c.
 */

#ifndef QCOW2_STATSIMAGE_H
#define QCOW2_STATSIMAGE_H

#include <jansson.h>

#include "disk/dir.h"
#include "disk/disk.h"
#include "plugin/iostats.h"

/* The image that QMP calls DEVICE, which is open.  NULL on ENOMEM. */
extern json_t *statsimage_open (const char *device, struct disk *, struct iostats *);

/* Parts of that; the server has them for all images together, too. */
extern json_t *statsimage_clusters (const struct alloc_stats *);
extern json_t *statsimage_flush (const struct checkpoint_stats *);
extern json_t *statsimage_storage (const struct disk_stats *);

/* At most so many of a directory are described. */
#define STATSIMAGE_MOST 128
/* All images; DISK, or of DIR first those that are bad, open or not, then others that are
 * open, then those that were used last.
 * *OMITTED: how many images are left out.  NULL on ENOMEM. */
extern json_t *statsimage_all (const char *device, struct disk *, struct dir *,
                               struct iostats *, uint64_t *omitted);

/* iostats_bounds. */
extern json_t *statsimage_bounds (void);

#endif /* QCOW2_STATSIMAGE_H */
