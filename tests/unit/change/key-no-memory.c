/* SPDX-License-Identifier: BSD-3-Clause
 *
 * While a passphrase is added, memory runs out at a cipher or at a copy of the LUKS
 * header: the change fails with ENOMEM, only the old passphrase opens the image, unless
 * the new one was added already, and the same change succeeds the next time.
 *
 * (crash/keys lets some other allocations fail.  OpenSSL makes thousands, and not always
 * the same number.)
 */

#include <config.h>

#include <errno.h>
#include <limits.h>
#include <string.h>

#include "util/report.h"
#include "format/crypt.h"
#include "format/luks.h"
#include "lib/changes.h"
#include "lib/encrypted.h"
#include "lib/images.h"

#define IMAGE "keys.qcow2"

static unsigned countdown = UINT_MAX;   /* of calls; 0: the next one fails */
static bool failed;                     /* one has */

static bool
fails (void)
{
  if (countdown-- > 0)
    return false;
  failed = true;
  errno = ENOMEM;
  report_error ("no memory: %m");
  return true;
}

/* The linker has the core call these (Makefile.am). */
extern struct crypt_cipher *__real_crypt_new (const char *, const struct crypt_spec *,
                                              const void *);
extern struct crypt_cipher *__wrap_crypt_new (const char *, const struct crypt_spec *,
                                              const void *);
extern int __real_luks_parse (const char *, const void *, size_t, uint64_t,
                              struct luks **);
extern int __wrap_luks_parse (const char *, const void *, size_t, uint64_t,
                              struct luks **);

struct crypt_cipher *
__wrap_crypt_new (const char *path, const struct crypt_spec *spec, const void *key)
{
  return fails () ? NULL : __real_crypt_new (path, spec, key);
}

int
__wrap_luks_parse (const char *path, const void *buf, size_t n, uint64_t bytes,
                   struct luks **luks)
{
  return fails () ? -1 : __real_luks_parse (path, buf, n, bytes, luks);
}

int
main (void)
{
  const struct image_spec spec = {
    .version = 3, .cluster_size = 4096, .refcount_bits = 16, .size = 1 << 20,
    .encrypt = "luks",
  };
  const struct keyedit add = { .add = "second", KEYEDIT_NONE, .iter_ms = 1 };
  struct disk_options options;
  struct blob file, now;
  unsigned k, untouched = 0;
  int r;

  images_enter ("key-no-memory");
  image_create (IMAGE, &spec);
  blob_load (IMAGE, &file);
  options = (struct disk_options) {
    .path = images_path (IMAGE), .l2_cache = 1 << 20, .l2_slice = 4096,
    .hooks = &without_sync,
    .secret = { .passphrase = IMAGES_SECRET, .len = strlen (IMAGES_SECRET) },
  };
  quiet_errors = true;
  for (k = 0; ; k++) {
    blob_save (IMAGE, &file);
    countdown = k;
    failed = false;
    r = change_keys (&options, &add);
    CHECK (failed == (r == -1));
    if (r == 0)
      break;
    CHECK (errno == ENOMEM);
    countdown = UINT_MAX;
    blob_load (IMAGE, &now);
    untouched += blob_same (&now, &file);
    CHECK (blob_same (&now, &file) || encrypted_opens (&options, "second"));
    blob_free (&now);
    CHECK (encrypted_opens (&options, IMAGES_SECRET));
    CHECK (change_keys (&options, &add) == 0);
    CHECK (encrypted_opens (&options, IMAGES_SECRET) &&
           encrypted_opens (&options, "second"));
  }
  quiet_errors = false;
  printf ("%u calls failed, %u of them before anything was written\n", k, untouched);
  CHECK (k > 4 && untouched > 0);
  countdown = UINT_MAX;
  CHECK (encrypted_opens (&options, IMAGES_SECRET) &&
         encrypted_opens (&options, "second"));
  CHECK (image_check (IMAGE) == 0);
  blob_free (&file);
  free ((char *) options.path);
  images_leave ();
  return 0;
}
