/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Which parameters can be used together?  See paramrules.c.
 */

#ifndef QCOW2_PARAMRULES_H
#define QCOW2_PARAMRULES_H

#include "plugin/params.h"

/* Call it after all parameters were set, and before params_complete.  Returns 0, or -1
 * after an error, in one line, that names the parameters that cannot be used together. */
extern int paramrules_check (const struct params *);

#endif /* QCOW2_PARAMRULES_H */
