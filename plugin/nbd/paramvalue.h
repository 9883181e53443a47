/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Values of parameters: see paramvalue.c.
 */

#ifndef QCOW2_PARAMVALUE_H
#define QCOW2_PARAMVALUE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The end of a list has no word. */
struct choice { const char *word; int value; };

/* All of these: 0, or -1 with an error, of one line, that names the parameter. */
extern int parse_choice (const char *key, const char *value,
                         const struct choice *choices, int *r);
/* What nbdkit_parse_bool takes. */
extern int parse_flag (const char *key, const char *value, bool *r);
/* What nbdkit_parse_size takes: bytes, or with a suffix; at most INT64_MAX. */
extern int parse_bytes (const char *key, const char *value, uint64_t *r);
/* The same behind a sign, or without one: *SIGN is +1, -1 or 0. */
extern int parse_signed_bytes (const char *key, const char *value, int *sign,
                               uint64_t *r);
/* A decimal number. */
extern int parse_number (const char *key, const char *value, unsigned *r);
/* The name of a file, made absolute; to be freed. */
extern int parse_path (const char *key, const char *value, char **r);
/* The same, or an NBD URI in normal form: *SECRETS is the same with its secrets, to be
 * freed, and else NULL. */
extern int parse_storage (const char *key, const char *value, char **r, char **secrets);
/* The name of a file, as an image will have it. */
extern int parse_stored_path (const char *key, const char *value);
/* A name that something in the image will have, of at most MOST bytes: not empty, and
 * such that clients can ask for it (UTF-8, no control characters). */
extern int parse_new_name (const char *key, const char *value, size_t most);
/* A passphrase, as nbdkit_read_password takes it; to be wiped and freed. */
extern int parse_passphrase (const char *key, const char *value, char **r);

/* Reports that VALUE is bad, and why.  Returns -1. */
extern int bad_value (const char *key, const char *value, const char *fmt, ...)
  __attribute__ ((__format__ (__printf__, 3, 4)));

#endif /* QCOW2_PARAMVALUE_H */
