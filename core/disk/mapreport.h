/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Writes what qemu-img map says about a disk to a file.  See mapreport.c.
 */

#ifndef QCOW2_MAPREPORT_H
#define QCOW2_MAPREPORT_H

#include "mapping/layers.h"

/* May the report be written to PATH (absolute)?  Returns 0, or -1 (reported). */
extern int mapreport_check (const char *path);

/* Writes where the active disk of the top image, or that of this SNAPSHOT, is in all
 * layers.  Guest data is not read.
 * Takes as long as reading all L2 tables, and little memory.  Returns 0, or -1 (reported):
 * then the file at PATH has not changed. */
extern int mapreport_write (const char *path, struct layers *, const struct snapshot *);

#endif /* QCOW2_MAPREPORT_H */
