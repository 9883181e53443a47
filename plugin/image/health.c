/* SPDX-License-Identifier: BSD-3-Clause
 *
 * May this image still be changed?
 *
 * Two events end this, both for as long as we serve the image: metadata is found to be
 * wrong (the specification's "corrupt bit"), or an I/O failure means that memory and
 * file may differ (R9).  In both cases reads still work.  An image becomes healthy again
 * only when it is opened again.
 *
 * This file also keeps the promise of images with lazy refcounts: such an image has the
 * dirty bit from its first change until everything is in order again.  Our refcounts are
 * always correct, but a program that finds such an image without the bit may also rely
 * on the absence of leaks.
 *
 * Locks: `lock' serialises writes of the incompatible features; nothing else writes
 * them.  `stopped' is an atomic that only changes from false to true, so it is read
 * without a lock.
 */

#include <config.h>

#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

#include "util/cleanup.h"
#include "util/report.h"
#include "format/format.h"
#include "image/headerwrite.h"
#include "image/health.h"

struct health {
  struct storage *file;
  struct header *header;
  pthread_mutex_t lock;         /* guards marked, header->incompatible */
  bool marked;                  /* the corrupt bit needs no more action */
  atomic_bool writable;
  atomic_bool stopped;
  atomic_bool corrupt;          /* corruption has been reported */
};

struct health *
health_new (struct storage *file, struct header *header)
{
  struct health *health = calloc (1, sizeof *health);

  if (health == NULL) {
    nbdkit_error ("calloc: %m");
    return NULL;
  }
  health->file = file;
  health->header = header;
  pthread_mutex_init (&health->lock, NULL);
  return health;
}

void
health_free (struct health *health)
{
  if (health == NULL)
    return;
  pthread_mutex_destroy (&health->lock);
  free (health);
}

void
health_set_writable (struct health *health)
{
  atomic_store (&health->writable, true);
}

/* The caller holds the lock. */
static int
write_features (struct health *health)
{
  return headerwrite_incompatible (health->file, health->header->incompatible);
}

int
health_begin_changes (struct health *health)
{
  struct header *h = health->header;
  LOCK_FOR_BLOCK (&health->lock);

  if (!(h->compatible & QCOW2_COMPAT_LAZY_REFCOUNTS) ||
      (h->incompatible & QCOW2_INCOMPAT_DIRTY))
    return 0;
  h->incompatible |= QCOW2_INCOMPAT_DIRTY;
  if (write_features (health) == -1) {
    health_fail (health, "the image could not be marked as being written");
    errno = EIO;
    return -1;
  }
  return 0;
}

int
health_end_changes (struct health *health)
{
  struct header *h = health->header;
  LOCK_FOR_BLOCK (&health->lock);

  if (!(h->incompatible & QCOW2_INCOMPAT_DIRTY))
    return 0;
  h->incompatible &= ~QCOW2_INCOMPAT_DIRTY;
  if (write_features (health) == -1) {
    health_fail (health, "the image could not be marked as closed");
    errno = EIO;
    return -1;
  }
  return 0;
}

/* Sets the corrupt bit in the file, even after other failures.  A failure has been
 * reported and is ignored: the image is not written any more in any case. */
static void
mark_corrupt (struct health *health)
{
  LOCK_FOR_BLOCK (&health->lock);

  if (health->marked)
    return;
  health->marked = true;
  if (!atomic_load (&health->writable) || health->header->version < 3)
    return;
  health->header->incompatible |= QCOW2_INCOMPAT_CORRUPT;
  write_features (health);
}

void
health_corrupt (struct health *health, const char *fmt, ...)
{
  bool writable = atomic_load (&health->writable);
  char text[256];
  va_list args;

  va_start (args, fmt);
  vsnprintf (text, sizeof text, fmt, args);
  va_end (args);

  atomic_store (&health->stopped, true);
  if (!atomic_exchange (&health->corrupt, true) || !writable)
    nbdkit_error ("%s: image is corrupt: %s%s",
                  storage_path (health->file), text,
                  !writable ? "" :
                  health->header->version >= 3
                  ? "; the image was marked corrupt and will not be changed any more"
                  : "; the image will not be changed any more");
  else
    nbdkit_debug ("%s: image is corrupt: %s",
                  storage_path (health->file), text);
  mark_corrupt (health);
  errno = EIO;
}

void
health_fail (struct health *health, const char *why)
{
  KEEP_ERRNO_FOR_BLOCK;

  if (!atomic_exchange (&health->stopped, true))
    nbdkit_error ("%s: %s: the image in memory and in the file may differ: no more "
                  "changes are accepted until it is opened again",
                  storage_path (health->file), why);
}

int
health_check (struct health *health)
{
  if (atomic_load_explicit (&health->stopped, memory_order_relaxed)) {
    errno = EIO;
    return -1;
  }
  return 0;
}
