/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The long part of jobs that copy a disk until they are told to complete.  See
 * qmpfollow.c.
 */

#ifndef QCOW2_QMPFOLLOW_H
#define QCOW2_QMPFOLLOW_H

#include "change/follow.h"
#include "plugin/qmpjobs.h"

/* `run' of such a job: until it is to complete, and little is left. */
extern int qmpfollow_run (struct job *, struct follow *);
/* `prepare' of it: copies what has changed since, such as before the job was
 * finalized. */
extern int qmpfollow_catch_up (struct job *, struct follow *);

#endif /* QCOW2_QMPFOLLOW_H */
