/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Is a hostile image handled safely by all that can be done with it?
 *
 * The input is an image, perhaps with a backing file and an external data file
 * (fuzzimage.h), and a script: servers are started on it that check, repair, edit, read
 * and write it (fuzzserver.h).
 *
 * How it runs: see fuzzing.h.  Without an engine, it makes images of all kinds with
 * qemu-img, and changes them itself, the same ones each time (SEED, ITERATIONS: others).
 * With --corpus DIR it writes the inputs from which an engine begins.
 */

#include <config.h>

#include <string.h>
#include <unistd.h>

#include "lib/fuzzimage.h"
#include "lib/fuzzing.h"
#include "lib/fuzzserver.h"
#include "lib/images.h"
#include "lib/trials.h"

int
LLVMFuzzerTestOneInput (const uint8_t *data, size_t size)
{
  struct fuzz_script script;

  if (size > FUZZIMAGE_MAX)
    return 0;
  fuzzimage_unpack (data, size, &script);
  fuzzserver_run (&script, false);
  return 0;
}

#ifdef FUZZING

extern int LLVMFuzzerInitialize (int *argc, char ***argv);
extern size_t LLVMFuzzerCustomMutator (uint8_t *data, size_t size, size_t max,
                                       unsigned seed);
/* The engine's own mutator; not all engines have one. */
extern size_t LLVMFuzzerMutate (uint8_t *data, size_t size, size_t max)
  __attribute__ ((weak));

int
LLVMFuzzerInitialize (int *argc, char ***argv)
{
  (void) argc; (void) argv;
  fuzzserver_begin_somewhere ();
  return 0;
}

size_t
LLVMFuzzerCustomMutator (uint8_t *data, size_t size, size_t max, unsigned seed)
{
  struct rng rng;

  rng_init (&rng, seed, 0);
  if (LLVMFuzzerMutate && rng_below (&rng, 4) == 0)
    return LLVMFuzzerMutate (data, size, max);
  return fuzzimage_mutate (data, size, max, &rng);
}

#else

/* --- images from qemu-img --- */

struct kind {
  const char *options;          /* of qemu-img create */
  unsigned cluster_kib;         /* 0: 512 bytes */
  const char *below;            /* format of the backing file, or NULL */
  bool compressed, snapshot, bitmap, encrypted;
};

#define LUKS "encrypt.format=luks,encrypt.key-secret=s,encrypt.cipher-alg=aes-128," \
  "encrypt.cipher-mode=cbc,encrypt.ivgen-alg=plain64,encrypt.iter-time=10,"

static const struct kind kinds[] = {
  { "", 0, NULL, true, true, true, false },
  { "", 0, "qcow2", false, true, false, false },
  { "", 4, NULL, true, true, true, false },
  { "", 64, "raw", true, false, true, false },
  { "", 64, NULL, false, true, true, false },
  { "compat=0.10,", 0, NULL, true, true, false, false },
  { "compat=0.10,", 4, "raw", false, false, false, false },
  { "extended_l2=on,", 16, NULL, true, true, false, false },
  { "extended_l2=on,", 64, "qcow2", false, false, true, false },
  { "compression_type=zstd,", 4, NULL, true, true, false, false },
  { "compression_type=zstd,", 64, "raw", true, false, false, false },
  { "refcount_bits=1,", 0, NULL, false, false, true, false },
  { "refcount_bits=8,", 4, NULL, true, true, false, false },
  { "refcount_bits=64,", 0, NULL, false, true, false, false },
  { "lazy_refcounts=on,", 4, NULL, false, true, false, false },
  { "preallocation=metadata,", 0, NULL, false, false, false, false },
  { "data_file=" FUZZSERVER_DATA ",data_file_raw=on,", 4, NULL, false, false, true,
    false },
  { "data_file=" FUZZSERVER_DATA ",", 64, "raw", false, false, false, false },
  { LUKS, 4, NULL, false, true, false, true },
  { LUKS "extended_l2=on,", 64, NULL, false, false, true, true },
  { "encrypt.format=aes,encrypt.key-secret=s,", 0, NULL, false, true, false, true },
};
#define NR_KINDS (sizeof kinds / sizeof kinds[0])

static void
add_secret (struct command *c, const struct kind *k)
{
  if (!k->encrypted)
    return;
  command_add (c, "--object");
  command_add (c, "secret,id=s,data=%s", IMAGES_SECRET);
}

static void
make_below (const char *format)
{
  struct command create = { .n = 0 }, io = { .n = 0 };

  command_add (&create, "qemu-img");
  command_add (&create, "create");
  command_add (&create, "-qf%s", format);
  if (strcmp (format, "qcow2") == 0)
    command_add (&create, "-ocluster_size=512");
  command_add (&create, FUZZSERVER_BELOW);
  command_add (&create, "200K");
  command_must (&create);
  command_add (&io, "qemu-io");
  command_add (&io, "-f%s", format);
  command_add (&io, "-cwrite -P 99 10k 70k");
  command_add (&io, FUZZSERVER_BELOW);
  command_must (&io);
}

static void
fill (const struct kind *k, const char *const *requests)
{
  struct command c = { .n = 0 };

  command_add (&c, "qemu-io");
  add_secret (&c, k);
  for (; *requests; requests++)
    command_add (&c, "-c%s", *requests);
  if (k->encrypted) {
    command_add (&c, "--image-opts");
    command_add (&c, "driver=qcow2,encrypt.format=%s,encrypt.key-secret=s,"
                 "file.filename=" FUZZSERVER_IMAGE,
                 strstr (k->options, "luks") ? "luks" : "aes");
  }
  else
    command_add (&c, FUZZSERVER_IMAGE);
  command_must (&c);
}

static void
make_image (const struct kind *k)
{
  static const char *const plain[] = {
    "write -P 1 0 3k", "write -P 2 20k 7k", "write -z 128k 64k", "write -P 4 250k 2k",
    "discard 20k 2k", NULL,
  };
  static const char *const compressed[] = { "write -c -P 5 64k 64k", NULL };
  static const char *const later[] = { "write -P 6 1k 5k", "write -P 7 66k 1k", NULL };
  struct command create = { .n = 0 };
  char cluster_size[20];

  unlink (FUZZSERVER_IMAGE);
  unlink (FUZZSERVER_DATA);
  unlink (FUZZSERVER_BELOW);
  if (k->below)
    make_below (k->below);
  snprintf (cluster_size, sizeof cluster_size, "%u",
            k->cluster_kib ? k->cluster_kib << 10 : 512);
  command_add (&create, "qemu-img");
  command_add (&create, "create");
  command_add (&create, "-qfqcow2");
  add_secret (&create, k);
  command_add (&create, "-o%scluster_size=%s", k->options, cluster_size);
  if (k->below) {
    command_add (&create, "-b" FUZZSERVER_BELOW);
    command_add (&create, "-F%s", k->below);
  }
  command_add (&create, FUZZSERVER_IMAGE);
  command_add (&create, "300K");
  command_must (&create);
  fill (k, plain);
  if (k->compressed)
    fill (k, compressed);
  image_remember (FUZZSERVER_IMAGE, &(struct image_spec) {
      .encrypt = !k->encrypted ? NULL : strstr (k->options, "luks") ? "luks" : "aes",
    });
  if (k->bitmap)
    image_bitmap (FUZZSERVER_IMAGE, "x", 9);
  if (k->snapshot) {
    image_snapshot (FUZZSERVER_IMAGE, "a");
    fill (k, later);
  }
}

/* --- inputs --- */

#define SCRIPT 160

/* A server on the image, which does not begin with an edit, then random ones. */
static void
make_script (const struct kind *k, struct rng *rng, uint8_t script[SCRIPT])
{
  static const uint8_t passphrase[] = { 1, 1, 0 }, check[] = { 1, 0, 0 };

  for (unsigned i = 0; i < SCRIPT; i++)
    script[i] = rng_next (rng);
  if (k->encrypted)
    memcpy (script, passphrase, sizeof passphrase);
  else if (rng_below (rng, 2))
    memcpy (script, check, sizeof check);
  script[3] &= 6;               /* the active disk, for writing */
}

struct input {
  uint8_t data[FUZZIMAGE_MAX];
  size_t size;
};

static void
make_input (struct input *input, unsigned kind, struct rng *rng)
{
  uint8_t script[SCRIPT];

  make_image (&kinds[kind]);
  make_script (&kinds[kind], rng, script);
  input->size = fuzzimage_pack (input->data, script, sizeof script);
  CHECK (input->size > 0);
}

static void
write_corpus (const char *directory, struct rng *rng)
{
  static struct input input;
  char name[4200];

  for (unsigned i = 0; i < NR_KINDS; i++) {
    make_input (&input, i, rng);
    for (unsigned k = 0; k < 4; k++) {
      make_script (&kinds[i], rng, input.data + 2);
      snprintf (name, sizeof name, "%s/image-%u-%u", directory, i, k);
      blob_save (name, &(struct blob) { input.data, input.size });
    }
  }
}

/* Each input is in the file "input" until the next one. */
static void
trial (struct rng *rng)
{
  static struct input inputs[NR_KINDS];
  static char *directory;
  const unsigned kind = trials_number % NR_KINDS;
  struct rng fixed;
  struct input changed;

  if (inputs[kind].size == 0) {
    rng_init (&fixed, kind, 0);
    make_input (&inputs[kind], kind, &fixed);
  }
  if (directory == NULL) {
    directory = images_path ("");
    directory[strlen (directory) - 1] = '\0';
    fuzzserver_begin (directory);
  }
  changed = inputs[kind];
  make_script (&kinds[kind], rng, changed.data + 2);
  if (rng_below (rng, 4))
    changed.size = fuzzimage_mutate (changed.data, changed.size, FUZZIMAGE_MAX, rng);
  blob_save ("input", &(struct blob) { changed.data, changed.size });
  LLVMFuzzerTestOneInput (changed.data, changed.size);
}

int
main (int argc, char *argv[])
{
  char *directory = NULL;
  struct rng rng;

  if (argc == 1) {
    /* What passes once passes again; scripts/fuzz looks for more. */
    setenv ("SEED", "1", 0);
    setenv ("ITERATIONS", "60", 0);
    printf ("%u images\n", trials_run ("fuzz-image", 3, 2 * NR_KINDS, trial));
  }
  else if (strcmp (argv[1], "--corpus") != 0) {
    fuzzserver_begin_somewhere ();
    fuzz_files (argc, argv, FUZZIMAGE_MAX);
  }
  else {
    CHECK (argc == 3 && (directory = realpath (argv[2], NULL)) != NULL);
    rng_init (&rng, seed_from_env (), 0);
    images_enter ("fuzz-image");
    write_corpus (directory, &rng);
    images_leave ();
    free (directory);
  }
  return 0;
}

#endif /* !FUZZING */
