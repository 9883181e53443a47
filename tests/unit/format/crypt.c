/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Ciphers: test vectors of the standards, a comparison of our XTS with OpenSSL's, IVs
 * according to their definitions, round trips of all shapes, what is refused, many
 * threads, and that no key remains in freed memory.
 */

#include <config.h>

#include <endian.h>
#include <errno.h>
#include <string.h>

#include <openssl/evp.h>

#include "format/crypt.h"
#include "lib/stubs.h"
#include "lib/wiped.h"

#define S CRYPT_SECTOR

static const struct crypt_spec specs[] = {
  { "aes", "xts-plain64", 32 },
  { "aes", "xts-plain64", 48 },
  { "aes", "xts-plain64", 64 },
  { "aes", "xts-plain", 64 },
  { "aes", "xts-essiv:sha256", 64 },
  { "aes", "xts-plain64:sha1", 32 },    /* a hash that nobody needs */
  { "aes", "cbc-plain", 16 },
  { "aes", "cbc-plain64", 24 },
  { "aes", "cbc-essiv:sha256", 32 },
  { "aes", "cbc-essiv:md5", 16 },
  { "aes", "ctr-plain64", 32 },
  { "aes", "ecb-plain64", 16 },
  { "sm4", "cbc-plain64", 16 },
  { "sm4", "xts-plain64", 32 },
  { "cast5", "cbc-plain64", 16 },
  { "cast5", "ecb-plain", 16 },
};
#define NR_SPECS (sizeof specs / sizeof specs[0])

/* --- helpers --- */

static void
from_hex (const char *hex, uint8_t *out)
{
  unsigned byte;

  for (; *hex; hex += 2) {
    CHECK (sscanf (hex, "%2x", &byte) == 1);
    *out++ = byte;
  }
}

static void
fill (struct rng *r, uint8_t *p, size_t n)
{
  for (size_t i = 0; i < n; i++)
    p[i] = rng_next (r) >> 32;
}

static struct crypt_cipher *
cipher_new (const char *name, const char *mode, const void *key, size_t bytes)
{
  const struct crypt_spec spec = { name, mode, bytes };
  struct crypt_cipher *c = crypt_new ("test", &spec, key);

  CHECK (c != NULL);
  return c;
}

/* OpenSSL, directly. */
static void
openssl (const char *name, int enc, const uint8_t *key, const uint8_t *iv,
         const uint8_t *in, uint8_t *out, int n)
{
  EVP_CIPHER *cipher = EVP_CIPHER_fetch (NULL, name, NULL);
  EVP_CIPHER_CTX *ctx = EVP_CIPHER_CTX_new ();
  int done;

  CHECK (cipher != NULL && ctx != NULL);
  CHECK (EVP_CipherInit_ex2 (ctx, cipher, key, iv, enc, NULL));
  CHECK (EVP_CIPHER_CTX_set_padding (ctx, 0));
  CHECK (EVP_CipherUpdate (ctx, out, &done, in, n) && done == n);
  EVP_CIPHER_CTX_free (ctx);
  EVP_CIPHER_free (cipher);
}

/* --- published vectors --- */

/* IEEE Std 1619-2007, annex B: vectors 4, 5 and 10. */
static void
test_xts_vectors (void)
{
  static const char vector4[] =
    "27a7479befa1d476489f308cd4cfa6e2a96e4bbe3208ff25287dd3819616e89c"
    "c78cf7f5e543445f8333d8fa7f56000005279fa5d8b5e4ad40e736ddb4d35412"
    "328063fd2aab53e5ea1e0a9f332500a5df9487d07a5c92cc512c8866c7e860ce"
    "93fdf166a24912b422976146ae20ce846bb7dc9ba94a767aaef20c0d61ad0265"
    "5ea92dc4c4e41a8952c651d33174be51a10c421110e6d81588ede82103a252d8"
    "a750e8768defffed9122810aaeb99f9172af82b604dc4b8e51bcb08235a6f434"
    "1332e4ca60482a4ba1a03b3e65008fc5da76b70bf1690db4eae29c5f1badd03c"
    "5ccf2a55d705ddcd86d449511ceb7ec30bf12b1fa35b913f9f747a8afd1b130e"
    "94bff94effd01a91735ca1726acd0b197c4e5b03393697e126826fb6bbde8ecc"
    "1e08298516e2c9ed03ff3c1b7860f6de76d4cecd94c8119855ef5297ca67e9f3"
    "e7ff72b1e99785ca0a7e7720c5b36dc6d72cac9574c8cbbc2f801e23e56fd344"
    "b07f22154beba0f08ce8891e643ed995c94d9a69c9f1b5f499027a78572aeebd"
    "74d20cc39881c213ee770b1010e4bea718846977ae119f7a023ab58cca0ad752"
    "afe656bb3c17256a9f6e9bf19fdd5a38fc82bbe872c5539edb609ef4f79c203e"
    "bb140f2e583cb2ad15b4aa5b655016a8449277dbd477ef2c8d6c017db738b18d"
    "eb4a427d1923ce3ff262735779a418f20a282df920147beabe421ee5319d0568";
  static const char begin5[] = "264d3ca8512194fec312c8c9891f279f"
    "efdd608d0c027b60483a3fa811d65ee5";
  static const char begin10[] = "1c3b3a102f770386e4836c99e370cf9b"
    "ea00803f5e482357a4ae12d414a3e63b";
  uint8_t key[64], plain[S], expected[S], out[S];
  struct crypt_cipher *c;

  for (int i = 0; i < S; i++)
    plain[i] = i;
  from_hex ("2718281828459045235360287471352631415926535897932384626433832795",
            key);
  c = cipher_new ("aes", "xts-plain64", key, 32);
  from_hex (vector4, expected);
  CHECK (crypt_encrypt (c, 0, plain, out, S) == 0);
  CHECK (memcmp (out, expected, S) == 0);
  CHECK (crypt_decrypt (c, 0, out, out, S) == 0);
  CHECK (memcmp (out, plain, S) == 0);
  /* Vector 5 encrypts what came out of vector 4, as sector 1. */
  CHECK (crypt_encrypt (c, 1, expected, out, S) == 0);
  from_hex (begin5, expected);
  CHECK (memcmp (out, expected, 32) == 0);
  crypt_free (c);

  from_hex ("2718281828459045235360287471352662497757247093699959574966967627"
            "3141592653589793238462643383279502884197169399375105820974944592",
            key);
  c = cipher_new ("aes", "xts-plain64", key, 64);
  CHECK (crypt_encrypt (c, 0xff, plain, out, S) == 0);
  from_hex (begin10, expected);
  CHECK (memcmp (out, expected, 32) == 0);
  crypt_free (c);
}

/* NIST SP 800-38A, F.1 and F.2: four blocks, three lengths of keys. */
static void
test_nist_vectors (void)
{
  static const char text[] =
    "6bc1bee22e409f96e93d7e117393172aae2d8a571e03ac9c9eb76fac45af8e51"
    "30c81c46a35ce411e5fbc1191a0a52eff69f2445df4f9b17ad2b417be66c3710";
  static const struct { size_t bytes; const char *key, *ecb, *cbc; } v[] = {
    { 16, "2b7e151628aed2a6abf7158809cf4f3c",
      "3ad77bb40d7a3660a89ecaf32466ef97f5d3d58503b9699de785895a96fdbaaf"
      "43b1cd7f598ece23881b00e3ed0306887b0c785e27e8ad3f8223207104725dd4",
      "7649abac8119b246cee98e9b12e9197d5086cb9b507219ee95db113a917678b2"
      "73bed6b8e3c1743b7116e69e222295163ff1caa1681fac09120eca307586e1a7" },
    { 24, "8e73b0f7da0e6452c810f32b809079e562f8ead2522c6b7b",
      "bd334f1d6e45f25ff712a214571fa5cc974104846d0ad3ad7734ecb3ecee4eef"
      "ef7afd2270e2e60adce0ba2face6444e9a4b41ba738d6c72fb16691603c18e0e",
      "4f021db243bc633d7178183a9fa071e8b4d9ada9ad7dedf4e5e738763f69145a"
      "571b242012fb7ae07fa9baac3df102e008b0e27988598881d920a9e64f5615cd" },
    { 32, "603deb1015ca71be2b73aef0857d77811f352c073b6108d72d9810a30914dff4",
      "f3eed1bdb5d2a03c064b5a7e3db181f8591ccb10d410ed26dc5ba74a31362870"
      "b6ed21b99ca6f4f9f153e7b1beafed1d23304b7a39f9f3ff067d8d8f9e24ecc7",
      "f58c4c04d6e5f1ba779eabfb5f7bfbd69cfc4e967edb808d679f777bc6702c7d"
      "39f23369a9d9bacfa530e26304231461b2eb05e2c39be9fcda6c19078c6a9d1b" },
  };
  const uint64_t sector = UINT64_C (0x0123456789abcdef);

  for (size_t i = 0; i < sizeof v / sizeof v[0]; i++) {
    uint8_t key[32], in[S] = { 0 }, out[S], expected[64];
    struct crypt_cipher *c;

    from_hex (v[i].key, key);
    from_hex (text, in);
    c = cipher_new ("aes", "ecb-plain64", key, v[i].bytes);
    CHECK (crypt_encrypt (c, 7, in, out, S) == 0);
    from_hex (v[i].ecb, expected);
    CHECK (memcmp (out, expected, 64) == 0);
    crypt_free (c);

    /* The vector's IV is 00 01 .. 0f.  CBC xors the IV to the first block, so
     * that another IV can be made up for there. */
    for (int k = 0; k < 16; k++)
      in[k] ^= k ^ (k < 8 ? sector >> 8 * k : 0);
    c = cipher_new ("aes", "cbc-plain64", key, v[i].bytes);
    CHECK (crypt_encrypt (c, sector, in, out, S) == 0);
    from_hex (v[i].cbc, expected);
    CHECK (memcmp (out, expected, 64) == 0);
    crypt_free (c);
  }
}

/* RFC 2144, B.1, and GB/T 32907-2016, A.1. */
static void
test_other_vectors (void)
{
  static const struct { const char *cipher, *key, *in, *out; } v[] = {
    { "cast5", "0123456712345678234567893456789a",
      "0123456789abcdef", "238b4fe5847e44b2" },
    { "sm4", "0123456789abcdeffedcba9876543210",
      "0123456789abcdeffedcba9876543210", "681edf34d206965e86b3e94f536e4246" },
  };

  for (size_t i = 0; i < sizeof v / sizeof v[0]; i++) {
    const struct crypt_spec spec = { v[i].cipher, "ecb-plain64", 16 };
    uint8_t key[16], in[S] = { 0 }, out[S], expected[16];
    struct crypt_cipher *c;

    if (crypt_check ("test", &spec) == -1) {    /* not in every OpenSSL */
      CHECK (errno == ENOTSUP);
      continue;
    }
    from_hex (v[i].key, key);
    from_hex (v[i].in, in);
    from_hex (v[i].out, expected);
    c = cipher_new (v[i].cipher, "ecb-plain64", key, 16);
    CHECK (crypt_encrypt (c, 0, in, out, S) == 0);
    CHECK (memcmp (out, expected, strlen (v[i].out) / 2) == 0);
    crypt_free (c);
  }
}

/* --- against OpenSSL, with IVs made here --- */

static void
judge (const char *openssl_name, const char *mode, size_t key_bytes, struct rng *r)
{
  static const uint64_t sectors[] = {
    0, 1, 255, 0x7fffffff, 0xfffffffe, UINT64_C (0x100000003),
    UINT64_C (0xfedcba9876543210),
  };
  const size_t n = 19;
  uint8_t key[64], in[19 * S], out[19 * S], expected[19 * S];
  struct crypt_cipher *c;

  fill (r, key, sizeof key);
  fill (r, in, sizeof in);
  c = cipher_new ("aes", mode, key, key_bytes);
  for (size_t k = 0; k < sizeof sectors / sizeof sectors[0]; k++) {
    for (size_t i = 0; i < n; i++) {
      uint64_t number = htole64 (strstr (mode, "plain64") || strstr (mode, "essiv")
                                 ? sectors[k] + i : (uint32_t) (sectors[k] + i));
      uint8_t iv[16] = { 0 }, salt[EVP_MAX_MD_SIZE];

      memcpy (iv, &number, sizeof number);
      if (strstr (mode, "essiv:sha256")) {
        CHECK (EVP_Digest (key, key_bytes, salt, NULL, EVP_sha256 (), NULL));
        openssl ("AES-256-ECB", 1, salt, NULL, iv, iv, 16);
      }
      else if (strstr (mode, "essiv:md5")) {
        CHECK (EVP_Digest (key, key_bytes, salt, NULL, EVP_md5 (), NULL));
        openssl ("AES-128-ECB", 1, salt, NULL, iv, iv, 16);
      }
      openssl (openssl_name, 1, key, iv, in + i * S, expected + i * S, S);
    }
    CHECK (crypt_encrypt (c, sectors[k], in, out, n * S) == 0);
    CHECK (memcmp (out, expected, n * S) == 0);
    CHECK (crypt_decrypt (c, sectors[k], out, out, n * S) == 0);
    CHECK (memcmp (out, in, n * S) == 0);
  }
  crypt_free (c);
}

static void
test_legacy (struct rng *r)
{
  static const char *const passphrases[] = {
    "", "a", "fifteen letters", "sixteen letters.", "more than 16 letters",
  };
  uint8_t in[3 * S], out[3 * S], expected[S];

  fill (r, in, sizeof in);
  for (size_t i = 0; i < sizeof passphrases / sizeof passphrases[0]; i++) {
    const char *p = passphrases[i];
    uint8_t key[16] = { 0 }, iv[16] = { 0xff, 0x12 };
    struct crypt_cipher *c = crypt_new_legacy ("test", p, strlen (p));

    CHECK (c != NULL);
    memcpy (key, p, strnlen (p, 16));
    CHECK (crypt_encrypt (c, 0x12fe, in, out, sizeof in) == 0);
    openssl ("AES-128-CBC", 1, key, iv, in + S, expected, S);
    CHECK (memcmp (out + S, expected, S) == 0);
    crypt_free (c);
  }
}

/* --- shapes --- */

static bool
available (const struct crypt_spec *spec)
{
  /* What every OpenSSL has, and the others, perhaps. */
  if (crypt_check ("test", spec) == 0)
    return true;
  CHECK (strcmp (spec->cipher, "aes") != 0);
  return false;
}

static void
test_round_trips (struct rng *r)
{
  enum { MAX = 33 };
  static uint8_t plain[MAX * S], secret[MAX * S], buf[MAX * S + 32];
  uint8_t key[64];

  for (size_t i = 0; i < NR_SPECS; i++) {
    struct crypt_cipher *c;

    if (!available (&specs[i]))
      continue;
    fill (r, key, sizeof key);
    c = crypt_new ("test", &specs[i], key);
    CHECK (c != NULL);
    CHECK (crypt_encrypt (c, 5, buf, buf, 0) == 0);
    for (int turn = 0; turn < 20; turn++) {
      const uint64_t sector = rng_next (r) >> rng_below (r, 64);
      const size_t n = 1 + rng_below (r, MAX), at = rng_below (r, 33);
      const size_t cut = rng_below (r, n + 1);

      fill (r, plain, n * S);
      CHECK (crypt_encrypt (c, sector, plain, secret, n * S) == 0);
      CHECK (memcmp (plain, secret, 16) != 0);
      /* In place, at any address, nothing beyond the end. */
      memset (buf, 0xa5, sizeof buf);
      memcpy (buf + at, plain, n * S);
      CHECK (crypt_encrypt (c, sector, buf + at, buf + at, n * S) == 0);
      CHECK (memcmp (buf + at, secret, n * S) == 0);
      for (size_t k = 0; k < at; k++)
        CHECK (buf[k] == 0xa5);
      for (size_t k = at + n * S; k < sizeof buf; k++)
        CHECK (buf[k] == 0xa5);
      /* In two parts, and from one buffer to another. */
      CHECK (crypt_decrypt (c, sector, secret, buf, cut * S) == 0);
      CHECK (crypt_decrypt (c, sector + cut, secret + cut * S, buf + cut * S,
                            (n - cut) * S) == 0);
      CHECK (memcmp (buf, plain, n * S) == 0);
    }
    crypt_free (c);
  }
  crypt_free (NULL);
}

/* --- what is refused --- */

static void
test_refused (void)
{
  static const struct { struct crypt_spec spec; const char *says; } bad[] = {
    { { "serpent", "xts-plain64", 64 }, "serpent-256 in mode xts" },
    { { "serpent", "cbc-plain64", 16 }, "serpent-128 in mode cbc" },
    { { "twofish", "cbc-essiv:sha256", 24 }, "twofish-192 in mode cbc" },
    { { "cast5", "ctr-plain64", 16 }, "cast5-128 in mode ctr" },
    { { "cast5", "xts-plain64", 32 }, "cast5 cannot be used in mode xts" },
    { { "cast5", "cbc-essiv:md5", 16 }, "cast5 cannot be used with essiv" },
    { { "des3_ede", "cbc-plain64", 24 }, "unknown cipher \"des3_ede\"" },
    { { "", "cbc-plain64", 16 }, "unknown cipher \"\"" },
    { { "AES", "cbc-plain64", 16 }, "unknown cipher \"AES\"" },
    { { "aes\x1b[1m", "cbc-plain64", 16 }, "unknown cipher \"aes\\x1b[1m\"" },
    { { "aes", "cbc-plain64", 0 }, "does not support keys of 0 bytes" },
    { { "aes", "cbc-plain64", 64 }, "does not support keys of 64 bytes" },
    { { "aes", "xts-plain64", 16 }, "does not support keys of 8 bytes" },
    { { "aes", "xts-plain64", 33 }, "a key of 33 bytes cannot be split in two" },
    { { "aes", "cbc", 16 }, "\"cbc\" has no IV generator" },
    { { "aes", "", 16 }, "no IV generator" },
    { { "aes", "cfb-plain64", 16 }, "unknown mode \"cfb-plain64\"" },
    { { "aes", "cb-plain64", 16 }, "unknown mode" },
    { { "aes", "cbc-", 16 }, "unknown IV generator" },
    { { "aes", "cbc-plain6", 16 }, "unknown IV generator" },
    { { "aes", "cbc-benbi", 16 }, "unknown IV generator" },
    { { "aes", "cbc-essiv", 16 }, "no hash for its IV generator" },
    { { "aes", "cbc-essiv:", 16 }, "unknown hash \"\"" },
    { { "aes", "cbc-essiv:shake128", 16 }, "unknown hash \"shake128\"" },
    { { "aes", "cbc-plain64:nonsense", 16 }, "unknown hash \"nonsense\"" },
    { { "aes", "cbc-essiv:sha1", 16 }, "SHA1 in essiv yields keys of 20 bytes" },
  };
  const uint8_t key[64] = { 1 };

  quiet_errors = true;
  for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
    for (int turn = 0; turn < 2; turn++) {
      const unsigned long before = error_count ();

      clear_last_error ();
      errno = 0;
      if (turn == 0)
        CHECK (crypt_check ("file", &bad[i].spec) == -1);
      else
        CHECK (crypt_new ("file", &bad[i].spec, key) == NULL);
      CHECK (errno == ENOTSUP);
      CHECK (error_count () == before + 1);
      CHECK (strncmp (last_error (), "file: encryption: ", 18) == 0);
      if (strstr (last_error (), bad[i].says) == NULL)
        fprintf (stderr, "%s\n", last_error ());
      CHECK (strstr (last_error (), bad[i].says) != NULL);
    }
  }
  quiet_errors = false;
}

/* --- threads: many, with one cipher --- */

struct worker {
  struct crypt_cipher *cipher;
  const uint8_t *plain, *secret;        /* sectors 0 .. 99 */
  uint64_t seed;
  int number;
};

static void *
work (void *arg)
{
  struct worker *w = arg;
  uint8_t buf[20 * S];
  struct rng r;

  rng_init (&r, w->seed, w->number);
  for (int i = 0; i < 300; i++) {
    const size_t n = rng_below (&r, 20), at = rng_below (&r, 80);

    if (rng_below (&r, 2)) {
      CHECK (crypt_encrypt (w->cipher, at, w->plain + at * S, buf, n * S) == 0);
      CHECK (memcmp (buf, w->secret + at * S, n * S) == 0);
    }
    else {
      CHECK (crypt_decrypt (w->cipher, at, w->secret + at * S, buf, n * S) == 0);
      CHECK (memcmp (buf, w->plain + at * S, n * S) == 0);
    }
  }
  return NULL;
}

static void
test_threads (const struct crypt_spec *spec, uint64_t seed)
{
  static uint8_t plain[100 * S], secret[100 * S];
  struct worker w[6];
  uint8_t key[64];
  struct rng r;

  rng_init (&r, seed, 99);
  fill (&r, key, sizeof key);
  fill (&r, plain, sizeof plain);
  w[0].cipher = crypt_new ("test", spec, key);
  CHECK (w[0].cipher != NULL);
  CHECK (crypt_encrypt (w[0].cipher, 0, plain, secret, sizeof plain) == 0);
  for (int i = 0; i < 6; i++) {
    w[i].cipher = w[0].cipher;
    w[i].plain = plain;
    w[i].secret = secret;
    w[i].seed = seed;
    w[i].number = i;
  }
  run_threads (work, w, sizeof w[0], 6);
  crypt_free (w[0].cipher);
}

static void
test_wiped (void)
{
  static const char marked_key[] = "this 32 byte key must be wiped!!";
  uint8_t key[64], buf[S] = { 0 };

  wiped_watch (marked_key, 16);
  wiped_watch (marked_key + 16, 16);
  memcpy (key, marked_key, 32);
  memcpy (key + 32, marked_key, 32);
  key[63] ^= 1;                 /* two keys of XTS must differ */
  for (size_t i = 0; i < NR_SPECS; i++) {
    struct crypt_cipher *c;

    if (!available (&specs[i]))
      continue;
    c = crypt_new ("test", &specs[i], key);
    CHECK (c != NULL);
    CHECK (crypt_encrypt (c, 1, buf, buf, S) == 0);
    CHECK (crypt_decrypt (c, 1, buf, buf, S) == 0);
    crypt_free (c);
  }
  crypt_free (crypt_new_legacy ("test", marked_key, 32));
}

int
main (void)
{
  const uint64_t seed = seed_from_env ();
  struct rng r;

  wiped_start ();
  rng_init (&r, seed, 0);
  test_xts_vectors ();
  test_nist_vectors ();
  test_other_vectors ();
  judge ("AES-128-XTS", "xts-plain64", 32, &r);
  judge ("AES-256-XTS", "xts-plain64", 64, &r);
  judge ("AES-256-XTS", "xts-plain", 64, &r);
  judge ("AES-256-XTS", "xts-essiv:sha256", 64, &r);
  judge ("AES-256-CBC", "cbc-essiv:sha256", 32, &r);
  judge ("AES-128-CBC", "cbc-essiv:md5", 16, &r);
  judge ("AES-192-CBC", "cbc-plain", 24, &r);
  judge ("AES-256-CTR", "ctr-plain64", 32, &r);
  judge ("AES-128-CTR", "ctr-plain", 16, &r);
  test_legacy (&r);
  test_round_trips (&r);
  test_refused ();
  for (size_t i = 0; i < NR_SPECS; i += 4)
    test_threads (&specs[i], seed + i);
  test_wiped ();
  return 0;
}
