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
 * crash, a slot is in use and complete, or not in use.  The last slot in use is not
 * erased unless the user insists.
 *
 * Deriving a key from a passphrase takes seconds on purpose.  So it is done before the
 * change, while clients use the disk: which slots a passphrase opens, and the key
 * material of a new one, which is tested in memory.  The change then only writes, after
 * it has found the header as it was, and reads the material back before it becomes
 * active.
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

#include <openssl/rand.h>

#include "util/bytes.h"
#include "util/cleanup.h"
#include "util/memory.h"
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
  const struct keyedit *edit;   /* NULL: nothing is derived */
};

struct keychange {
  struct luks_header before;    /* that in the file */
  int erase_slot;               /* as in struct keyedit; and the next one */
  bool force;
  bool erases;                  /* a passphrase, which opens the slots of this set */
  unsigned opened;
  bool adds;
  unsigned slot;                /* the one to be added; and so is all that follows */
  struct luks_slot_header entry;
  uint64_t at, bytes;           /* of its key material, from the header on */
  uint8_t material[LUKS_MAX_KEY * LUKS_STRIPES];
};

/* CURE: what permits it, or NULL. */
static int
refuse_unless (const struct keys *k, const char *why, const char *cure)
{
  return report_refusal (EPERM, "%s: the keys cannot be changed: %s%s%s", k->path, why,
                         cure ? ": " : "", cure ? cure : "");
}

static int
refuse_keys (const struct keys *k, const char *why)
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

static int
load (struct keys *k)
{
  return read_header (k, &k->raw, 0, sizeof k->raw) == -1 ? -1
    : luks_parse (k->path, &k->raw, sizeof k->raw, k->length, &k->luks);
}

/* IMAGE: an image; K: zeros.  The caller calls luks_free in either case. */
static int
find_keys (struct keys *k, const struct image *image)
{
  const struct header *h = &image->header;

  *k = (struct keys) {
    .file = image->file, .path = storage_path (image->file),
    .offset = h->crypto.offset, .length = h->crypto.length,
  };
  return h->crypt_method == QCOW2_CRYPT_LUKS ? load (k)
    : refuse_keys (k, "the image is not encrypted with LUKS");
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
    return refuse_keys (k, "all of its key slots are in use");
  return refuse_keys (k, active & 1u << wanted
                      ? "the key slot for the new passphrase is in use: erase it first"
                      : "the image has no space for this key slot");
}

static int
begin_test (const struct keys *k)
{
  const struct keyedit *const e = k->edit;

  return e->step ? e->step (e->opaque) : 0;
}

/* The material of a slot that is tested next. */
static int
read_material (void *opaque, void *buf, uint64_t offset, size_t bytes)
{
  return begin_test (opaque) == -1 ? -1 : read_header (opaque, buf, offset, bytes);
}

/* The header with a new slot. */
struct trial {
  const struct keys *keys;
  const struct keychange *change;
};

static int
read_trial (void *opaque, void *buf, uint64_t offset, size_t bytes)
{
  const struct trial *t = opaque;
  const struct keychange *c = t->change;

  if (begin_test (t->keys) == -1)
    return -1;
  if (offset != c->at || bytes != c->bytes)
    return read_header ((void *) t->keys, buf, offset, bytes);
  memcpy (buf, c->material, bytes);
  return 0;
}

/* Would the header with this slot be accepted, and does the passphrase open it?  (Testing
 * one takes time on each active slot.) */
static int
test_slot (const struct keys *k, const struct keychange *c, const char *passphrase)
{
  struct luks_header raw = k->raw;
  struct trial trial = { k, c };
  struct luks *luks;
  int set;

  raw.slots[c->slot] = c->entry;
  if (luks_parse (k->path, &raw, sizeof raw, k->length, &luks) == -1)
    return -1;
  set = luks_opens (luks, read_trial, &trial, passphrase, strlen (passphrase));
  luks_free (luks);
  if (set == -1 || set & 1 << c->slot)
    return set == -1 ? -1 : 0;
  return refuse_keys (k, "the key of the disk in use is not the one in its header");
}

static int
prepare_slot (const struct keys *k, const void *key, const struct keyedit *e,
              struct keychange *c)
{
  const int slot = find_free (k, e->add_slot);

  if (slot == -1)
    return -1;
  c->adds = true;
  c->slot = slot;
  c->entry = k->raw.slots[slot];
  luks_material (k->luks, slot, &c->at, &c->bytes);
  return luksmake_slot (k->path, &k->raw, key, e->add, strlen (e->add), e->iter_ms,
                        &c->entry, c->material) == -1 ? -1
    : test_slot (k, c, e->add);
}

/* Does the file have the new slot's key material? */
static int
check_written (const struct keys *k, const struct keychange *c)
{
  CLEANUP_FREE uint8_t *material = memory_get (c->bytes);

  if (material == NULL ||
      storage_read (k->file, material, c->bytes, k->offset + c->at) == -1)
    return -1;
  if (memcmp (material, c->material, c->bytes) == 0)
    return 0;
  return report_refusal (EIO, "%s: the new passphrase does not open the key slot that "
                         "was written", k->path);
}

static int
add (const struct keys *k, const struct keychange *c)
{
  struct luks_slot_header inactive = c->entry;

  inactive.active = put32 (LUKS_SLOT_INACTIVE);
  if (storage_write (k->file, c->material, c->bytes, k->offset + c->at) == -1 ||
      write_entry (k, c->slot, &inactive) == -1 || storage_sync (k->file) == -1 ||
      check_written (k, c) == -1 || write_active (k, c->slot, LUKS_SLOT_ACTIVE) == -1)
    return -1;
  report_debug ("%s: LUKS: the passphrase was added in key slot %u", k->path, c->slot);
  return 0;
}

/* --- erasing --- */

/* Overwrites what a slot that is not in use contains. */
static int
wipe (const struct keys *k, unsigned slot)
{
  struct luks_slot_header entry = k->raw.slots[slot];
  CLEANUP_FREE uint8_t *noise = NULL;
  uint64_t at, bytes;

  if (!find_material (k, slot, &at, &bytes))
    return 0;
  noise = memory_get (LUKS_MAX_KEY * LUKS_STRIPES);
  if (noise == NULL)
    return -1;
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
choose (const struct keys *k, const struct keychange *c)
{
  const unsigned active = luks_active (k->luks);
  const bool numbered = c->erase_slot >= 0;
  const unsigned set = numbered ? 1u << c->erase_slot : c->opened;

  if (c->erases && c->opened == 0)
    return refuse_keys (k, "the passphrase to be erased opens no key slot");
  if (numbered && !(active & set))
    return refuse_keys (k, "the key slot to be erased is not in use");
  if (numbered && c->erases && !(c->opened & set))
    return refuse_keys (k, "the passphrase to be erased does not open the key slot to be "
                        "erased");
  if (!(active & ~set) && !c->adds && !c->force)
    return refuse_unless (k, "without its last key slot nobody can read the disk any "
                          "more", remedy (REMEDY_ERASE_LAST_KEY));
  return set;
}

/* --- the whole change --- */

static int
prepare (const struct image *image, const struct keyedit *e, struct keychange *c)
{
  struct keys k;
  int r = find_keys (&k, image), opened = 0;

  k.edit = e;
  c->before = k.raw;
  c->erase_slot = e->erase_slot;
  c->force = e->force;
  c->erases = e->erase != NULL;
  if (r == 0 && e->erase)
    r = opened = luks_opens (k.luks, read_material, &k, e->erase, strlen (e->erase));
  c->opened = opened;
  if (r != -1 && e->add)
    r = prepare_slot (&k, crypt_key (image->cipher), e, c);
  luks_free (k.luks);
  return r == -1 ? -1 : 0;
}

struct keychange *
keyedit_prepare (struct disk *d, const struct keyedit *e)
{
  struct keychange *c = memory_new (1, sizeof *c);

  if (c == NULL || prepare (disk_inside (d).view->image, e, c) == 0)
    return c;
  keyedit_free (c);
  return NULL;
}

void
keyedit_free (struct keychange *c)
{
  free (c);
}

static int
make (void *opaque, struct image *image)
{
  const struct keychange *c = opaque;
  struct keys k;
  int r = find_keys (&k, image), set = 0;

  if (r == 0 && memcmp (&k.raw, &c->before, sizeof k.raw) != 0)
    r = refuse_keys (&k, "they have changed meanwhile");
  if (r == 0 && (c->erases || c->erase_slot >= 0))
    r = set = wipe_rest (&k) == -1 ? -1 : choose (&k, c);
  if (r != -1)
    r = c->adds && add (&k, c) == -1 ? -1 : erase (&k, set);
  luks_free (k.luks);
  return r;
}

int
keyedit_make (struct disk *d, struct keychange *keys)
{
  const struct disk_change c = { .opaque = keys, .make = make, .data_file = true };

  return disk_change (d, &c);
}

int
keyedit_disk (struct disk *d, const struct keyedit *e)
{
  struct keychange *c = keyedit_prepare (d, e);
  const int r = c ? keyedit_make (d, c) : -1;

  keyedit_free (c);
  return r;
}
