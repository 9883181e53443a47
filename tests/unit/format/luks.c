/* SPDX-License-Identifier: BSD-3-Clause
 *
 * LUKS headers and keys: what QEMU unlocks we unlock, what it wrote we decrypt, what we
 * encrypt it reads; wrong passphrases; several key slots; and every field with wrong
 * contents, with qemu-img's opinion beside ours.
 *
 * qemu-img takes seconds to make a LUKS header.  It makes two: one with its defaults, and
 * one that the seed chooses.  The others are made here, and QEMU has to unlock them.
 * LUKS_ALL=1 in the environment has qemu-img make all.
 */

#include <config.h>

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include <openssl/evp.h>

#include "util/bytes.h"
#include "format/crypt.h"
#include "format/format.h"
#include "format/header.h"
#include "format/luks.h"
#include "lib/images.h"
#include "lib/luks-image.h"
#include "lib/wiped.h"

#define NAME "disk"
#define CLUSTER UINT64_C (65536)
#define DISK_SIZE (64 * CLUSTER)
/* Where there is data: two pieces, in clusters. */
#define FIRST 0
#define FIRST_N 3
#define SECOND 40
#define SECOND_N 1

static const char passphrase[] = "the passphrase of this disk";

#define DEFAULTS "cluster_size=65536,encrypt.format=luks" \
  ",encrypt.key-secret=s,encrypt.iter-time=10"

/* The file of an empty disk that qemu-img made with these. */
static struct blob template;

/* --- images --- */

static void
add_secret (struct command *c, const char *id, const char *data)
{
  command_add (c, "--object");
  command_add (c, "secret,id=%s,data=%s", id, data);
}

static bool
log_says (const char *text)
{
  struct blob log;
  bool r;

  blob_load ("log", &log);
  r = log.len > 0 && memmem (log.data, log.len, text, strlen (text)) != NULL;
  if (!r)
    fwrite (log.data, 1, log.len, stderr);
  blob_free (&log);
  return r;
}

/* Makes a disk of FORMAT with these options; again and again, as qemu-img measures how
 * fast it is, and gives up where that comes out as 0.  False if it does not
 * know the cipher.  */
static bool
create (const char *format, const char *options, const char *secret)
{
  for (int i = 0; i < 100; i++) {
    struct command c = { .n = 0 };

    command_add (&c, "qemu-img");
    command_add (&c, "create");
    command_add (&c, "-q");
    command_add (&c, "-f");
    command_add (&c, "%s", format);
    add_secret (&c, "s", secret);
    command_add (&c, "-o");
    command_add (&c, "%s", options);
    command_add (&c, NAME);
    command_add (&c, "%" PRIu64, DISK_SIZE);
    if (command_run (&c) == 0)
      return true;
    if (log_says ("not supported") || log_says ("Unsupported cipher"))
      return false;
    CHECK (log_says ("Unable to get accurate CPU usage"));
  }
  CHECK (!"qemu-img can make no disk");
  return false;
}

/* How QEMU is told about it.  METHOD: "luks" or "aes" for qcow2, NULL for a plain
 * LUKS file. */
static void
add_disk (struct command *c, const char *method)
{
  command_add (c, "--image-opts");
  if (method)
    command_add (c, "driver=qcow2,file.driver=file,file.filename=" NAME
                 ",encrypt.format=%s,encrypt.key-secret=s", method);
  else
    command_add (c, "driver=luks,file.driver=file,file.filename=" NAME
                 ",key-secret=s");
}

static void
qemu_write (const char *method, const char *secret, struct blob *plain,
            struct rng *rng)
{
  struct command c = { .n = 0 };

  plain->len = DISK_SIZE;
  plain->data = calloc (1, DISK_SIZE);
  CHECK (plain->data != NULL);
  for (uint64_t i = 0; i < FIRST_N * CLUSTER; i++)
    plain->data[FIRST * CLUSTER + i] = rng_next (rng) >> 32;
  for (uint64_t i = 0; i < SECOND_N * CLUSTER; i++)
    plain->data[SECOND * CLUSTER + i] = rng_next (rng) >> 32;
  blob_save ("pattern1", &(struct blob) { plain->data + FIRST * CLUSTER,
                                          FIRST_N * CLUSTER });
  blob_save ("pattern2", &(struct blob) { plain->data + SECOND * CLUSTER,
                                          SECOND_N * CLUSTER });
  command_add (&c, "qemu-io");
  add_secret (&c, "s", secret);
  command_add (&c, "-c");
  command_add (&c, "write -s pattern1 %" PRIu64 " %" PRIu64,
               FIRST * CLUSTER, FIRST_N * CLUSTER);
  command_add (&c, "-c");
  command_add (&c, "write -s pattern2 %" PRIu64 " %" PRIu64,
               SECOND * CLUSTER, SECOND_N * CLUSTER);
  add_disk (&c, method);
  command_must (&c);
}

static void
qemu_read (const char *method, const char *secret, struct blob *plain)
{
  struct command c = { .n = 0 };

  command_add (&c, "qemu-img");
  command_add (&c, "convert");
  add_secret (&c, "s", secret);
  command_add (&c, "-O");
  command_add (&c, "raw");
  add_disk (&c, method);
  command_add (&c, "raw");
  command_must (&c);
  blob_load ("raw", plain);
}

/* The file, and where things are in it. */
struct image {
  struct blob file;
  bool qcow2;
  uint64_t luks, length;        /* the LUKS header and what belongs to it */
  uint64_t payload;             /* of a LUKS file */
  struct header h;
};

static void
image_load (struct image *im, bool qcow2)
{
  memset (im, 0, sizeof *im);
  blob_load (NAME, &im->file);
  im->qcow2 = qcow2;
  if (qcow2) {
    CHECK (header_parse (NAME, im->file.data, im->file.len, im->file.len,
                         &im->h) == 0);
    im->luks = im->h.crypto.offset;
    im->length = im->h.crypto.length;
  }
  else {
    const struct luks_header *raw = (const void *) im->file.data;

    im->payload = get32 (raw->payload_sector) * UINT64_C (512);
    im->length = im->payload;
  }
}

static void
image_free (struct image *im)
{
  header_free (&im->h);
  blob_free (&im->file);
}

/* Where guest cluster N is in the file. */
static uint64_t
host_offset (const struct image *im, uint64_t n)
{
  struct be64 entry;
  uint64_t at;

  if (!im->qcow2)
    return im->payload + n * CLUSTER;
  memcpy (&entry, im->file.data + im->h.l1_offset, 8);
  at = (get64 (entry) & QCOW2_L1_OFFSET_MASK) + n * 8;
  CHECK (range_within (at, 8, im->file.len));
  memcpy (&entry, im->file.data + at, 8);
  at = get64 (entry) & QCOW2_L2_OFFSET_MASK;
  CHECK (at != 0 && range_within (at, CLUSTER, im->file.len));
  return at;
}

/* --- unlocking --- */

static int
read_area (void *opaque, void *buf, uint64_t offset, size_t bytes)
{
  const struct image *im = opaque;

  CHECK (range_within (offset, bytes, im->length));
  CHECK (offset % 512 == 0 && bytes % 512 == 0);
  memcpy (buf, im->file.data + im->luks + offset, bytes);
  return 0;
}

static int
read_fails (void *opaque, void *buf, uint64_t offset, size_t bytes)
{
  (void) opaque, (void) buf, (void) offset, (void) bytes;
  errno = EIO;
  return -1;
}

/* NULL: it cannot be unlocked, and that was reported once. */
static struct crypt_cipher *
unlock (struct image *im, const char *secret)
{
  struct crypt_cipher *cipher = NULL;
  struct luks *l;
  unsigned long before = error_count ();
  int r, err;

  CHECK (luks_parse (NAME, im->file.data + im->luks, 592, im->length, &l) == 0);
  r = luks_unlock (l, read_area, im, secret, strlen (secret), &cipher);
  err = errno;
  luks_free (l);
  CHECK ((r == 0) == (cipher != NULL));
  CHECK (error_count () == before + (r == -1));
  errno = err;
  return cipher;
}

/* The wrong ones get one clear message. */
static void
wrong (struct image *im, const char *secret)
{
  quiet_errors = true;
  clear_last_error ();
  CHECK (unlock (im, secret) == NULL && errno == EACCES);
  CHECK (strncmp (last_error (), NAME ": LUKS: wrong passphrase", 28) == 0);
  quiet_errors = false;
}

/* The number of the first 512 bytes of guest cluster N. */
static uint64_t
sector_of (const struct image *im, uint64_t n)
{
  return im->qcow2 && im->h.crypt_method == QCOW2_CRYPT_LUKS ?
    host_offset (im, n) / 512 : n * CLUSTER / 512;
}

/* What QEMU wrote we decrypt, and the reverse. */
static void
both_ways (struct image *im, const char *method, const char *secret,
           struct crypt_cipher *cipher, struct blob *plain, struct rng *rng)
{
  const uint64_t clusters[] = { FIRST, FIRST + 1, FIRST + 2, SECOND };
  struct blob again;
  uint8_t buf[CLUSTER];

  for (int i = 0; i < 4; i++) {
    const uint64_t n = clusters[i];
    uint8_t *p = plain->data + n * CLUSTER;
    uint8_t *host = im->file.data + host_offset (im, n);

    CHECK (memcmp (host, p, CLUSTER) != 0);
    CHECK (crypt_decrypt (cipher, sector_of (im, n), host, buf, CLUSTER) == 0);
    CHECK (memcmp (buf, p, CLUSTER) == 0);
    for (uint64_t k = 0; k < CLUSTER; k++)
      p[k] ^= rng_next (rng) >> 32;
    CHECK (crypt_encrypt (cipher, sector_of (im, n), p, host, CLUSTER) == 0);
  }
  blob_save (NAME, &im->file);
  qemu_read (method, secret, &again);
  CHECK (again.len >= DISK_SIZE);
  for (int i = 0; i < 4; i++)
    CHECK (memcmp (again.data + clusters[i] * CLUSTER,
                   plain->data + clusters[i] * CLUSTER, CLUSTER) == 0);
  blob_free (&again);
}

/* --- ciphers, modes, IV generators, hashes --- */

static const struct combination {
  const char *options;          /* qemu-img's */
  struct luks_image_spec spec;
  const char *refused;          /* what we say, or NULL */
} combinations[] = {
  { "", { "aes", "xts-plain64", "sha256", 64, passphrase, 0 }, NULL },
  { "cipher-alg=aes-128,cipher-mode=xts,ivgen-alg=plain,hash-alg=sha1",
    { "aes", "xts-plain", "sha1", 32, "", 1 }, NULL },
  { "cipher-alg=aes-192,hash-alg=sha512",
    { "aes", "xts-plain64", "sha512", 48, "x", 7 }, NULL },
  { "cipher-alg=aes-256,cipher-mode=cbc,ivgen-alg=essiv,ivgen-hash-alg=sha256"
    ",hash-alg=sha384",
    { "aes", "cbc-essiv:sha256", "sha384", 32, "\xc3\xa4\xc3\xb6\xc3\xbc", 2 }, NULL },
  { "cipher-alg=aes-128,cipher-mode=cbc,ivgen-alg=essiv,ivgen-hash-alg=md5"
    ",hash-alg=md5",
    { "aes", "cbc-essiv:md5", "md5", 16, passphrase, 3 }, NULL },
  { "cipher-alg=aes-256,cipher-mode=xts,ivgen-alg=essiv,ivgen-hash-alg=sha256"
    ",hash-alg=sha224",
    { "aes", "xts-essiv:sha256", "sha224", 64,
      "a passphrase that is longer than a block of the hash: that is 64 bytes or in "
      "the case of sha384 and sha512 128 bytes so that it is hashed first", 4 },
    NULL },
  { "cipher-alg=aes-128,cipher-mode=cbc,ivgen-alg=plain",
    { "aes", "cbc-plain", "sha256", 16, passphrase, 5 }, NULL },
  { "cipher-alg=aes-128,cipher-mode=ecb,ivgen-alg=plain64",
    { "aes", "ecb-plain64", "sha1", 16, passphrase, 6 }, NULL },
  { "cipher-alg=aes-256,cipher-mode=ctr,ivgen-alg=plain64,hash-alg=ripemd160",
    { "aes", "ctr-plain64", "ripemd160", 32, passphrase, 0 }, NULL },
  { "cipher-alg=cast5-128,cipher-mode=cbc,ivgen-alg=plain64",
    { "cast5", "cbc-plain64", "sha256", 16, passphrase, 0 }, NULL },
  { "cipher-alg=cast5-128,cipher-mode=ctr,ivgen-alg=plain64",
    { "cast5", "ctr-plain64", "sha256", 16, passphrase, 0 },
    "cast5-128 in mode ctr is not supported" },
  { "cipher-alg=serpent-256,cipher-mode=xts",
    { "serpent", "xts-plain64", "sha256", 64, passphrase, 0 },
    "serpent-256 in mode xts is not supported" },
  { "cipher-alg=twofish-128,cipher-mode=cbc,ivgen-alg=essiv,ivgen-hash-alg=md5",
    { "twofish", "cbc-essiv:md5", "sha256", 16, passphrase, 0 },
    "twofish-128 in mode cbc is not supported" },
};
#define NR_COMBINATIONS (sizeof combinations / sizeof combinations[0])

static void
test_combination (const struct combination *k, bool by_qemu, struct rng *rng)
{
  const struct crypt_spec spec = { k->spec.cipher, k->spec.mode, k->spec.key_bytes };
  const char *secret = k->spec.passphrase;
  struct image im;
  struct blob plain;
  struct crypt_cipher *cipher;
  struct luks *l;

  if (by_qemu) {
    char options[300] = DEFAULTS;
    char *text = strdup (k->options), *word, *state = NULL;

    CHECK (text != NULL);
    for (word = strtok_r (text, ",", &state); word;
         word = strtok_r (NULL, ",", &state)) {
      const size_t used = strlen (options);

      snprintf (options + used, sizeof options - used, ",encrypt.%s", word);
    }
    free (text);
    if (!create ("qcow2", options, secret)) {
      printf ("qemu-img does not make this: %s\n", k->options);
      return;
    }
  }

  quiet_errors = true;
  if (crypt_check (NAME, &spec) == -1) {
    /* OpenSSL need not have cast5. */
    CHECK (k->refused || strcmp (k->spec.cipher, "cast5") == 0);
    if (by_qemu) {
      image_load (&im, true);
      CHECK (luks_parse (NAME, im.file.data + im.luks, 592, im.length, &l) == -1);
      CHECK (errno == ENOTSUP);
      image_free (&im);
    }
    CHECK (k->refused == NULL || strstr (last_error (), k->refused) != NULL);
    quiet_errors = false;
    return;
  }
  quiet_errors = false;
  CHECK (k->refused == NULL);

  if (!by_qemu) {
    blob_save (NAME, &template);
    image_load (&im, true);
    CHECK (luks_image_size (k->spec.key_bytes) <= im.length);
    luks_image_build (im.file.data + im.luks, &k->spec, rng);
    blob_save (NAME, &im.file);
    image_free (&im);
  }
  qemu_write ("luks", secret, &plain, rng);
  image_load (&im, true);
  cipher = unlock (&im, secret);
  CHECK (cipher != NULL);
  both_ways (&im, "luks", secret, cipher, &plain, rng);
  crypt_free (cipher);
  wrong (&im, "not the passphrase");
  if (secret[0])
    wrong (&im, "");
  image_free (&im);
  blob_free (&plain);
}

/* Not in a qcow2 image: sectors are counted from the payload. */
static void
test_luks_file (struct rng *rng)
{
  struct image im;
  struct blob plain, file;
  struct crypt_cipher *cipher;

  blob_save (NAME, &template);
  image_load (&im, true);
  file.len = im.length + DISK_SIZE;
  file.data = calloc (1, file.len);
  CHECK (file.data != NULL);
  memcpy (file.data, im.file.data + im.luks, im.length);
  blob_save (NAME, &file);
  blob_free (&file);
  image_free (&im);

  qemu_write (NULL, passphrase, &plain, rng);
  image_load (&im, false);
  cipher = unlock (&im, passphrase);
  CHECK (cipher != NULL);
  both_ways (&im, NULL, passphrase, cipher, &plain, rng);
  crypt_free (cipher);
  image_free (&im);
  blob_free (&plain);
}

/* The encryption before LUKS: nothing tells a wrong passphrase from the right one. */
static void
test_legacy (const char *secret, struct rng *rng)
{
  struct image im;
  struct blob plain;
  struct crypt_cipher *cipher;

  CHECK (create ("qcow2", "cluster_size=65536,encrypt.format=aes"
                 ",encrypt.key-secret=s", secret));
  qemu_write ("aes", secret, &plain, rng);
  image_load (&im, true);
  cipher = crypt_new_legacy (NAME, secret, strlen (secret));
  CHECK (cipher != NULL);
  both_ways (&im, "aes", secret, cipher, &plain, rng);
  crypt_free (cipher);
  image_free (&im);
  blob_free (&plain);
}

/* --- key slots --- */

static void
amend (const char *old, const char *option)
{
  for (int i = 0; i < 100; i++) {
    struct command c = { .n = 0 };

    command_add (&c, "qemu-img");
    command_add (&c, "amend");
    add_secret (&c, "s", old);
    add_secret (&c, "n", "the second one");
    command_add (&c, "-o");
    command_add (&c, "%s", option);
    add_disk (&c, "luks");
    if (command_run (&c) == 0)
      return;
    CHECK (log_says ("Unable to get accurate CPU usage"));
  }
  CHECK (!"qemu-img can change no key slot");
}

static void
test_slots (void)
{
  struct image im;
  struct crypt_cipher *a, *b;
  uint8_t x[512] = "one sector", y[512];

  blob_save (NAME, &template);
  amend (passphrase, "encrypt.state=active,encrypt.new-secret=n"
         ",encrypt.keyslot=7,encrypt.iter-time=10");
  image_load (&im, true);
  a = unlock (&im, passphrase);
  b = unlock (&im, "the second one");
  CHECK (a != NULL && b != NULL);
  /* The same key. */
  CHECK (crypt_encrypt (a, 1, x, y, 512) == 0);
  CHECK (crypt_decrypt (b, 1, y, y, 512) == 0);
  CHECK (memcmp (x, y, 512) == 0);
  crypt_free (a);
  crypt_free (b);
  wrong (&im, "the third one");
  image_free (&im);

  amend ("the second one", "encrypt.state=inactive,encrypt.keyslot=0");
  image_load (&im, true);
  b = unlock (&im, "the second one");
  CHECK (b != NULL);
  crypt_free (b);
  wrong (&im, passphrase);
  image_free (&im);
}

/* --- damage --- */

#define FIELD(name) offsetof (struct luks_header, name)
#define SLOT(i, name) (FIELD (slots[i]) + offsetof (struct luks_slot_header, name))
/* No NUL within 32 bytes. */
#define ENDLESS "aesaesaesaesaesaesaesaesaesaesaes"

/* Of a header made with the defaults: slots of 504 sectors from sector 8 on, the first
 * active, payload at sector 4040. */
static const struct damage {
  size_t offset;
  const char *text;             /* or NULL, and */
  uint32_t value;
  char verdict;                 /* what QEMU and we do: 'y'es, 'n'o; 'q': QEMU only */
} damages[] = {
  { FIELD (magic), "LUKS\xba\xbf", 0, 'n' },
  { FIELD (magic), "SKUL\xba\xbe", 0, 'n' },
  { FIELD (magic), "luks", 0, 'n' },
  { FIELD (version), "\0", 0, 'n' },            /* with the NUL: two bytes */
  { FIELD (version), "\0\2", 0, 'n' },
  { FIELD (version), "\1\1", 0, 'n' },
  { FIELD (cipher), "", 0, 'n' },
  { FIELD (cipher), "AES", 0, 'n' },
  { FIELD (cipher), "aesx", 0, 'n' },
  { FIELD (cipher), "a\x1b[2J", 0, 'n' },
  { FIELD (cipher), "serpent", 0, 'q' },
  { FIELD (cipher), "twofish", 0, 'q' },
  { FIELD (cipher), "cast5", 0, 'n' },
  { FIELD (cipher), ENDLESS, 0, 'n' },
  { FIELD (mode), "", 0, 'n' },
  { FIELD (mode), "xts", 0, 'n' },
  { FIELD (mode), "xts-", 0, 'n' },
  { FIELD (mode), "-plain64", 0, 'n' },
  { FIELD (mode), "xts-plain", 0, 'y' },
  { FIELD (mode), "xts-plain6", 0, 'n' },
  { FIELD (mode), "xts-plain64:sha1", 0, 'y' },
  { FIELD (mode), "xts-plain64:", 0, 'n' },
  { FIELD (mode), "xts-plain64:what", 0, 'n' },
  { FIELD (mode), "xts-essiv", 0, 'n' },
  { FIELD (mode), "xts-essiv:sha256", 0, 'y' },
  { FIELD (mode), "xts-essiv:sha1", 0, 'n' },
  { FIELD (mode), "cbc-plain64", 0, 'n' },      /* no AES has 64 bytes */
  { FIELD (mode), "cfb-plain64", 0, 'n' },
  { FIELD (mode), ENDLESS, 0, 'n' },
  { FIELD (hash), "", 0, 'n' },
  { FIELD (hash), "SHA256", 0, 'n' },
  { FIELD (hash), "sha1", 0, 'y' },
  { FIELD (hash), "sha3-256", 0, 'n' },
  { FIELD (hash), ENDLESS, 0, 'n' },
  { FIELD (payload_sector), NULL, 0, 'n' },
  { FIELD (payload_sector), NULL, 7, 'n' },
  { FIELD (payload_sector), NULL, 8, 'n' },
  { FIELD (payload_sector), NULL, 4039, 'n' },
  { FIELD (payload_sector), NULL, 4041, 'y' },
  { FIELD (payload_sector), NULL, UINT32_MAX, 'y' },
  { FIELD (key_bytes), NULL, 0, 'n' },
  { FIELD (key_bytes), NULL, 16, 'n' },
  { FIELD (key_bytes), NULL, 32, 'y' },
  { FIELD (key_bytes), NULL, 48, 'y' },
  { FIELD (key_bytes), NULL, 63, 'n' },
  { FIELD (key_bytes), NULL, 65, 'n' },
  { FIELD (key_bytes), NULL, 128, 'n' },
  { FIELD (key_bytes), NULL, UINT32_MAX, 'n' },
  { FIELD (digest_iterations), NULL, 0, 'n' },
  { FIELD (digest_iterations), NULL, 1, 'y' },
  { FIELD (digest_iterations), NULL, (uint32_t) LUKS_MAX_ROUNDS / 2, 'y' },
  { FIELD (digest_iterations), NULL, (uint32_t) LUKS_MAX_ROUNDS + 1, 'q' },
  { FIELD (digest_iterations), NULL, UINT32_MAX, 'q' },
  { FIELD (uuid), ENDLESS, 0, 'y' },
  { SLOT (0, active), NULL, 0, 'n' },
  { SLOT (0, active), NULL, LUKS_SLOT_INACTIVE, 'y' },
  { SLOT (7, active), NULL, 0xdeae, 'n' },
  { SLOT (0, iterations), NULL, 0, 'n' },
  { SLOT (0, iterations), NULL, 1, 'y' },
  { SLOT (0, iterations), NULL, (uint32_t) LUKS_MAX_ROUNDS / 4, 'y' },
  { SLOT (0, iterations), NULL, (uint32_t) LUKS_MAX_ROUNDS / 2 + 1, 'q' },
  { SLOT (0, iterations), NULL, INT32_MAX, 'q' },
  { SLOT (1, iterations), NULL, UINT32_MAX, 'y' },      /* inactive */
  { SLOT (0, stripes), NULL, 0, 'n' },
  { SLOT (0, stripes), NULL, 3999, 'n' },
  { SLOT (7, stripes), NULL, 4001, 'n' },
  { SLOT (7, stripes), NULL, UINT32_MAX, 'n' },
  { SLOT (0, material_sector), NULL, 0, 'n' },
  { SLOT (0, material_sector), NULL, 7, 'n' },
  { SLOT (0, material_sector), NULL, 9, 'n' },          /* into the next */
  { SLOT (3, material_sector), NULL, 8, 'n' },
  { SLOT (7, material_sector), NULL, 3535, 'n' },       /* into the one before */
  { SLOT (7, material_sector), NULL, 3537, 'n' },       /* into the payload */
  { SLOT (7, material_sector), NULL, 4040, 'n' },
  /* QEMU's sum of 32 bits begins at 0 again. */
  { SLOT (7, material_sector), NULL, UINT32_MAX - 503, 'q' },
  { SLOT (7, material_sector), NULL, UINT32_MAX, 'q' },
};

/* One line, that can be printed. */
static void
check_message (void)
{
  const char *s = last_error ();

  CHECK (strncmp (s, NAME ": ", strlen (NAME) + 2) == 0);
  for (; *s; s++)
    CHECK (*s >= 0x20 && *s < 0x7f);
}

static bool
accepted (const uint8_t *buf, size_t len, uint64_t length)
{
  /* Exactly as long as it is: a look beyond its end is seen. */
  uint8_t *copy = malloc (len + 1);
  struct luks *l;
  bool ok;

  CHECK (copy != NULL);
  memcpy (copy, buf, len);
  quiet_errors = true;
  clear_last_error ();
  ok = luks_parse (NAME, copy, len, length, &l) == 0;
  quiet_errors = false;
  if (ok)
    luks_free (l);
  else {
    CHECK (errno == EINVAL || errno == ENOTSUP);
    check_message ();
  }
  free (copy);
  return ok;
}

static bool
qemu_accepts (void)
{
  struct command c = { .n = 0 };

  command_add (&c, "qemu-img");
  command_add (&c, "info");
  command_add (&c, "-f");
  command_add (&c, "qcow2");
  command_add (&c, NAME);
  return command_run (&c) == 0;
}

static void
test_damages (void)
{
  struct image im;
  uint8_t good[592], *area;

  blob_save (NAME, &template);
  image_load (&im, true);
  area = im.file.data + im.luks;
  memcpy (good, area, sizeof good);
  CHECK (accepted (good, 592, im.length));

  for (size_t i = 0; i < sizeof damages / sizeof damages[0]; i++) {
    const struct damage *d = &damages[i];
    const struct be32 value = put32 (d->value);
    bool ours, qemus;

    if (d->offset == FIELD (version))
      memcpy (area + d->offset, d->text, 2);
    else if (d->text)           /* as much as there is of an endless one */
      memcpy (area + d->offset, d->text, strlen (d->text) +
              (d->offset != FIELD (magic) && strlen (d->text) < 32));
    else
      memcpy (area + d->offset, &value, sizeof value);
    if (d->text && strcmp (d->text, ENDLESS) == 0)
      area[d->offset + 32] = good[d->offset + 32];
    ours = accepted (area, 592, im.length);
    blob_save (NAME, &im.file);
    qemus = qemu_accepts ();
    if (ours != (d->verdict == 'y') || qemus != (d->verdict != 'n')) {
      fprintf (stderr, "offset %zu, %s %" PRIu32 ": we say %d, QEMU says %d\n",
               d->offset, d->text ? d->text : "", d->value, ours, qemus);
      CHECK (!"verdict");
    }
    memcpy (area, good, sizeof good);
  }

  /* Slots are counted together, each with the digest of what it yields. */
  for (uint32_t more = 0; more < 2; more++) {
    const uint64_t digest = LUKS_MAX_ROUNDS / 16 + more;

    for (unsigned i = 0; i < LUKS_SLOTS; i++) {
      const struct be32 active = put32 (LUKS_SLOT_ACTIVE);
      const struct be32 iterations = put32 (LUKS_MAX_ROUNDS / 32);
      const struct be32 digests = put32 (digest);

      memcpy (area + SLOT (i, active), &active, 4);
      memcpy (area + SLOT (i, iterations), &iterations, 4);
      memcpy (area + FIELD (digest_iterations), &digests, 4);
    }
    CHECK (accepted (area, 592, im.length) == !more);
    if (!more) {
      struct luks *l;

      CHECK (luks_parse (NAME, area, 592, im.length, &l) == 0);
      CHECK (luks_rounds (l) == LUKS_MAX_ROUNDS);
      luks_free (l);
    }
    memcpy (area, good, sizeof good);
  }

  /* Too little of it, or of the room for it. */
  for (size_t n = 0; n < 592; n++) {
    CHECK (!accepted (good, n, im.length));
    CHECK (!accepted (good, 592, n));
  }
  /* Slot 0 in use: 500 sectors from sector 8 on. */
  CHECK (!accepted (good, 592, 508 * 512 - 1));
  CHECK (accepted (good, 592, 508 * 512));
  image_free (&im);
}

/* Damage that only unlocking can see. */
static void
test_damaged_keys (struct rng *rng)
{
  struct image im;
  struct crypt_cipher *cipher;
  struct luks *l;
  uint8_t *area;

  blob_save (NAME, &template);
  image_load (&im, true);
  area = im.file.data + im.luks;
  for (int i = 0; i < 12; i++) {
    const size_t at = i < 2 ? FIELD (digest) + rng_below (rng, 20)
      : i < 4 ? FIELD (digest_salt) + rng_below (rng, 32)
      : i < 6 ? SLOT (0, salt) + rng_below (rng, 32)
      : i == 6 ? 8 * 512u : i == 7 ? 508 * 512u - 1
      : 8 * 512 + rng_below (rng, 500 * 512);

    area[at] ^= 0x10;
    wrong (&im, passphrase);
    area[at] ^= 0x10;
  }
  /* The sectors behind the material are none of it. */
  area[508 * 512] ^= 1;
  cipher = unlock (&im, passphrase);
  CHECK (cipher != NULL);
  crypt_free (cipher);

  quiet_errors = true;
  CHECK (luks_parse (NAME, area, 592, im.length, &l) == 0);
  errno = 0;
  clear_last_error ();
  CHECK (luks_unlock (l, read_fails, NULL, "x", 1, &cipher) == -1);
  CHECK (errno == EIO && strcmp (last_error (), "") == 0);
  CHECK (luks_unlock (l, read_area, &im, NULL, 0, &cipher) == -1);
  CHECK (errno == EACCES);
  luks_free (l);

  memcpy (area + SLOT (0, active), &(struct be32) { htobe32 (LUKS_SLOT_INACTIVE) }, 4);
  CHECK (unlock (&im, passphrase) == NULL && errno == EACCES);
  CHECK (strstr (last_error (), "no key slot is in use") != NULL);
  quiet_errors = false;
  image_free (&im);
}

/* The passphrase, and what is derived from it. */
static void
test_wiped (void)
{
  static uint8_t key[64];
  struct image im;
  const struct luks_header *raw;

  blob_save (NAME, &template);
  image_load (&im, true);
  raw = (const void *) (im.file.data + im.luks);
  CHECK (PKCS5_PBKDF2_HMAC (passphrase, sizeof passphrase - 1, raw->slots[0].salt,
                            32, get32 (raw->slots[0].iterations), EVP_sha256 (),
                            sizeof key, key));
  wiped_watch (passphrase, sizeof passphrase - 1);
  wiped_watch (key, 16);
  wiped_watch (key + 32, 16);
  crypt_free (unlock (&im, passphrase));
  image_free (&im);
}

int
main (void)
{
  static const char longer[] = "more than the sixteen bytes that are used";
  const bool all = getenv ("LUKS_ALL") != NULL;
  struct rng rng;
  size_t chosen;

  wiped_start ();
  images_enter ("luks");
  rng_init (&rng, seed_from_env (), 0);
  CHECK (create ("qcow2", DEFAULTS, passphrase));
  blob_load (NAME, &template);

  chosen = 1 + rng_below (&rng, NR_COMBINATIONS - 1);
  for (size_t i = 0; i < NR_COMBINATIONS; i++) {
    test_combination (&combinations[i], false, &rng);
    if (all || i == chosen)
      test_combination (&combinations[i], true, &rng);
  }
  test_luks_file (&rng);
  test_legacy ("short", &rng);
  test_legacy (longer, &rng);
  test_slots ();
  test_damages ();
  test_damaged_keys (&rng);
  test_wiped ();
  blob_free (&template);
  images_leave ();
  return 0;
}
