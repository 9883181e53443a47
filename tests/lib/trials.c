/* SPDX-License-Identifier: BSD-3-Clause
 *
 * How does a test run one random trial after another, and say which one failed?
 *
 * Each trial has a number, and its random choices depend only on this number and the
 * seed, so a trial that failed can be repeated without the ones before it.
 */

#include <config.h>

#include <errno.h>
#include <inttypes.h>
#include <malloc.h>
#include <stdarg.h>
#include <sys/resource.h>

#include "lib/images.h"
#include "lib/reach.h"
#include "lib/shortage.h"
#include "lib/trials.h"

#if defined __SANITIZE_ADDRESS__ || __has_feature (address_sanitizer) || TRACES_THREADS
#define SANITIZED 1
#else
#define SANITIZED 0
#endif

uint64_t trials_seed;
unsigned trials_number;

static bool endless;            /* there is no time limit */
static double limit;            /* of used () */
static char about[100];

static unsigned
number_from_env (const char *name, unsigned otherwise)
{
  const char *s = getenv (name);

  return s ? strtoul (s, NULL, 0) : otherwise;
}

/* How many seconds of the processor the program, and those that it has run, have taken.
 * So the test does as much on a busy machine. */
static double
used (void)
{
  static const int who[] = { RUSAGE_SELF, RUSAGE_CHILDREN };
  struct rusage u;
  double sum = 0;

  for (unsigned i = 0; i < 2; i++) {
    CHECK (getrusage (who[i], &u) == 0);
    sum += u.ru_utime.tv_sec + u.ru_stime.tv_sec +
      (u.ru_utime.tv_usec + u.ru_stime.tv_usec) / 1e6;
  }
  return sum;
}

static bool
is_elsewhere (void)
{
  return reach_server () || SANITIZED;
}

bool
trials_repeat_others (void)
{
  return is_elsewhere () && !long_suite ();
}

unsigned
trials_run (const char *name, unsigned seconds, unsigned least,
            void (*trial) (struct rng *))
{
  const unsigned iterations = number_from_env ("ITERATIONS", 0);
  unsigned done;
  struct rng rng;

  trials_seed = seed_from_env ();
  trials_number = number_from_env ("FIRST", 0);
  endless = iterations > 0;
  /* Memory for thousands of images need not go back to the system each time. */
  mallopt (M_MMAP_THRESHOLD, 64 << 20);
  mallopt (M_TRIM_THRESHOLD, 256 << 20);
  images_enter (name);
  /* Over NBD, and with a sanitizer, they repeat what others do. */
  if (is_elsewhere ()) {
    seconds = (seconds + 1) / 2;
    least = (least + 1) / 2;
  }
  if (!long_suite ()) {
    seconds = (seconds + 2) / 3;
    least = (least + 2) / 3;
  }
  limit = used () + number_from_env ("SECONDS", seconds);
  for (done = 0; endless ? done < iterations : done < least || trials_time_left ();
       done++, trials_number++) {
    rng_init (&rng, trials_seed, UINT64_MAX - trials_number);
    reach_choose_manners (&rng);
    rng_init (&rng, trials_seed, trials_number);
    trial (&rng);
  }
  images_leave ();
  return done;
}

bool
trials_time_left (void)
{
  return endless || used () < limit;
}

void
trials_about (const char *fmt, ...)
{
  va_list args;

  va_start (args, fmt);
  vsnprintf (about, sizeof about, fmt, args);
  va_end (args);
}

void
trials_fail (const char *fmt, ...)
{
  const int err = errno;
  va_list args;

  fprintf (stderr, "SEED=%" PRIu64 " FIRST=%u: %s%s", trials_seed, trials_number,
           about, about[0] ? ": " : "");
  va_start (args, fmt);
  errno = err;                  /* for %m */
  vfprintf (stderr, fmt, args);
  va_end (args);
  fputc ('\n', stderr);
  abort ();
}
