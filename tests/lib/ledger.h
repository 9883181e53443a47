/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What may each sector of a disk show, now and after a power cut?  See ledger.c.
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

/* A number for new contents, and what they are: different in each sector. */
extern uint32_t ledger_contents (struct ledger *);
extern void ledger_fill (uint32_t contents, uint64_t sector, uint64_t n,
                         unsigned char *buf);

/* A request is about to give the sectors these contents; one at a time for each
 * sector.  Then either it ended well (DURABLE: also with FUA), or it is known to have
 * done nothing, or neither is called: it may have happened or not. */
extern void ledger_begin (struct ledger *, uint64_t sector, uint64_t n,
                          uint32_t contents);
extern void ledger_end (struct ledger *, uint64_t sector, uint64_t n,
                        bool durable);
extern void ledger_cancel (struct ledger *, uint64_t sector, uint64_t n);

/* A flush begins, and has ended well. */
extern uint64_t ledger_flush_begin (struct ledger *);
extern void ledger_flush_end (struct ledger *, uint64_t stamp);

/* May these sectors show this in a reader's (who knows of no request under way)
 * or, CRASHED, a survivor's eyes?  If not, says what is wrong on stderr. */
extern bool ledger_allows (struct ledger *, uint64_t sector, uint64_t n,
                           const unsigned char *buf, bool crashed);

#endif /* TEST_LEDGER_H */
