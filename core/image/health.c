/* SPDX-License-Identifier: BSD-3-Clause
 *
 * May this image still be changed?
 *
 * Two events end this, both for as long as we serve the image: metadata is found to be
 * wrong (the specification's "corrupt bit"), or an I/O failure means that memory and
 * file may differ (R9).  In both cases reads still work.  An image becomes healthy again
 * only when it is opened again.  (Health stands for both events, and for the marks
 * below.)
 *
 * This file also marks an image from its first change until everything is in order again:
 *
 *   with lazy refcounts    with the dirty bit.  Our refcounts are never too low, but a
 *                          program that finds such an image without the bit may also
 *                          rely on the absence of leaks.
 *   otherwise, version 3   with an autoclear bit of our own.  A crash leaves clusters
 *                          allocated that nothing uses; the next start finds the mark
 *                          and frees them (leaks.c in check/).  If another program has
 *                          written to the image meanwhile, it has cleared the bit.
 *   version 2              not at all: it has no feature bits.
 *
 * Locks: `lock' serialises writes of the features; while an image is being changed,
 * nothing else writes them.  `why_lock' is taken last.  `stopped' is an atomic that only
 * changes from false to true, so it is read without a lock.
 */

#include <config.h>

#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "util/cleanup.h"
#include "util/memory.h"
#include "util/report.h"
#include "format/format.h"
#include "image/headerwrite.h"
#include "image/health.h"

/* A bit of the features that says that the image is being changed. */
struct mark {
  _Atomic uint64_t *features;   /* what the header says; changes with it */
  uint64_t bit;                 /* constant */
  int (*write) (struct health *);       /* constant: writes these features */
  bool unsure;                  /* whether the file says so, too */
};

struct health {
  struct storage *file;
  pthread_mutex_t lock;         /* guards header, marked, unsure of both marks,
                                   header->incompatible, header->autoclear */
  struct header *header;        /* of the present generation */
  atomic_uint version;          /* of the header */
  struct mark dirty, in_use;
  bool marked;                  /* the corrupt bit needs no more action */
  bool switching;               /* health_begin_switch; under lock */
  atomic_bool writable;
  atomic_bool stopped;
  atomic_bool corrupt;          /* corruption has been reported */
  pthread_mutex_t why_lock;     /* taken last; guards why */
  char why[HEALTH_WHY];         /* changes have stopped; the first reason */
};

/* The caller holds the lock. */
static int
write_incompatible (struct health *health)
{
  return headerwrite_incompatible (health->file, health->header->incompatible);
}

static int
write_autoclear (struct health *health)
{
  return headerwrite_autoclear (health->file, health->header->autoclear);
}

struct health *
health_new (struct storage *file, struct header *header)
{
  struct health *health = memory_new (1, sizeof *health);

  if (health == NULL)
    return NULL;
  health->file = file;
  health->dirty = (struct mark) {
    .bit = QCOW2_INCOMPAT_DIRTY, .write = write_incompatible,
  };
  health->in_use = (struct mark) {
    .bit = QCOW2_AUTOCLEAR_IN_USE, .write = write_autoclear,
  };
  pthread_mutex_init (&health->lock, NULL);
  pthread_mutex_init (&health->why_lock, NULL);
  health_adopt (health, header);
  return health;
}

void
health_adopt (struct health *health, struct header *header)
{
  LOCK_FOR_BLOCK (&health->lock);

  health->header = header;
  atomic_store (&health->version, header->version);
  health->dirty.features = &header->incompatible;
  health->in_use.features = &header->autoclear;
}

void
health_free (struct health *health)
{
  if (health == NULL)
    return;
  pthread_mutex_destroy (&health->why_lock);
  pthread_mutex_destroy (&health->lock);
  free (health);
}

void
health_set_writable (struct health *health)
{
  atomic_store (&health->writable, true);
}

/* Sets (ON) or clears one mark, if necessary.  If that fails, it is tried again. */
static int
set_mark (struct health *health, struct mark *m, bool on)
{
  const uint64_t before = *m->features;

  if (((before & m->bit) != 0) == on && !m->unsure)
    return 0;
  *m->features = on ? before | m->bit : before & ~m->bit;
  m->unsure = m->write (health) == -1;
  if (!m->unsure)
    return 0;
  *m->features = before;
  return -1;
}

/* Sets (ON) or clears the marks of an image that is being changed. */
static int
set_marks (struct health *health, bool on)
{
  LOCK_FOR_BLOCK (&health->lock);
  const struct header *h = health->header;
  const bool lazy = h->compatible & QCOW2_COMPAT_LAZY_REFCOUNTS;

  if (h->version < 3)
    return 0;
  if ((lazy || !on) && set_mark (health, &health->dirty, on) == -1)
    return -1;
  return lazy && on ? 0 : set_mark (health, &health->in_use, on);
}

/* The same; WHAT could not be done, unless it can be tried again. */
static int
mark (struct health *health, bool on, const char *what)
{
  if (set_marks (health, on) == 0)
    return 0;
  if (!storage_may_try_again (errno)) {
    health_fail (health, what);
    errno = EIO;
  }
  return -1;
}

int
health_begin_changes (struct health *health)
{
  return mark (health, true, "the image could not be marked as being written");
}

int
health_end_changes (struct health *health)
{
  return mark (health, false, "the image could not be marked as closed");
}

/* Sets the corrupt bit in the file, even after other failures.  A failure has been
 * reported and is ignored: the image is not written any more in any case. */
static void
mark_corrupt (struct health *health)
{
  LOCK_FOR_BLOCK (&health->lock);

  if (health->marked || health->switching)
    return;
  health->marked = true;
  if (!atomic_load (&health->writable) || health->header->version < 3)
    return;
  health->header->incompatible |= QCOW2_INCOMPAT_CORRUPT;
  write_incompatible (health);
}

/* No more changes are made.  False: that was so before. */
static bool
stop (struct health *health, const char *why)
{
  LOCK_FOR_BLOCK (&health->why_lock);

  if (health->why[0] == '\0')
    snprintf (health->why, sizeof health->why, "%s", why);
  return !atomic_exchange (&health->stopped, true);
}

void
health_corrupt (struct health *health, const char *fmt, ...)
{
  bool writable = atomic_load (&health->writable);
  char text[HEALTH_WHY];
  va_list args;

  va_start (args, fmt);
  vsnprintf (text, sizeof text, fmt, args);
  va_end (args);

  stop (health, text);
  if (!atomic_exchange (&health->corrupt, true))
    report_event (EVENT_CORRUPT, storage_path (health->file), "image is corrupt: %s%s", text,
                  !writable ? "" :
                  atomic_load (&health->version) >= 3
                  ? "; the image was marked corrupt and will not be changed any more"
                  : "; the image will not be changed any more");
  else if (!writable)
    report_error ("%s: image is corrupt: %s", storage_path (health->file), text);
  else
    report_debug ("%s: image is corrupt: %s",
                  storage_path (health->file), text);
  mark_corrupt (health);
  errno = EIO;
}

void
health_fail (struct health *health, const char *why)
{
  KEEP_ERRNO_FOR_BLOCK;

  if (!stop (health, why))
    return;
  report_event (EVENT_FAILED, storage_path (health->file), "%s: the image in memory and in "
                "the file may differ: no more changes are accepted until it is opened again",
                why);
  /* Without a mark, the next session does not know that it must do this. */
  if (atomic_load (&health->version) < 3)
    storage_forget_cache (health->file);
}

int
health_begin_switch (struct health *health)
{
  LOCK_FOR_BLOCK (&health->lock);

  health->switching = health_check (health) == 0;
  return health->switching ? 0 : -1;
}

void
health_end_switch (struct health *health)
{
  KEEP_ERRNO_FOR_BLOCK;

  {
    LOCK_FOR_BLOCK (&health->lock);

    health->switching = false;
  }
  if (atomic_load (&health->corrupt))
    mark_corrupt (health);
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

bool
health_why (struct health *health, bool *corrupt, char why[HEALTH_WHY])
{
  LOCK_FOR_BLOCK (&health->why_lock);

  *corrupt = atomic_load (&health->corrupt);
  strcpy (why, health->why);
  return atomic_load (&health->stopped);
}
