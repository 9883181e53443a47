/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The results for all images.  See validatereport.c.
 */

#ifndef QCOW2_IMG_VALIDATEREPORT_H
#define QCOW2_IMG_VALIDATEREPORT_H

#include <stdbool.h>

#include <jansson.h>

#include "storage/reportfile.h"

/* The results for an image are an entry, an object:
 *
 *   image     its name
 *   verdict   "valid", "invalid", or "error": it could not be validated
 *   sha256    of its disk, or null
 *   steps     what was done, in order: objects with name, status, message and seconds
 *   findings  of the policy, if there was one: objects with code and message
 *   check     the report of the check, or null
 */

enum verdict { VALID, INVALID, NOT_VALIDATED };

/* What a step's status is. */
enum status { STEP_OK, STEP_FAILED, STEP_ERROR, STEP_SKIPPED };

/* NULL: no memory (not reported). */
extern json_t *entry_new (const char *name);
extern json_t *step_new (const char *name, enum status, const char *message, double seconds);
/* Is this an entry, and not something else?  Its verdict is not looked at. */
extern bool entry_is_valid (const json_t *);
/* By its steps. */
extern enum verdict entry_verdict (const json_t *);

/* Prints the entry as TAP; *N: the steps so far. */
extern void tap_entry (const json_t *entry, unsigned *n);

extern const struct report_kind validate_json, validate_junit;
/* SHARD: NULL, or what is said of it.  0, or -1 (reported). */
extern int write_json (const char *path, const json_t *entries, json_t *shard);
extern int write_junit (const char *path, const json_t *entries);

#endif /* QCOW2_IMG_VALIDATEREPORT_H */
