/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Was this compressed cluster decompressed before?
 *
 * Snapshots share compressed clusters, and a hostile image can have all its entries point
 * to the same bytes.  So descriptors are remembered, with what was found.
 *
 * Memory is limited: one descriptor for each sector of the file, and at most MOST_SLOTS.
 * A descriptor has a few slots where it can be, so that a search takes the same time
 * whatever the descriptors are.  If all are taken, the new one displaces an old one,
 * which may then be decompressed again.
 *
 * Locks: `lock' guards the slots.
 */

#include <config.h>

#include <pthread.h>
#include <stdlib.h>

#include "util/cleanup.h"
#include "check/scan-impl.h"

#define LEAST_SLOTS (UINT64_C (1) << 10)
#define MOST_SLOTS (UINT64_C (1) << 22)         /* 32 MiB */
#define WAYS 8

/* A slot is a descriptor, perhaps with this bit, or 0 (which leads to the header). */
#define BAD (UINT64_C (1) << 63)

struct seen {
  pthread_mutex_t lock;
  unsigned bits;                /* log2 of the number of sets; constant */
  unsigned next;                /* which way is displaced next; guarded by lock */
  uint64_t (*sets)[WAYS];       /* guarded by lock */
};

struct seen *
seen_new (uint64_t file_size)
{
  struct seen *seen = calloc (1, sizeof *seen);
  uint64_t slots = LEAST_SLOTS;

  if (seen == NULL)
    return NULL;
  while (slots < MOST_SLOTS && slots < file_size / 512)
    slots *= 2;
  for (seen->bits = 0; (uint64_t) WAYS << seen->bits < slots; seen->bits++)
    ;
  seen->sets = calloc (slots / WAYS, sizeof *seen->sets);
  if (seen->sets == NULL) {
    free (seen);
    return NULL;
  }
  pthread_mutex_init (&seen->lock, NULL);
  return seen;
}

void
seen_free (struct seen *seen)
{
  if (seen == NULL)
    return;
  pthread_mutex_destroy (&seen->lock);
  free (seen->sets);
  free (seen);
}

static uint64_t *
set_of (const struct seen *seen, uint64_t descriptor)
{
  return seen->sets[descriptor * UINT64_C (0x9e3779b97f4a7c15) >> (64 - seen->bits)];
}

int
seen_ask (struct seen *seen, uint64_t descriptor)
{
  const uint64_t *set = set_of (seen, descriptor);
  LOCK_FOR_BLOCK (&seen->lock);

  for (unsigned i = 0; i < WAYS && set[i] != 0; i++)
    if ((set[i] & ~BAD) == descriptor)
      return (set[i] & BAD) == 0;
  return -1;
}

void
seen_tell (struct seen *seen, uint64_t descriptor, bool good)
{
  uint64_t *set = set_of (seen, descriptor);
  unsigned i;
  LOCK_FOR_BLOCK (&seen->lock);

  for (i = 0; i < WAYS && set[i] != 0; i++)
    ;
  if (i == WAYS)
    i = seen->next++ % WAYS;
  set[i] = descriptor | (good ? 0 : BAD);
}
