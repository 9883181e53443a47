/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What several commands print.  See print.c.
 */

#ifndef QCOW2_IMG_PRINT_H
#define QCOW2_IMG_PRINT_H

#include <stdbool.h>
#include <stdint.h>

#include <jansson.h>

#include "img/command.h"

/* Was --output=json given? */
extern bool wants_json (const struct arguments *);
/* Prints DOCUMENT as qemu-img does, and frees it.  Returns the exit status; NULL: there
 * was no memory (reported). */
extern int print_json (json_t *document);

/* Sizes with three digits and a unit, as qemu-img: "1.5 GiB". */
#define READABLE 32
extern const char *readable (uint64_t bytes, char buf[READABLE]);

#endif /* QCOW2_IMG_PRINT_H */
