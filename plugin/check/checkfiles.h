/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The files of a chain, held open: see checkfiles.c.
 */

#ifndef QCOW2_CHECKFILES_H
#define QCOW2_CHECKFILES_H

#include "mapping/chain.h"

struct checkfiles;

/* Opens the image at PATH and all files that its headers name, as far as they can be
 * opened.  Nothing is reported but ENOMEM (NULL). */
extern struct checkfiles *checkfiles_open (const char *path,
                                           const struct chain_options *);
extern void checkfiles_close (struct checkfiles *);     /* NULL is fine */

#endif /* QCOW2_CHECKFILES_H */
