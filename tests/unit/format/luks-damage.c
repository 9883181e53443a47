/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Damaged LUKS headers and keys: every field gets wrong values, and the results are
 * compared with those of qemu-img; and faults that only unlocking can detect.
 */

#include <config.h>

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "util/bytes.h"
#include "lib/luks-disk.h"

#define FIELD(name) offsetof (struct luks_header, name)
#define SLOT(i, name) (FIELD (slots[i]) + offsetof (struct luks_slot_header, name))
/* No NUL within 32 bytes. */
#define ENDLESS "aesaesaesaesaesaesaesaesaesaesaes"

/* Of a header made with the defaults: slots of 504 sectors from sector 8 on, the first
 * active, payload at sector 4040. */
static const struct damage {
  size_t offset;
  const char *text;             /* or NULL, and */
  uint32_t value;
  char verdict;                 /* what QEMU and we do: 'y'es, 'n'o; 'q': QEMU only */
} damages[] = {
  { FIELD (magic), "LUKS\xba\xbf", 0, 'n' },
  { FIELD (magic), "SKUL\xba\xbe", 0, 'n' },
  { FIELD (magic), "luks", 0, 'n' },
  { FIELD (version), "\0", 0, 'n' },            /* with the NUL: two bytes */
  { FIELD (version), "\0\2", 0, 'n' },
  { FIELD (version), "\1\1", 0, 'n' },
  { FIELD (cipher), "", 0, 'n' },
  { FIELD (cipher), "AES", 0, 'n' },
  { FIELD (cipher), "aesx", 0, 'n' },
  { FIELD (cipher), "a\x1b[2J", 0, 'n' },
  { FIELD (cipher), "serpent", 0, 'q' },
  { FIELD (cipher), "twofish", 0, 'q' },
  { FIELD (cipher), "cast5", 0, 'n' },
  { FIELD (cipher), ENDLESS, 0, 'n' },
  { FIELD (mode), "", 0, 'n' },
  { FIELD (mode), "xts", 0, 'n' },
  { FIELD (mode), "xts-", 0, 'n' },
  { FIELD (mode), "-plain64", 0, 'n' },
  { FIELD (mode), "xts-plain", 0, 'y' },
  { FIELD (mode), "xts-plain6", 0, 'n' },
  { FIELD (mode), "xts-plain64:sha1", 0, 'y' },
  { FIELD (mode), "xts-plain64:", 0, 'n' },
  { FIELD (mode), "xts-plain64:what", 0, 'n' },
  { FIELD (mode), "xts-essiv", 0, 'n' },
  { FIELD (mode), "xts-essiv:sha256", 0, 'y' },
  { FIELD (mode), "xts-essiv:sha1", 0, 'n' },
  { FIELD (mode), "cbc-plain64", 0, 'n' },      /* no AES has 64 bytes */
  { FIELD (mode), "cfb-plain64", 0, 'n' },
  { FIELD (mode), ENDLESS, 0, 'n' },
  { FIELD (hash), "", 0, 'n' },
  { FIELD (hash), "SHA256", 0, 'n' },
  { FIELD (hash), "sha1", 0, 'y' },
  { FIELD (hash), "sha3-256", 0, 'n' },
  { FIELD (hash), ENDLESS, 0, 'n' },
  { FIELD (payload_sector), NULL, 0, 'n' },
  { FIELD (payload_sector), NULL, 7, 'n' },
  { FIELD (payload_sector), NULL, 8, 'n' },
  { FIELD (payload_sector), NULL, 4039, 'n' },
  { FIELD (payload_sector), NULL, 4041, 'y' },
  { FIELD (payload_sector), NULL, UINT32_MAX, 'y' },
  { FIELD (key_bytes), NULL, 0, 'n' },
  { FIELD (key_bytes), NULL, 16, 'n' },
  { FIELD (key_bytes), NULL, 32, 'y' },
  { FIELD (key_bytes), NULL, 48, 'y' },
  { FIELD (key_bytes), NULL, 63, 'n' },
  { FIELD (key_bytes), NULL, 65, 'n' },
  { FIELD (key_bytes), NULL, 128, 'n' },
  { FIELD (key_bytes), NULL, UINT32_MAX, 'n' },
  { FIELD (digest_iterations), NULL, 0, 'n' },
  { FIELD (digest_iterations), NULL, 1, 'y' },
  { FIELD (digest_iterations), NULL, (uint32_t) LUKS_MAX_ROUNDS / 2, 'y' },
  { FIELD (digest_iterations), NULL, (uint32_t) LUKS_MAX_ROUNDS + 1, 'q' },
  { FIELD (digest_iterations), NULL, UINT32_MAX, 'q' },
  { FIELD (uuid), ENDLESS, 0, 'y' },
  { SLOT (0, active), NULL, 0, 'n' },
  { SLOT (0, active), NULL, LUKS_SLOT_INACTIVE, 'y' },
  { SLOT (7, active), NULL, 0xdeae, 'n' },
  { SLOT (0, iterations), NULL, 0, 'n' },
  { SLOT (0, iterations), NULL, 1, 'y' },
  { SLOT (0, iterations), NULL, (uint32_t) LUKS_MAX_ROUNDS / 4, 'y' },
  { SLOT (0, iterations), NULL, (uint32_t) LUKS_MAX_ROUNDS / 2 + 1, 'q' },
  { SLOT (0, iterations), NULL, INT32_MAX, 'q' },
  { SLOT (1, iterations), NULL, UINT32_MAX, 'y' },      /* inactive */
  { SLOT (0, stripes), NULL, 0, 'n' },
  { SLOT (0, stripes), NULL, 3999, 'n' },
  { SLOT (7, stripes), NULL, 4001, 'n' },
  { SLOT (7, stripes), NULL, UINT32_MAX, 'n' },
  { SLOT (0, material_sector), NULL, 0, 'n' },
  { SLOT (0, material_sector), NULL, 7, 'n' },
  { SLOT (0, material_sector), NULL, 9, 'n' },          /* into the next */
  { SLOT (3, material_sector), NULL, 8, 'n' },
  { SLOT (7, material_sector), NULL, 3535, 'n' },       /* into the one before */
  { SLOT (7, material_sector), NULL, 3537, 'n' },       /* into the payload */
  { SLOT (7, material_sector), NULL, 4040, 'n' },
  /* QEMU's sum of 32 bits begins at 0 again. */
  { SLOT (7, material_sector), NULL, UINT32_MAX - 503, 'q' },
  { SLOT (7, material_sector), NULL, UINT32_MAX, 'q' },
};

/* One line, that can be printed. */
static void
check_message (void)
{
  const char *s = last_error ();

  CHECK (strncmp (s, NAME ": ", strlen (NAME) + 2) == 0);
  for (; *s; s++)
    CHECK (*s >= 0x20 && *s < 0x7f);
}

static bool
accepted (const uint8_t *buf, size_t len, uint64_t length)
{
  /* Exactly as long as it is: a look beyond its end is seen. */
  uint8_t *copy = malloc (len + 1);
  struct luks *l;
  bool ok;

  CHECK (copy != NULL);
  memcpy (copy, buf, len);
  quiet_errors = true;
  clear_last_error ();
  ok = luks_parse (NAME, copy, len, length, &l) == 0;
  quiet_errors = false;
  if (ok)
    luks_free (l);
  else {
    CHECK (errno == EINVAL || errno == ENOTSUP);
    check_message ();
  }
  free (copy);
  return ok;
}

static bool
qemu_accepts (void)
{
  struct command c = { .n = 0 };

  command_words (&c, "qemu-img info -f qcow2");
  command_add (&c, NAME);
  return command_run (&c) == 0;
}

static void
test_damages (void)
{
  struct luks_disk im;
  uint8_t good[592], *area;

  blob_save (NAME, &luks_template);
  luks_disk_load (&im, true);
  area = im.file.data + im.luks;
  memcpy (good, area, sizeof good);
  CHECK (accepted (good, 592, im.length));

  for (size_t i = 0; i < sizeof damages / sizeof damages[0]; i++) {
    const struct damage *d = &damages[i];
    const struct be32 value = put32 (d->value);
    bool ours, qemus;

    if (d->offset == FIELD (version))
      memcpy (area + d->offset, d->text, 2);
    else if (d->text)           /* as much as there is of an endless one */
      memcpy (area + d->offset, d->text, strlen (d->text) +
              (d->offset != FIELD (magic) && strlen (d->text) < 32));
    else
      memcpy (area + d->offset, &value, sizeof value);
    if (d->text && strcmp (d->text, ENDLESS) == 0)
      area[d->offset + 32] = good[d->offset + 32];
    ours = accepted (area, 592, im.length);
    blob_save (NAME, &im.file);
    qemus = qemu_accepts ();
    if (ours != (d->verdict == 'y') || qemus != (d->verdict != 'n')) {
      fprintf (stderr, "offset %zu, %s %" PRIu32 ": we say %d, QEMU says %d\n",
               d->offset, d->text ? d->text : "", d->value, ours, qemus);
      CHECK (!"verdict");
    }
    memcpy (area, good, sizeof good);
  }

  /* Slots are counted together, each with the digest of what it yields. */
  for (uint32_t more = 0; more < 2; more++) {
    const uint64_t digest = LUKS_MAX_ROUNDS / 16 + more;

    for (unsigned i = 0; i < LUKS_SLOTS; i++) {
      const struct be32 active = put32 (LUKS_SLOT_ACTIVE);
      const struct be32 iterations = put32 (LUKS_MAX_ROUNDS / 32);
      const struct be32 digests = put32 (digest);

      memcpy (area + SLOT (i, active), &active, 4);
      memcpy (area + SLOT (i, iterations), &iterations, 4);
      memcpy (area + FIELD (digest_iterations), &digests, 4);
    }
    CHECK (accepted (area, 592, im.length) == !more);
    if (!more) {
      struct luks *l;

      CHECK (luks_parse (NAME, area, 592, im.length, &l) == 0);
      CHECK (luks_rounds (l) == LUKS_MAX_ROUNDS);
      luks_free (l);
    }
    memcpy (area, good, sizeof good);
  }

  /* Too little of it, or of the room for it. */
  for (size_t n = 0; n < 592; n++) {
    CHECK (!accepted (good, n, im.length));
    CHECK (!accepted (good, 592, n));
  }
  /* Slot 0 in use: 500 sectors from sector 8 on. */
  CHECK (!accepted (good, 592, 508 * 512 - 1));
  CHECK (accepted (good, 592, 508 * 512));
  luks_disk_free (&im);
}

static int
read_fails (void *opaque, void *buf, uint64_t offset, size_t bytes)
{
  (void) opaque, (void) buf, (void) offset, (void) bytes;
  errno = EIO;
  return -1;
}

/* Damage that only unlocking can see. */
static void
test_damaged_keys (struct rng *rng)
{
  struct luks_disk im;
  struct crypt_cipher *cipher;
  struct luks *l;
  uint8_t *area;

  blob_save (NAME, &luks_template);
  luks_disk_load (&im, true);
  area = im.file.data + im.luks;
  for (int i = 0; i < 12; i++) {
    const size_t at = i < 2 ? FIELD (digest) + rng_below (rng, 20)
      : i < 4 ? FIELD (digest_salt) + rng_below (rng, 32)
      : i < 6 ? SLOT (0, salt) + rng_below (rng, 32)
      : i == 6 ? 8 * 512u : i == 7 ? 508 * 512u - 1
      : 8 * 512 + rng_below (rng, 500 * 512);

    area[at] ^= 0x10;
    wrong (&im, passphrase);
    area[at] ^= 0x10;
  }
  /* The sectors behind the material are none of it. */
  area[508 * 512] ^= 1;
  cipher = unlock (&im, passphrase);
  CHECK (cipher != NULL);
  crypt_free (cipher);

  quiet_errors = true;
  CHECK (luks_parse (NAME, area, 592, im.length, &l) == 0);
  errno = 0;
  clear_last_error ();
  CHECK (luks_unlock (l, read_fails, NULL, "x", 1, NULL, &cipher) == -1);
  CHECK (errno == EIO && strcmp (last_error (), "") == 0);
  CHECK (luks_unlock (l, read_area, &im, NULL, 0, NULL, &cipher) == -1);
  CHECK (errno == EACCES);
  luks_free (l);

  memcpy (area + SLOT (0, active), &(struct be32) { htobe32 (LUKS_SLOT_INACTIVE) }, 4);
  CHECK (unlock (&im, passphrase) == NULL && errno == EACCES);
  CHECK (strstr (last_error (), "no key slot is in use") != NULL);
  quiet_errors = false;
  luks_disk_free (&im);
}

int
main (void)
{
  struct rng rng;

  images_enter ("luks-damage");
  rng_init (&rng, seed_from_env (), 0);
  luks_disk_begin ();
  test_damages ();
  test_damaged_keys (&rng);
  blob_free (&luks_template);
  images_leave ();
  return 0;
}
