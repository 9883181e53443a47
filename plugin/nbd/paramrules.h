/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Which parameters can be used together?  See paramrules.c.
 */

#ifndef QCOW2_PARAMRULES_H
#define QCOW2_PARAMRULES_H

#include "nbd/params.h"

/* All parameters have been set, and params_complete was not called yet.  0, or -1 with an
 * error, of one line, that names the parameters that don't go together. */
extern int paramrules_check (const struct params *);

#endif /* QCOW2_PARAMRULES_H */
