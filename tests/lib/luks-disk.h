/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Encrypted disks created by qemu-img, and functions that unlock them.  See luks-disk.c.
 */

#ifndef TEST_LUKS_DISK_H
#define TEST_LUKS_DISK_H

#include <stdbool.h>
#include <stdint.h>

#include "format/crypt.h"
#include "format/header.h"
#include "format/luks.h"
#include "lib/images.h"

#define NAME "disk"
#define CLUSTER UINT64_C (65536)
#define DISK_SIZE (64 * CLUSTER)

extern const char passphrase[28];

#define DEFAULTS "cluster_size=65536,encrypt.format=luks" \
  ",encrypt.key-secret=s,encrypt.iter-time=10"

/* The file of an empty disk that qemu-img created with DEFAULTS; luks_disk_begin sets
 * it. */
extern struct blob luks_template;
extern void luks_disk_begin (void);

/* Creates a disk of FORMAT with these options.  Tries several times, because qemu-img
 * measures how fast the machine is, and fails if the result is 0.  Returns false if it
 * does not support the cipher. */
extern bool luks_disk_create (const char *format, const char *options,
                              const char *secret);

extern void add_secret (struct command *, const char *id, const char *data);
/* Did the last command print TEXT? */
extern bool log_says (const char *text);

/* The file, and the places of its parts. */
struct luks_disk {
  struct blob file;
  bool qcow2;
  uint64_t luks, length;        /* the LUKS header with its key material */
  uint64_t payload;             /* of a LUKS file */
  struct header h;
};
extern void luks_disk_load (struct luks_disk *, bool qcow2);
extern void luks_disk_free (struct luks_disk *);

/* A callback for luks_unlock, for such a disk. */
extern int read_area (void *opaque, void *buf, uint64_t offset, size_t bytes);

/* NULL if it cannot be unlocked; this was reported once. */
extern struct crypt_cipher *unlock (struct luks_disk *, const char *secret);
/* A wrong secret gets one clear message. */
extern void wrong (struct luks_disk *, const char *secret);

#endif /* TEST_LUKS_DISK_H */
