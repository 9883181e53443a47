/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What does a LUKS header contain, is it valid, and which key does a passphrase yield?
 *
 * Specification: "LUKS On-Disk Format Specification", version 1.2.3.
 *
 * The header contains the key of the disk up to eight times, once for each passphrase
 * (in a key slot).  There the key is spread over 4000 times its length (split), so that
 * overwriting any part of a slot erases it for good, and encrypted with a key derived
 * from the passphrase (PBKDF2).  The header does not say which slot a passphrase belongs
 * to.  All active slots are tried in turn, and a digest of the key of the disk shows
 * when the right one has been found.
 *
 *   sector 0        8                              payload
 *          [ header | key material 0 | 1 | ... | 7 | (elsewhere in the image) ]
 *
 * An attacker may have chosen the bytes.  A header that was accepted fulfils what QEMU
 * demands, and two more conditions: the material of an active slot lies within the space
 * that the image has for the header, and testing a passphrase on all slots takes no more
 * than LUKS_MAX_ROUNDS of a hash.
 *
 * Secrets are in a struct secrets, in memory that is wiped before it is freed, or inside
 * OpenSSL, which does the same.
 */

#include <config.h>

#include <errno.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <openssl/core_names.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/kdf.h>
#include <openssl/params.h>

#include "util/cleanup.h"
#include "util/report.h"
#include "format/crypt.h"
#include "format/luks-impl.h"
#include "format/luks.h"

#define SECTOR CRYPT_SECTOR
#define HEADER_SECTORS LUKS_HEADER_SECTORS
#define MAX_KEY LUKS_MAX_KEY

struct slot {
  bool active;
  uint32_t iterations;
  uint8_t salt[LUKS_SALT_SIZE];
  uint64_t material;            /* bytes from the beginning of the header */
};

struct luks {
  char *path;
  char cipher[32], mode[32];
  struct crypt_spec spec;       /* points to the two above */
  char hash[32];
  uint8_t digest[LUKS_DIGEST_SIZE];
  uint8_t digest_salt[LUKS_SALT_SIZE];
  uint32_t digest_iterations;
  struct slot slots[LUKS_SLOTS];
  uint64_t rounds;              /* of the hash, to test all active slots */
};

/* The state of luks_parse. */
struct parse {
  const char *path;
  uint64_t length;
  struct luks_header raw;
  struct luks *l;
  unsigned hash_bytes;
};

#define FIELD(name) offsetof (struct luks_header, name)
#define SLOT_FIELD(i, name) \
  (FIELD (slots) + (i) * sizeof (struct luks_slot_header) + \
   offsetof (struct luks_slot_header, name))

/* Reports that something at OFFSET of the header is wrong.  Returns -1. */
#define refuse_luks(p, offset, fmt, ...)                                        \
  report_refusal (EINVAL, "%s: LUKS header: offset %" PRIu64 ": " fmt, (p)->path, \
                  (uint64_t) (offset), ##__VA_ARGS__)

/* --- the header --- */

static int
check_basics (struct parse *p, const void *buf, size_t len)
{
  if (len < sizeof p->raw || p->length < sizeof p->raw)
    return refuse_luks (p, min64 (len, p->length), "it ends here, before all of its %zu "
                        "bytes", sizeof p->raw);
  memcpy (&p->raw, buf, sizeof p->raw);
  if (memcmp (p->raw.magic, LUKS_MAGIC, sizeof p->raw.magic) != 0)
    return refuse_luks (p, FIELD (magic), "it does not begin with \"LUKS\\xba\\xbe\"");
  if (get16 (p->raw.version) != 1)
    return refuse_luks (p, FIELD (version), "version is %u; qcow2 images use version 1 "
                        "only", get16 (p->raw.version));
  return 0;
}

static int
copy_name (const struct parse *p, uint64_t field, const char *what,
           const char from[32], char to[32])
{
  if (memchr (from, '\0', 32) == NULL)
    return refuse_luks (p, field, "the name of the %s is not terminated", what);
  memcpy (to, from, 32);
  return 0;
}

/* Are cipher and hash supported?  Afterwards key_bytes is valid. */
static int
check_algorithms (struct parse *p)
{
  struct luks *l = p->l;
  EVP_MD *md;

  if (copy_name (p, FIELD (cipher), "cipher", p->raw.cipher, l->cipher) == -1 ||
      copy_name (p, FIELD (mode), "mode", p->raw.mode, l->mode) == -1 ||
      copy_name (p, FIELD (hash), "hash", p->raw.hash, l->hash) == -1)
    return -1;
  l->spec.cipher = l->cipher;
  l->spec.mode = l->mode;
  l->spec.key_bytes = get32 (p->raw.key_bytes);
  if (l->spec.key_bytes > MAX_KEY)
    return refuse_luks (p, FIELD (key_bytes), "the key has %zu bytes, more than %d",
                        l->spec.key_bytes, MAX_KEY);
  if (crypt_check (p->path, &l->spec) == -1)
    return -1;

  md = crypt_hash (p->path, l->hash);
  if (md == NULL)
    return -1;
  p->hash_bytes = EVP_MD_get_size (md);
  EVP_MD_free (md);
  return 0;
}

/* Returns the rounds of the hash that PBKDF2 takes for BYTES of output: each part of the
 * output, of the length of a hash, takes all iterations. */
static uint64_t
rounds (const struct parse *p, uint32_t iterations, size_t bytes)
{
  return iterations * div_up (bytes, p->hash_bytes);
}

/* Adds the rounds of slot I, which is active and therefore will be tested: its key is
 * derived, and a digest of the result. */
static int
count_rounds (struct parse *p, unsigned i)
{
  struct luks *l = p->l;

  l->rounds += rounds (p, l->slots[i].iterations, l->spec.key_bytes) +
    rounds (p, l->digest_iterations, LUKS_DIGEST_SIZE);
  if (l->rounds > LUKS_MAX_ROUNDS)
    return refuse_luks (p, SLOT_FIELD (i, iterations), "testing a passphrase on key "
                        "slots 0 to %u takes %" PRIu64 " rounds of %s, more "
                        "than %" PRIu64, i, l->rounds, l->hash, LUKS_MAX_ROUNDS);
  return 0;
}

/* The size of the encrypted key material, in whole sectors. */
static uint64_t
material_sectors (const struct luks *l)
{
  return div_up (l->spec.key_bytes * LUKS_STRIPES, SECTOR);
}

static int
check_slot (struct parse *p, unsigned i)
{
  const struct luks_slot_header *raw = &p->raw.slots[i];
  struct slot *slot = &p->l->slots[i];
  const uint64_t first = get32 (raw->material_sector);
  const uint64_t payload = get32 (p->raw.payload_sector);
  const uint64_t sectors = round_up (material_sectors (p->l), HEADER_SECTORS);

  if (get32 (raw->active) != LUKS_SLOT_ACTIVE &&
      get32 (raw->active) != LUKS_SLOT_INACTIVE)
    return refuse_luks (p, SLOT_FIELD (i, active), "key slot %u is marked %#" PRIx32
                        ", neither active nor inactive", i, get32 (raw->active));
  if (get32 (raw->stripes) != LUKS_STRIPES)
    return refuse_luks (p, SLOT_FIELD (i, stripes), "key slot %u has %" PRIu32
                        " stripes, not %d", i, get32 (raw->stripes), LUKS_STRIPES);
  if (first < HEADER_SECTORS)
    return refuse_luks (p, SLOT_FIELD (i, material_sector), "key slot %u is at sector "
                        "%" PRIu64 ", within the header", i, first);
  if (first + sectors > payload)
    return refuse_luks (p, SLOT_FIELD (i, material_sector), "key slot %u is at sector "
                        "%" PRIu64 " and ends beyond the payload's, %" PRIu64,
                        i, first, payload);
  for (unsigned j = 0; j < i; j++)
    if (ranges_overlap (first, sectors,
                        get32 (p->raw.slots[j].material_sector), sectors))
      return refuse_luks (p, SLOT_FIELD (i, material_sector),
                          "key slot %u at sector %" PRIu64
                          " overlaps key slot %u", i, first, j);

  slot->active = get32 (raw->active) == LUKS_SLOT_ACTIVE;
  slot->iterations = get32 (raw->iterations);
  slot->material = first * SECTOR;
  memcpy (slot->salt, raw->salt, sizeof slot->salt);
  if (!slot->active)
    return 0;
  /* The material of an active slot will be read. */
  if (!range_within (slot->material, material_sectors (p->l) * SECTOR, p->length))
    return refuse_luks (p, SLOT_FIELD (i, material_sector), "key slot %u is at sector "
                        "%" PRIu64 " and ends beyond the %" PRIu64 " bytes that the "
                        "image has for the header", i, first, p->length);
  if (slot->iterations == 0)
    return refuse_luks (p, SLOT_FIELD (i, iterations), "the number of iterations is 0");
  return count_rounds (p, i);
}

static int
check_header (struct parse *p, const void *buf, size_t len)
{
  struct luks *l = p->l;

  if (check_basics (p, buf, len) == -1 || check_algorithms (p) == -1)
    return -1;
  if (get32 (p->raw.payload_sector) < HEADER_SECTORS)
    return refuse_luks (p, FIELD (payload_sector), "the payload is at sector %" PRIu32
                        ", within the header", get32 (p->raw.payload_sector));

  memcpy (l->digest, p->raw.digest, sizeof l->digest);
  memcpy (l->digest_salt, p->raw.digest_salt, sizeof l->digest_salt);
  l->digest_iterations = get32 (p->raw.digest_iterations);
  if (l->digest_iterations == 0)
    return refuse_luks (p, FIELD (digest_iterations), "the number of iterations is 0");
  for (unsigned i = 0; i < LUKS_SLOTS; i++)
    if (check_slot (p, i) == -1)
      return -1;
  return 0;
}

int
luks_parse (const char *path, const void *buf, size_t len, uint64_t length,
            struct luks **result)
{
  struct luks *l = calloc (1, sizeof *l);
  struct parse p = { .path = path, .length = length, .l = l };

  if (l)
    l->path = strdup (path);
  if (l == NULL || l->path == NULL) {
    report_error ("%s: LUKS header: %m", path);
    luks_free (l);
    errno = ENOMEM;
    return -1;
  }
  if (check_header (&p, buf, len) == -1) {
    KEEP_ERRNO_FOR_BLOCK;

    luks_free (l);
    return -1;
  }
  *result = l;
  return 0;
}

void
luks_free (struct luks *l)
{
  if (l)
    free (l->path);
  free (l);
}

uint64_t
luks_rounds (const struct luks *l)
{
  return l->rounds;
}

/* --- keys --- */

/* All secrets in use while a slot is tested. */
struct secrets {
  uint8_t slot_key[MAX_KEY];    /* from the passphrase */
  uint8_t key[MAX_KEY];         /* of the disk, if the passphrase is right */
  uint8_t digest[LUKS_DIGEST_SIZE];
  uint8_t material[MAX_KEY * LUKS_STRIPES];     /* a multiple of SECTOR */
};

_Static_assert (sizeof ((struct secrets *) 0)->material % SECTOR == 0, "material");

/* What is needed to test slots. */
struct tools {
  const struct luks *l;
  struct luks_tools t;
  struct secrets *s;
};

int
luks_tools_init (struct luks_tools *t, const char *path, const char *hash)
{
  *t = (struct luks_tools) { .path = path, .md = crypt_hash (path, hash) };
  if (t->md == NULL)
    return -1;                  /* reported */
  errno = 0;
  t->md_ctx = EVP_MD_CTX_new ();
  t->kdf = EVP_KDF_fetch (NULL, OSSL_KDF_NAME_PBKDF2, NULL);
  if (t->md_ctx == NULL || t->kdf == NULL)
    return luks_failed (path, "cannot prepare to derive keys");
  return 0;
}

void
luks_tools_free (struct luks_tools *t)
{
  EVP_KDF_free (t->kdf);
  EVP_MD_CTX_free (t->md_ctx);
  EVP_MD_free (t->md);
}

int
luks_failed (const char *path, const char *what)
{
  return crypt_openssl_failed (path, "LUKS", what);
}

int
luks_derive (const struct luks_tools *t, const void *secret, size_t len,
             const uint8_t salt[LUKS_SALT_SIZE], uint64_t iterations,
             uint8_t *out, size_t out_len)
{
  EVP_KDF_CTX *ctx;
  int any_length = 1;           /* old images have values that are too small today */
  bool ok;
  /* OpenSSL does not write to these. */
  OSSL_PARAM params[] = {
    OSSL_PARAM_utf8_string (OSSL_KDF_PARAM_DIGEST,
                            (char *) EVP_MD_get0_name (t->md), 0),
    OSSL_PARAM_octet_string (OSSL_KDF_PARAM_PASSWORD, (void *) secret, len),
    OSSL_PARAM_octet_string (OSSL_KDF_PARAM_SALT, (void *) salt, LUKS_SALT_SIZE),
    OSSL_PARAM_uint64 (OSSL_KDF_PARAM_ITER, &iterations),
    OSSL_PARAM_int (OSSL_KDF_PARAM_PKCS5, &any_length),
    OSSL_PARAM_END,
  };

  params[0].data_size = strlen (params[0].data);
  errno = 0;
  ctx = EVP_KDF_CTX_new (t->kdf);
  ok = ctx && EVP_KDF_derive (ctx, out, out_len, params);
  EVP_KDF_CTX_free (ctx);
  return ok ? 0 : luks_failed (t->path, "PBKDF2 failed");
}

bool
luks_diffuse (const struct luks_tools *t, uint8_t *key, size_t key_bytes)
{
  uint8_t hash[EVP_MAX_MD_SIZE];
  const size_t step = EVP_MD_get_size (t->md);
  bool ok = true;

  errno = 0;
  for (size_t at = 0; ok && at < key_bytes; at += step) {
    const struct be32 number = put32 (at / step);
    const size_t n = min64 (step, key_bytes - at);

    ok = EVP_DigestInit_ex2 (t->md_ctx, t->md, NULL) &&
      EVP_DigestUpdate (t->md_ctx, &number, sizeof number) &&
      EVP_DigestUpdate (t->md_ctx, key + at, n) &&
      EVP_DigestFinal_ex (t->md_ctx, hash, NULL);
    if (ok)
      memcpy (key + at, hash, n);
  }
  OPENSSL_cleanse (hash, sizeof hash);
  return ok;
}

/* Merges 4000 pieces into the key: each piece is xored to the mixed result of the earlier
 * ones. */
static bool
merge (const struct tools *t)
{
  const size_t n = t->l->spec.key_bytes;
  uint8_t *key = t->s->key;

  memset (key, 0, n);
  for (unsigned i = 0; i < LUKS_STRIPES; i++) {
    if (i > 0 && !luks_diffuse (&t->t, key, n))
      return false;
    for (size_t k = 0; k < n; k++)
      key[k] ^= t->s->material[i * n + k];
  }
  return true;
}

/* Does the passphrase open this slot?  Returns 1 (the key is in t->s), 0 or -1. */
static int
try_slot (const struct tools *t, const struct slot *slot,
          luks_read_fn read, void *opaque, const void *passphrase, size_t len)
{
  const struct luks *l = t->l;
  struct secrets *s = t->s;
  const size_t bytes = material_sectors (l) * SECTOR;
  struct crypt_cipher *cipher;
  int r;

  if (read (opaque, s->material, slot->material, bytes) == -1 ||
      luks_derive (&t->t, passphrase, len, slot->salt, slot->iterations,
                   s->slot_key, l->spec.key_bytes) == -1)
    return -1;
  cipher = crypt_new (l->path, &l->spec, s->slot_key);
  if (cipher == NULL)
    return -1;
  r = crypt_decrypt (cipher, 0, s->material, s->material, bytes);
  if (r == -1)
    report_error ("%s: LUKS: cannot decrypt a key slot: %m", l->path);
  crypt_free (cipher);
  if (r == -1)
    return -1;
  if (!merge (t))
    return luks_failed (l->path, "cannot merge a key slot");
  if (luks_derive (&t->t, s->key, l->spec.key_bytes, l->digest_salt,
                   l->digest_iterations, s->digest, sizeof s->digest) == -1)
    return -1;
  return CRYPTO_memcmp (s->digest, l->digest, sizeof s->digest) == 0;
}

static int
try_slots (const struct tools *t, luks_read_fn read, void *opaque,
           const void *passphrase, size_t len, const char *cure)
{
  unsigned tried = 0;
  int r;

  for (unsigned i = 0; i < LUKS_SLOTS; i++) {
    if (!t->l->slots[i].active)
      continue;
    tried++;
    r = try_slot (t, &t->l->slots[i], read, opaque, passphrase, len);
    if (r == -1)
      return -1;
    if (r == 1) {
      report_debug ("%s: LUKS: the passphrase is that of key slot %u",
                    t->l->path, i);
      return 0;
    }
  }
  errno = EACCES;
  if (tried == 0)
    report_error ("%s: LUKS: no key slot is in use: no passphrase can unlock the image",
                  t->l->path);
  else
    report_error ("%s: LUKS: wrong passphrase: it does not open any of the %u key slots "
                  "in use%s%s", t->l->path, tried, cure ? "; " : "", cure ? cure : "");
  return -1;
}

/* Returns 0, or -1 (reported).  The caller calls end in either case. */
static int
begin_tools (struct tools *t, const struct luks *l)
{
  *t = (struct tools) { .l = l, .s = OPENSSL_malloc (sizeof *t->s) };
  if (luks_tools_init (&t->t, l->path, l->hash) == -1)
    return -1;
  if (t->s)
    return 0;
  errno = ENOMEM;
  return luks_failed (l->path, "cannot prepare to unlock");
}

static void
end (struct tools *t)
{
  KEEP_ERRNO_FOR_BLOCK;

  OPENSSL_clear_free (t->s, sizeof *t->s);
  luks_tools_free (&t->t);
}

int
luks_unlock (const struct luks *l, luks_read_fn read, void *opaque,
             const void *passphrase, size_t len, const char *cure,
             struct crypt_cipher **result)
{
  struct crypt_cipher *cipher = NULL;
  struct tools t;

  if (begin_tools (&t, l) == 0 &&
      try_slots (&t, read, opaque, passphrase, len, cure) == 0)
    cipher = crypt_new (l->path, &l->spec, t.s->key);
  end (&t);
  if (cipher == NULL)
    return -1;
  *result = cipher;
  return 0;
}

/* --- for changes of key slots --- */

int
luks_opens (const struct luks *l, luks_read_fn read, void *opaque,
            const void *passphrase, size_t len)
{
  struct tools t;
  int r = begin_tools (&t, l), set = 0;

  for (unsigned i = 0; r != -1 && i < LUKS_SLOTS; i++) {
    if (!l->slots[i].active)
      continue;
    r = try_slot (&t, &l->slots[i], read, opaque, passphrase, len);
    if (r == 1)
      set |= 1 << i;
  }
  end (&t);
  return r == -1 ? -1 : set;
}

unsigned
luks_active (const struct luks *l)
{
  unsigned set = 0;

  for (unsigned i = 0; i < LUKS_SLOTS; i++)
    if (l->slots[i].active)
      set |= 1u << i;
  return set;
}

void
luks_material (const struct luks *l, unsigned slot, uint64_t *offset, uint64_t *bytes)
{
  *offset = l->slots[slot].material;
  *bytes = material_sectors (l) * SECTOR;
}
