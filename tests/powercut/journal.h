/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What a server did to its image, and what its clients were told, in one order.  See
 * journal.c.
 */

#ifndef LABORATORY_JOURNAL_H
#define LABORATORY_JOURNAL_H

#include <stdint.h>

enum journal_kind {
  /* The server begins to change the image, or to make it durable. */
  JOURNAL_WRITE = 1,            /* the data follow the entry */
  JOURNAL_ZERO,
  JOURNAL_RESIZE,               /* to offset */
  JOURNAL_GROW,                 /* to offset at least */
  JOURNAL_SYNC,
  JOURNAL_END,                  /* of the operation NUMBER; result */

  /* A client is about to send a request. */
  JOURNAL_CLIENT_WRITE = 32,    /* of these contents (see lib/ledger.h) */
  JOURNAL_CLIENT_ZERO,
  JOURNAL_CLIENT_TRIM,
  JOURNAL_CLIENT_FLUSH,
  JOURNAL_CLIENT_END,           /* the request NUMBER has succeeded */
};

/* In the byte order of the machine. */
struct journal_entry {
  uint32_t kind;
  uint32_t durable;             /* WRITE, ZERO: on return (O_DSYNC, RWF_DSYNC, FUA) */
  uint64_t number;              /* of the operation or the request */
  uint64_t offset, count;       /* bytes */
  int64_t result;               /* END: -1 or the number of bytes written; CLIENT_WRITE:
                                   the contents */
};

/* Opens the journal at PATH, which must exist, for appending.  Returns the descriptor, or
 * -1 with errno set. */
extern int journal_open (const char *path);
/* Appends one entry.  DATA: of JOURNAL_WRITE, otherwise NULL.  Ends the process if that
 * fails: a journal with a gap would accuse the server. */
extern void journal_append (int fd, const struct journal_entry *, const void *data);
/* A number that no other operation or request has, in any process. */
extern uint64_t journal_number (void);

#endif /* LABORATORY_JOURNAL_H */
