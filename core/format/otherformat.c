/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Which other format does a file have?
 *
 * formatmarks.h has the marks.  What is no image gets a message; a qcow2 image that has a
 * mark as well is one thing for the program that checks it, and another for one that
 * takes it for that format, so programs that accept uploads ask.
 */

#include <config.h>

#include <stdbool.h>
#include <stdint.h>
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

/* --- qcow2 files that have another format as well --- */

static unsigned
add (const char *found[OTHERFORMAT_MOST], unsigned n, const char *name)
{
  for (unsigned i = 0; i < n; i++)
    if (strcmp (found[i], name) == 0)
      return n;
  if (n < OTHERFORMAT_MOST)
    found[n++] = name;
  return n;
}

/* Readers of optical disks look there, wherever the first cluster ends. */
static bool
is_optical (const struct mark *m)
{
  return strcmp (m->format, "ISO 9660") == 0 || strcmp (m->format, "UDF") == 0;
}

/* Readers of PDF look for its mark in so many bytes. */
#define PDF_WITHIN 1024

unsigned
otherformat_at_begin (const void *buf, size_t len, size_t cluster,
                      const char *found[OTHERFORMAT_MOST])
{
  const size_t first = len < cluster ? len : cluster;
  const char *const bytes = buf;
  unsigned n = 0;

  for (size_t i = 0; i < sizeof marks / sizeof marks[0]; i++) {
    const struct mark *m = &marks[i];
    const size_t within = is_optical (m) ? len : first;

    /* What begins like another format does not begin like qcow2. */
    if (m->offset && m->offset + m->len <= within &&
        memcmp (bytes + m->offset, m->bytes, m->len) == 0)
      n = add (found, n, m->format);
  }
  if (memmem (buf, first < PDF_WITHIN ? first : PDF_WITHIN, "%PDF-", 5))
    n = add (found, n, "PDF");
  return n;
}

static bool
has_mark (const char *buf, size_t len, size_t from_end, const char *mark)
{
  const size_t n = strlen (mark);

  from_end = from_end < len ? from_end : len;
  return n <= from_end && memcmp (buf + len - from_end, mark, n) == 0;
}

/* Does it end with the last record of a ZIP archive, and its comment? */
static bool
ends_zip (const uint8_t *buf, size_t len)
{
  static const size_t record = 22;

  for (size_t at = 0; at + record <= len; at++)
    if (memcmp (buf + at, "PK\5\6", 4) == 0 &&
        (size_t) (buf[at + 20] | buf[at + 21] << 8) == len - at - record)
      return true;
  return false;
}

unsigned
otherformat_at_end (const void *buf, size_t len, const char *found[OTHERFORMAT_MOST])
{
  unsigned n = 0;

  /* (Very old VHDs end with 511 bytes.) */
  if (has_mark (buf, len, 512, "conectix") || has_mark (buf, len, 511, "conectix"))
    n = add (found, n, "VHD");
  if (has_mark (buf, len, 512, "koly"))
    n = add (found, n, "DMG");
  if (ends_zip (buf, len))
    n = add (found, n, "ZIP");
  return n;
}
