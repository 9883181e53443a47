/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What may each sector of a disk contain, now and after a power cut?  See ledger.c.
 */

#ifndef TEST_LEDGER_H
#define TEST_LEDGER_H

#include <stdbool.h>
#include <stdint.h>

#include "lib/images.h"

#define LEDGER_SECTOR 512

struct ledger;

/* Contents of sectors have numbers. */
#define LEDGER_ZEROS 0
#define LEDGER_INITIAL 1

/* INITIAL must outlive it. */
extern struct ledger *ledger_new (const struct blob *initial);
extern void ledger_free (struct ledger *);

/* Returns a number for new contents; ledger_fill produces them, different in each
 * sector. */
extern uint32_t ledger_contents (struct ledger *);
extern void ledger_fill (uint32_t contents, uint64_t sector, uint64_t n,
                         unsigned char *buf);

/* A request is about to write these contents to the sectors; only one at a time for each
 * sector.  Afterwards the test says that it succeeded (DURABLE: with FUA), or that it
 * certainly had no effect, or nothing: then it may or may not have happened. */
extern void ledger_begin (struct ledger *, uint64_t sector, uint64_t n,
                          uint32_t contents);
extern void ledger_end (struct ledger *, uint64_t sector, uint64_t n,
                        bool durable);
extern void ledger_cancel (struct ledger *, uint64_t sector, uint64_t n);

/* A trim begins: the sectors may become zeros.  In NBD nobody knows what they contain,
 * until they are written again. */
extern void ledger_trim (struct ledger *, uint64_t sector, uint64_t n);

/* A flush begins, and has succeeded. */
extern uint64_t ledger_flush_begin (struct ledger *);
extern void ledger_flush_end (struct ledger *, uint64_t stamp);

/* May these sectors contain this, for a reader that knows of no request in flight or, if
 * CRASHED, after a power cut?  If not, says what is wrong on stderr. */
extern bool ledger_allows (struct ledger *, uint64_t sector, uint64_t n,
                           const unsigned char *buf, bool crashed);

/* What is in this sector after a power cut? */
enum ledger_verdict {
  LEDGER_CURRENT,       /* what was acknowledged last, or was being written */
  LEDGER_BEHIND,        /* what it contained before that, and nothing newer was flushed */
  LEDGER_OLDER,         /* what it contained before what was flushed */
  LEDGER_TORN,          /* parts of several contents, all of this sector */
  LEDGER_FOREIGN,       /* bytes that were never written to this sector */
};
enum ledger_state {
  LEDGER_FLUSHED,       /* no request has concerned it since its contents were flushed */
  LEDGER_CHANGING,      /* one has, and may or may not have had an effect */
  LEDGER_TRIMMED,       /* nothing was written and flushed since it was trimmed */
};
/* Not for contents whose number is a multiple of 4. */
extern enum ledger_verdict ledger_judge (struct ledger *, uint64_t sector,
                                         const unsigned char *buf, enum ledger_state *);

#endif /* TEST_LEDGER_H */
