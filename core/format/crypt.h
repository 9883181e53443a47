/* SPDX-License-Identifier: BSD-3-Clause
 *
 * How are sectors encrypted and decrypted?  See crypt.c.  Pure: no files.
 */

#ifndef QCOW2_CRYPT_H
#define QCOW2_CRYPT_H

#include <stddef.h>
#include <stdint.h>

#include <openssl/types.h>

#define CRYPT_SECTOR 512

/* How sectors are encrypted, in the terms of dm-crypt and of LUKS headers. */
struct crypt_spec {
  const char *cipher;   /* "aes" */
  const char *mode;     /* "xts-plain64", "cbc-essiv:sha256", ... */
  size_t key_bytes;     /* of the whole key; in XTS mode, of its two keys together */
};

/* Does this OpenSSL support SPEC?  Returns 0, or -1 with errno ENOTSUP (or ENOMEM) and
 * the error reported, with PATH and the name of what is missing. */
extern int crypt_check (const char *path, const struct crypt_spec *);

/* A cipher with its key.  Any number of threads may use it at the same time.  The caller
 * wipes KEY (key_bytes long).  NULL: errno is set, and the error reported. */
struct crypt_cipher;
extern struct crypt_cipher *crypt_new (const char *path, const struct crypt_spec *,
                                       const void *key);
/* The same for the encryption method that preceded LUKS: AES-128-CBC, with the passphrase
 * itself as the key. */
extern struct crypt_cipher *crypt_new_legacy (const char *path,
                                              const void *passphrase, size_t len);
/* Wipes the key and everything derived from it.  Accepts NULL. */
extern void crypt_free (struct crypt_cipher *);

/* The key, for key slots that open it.  It belongs to the cipher. */
extern const void *crypt_key (const struct crypt_cipher *);

/* BYTES is a multiple of 512; SECTOR is the number of the first sector.  IN and OUT may
 * be the same buffer, but may not overlap otherwise.  Returns 0, or -1 with errno EIO or
 * ENOMEM and nothing reported, because only the caller can name the offset; then the
 * contents of OUT are undefined. */
extern int crypt_encrypt (struct crypt_cipher *, uint64_t sector,
                          const void *in, void *out, size_t bytes);
extern int crypt_decrypt (struct crypt_cipher *, uint64_t sector,
                          const void *in, void *out, size_t bytes);

/* Returns the hash of that name, if LUKS headers may use it; the caller frees it with
 * EVP_MD_free.  NULL: errno is ENOTSUP or ENOMEM, and the error reported. */
extern EVP_MD *crypt_hash (const char *path, const char *name);

/* Reports "PATH: PART: WHAT" and the error of OpenSSL, for operations that fail only for
 * lack of memory, or not at all.  OpenSSL's own errors do not always tell these apart,
 * but malloc sets errno: the caller sets it to 0 before the operation.  Returns -1 with
 * errno ENOMEM or EIO. */
extern int crypt_openssl_failed (const char *path, const char *part,
                                 const char *what);

#endif /* QCOW2_CRYPT_H */
