/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Are all sequences of requests, restarts and edits answered rightly, on images that the
 * plugin itself has created?
 *
 * The input is a script (fuzzserver.h).  It first creates the image, with any options.
 *
 * How it runs: see fuzzing.h.  Without an engine, scripts are random, and the
 * same each time (SEED, ITERATIONS: others).
 * With --corpus DIR it writes the inputs from which an engine begins.
 */

#include <config.h>

#include <string.h>
#include <unistd.h>

#include "lib/fuzzing.h"
#include "lib/fuzzserver.h"
#include "lib/images.h"
#include "lib/trials.h"

#define MAX_SCRIPT 4096

int
LLVMFuzzerTestOneInput (const uint8_t *data, size_t size)
{
  static uint8_t contents[100 << 10];
  struct fuzz_script script = { data, data + size };
  char path[4096];

  if (size > MAX_SCRIPT)
    return 0;
  fuzzserver_path (FUZZSERVER_IMAGE, path);
  unlink (path);
  fuzzserver_path (FUZZSERVER_DATA, path);
  unlink (path);
  memset (contents + 5000, 0x33, sizeof contents / 2);
  fuzzserver_path (FUZZSERVER_BELOW, path);
  blob_save (path, &(struct blob) { contents, sizeof contents });
  fuzzserver_run (&script, true);
  return 0;
}

#ifdef FUZZING

extern int LLVMFuzzerInitialize (int *argc, char ***argv);

int
LLVMFuzzerInitialize (int *argc, char ***argv)
{
  (void) argc; (void) argv;
  fuzzserver_begin_somewhere ();
  return 0;
}

#else

static size_t
make_script (uint8_t script[MAX_SCRIPT], struct rng *rng)
{
  const size_t n = 10 + rng_below (rng, 200);

  for (size_t i = 0; i < n; i++)
    script[i] = rng_next (rng);
  return n;
}

static void
write_corpus (const char *directory, struct rng *rng)
{
  uint8_t script[MAX_SCRIPT];
  char name[4200];

  for (unsigned i = 0; i < 200; i++) {
    const size_t n = make_script (script, rng);

    snprintf (name, sizeof name, "%s/requests-%u", directory, i);
    blob_save (name, &(struct blob) { script, n });
  }
}

/* Each input is in the file "input" until the next one. */
static void
trial (struct rng *rng)
{
  static char *directory;
  uint8_t script[MAX_SCRIPT];
  const size_t size = make_script (script, rng);

  if (directory == NULL) {
    directory = images_path ("");
    directory[strlen (directory) - 1] = '\0';
    fuzzserver_begin (directory);
  }
  blob_save ("input", &(struct blob) { script, size });
  LLVMFuzzerTestOneInput (script, size);
}

int
main (int argc, char *argv[])
{
  struct rng rng;

  if (argc == 1) {
    /* What passes once passes again; scripts/fuzz looks for more. */
    setenv ("SEED", "1", 0);
    setenv ("ITERATIONS", "60", 0);
    printf ("%u scripts\n", trials_run ("fuzz-requests", 3, 50, trial));
  }
  else if (strcmp (argv[1], "--corpus") != 0) {
    fuzzserver_begin_somewhere ();
    fuzz_files (argc, argv, MAX_SCRIPT);
  }
  else {
    CHECK (argc == 3);
    rng_init (&rng, seed_from_env (), 0);
    write_corpus (argv[2], &rng);
  }
  return 0;
}

#endif /* !FUZZING */
