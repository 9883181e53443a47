/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The threads of this process.  See ownthreads.c.
 */

#ifndef QCOW2_OWNTHREADS_H
#define QCOW2_OWNTHREADS_H

#include <stdbool.h>

/* Was there an instant during this call at which all other threads waited, while
 * IS_BUSY () was false?  (Where /proc cannot be read: was IS_BUSY () false?) */
extern bool ownthreads_sleep (bool (*is_busy) (void));

#endif /* QCOW2_OWNTHREADS_H */
