/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Sets of free clusters are compared with an array that has a flag for each cluster.
 */

#include <config.h>

#include "util/bytes.h"
#include "space/freeset.h"
#include "lib/stubs.h"

int
main (void)
{
  static bool in[2000];
  struct freeset s = { 0 };
  struct rng rng;

  rng_init (&rng, seed_from_env (), 0);
  for (int step = 0; step < 3000; step++) {
    const uint64_t first = rng_below (&rng, 1900), n = rng_below (&rng, 60);
    const bool add = rng_below (&rng, 2);
    uint64_t runs_seen = 0, total = 0, longest = 0, len = 0, f, l;
    uint64_t shortest = UINT64_MAX;
    uint64_t want = 1 + rng_below (&rng, 30), fit = UINT64_MAX;

    CHECK ((add ? freeset_add : freeset_remove) (&s, first, n) == 0);
    for (uint64_t c = first; c < first + n; c++)
      in[c] = add;
    for (uint64_t c = 0; c < 2000; c++) {
      if (!in[c] && len > 0)
        shortest = min64 (shortest, len);
      len = in[c] ? len + 1 : 0;
      runs_seen += len == 1;
      total += in[c];
      longest = max64 (longest, len);
      if (len == want && fit == UINT64_MAX)
        fit = c + 1 - len;
    }
    CHECK (s.clusters == total && s.runs == runs_seen);
    CHECK (freeset_longest (&s) == longest);
    CHECK (freeset_shortest (&s, &f, &l) == (runs_seen > 0));
    if (runs_seen > 0) {
      CHECK (l == shortest && in[f] && in[f + l - 1] && !in[f + l]);
      CHECK (f == 0 || !in[f - 1]);
    }
    CHECK (freeset_find (&s, want, &f, &l) == (fit != UINT64_MAX));
    CHECK (fit == UINT64_MAX || (f == fit && l >= want));
    if (freeset_next (&s, first, first + n, &f, &l)) {
      CHECK (f >= first && l > 0 && f + l <= first + n);
      for (uint64_t c = first; c < f + l; c++)
        CHECK (in[c] == (c >= f));
      CHECK (f + l == first + n || !in[f + l]);
    }
    else
      for (uint64_t c = first; c < first + n; c++)
        CHECK (!in[c]);
  }
  freeset_clear (&s);
  CHECK (s.clusters == 0 && s.runs == 0);
  return 0;
}
