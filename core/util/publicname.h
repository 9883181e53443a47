/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Which part of the name of a file may be told?  See publicname.c.
 */

#ifndef QCOW2_PUBLICNAME_H
#define QCOW2_PUBLICNAME_H

#include <stddef.h>

/* The length of "PROTOCOL:" at the beginning of NAME; 0: it is a path. */
extern size_t publicname_protocol (const char *name);

/* NAME for a message or a report: "..." replaces what may be a secret.  The caller frees
 * the result.  NULL on ENOMEM (see publicname_or). */
extern char *publicname (const char *name);

/* What a message says if there was no memory for the name. */
#define publicname_or(shown) ((shown) ? (shown) : "...")

#endif /* QCOW2_PUBLICNAME_H */
