/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Code that fuzz targets share.  With an engine (clang -fsanitize=fuzzer -DFUZZING) they
 * have no main.  Without one they are programs that run the files named as arguments or,
 * without arguments, input that they damage at random themselves (SEED in the environment
 * replays it).
 */

#ifndef TEST_FUZZING_H
#define TEST_FUZZING_H

#include <string.h>

#include "lib/stubs.h"

extern int LLVMFuzzerTestOneInput (const uint8_t *data, size_t size);

/* Makes a copy without any spare bytes, so that sanitizers detect reads beyond its end.
 * The caller frees it. */
static inline uint8_t *
fuzz_copy (const uint8_t *data, size_t size)
{
  uint8_t *copy = malloc (size > 0 ? size : 1);

  CHECK (copy != NULL);
  if (size > 0)
    memcpy (copy, data, size);
  return copy;
}

/* Checks that the last error is one line about the file "fuzz". */
static inline void
fuzz_check_error (void)
{
  const char *text = last_error ();

  CHECK (strncmp (text, "fuzz: ", 6) == 0);
  for (const char *s = text; *s; s++)
    CHECK (*s >= 0x20 && *s < 0x7f);
}

/* Runs the named files, up to MAX bytes of each.  Returns false if there are none. */
static inline bool
fuzz_files (int argc, char *argv[], size_t max)
{
  uint8_t *data = malloc (max);

  CHECK (data != NULL);
  for (int i = 1; i < argc; i++) {
    FILE *fp = fopen (argv[i], "rbe");

    CHECK (fp != NULL);
    LLVMFuzzerTestOneInput (data, fread (data, 1, max, fp));
    fclose (fp);
  }
  free (data);
  return argc > 1;
}

#endif /* TEST_FUZZING_H */
