/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Sectors of 512 bytes <-> encrypted sectors: see crypt.c.  Pure: no files.
 */

#ifndef QCOW2_CRYPT_H
#define QCOW2_CRYPT_H

#include <stddef.h>
#include <stdint.h>

#include <openssl/types.h>

#define CRYPT_SECTOR 512

/* How sectors are encrypted, in the words of dm-crypt and of LUKS headers. */
struct crypt_spec {
  const char *cipher;   /* "aes" */
  const char *mode;     /* "xts-plain64", "cbc-essiv:sha256", ... */
  size_t key_bytes;     /* of the whole key; in XTS mode, which has two, of both */
};

/* Can this OpenSSL do that?  0, or -1 with errno ENOTSUP (ENOMEM) and the error
 * reported, with PATH and the name of what is missing. */
extern int crypt_check (const char *path, const struct crypt_spec *);

/* A cipher with its key, for any number of threads at once.  The caller wipes KEY
 * (key_bytes long).  NULL: errno is set, and the error reported. */
struct crypt_cipher;
extern struct crypt_cipher *crypt_new (const char *path, const struct crypt_spec *,
                                       const void *key);
/* The same for the encryption method that came before LUKS: AES-128-CBC, and the
 * passphrase itself is the key. */
extern struct crypt_cipher *crypt_new_legacy (const char *path,
                                              const void *passphrase, size_t len);
/* Wipes what it knew.  NULL is fine. */
extern void crypt_free (struct crypt_cipher *);

/* BYTES is a multiple of 512; SECTOR is the number of the first.  IN and OUT may be
 * the same buffer, but may not overlap otherwise.  0, or -1 with errno EIO or
 * ENOMEM and nothing reported, for only the caller can name the offset; then
 * the contents of OUT are undefined.
 */
extern int crypt_encrypt (struct crypt_cipher *, uint64_t sector,
                          const void *in, void *out, size_t bytes);
extern int crypt_decrypt (struct crypt_cipher *, uint64_t sector,
                          const void *in, void *out, size_t bytes);

/* The hash of that name, if LUKS headers may name it; EVP_MD_free it.  NULL:
 * errno ENOTSUP, and the error reported. */
extern EVP_MD *crypt_hash (const char *path, const char *name);

/* OpenSSL failed at what it should be able to do: reports "PATH: PART: WHAT", and what
 * OpenSSL says.  Returns -1, errno is EIO. */
extern int crypt_openssl_failed (const char *path, const char *part,
                                 const char *what);

#endif /* QCOW2_CRYPT_H */
