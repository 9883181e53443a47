/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Encrypted disks of qemu-img's, and what it takes to unlock them.  See luks-disk.c.
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

/* The file of an empty disk that qemu-img made with these: luks_disk_begin makes it. */
extern struct blob luks_template;
extern void luks_disk_begin (void);

/* Makes a disk of FORMAT with these options; again and again, as qemu-img measures how
 * fast it is, and gives up where that comes out as 0.  False if it does not know the
 * cipher. */
extern bool luks_disk_create (const char *format, const char *options,
                              const char *secret);

extern void add_secret (struct command *, const char *id, const char *data);
/* Did the last command? */
extern bool log_says (const char *text);

/* The file, and where things are in it. */
struct luks_disk {
  struct blob file;
  bool qcow2;
  uint64_t luks, length;        /* the LUKS header and what belongs to it */
  uint64_t payload;             /* of a LUKS file */
  struct header h;
};
extern void luks_disk_load (struct luks_disk *, bool qcow2);
extern void luks_disk_free (struct luks_disk *);

/* For luks_unlock, on such a disk. */
extern int read_area (void *opaque, void *buf, uint64_t offset, size_t bytes);

/* NULL: it cannot be unlocked, and that was reported once. */
extern struct crypt_cipher *unlock (struct luks_disk *, const char *secret);
/* The wrong ones get one clear message. */
extern void wrong (struct luks_disk *, const char *secret);

#endif /* TEST_LUKS_DISK_H */
