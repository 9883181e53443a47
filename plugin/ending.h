/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The end of the server, without errors for its clients.  See ending.c.
 */

#ifndef QCOW2_ENDING_H
#define QCOW2_ENDING_H

#include <stdatomic.h>
#include <stdbool.h>

#include "disk/dir.h"

struct ending_server {
  struct dir *dir;              /* if the server may be a client of its own; or NULL */
  const atomic_uint_fast64_t *open;     /* how many connections have an export */
  const atomic_int_fast64_t *last_ms;   /* when the last one got it (clock_ms) */
  bool (*is_busy) (void);       /* does any request run? */
  void (*begins) (void);        /* called first; requests may wait for what that
                                   cancels */
  int spared;                   /* a listening socket that is not nbdkit's, or -1 */
};

/* From now on, signals and ending_begin end the server in order.  To be called by the
 * main thread.  -1: reported. */
extern int ending_start (const struct ending_server *);
/* Tells the server to end, and returns at once. */
extern void ending_begin (void);
/* Must come before the disks are closed. */
extern void ending_stop (void);

#endif /* QCOW2_ENDING_H */
