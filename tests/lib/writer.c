/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What may be left of a disk if it is changed as a whole while a client writes and
 * flushes?
 *
 * The client makes requests of all kinds, and keeps a ledger of them (attempt.c,
 * ledger.c); what it reads is checked, too.  The test makes a change, in steps.  The
 * client uses the disk between two steps, so that a trial can be repeated, and any
 * operation or allocation may fail; or in a thread of its own, so that its requests
 * meet the change anywhere.
 *
 * Locks: those of the ledger and of the simulated disk.
 */

#include <config.h>

#include <errno.h>
#include <pthread.h>
#include <string.h>

#include "util/cleanup.h"
#include "lib/checker.h"
#include "lib/shortage.h"
#include "lib/survivor.h"
#include "lib/trials.h"
#include "lib/writer.h"

/* Requests of one step. */
#define REQUESTS 4

void
writer_begin (struct writer *w, struct blob initial)
{
  const bool spared = shortage_spare (true);

  writer_free (w);
  CHECK (initial.len == w->spec.size);
  /* (Nobody knows what a trim does in version 2 over a backing file.) */
  w->image = (struct attempt_image) {
    .spec = w->spec, .has_below = true, .initial = initial,
  };
  w->attempt = (struct attempt) {
    .image = &w->image, .ledger = ledger_new (&w->image.initial),
  };
  rng_init (&w->rng, w->seed, 700);
  w->failed = false;
  w->ends = false;
  shortage_spare (spared);
}

void
writer_free (struct writer *w)
{
  if (w->attempt.ledger)
    ledger_free (w->attempt.ledger);
  w->attempt.ledger = NULL;
  blob_free (&w->image.initial);
}

/* --- requests --- */

static int
use (struct writer *w, unsigned n)
{
  const struct piece disk = { .len = w->spec.size };
  const bool spared = shortage_spare (true);
  CLEANUP_FREE unsigned char *buf = malloc (ATTEMPT_LONGEST);
  struct attempt_request q;
  int err = 0;

  CHECK (buf != NULL);
  while (err == 0 && n-- > 0) {
    attempt_make_request (&w->image, &disk, &w->rng, &q);
    if (q.kind == TRIM && !w->trims)
      q.kind = FLUSH;
    err = attempt_execute (&w->attempt, &q, buf);
  }
  shortage_spare (spared);
  w->failed = err != 0;
  errno = err;
  return err ? -1 : 0;
}

int
writer_step (struct writer *w)
{
  return w->idle || w->beside ? 0 : use (w, REQUESTS);
}

static void *
use_beside (void *opaque)
{
  struct writer *w = opaque;

  while (!w->ends)
    if (use (w, 1) == -1)
      FAIL ("a request fails: %m (%s)", last_error ());
  return NULL;
}

/* --- the change --- */

static int
change_beside (struct writer *w, int (*change) (void *opaque), void *opaque)
{
  pthread_t thread;
  int r;

  CHECK (pthread_create (&thread, NULL, use_beside, w) == 0);
  r = change (opaque);
  w->ends = true;
  CHECK (pthread_join (thread, NULL) == 0);
  return r;
}

/* After the change, whether it was made or not.  If there was no memory to go on after
 * it, the disk has failed. */
static int
go_on (struct writer *w)
{
  const int r = w->failed ? 0 : use (w, 2 * REQUESTS);

  if (r == -1 && errno == EIO && shortage_failures () > 0)
    errno = ENOMEM;
  return r;
}

static int
use_and_change (struct writer *w, int (*change) (void *opaque), void *opaque)
{
  int r, err;

  if (!export_is_writable (w->attempt.client) || use (w, REQUESTS) == -1)
    return -1;
  r = w->beside ? change_beside (w, change, opaque) : change (opaque);
  err = errno;
  if (go_on (w) == -1 && r == 0)
    return -1;
  errno = err;
  return r;
}

int
writer_use (struct writer *w, struct disk *d, bool beside, int (*change) (void *opaque),
            void *opaque)
{
  int r, err, left;

  if (w->idle)
    return change (opaque);
  w->beside = beside;
  w->attempt.client = export_open (d, "", true);
  if (w->attempt.client == NULL)
    return -1;
  r = use_and_change (w, change, opaque);
  err = errno;
  left = attempt_leave (&w->attempt);
  errno = r == 0 ? left : err;
  return left ? -1 : r;
}

/* --- judging --- */

struct blob
writer_shown (const struct blob *file, const struct blob *below)
{
  const bool spared = shortage_spare (true);
  struct blob b = { .len = blob_get (file, 24, 8) };

  b.data = malloc (b.len + 1);
  CHECK (b.data != NULL);
  if (checker_read (file, below, b.data, b.len) == -1)
    survivor_fail (file, "its mapping is invalid");
  shortage_spare (spared);
  return b;
}

bool
writer_allows (struct writer *w, const struct blob *shown)
{
  return shown->len == w->spec.size &&
    ledger_allows (w->attempt.ledger, 0, shown->len / LEDGER_SECTOR, shown->data, true);
}
