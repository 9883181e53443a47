/* SPDX-License-Identifier: BSD-3-Clause
 *
 * How are sectors encrypted and decrypted?
 *
 * Each sector of 512 bytes is encrypted by itself, with an initialization vector
 * (IV) made from its number:
 *
 *   plain    the low 32 bits of the number, little endian, then zeros
 *   plain64  all 64 bits of it
 *   essiv    plain64, encrypted with a hash of the key
 *
 * The ciphers are those of OpenSSL.  Ciphers that QEMU supports and OpenSSL does not
 * have (serpent, twofish) are in the table too, so that they are refused by name.
 *
 * XTS is composed here, from ECB: OpenSSL's own XTS needs one call to set the IV and
 * another one to encrypt, for each sector, and these calls cost half as much as the
 * encryption itself.  Here a batch of sectors takes two calls: one computes the tweaks
 * of all sectors, one encrypts all blocks.  Before and after the second call, tweak *
 * x^i (a multiplication in GF(2^128)) is xored to block i of each sector.
 *
 * Key schedules are computed once, when the key is known, and then copied: each thread
 * that is here at the same time has a context, which a pool keeps.  So a call allocates
 * no memory, except when the number of threads here is larger than ever before.
 *
 * Locks: `lock' of a cipher guards its stack of idle contexts; nothing else is done
 * while it is held.  A context that is not on the stack belongs to the thread that took
 * it.  `keyed' is only read after crypt_new, to be copied, so it needs no lock.
 *
 * Everything that holds keys or IVs is wiped before it is freed.
 */

#include <config.h>

#include <assert.h>
#include <endian.h>
#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include <openssl/crypto.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/provider.h>

#include "util/bytes.h"
#include "util/cleanup.h"
#include "util/printable.h"
#include "util/report.h"
#include "format/crypt.h"

/* Number of sectors that are encrypted or decrypted together. */
#define BATCH 8
/* The largest block of a cipher, and therefore the largest IV. */
#define BLOCK 16
#define WORDS (CRYPT_SECTOR / sizeof (uint64_t))

/* A pair of words is xored at once.  Compilers do not do that by themselves if the
 * buffers may be the same. */
typedef uint64_t pair __attribute__ ((vector_size (16)));

/* Maximum length of a name in a LUKS header. */
#define MAX_NAME 32

enum mode { MODE_ECB, MODE_CBC, MODE_CTR, MODE_XTS };
static const char *const mode_names[] = { "ecb", "cbc", "ctr", "xts" };

enum ivgen { IV_PLAIN, IV_PLAIN64, IV_ESSIV };
static const char *const ivgen_names[] = { "plain", "plain64", "essiv" };

/* The names in LUKS headers; OpenSSL uses the same names. */
static const char *const hash_names[] = {
  "md5", "sha1", "sha224", "sha256", "sha384", "sha512", "ripemd160", "sm3",
};

#define COUNT(array) (sizeof (array) / sizeof (array)[0])

static const struct algorithm {
  const char *name;
  unsigned key_bytes, block_bytes;
  /* OpenSSL's names by mode, NULL if it does not have the mode.  XTS is composed of
   * ECB. */
  const char *openssl[3];
  bool essiv;                   /* is essiv defined for it? */
  bool legacy;                  /* is it in OpenSSL's provider of that name? */
} algorithms[] = {
  { "aes", 16, 16, { "AES-128-ECB", "AES-128-CBC", "AES-128-CTR" }, true, false },
  { "aes", 24, 16, { "AES-192-ECB", "AES-192-CBC", "AES-192-CTR" }, true, false },
  { "aes", 32, 16, { "AES-256-ECB", "AES-256-CBC", "AES-256-CTR" }, true, false },
  { "sm4", 16, 16, { "SM4-ECB", "SM4-CBC", "SM4-CTR" }, false, false },
  { "cast5", 16, 8, { "CAST5-ECB", "CAST5-CBC", NULL }, false, true },
  { "serpent", 16, 16, { NULL, NULL, NULL }, true, false },
  { "serpent", 24, 16, { NULL, NULL, NULL }, true, false },
  { "serpent", 32, 16, { NULL, NULL, NULL }, true, false },
  { "twofish", 16, 16, { NULL, NULL, NULL }, true, false },
  { "twofish", 24, 16, { NULL, NULL, NULL }, true, false },
  { "twofish", 32, 16, { NULL, NULL, NULL }, true, false },
};

/* The meaning of a crypt_spec. */
struct plan {
  const struct algorithm *algorithm, *essiv;    /* essiv: NULL if not used */
  enum mode mode;
  enum ivgen ivgen;
  EVP_MD *essiv_hash;
  EVP_CIPHER *cipher;           /* XTS: ECB */
  EVP_CIPHER *essiv_cipher;
  OSSL_LIB_CTX *library;        /* for algorithms in the legacy provider, or NULL */
  OSSL_PROVIDER *legacy;
};

struct context {
  struct context *next;         /* in the pool */
  EVP_CIPHER_CTX *encrypt, *decrypt;
  EVP_CIPHER_CTX *tweak;        /* XTS: the second key; else NULL */
  EVP_CIPHER_CTX *essiv;        /* the hash of the key; else NULL */
  uint8_t iv[BATCH][BLOCK];
  uint64_t mask[BATCH][WORDS];  /* XTS: the words that are xored */
};

struct crypt_cipher {
  struct plan plan;
  void *key;                    /* constant; for new key slots */
  size_t key_bytes;
  struct context *keyed;        /* is only copied, never used */
  pthread_mutex_t lock;
  struct context *idle;         /* guarded by lock */
};

/* --- supported ciphers --- */

#define refuse_cipher(path, fmt, ...)                                           \
  report_refusal (ENOTSUP, "%s: encryption: " fmt, path, ##__VA_ARGS__)

int
crypt_openssl_failed (const char *path, const char *part, const char *what)
{
  char text[200];

  if (errno == ENOMEM) {
    ERR_clear_error ();
    report_error ("%s: %s: %s: %m", path, part, what);
    return -1;
  }
  ERR_error_string_n (ERR_peek_last_error (), text, sizeof text);
  ERR_clear_error ();
  return report_refusal (EIO, "%s: %s: %s: %s", path, part, what, text);
}

/* OpenSSL does not have KIND NAME, or had no memory to get it. */
static int
refuse_missing (const char *path, const char *kind, const char *name)
{
  ERR_clear_error ();
  if (errno != ENOMEM)
    return refuse_cipher (path, "OpenSSL does not have %s%s", kind, name);
  report_error ("%s: encryption: %s%s: %m", path, kind, name);
  return -1;
}

/* Returns the index of the name S[0..LEN) in NAMES, or -1. */
static int
look_up (const char *const names[], size_t n, const char *s, size_t len)
{
  for (size_t i = 0; i < n; i++)
    if (strlen (names[i]) == len && memcmp (names[i], s, len) == 0)
      return i;
  return -1;
}

EVP_MD *
crypt_hash (const char *path, const char *name)
{
  char text[PRINTABLE_SIZE (MAX_NAME)];
  EVP_MD *md;

  if (look_up (hash_names, COUNT (hash_names), name, strlen (name)) == -1) {
    refuse_cipher (path, "unknown hash \"%s\"",
                   printable (name, strlen (name), text, sizeof text));
    return NULL;
  }
  errno = 0;
  md = EVP_MD_fetch (NULL, name, NULL);
  if (md == NULL)
    refuse_missing (path, "the hash ", name);
  return md;
}

/* NULL: there is none.  *KNOWN: there is such a cipher, with keys of any length. */
static const struct algorithm *
find_algorithm (const char *name, size_t key_bytes, bool *known)
{
  *known = false;
  for (size_t i = 0; i < COUNT (algorithms); i++) {
    if (strcmp (algorithms[i].name, name) != 0)
      continue;
    *known = true;
    if (algorithms[i].key_bytes == key_bytes)
      return &algorithms[i];
  }
  return NULL;
}

/* Parses the text of a mode. */
static int
parse_mode (const char *path, const char *mode, struct plan *p)
{
  char text[PRINTABLE_SIZE (MAX_NAME)];
  const char *iv, *hash;
  int i;

  printable (mode, strlen (mode), text, sizeof text);
  iv = strchr (mode, '-');
  if (iv == NULL)
    return refuse_cipher (path, "the mode \"%s\" has no IV generator", text);
  i = look_up (mode_names, COUNT (mode_names), mode, iv - mode);
  if (i == -1)
    return refuse_cipher (path, "unknown mode \"%s\"", text);
  p->mode = i;
  i = look_up (ivgen_names, COUNT (ivgen_names), iv + 1, strcspn (iv + 1, ":"));
  if (i == -1)
    return refuse_cipher (path, "unknown IV generator in the mode \"%s\"", text);
  p->ivgen = i;

  /* A hash that is not needed is allowed, but must exist. */
  hash = strchr (iv, ':');
  if (hash) {
    p->essiv_hash = crypt_hash (path, hash + 1);
    if (p->essiv_hash == NULL)
      return -1;
  }
  else if (p->ivgen == IV_ESSIV)
    return refuse_cipher (path, "the mode \"%s\" has no hash for its IV generator", text);
  return 0;
}

/* Finds out what SPEC means.  Needs OpenSSL only for hashes. */
static int
make_plan (const char *path, const struct crypt_spec *spec, struct plan *p)
{
  const char *const name = spec->cipher;
  char text[PRINTABLE_SIZE (MAX_NAME)];
  const struct algorithm *a;
  size_t key_bytes = spec->key_bytes;
  bool known;

  if (parse_mode (path, spec->mode, p) == -1)
    return -1;
  if (p->mode == MODE_XTS) {
    if (key_bytes % 2 != 0)
      return refuse_cipher (path, "a key of %zu bytes cannot be split in two for mode "
                            "xts", key_bytes);
    key_bytes /= 2;
  }
  a = p->algorithm = find_algorithm (name, key_bytes, &known);
  if (a == NULL && known)
    return refuse_cipher (path, "the cipher %s does not support keys of %zu bytes", name,
                          key_bytes);
  if (a == NULL)
    return refuse_cipher (path, "unknown cipher \"%s\"",
                          printable (name, strlen (name), text, sizeof text));
  if (p->mode == MODE_XTS && a->block_bytes != BLOCK)
    return refuse_cipher (path, "%s cannot be used in mode xts", a->name);
  if (a->openssl[p->mode == MODE_XTS ? MODE_ECB : p->mode] == NULL)
    return refuse_cipher (path, "%s-%u in mode %s is not supported by OpenSSL", a->name,
                          a->key_bytes * 8, mode_names[p->mode]);

  if (p->ivgen == IV_ESSIV) {
    if (!a->essiv)
      return refuse_cipher (path, "%s cannot be used with essiv", a->name);
    key_bytes = EVP_MD_get_size (p->essiv_hash);
    p->essiv = find_algorithm (name, key_bytes, &known);
    if (p->essiv == NULL)
      return refuse_cipher (path, "%s in essiv yields keys of %zu bytes, which %s does "
                            "not support", EVP_MD_get0_name (p->essiv_hash), key_bytes,
                            name);
  }
  return 0;
}

static void
free_plan (struct plan *p)
{
  EVP_MD_free (p->essiv_hash);          /* all of these accept NULL */
  EVP_CIPHER_free (p->cipher);
  EVP_CIPHER_free (p->essiv_cipher);
  if (p->legacy)
    OSSL_PROVIDER_unload (p->legacy);
  OSSL_LIB_CTX_free (p->library);
}

/* Gets what the plan needs from OpenSSL. */
static int
fetch (const char *path, struct plan *p)
{
  const struct algorithm *a = p->algorithm;
  const char *name = a->openssl[p->mode == MODE_XTS ? MODE_ECB : p->mode];

  errno = 0;
  if (a->legacy) {
    /* In a separate library context: loading a provider into the common one would affect
     * other users of OpenSSL in this process. */
    p->library = OSSL_LIB_CTX_new ();
    if (p->library)
      p->legacy = OSSL_PROVIDER_load (p->library, "legacy");
    if (p->legacy == NULL && errno == ENOMEM)
      return refuse_missing (path, "", name);
    if (p->legacy == NULL) {
      ERR_clear_error ();
      return refuse_cipher (path, "%s-%u in mode %s needs OpenSSL's legacy provider, "
                            "which cannot be loaded", a->name, a->key_bytes * 8,
                            mode_names[p->mode]);
    }
  }
  p->cipher = EVP_CIPHER_fetch (p->library, name, NULL);
  if (p->essiv)
    p->essiv_cipher = EVP_CIPHER_fetch (NULL, p->essiv->openssl[MODE_ECB], NULL);
  if (p->cipher == NULL || (p->essiv && p->essiv_cipher == NULL))
    return refuse_missing (path, "", name);
  return 0;
}

int
crypt_check (const char *path, const struct crypt_spec *spec)
{
  struct plan p = { 0 };
  int r = make_plan (path, spec, &p);

  if (r == 0)
    r = fetch (path, &p);
  free_plan (&p);
  return r;
}

/* --- contexts --- */

static void
free_context (struct context *c)
{
  if (c == NULL)
    return;
  EVP_CIPHER_CTX_free (c->encrypt);     /* wipes it; accepts NULL */
  EVP_CIPHER_CTX_free (c->decrypt);
  EVP_CIPHER_CTX_free (c->tweak);
  EVP_CIPHER_CTX_free (c->essiv);
  OPENSSL_clear_free (c, sizeof *c);
}

/* Makes *TO a copy of FROM, unless FROM is NULL. */
static bool
copy_schedule (EVP_CIPHER_CTX **to, const EVP_CIPHER_CTX *from)
{
  if (from == NULL)
    return true;
  *to = EVP_CIPHER_CTX_new ();
  return *to != NULL && EVP_CIPHER_CTX_copy (*to, from);
}

/* NULL on ENOMEM. */
static struct context *
copy_context (const struct context *from)
{
  struct context *c = OPENSSL_zalloc (sizeof *c);

  if (c && (!copy_schedule (&c->encrypt, from->encrypt) ||
            !copy_schedule (&c->decrypt, from->decrypt) ||
            !copy_schedule (&c->tweak, from->tweak) ||
            !copy_schedule (&c->essiv, from->essiv))) {
    free_context (c);
    c = NULL;
  }
  if (c == NULL) {
    ERR_clear_error ();
    errno = ENOMEM;
  }
  return c;
}

static struct context *
take_context (struct crypt_cipher *cipher)
{
  struct context *c;

  {
    LOCK_FOR_BLOCK (&cipher->lock);

    c = cipher->idle;
    if (c)
      cipher->idle = c->next;
  }
  return c ? c : copy_context (cipher->keyed);
}

static void
put_context (struct crypt_cipher *cipher, struct context *c)
{
  LOCK_FOR_BLOCK (&cipher->lock);

  c->next = cipher->idle;
  cipher->idle = c;
}

/* --- a cipher with its key --- */

static EVP_CIPHER_CTX *
schedule (const EVP_CIPHER *cipher, const uint8_t *key, int encrypt)
{
  EVP_CIPHER_CTX *ctx = EVP_CIPHER_CTX_new ();

  if (ctx && EVP_CipherInit_ex2 (ctx, cipher, key, NULL, encrypt, NULL) &&
      EVP_CIPHER_CTX_set_padding (ctx, 0))
    return ctx;
  EVP_CIPHER_CTX_free (ctx);
  return NULL;
}

static bool
make_schedules (const struct plan *p, struct context *c,
                const uint8_t *key, size_t key_bytes)
{
  uint8_t hash[EVP_MAX_MD_SIZE];

  errno = 0;
  c->encrypt = schedule (p->cipher, key, 1);
  c->decrypt = schedule (p->cipher, key, 0);
  if (p->mode == MODE_XTS)
    c->tweak = schedule (p->cipher, key + key_bytes / 2, 1);
  if (p->essiv) {
    if (EVP_Digest (key, key_bytes, hash, NULL, p->essiv_hash, NULL))
      c->essiv = schedule (p->essiv_cipher, hash, 1);
    OPENSSL_cleanse (hash, sizeof hash);
  }
  return c->encrypt && c->decrypt &&
    (p->mode != MODE_XTS || c->tweak) && (!p->essiv || c->essiv);
}

struct crypt_cipher *
crypt_new (const char *path, const struct crypt_spec *spec, const void *key)
{
  struct crypt_cipher *cipher = OPENSSL_zalloc (sizeof *cipher);

  if (cipher == NULL)
    goto no_memory;
  pthread_mutex_init (&cipher->lock, NULL);
  if (make_plan (path, spec, &cipher->plan) == -1 ||
      fetch (path, &cipher->plan) == -1)
    goto fail;
  cipher->key_bytes = spec->key_bytes;
  cipher->key = OPENSSL_memdup (key, spec->key_bytes);
  cipher->keyed = OPENSSL_zalloc (sizeof *cipher->keyed);
  if (cipher->key == NULL || cipher->keyed == NULL)
    goto no_memory;
  if (!make_schedules (&cipher->plan, cipher->keyed, key, spec->key_bytes)) {
    crypt_openssl_failed (path, "encryption", "cannot set up the cipher");
    goto fail;
  }
  cipher->idle = copy_context (cipher->keyed);
  if (cipher->idle == NULL)
    goto no_memory;
  return cipher;

 no_memory:
  errno = ENOMEM;
  report_error ("%s: encryption: %m", path);
 fail:
  crypt_free (cipher);
  return NULL;
}

struct crypt_cipher *
crypt_new_legacy (const char *path, const void *passphrase, size_t len)
{
  const struct crypt_spec spec = { "aes", "cbc-plain64", 16 };
  struct crypt_cipher *cipher;
  uint8_t key[16] = { 0 };

  if (len > 0)
    memcpy (key, passphrase, min64 (len, sizeof key));
  cipher = crypt_new (path, &spec, key);
  OPENSSL_cleanse (key, sizeof key);
  return cipher;
}

void
crypt_free (struct crypt_cipher *cipher)
{
  struct context *c;
  KEEP_ERRNO_FOR_BLOCK;

  if (cipher == NULL)
    return;
  while ((c = cipher->idle) != NULL) {
    cipher->idle = c->next;
    free_context (c);
  }
  free_context (cipher->keyed);
  OPENSSL_clear_free (cipher->key, cipher->key_bytes);
  free_plan (&cipher->plan);
  pthread_mutex_destroy (&cipher->lock);
  OPENSSL_free (cipher);
}

const void *
crypt_key (const struct crypt_cipher *cipher)
{
  return cipher->key;
}

/* --- sectors --- */

/* Encrypts or decrypts whole blocks with one call of OpenSSL. */
static bool
update (EVP_CIPHER_CTX *ctx, const void *in, void *out, size_t bytes)
{
  int done;

  return EVP_CipherUpdate (ctx, out, &done, in, bytes) && (size_t) done == bytes;
}

/* Computes the IVs of N sectors. */
static bool
make_ivs (const struct plan *p, struct context *c, uint64_t sector, size_t n)
{
  for (size_t i = 0; i < n; i++) {
    uint64_t number = sector + i;

    if (p->ivgen == IV_PLAIN)
      number &= UINT32_MAX;
    number = htole64 (number);
    memset (c->iv[i], 0, BLOCK);
    memcpy (c->iv[i], &number, sizeof number);
  }
  return p->ivgen != IV_ESSIV || update (c->essiv, c->iv, c->iv, n * BLOCK);
}

static void
xor_sector (const uint8_t *in, uint8_t *out, const uint64_t mask[WORDS])
{
  pair a, b;

  for (size_t i = 0; i < WORDS; i += 2) {
    memcpy (&a, in + i * sizeof *mask, sizeof a);
    memcpy (&b, mask + i, sizeof b);
    a ^= b;
    memcpy (out + i * sizeof *mask, &a, sizeof a);
  }
}

/* Computes what is xored to a sector: its tweak, multiplied by x for each block. */
static void
make_mask (const uint8_t tweak[BLOCK], uint64_t mask[WORDS])
{
  uint64_t low, high, carry;

  memcpy (&low, tweak, sizeof low);
  memcpy (&high, tweak + sizeof low, sizeof high);
  low = le64toh (low);
  high = le64toh (high);
  for (size_t i = 0; i < WORDS; i += 2) {
    mask[i] = htole64 (low);
    mask[i + 1] = htole64 (high);
    carry = -(high >> 63) & 0x87;       /* no branch: tweaks are secret */
    high = high << 1 | low >> 63;
    low = low << 1 ^ carry;
  }
}

static bool
do_xts (struct context *c, EVP_CIPHER_CTX *ctx,
        const uint8_t *in, uint8_t *out, size_t n)
{
  if (!update (c->tweak, c->iv, c->iv, n * BLOCK))
    return false;
  for (size_t i = 0; i < n; i++) {
    make_mask (c->iv[i], c->mask[i]);
    xor_sector (in + i * CRYPT_SECTOR, out + i * CRYPT_SECTOR, c->mask[i]);
  }
  if (!update (ctx, out, out, n * CRYPT_SECTOR))
    return false;
  for (size_t i = 0; i < n; i++)
    xor_sector (out + i * CRYPT_SECTOR, out + i * CRYPT_SECTOR, c->mask[i]);
  return true;
}

/* For modes in which each sector starts a new chain. */
static bool
do_chained (struct context *c, EVP_CIPHER_CTX *ctx,
            const uint8_t *in, uint8_t *out, size_t n)
{
  for (size_t i = 0; i < n; i++)
    if (!EVP_CipherInit_ex2 (ctx, NULL, NULL, c->iv[i], -1, NULL) ||
        !update (ctx, in + i * CRYPT_SECTOR, out + i * CRYPT_SECTOR, CRYPT_SECTOR))
      return false;
  return true;
}

static int
transform (struct crypt_cipher *cipher, bool encrypt, uint64_t sector,
           const uint8_t *in, uint8_t *out, size_t bytes)
{
  const struct plan *p = &cipher->plan;
  struct context *c;
  EVP_CIPHER_CTX *ctx;
  bool ok = true;

  assert (bytes % CRYPT_SECTOR == 0);
  c = take_context (cipher);
  if (c == NULL)
    return -1;
  ctx = encrypt ? c->encrypt : c->decrypt;

  while (ok && bytes > 0) {
    const size_t n = min64 (bytes / CRYPT_SECTOR, BATCH);

    if (p->mode == MODE_ECB)
      ok = update (ctx, in, out, n * CRYPT_SECTOR);
    else
      ok = make_ivs (p, c, sector, n) &&
        (p->mode == MODE_XTS ? do_xts (c, ctx, in, out, n)
         : do_chained (c, ctx, in, out, n));
    sector += n;
    in += n * CRYPT_SECTOR;
    out += n * CRYPT_SECTOR;
    bytes -= n * CRYPT_SECTOR;
  }

  put_context (cipher, c);
  if (!ok) {
    ERR_clear_error ();
    errno = EIO;
    return -1;
  }
  return 0;
}

int
crypt_encrypt (struct crypt_cipher *cipher, uint64_t sector,
               const void *in, void *out, size_t bytes)
{
  return transform (cipher, true, sector, in, out, bytes);
}

int
crypt_decrypt (struct crypt_cipher *cipher, uint64_t sector,
               const void *in, void *out, size_t bytes)
{
  return transform (cipher, false, sector, in, out, bytes);
}
