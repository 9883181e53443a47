/* SPDX-License-Identifier: BSD-3-Clause
 *
 * How is guest data written to a host file and read from it?
 *
 * Specification: "Header" (crypt_method), "Full disk encryption header pointer".
 *
 * Plain data takes one system call.  Encrypted data goes through a cipher, which works
 * on sectors of 512 bytes: writes go through a bounce buffer, and if a request is not
 * aligned, the sectors at its ends are read, changed and written.
 *
 * Requests that share a sector but no byte must not disturb each other.  A write claims
 * its sectors, so that no two writes change the same old copy.  A read claims them,
 * shared: with some ciphers a sector of which one half is old and the other one new
 * would decrypt to garbage, even in bytes that do not change.
 *
 * A LUKS sector depends on its place in the file, so clusters that move (copy-on-write)
 * are encrypted again.  This happens when a plain copy is written here.
 *
 * Locks: the claims, taken after those on guest clusters (rangelock.c); `lock'
 * guards the list of bounce buffers.
 */

#include <config.h>

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "util/bytes.h"
#include "util/cleanup.h"
#include "util/rangelock.h"
#include "util/memory.h"
#include "util/report.h"
#include "image/guestdata.h"

#define BOUNCE_SIZE (256u << 10)
#define MAX_SPARE 16            /* bounce buffers kept for later */

struct bounce {
  struct bounce *next;
  char data[BOUNCE_SIZE];
};

struct guestdata {
  struct storage *file;
  struct crypt_cipher *cipher;  /* NULL: plain data */
  enum guestdata_sectors sectors;
  struct rangelock *claims;     /* of sectors of the file; only with a cipher */

  pthread_mutex_t lock;
  struct bounce *spare;         /* guarded by lock */
  unsigned nr_spare;            /* guarded by lock */
};

struct guestdata *
guestdata_new (struct storage *file, struct crypt_cipher *cipher,
               enum guestdata_sectors sectors)
{
  struct guestdata *p = memory_new (1, sizeof *p);

  if (p == NULL)
    return NULL;
  p->file = file;
  p->sectors = sectors;
  if (cipher) {
    p->claims = rangelock_new ();
    if (p->claims == NULL) {
      free (p);
      return NULL;
    }
  }
  p->cipher = cipher;
  pthread_mutex_init (&p->lock, NULL);
  return p;
}

void
guestdata_free (struct guestdata *p)
{
  struct bounce *b;

  if (p == NULL)
    return;
  while ((b = p->spare) != NULL) {
    p->spare = b->next;
    free (b);
  }
  rangelock_free (p->claims);
  pthread_mutex_destroy (&p->lock);
  free (p);
}

bool
guestdata_is_encrypted (const struct guestdata *p)
{
  return p->cipher != NULL;
}

struct storage *
guestdata_remote_file (const struct guestdata *p)
{
  return p->cipher == NULL && storage_is_remote (p->file) ? p->file : NULL;
}

/* --- bounce buffers --- */

static struct bounce *
get_bounce (struct guestdata *p)
{
  struct bounce *b;

  {
    LOCK_FOR_BLOCK (&p->lock);
    b = p->spare;
    if (b) {
      p->spare = b->next;
      p->nr_spare--;
      return b;
    }
  }
  return memory_get (sizeof *b);
}

static void
put_bounce (struct guestdata *p, struct bounce *b)
{
  {
    LOCK_FOR_BLOCK (&p->lock);
    if (p->nr_spare < MAX_SPARE) {
      b->next = p->spare;
      p->spare = b;
      p->nr_spare++;
      return;
    }
  }
  free (b);
}

/* --- through the cipher: HOST, GUEST and COUNT are multiples of 512 --- */

static int
fault (struct guestdata *p, const char *what, uint64_t count, uint64_t host)
{
  KEEP_ERRNO_FOR_BLOCK;

  report_error ("%s: cannot %s %" PRIu64 " bytes at offset %" PRIu64 ": %m",
                storage_path (p->file), what, count, host);
  return -1;
}

static uint64_t
sector_number (const struct guestdata *p, uint64_t host, uint64_t guest)
{
  return (p->sectors == GUESTDATA_HOST_SECTORS ? host : guest) / CRYPT_SECTOR;
}

static int
read_sectors (struct guestdata *p, void *buf, uint64_t count, uint64_t host,
              uint64_t guest)
{
  if (storage_read (p->file, buf, count, host) == -1)
    return -1;
  if (crypt_decrypt (p->cipher, sector_number (p, host, guest),
                     buf, buf, count) == -1)
    return fault (p, "decrypt", count, host);
  return 0;
}

static int
write_sectors (struct guestdata *p, void *buf, uint64_t count, uint64_t host,
               uint64_t guest, enum storage_writing how)
{
  const struct iovec iov = { .iov_base = buf, .iov_len = count };

  if (crypt_encrypt (p->cipher, sector_number (p, host, guest),
                     buf, buf, count) == -1)
    return fault (p, "encrypt", count, host);
  return storage_writev (p->file, &iov, 1, host, how);
}

/* --- any alignment --- */

static int
read_encrypted (struct guestdata *p, char *buf, uint64_t count, uint64_t host,
                uint64_t guest)
{
  struct bounce *b;
  uint64_t skip, n;
  int r = 0;

  if (host % CRYPT_SECTOR == 0 && count % CRYPT_SECTOR == 0)
    return read_sectors (p, buf, count, host, guest);

  b = get_bounce (p);
  if (b == NULL)
    return -1;
  for (; r == 0 && count > 0; buf += n, count -= n, host += n, guest += n) {
    skip = host % CRYPT_SECTOR;
    n = min64 (count, BOUNCE_SIZE - skip);
    r = read_sectors (p, b->data, round_up (skip + n, CRYPT_SECTOR),
                      host - skip, guest - skip);
    if (r == 0)
      memcpy (buf, b->data + skip, n);
  }
  put_bounce (p, b);
  return r;
}

int
guestdata_read (struct guestdata *p, void *buf, uint64_t count, uint64_t host,
                uint64_t guest)
{
  struct rangelock_claim claim;
  int r;

  if (p->cipher == NULL)
    return storage_read (p->file, buf, count, host);
  if (count == 0)
    return 0;
  rangelock_claim_shared (p->claims, &claim, host / CRYPT_SECTOR,
                          (host + count - 1) / CRYPT_SECTOR);
  r = read_encrypted (p, buf, count, host, guest);
  rangelock_release (p->claims, &claim);
  return r;
}

/* Copies N bytes from the iov, starting at *ELEMENT and *DONE, and advances these. */
static void
gather (char *to, uint64_t n, const struct iovec *iov, int *element,
        size_t *done)
{
  while (n > 0) {
    const size_t len = min64 (n, iov[*element].iov_len - *done);

    memcpy (to, (const char *) iov[*element].iov_base + *done, len);
    to += len;
    n -= len;
    *done += len;
    if (*done == iov[*element].iov_len) {
      ++*element;
      *done = 0;
    }
  }
}

/* Fills the ends of a bounce buffer, in which [skip, skip+n) will be written, with the
 * old contents of the sectors. */
static int
read_edges (struct guestdata *p, struct bounce *b, uint64_t skip, uint64_t n,
            uint64_t host, uint64_t guest)
{
  const uint64_t end = skip + n;
  const uint64_t last = round_down (end - 1, CRYPT_SECTOR);
  const bool cut_end = end % CRYPT_SECTOR != 0;

  if (skip > 0 &&
      read_sectors (p, b->data, CRYPT_SECTOR, host - skip, guest - skip) == -1)
    return -1;
  if (cut_end && !(skip > 0 && last == 0) &&
      read_sectors (p, b->data + last, CRYPT_SECTOR, host - skip + last,
                    guest - skip + last) == -1)
    return -1;
  return 0;
}

static int
write_encrypted (struct guestdata *p, const struct iovec *iov, uint64_t count,
                 uint64_t host, uint64_t guest, enum storage_writing how)
{
  struct bounce *b = get_bounce (p);
  uint64_t skip, n;
  size_t done = 0;
  int element = 0, r = 0;

  if (b == NULL)
    return -1;
  for (; r == 0 && count > 0; count -= n, host += n, guest += n) {
    skip = host % CRYPT_SECTOR;
    n = min64 (count, BOUNCE_SIZE - skip);
    r = read_edges (p, b, skip, n, host, guest);
    if (r == 0) {
      gather (b->data + skip, n, iov, &element, &done);
      r = write_sectors (p, b->data, round_up (skip + n, CRYPT_SECTOR),
                         host - skip, guest - skip, how);
    }
  }
  put_bounce (p, b);
  return r;
}

int
guestdata_write (struct guestdata *p, const struct iovec *iov, int niov,
                 uint64_t host, uint64_t guest, enum storage_writing how)
{
  struct rangelock_claim claim;
  uint64_t count = 0;
  int r;

  if (p->cipher == NULL)
    return storage_writev (p->file, iov, niov, host, how);
  for (int i = 0; i < niov; i++)
    count += iov[i].iov_len;
  if (count == 0)
    return 0;
  rangelock_claim (p->claims, &claim, host / CRYPT_SECTOR,
                   (host + count - 1) / CRYPT_SECTOR);
  r = write_encrypted (p, iov, count, host, guest, how);
  rangelock_release (p->claims, &claim);
  return r;
}
