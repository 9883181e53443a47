/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What does the value of a parameter mean?
 *
 * There is one function for each kind of value.  An error is one line that names the
 * parameter and shows the beginning of the value, without control characters.  nbdkit's
 * own functions report errors without either of these, so they are called only with
 * values that are known to be good; sizes, numbers and booleans are parsed here.
 *
 * Files may have any name.  But a name that is stored in an image has no control
 * characters, because header.c refuses such images.
 */

#include <config.h>

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#define NBDKIT_API_VERSION 2
#include <nbdkit-plugin.h>

#include "util/bytes.h"
#include "util/cleanup.h"
#include "util/printable.h"
#include "util/publicname.h"
#include "util/report.h"
#include "util/utf8.h"
#include "storage/nbduri.h"
#include "image/filename.h"
#include "plugin/paramvalue.h"

/* Messages show this many characters of a value. */
#define MAX_SHOWN 64

static void __attribute__ ((format (printf, 3, 0)))
tell_bad (const char *key, const char *value, const char *fmt, va_list args)
{
  char shown[PRINTABLE_SIZE (MAX_SHOWN)], why[200];

  vsnprintf (why, sizeof why, fmt, args);
  report_error ("%s=%s%s: %s", key,
                printable (value, MAX_SHOWN, shown, sizeof shown),
                strlen (value) > MAX_SHOWN ? "..." : "", why);
}

int
bad_value (const char *key, const char *value, const char *fmt, ...)
{
  va_list args;

  va_start (args, fmt);
  tell_bad (key, value, fmt, args);
  va_end (args);
  return -1;
}

int
bad_file (const char *key, const char *value, const char *fmt, ...)
{
  CLEANUP_FREE char *shown = publicname (value);
  va_list args;

  va_start (args, fmt);
  tell_bad (key, publicname_or (shown), fmt, args);
  va_end (args);
  return -1;
}

int
parse_choice (const char *key, const char *value,
              const struct choice *choices, int *r)
{
  char words[128] = "";
  const struct choice *c;

  for (c = choices; c->word; c++)
    if (strcmp (value, c->word) == 0) {
      *r = c->value;
      return 0;
    }
  for (c = choices; c->word; c++) {
    if (c != choices)
      strcat (words, c[1].word ? ", " : " or ");
    strcat (words, c->word);
  }
  return bad_value (key, value, "must be %s", words);
}

int
parse_flag (const char *key, const char *value, bool *r)
{
  static const char *const words[][6] = {
    { "0", "f", "false", "n", "no", "off" },
    { "1", "t", "true", "y", "yes", "on" },
  };

  for (unsigned b = 0; b < 2; b++)
    for (unsigned i = 0; i < 6; i++)
      if (strcasecmp (value, words[b][i]) == 0) {
        *r = b;
        return 0;
      }
  return bad_value (key, value, "must be true or false");
}

/* Reads the digits at VALUE; *END is after them.  False: there are none, or the number is
 * too large. */
static bool
read_digits (const char *value, const char **end, uint64_t *r)
{
  uint64_t n = 0;
  const char *p = value;

  for (; *p >= '0' && *p <= '9'; p++)
    if (!mul_fits (n, 10, &n) || !add_fits (n, *p - '0', &n))
      return false;
  *end = p;
  *r = n;
  return p > value;
}

/* Returns the factor of a size suffix, or 0 if it is not one. */
static uint64_t
suffix_factor (const char *suffix)
{
  static const char powers[] = "bkmgtpe";
  const char *p;
  const char c = suffix[0] >= 'A' && suffix[0] <= 'Z' ? suffix[0] + ('a' - 'A')
    : suffix[0];

  if (c == '\0')
    return 1;
  if (suffix[1] != '\0')
    return 0;
  if (c == 's')
    return 512;
  p = strchr (powers, c);
  return p ? UINT64_C (1) << (10 * (p - powers)) : 0;
}

/* False: this is not a size, or it is too large. */
static bool
read_bytes (const char *value, uint64_t *r)
{
  const char *suffix;
  uint64_t n, factor;

  if (!read_digits (value, &suffix, &n) || (factor = suffix_factor (suffix)) == 0 ||
      !mul_fits (n, factor, &n) || n > INT64_MAX)
    return false;
  *r = n;
  return true;
}

static int
not_a_size (const char *key, const char *value)
{
  return bad_value (key, value, "not a size: a whole number, with or without K, M, G, "
                    "T, P or E, and less than 8E");
}

int
parse_bytes (const char *key, const char *value, uint64_t *r)
{
  return read_bytes (value, r) ? 0 : not_a_size (key, value);
}

int
parse_signed_bytes (const char *key, const char *value, int *sign, uint64_t *r)
{
  *sign = value[0] == '+' ? 1 : value[0] == '-' ? -1 : 0;
  return read_bytes (value + (*sign != 0), r) ? 0 : not_a_size (key, value);
}

int
parse_power (const char *key, const char *value, uint64_t min, uint64_t max,
             const char *range, uint64_t *r)
{
  if (parse_bytes (key, value, r) == -1)
    return -1;
  if (!is_power_of_2 (*r) || *r < min || *r > max)
    return bad_value (key, value, "must be a power of two between %s", range);
  return 0;
}

int
parse_number (const char *key, const char *value, unsigned *r)
{
  const char *end;
  uint64_t n;

  if (!read_digits (value, &end, &n) || *end != '\0' || n > UINT_MAX)
    return bad_value (key, value, "not a whole number");
  *r = n;
  return 0;
}

/* Returns the first control character, or '\0' if there is none. */
static unsigned char
control_character (const char *text)
{
  for (const char *p = text; *p; p++)
    if ((unsigned char) *p < 0x20 || *p == 0x7f)
      return *p;
  return '\0';
}

int
parse_path (const char *key, const char *value, char **r)
{
  if (value[0] == '\0')
    return bad_value (key, value, "the path is empty");
  if (strlen (value) >= PATH_MAX)
    return bad_file (key, value, "the path has more than %d bytes", PATH_MAX - 1);
  *r = nbdkit_absolute_path (value);
  return *r ? 0 : -1;
}

int
parse_plain_path (const char *key, const char *value, char **r)
{
  const size_t protocol = publicname_protocol (value);

  if (protocol && strncmp (value + protocol, "//", 2) == 0)
    return bad_file (key, value, "must be the path of a file, not a URI");
  return parse_path (key, value, r);
}

#define NBD_URIS "an NBD URI is nbd://HOST:PORT/EXPORT or nbd+unix:///EXPORT?socket=PATH"

/* What comes before the first colon of forms that QEMU, or another plugin of nbdkit,
 * understands, and of mistyped URIs. */
static const struct { const char *protocol, *advice; } foreign[] = {
  { "json", "this form is for names in images: give the path or the NBD URI alone" },
  { "file", "give the path alone" },
  { "nbd", NBD_URIS }, { "nbds", NBD_URIS },
  { "nbd+tcp", NBD_URIS }, { "nbds+tcp", NBD_URIS },
  { "nbd+unix", NBD_URIS }, { "nbds+unix", NBD_URIS },
  { "nbd+vsock", NBD_URIS }, { "nbds+vsock", NBD_URIS },
  { "unix", NBD_URIS },
  { "rbd", "neither a file nor an NBD URI: run an NBD server for what is there (nbdkit or "
    "qemu-nbd), and give its URI" },
};
static const size_t nr_foreign = sizeof foreign / sizeof foreign[0];

/* "x:/y" is a file only if there is a directory "x:". */
static bool
looks_like_uri (const char *value, size_t colon)
{
  CLEANUP_FREE char *directory = strndup (value, colon + 1);

  return value[colon + 1] == '/' && directory && access (directory, F_OK) == -1;
}

/* Is it meant to be something else than a path?  VALUE may contain secrets. */
static int
check_is_path (const char *key, const char *value)
{
  const size_t colon = strcspn (value, ":");
  size_t i;

  if (!filename_has_protocol (value) || access (value, F_OK) == 0)
    return 0;
  for (i = 0; i < nr_foreign; i++)
    if (strlen (foreign[i].protocol) == colon &&
        strncasecmp (value, foreign[i].protocol, colon) == 0)
      break;
  if (i == nr_foreign && !looks_like_uri (value, colon))
    return 0;
  report_error ("%s=%.*s:...: %s", key, (int) colon, value,
                foreign[min64 (i, nr_foreign - 1)].advice);
  return -1;
}

int
parse_storage (const char *key, const char *value, char **r, char **secrets)
{
  const char *why = "no memory";

  *secrets = NULL;
  if (!nbduri_is (value))
    return check_is_path (key, value) == -1 ? -1 : parse_path (key, value, r);
  *r = nbduri_normal (value, false, &why);
  if (*r && (*secrets = nbduri_normal (value, true, &why)) != NULL)
    return 0;
  free (*r);
  *r = NULL;
  report_error ("%s=: the NBD URI is malformed: %s", key, why);
  return -1;
}

int
parse_stored_path (const char *key, const char *value)
{
  const unsigned char c = control_character (value);

  if (value[0] == '\0')
    return bad_value (key, value, "the path is empty");
  if (c)
    return bad_file (key, value, "the path contains the control character 0x%02x", c);
  return 0;
}

int
parse_new_name (const char *key, const char *value, size_t most)
{
  const size_t len = strlen (value);
  const unsigned char c = control_character (value);

  if (len == 0 || len > most)
    return bad_value (key, value, "a name must have 1 to %zu bytes, not %zu", most, len);
  if (c)
    return bad_value (key, value, "the name contains the control character 0x%02x", c);
  if (!utf8_is_text (value))
    return bad_value (key, value, "the name is not UTF-8");
  return 0;
}

/* WHAT: how the value says where the passphrase is, never the passphrase itself. */
static int
bad_passphrase (const char *key, const char *what, const char *why)
{
  report_error ("%s=%s: %s", key, what, why);
  return -1;
}

/* Closes FD. */
static int
read_passphrase (const char *key, const char *what, int fd, char **r)
{
  char value[20];

  /* nbdkit would read it, but its message would not name the parameter. */
  if (read (fd, value, 0) == -1) {
    bad_passphrase (key, what, strerror (errno));
    close (fd);
    return -1;
  }
  snprintf (value, sizeof value, "-%d", fd);
  return nbdkit_read_password (value, r);
}

int
parse_passphrase (const char *key, const char *value, char **r)
{
  const char *end;
  uint64_t n;
  int fd;

  if (value[0] == '+') {
    fd = open (value + 1, O_RDONLY | O_CLOEXEC);
    if (fd == -1)
      return bad_passphrase (key, value, strerror (errno));
    return read_passphrase (key, value, fd, r);
  }
  if (value[0] == '-' && value[1] != '\0') {
    if (!read_digits (value + 1, &end, &n) || *end != '\0' || n <= STDERR_FILENO ||
        n > INT_MAX)
      return bad_passphrase (key, "-FD", "must be a number greater than 2");
    return read_passphrase (key, "-FD", n, r);
  }
  return nbdkit_read_password (value, r);
}

void
forget_passphrase (char **r)
{
  if (*r)
    explicit_bzero (*r, strlen (*r));
  free (*r);
  *r = NULL;
}
