/* SPDX-License-Identifier: BSD-3-Clause
 *
 * How does a server end that is a client of its own?
 *
 * The backing file of an image in a directory may be an NBD export of the same server.
 * When a server is told to end, nbdkit waits until all clients have left, but it does not
 * call .close for what they had opened.  So the image stays open, and its connection to
 * this server, a client that never leaves: the server would wait for itself.
 *
 * A thread waits until the server is told to end: nbdkit then ends its sleep.  From that
 * moment on it closes the images' connections to NBD servers, each when no request uses
 * it and what was written through it is flushed.  It does so again and again, because a
 * request that still runs may connect once more.
 *
 * Locks: none.
 */

#include <config.h>

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define NBDKIT_API_VERSION 2
#include <nbdkit-plugin.h>

#include "util/memory.h"
#include "util/report.h"
#include "plugin/hangup.h"

/* With -s the server ends without being told to.  The thread notices after a sleep. */
#define SLEEP_SECONDS 1

#define AGAIN_NS 100000000

struct hangup {
  struct dir *dir;              /* constant */
  pthread_t thread;             /* constant */
  atomic_bool stop;
};

static void *
hang_up_at_end (void *opaque)
{
  struct hangup *h = opaque;
  const struct timespec again = { .tv_nsec = AGAIN_NS };

  while (!h->stop &&
         (nbdkit_nanosleep (SLEEP_SECONDS, 0) == 0 || errno != ESHUTDOWN))
    ;
  while (!h->stop) {
    dir_hang_up (h->dir);
    nanosleep (&again, NULL);
  }
  return NULL;
}

struct hangup *
hangup_start (struct dir *dir)
{
  struct hangup *h = memory_new (1, sizeof *h);
  int err;

  if (h == NULL)
    return NULL;
  h->dir = dir;
  err = pthread_create (&h->thread, NULL, hang_up_at_end, h);
  if (err == 0)
    return h;
  report_error ("pthread_create: %s", strerror (err));
  free (h);
  return NULL;
}

void
hangup_stop (struct hangup *h)
{
  if (h == NULL)
    return;
  h->stop = true;
  pthread_join (h->thread, NULL);
  free (h);
}
