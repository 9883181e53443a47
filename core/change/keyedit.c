/* SPDX-License-Identifier: BSD-3-Clause
 *
 * How does an encrypted image come to be unlocked by other passphrases?
 *
 * Specification: "Full disk encryption header pointer"; "LUKS On-Disk Format
 * Specification", version 1.2.3.
 *
 * Each passphrase has a key slot in the LUKS header (luks.c).  The disk is not encrypted
 * anew.
 *
 *   add     1  write the key material, and all of the slot's entry, but as inactive
 *           2  write the word that makes it active
 *   erase   1  write the word that makes it inactive
 *           2  overwrite the key material with random bytes, and the entry with zeros
 *
 * Each step is durable before the next one, and the word lies in one sector.  So after a
 * crash, a slot is in use and complete, or not in use.  If a passphrase is exchanged for
 * another one, the new one is tested before the old one is erased.  The last slot in use
 * is not erased unless the user insists.
 *
 * A crash can leave the key material of a slot that is no longer in use: such slots still
 * have their salt.  The next time that anything is erased, they are overwritten, too.
 *
 * Locks: none; one thread.
 */

#include <config.h>

#include <errno.h>
#include <inttypes.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <openssl/crypto.h>
#include <openssl/rand.h>

#include "util/bytes.h"
#include "util/cleanup.h"
#include "util/remedy.h"
#include "util/report.h"
#include "format/crypt.h"
#include "format/format.h"
#include "format/luks.h"
#include "format/luksmake.h"
#include "change/keyedit.h"

struct keys {
  struct storage *file;
  const char *path;
  uint64_t offset, length;      /* of the LUKS header in the file, bytes */
  struct luks_header raw;
  struct luks *luks;            /* the same, parsed */
};

/* CURE: what permits it, or NULL. */
static int
refuse_unless (const struct keys *k, const char *why, const char *cure)
{
  report_error ("%s: the keys cannot be changed: %s%s%s", k->path, why, cure ? ": " : "",
                cure ? cure : "");
  errno = EPERM;
  return -1;
}

static int
refuse (const struct keys *k, const char *why)
{
  return refuse_unless (k, why, NULL);
}

/* --- the header --- */

static int
read_header (void *opaque, void *buf, uint64_t offset, size_t bytes)
{
  const struct keys *k = opaque;

  return storage_read (k->file, buf, bytes, k->offset + offset);
}

/* Reads it again. */
static int
load (struct keys *k)
{
  luks_free (k->luks);
  k->luks = NULL;
  return read_header (k, &k->raw, 0, sizeof k->raw) == -1 ? -1
    : luks_parse (k->path, &k->raw, sizeof k->raw, k->length, &k->luks);
}

/* As luks_opens. */
static int
opened_by (struct keys *k, const char *passphrase, uint8_t key[LUKS_MAX_KEY])
{
  return luks_opens (k->luks, read_header, k, passphrase, strlen (passphrase), key);
}

/* The same, without the key. */
static int
slots_of (struct keys *k, const char *passphrase)
{
  uint8_t key[LUKS_MAX_KEY];
  const int set = opened_by (k, passphrase, key);
  KEEP_ERRNO_FOR_BLOCK;

  OPENSSL_cleanse (key, sizeof key);
  return set;
}

/* Where the key material of a slot is in the file.  False: not where the image has space
 * for it. */
static bool
find_material (const struct keys *k, unsigned slot, uint64_t *at, uint64_t *bytes)
{
  luks_material (k->luks, slot, at, bytes);
  if (!range_within (*at, *bytes, k->length))
    return false;
  *at += k->offset;
  return true;
}

static int
write_entry (const struct keys *k, unsigned slot, const struct luks_slot_header *entry)
{
  const uint64_t at = k->offset + offsetof (struct luks_header, slots) +
    slot * sizeof *entry;

  return storage_write (k->file, entry, sizeof *entry, at);
}

/* The word lies in one sector.  Durable. */
static int
write_active (const struct keys *k, unsigned slot, uint32_t active)
{
  const struct be32 word = put32 (active);
  const uint64_t at = k->offset + offsetof (struct luks_header, slots) +
    slot * sizeof (struct luks_slot_header) + offsetof (struct luks_slot_header, active);

  return storage_write (k->file, &word, sizeof word, at) == -1 ? -1
    : storage_sync (k->file);
}

/* --- adding --- */

/* WANTED: a slot, or -1: the first free one. */
static int
find_free (const struct keys *k, int wanted)
{
  const unsigned active = luks_active (k->luks);
  uint64_t at, bytes;

  for (int i = 0; i < LUKS_SLOTS; i++)
    if ((wanted == -1 || i == wanted) && !(active & 1u << i) &&
        find_material (k, i, &at, &bytes))
      return i;
  if (wanted == -1)
    return refuse (k, "all of its key slots are in use");
  return refuse (k, active & 1u << wanted
                 ? "the key slot for the new passphrase is in use: erase it first"
                 : "the image has no space for this key slot");
}

/* Would the header with this entry still be accepted?  Testing a passphrase takes time on
 * each active slot. */
static int
check_entry (const struct keys *k, unsigned slot, const struct luks_slot_header *entry)
{
  struct luks_header raw = k->raw;
  struct luks *luks;

  raw.slots[slot] = *entry;
  if (luks_parse (k->path, &raw, sizeof raw, k->length, &luks) == -1)
    return -1;
  luks_free (luks);
  return 0;
}

static int
write_slot (const struct keys *k, unsigned slot, const struct luks_slot_header *entry,
            const void *material)
{
  struct luks_slot_header inactive = *entry;
  uint64_t at, bytes;

  inactive.active = put32 (LUKS_SLOT_INACTIVE);
  find_material (k, slot, &at, &bytes);
  return check_entry (k, slot, entry) == -1 ||
    storage_write (k->file, material, bytes, at) == -1 ||
    write_entry (k, slot, &inactive) == -1 || storage_sync (k->file) == -1 ? -1
    : write_active (k, slot, LUKS_SLOT_ACTIVE);
}

static int
add (struct keys *k, const uint8_t *key, const struct keyedit *e)
{
  CLEANUP_FREE uint8_t *material = malloc (LUKS_MAX_KEY * LUKS_STRIPES);
  const int slot = find_free (k, e->add_slot);
  struct luks_slot_header entry;
  int set;

  if (slot == -1)
    return -1;
  if (material == NULL) {
    report_error ("%s: key slot: %m", k->path);
    return -1;
  }
  entry = k->raw.slots[slot];
  if (luksmake_slot (k->path, &k->raw, key, e->add, strlen (e->add), e->iter_ms,
                     &entry, material) == -1 ||
      write_slot (k, slot, &entry, material) == -1 || load (k) == -1)
    return -1;
  set = slots_of (k, e->add);
  if (set == -1)
    return -1;
  if (!(set & 1 << slot)) {
    report_error ("%s: the new passphrase does not open the key slot that was written",
                  k->path);
    errno = EIO;
    return -1;
  }
  report_debug ("%s: LUKS: the passphrase was added in key slot %d", k->path, slot);
  return 0;
}

/* --- erasing --- */

/* Overwrites what a slot that is not in use contains. */
static int
wipe (const struct keys *k, unsigned slot)
{
  struct luks_slot_header entry = k->raw.slots[slot];
  CLEANUP_FREE uint8_t *noise = malloc (LUKS_MAX_KEY * LUKS_STRIPES);
  uint64_t at, bytes;

  if (!find_material (k, slot, &at, &bytes))
    return 0;
  if (noise == NULL) {
    report_error ("malloc: %m");
    return -1;
  }
  errno = 0;
  if (RAND_bytes (noise, bytes) != 1)
    return crypt_openssl_failed (k->path, "LUKS", "cannot get random bytes");
  if (storage_write (k->file, noise, bytes, at) == -1 || storage_sync (k->file) == -1)
    return -1;
  entry.active = put32 (LUKS_SLOT_INACTIVE);
  entry.iterations = put32 (0);
  memset (entry.salt, 0, sizeof entry.salt);
  return write_entry (k, slot, &entry) == -1 ? -1 : storage_sync (k->file);
}

/* What a crash has left. */
static int
wipe_rest (const struct keys *k)
{
  for (unsigned i = 0; i < LUKS_SLOTS; i++)
    if (!(luks_active (k->luks) & 1u << i) &&
        !bytes_are_zero (k->raw.slots[i].salt, sizeof k->raw.slots[i].salt) &&
        wipe (k, i) == -1)
      return -1;
  return 0;
}

static int
erase (const struct keys *k, unsigned set)
{
  for (unsigned i = 0; i < LUKS_SLOTS; i++)
    if ((set & 1u << i) &&
        (write_active (k, i, LUKS_SLOT_INACTIVE) == -1 || wipe (k, i) == -1))
      return -1;
  return 0;
}

/* Which slots are to be erased?  Returns a set, or -1 (reported). */
static int
choose (struct keys *k, const struct keyedit *e)
{
  const unsigned active = luks_active (k->luks);
  int set = 0;

  if (e->erase && (set = slots_of (k, e->erase)) == -1)
    return -1;
  if (e->erase && set == 0)
    return refuse (k, "the passphrase to be erased opens no key slot");
  if (e->erase_slot >= 0 && !(active & 1u << e->erase_slot))
    return refuse (k, "the key slot to be erased is not in use");
  if (e->erase_slot >= 0 && e->erase && !(set & 1 << e->erase_slot))
    return refuse (k, "the passphrase to be erased does not open the key slot to be "
                   "erased");
  if (e->erase_slot >= 0)
    set = 1 << e->erase_slot;
  if (!(active & ~set) && !e->add && !e->force)
    return refuse_unless (k, "without its last key slot nobody can read the disk any "
                          "more", remedy (REMEDY_ERASE_LAST_KEY));
  return set;
}

/* --- the whole change --- */

static int
change (struct keys *k, const char *passphrase, const struct keyedit *e,
        uint8_t key[LUKS_MAX_KEY])
{
  const bool erases = e->erase || e->erase_slot >= 0;
  int opened, set = 0;

  if (load (k) == -1 || (erases && wipe_rest (k) == -1) ||
      (erases && (set = choose (k, e)) == -1))
    return -1;
  opened = opened_by (k, passphrase, key);
  if (opened == 0)
    return refuse (k, "the passphrase opens no key slot any more");
  return opened == -1 || (e->add && add (k, key, e) == -1) ? -1
    : erase (k, set);
}

struct editing {
  const char *passphrase;
  const struct keyedit *edit;
};

static int
make (void *opaque, struct image *image)
{
  const struct editing *editing = opaque;
  const struct header *h = &image->header;
  struct keys k = { .file = image->file, .path = storage_path (image->file) };
  uint8_t key[LUKS_MAX_KEY];
  int r;

  if (h->crypt_method != QCOW2_CRYPT_LUKS)
    return refuse (&k, "the image is not encrypted with LUKS");
  k.offset = h->crypto.offset;
  k.length = h->crypto.length;
  r = change (&k, editing->passphrase, editing->edit, key);
  KEEP_ERRNO_FOR_BLOCK;
  OPENSSL_cleanse (key, sizeof key);
  luks_free (k.luks);
  return r;
}

int
keyedit_disk (struct disk *d, const char *passphrase, const struct keyedit *e)
{
  struct editing editing = { passphrase, e };
  const struct disk_change c = { .opaque = &editing, .make = make, .data_file = true };

  return disk_change (d, &c);
}
