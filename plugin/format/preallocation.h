/* SPDX-License-Identifier: BSD-3-Clause
 *
 * How much is set aside for guest clusters before they are written?
 */

#ifndef QCOW2_PREALLOCATION_H
#define QCOW2_PREALLOCATION_H

enum preallocation {
  PREALLOCATION_OFF,            /* clusters are allocated when they are written */
  PREALLOCATION_METADATA,       /* all have their place, which the host may not back */
  PREALLOCATION_FALLOC,         /* and the host has set the space aside */
  PREALLOCATION_FULL,           /* and it was written */
};

#endif /* QCOW2_PREALLOCATION_H */
