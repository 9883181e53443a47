/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What does the value of an option mean?  See values.c.
 */

#ifndef QCOW2_IMG_VALUES_H
#define QCOW2_IMG_VALUES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* All of these return 0; or -1 after an error that begins with WHAT, the word for the
 * value: "-g" or "cluster_size=". */

/* Bytes, as qemu-img reads them: 10G, 0x1000, 1.5M; K is 1024.  At most INT64_MAX. */
extern int parse_size (const char *what, const char *text, uint64_t *bytes);
/* SIZE, +SIZE or -SIZE: *SIGN is 0, 1 or -1. */
extern int parse_signed_size (const char *what, const char *text, int *sign,
                              uint64_t *bytes);
/* A number, decimal or as 0x10, from LEAST to MOST. */
extern int parse_number (const char *what, const char *text, uint64_t least,
                         uint64_t most, uint64_t *r);
/* on or off, as QEMU spells them. */
extern int parse_switch (const char *what, const char *text, bool *r);
/* A name for something new in an image: 1 to MOST bytes of UTF-8, for which clients can
 * ask. */
extern int parse_new_name (const char *what, const char *text, unsigned most);

/* All bytes of the file NAME, with a zero byte behind them; the caller frees them.  NULL
 * with errno (not reported); EFBIG: it has more than MOST. */
extern char *read_whole (const char *name, uint64_t most, size_t *len);

/* Reports that the value is not possible, and why.  Returns -1. */
extern int bad_value (const char *what, const char *text, const char *fmt, ...)
  __attribute__ ((__format__ (__printf__, 3, 4)));

/* --- KEY=VALUE,KEY=VALUE... --- */

struct key_value { char *key, *value; bool taken; };
struct key_values { struct key_value *list; unsigned n; };      /* all 0: none */

/* Appends what TEXT says.  A comma in a value is written twice.  A first word without =
 * is the value of IMPLIED (unless that is NULL); any other means KEY=on.  -1:
 * reported. */
extern int key_values_add (struct key_values *, const char *text, const char *implied);
/* The same for -o, which is not empty, and ends with no comma, as qemu-img has it. */
extern int key_values_add_options (struct key_values *, const char *text);
/* The last value of KEY, or NULL.  It belongs to the list. */
extern const char *key_values_get (const struct key_values *, const char *key);
/* The same, and from then on key_values_left does not tell of KEY any more. */
extern const char *key_values_take (struct key_values *, const char *key);
/* A key that was not taken yet (of them that begin with PREFIX), or NULL. */
extern const char *key_values_left (const struct key_values *, const char *prefix);
extern void key_values_free (struct key_values *);

/* The snapshot that -l NAME, -l snapshot.id=ID or -l snapshot.name=NAME means; *R (NULL
 * if TEXT is) belongs to TEXT or to KV.  -1: reported. */
extern int parse_snapshot (const char *what, const char *text, struct key_values *kv,
                           const char **r);

#endif /* QCOW2_IMG_VALUES_H */
