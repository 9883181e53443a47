/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Keeps the files of a chain open.  See checkfiles.c.
 */

#ifndef QCOW2_CHECKFILES_H
#define QCOW2_CHECKFILES_H

#include "mapping/chain.h"

struct checkfiles;

/* Opens the image at PATH and all files that its headers name, as far as they can be
 * opened.  Reports nothing except ENOMEM (then returns NULL). */
extern struct checkfiles *checkfiles_open (const char *path,
                                           const struct chain_options *);
extern void checkfiles_close (struct checkfiles *);     /* NULL is allowed */

#endif /* QCOW2_CHECKFILES_H */
