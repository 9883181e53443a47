/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What does the passphrase unlock?
 *
 * Specification: "Full disk encryption header pointer".
 *
 * The older AES method uses it as the key itself.  With LUKS it is tested on each key
 * slot of a header in the image.  The program that made the header chose how long this
 * takes, so there is a limit.
 *
 * A secret is what the user gives; what it unlocks is a cipher (crypt).  Images of a
 * chain can have passphrases of their own.  There is no name for an image that is known
 * before the chain is opened, so the order of passphrases is that of the encrypted images
 * from the top.
 *
 * Locks: none.
 */

#include <config.h>

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "util/remedy.h"
#include "util/report.h"
#include "format/format.h"
#include "format/luks.h"
#include "image/secret.h"

/* The place of a LUKS header. */
struct luks_place {
  struct storage *file;
  uint64_t offset;
};

static int
read_luks (void *opaque, void *buf, uint64_t offset, size_t bytes)
{
  const struct luks_place *place = opaque;

  return storage_read (place->file, buf, bytes, place->offset + offset);
}

/* Refuses a header that would take too long: the program that made it chose how long
 * testing a passphrase takes. */
static int
check_rounds (const char *path, const struct luks *luks,
              const struct image_secret *secret)
{
  if (secret->most_rounds == 0 || luks_rounds (luks) <= secret->most_rounds)
    return 0;
  return report_refusal (EPERM, "%s: LUKS header: testing a passphrase on its key slots "
                         "takes %" PRIu64 " rounds of hashing, and an untrusted image "
                         "may need no more than %" PRIu64, path, luks_rounds (luks),
                         secret->most_rounds);
}

static int
unlock_luks (const struct image_secret *secret, struct storage *file,
             const struct header *h, struct crypt_cipher **cipher)
{
  struct luks_place place = { file, h->crypto.offset };
  struct luks_header raw;
  struct luks *luks;
  int r;

  if (storage_read (file, &raw, sizeof raw, h->crypto.offset) == -1 ||
      luks_parse (storage_path (file), &raw, sizeof raw, h->crypto.length,
                  &luks) == -1)
    return -1;
  r = check_rounds (storage_path (file), luks, secret);
  if (r == 0)
    r = luks_unlock (luks, read_luks, &place, secret->passphrase, secret->len,
                     secret->inherited ? remedy (REMEDY_PASSPHRASE_BELOW) : NULL, cipher);
  luks_free (luks);
  return r;
}

int
secret_unlock (const struct image_secret *secret, struct storage *file,
               const struct header *h, struct crypt_cipher **cipher)
{
  *cipher = NULL;
  if (h->crypt_method == QCOW2_CRYPT_NONE || secret->unneeded)
    return 0;
  if (secret->passphrase == NULL)
    return report_refusal (EACCES, "%s: the image is encrypted: %s", storage_path (file),
                           remedy (REMEDY_PASSPHRASE));
  if (h->crypt_method == QCOW2_CRYPT_LUKS)
    return unlock_luks (secret, file, h, cipher);
  *cipher = crypt_new_legacy (storage_path (file), secret->passphrase,
                              secret->len);
  return *cipher ? 0 : -1;
}

struct image_secret
secret_below (const struct image_secret *secret, const struct header *h)
{
  struct image_secret r = *secret;

  if (h == NULL || h->crypt_method == QCOW2_CRYPT_NONE)
    return r;
  r.inherited = r.nr_more == 0;
  if (r.nr_more > 0) {
    r.passphrase = *r.more++;
    r.len = strlen (r.passphrase);
    r.nr_more--;
  }
  return r;
}
