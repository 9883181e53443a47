/* SPDX-License-Identifier: BSD-3-Clause
 *
 * How does a fuzzer not spend its time on PBKDF2?
 *
 * Each start of a server derives the keys of an encrypted image again, and with a
 * sanitizer that takes seconds.  The programs that are linked with this file remember
 * results (the linker's --wrap: calls of EVP_KDF_derive come here), and they derive with
 * MOST iterations where an image asks for more: such an image does not open here, but
 * then nobody knows its passphrase.  (That images which take too long are refused, is not
 * for a fuzzer to find: see serve/luks-rounds.sh.)
 *
 * One thread.
 */

#include <config.h>

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include <openssl/core_names.h>
#include <openssl/kdf.h>
#include <openssl/params.h>

/* qemu-img writes some ten thousand for 10 ms. */
#define MOST 200000

#define MAX_BYTES 512           /* of a key, and of each parameter */
#define RESULTS 256

struct question {
  uint64_t iterations;
  size_t lengths[4];            /* of the key, digest's name, passphrase and salt */
  uint8_t bytes[3][MAX_BYTES];
};

static struct result {
  struct question question;
  uint8_t key[MAX_BYTES];
} results[RESULTS];
static unsigned used, oldest;

extern int __real_EVP_KDF_derive (EVP_KDF_CTX *ctx, unsigned char *key, size_t len,
                                  const OSSL_PARAM params[]);
extern int __wrap_EVP_KDF_derive (EVP_KDF_CTX *ctx, unsigned char *key, size_t len,
                                  const OSSL_PARAM params[]);

/* Copies a parameter; false if there is none, or if it is longer. */
static bool
take (struct question *q, unsigned i, const OSSL_PARAM params[], const char *name)
{
  const OSSL_PARAM *p = OSSL_PARAM_locate_const (params, name);

  if (p == NULL || p->data_size > MAX_BYTES)
    return false;
  memcpy (q->bytes[i], p->data, p->data_size);
  q->lengths[i + 1] = p->data_size;
  return true;
}

int
__wrap_EVP_KDF_derive (EVP_KDF_CTX *ctx, unsigned char *key, size_t len,
                       const OSSL_PARAM params[])
{
  const OSSL_PARAM *iter = OSSL_PARAM_locate_const (params, OSSL_KDF_PARAM_ITER);
  struct question q;
  struct result *r;
  unsigned i;

  memset (&q, 0, sizeof q);
  q.lengths[0] = len;
  /* Nothing is encrypted with an empty passphrase: this measures the time. */
  if (len > MAX_BYTES || iter == NULL || !OSSL_PARAM_get_uint64 (iter, &q.iterations) ||
      !take (&q, 0, params, OSSL_KDF_PARAM_DIGEST) ||
      !take (&q, 1, params, OSSL_KDF_PARAM_PASSWORD) ||
      !take (&q, 2, params, OSSL_KDF_PARAM_SALT) || q.lengths[2] == 0)
    return __real_EVP_KDF_derive (ctx, key, len, params);

  if (q.iterations > MOST) {
    q.iterations = MOST;
    *(uint64_t *) iter->data = MOST;
  }
  for (i = 0; i < used; i++)
    if (memcmp (&results[i].question, &q, sizeof q) == 0) {
      memcpy (key, results[i].key, len);
      return 1;
    }
  if (!__real_EVP_KDF_derive (ctx, key, len, params))
    return 0;
  if (used < RESULTS)
    r = &results[used++];
  else
    r = &results[oldest++ % RESULTS];
  r->question = q;
  memcpy (r->key, key, len);
  return 1;
}
