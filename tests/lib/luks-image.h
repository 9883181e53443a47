/* SPDX-License-Identifier: BSD-3-Clause
 *
 * LUKS headers with all their parts, for tests.  qemu-img can create them, too, but takes
 * seconds for each, because it measures how fast the machine is.
 */

#ifndef TEST_LUKS_IMAGE_H
#define TEST_LUKS_IMAGE_H

#include <stdint.h>
#include <string.h>

#include <openssl/evp.h>

#include "util/bytes.h"
#include "format/crypt.h"
#include "format/luks.h"
#include "lib/stubs.h"

struct luks_image_spec {
  const char *cipher, *mode, *hash;
  size_t key_bytes;
  const char *passphrase;
  unsigned slot;                /* of the passphrase */
};

/* The number of sectors from the key material of one slot to that of the next. */
static inline uint32_t
luks_image_step (size_t key_bytes)
{
  return round_up (div_up (key_bytes * LUKS_STRIPES, 512), 8);
}

/* The size of the result in bytes. */
static inline size_t
luks_image_size (size_t key_bytes)
{
  return (8 + LUKS_SLOTS * luks_image_step (key_bytes)) * 512;
}

static inline void
luks_image_random (struct rng *rng, void *p, size_t n)
{
  for (size_t i = 0; i < n; i++)
    ((uint8_t *) p)[i] = rng_next (rng) >> 32;
}

/* The anti-forensic information splitter of the specification: MATERIAL is stripes of
 * random bytes, except the last one, which together with all others yields the key. */
static inline void
luks_image_split (const EVP_MD *md, const uint8_t *key, size_t key_bytes,
                  uint8_t *material, struct rng *rng)
{
  const size_t step = EVP_MD_get_size (md);
  uint8_t acc[64] = { 0 }, in[4 + EVP_MAX_MD_SIZE], out[EVP_MAX_MD_SIZE];
  const size_t last = (LUKS_STRIPES - 1) * key_bytes;

  luks_image_random (rng, material, last);
  for (size_t at = 0; at < last; at += key_bytes) {
    for (size_t k = 0; k < key_bytes; k++)
      acc[k] ^= material[at + k];
    for (size_t k = 0; k * step < key_bytes; k++) {
      const struct be32 number = put32 (k);
      const size_t n = min64 (step, key_bytes - k * step);

      memcpy (in, &number, 4);
      memcpy (in + 4, acc + k * step, n);
      CHECK (EVP_Digest (in, 4 + n, out, NULL, md, NULL));
      memcpy (acc + k * step, out, n);
    }
  }
  for (size_t k = 0; k < key_bytes; k++)
    material[last + k] = acc[k] ^ key[k];
}

/* Writes luks_image_size () bytes to AREA.  The key of the disk is random. */
static inline void
luks_image_build (uint8_t *area, const struct luks_image_spec *s, struct rng *rng)
{
  const uint32_t step = luks_image_step (s->key_bytes);
  const struct crypt_spec spec = { s->cipher, s->mode, s->key_bytes };
  const EVP_MD *md = EVP_get_digestbyname (s->hash);
  struct luks_slot_header *slot;
  struct luks_header h = {
    .magic = { 'L', 'U', 'K', 'S', 0xba, 0xbe },
    .version = put16 (1),
    .payload_sector = put32 (8 + LUKS_SLOTS * step),
    .key_bytes = put32 (s->key_bytes),
    .digest_iterations = put32 (1000 + rng_below (rng, 100)),
  };
  uint8_t key[64], slot_key[64], *material;
  struct crypt_cipher *cipher;

  CHECK (md != NULL && s->key_bytes <= sizeof key && s->slot < LUKS_SLOTS);
  luks_image_random (rng, area, luks_image_size (s->key_bytes));
  luks_image_random (rng, key, sizeof key);
  strcpy (h.cipher, s->cipher);
  strcpy (h.mode, s->mode);
  strcpy (h.hash, s->hash);
  strcpy (h.uuid, "6f1c6d4e-6e0b-4d7c-9a51-1f0e7b1c2d3e");
  luks_image_random (rng, h.digest_salt, sizeof h.digest_salt);
  CHECK (PKCS5_PBKDF2_HMAC ((char *) key, s->key_bytes, h.digest_salt,
                            LUKS_SALT_SIZE, get32 (h.digest_iterations), md,
                            LUKS_DIGEST_SIZE, h.digest));
  for (unsigned i = 0; i < LUKS_SLOTS; i++) {
    h.slots[i].active = put32 (LUKS_SLOT_INACTIVE);
    h.slots[i].material_sector = put32 (8 + i * step);
    h.slots[i].stripes = put32 (LUKS_STRIPES);
  }
  slot = &h.slots[s->slot];
  slot->active = put32 (LUKS_SLOT_ACTIVE);
  slot->iterations = put32 (1000 + rng_below (rng, 100));
  luks_image_random (rng, slot->salt, sizeof slot->salt);
  CHECK (PKCS5_PBKDF2_HMAC (s->passphrase, strlen (s->passphrase), slot->salt,
                            LUKS_SALT_SIZE, get32 (slot->iterations), md,
                            s->key_bytes, slot_key));

  material = area + get32 (slot->material_sector) * 512;
  luks_image_split (md, key, s->key_bytes, material, rng);
  cipher = crypt_new ("luks-image", &spec, slot_key);
  CHECK (cipher != NULL);
  CHECK (crypt_encrypt (cipher, 0, material, material,
                        round_up (s->key_bytes * LUKS_STRIPES, 512)) == 0);
  crypt_free (cipher);
  memcpy (area, &h, sizeof h);
}

#endif /* TEST_LUKS_IMAGE_H */
