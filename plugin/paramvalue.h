/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What does the value of a parameter mean?  See paramvalue.c.
 */

#ifndef QCOW2_PARAMVALUE_H
#define QCOW2_PARAMVALUE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A list of choices ends with one whose word is NULL. */
struct choice { const char *word; int value; };

/* All of these return 0, or -1 after an error, in one line, that names the parameter. */
extern int parse_choice (const char *key, const char *value,
                         const struct choice *choices, int *r);
/* Accepts what nbdkit_parse_bool accepts. */
extern int parse_flag (const char *key, const char *value, bool *r);
/* Accepts what nbdkit_parse_size accepts: bytes, or a number with a suffix; at most
 * INT64_MAX. */
extern int parse_bytes (const char *key, const char *value, uint64_t *r);
/* The same after an optional sign: *SIGN is +1, -1, or 0 if there is none. */
extern int parse_signed_bytes (const char *key, const char *value, int *sign,
                               uint64_t *r);
/* A power of two from MIN to MAX; RANGE describes these for the message. */
extern int parse_power (const char *key, const char *value, uint64_t min, uint64_t max,
                        const char *range, uint64_t *r);
/* A decimal number. */
extern int parse_number (const char *key, const char *value, unsigned *r);
/* The name of a file.  *R is its absolute path, which the caller frees.  Something with
 * "://" is refused: messages would show all of it. */
extern int parse_plain_path (const char *key, const char *value, char **r);
/* The same, whatever the name looks like. */
extern int parse_path (const char *key, const char *value, char **r);
/* The same, or an NBD URI.  *R is then the URI in normal form, without secrets, and
 * *SECRETS the same with its secrets; the caller frees both.  For a path, *SECRETS is
 * NULL. */
extern int parse_storage (const char *key, const char *value, char **r, char **secrets);
/* The name of a file that will be stored in an image. */
extern int parse_stored_path (const char *key, const char *value);
/* A name for something new in the image: 1 to MOST bytes, for which clients can ask
 * (UTF-8, no control characters). */
extern int parse_new_name (const char *key, const char *value, size_t most);
/* A passphrase, as nbdkit_read_password accepts it; forget_passphrase frees it. */
extern int parse_passphrase (const char *key, const char *value, char **r);
/* Wipes and frees a passphrase (or NULL), and sets it to NULL. */
extern void forget_passphrase (char **r);

/* Reports that VALUE is invalid, and why.  Returns -1. */
extern int bad_value (const char *key, const char *value, const char *fmt, ...)
  __attribute__ ((__format__ (__printf__, 3, 4)));
/* The same for the name of a file, which may contain secrets. */
extern int bad_file (const char *key, const char *value, const char *fmt, ...)
  __attribute__ ((__format__ (__printf__, 3, 4)));

#endif /* QCOW2_PARAMVALUE_H */
