/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What may each sector of a disk contain, now and after a power cut?
 *
 * For each sector, the ledger lists the contents that were written to it, in order, from
 * the last contents that are known to be durable:
 *
 *      durable, then, then, ..., latest
 *
 * A reader sees the last contents whose request has ended, or any later ones.  After a
 * power cut, it may be any contents in the list, but no others, and never those of
 * another sector: contents include their sector and number.
 *
 * A flush makes all requests durable that ended before it began.  Time is counted in
 * requests that have ended.
 *
 * Locks: `lock' guards everything.
 */

#include <config.h>

#include <inttypes.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "lib/ledger.h"

#define WORDS (LEDGER_SECTOR / 8)

struct entry {
  uint32_t contents;
  uint64_t ended;               /* when; UINT64_MAX: may not have ended */
  bool durable;
};

struct history {
  struct entry *entries;
  unsigned n, room;
  /* Since a trim the contents are unknown: until what was written after it, at this time,
   * is flushed. */
  uint64_t known;
};

struct ledger {
  pthread_mutex_t lock;
  const struct blob *initial;
  struct history *sectors;
  uint64_t n;
  uint64_t now, flushed;        /* ended requests; how many of them are durable */
  uint32_t last_contents;
};

struct ledger *
ledger_new (const struct blob *initial)
{
  struct ledger *l = calloc (1, sizeof *l);
  uint64_t i;

  CHECK (l != NULL && initial->len % LEDGER_SECTOR == 0);
  pthread_mutex_init (&l->lock, NULL);
  l->initial = initial;
  l->n = initial->len / LEDGER_SECTOR;
  l->last_contents = LEDGER_INITIAL;
  l->sectors = calloc (l->n, sizeof *l->sectors);
  CHECK (l->sectors != NULL);
  for (i = 0; i < l->n; i++) {
    struct history *h = &l->sectors[i];

    h->room = 4;
    h->entries = malloc (h->room * sizeof *h->entries);
    CHECK (h->entries != NULL);
    h->entries[h->n++] = (struct entry) {
      .contents = LEDGER_INITIAL, .durable = true,
    };
  }
  return l;
}

void
ledger_free (struct ledger *l)
{
  uint64_t i;

  for (i = 0; i < l->n; i++)
    free (l->sectors[i].entries);
  free (l->sectors);
  pthread_mutex_destroy (&l->lock);
  free (l);
}

/* --- contents --- */

uint32_t
ledger_contents (struct ledger *l)
{
  uint32_t contents;

  pthread_mutex_lock (&l->lock);
  contents = ++l->last_contents;
  pthread_mutex_unlock (&l->lock);
  return contents;
}

static uint64_t
word (uint32_t contents, uint64_t sector, unsigned i)
{
  uint64_t w = ((uint64_t) contents << 32 | sector) ^ (uint64_t) i << 56;

  if (contents % 4 == 0) {      /* contents that cannot be compressed */
    w = (w ^ w >> 31) * UINT64_C (0x7fb5d329728ea185);
    w = (w ^ w >> 27) * UINT64_C (0x81dadef4bc2dd44d);
  }
  return w;
}

void
ledger_fill (uint32_t contents, uint64_t sector, uint64_t n,
             unsigned char *buf)
{
  uint64_t w;
  unsigned i;

  if (contents == LEDGER_ZEROS) {
    memset (buf, 0, n * LEDGER_SECTOR);
    return;
  }
  for (; n > 0; n--, sector++)
    for (i = 0; i < WORDS; i++, buf += 8) {
      w = word (contents, sector, i);
      memcpy (buf, &w, 8);
    }
}

static bool
matches (const struct ledger *l, uint32_t contents, uint64_t sector,
         const unsigned char *buf)
{
  unsigned char expected[LEDGER_SECTOR];
  uint64_t w, found;

  if (contents == LEDGER_INITIAL)
    return memcmp (buf, l->initial->data + sector * LEDGER_SECTOR,
                   LEDGER_SECTOR) == 0;
  w = contents == LEDGER_ZEROS ? 0 : word (contents, sector, 0);
  memcpy (&found, buf, 8);
  if (w != found)
    return false;
  ledger_fill (contents, sector, 1, expected);
  return memcmp (buf, expected, LEDGER_SECTOR) == 0;
}

/* --- requests --- */

/* The entry that is certainly durable. */
static unsigned
durable_entry (const struct ledger *l, const struct history *h)
{
  unsigned i = h->n - 1;

  while (i > 0 && !h->entries[i].durable && h->entries[i].ended > l->flushed)
    i--;
  return i;
}

/* The latest entry whose request has ended. */
static unsigned
ended_entry (const struct history *h)
{
  unsigned i = h->n - 1;

  while (i > 0 && h->entries[i].ended == UINT64_MAX)
    i--;
  return i;
}

void
ledger_begin (struct ledger *l, uint64_t sector, uint64_t n,
              uint32_t contents)
{
  pthread_mutex_lock (&l->lock);
  if (contents > l->last_contents)
    l->last_contents = contents;
  for (; n > 0; n--, sector++) {
    struct history *h = &l->sectors[sector];
    const unsigned first = durable_entry (l, h);

    /* Contents before the durable ones are no longer possible. */
    memmove (h->entries, h->entries + first,
             (h->n - first) * sizeof *h->entries);
    h->n -= first;
    if (h->n == h->room) {
      h->room *= 2;
      h->entries = realloc (h->entries, h->room * sizeof *h->entries);
      CHECK (h->entries != NULL);
    }
    h->entries[h->n++] = (struct entry) {
      .contents = contents, .ended = UINT64_MAX,
    };
  }
  pthread_mutex_unlock (&l->lock);
}

void
ledger_trim (struct ledger *l, uint64_t sector, uint64_t n)
{
  ledger_begin (l, sector, n, LEDGER_ZEROS);
  pthread_mutex_lock (&l->lock);
  for (; n > 0; n--, sector++)
    l->sectors[sector].known = UINT64_MAX;
  pthread_mutex_unlock (&l->lock);
}

void
ledger_end (struct ledger *l, uint64_t sector, uint64_t n, bool durable)
{
  pthread_mutex_lock (&l->lock);
  l->now++;
  for (; n > 0; n--, sector++) {
    struct history *h = &l->sectors[sector];

    h->entries[h->n - 1].ended = l->now;
    h->entries[h->n - 1].durable = durable;
    if (durable || h->known == UINT64_MAX)
      h->known = durable ? 0 : l->now;
  }
  pthread_mutex_unlock (&l->lock);
}

void
ledger_cancel (struct ledger *l, uint64_t sector, uint64_t n)
{
  pthread_mutex_lock (&l->lock);
  for (; n > 0; n--, sector++)
    l->sectors[sector].n--;
  pthread_mutex_unlock (&l->lock);
}

uint64_t
ledger_flush_begin (struct ledger *l)
{
  uint64_t stamp;

  pthread_mutex_lock (&l->lock);
  stamp = l->now;
  pthread_mutex_unlock (&l->lock);
  return stamp;
}

void
ledger_flush_end (struct ledger *l, uint64_t stamp)
{
  pthread_mutex_lock (&l->lock);
  if (stamp > l->flushed)
    l->flushed = stamp;
  pthread_mutex_unlock (&l->lock);
}

/* --- judgement --- */

static void
explain (const struct ledger *l, uint64_t sector, const unsigned char *buf,
         unsigned first)
{
  const struct history *h = &l->sectors[sector];
  uint64_t found;
  unsigned i;

  memcpy (&found, buf, 8);
  fprintf (stderr, "sector %" PRIu64 " (offset %" PRIu64 ") shows 0x%016"
           PRIx64, sector, sector * LEDGER_SECTOR, found);
  if (found >> 32 > LEDGER_INITIAL &&
      matches (l, found >> 32, (uint32_t) found, buf))
    fprintf (stderr, " (contents %" PRIu64 " of sector %u)", found >> 32,
             (unsigned) found);
  else if (matches (l, LEDGER_ZEROS, sector, buf))
    fprintf (stderr, " (zeros)");
  else if (matches (l, LEDGER_INITIAL, sector, buf))
    fprintf (stderr, " (its first contents)");
  fprintf (stderr, "; may be:");
  for (i = first; i < h->n; i++)
    fprintf (stderr, " %u%s%s", h->entries[i].contents,
             i == durable_entry (l, h) ? " (durable)" : "",
             h->entries[i].ended == UINT64_MAX ? " (under way)" : "");
  fputc ('\n', stderr);
}

/* The entry, from FIRST on, that BUF contains; h->n if there is none. */
static unsigned
shown_entry (const struct ledger *l, uint64_t sector, const unsigned char *buf,
             unsigned first)
{
  const struct history *h = &l->sectors[sector];
  unsigned i;

  for (i = h->n; i > first; i--)
    if (matches (l, h->entries[i - 1].contents, sector, buf))
      return i - 1;
  return h->n;
}

bool
ledger_allows (struct ledger *l, uint64_t sector, uint64_t n,
               const unsigned char *buf, bool crashed)
{
  bool ok = true;
  unsigned first;

  pthread_mutex_lock (&l->lock);
  for (; ok && n > 0; n--, sector++, buf += LEDGER_SECTOR) {
    const struct history *h = &l->sectors[sector];

    first = crashed ? durable_entry (l, h) : ended_entry (h);
    if (shown_entry (l, sector, buf, first) == h->n) {
      explain (l, sector, buf, first);
      ok = false;
    }
  }
  pthread_mutex_unlock (&l->lock);
  return ok;
}

/* --- what is wrong? --- */

/* Which contents of which sector has W as its word I?  (Not for those that cannot be
 * compressed.) */
static void
decode (uint64_t w, unsigned i, uint32_t *contents, uint64_t *sector)
{
  w ^= (uint64_t) i << 56;
  *contents = w >> 32;
  *sector = (uint32_t) w;
}

/* Are these only words that were written to this sector? */
static bool
is_own (const struct ledger *l, uint64_t sector, const unsigned char *buf)
{
  uint64_t w, first, other;
  uint32_t contents;
  unsigned i;

  for (i = 0; i < WORDS; i++) {
    memcpy (&w, buf + i * 8, 8);
    memcpy (&first, l->initial->data + sector * LEDGER_SECTOR + i * 8, 8);
    decode (w, i, &contents, &other);
    if (w != 0 && w != first &&
        (other != sector || contents <= LEDGER_INITIAL || contents > l->last_contents))
      return false;
  }
  return true;
}

/* Is that one of its contents, from any time? */
static bool
is_whole (const struct ledger *l, uint64_t sector, const unsigned char *buf)
{
  uint32_t contents;
  uint64_t w, other;

  memcpy (&w, buf, 8);
  decode (w, 0, &contents, &other);
  return matches (l, LEDGER_ZEROS, sector, buf) ||
    matches (l, LEDGER_INITIAL, sector, buf) || matches (l, contents, sector, buf);
}

enum ledger_verdict
ledger_judge (struct ledger *l, uint64_t sector, const unsigned char *buf,
              enum ledger_state *state)
{
  const struct history *h = &l->sectors[sector];
  enum ledger_verdict verdict;
  unsigned durable, shown;

  pthread_mutex_lock (&l->lock);
  durable = durable_entry (l, h);
  shown = shown_entry (l, sector, buf, durable);
  if (shown < h->n)
    verdict = shown < ended_entry (h) ? LEDGER_BEHIND : LEDGER_CURRENT;
  else if (!is_own (l, sector, buf))
    verdict = LEDGER_FOREIGN;
  else
    verdict = is_whole (l, sector, buf) ? LEDGER_OLDER : LEDGER_TORN;
  *state = h->known > l->flushed ? LEDGER_TRIMMED :
    durable == h->n - 1 ? LEDGER_FLUSHED : LEDGER_CHANGING;
  pthread_mutex_unlock (&l->lock);
  return verdict;
}
