/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What info --svg draws.  See infopicture.c.
 */

#ifndef QCOW2_IMG_INFOPICTURE_H
#define QCOW2_IMG_INFOPICTURE_H

#include <jansson.h>

#include "img/imagefile.h"

/* Prints a picture of the image, of which INFO is known (info.h).  -1: reported. */
extern int infopicture_print (const struct imagefile *, const json_t *info);

#endif /* QCOW2_IMG_INFOPICTURE_H */
