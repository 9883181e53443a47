/* SPDX-License-Identifier: BSD-3-Clause
 *
 * How many requests have clients made of each disk, and how long did they take?
 *
 * Each connection counts its own requests, so that those of several do not fight for
 * memory.  When a connection ends, its counts go to its device.  That of an image in a
 * directory is forgotten with its last connection: there may be any number of them.
 *
 * Locks: `lock' guards the lists.  Counters are atomic.
 */

#include <config.h>

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "util/bytes.h"
#include "util/cleanup.h"
#include "util/memory.h"
#include "plugin/iostats.h"

struct device {
  struct device *next;
  struct iostats_client *clients;
  struct iocounts past;         /* of connections that have ended */
  char name[];
};

struct iostats_client {
  struct iostats_client *next;
  struct device *device;
  struct { atomic_uint_fast64_t bytes, operations, failed, ns; } of[IOSTATS_KINDS];
  atomic_uint_fast64_t highest;
};

struct iostats {
  bool forgets;                 /* devices without connections; constant */
  pthread_mutex_t lock;
  struct device *devices;       /* under lock, as are their lists and `past' */
};

struct iostats *
iostats_new (bool forgets)
{
  struct iostats *s = memory_new (1, sizeof *s);

  if (s) {
    s->forgets = forgets;
    pthread_mutex_init (&s->lock, NULL);
  }
  return s;
}

void
iostats_free (struct iostats *s)
{
  struct device *d;

  if (s == NULL)
    return;
  while ((d = s->devices) != NULL) {
    s->devices = d->next;
    free (d);
  }
  pthread_mutex_destroy (&s->lock);
  free (s);
}

/* --- connections --- */

/* Called with the lock held. */
static struct device *
find (struct iostats *s, const char *name)
{
  struct device *d = s->devices;

  while (d && strcmp (d->name, name) != 0)
    d = d->next;
  return d;
}

static struct device *
find_or_add (struct iostats *s, const char *name)
{
  struct device *d = find (s, name);

  if (d || (d = calloc (1, sizeof *d + strlen (name) + 1)) == NULL)
    return d;
  strcpy (d->name, name);
  d->next = s->devices;
  s->devices = d;
  return d;
}

struct iostats_client *
iostats_enter (struct iostats *s, const char *device)
{
  struct iostats_client *c = s ? calloc (1, sizeof *c) : NULL;

  if (c == NULL)
    return NULL;
  LOCK_FOR_BLOCK (&s->lock);
  c->device = find_or_add (s, device);
  if (c->device == NULL) {
    free (c);
    return NULL;
  }
  c->next = c->device->clients;
  c->device->clients = c;
  return c;
}

static void
add (struct iocounts *sum, const struct iostats_client *c)
{
  for (int i = 0; i < IOSTATS_KINDS; i++) {
    sum->of[i].bytes += c->of[i].bytes;
    sum->of[i].operations += c->of[i].operations;
    sum->of[i].failed += c->of[i].failed;
    sum->of[i].ns += c->of[i].ns;
  }
  sum->highest = max64 (sum->highest, c->highest);
}

/* Called with the lock held. */
static void
forget (struct iostats *s, struct device *d)
{
  struct device **link;

  for (link = &s->devices; *link != d; link = &(*link)->next)
    ;
  *link = d->next;
  free (d);
}

void
iostats_leave (struct iostats *s, struct iostats_client *c)
{
  struct device *d;
  struct iostats_client **link;

  if (s == NULL || c == NULL)
    return;
  LOCK_FOR_BLOCK (&s->lock);
  d = c->device;
  add (&d->past, c);
  for (link = &d->clients; *link != c; link = &(*link)->next)
    ;
  *link = c->next;
  free (c);
  if (s->forgets && d->clients == NULL)
    forget (s, d);
}

void
iostats_get (struct iostats *s, const char *device, struct iocounts *sum)
{
  const struct device *d;

  *sum = (struct iocounts) { .highest = 0 };
  if (s == NULL)
    return;
  LOCK_FOR_BLOCK (&s->lock);
  d = find (s, device);
  if (d == NULL)
    return;
  *sum = d->past;
  for (const struct iostats_client *c = d->clients; c; c = c->next)
    add (sum, c);
}

/* --- requests --- */

static int64_t
now (void)
{
  struct timespec ts;

  clock_gettime (CLOCK_MONOTONIC, &ts);
  return ts.tv_sec * INT64_C (1000000000) + ts.tv_nsec;
}

int64_t
iostats_begin (const struct iostats_client *c)
{
  return c ? now () : 0;
}

static void
raise_to (atomic_uint_fast64_t *highest, uint64_t end)
{
  uint_fast64_t before = *highest;

  while (before < end && !atomic_compare_exchange_weak (highest, &before, end))
    ;
}

void
iostats_end (struct iostats_client *c, enum iostats_kind kind, int64_t begun,
             uint64_t offset, uint64_t count, int r)
{
  if (c == NULL)
    return;
  c->of[kind].ns += now () - begun;
  if (r == -1) {
    c->of[kind].failed++;
    return;
  }
  c->of[kind].operations++;
  c->of[kind].bytes += count;
  if (kind == IOSTATS_WRITE)
    raise_to (&c->highest, offset + count);
}
