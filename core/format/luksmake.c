/* SPDX-License-Identifier: BSD-3-Clause
 *
 * How is the LUKS header of a new disk created, and a key slot?
 *
 * Specification: "LUKS On-Disk Format Specification", version 1.2.3.  Where it leaves a
 * choice, the header is like QEMU's: AES-256 in mode xts-plain64, SHA-256, eight key
 * slots, of which the first is used.  luks.c explains the parts.
 *
 * A key slot of an existing header uses the cipher and the hash of that.
 *
 * The number of PBKDF2 iterations is measured: as many as take the requested time, by
 * the CPU clock of this thread, so that a busy machine does not create weak keys.  The
 * digest of the key gets an eighth of that time: an attacker who can try keys of 512
 * bits does not need it.  The number is never less than MIN_ITERATIONS, and never more
 * than half of what is accepted in images from others.
 *
 * Random bytes come from OpenSSL; those for keys come from its private generator.
 * Secrets are in one struct, in memory that is wiped before it is freed.
 */

#include <config.h>

#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include <openssl/crypto.h>
#include <openssl/rand.h>

#include "util/bytes.h"
#include "util/cleanup.h"
#include "util/report.h"
#include "format/crypt.h"
#include "format/luks-impl.h"
#include "format/luksmake.h"

#define KEY_BYTES 64
#define CIPHER "aes"
#define MODE "xts-plain64"
#define HASH "sha256"

#define MATERIAL_BYTES (KEY_BYTES * LUKS_STRIPES)
#define MATERIAL_SECTORS 504    /* a multiple of LUKS_HEADER_SECTORS */

#define MIN_ITERATIONS 1000
/* Minimum time to measure. */
#define MEASURE_NS UINT64_C (20000000)

_Static_assert (KEY_BYTES <= LUKS_MAX_KEY, "key");
_Static_assert (MATERIAL_BYTES % CRYPT_SECTOR == 0, "whole sectors");
_Static_assert (MATERIAL_SECTORS * CRYPT_SECTOR >= MATERIAL_BYTES, "room");
_Static_assert (MATERIAL_SECTORS % LUKS_HEADER_SECTORS == 0, "alignment");
_Static_assert (LUKSMAKE_BYTES == (LUKS_HEADER_SECTORS + LUKS_SLOTS *
                                   MATERIAL_SECTORS) * CRYPT_SECTOR, "length");

_Static_assert (LUKS_MAX_KEY * LUKS_STRIPES % CRYPT_SECTOR == 0, "room for sectors");

struct secrets {
  uint8_t key[LUKS_MAX_KEY];
  uint8_t slot_key[LUKS_MAX_KEY];
  uint8_t pieces[LUKS_MAX_KEY * LUKS_STRIPES];
};

/* The state of making a slot. */
struct maker {
  struct luks_tools t;
  struct crypt_spec spec;
  struct secrets *s;
};

static uint64_t
cpu_ns (void)
{
  struct timespec ts;

  clock_gettime (CLOCK_THREAD_CPUTIME_ID, &ts);
  return ts.tv_sec * UINT64_C (1000000000) + ts.tv_nsec;
}

/* Finds the number of iterations for a key that takes MS milliseconds. */
static int
measure (const struct maker *m, unsigned ms, uint64_t *iterations)
{
  static const uint8_t salt[LUKS_SALT_SIZE];
  const uint64_t most = LUKS_UNTRUSTED_ROUNDS / 2 /
    div_up (m->spec.key_bytes, EVP_MD_get_size (m->t.md));
  uint8_t out[LUKS_MAX_KEY];
  uint64_t n, ns = 0;

  for (n = MIN_ITERATIONS; n < most; n *= 2) {
    const uint64_t start = cpu_ns ();

    if (luks_derive (&m->t, "", 0, salt, n, out, m->spec.key_bytes) == -1)
      return -1;
    ns = cpu_ns () - start;
    if (ns >= MEASURE_NS)
      break;
  }
  /* n is at most 2^24.  The clock may not have advanced. */
  *iterations = n * 1000 * ms / max64 (ns / 1000, 1);
  *iterations = min64 (max64 (*iterations, MIN_ITERATIONS), most);
  return 0;
}

/* Spreads the key over 4000 pieces, all of which are needed: all but the last are random,
 * and the last one is chosen so that they yield the key. */
static int
split (const struct maker *m)
{
  struct secrets *const s = m->s;
  const size_t n = m->spec.key_bytes;
  uint8_t *const last = s->pieces + (LUKS_STRIPES - 1) * n;

  errno = 0;
  if (RAND_priv_bytes (s->pieces, (LUKS_STRIPES - 1) * n) != 1)
    return luks_failed (m->t.path, "cannot get random bytes");
  memset (last, 0, n);
  for (unsigned i = 0; i < LUKS_STRIPES - 1; i++) {
    for (unsigned k = 0; k < n; k++)
      last[k] ^= s->pieces[i * n + k];
    if (!luks_diffuse (&m->t, last, n))
      return luks_failed (m->t.path, "cannot split the key");
  }
  for (unsigned k = 0; k < n; k++)
    last[k] ^= s->key[k];
  return 0;
}

/* Makes a version 4 UUID. */
static int
make_uuid (const struct luks_tools *t, char uuid[40])
{
  uint8_t b[16];

  errno = 0;
  if (RAND_bytes (b, sizeof b) != 1)
    return luks_failed (t->path, "cannot get random bytes");
  b[6] = (b[6] & 0x0f) | 0x40;
  b[8] = (b[8] & 0x3f) | 0x80;
  snprintf (uuid, 40, "%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-"
            "%02x%02x%02x%02x%02x%02x", b[0], b[1], b[2], b[3], b[4], b[5], b[6], b[7],
            b[8], b[9], b[10], b[11], b[12], b[13], b[14], b[15]);
  return 0;
}

/* Makes the part of the header that does not depend on secrets. */
static int
make_header (const struct luks_tools *t, uint64_t iterations, struct luks_header *h)
{
  memset (h, 0, sizeof *h);
  memcpy (h->magic, LUKS_MAGIC, sizeof h->magic);
  h->version = put16 (1);
  strcpy (h->cipher, CIPHER);
  strcpy (h->mode, MODE);
  strcpy (h->hash, HASH);
  h->payload_sector = put32 (LUKSMAKE_BYTES / CRYPT_SECTOR);
  h->key_bytes = put32 (KEY_BYTES);
  h->digest_iterations = put32 (max64 (iterations / 8, MIN_ITERATIONS));
  for (unsigned i = 0; i < LUKS_SLOTS; i++) {
    struct luks_slot_header *const slot = &h->slots[i];

    slot->active = put32 (LUKS_SLOT_INACTIVE);
    slot->material_sector = put32 (LUKS_HEADER_SECTORS + i * MATERIAL_SECTORS);
    slot->stripes = put32 (LUKS_STRIPES);
  }
  errno = 0;
  if (RAND_bytes (h->digest_salt, sizeof h->digest_salt) != 1)
    return luks_failed (t->path, "cannot get random bytes");
  return make_uuid (t, h->uuid);
}

/* Encrypts the pieces of the key with the key that the passphrase yields, into OUT, and
 * makes the slot active. */
static int
lock_up (const struct maker *m, uint64_t iterations, const void *passphrase, size_t len,
         struct luks_slot_header *slot, uint8_t *out)
{
  const size_t n = m->spec.key_bytes * LUKS_STRIPES;
  const size_t bytes = round_up (n, CRYPT_SECTOR);
  struct secrets *const s = m->s;
  struct crypt_cipher *cipher;
  int r;

  errno = 0;
  if (RAND_bytes (slot->salt, sizeof slot->salt) != 1)
    return luks_failed (m->t.path, "cannot get random bytes");
  slot->active = put32 (LUKS_SLOT_ACTIVE);
  slot->iterations = put32 (iterations);
  if (luks_derive (&m->t, passphrase, len, slot->salt, iterations, s->slot_key,
                   m->spec.key_bytes) == -1 ||
      split (m) == -1)
    return -1;
  memset (s->pieces + n, 0, bytes - n);
  cipher = crypt_new (m->t.path, &m->spec, s->slot_key);
  if (cipher == NULL)
    return -1;
  r = crypt_encrypt (cipher, 0, s->pieces, out, bytes);
  if (r == -1)
    report_error ("%s: LUKS: cannot encrypt a key slot: %m", m->t.path);
  crypt_free (cipher);
  return r;
}

static int
make (const struct maker *m, const void *passphrase, size_t len, unsigned iter_ms,
      uint8_t *buf)
{
  struct luks_header h;
  uint64_t iterations;

  if (measure (m, iter_ms, &iterations) == -1 ||
      make_header (&m->t, iterations, &h) == -1)
    return -1;
  errno = 0;
  if (RAND_priv_bytes (m->s->key, KEY_BYTES) != 1)
    return luks_failed (m->t.path, "cannot get random bytes");
  memset (buf, 0, LUKSMAKE_BYTES);
  if (luks_derive (&m->t, m->s->key, KEY_BYTES, h.digest_salt,
                   get32 (h.digest_iterations), h.digest, sizeof h.digest) == -1 ||
      lock_up (m, iterations, passphrase, len, &h.slots[0],
               buf + LUKS_HEADER_SECTORS * CRYPT_SECTOR) == -1)
    return -1;
  memcpy (buf, &h, sizeof h);
  return 0;
}

/* Returns 0, or -1 (reported).  The caller calls end in either case. */
static int
begin_luks (struct maker *m, const char *path, const struct crypt_spec *spec,
            const char *hash)
{
  *m = (struct maker) { .spec = *spec, .s = OPENSSL_malloc (sizeof *m->s) };
  if (luks_tools_init (&m->t, path, hash) == -1)
    return -1;
  if (m->s)
    return 0;
  errno = ENOMEM;
  return luks_failed (path, "cannot derive a key");
}

static int
end (struct maker *m, int r)
{
  KEEP_ERRNO_FOR_BLOCK;

  OPENSSL_clear_free (m->s, sizeof *m->s);
  luks_tools_free (&m->t);
  return r;
}

int
luksmake (const char *path, const void *passphrase, size_t len, unsigned iter_ms,
          void *buf)
{
  const struct crypt_spec spec = { CIPHER, MODE, KEY_BYTES };
  struct maker m;
  const int r = begin_luks (&m, path, &spec, HASH);

  return end (&m, r == -1 ? -1 : make (&m, passphrase, len, iter_ms, buf));
}

int
luksmake_slot (const char *path, const struct luks_header *h, const uint8_t *key,
               const void *passphrase, size_t len, unsigned iter_ms,
               struct luks_slot_header *slot, void *material)
{
  const struct crypt_spec spec = { h->cipher, h->mode, get32 (h->key_bytes) };
  struct maker m;
  uint64_t iterations;
  int r = begin_luks (&m, path, &spec, h->hash);

  if (r == 0) {
    memcpy (m.s->key, key, spec.key_bytes);
    r = measure (&m, iter_ms, &iterations);
  }
  return end (&m, r == -1 ? -1
              : lock_up (&m, iterations, passphrase, len, slot, material));
}
