/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Is an image accepted that a user has uploaded?  See upload.c.
 */

#ifndef QCOW2_IMG_UPLOAD_H
#define QCOW2_IMG_UPLOAD_H

#include <jansson.h>

#include "disk/disk.h"
#include "img/policy.h"

/* Appends the findings; none: it is accepted.  Functions return 0, or -1 (reported) if it
 * could not be judged. */

/* The file or device FD.  OPTIONS open the same file, as one that is not trusted. */
extern int upload_judge_file (const struct policy *, int fd, const struct disk_options *,
                              json_t **findings);
/* A stream, which is read to its end, or until it is refused.  HEADER_CAME: is called in
 * between. */
extern int upload_judge_stream (const struct policy *, int fd,
                                void (*header_came) (void *opaque), void *opaque,
                                json_t **findings);

#endif /* QCOW2_IMG_UPLOAD_H */
