/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Is the LUKS header damaged?
 *
 * Specification: "Full disk encryption header pointer".
 *
 * Locks: see scan.c.
 */

#include <config.h>

#include <errno.h>
#include <inttypes.h>

#include "format/luks.h"
#include "check/scan-impl.h"

int
scan_encryption (void *opaque)
{
  struct scan *s = opaque;
  const uint64_t offset = s->h->crypto.offset;
  struct luks_header raw;
  struct luks *luks = NULL;

  if (storage_read (s->file, &raw, sizeof raw, offset) == -1)
    return -1;
  if (luks_parse (storage_path (s->file), &raw, sizeof raw, s->h->crypto.length,
                  &luks) == 0)
    luks_free (luks);
  else if (errno == ENOMEM)
    return -1;
  else if (errno == EINVAL)     /* other errors mean a cipher that we do not support */
    findings_add (s->findings, FINDING_ENCRYPTION, 1, offset,
                  "the LUKS header at offset %" PRIu64 " is damaged (see the message "
                  "before)", offset);
  return 0;
}
