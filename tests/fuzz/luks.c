/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Are arbitrary bytes handled safely as the LUKS header of an image, and as its key
 * material?
 *
 * How it runs: see fuzzing.h.
 */

#include <config.h>

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "format/luks.h"
#include "lib/fuzzing.h"
#include "lib/luks-image.h"

#define PASSPHRASE "open sesame"

struct area {
  const uint8_t *data;
  size_t size;
  uint64_t length;
};

/* What is beyond the end reads as zeros. */
static int
read_area (void *opaque, void *buf, uint64_t offset, size_t bytes)
{
  const struct area *a = opaque;
  const uint64_t there = offset < a->size ? min64 (bytes, a->size - offset) : 0;

  CHECK (offset >= sizeof (struct luks_header));
  CHECK (range_within (offset, bytes, a->length));
  memset (buf, 0, bytes);
  if (there > 0)
    memcpy (buf, a->data + offset, there);
  return 0;
}

/* What holds for every header that is accepted.  True if it is to be tried: some that
 * do not take long. */
static bool
check_accepted (const struct area *a)
{
  struct luks_header h;
  uint64_t rounds;

  CHECK (a->size >= sizeof h);
  memcpy (&h, a->data, sizeof h);
  CHECK (get16 (h.version) == 1);
  CHECK (get32 (h.key_bytes) >= 16 && get32 (h.key_bytes) <= 64);
  CHECK (get32 (h.digest_iterations) >= 1);
  rounds = 0;
  for (int i = 0; i < LUKS_SLOTS; i++) {
    const uint64_t first = get32 (h.slots[i].material_sector);

    CHECK (get32 (h.slots[i].stripes) == LUKS_STRIPES);
    CHECK (first >= 8);
    CHECK (first + luks_image_step (get32 (h.key_bytes)) <=
           get32 (h.payload_sector));
    if (get32 (h.slots[i].active) != LUKS_SLOT_ACTIVE)
      continue;
    CHECK (get32 (h.slots[i].iterations) >= 1);
    rounds += get32 (h.slots[i].iterations) + (uint64_t) get32 (h.digest_iterations);
  }
  CHECK (rounds <= LUKS_MAX_ROUNDS);
  return rounds < 5000 && (h.uuid[0] ^ h.digest[0] ^ h.slots[0].salt[0]) % 16 == 0;
}

int
LLVMFuzzerTestOneInput (const uint8_t *data, size_t size)
{
  const uint64_t lengths[] = { size, 2 << 20, UINT64_MAX };
  uint8_t *copy = fuzz_copy (data, size);

  quiet_errors = true;
  for (int i = 0; i < 3; i++) {
    struct area a = { copy, size, lengths[i] };
    unsigned long before = error_count ();
    struct crypt_cipher *cipher;
    struct luks *l;

    clear_last_error ();
    if (luks_parse ("fuzz", copy, size, lengths[i], &l) == -1) {
      CHECK (errno == EINVAL || errno == ENOTSUP);
      CHECK (error_count () == before + 1);
      fuzz_check_error ();
      continue;
    }
    if (check_accepted (&a) && i == 1) {
      if (luks_unlock (l, read_area, &a, PASSPHRASE, strlen (PASSPHRASE), NULL,
                       &cipher) == 0)
        crypt_free (cipher);
      else
        CHECK (errno == EACCES && error_count () == before + 1);
    }
    luks_free (l);
  }
  quiet_errors = false;
  free (copy);
  return 0;
}

#ifndef FUZZING

/* A few fields, names or bytes, changed. */
static void
damage (struct rng *rng, uint8_t *buf)
{
  static const uint32_t numbers[] = {
    0, 1, 2, 7, 8, 9, 15, 16, 24, 32, 48, 63, 64, 65, 128, 503, 504, 505, 512, 1000,
    3999, 4000, 4001, 4040, 1 << 20, 1 << 25, INT32_MAX, UINT32_MAX - 503, UINT32_MAX,
    LUKS_SLOT_ACTIVE, LUKS_SLOT_INACTIVE,
  };
  static const char *const names[] = {
    "", "aes", "cast5", "serpent", "sm4", "xts-plain64", "cbc-plain", "cbc-essiv:sha256",
    "cbc-essiv:md5", "ctr-plain64", "ecb-", "-", ":", "xts-essiv:", "sha1", "sha512",
    "md5", "ripemd160", "%n%s", "\x1b[2Jno end no end no end no end",
  };
  const size_t nr_numbers = sizeof numbers / sizeof numbers[0];
  const size_t nr_names = sizeof names / sizeof names[0];

  for (uint64_t i = 1 + rng_below (rng, 3); i > 0; i--) {
    const size_t pos = rng_below (rng, sizeof (struct luks_header));
    const char *name = names[rng_below (rng, nr_names)];

    switch (rng_below (rng, 5)) {
    case 0:
      buf[pos] = rng_next (rng);
      break;
    case 1:
      buf[pos] ^= 1 << rng_below (rng, 8);
      break;
    case 2:
      memcpy (buf + 8 + 32 * rng_below (rng, 3), name, strlen (name) + 1);
      break;
    default: {
      const struct be32 x = put32 (numbers[rng_below (rng, nr_numbers)]);

      memcpy (buf + pos / 4 * 4, &x, 4);
    }
    }
  }
}

int
main (int argc, char *argv[])
{
  static const struct luks_image_spec specs[] = {
    { "aes", "xts-plain64", "sha256", 64, PASSPHRASE, 0 },
    { "aes", "cbc-essiv:sha256", "sha1", 32, PASSPHRASE, 6 },
  };
  static uint8_t valid[3 << 20], buf[3 << 20];
  struct rng rng;

  if (fuzz_files (argc, argv, 3 << 20))
    return 0;

  rng_init (&rng, seed_from_env (), 0);
  LLVMFuzzerTestOneInput (valid, 0);
  for (int k = 0; k < 2; k++) {
    const size_t size = luks_image_size (specs[k].key_bytes);
    struct area a = { valid, size, size };
    struct crypt_cipher *cipher;
    struct luks *l;

    luks_image_build (valid, &specs[k], &rng);
    CHECK (luks_parse ("valid", valid, size, size, &l) == 0);
    CHECK (luks_unlock (l, read_area, &a, PASSPHRASE, strlen (PASSPHRASE), NULL,
                        &cipher) == 0);
    crypt_free (cipher);
    luks_free (l);
    for (int i = 0; i < 4000; i++) {
      /* Material matters only to the few that are accepted: a part will do. */
      const size_t n = rng_below (&rng, 8) ? 4096 : rng_below (&rng, 1000);

      memcpy (buf, valid, n);
      buf[offsetof (struct luks_header, uuid)] = rng_next (&rng);
      damage (&rng, buf);
      LLVMFuzzerTestOneInput (buf, n);
    }
  }
  return 0;
}

#endif /* !FUZZING */
