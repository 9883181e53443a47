/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Does a request of encrypted data that finds no memory for the cipher fail with ENOMEM?
 *
 * While another thread uses the cipher, a request needs a copy of it.  ENOMEM means that
 * it may be tried again; EIO would be a fault of the disk.
 */

#include <config.h>

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <unistd.h>

#include "format/crypt.h"
#include "image/guestdata.h"
#include "lib/allocations.h"
#include "lib/images.h"

#define BUSY (16u << 20)
#define FILE_NAME "data"

/* A cipher that another thread uses once, for long. */
struct busy {
  struct crypt_cipher *cipher;
  atomic_bool begun, ended;
};

static void *
use (void *opaque)
{
  struct busy *b = opaque;
  unsigned char *buf;

  shortage_spare (true);
  buf = calloc (1, BUSY);
  CHECK (buf != NULL);
  b->begun = true;
  CHECK (crypt_decrypt (b->cipher, 0, buf, buf, BUSY) == 0);
  b->ended = true;
  free (buf);
  return NULL;
}

static int
request (struct guestdata *p, bool write)
{
  unsigned char buf[512] = { 0 };
  const struct iovec iov = { buf, sizeof buf };

  return write ? guestdata_write (p, &iov, 1, 4096, 4096, false)
    : guestdata_read (p, buf, sizeof buf, 4096, 4096);
}

/* Returns whether the request met the other thread, and so failed. */
static bool
meets (struct storage *file, bool write)
{
  struct busy b = { .cipher = crypt_new_legacy ("test", "secret", 6) };
  struct guestdata *p = guestdata_new (file, b.cipher, GUESTDATA_HOST_SECTORS);
  const unsigned long errors = error_count ();
  pthread_t thread;
  int r, err;

  CHECK (b.cipher != NULL && p != NULL);
  CHECK (request (p, write) == 0);      /* now it needs no memory for anything else */
  CHECK (pthread_create (&thread, NULL, use, &b) == 0);
  while (!b.begun)
    sched_yield ();
  shortage_begin ((struct shortage) { .times = UINT64_MAX });
  do
    r = SHORTAGE_MEETS (request (p, write));
  while (r == 0 && !b.ended);
  err = errno;
  shortage_end ();
  CHECK (pthread_join (thread, NULL) == 0);
  if (r == -1) {
    CHECK (err == ENOMEM && error_count () == errors + 1);
    CHECK (request (p, write) == 0);
  }
  guestdata_free (p);
  crypt_free (b.cipher);
  return r == -1;
}

int
main (void)
{
  const struct storage_options options = { .try_writable = true };
  struct storage *file;
  char *path;
  int fd;

  images_enter ("guestdata-no-memory");
  shortage_spare (true);
  fd = open (FILE_NAME, O_RDWR | O_CREAT, 0600);
  CHECK (fd >= 0 && ftruncate (fd, 65536) == 0);
  close (fd);
  path = images_path (FILE_NAME);
  CHECK (storage_open (path, &options, &file) == 0);
  quiet_errors = true;
  for (int write = 0; write < 2; write++)
    while (!meets (file, write))
      ;
  storage_close (file);
  free (path);
  images_leave ();
  return 0;
}
