/* SPDX-License-Identifier: BSD-3-Clause
 *
 * How do tests get encrypted disks, and unlock them?
 *
 * qemu-img takes seconds to create a LUKS header.  So it creates one with its defaults,
 * from which tests make others.
 */

#include <config.h>

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "util/bytes.h"
#include "lib/luks-disk.h"

const char passphrase[28] = "the passphrase of this disk";
struct blob luks_template;

void
add_secret (struct command *c, const char *id, const char *data)
{
  command_add (c, "--object");
  command_add (c, "secret,id=%s,data=%s", id, data);
}

bool
log_says (const char *text)
{
  struct blob log;
  bool r;

  blob_load ("log", &log);
  r = log.len > 0 && memmem (log.data, log.len, text, strlen (text)) != NULL;
  if (!r)
    fwrite (log.data, 1, log.len, stderr);
  blob_free (&log);
  return r;
}

bool
luks_disk_create (const char *format, const char *options, const char *secret)
{
  for (int i = 0; i < 100; i++) {
    struct command c = { .n = 0 };

    command_words (&c, "qemu-img create -q -f");
    command_add (&c, "%s", format);
    add_secret (&c, "s", secret);
    command_add (&c, "-o");
    command_add (&c, "%s", options);
    command_add (&c, NAME);
    command_add (&c, "%" PRIu64, DISK_SIZE);
    if (command_run (&c) == 0)
      return true;
    if (log_says ("not supported") || log_says ("Unsupported cipher"))
      return false;
    CHECK (log_says ("Unable to get accurate CPU usage"));
  }
  CHECK (!"qemu-img can make no disk");
  return false;
}

void
luks_disk_begin (void)
{
  CHECK (luks_disk_create ("qcow2", DEFAULTS, passphrase));
  blob_load (NAME, &luks_template);
}

void
luks_disk_load (struct luks_disk *im, bool qcow2)
{
  memset (im, 0, sizeof *im);
  blob_load (NAME, &im->file);
  im->qcow2 = qcow2;
  if (qcow2) {
    CHECK (header_parse (NAME, im->file.data, im->file.len, im->file.len,
                         &im->h) == 0);
    im->luks = im->h.crypto.offset;
    im->length = im->h.crypto.length;
  }
  else {
    const struct luks_header *raw = (const void *) im->file.data;

    im->payload = get32 (raw->payload_sector) * UINT64_C (512);
    im->length = im->payload;
  }
}

void
luks_disk_free (struct luks_disk *im)
{
  header_free (&im->h);
  blob_free (&im->file);
}

int
read_area (void *opaque, void *buf, uint64_t offset, size_t bytes)
{
  const struct luks_disk *im = opaque;

  CHECK (range_within (offset, bytes, im->length));
  CHECK (offset % 512 == 0 && bytes % 512 == 0);
  memcpy (buf, im->file.data + im->luks + offset, bytes);
  return 0;
}

struct crypt_cipher *
unlock (struct luks_disk *im, const char *secret)
{
  struct crypt_cipher *cipher = NULL;
  struct luks *l;
  unsigned long before = error_count ();
  int r, err;

  CHECK (luks_parse (NAME, im->file.data + im->luks, 592, im->length, &l) == 0);
  r = luks_unlock (l, read_area, im, secret, strlen (secret), NULL, &cipher);
  err = errno;
  luks_free (l);
  CHECK ((r == 0) == (cipher != NULL));
  CHECK (error_count () == before + (r == -1));
  errno = err;
  return cipher;
}

void
wrong (struct luks_disk *im, const char *secret)
{
  quiet_errors = true;
  clear_last_error ();
  CHECK (unlock (im, secret) == NULL && errno == EACCES);
  CHECK (strncmp (last_error (), NAME ": LUKS: wrong passphrase", 28) == 0);
  quiet_errors = false;
}
