/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What do findings keep when several threads find more faults than there is space for?
 *
 * All are counted.  As many as possible are described, each as it was found; leaks take no
 * more than half of the places; the list is sorted.
 */

#include <config.h>

#include <inttypes.h>
#include <string.h>

#include "check/findings.h"
#include "lib/stubs.h"

#define THREADS 4
#define EACH 500                /* of each kind, by each thread */
#define LIMIT 1000

struct seeker {
  struct findings *findings;
  unsigned number;
};

/* A finding at each offset but those of other threads; each stands for two faults. */
static void *
seek (void *opaque)
{
  const struct seeker *s = opaque;

  for (uint64_t i = 0; i < EACH; i++) {
    const uint64_t offset = i * THREADS + s->number;

    findings_add (s->findings, FINDING_LEAK, 2, offset, "leak %" PRIu64, offset);
    findings_add (s->findings, FINDING_COPIED, 2, offset, "copied %" PRIu64, offset);
  }
  return NULL;
}

/* Returns how many of the list are leaks. */
static size_t
check_list (struct findings *f)
{
  size_t n, leaks = 0;
  const struct finding *list = findings_list (f, &n);
  char text[40];

  CHECK (n == LIMIT);
  for (size_t i = 0; i < n; i++) {
    const bool leak = list[i].kind == FINDING_LEAK;

    CHECK (leak || list[i].kind == FINDING_COPIED);
    snprintf (text, sizeof text, "%s %" PRIu64, leak ? "leak" : "copied", list[i].offset);
    CHECK (strcmp (list[i].text, text) == 0 && list[i].times == 2);
    /* The same one is not there twice. */
    CHECK (i == 0 || list[i - 1].kind != list[i].kind ||
           list[i - 1].offset < list[i].offset);
    CHECK (leak || leaks == 0);
    leaks += leak;
  }
  return leaks;
}

int
main (void)
{
  struct findings *f = findings_new (LIMIT);
  struct seeker seekers[THREADS];

  CHECK (f != NULL);
  for (unsigned i = 0; i < THREADS; i++)
    seekers[i] = (struct seeker) { f, i };
  run_threads (seek, seekers, sizeof seekers[0], THREADS);
  CHECK (findings_count (f, FINDING_LEAK) == 2 * THREADS * EACH);
  CHECK (findings_corruptions (f) == 2 * THREADS * EACH);
  CHECK (findings_omitted (f) == 2 * (2 * THREADS * EACH - LIMIT));
  CHECK (check_list (f) <= LIMIT / 2);
  findings_free (f);
  return 0;
}
