/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Is a file valid after a power cut or a failure?
 *
 * The independent checker decides, and sometimes qemu-img, which is too slow to ask each
 * time.  The test decides which contents are allowed.
 */

#include <config.h>

#include <stdarg.h>
#include <string.h>

#include "lib/checker.h"
#include "lib/survivor.h"
#include "lib/trials.h"

void
survivor_fail (const struct blob *b, const char *fmt, ...)
{
  char text[600];
  va_list args;

  va_start (args, fmt);
  vsnprintf (text, sizeof text, fmt, args);
  va_end (args);
  blob_save (SURVIVOR, b);
  FAIL ("%s (see " SURVIVOR ")", text);
}

unsigned long
survivor_check (const struct blob *b, bool leaks_allowed, const char *when)
{
  struct check_result r;

  checker_check (b, &r);
  if (r.corruptions > 0 || (r.leaks > 0 && !leaks_allowed))
    survivor_fail (b, "%s: %lu corruptions, %lu leaks: %s", when, r.corruptions,
                   r.leaks, r.first);
  return r.leaks;
}

bool
survivor_names (const struct blob *b, const char *name)
{
  const uint64_t at = blob_get (b, 8, 8), len = blob_get (b, 16, 4);
  const size_t end = strlen (name);

  return (len == 0) == (at == 0) && (end == 0) == (len == 0) && len >= end &&
    at + len <= b->len && memcmp (b->data + at + len - end, name, end) == 0;
}

bool
survivor_shows (const struct blob *b, const struct blob *below,
                const struct blob *expected)
{
  unsigned char *contents = malloc (expected->len + 1);
  bool ok;

  CHECK (contents != NULL);
  ok = blob_get (b, 24, 8) == expected->len &&
    checker_read (b, below, contents, expected->len) == 0 &&
    memcmp (contents, expected->data, expected->len) == 0;
  free (contents);
  return ok;
}

/* Reads the image with the snapshot's L1 table and size in its header. */
bool
survivor_shows_snapshot (const struct blob *image, uint64_t *at, const struct blob *below,
                         const char *name, const struct blob *expected)
{
  const uint64_t entry = *at, id = blob_get (image, entry + 12, 2);
  const uint64_t len = blob_get (image, entry + 14, 2);
  const uint64_t extra = blob_get (image, entry + 36, 4);
  struct blob b;
  bool ok;

  *at += (40 + extra + id + len + 7) / 8 * 8;
  if (len != strlen (name) || extra < 16 || *at > image->len + 7 ||
      memcmp (image->data + entry + 40 + extra + id, name, len) != 0)
    return false;
  b = blob_copy (image);
  blob_put (&b, 24, blob_get (image, entry + 48, 8), 8);
  blob_put (&b, 36, blob_get (image, entry + 8, 4), 4);
  blob_put (&b, 40, blob_get (image, entry, 8), 8);
  ok = survivor_shows (&b, below, expected);
  blob_free (&b);
  return ok;
}

void
survivor_ask_qemu (bool leaks_allowed, const struct blob *expected,
                   const struct blob *before)
{
  const int status = image_check (SURVIVOR);

  if (status != 0 && (status != 3 || !leaks_allowed))
    FAIL ("qemu-img check of what is left: exit status %d", status);
  if (!image_shows (SURVIVOR, NULL, expected))
    FAIL ("qemu-img convert reads something else in what is left");
  if (before->data && !image_shows (SURVIVOR, "before", before))
    FAIL ("the internal snapshot has changed in what is left");
}
