/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What does a LUKS header contain, is it valid, and which key does a passphrase yield?
 * See luks.c.  Pure: no files.
 */

#ifndef QCOW2_LUKS_H
#define QCOW2_LUKS_H

#include <stddef.h>
#include <stdint.h>

#include "util/bytes.h"
#include "format/crypt.h"

/* "LUKS On-Disk Format Specification", version 1.2.3.  Offsets are in sectors of 512
 * bytes, from the beginning of the header. */
#define LUKS_MAGIC "LUKS\xba\xbe"
#define LUKS_SLOTS 8
#define LUKS_SALT_SIZE 32
#define LUKS_DIGEST_SIZE 20
#define LUKS_STRIPES 4000
/* Two keys of 256 bits. */
#define LUKS_MAX_KEY 64

#define LUKS_SLOT_ACTIVE   0x00ac71f3u
#define LUKS_SLOT_INACTIVE 0x0000deadu

struct luks_slot_header {
  struct be32 active;                   /* one of the two above */
  struct be32 iterations;               /* of PBKDF2; not 0 if active */
  uint8_t salt[LUKS_SALT_SIZE];
  struct be32 material_sector;          /* >= 8 */
  struct be32 stripes;                  /* 4000 */
} __attribute__ ((packed));

struct luks_header {
  uint8_t magic[6];
  struct be16 version;                  /* 1 */
  char cipher[32];                      /* NUL-terminated, as are the next two */
  char mode[32];
  char hash[32];
  struct be32 payload_sector;           /* after all key material */
  struct be32 key_bytes;                /* of the key of the disk */
  uint8_t digest[LUKS_DIGEST_SIZE];     /* of that key */
  uint8_t digest_salt[LUKS_SALT_SIZE];
  struct be32 digest_iterations;        /* not 0 */
  char uuid[40];
  struct luks_slot_header slots[LUKS_SLOTS];
} __attribute__ ((packed));

_Static_assert (sizeof (struct luks_slot_header) == 48, "key slot is 48 bytes");
_Static_assert (sizeof (struct luks_header) == 592, "LUKS header is 592 bytes");
_Static_assert (offsetof (struct luks_header, payload_sector) == 104, "payload");
_Static_assert (offsetof (struct luks_header, digest_iterations) == 164, "digest");
_Static_assert (offsetof (struct luks_header, slots) == 208, "slots");

/* Maximum number of rounds of a hash for testing a passphrase on all active key slots: a
 * few minutes, for headers whose owner wants them to be slow.  Headers that need more are
 * refused. */
#define LUKS_MAX_ROUNDS (UINT64_C (1) << 29)
/* The same for an untrusted image: half a minute at most, and several times what the
 * defaults of qemu-img amount to on fast machines. */
#define LUKS_UNTRUSTED_ROUNDS (UINT64_C (1) << 26)

/* Parses and checks a header.  BUF contains its first LEN bytes (592 are enough).  LENGTH
 * is the number of bytes that the image has for the header and the key material.  PATH is
 * for messages.  Returns 0, or -1 with errno EINVAL, ENOTSUP (a cipher or hash that is
 * not supported) or ENOMEM, and the error reported.  On success, the caller frees the
 * result with luks_free. */
struct luks;
extern int luks_parse (const char *path, const void *buf, size_t len,
                       uint64_t length, struct luks **);
extern void luks_free (struct luks *);  /* accepts NULL */
/* The number of rounds of its hash that it takes to reject a wrong passphrase. */
extern uint64_t luks_rounds (const struct luks *);

/* Reads BYTES at OFFSET from the beginning of the header, always within the LENGTH above.
 * Returns 0, or -1 with errno set and the error reported. */
typedef int (*luks_read_fn) (void *opaque, void *buf,
                             uint64_t offset, size_t bytes);

/* Makes the cipher of the disk, if PASSPHRASE opens one of the key slots.  Takes seconds.
 * Returns 0, or -1 with the error reported and errno set: EACCES if it opens none; CURE
 * (or NULL) is what can be done then.  The caller numbers the sectors for which it uses
 * the cipher.  The caller wipes PASSPHRASE; everything else that is secret is wiped
 * here. */
extern int luks_unlock (const struct luks *, luks_read_fn, void *opaque,
                        const void *passphrase, size_t len, const char *cure,
                        struct crypt_cipher **);

/* Which key slots does PASSPHRASE open?  Tests all active ones.  Returns a set of bits
 * 1 << number, 0 if none (not reported), or -1 (reported). */
extern int luks_opens (const struct luks *, luks_read_fn, void *opaque,
                       const void *passphrase, size_t len);

/* The set of all active key slots. */
extern unsigned luks_active (const struct luks *);
/* The key material of a slot: bytes from the beginning of the header, and its length in
 * whole sectors.  Only that of an active slot is known to lie within the LENGTH of
 * luks_parse. */
extern void luks_material (const struct luks *, unsigned slot, uint64_t *offset,
                           uint64_t *bytes);

#endif /* QCOW2_LUKS_H */
