/* SPDX-License-Identifier: BSD-3-Clause
 *
 * luksmake.c: luks.c accepts a new header, only its passphrase yields the key, no two
 * headers are equal, and no secret remains in freed memory.  To test a passphrase takes
 * longer if that was asked for.  (QEMU judges such headers in serve/create-luks.sh.)
 */

#include <config.h>

#include <errno.h>
#include <string.h>

#include <openssl/rand.h>

#include "format/luks.h"
#include "format/luksmake.h"
#include "lib/wiped.h"

static uint8_t headers[3][LUKSMAKE_BYTES];

/* Private randomness that the test knows, and that must be wiped: for each header first
 * the key, then what it is split into. */
static uint8_t private[4 << 20];
static size_t used;

int
RAND_priv_bytes (unsigned char *buf, int n)
{
  CHECK (used + n <= sizeof private);
  CHECK (RAND_bytes (buf, n) == 1);
  memcpy (private + used, buf, n);
  wiped_watch (private + used, 64);
  used += n;
  return 1;
}

static int
read_header (void *opaque, void *buf, uint64_t offset, size_t bytes)
{
  CHECK (offset + bytes <= LUKSMAKE_BYTES);
  memcpy (buf, (const uint8_t *) opaque + offset, bytes);
  return 0;
}

static int
unlock (uint8_t *header, const char *passphrase, struct crypt_cipher **cipher)
{
  struct luks *l;
  int r, err;

  CHECK (luks_parse ("new", header, LUKSMAKE_BYTES, LUKSMAKE_BYTES, &l) == 0);
  r = luks_unlock (l, read_header, header, passphrase, strlen (passphrase), NULL, cipher);
  err = errno;
  luks_free (l);
  errno = err;
  return r;
}

/* Of the first key slot, for ITER_MS. */
static uint32_t
iterations (unsigned iter_ms)
{
  const uint8_t *const n = headers[0] + 212;

  used = 0;
  CHECK (luksmake ("new", "secret", 6, iter_ms, headers[0]) == 0);
  return (uint32_t) n[0] << 24 | n[1] << 16 | n[2] << 8 | n[3];
}

int
main (void)
{
  static const char passphrase[] = "a passphrase that is looked for";
  const size_t n = strlen (passphrase);
  uint8_t in[512] = { 1, 2, 3 }, out[512], with_key[512];
  const struct crypt_spec spec = { "aes", "xts-plain64", 64 };
  struct crypt_cipher *cipher;

  wiped_start ();
  wiped_watch (passphrase, n);
  for (int i = 0; i < 3; i++) {
    const uint8_t *const key = private + used;

    CHECK (luksmake ("new", passphrase, n, 1, headers[i]) == 0);
    CHECK (memmem (headers[i], LUKSMAKE_BYTES, passphrase, n) == NULL);
    CHECK (memmem (headers[i], LUKSMAKE_BYTES, key, 64) == NULL);
    CHECK (memmem (headers[i], LUKSMAKE_BYTES, key + 64, 64) == NULL);

    CHECK (unlock (headers[i], passphrase, &cipher) == 0);
    CHECK (crypt_encrypt (cipher, 77, in, out, sizeof in) == 0);
    crypt_free (cipher);
    /* It is the key that was drawn. */
    cipher = crypt_new ("new", &spec, key);
    CHECK (cipher && crypt_encrypt (cipher, 77, in, with_key, sizeof in) == 0);
    crypt_free (cipher);
    CHECK (memcmp (out, with_key, sizeof out) == 0);

    quiet_errors = true;
    CHECK (unlock (headers[i], "another", &cipher) == -1 && errno == EACCES);
    CHECK (unlock (headers[i], "", &cipher) == -1 && errno == EACCES);
    quiet_errors = false;
    for (int j = 0; j < i; j++) {
      CHECK (memcmp (headers[i] + 112, headers[j] + 112, 20) != 0);     /* digest */
      CHECK (memcmp (headers[i] + 132, headers[j] + 132, 32) != 0);     /* its salt */
      CHECK (memcmp (headers[i] + 168, headers[j] + 168, 40) != 0);     /* UUID */
      CHECK (memcmp (headers[i] + 216, headers[j] + 216, 32) != 0);     /* slot's salt */
      CHECK (memcmp (headers[i] + 4096, headers[j] + 4096, 4096) != 0); /* material */
    }
  }
  /* The least is 1000; the slowest machine does more in this time. */
  CHECK (iterations (1) >= 1000 && iterations (200) > 1000);
  return 0;
}
