/* SPDX-License-Identifier: BSD-3-Clause
 *
 * How many processors may this process use?
 */

#ifndef QCOW2_PROCESSORS_H
#define QCOW2_PROCESSORS_H

#include <sched.h>
#include <unistd.h>

/* At least 1.  (On Linux, taskset and the cpusets of containers count.) */
static inline unsigned
processors (void)
{
  long n;
#ifdef CPU_COUNT
  cpu_set_t set;

  if (sched_getaffinity (0, sizeof set, &set) == 0)
    return CPU_COUNT (&set) > 0 ? CPU_COUNT (&set) : 1;
#endif
  n = sysconf (_SC_NPROCESSORS_ONLN);
  return n > 0 ? n : 1;
}

#endif /* QCOW2_PROCESSORS_H */
