/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What do findings keep when several threads find more faults than there is space for?
 *
 * All are counted.  As many as possible are described, each as it was found; leaks take
 * no more than half of the places; the list is sorted, leaks last, by offset, then by
 * kind.
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

/* Findings at one offset are in the order of their kinds, however they came. */
static void
check_order (void)
{
  static const enum finding_kind kinds[] = {
    FINDING_ALIGNMENT, FINDING_REFCOUNT, FINDING_LEAK, FINDING_OVERLAP, FINDING_COPIED,
  };
  const size_t n = sizeof kinds / sizeof kinds[0];
  struct findings *f;
  const struct finding *list;
  size_t found;

  for (size_t first = 0; first < n; first++) {
    f = findings_new (20);
    CHECK (f != NULL);
    for (size_t i = 0; i < n; i++)
      findings_add (f, kinds[(first + i) % n], 1, 512, "something");
    list = findings_list (f, &found);
    CHECK (found == n && list[n - 1].kind == FINDING_LEAK);
    for (size_t i = 1; i < n - 1; i++)
      CHECK (list[i - 1].kind < list[i].kind);
    findings_free (f);
  }
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
  check_order ();
  return 0;
}
