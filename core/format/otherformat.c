/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What is a file that is not a qcow2 image?
 *
 * Only for messages.  formatmarks.h has the marks.
 */

#include <config.h>

#include <string.h>

#include "format/otherformat.h"

#define CONVERT ": qemu-img convert makes a qcow2 image of it"
#define UNPACK ": unpack it first"
#define RAW ": nbdkit's file plugin serves it"

/* The mark is at OFFSET. */
struct mark {
  size_t offset;
  const char *bytes;
  size_t len;
  const char *format, *name;
};
#define MARK(offset, bytes, format, name) \
  { offset, bytes, sizeof bytes - 1, format, name },

static const struct mark marks[] = {
#include "format/formatmarks.h"
};

static const struct mark *
find (const char *buf, size_t len)
{
  for (size_t i = 0; i < sizeof marks / sizeof marks[0]; i++) {
    const struct mark *m = &marks[i];

    if (m->offset + m->len <= len && memcmp (buf + m->offset, m->bytes, m->len) == 0)
      return m;
  }
  return NULL;
}

const char *
otherformat_name (const void *buf, size_t len)
{
  const struct mark *m = find (buf, len);

  return m ? m->name : NULL;
}

const char *
otherformat_disk (const void *buf, size_t len)
{
  const struct mark *m = find (buf, len);

  return m && (strstr (m->name, CONVERT) || strcmp (m->format, "LUKS") == 0) ? m->format
    : NULL;
}
