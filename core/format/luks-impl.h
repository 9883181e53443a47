/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What do reading and creating a LUKS header share?  Only luks.c and luksmake.c include
 * this.
 */

#ifndef QCOW2_LUKS_IMPL_H
#define QCOW2_LUKS_IMPL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <openssl/evp.h>
#include <openssl/kdf.h>

#include "format/luks.h"

/* Sectors of the header itself; key material takes up a multiple of this. */
#define LUKS_HEADER_SECTORS 8

/* Objects of OpenSSL, for one thread. */
struct luks_tools {
  const char *path;             /* for messages */
  EVP_MD *md;
  EVP_MD_CTX *md_ctx;
  EVP_KDF *kdf;
};

/* Returns 0, or -1 (reported).  The caller calls luks_tools_free in either case. */
extern int luks_tools_init (struct luks_tools *, const char *path, const char *hash);
extern void luks_tools_free (struct luks_tools *);

/* Reports the error of OpenSSL.  Returns -1 with errno EIO. */
extern int luks_failed (const char *path, const char *what);

/* PBKDF2.  Returns 0, or -1 (reported). */
extern int luks_derive (const struct luks_tools *, const void *secret, size_t len,
                        const uint8_t salt[LUKS_SALT_SIZE], uint64_t iterations,
                        uint8_t *out, size_t out_len);
/* Mixes the bytes of a key, so that each depends on several others.  False on error (not
 * reported). */
extern bool luks_diffuse (const struct luks_tools *, uint8_t *key, size_t key_bytes);

#endif /* QCOW2_LUKS_IMPL_H */
