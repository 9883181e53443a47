/* SPDX-License-Identifier: BSD-3-Clause
 *
 * How much work may an image cause?
 *
 * Work is counted in bytes: of L2 tables that are walked, and of what is read and made of
 * compressed data.  The limit depends on the space that the file uses on the host.  It is
 * more than all compressed clusters can cause unless they overlap, which those of no
 * program do.  Untrusted images may cause less.
 *
 * Locks: none; the counter is atomic.
 */

#include <config.h>

#include <errno.h>
#include <inttypes.h>

#include "check/scan-impl.h"

/* What can at most be made of a byte: with deflate (258 bytes of 2 bits), and with zstd
 * (128 KiB of 4 bytes). */
#define DEFLATE_RATIO 1032
#define ZSTD_RATIO 32768
#define SPARE_WORK (UINT64_C (64) << 30)

#define UNTRUSTED_RATIO 256
#define UNTRUSTED_SPARE_WORK (UINT64_C (16) << 30)

void
scan_limit_work (struct scan *s, bool untrusted)
{
  const uint64_t bytes = min64 (storage_allocated (s->file), UINT64_C (1) << 48);

  s->most_work = untrusted ? UNTRUSTED_SPARE_WORK + bytes * UNTRUSTED_RATIO
    : SPARE_WORK + bytes * (s->h->compression_type == QCOW2_COMPRESSION_DEFLATE
                            ? DEFLATE_RATIO : ZSTD_RATIO);
}

int
scan_work (struct scan *s, uint64_t bytes)
{
  const uint64_t before = atomic_fetch_add (&s->work, bytes);

  if (before + bytes <= s->most_work)
    return 0;
  if (before <= s->most_work)
    findings_add (s->findings, FINDING_WORK, 1, 0, "to check it, more than %" PRIu64
                  " bytes of tables and decompressed data would have to be looked at",
                  s->most_work);
  errno = E2BIG;
  return -1;
}
