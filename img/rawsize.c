/* SPDX-License-Identifier: BSD-3-Clause
 *
 * How does a raw image get its size, and its space?
 *
 * The size first; then the host allocates what is new, or zeros are written there.
 *
 * Locks: none; the caller has locked the file.
 */

#include <config.h>

#include <errno.h>
#include <inttypes.h>
#include <stdbool.h>

#include "util/bytes.h"
#include "util/cleanup.h"
#include "util/report.h"
#include "img/progress.h"
#include "img/rawsize.h"

/* Bytes at a time. */
#define ALLOCATED (UINT64_C (1) << 30)
#define WRITTEN (UINT64_C (1) << 20)

static int
interrupted (const struct storage *s)
{
  return report_refusal (EINTR, "%s: interrupted", storage_path (s));
}

static int
fill (struct storage *s, uint64_t from, uint64_t end, bool written)
{
  const uint64_t most = written ? WRITTEN : ALLOCATED;
  uint64_t len;

  for (uint64_t at = from; at < end; at += len) {
    len = min64 (most, end - at);
    if ((written ? storage_write_zeros : storage_allocate) (s, at, len) == -1)
      return -1;
    if (!progress_step (NULL, at + len - from, end - from, 0))
      return interrupted (s);
  }
  return 0;
}

/* The size is fixed. */
static int
check_device (const struct storage *s, uint64_t size)
{
  if (size <= storage_size (s))
    return 0;
  return report_refusal (ENOSPC, "%s: the device has %" PRIu64 " bytes, not %" PRIu64,
                         storage_path (s), storage_size (s), size);
}

int
rawsize_set (struct storage *s, uint64_t size, enum preallocation p)
{
  const uint64_t old = storage_size (s);
  int r;

  if (p == PREALLOCATION_METADATA)
    return report_refusal (EINVAL, "preallocation=metadata: raw images have no metadata");
  if (!storage_is_regular (s))
    return check_device (s, size);
  if (!progress_step (NULL, 0, 1, 0))
    return interrupted (s);
  r = storage_truncate (s, size);
  if (r == 0 && p != PREALLOCATION_OFF && size > old)
    r = fill (s, old, size, p == PREALLOCATION_FULL);
  if (r == 0)
    r = storage_sync (s);
  if (r == -1) {
    KEEP_ERRNO_FOR_BLOCK;

    storage_truncate (s, old);
  }
  return r;
}
