/* SPDX-License-Identifier: BSD-3-Clause
 *
 * LUKS headers and keys: we unlock what QEMU unlocks, decrypt what it wrote, and it reads
 * what we encrypt; wrong passphrases; several key slots.
 *
 * qemu-img takes seconds to make a LUKS header.  It makes two: one with its defaults, and
 * one that the seed chooses.  The test makes the others, and QEMU has to unlock them.
 * With LUKS_ALL=1 in the environment, qemu-img makes all.
 */

#include <config.h>

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include <openssl/evp.h>

#include "util/bytes.h"
#include "format/format.h"
#include "lib/luks-disk.h"
#include "lib/luks-image.h"
#include "lib/wiped.h"

/* Where there is data: two pieces, in clusters. */
#define FIRST 0
#define FIRST_N 3
#define SECOND 40
#define SECOND_N 1

/* --- images --- */

/* How QEMU is told about it.  METHOD: "luks" or "aes" for qcow2, NULL for a plain
 * LUKS file. */
static void
add_disk (struct command *c, const char *method)
{
  command_add (c, "--image-opts");
  if (method)
    command_add (c, "driver=qcow2,file.driver=file,file.filename=" NAME
                 ",encrypt.format=%s,encrypt.key-secret=s", method);
  else
    command_add (c, "driver=luks,file.driver=file,file.filename=" NAME
                 ",key-secret=s");
}

static void
qemu_write (const char *method, const char *secret, struct blob *plain,
            struct rng *rng)
{
  struct command c = { .n = 0 };

  plain->len = DISK_SIZE;
  plain->data = calloc (1, DISK_SIZE);
  CHECK (plain->data != NULL);
  for (uint64_t i = 0; i < FIRST_N * CLUSTER; i++)
    plain->data[FIRST * CLUSTER + i] = rng_next (rng) >> 32;
  for (uint64_t i = 0; i < SECOND_N * CLUSTER; i++)
    plain->data[SECOND * CLUSTER + i] = rng_next (rng) >> 32;
  blob_save ("pattern1", &(struct blob) { plain->data + FIRST * CLUSTER,
                                          FIRST_N * CLUSTER });
  blob_save ("pattern2", &(struct blob) { plain->data + SECOND * CLUSTER,
                                          SECOND_N * CLUSTER });
  command_add (&c, "qemu-io");
  add_secret (&c, "s", secret);
  command_add (&c, "-c");
  command_add (&c, "write -s pattern1 %" PRIu64 " %" PRIu64,
               FIRST * CLUSTER, FIRST_N * CLUSTER);
  command_add (&c, "-c");
  command_add (&c, "write -s pattern2 %" PRIu64 " %" PRIu64,
               SECOND * CLUSTER, SECOND_N * CLUSTER);
  add_disk (&c, method);
  command_must (&c);
}

static void
qemu_read (const char *method, const char *secret, struct blob *plain)
{
  struct command c = { .n = 0 };

  command_words (&c, "qemu-img convert");
  add_secret (&c, "s", secret);
  command_words (&c, "-O raw");
  add_disk (&c, method);
  command_add (&c, "raw");
  command_must (&c);
  blob_load ("raw", plain);
}

/* Where guest cluster N is in the file. */
static uint64_t
host_offset (const struct luks_disk *im, uint64_t n)
{
  struct be64 entry;
  uint64_t at;

  if (!im->qcow2)
    return im->payload + n * CLUSTER;
  memcpy (&entry, im->file.data + im->h.l1_offset, 8);
  at = (get64 (entry) & QCOW2_L1_OFFSET_MASK) + n * 8;
  CHECK (range_within (at, 8, im->file.len));
  memcpy (&entry, im->file.data + at, 8);
  at = get64 (entry) & QCOW2_L2_OFFSET_MASK;
  CHECK (at != 0 && range_within (at, CLUSTER, im->file.len));
  return at;
}

/* The number of the first 512 bytes of guest cluster N. */
static uint64_t
sector_of (const struct luks_disk *im, uint64_t n)
{
  return im->qcow2 && im->h.crypt_method == QCOW2_CRYPT_LUKS ?
    host_offset (im, n) / 512 : n * CLUSTER / 512;
}

/* What QEMU wrote we decrypt, and the reverse. */
static void
both_ways (struct luks_disk *im, const char *method, const char *secret,
           struct crypt_cipher *cipher, struct blob *plain, struct rng *rng)
{
  const uint64_t clusters[] = { FIRST, FIRST + 1, FIRST + 2, SECOND };
  struct blob again;
  uint8_t buf[CLUSTER];

  for (int i = 0; i < 4; i++) {
    const uint64_t n = clusters[i];
    uint8_t *p = plain->data + n * CLUSTER;
    uint8_t *host = im->file.data + host_offset (im, n);

    CHECK (memcmp (host, p, CLUSTER) != 0);
    CHECK (crypt_decrypt (cipher, sector_of (im, n), host, buf, CLUSTER) == 0);
    CHECK (memcmp (buf, p, CLUSTER) == 0);
    for (uint64_t k = 0; k < CLUSTER; k++)
      p[k] ^= rng_next (rng) >> 32;
    CHECK (crypt_encrypt (cipher, sector_of (im, n), p, host, CLUSTER) == 0);
  }
  blob_save (NAME, &im->file);
  qemu_read (method, secret, &again);
  CHECK (again.len >= DISK_SIZE);
  for (int i = 0; i < 4; i++)
    CHECK (memcmp (again.data + clusters[i] * CLUSTER,
                   plain->data + clusters[i] * CLUSTER, CLUSTER) == 0);
  blob_free (&again);
}

/* --- ciphers, modes, IV generators, hashes --- */

static const struct combination {
  const char *options;          /* qemu-img's */
  struct luks_image_spec spec;
  const char *refused;          /* what we say, or NULL */
} combinations[] = {
  { "", { "aes", "xts-plain64", "sha256", 64, passphrase, 0 }, NULL },
  { "cipher-alg=aes-128,cipher-mode=xts,ivgen-alg=plain,hash-alg=sha1",
    { "aes", "xts-plain", "sha1", 32, "", 1 }, NULL },
  { "cipher-alg=aes-192,hash-alg=sha512",
    { "aes", "xts-plain64", "sha512", 48, "x", 7 }, NULL },
  { "cipher-alg=aes-256,cipher-mode=cbc,ivgen-alg=essiv,ivgen-hash-alg=sha256"
    ",hash-alg=sha384",
    { "aes", "cbc-essiv:sha256", "sha384", 32, "\xc3\xa4\xc3\xb6\xc3\xbc", 2 }, NULL },
  { "cipher-alg=aes-128,cipher-mode=cbc,ivgen-alg=essiv,ivgen-hash-alg=md5"
    ",hash-alg=md5",
    { "aes", "cbc-essiv:md5", "md5", 16, passphrase, 3 }, NULL },
  { "cipher-alg=aes-256,cipher-mode=xts,ivgen-alg=essiv,ivgen-hash-alg=sha256"
    ",hash-alg=sha224",
    { "aes", "xts-essiv:sha256", "sha224", 64,
      "a passphrase that is longer than a block of the hash: that is 64 bytes or in "
      "the case of sha384 and sha512 128 bytes so that it is hashed first", 4 },
    NULL },
  { "cipher-alg=aes-128,cipher-mode=cbc,ivgen-alg=plain",
    { "aes", "cbc-plain", "sha256", 16, passphrase, 5 }, NULL },
  { "cipher-alg=aes-128,cipher-mode=ecb,ivgen-alg=plain64",
    { "aes", "ecb-plain64", "sha1", 16, passphrase, 6 }, NULL },
  { "cipher-alg=aes-256,cipher-mode=ctr,ivgen-alg=plain64,hash-alg=ripemd160",
    { "aes", "ctr-plain64", "ripemd160", 32, passphrase, 0 }, NULL },
  { "cipher-alg=cast5-128,cipher-mode=cbc,ivgen-alg=plain64",
    { "cast5", "cbc-plain64", "sha256", 16, passphrase, 0 }, NULL },
  { "cipher-alg=cast5-128,cipher-mode=ctr,ivgen-alg=plain64",
    { "cast5", "ctr-plain64", "sha256", 16, passphrase, 0 },
    "cast5-128 in mode ctr is not supported" },
  { "cipher-alg=serpent-256,cipher-mode=xts",
    { "serpent", "xts-plain64", "sha256", 64, passphrase, 0 },
    "serpent-256 in mode xts is not supported" },
  { "cipher-alg=twofish-128,cipher-mode=cbc,ivgen-alg=essiv,ivgen-hash-alg=md5",
    { "twofish", "cbc-essiv:md5", "sha256", 16, passphrase, 0 },
    "twofish-128 in mode cbc is not supported" },
};
#define NR_COMBINATIONS (sizeof combinations / sizeof combinations[0])

static void
test_combination (const struct combination *k, bool by_qemu, struct rng *rng)
{
  const struct crypt_spec spec = { k->spec.cipher, k->spec.mode, k->spec.key_bytes };
  const char *secret = k->spec.passphrase;
  struct luks_disk im;
  struct blob plain;
  struct crypt_cipher *cipher;
  struct luks *l;

  if (by_qemu) {
    char options[300] = DEFAULTS;
    char *text = strdup (k->options), *word, *state = NULL;

    CHECK (text != NULL);
    for (word = strtok_r (text, ",", &state); word;
         word = strtok_r (NULL, ",", &state)) {
      const size_t used = strlen (options);

      snprintf (options + used, sizeof options - used, ",encrypt.%s", word);
    }
    free (text);
    if (!luks_disk_create ("qcow2", options, secret)) {
      printf ("qemu-img does not make this: %s\n", k->options);
      return;
    }
  }

  quiet_errors = true;
  if (crypt_check (NAME, &spec) == -1) {
    /* OpenSSL need not have cast5. */
    CHECK (k->refused || strcmp (k->spec.cipher, "cast5") == 0);
    if (by_qemu) {
      luks_disk_load (&im, true);
      CHECK (luks_parse (NAME, im.file.data + im.luks, 592, im.length, &l) == -1);
      CHECK (errno == ENOTSUP);
      luks_disk_free (&im);
    }
    CHECK (k->refused == NULL || strstr (last_error (), k->refused) != NULL);
    quiet_errors = false;
    return;
  }
  quiet_errors = false;
  CHECK (k->refused == NULL);

  if (!by_qemu) {
    blob_save (NAME, &luks_template);
    luks_disk_load (&im, true);
    CHECK (luks_image_size (k->spec.key_bytes) <= im.length);
    luks_image_build (im.file.data + im.luks, &k->spec, rng);
    blob_save (NAME, &im.file);
    luks_disk_free (&im);
  }
  qemu_write ("luks", secret, &plain, rng);
  luks_disk_load (&im, true);
  cipher = unlock (&im, secret);
  CHECK (cipher != NULL);
  both_ways (&im, "luks", secret, cipher, &plain, rng);
  crypt_free (cipher);
  wrong (&im, "not the passphrase");
  if (secret[0])
    wrong (&im, "");
  luks_disk_free (&im);
  blob_free (&plain);
}

/* Not in a qcow2 image: sectors are counted from the payload. */
static void
test_luks_file (struct rng *rng)
{
  struct luks_disk im;
  struct blob plain, file;
  struct crypt_cipher *cipher;

  blob_save (NAME, &luks_template);
  luks_disk_load (&im, true);
  file.len = im.length + DISK_SIZE;
  file.data = calloc (1, file.len);
  CHECK (file.data != NULL);
  memcpy (file.data, im.file.data + im.luks, im.length);
  blob_save (NAME, &file);
  blob_free (&file);
  luks_disk_free (&im);

  qemu_write (NULL, passphrase, &plain, rng);
  luks_disk_load (&im, false);
  cipher = unlock (&im, passphrase);
  CHECK (cipher != NULL);
  both_ways (&im, NULL, passphrase, cipher, &plain, rng);
  crypt_free (cipher);
  luks_disk_free (&im);
  blob_free (&plain);
}

/* The encryption before LUKS: nothing tells a wrong passphrase from the right one. */
static void
test_legacy (const char *secret, struct rng *rng)
{
  struct luks_disk im;
  struct blob plain;
  struct crypt_cipher *cipher;

  CHECK (luks_disk_create ("qcow2", "cluster_size=65536,encrypt.format=aes"
                 ",encrypt.key-secret=s", secret));
  qemu_write ("aes", secret, &plain, rng);
  luks_disk_load (&im, true);
  cipher = crypt_new_legacy (NAME, secret, strlen (secret));
  CHECK (cipher != NULL);
  both_ways (&im, "aes", secret, cipher, &plain, rng);
  crypt_free (cipher);
  luks_disk_free (&im);
  blob_free (&plain);
}

/* --- key slots --- */

static void
amend (const char *old, const char *option)
{
  for (int i = 0; i < 100; i++) {
    struct command c = { .n = 0 };

    command_words (&c, "qemu-img amend");
    add_secret (&c, "s", old);
    add_secret (&c, "n", "the second one");
    command_add (&c, "-o");
    command_add (&c, "%s", option);
    add_disk (&c, "luks");
    if (command_run (&c) == 0)
      return;
    CHECK (log_says ("Unable to get accurate CPU usage"));
  }
  CHECK (!"qemu-img can change no key slot");
}

static void
test_slots (void)
{
  struct luks_disk im;
  struct crypt_cipher *a, *b;
  uint8_t x[512] = "one sector", y[512];

  blob_save (NAME, &luks_template);
  amend (passphrase, "encrypt.state=active,encrypt.new-secret=n"
         ",encrypt.keyslot=7,encrypt.iter-time=10");
  luks_disk_load (&im, true);
  a = unlock (&im, passphrase);
  b = unlock (&im, "the second one");
  CHECK (a != NULL && b != NULL);
  /* The same key. */
  CHECK (crypt_encrypt (a, 1, x, y, 512) == 0);
  CHECK (crypt_decrypt (b, 1, y, y, 512) == 0);
  CHECK (memcmp (x, y, 512) == 0);
  crypt_free (a);
  crypt_free (b);
  wrong (&im, "the third one");
  luks_disk_free (&im);

  amend ("the second one", "encrypt.state=inactive,encrypt.keyslot=0");
  luks_disk_load (&im, true);
  b = unlock (&im, "the second one");
  CHECK (b != NULL);
  crypt_free (b);
  wrong (&im, passphrase);
  luks_disk_free (&im);
}

/* The passphrase, and what is derived from it. */
static void
test_wiped (void)
{
  static uint8_t key[64];
  struct luks_disk im;
  const struct luks_header *raw;

  blob_save (NAME, &luks_template);
  luks_disk_load (&im, true);
  raw = (const void *) (im.file.data + im.luks);
  CHECK (PKCS5_PBKDF2_HMAC (passphrase, sizeof passphrase - 1, raw->slots[0].salt,
                            32, get32 (raw->slots[0].iterations), EVP_sha256 (),
                            sizeof key, key));
  wiped_watch (passphrase, sizeof passphrase - 1);
  wiped_watch (key, 16);
  wiped_watch (key + 32, 16);
  crypt_free (unlock (&im, passphrase));
  luks_disk_free (&im);
}

int
main (void)
{
  static const char longer[] = "more than the sixteen bytes that are used";
  const bool all = getenv ("LUKS_ALL") != NULL;
  struct rng rng;
  size_t chosen;

  wiped_start ();
  images_enter ("luks");
  rng_init (&rng, seed_from_env (), 0);
  luks_disk_begin ();

  chosen = 1 + rng_below (&rng, NR_COMBINATIONS - 1);
  for (size_t i = 0; i < NR_COMBINATIONS; i++) {
    test_combination (&combinations[i], false, &rng);
    if (all || i == chosen)
      test_combination (&combinations[i], true, &rng);
  }
  test_luks_file (&rng);
  test_legacy ("short", &rng);
  test_legacy (longer, &rng);
  test_slots ();
  test_wiped ();
  blob_free (&luks_template);
  images_leave ();
  return 0;
}
