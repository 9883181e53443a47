/* SPDX-License-Identifier: BSD-3-Clause
 *
 * How far is a check, and shall it go on?
 *
 * There is one scale for all that a check may do.  What that is becomes known only while
 * it runs: how many layers there are, whether there is something to repair, how many
 * clusters are compressed.  So each stage gets a part of what is left of the scale, and
 * within a stage the number of bytes that are read may grow.  If that makes less of it
 * done than was shown, the scale stands still for a while.
 *
 * Locks: none; the thread that runs the check tells, between two pieces of its own work.
 */

#include <config.h>

#include "util/bytes.h"
#include "check/pace.h"

#define PACE_TOTAL 1000000

void
pace_stage (struct pace *p, unsigned numerator, unsigned denominator)
{
  if (p == NULL)
    return;
  p->from = p->to;
  p->to += (PACE_TOTAL - p->to) * numerator / denominator;
  p->done = p->part = p->total = 0;
}

void
pace_expect (struct pace *p, uint64_t bytes)
{
  if (p)
    p->total += bytes;
}

void
pace_left (struct pace *p, uint64_t bytes)
{
  if (p == NULL)
    return;
  p->done = p->total - min64 (p->total, bytes);
  p->part = 0;
}

void
pace_part (struct pace *p, uint64_t bytes)
{
  if (p == NULL)
    return;
  p->done += p->part;
  p->part = bytes;
}

bool
pace_step (struct pace *p, uint64_t done, uint64_t all)
{
  double part;

  if (p == NULL || p->watch == NULL)
    return true;
  part = p->total == 0 ? 0
    : (p->done + (all ? (double) p->part * done / all : 0)) / p->total;
  if (part > 1)
    part = 1;
  p->shown = max64 (p->shown, p->from + part * (p->to - p->from));
  return p->watch->step (p->watch->opaque, p->shown, PACE_TOTAL, UINT64_MAX) || p->deaf;
}
