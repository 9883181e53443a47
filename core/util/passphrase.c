/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Which passphrase does an object of QEMU's type `secret' describe?
 *
 * It is given as text, or is the whole content of a file, and may be encoded in base64.
 * Memory that had it is wiped.
 *
 * Locks: none.
 */

#include <config.h>

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "util/cleanup.h"
#include "util/memory.h"
#include "util/passphrase.h"
#include "util/report.h"

/* QEMU reads files of any length; a passphrase is shorter. */
#define LONGEST (32 << 10)
#define SIZE (LONGEST + 2)

static int
refuse_content (const char *what, const char *why)
{
  return report_refusal (EINVAL, "%s: %s", what, why);
}

static int
check_length (const char *what, size_t len)
{
  if (len <= LONGEST)
    return 0;
  return report_refusal (EINVAL, "%s: the passphrase is longer than %d bytes", what,
                         LONGEST);
}

/* Sets TEXT, of SIZE bytes. */
static int
read_file (const char *what, const char *name, char *text, size_t *len)
{
  const int fd = open (name, O_RDONLY | O_CLOEXEC);
  ssize_t n = 0;

  *len = 0;
  if (fd >= 0)
    while (*len <= LONGEST && (n = read (fd, text + *len, LONGEST + 1 - *len)) > 0)
      *len += n;
  if (fd == -1 || n == -1)
    report_error ("%s: %m", name);
  KEEP_ERRNO_FOR_BLOCK;
  if (fd >= 0)
    close (fd);
  return fd == -1 || n == -1 ? -1 : check_length (what, *len);
}

static int
base64_value (char c)
{
  static const char digits[] =
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  const char *p = c ? strchr (digits, c) : NULL;

  return p ? p - digits : -1;
}

/* In place.  Lines may be broken anywhere. */
static int
decode_base64 (const char *what, char *text, size_t *len)
{
  size_t n = 0, digits = 0, padding = 0;
  uint32_t bits = 0;

  for (size_t i = 0; i < *len; i++) {
    const int value = base64_value (text[i]);

    if (strchr (" \t\r\n", text[i]) && text[i])
      continue;
    if (text[i] == '=')
      padding++;
    if ((value == -1 && text[i] != '=') || (value >= 0 && padding))
      return refuse_content (what, "not base64");
    bits = bits << 6 | (value == -1 ? 0 : value);
    if (++digits % 4 == 0)
      for (int shift = 16; shift >= 0; shift -= 8)
        text[n++] = bits >> shift;
  }
  if (digits % 4 || padding > 2)
    return refuse_content (what, "not base64");
  *len = n - padding;
  return 0;
}

/* TEXT: SIZE bytes. */
static int
take (const char *what, const char *data, const char *file, bool base64, char *text)
{
  size_t len = data ? strlen (data) : 0;

  if (check_length (what, len) == -1)
    return -1;
  if (data)
    memcpy (text, data, len);
  else if (read_file (what, file, text, &len) == -1)
    return -1;
  if (base64 && decode_base64 (what, text, &len) == -1)
    return -1;
  text[len] = '\0';
  return memchr (text, '\0', len) || memchr (text, '\n', len)
    ? refuse_content (what, "the passphrase contains a newline or a zero byte, which "
                      "nbdkit cannot read (write the file without: printf %s PASSPHRASE)")
    : 0;
}

char *
passphrase_read (const char *what, const char *data, const char *file, bool base64)
{
  char *text = memory_get (SIZE), *result = NULL;

  if (text == NULL)
    return NULL;
  if (take (what, data, file, base64, text) == 0)
    result = memory_text (text);
  KEEP_ERRNO_FOR_BLOCK;
  explicit_bzero (text, SIZE);
  free (text);
  return result;
}

void
passphrase_free (char *text)
{
  if (text)
    explicit_bzero (text, strlen (text));
  free (text);
}
