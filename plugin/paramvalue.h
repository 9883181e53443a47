/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Values of parameters: see paramvalue.c.
 */

#ifndef QCOW2_PARAMVALUE_H
#define QCOW2_PARAMVALUE_H

#include <stdbool.h>
#include <stdint.h>

/* The end of a list has no word. */
struct choice { const char *word; int value; };

/* All of these: 0, or -1 with an error that names the parameter. */
extern int parse_choice (const char *key, const char *value,
                         const struct choice *choices, int *r);
extern int parse_flag (const char *key, const char *value, bool *r);
extern int parse_bytes (const char *key, const char *value, uint64_t *r);

#endif /* QCOW2_PARAMVALUE_H */
