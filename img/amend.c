/* SPDX-License-Identifier: BSD-3-Clause
 *
 * amend: other options and passphrases for an image that exists.
 *
 * The core makes the changes (amend.c, keyedit.c and edit.c there): passphrases, then the
 * version and the features, then the size.  Whatever can be judged before is, so that a
 * list of options is refused as a whole.
 *
 * Locks: none.
 */

#include <config.h>

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <sys/random.h>

#include <openssl/evp.h>

#include "util/jsontext.h"
#include "util/memory.h"
#include "util/report.h"
#include "format/luks.h"
#include "change/amend.h"
#include "change/edit.h"
#include "change/keyedit.h"
#include "img/change.h"
#include "img/live.h"
#include "img/newoptions.h"
#include "img/progress.h"
#include "img/secrets.h"
#include "img/values.h"

#define SECTOR 512

static const struct option
  option_amended = {
    'o', "options", "OPTIONS", "KEY=VALUE,...: what is to change; help lists what can"
  },
  option_force = {
    0, "force", NULL, "erase also the last passphrase; make the disk smaller"
  };

static const struct { const char *name, *text; } all[] = {
  { "compat", "the version of the format: 0.10 (v2) or 1.1 (v3)" },
  { "data_file", "the name of the external data file in the header" },
  { "data_file_raw", "off: the data file is not a raw image any more" },
  { "encrypt.iter-time", "milliseconds to test the new passphrase (2000)" },
  { "encrypt.keyslot", "the key slot that is used or erased" },
  { "encrypt.new-secret", "the id of the passphrase that is added" },
  { "encrypt.old-secret", "the id of the passphrase that is erased" },
  { "encrypt.state", "active to add a passphrase, inactive to erase one" },
  { "lazy_refcounts", "postpone updates of refcounts" },
  { "refcount_bits", "the width of refcounts: 1, 2, 4, ... 64" },
  { "size", "the size of the disk" },
};

struct amending {
  struct key_values kv;         /* what -o says */
  const char *passphrase;       /* that opens the image; in use, it is open */
  struct keyedit keys;
  bool changes_keys, changes_features, changes_size, force;
  struct amend amend;
  struct edit edit;
};

static int
refuse_amend (const char *why)
{
  return report_refusal (EINVAL, "%s", why);
}

/* --- the features --- */

static int
read_choice (struct key_values *kv, const char *key, enum amend_choice *choice, bool *given)
{
  const char *text = key_values_take (kv, key);
  char what[40];
  bool on;

  if (text == NULL)
    return 0;
  snprintf (what, sizeof what, "%s=", key);
  if (parse_switch (what, text, &on) == -1)
    return -1;
  *choice = on ? AMEND_ON : AMEND_OFF;
  *given = true;
  return 0;
}

static int
read_features (struct key_values *kv, struct amending *m)
{
  const char *compat = key_values_take (kv, "compat");
  const char *bits = key_values_take (kv, "refcount_bits");
  uint64_t n = 0;

  m->amend.data_file = key_values_take (kv, "data_file");
  if ((compat && parse_compat ("compat=", compat, &m->amend.version) == -1) ||
      (bits && parse_number ("refcount_bits=", bits, 1, 64, &n) == -1) ||
      read_choice (kv, "lazy_refcounts", &m->amend.lazy_refcounts,
                   &m->changes_features) == -1 ||
      read_choice (kv, "data_file_raw", &m->amend.data_file_raw, &m->changes_features) == -1)
    return -1;
  m->amend.refcount_bits = n;
  m->changes_features |= compat || bits || m->amend.data_file;
  return 0;
}

static int
read_size (struct key_values *kv, struct amending *m)
{
  const char *text = key_values_take (kv, "size");

  m->changes_size = text != NULL;
  m->edit.kind = EDIT_RESIZE;
  if (text == NULL)
    return 0;
  if (parse_size ("size=", text, &m->edit.size) == -1)
    return -1;
  return m->edit.size == 0 || m->edit.size % SECTOR
    ? refuse_amend ("-o: the new size must be a multiple of 512, and greater than 0") : 0;
}

/* --- passphrases --- */

static int
read_key_options (struct key_values *kv, struct keyedit *k, bool adds)
{
  const char *slot = key_values_take (kv, "encrypt.keyslot");
  const char *iter = adds ? key_values_take (kv, "encrypt.iter-time") : NULL;
  uint64_t n, ms = 2000;

  if ((slot && parse_number ("encrypt.keyslot=", slot, 0, LUKS_SLOTS - 1, &n) == -1) ||
      (iter && parse_number ("encrypt.iter-time=", iter, 1, MAX_ITER_TIME, &ms) == -1))
    return -1;
  if (slot)
    *(adds ? &k->add_slot : &k->erase_slot) = n;
  k->iter_ms = ms;
  return 0;
}

static int
read_keys (struct key_values *kv, const struct secrets *s, struct amending *m)
{
  const char *state = key_values_take (kv, "encrypt.state"), *id, *text = NULL;
  const bool adds = state && strcmp (state, "active") == 0;

  key_values_take (kv, "encrypt.format");
  id = key_values_take (kv, adds ? "encrypt.new-secret" : "encrypt.old-secret");
  if (state == NULL || (!adds && strcmp (state, "inactive") != 0) ||
      (id == NULL && (adds || key_values_get (kv, "encrypt.keyslot") == NULL)))
    return refuse_amend ("either encrypt.state=active with encrypt.new-secret=ID (and "
                         "encrypt.keyslot=N, a free one) or encrypt.state=inactive with "
                         "encrypt.old-secret=ID or encrypt.keyslot=N is required");
  if (m->passphrase == NULL)
    return refuse_amend ("the secret that opens the image is required: --image-opts "
                         "driver=qcow2,file.filename=NAME,encrypt.key-secret=ID");
  if (id && (text = secrets_get (s, id)) == NULL)
    return -1;
  if (adds && text[0] == '\0')
    return refuse_amend ("encrypt.new-secret=: the passphrase must not be empty");
  *(adds ? &m->keys.add : &m->keys.erase) = text;
  m->keys.force = m->force;
  m->changes_keys = true;
  if (read_key_options (kv, &m->keys, adds) == -1)
    return -1;
  if (key_values_left (kv, "encrypt.") == NULL)
    return 0;
  return report_refusal (EINVAL, "-o: '%s' cannot be used with encrypt.state=%s",
                         key_values_left (kv, "encrypt."), state);
}

/* --- all of it --- */

static int
refuse_others (const struct key_values *kv)
{
  const char *key = key_values_left (kv, "");

  if (key == NULL)
    return 0;
  report_error ("-o: '%s' cannot be amended: %s", key,
                strncmp (key, "backing_", 8) == 0 ? "use rebase -u"
                : "convert makes a new image with other options");
  errno = EINVAL;
  return -1;
}

static int
read_options (struct key_values *kv, const struct secrets *s, struct amending *m)
{
  return read_features (kv, m) == -1 || read_size (kv, m) == -1 ||
    (key_values_left (kv, "encrypt.") && read_keys (kv, s, m) == -1) ||
    refuse_others (kv) == -1 ? -1 : 0;
}

static int
make (void *opaque, struct disk *disk)
{
  static const struct chunks_watch watch = { .step = progress_step };
  const struct amending *m = opaque;
  const struct edit_options options = { .shrink = m->force, .watch = &watch };

  if (m->changes_size && !m->force && m->edit.size < disk_inside (disk).view->size)
    return refuse_amend ("-o: the disk would become smaller: use resize --shrink, or "
                         "--force");
  if (m->changes_keys && keyedit_disk (disk, &m->keys) == -1)
    return -1;
  if (m->changes_features && amend_disk (disk, &m->amend) == -1)
    return -1;
  return m->changes_size ? edit_disk (disk, &options, &m->edit, 1) : 0;
}

/* All that -o says. */
static int
read_all (const struct arguments *a, const struct secrets *s, struct amending *m)
{
  const char *text;
  unsigned i = 0;

  while ((text = next_value (a, &option_amended, &i)))
    if (key_values_add_options (&m->kv, text) == -1)
      return -1;
  return m->kv.n == 0 ? refuse_amend ("-o is required: what is to change")
    : read_options (&m->kv, s, m);
}

static int
amend (const struct arguments *a, struct imagefile *f, const struct secrets *s)
{
  struct amending m = {
    .passphrase = f->options.secret.passphrase, .keys = { KEYEDIT_NONE },
    .force = is_given (a, &option_force),
  };
  int r = read_all (a, s, &m);

  if (r == 0) {
    progress_begin (a, false);
    r = change_image (f, m.changes_size, make, &m);
    progress_end (r == 0);
  }
  key_values_free (&m.kv);
  return r;
}

/* --- on a disk in use --- */

/* What QMP says of the change.  ID: of the secret. */
static json_t *
describe (const struct keyedit *k, const char *id)
{
  const bool adds = k->add;
  const int slot = adds ? k->add_slot : k->erase_slot;
  json_t *luks = jsontext_object (
    { "format", jsontext_string ("luks") },
    { "state", jsontext_string (adds ? "active" : "inactive") });

  if (k->add || k->erase)
    luks = jsontext_add (luks, { adds ? "new-secret" : "old-secret", jsontext_string (id) });
  if (slot >= 0)
    luks = jsontext_add (luks, { "keyslot", jsontext_number (slot) });
  if (adds)
    luks = jsontext_add (luks, { "iter-time", jsontext_number (k->iter_ms) });
  return jsontext_object ({ "driver", jsontext_string ("qcow2") }, { "encrypt", luks });
}

/* Gives the server the passphrase, as bytes: JSON has only text. */
static int
give_secret (struct live *l, const char *id, const char *text)
{
  const size_t len = strlen (text), size = len / 3 * 4 + 5;
  char *encoded = memory_get (size);
  int r = -1;

  if (encoded == NULL)
    return -1;
  EVP_EncodeBlock ((unsigned char *) encoded, (const unsigned char *) text, len);
  r = live_do (l, "object-add", jsontext_object (
    { "qom-type", jsontext_string ("secret") }, { "id", jsontext_string (id) },
    { "data", jsontext_string (encoded) }, { "format", jsontext_string ("base64") }));
  explicit_bzero (encoded, size);
  free (encoded);
  return r;
}

static int
change_keys_live (const struct arguments *a, struct live *l, const struct keyedit *k)
{
  const char *text = k->add ? k->add : k->erase;
  uint64_t number = 0;
  json_t *options;
  char id[64];
  int r;

  /* (Of a program that was killed, the secret is still there, perhaps with the same
     PID.) */
  if (getrandom (&number, sizeof number, 0) == -1) {
    report_error ("getrandom: %m");
    return -1;
  }
  snprintf (id, sizeof id, "%s.%016" PRIx64, PROGRAM, number);
  if (text && give_secret (l, id, text) == -1)
    return -1;
  options = describe (k, id);
  r = live_job (l, a, LIVE_AMEND, jsontext_object (
    { "node-name", json_incref (json_object_get (live_inserted (l), "node-name")) },
    { "options", options }, { "force", json_boolean (k->force) }));
  if (text && live_do (l, "object-del", jsontext_object (
        { "id", jsontext_string (id) })) == -1)
    r = -1;
  return r;
}

static int
amend_live (const struct arguments *a, struct live *l)
{
  struct amending m = {
    .passphrase = "", .keys = { KEYEDIT_NONE }, .force = is_given (a, &option_force),
  };
  struct secrets *s = secrets_read (a);
  int r = -1;

  if (s && live_inserted (l) && read_all (a, s, &m) == 0)
    r = m.changes_keys && !m.changes_features && !m.changes_size
      ? change_keys_live (a, l, &m.keys)
      : refuse_amend ("-o: with --control, only passphrases (encrypt.) can be amended; "
                      "resize changes the size");
  key_values_free (&m.kv);
  secrets_free (s);
  return r;
}

static const struct option *const live_options[] = {
  &option_object, &option_quiet, &option_progress, &option_amended, &option_force, NULL
};

static int
run (const struct arguments *a)
{
  if (newoptions_asks_for_help (a, &option_amended)) {
    puts ("Supported options:");
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
      printf ("  %-20s %s\n", all[i].name, all[i].text);
    return EXIT_SUCCESS;
  }
  if (a->nr_operands == 0) {
    report_error ("usage: %s amend [OPTION...] -o OPTIONS IMAGE", PROGRAM);
    return EXIT_FAILURE;
  }
  return change_command (a, "options that could be amended", amend);
}

static const struct option *const options[] = {
  &option_format, &option_quiet, &option_progress, &option_cache, &option_amended,
  &option_force, IMAGE_OPTIONS, NULL
};

const struct command amend_command = {
  "amend", "-o OPTIONS IMAGE",
  "Change options of an image that exists: its version, and some features.",
  options, 0, 1, .run = run, .live = amend_live, .live_options = live_options
};
