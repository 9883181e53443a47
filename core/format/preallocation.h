/* SPDX-License-Identifier: BSD-3-Clause
 *
 * How much is allocated for guest clusters before they are written?
 */

#ifndef QCOW2_PREALLOCATION_H
#define QCOW2_PREALLOCATION_H

enum preallocation {
  PREALLOCATION_OFF,            /* clusters are allocated when they are written */
  PREALLOCATION_METADATA,       /* all have a host cluster, perhaps without host space */
  PREALLOCATION_FALLOC,         /* and the host has allocated the space */
  PREALLOCATION_FULL,           /* and zeros were written to it */
};

#endif /* QCOW2_PREALLOCATION_H */
