/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Makes JSON documents of C's strings and numbers, with jansson.  See jsontext.c.
 */

#ifndef QCOW2_JSONTEXT_H
#define QCOW2_JSONTEXT_H

#include <stdint.h>
#include <stdio.h>

#include <jansson.h>

/* A number.  NULL on ENOMEM. */
extern json_t *jsontext_number (uint64_t);
/* A string that may contain any bytes.  NULL on ENOMEM. */
extern json_t *jsontext_string (const char *);

struct json_member {
  const char *key;
  json_t *value;
};

/* Adds members to OBJECT, in their order; the last one has no key.  NULL stands for what
 * could not be made: if OBJECT or a value is NULL, or there is no memory, everything is
 * freed.  Returns OBJECT, which then owns the values, or NULL on ENOMEM. */
extern json_t *jsontext_add_members (json_t *object, const struct json_member *);

/* The same, with the members { "key", value }, ... */
#define jsontext_add(object, ...)                                               \
  jsontext_add_members (object,                                                 \
                        (const struct json_member[]) { __VA_ARGS__, { NULL, NULL } })
/* An object with these members. */
#define jsontext_object(...) jsontext_add (json_object (), __VA_ARGS__)

/* Appends VALUE to ARRAY, and frees both if one is NULL or there is no memory.  Returns
 * ARRAY, which then owns VALUE, or NULL on ENOMEM. */
extern json_t *jsontext_append (json_t *array, json_t *value);

/* Writes DOCUMENT, indented by 2, and a newline, to FP, and frees it.  Returns 0; or -1
 * with errno, also if DOCUMENT is NULL. */
extern int jsontext_write (json_t *document, FILE *fp);
/* The same, with another indentation. */
extern int jsontext_print (json_t *document, unsigned indent, FILE *fp);

/* The document that jsontext_write has written, or another one in JSON.  NULL: it is
 * none, or there was no memory; not reported. */
extern json_t *jsontext_read (const char *text, size_t len);
/* JSON in which strings may be in single quotes, too, as QEMU's parser takes it.  NULL:
 * it is none, and *WHY says why, unless WHY is NULL; not reported. */
extern json_t *jsontext_read_as_qemu (const char *text, json_error_t *why);
/* A member that is a string, as it is in the document; "" if there is none. */
extern const char *jsontext_text (const json_t *object, const char *key);
/* The bytes of a string of a document.  The caller frees them.  NULL on ENOMEM. */
extern char *jsontext_bytes (const char *string);

/* Writes a string of a document to FP for people: the bytes that it was made of, but what
 * is not to be shown (utf8.h) is escaped. */
extern void jsontext_put (const char *string, FILE *fp);

#endif /* QCOW2_JSONTEXT_H */
