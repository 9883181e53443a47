/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Uses of an image that change nothing, for lib/eachchange.  See uses.c.
 */

#ifndef TEST_USES_H
#define TEST_USES_H

#include "disk/disk.h"

/* Each opens the image that the options name, and closes it.  0, or -1 with errno. */
extern int use_exports (const struct disk_options *);
extern int use_directory (const struct disk_options *);
extern int use_description (const struct disk_options *);
extern int use_map (const struct disk_options *);
/* With a report in the current directory; ends the trial if that is not as it should. */
extern int use_check (const struct disk_options *);

#endif /* TEST_USES_H */
