/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What must hold after each call of the plugin, and what do the image's disks contain?
 *
 * Each error is one line of printable text.  A full check decides whether the image is
 * sound.  (One that uses a cluster twice in the same mapping is not: see checker_shares.)
 *
 * The models know the beginnings of the active disk and of the snapshots that the script
 * takes.  Here is how they follow the changes that are made before serving; what clients
 * write and read, fuzzclients.c compares with them.
 */

#include <config.h>

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "util/bytes.h"
#include "check/check.h"
#include "lib/checker.h"
#include "lib/fuzzserver-impl.h"
#include "lib/stubs.h"

struct fuzz_state fuzz;

void
fuzz_show (const char *what, const char *name, uint64_t offset, uint64_t count)
{
  if (getenv ("QCOW2_TEST_DEBUG"))
    fprintf (stderr, "-- %s %s %" PRIu64 " %" PRIu64 "\n", what, name, offset, count);
}

int
fuzz_heard (int r)
{
  for (const char *s = last_error (); *s; s++)
    CHECK ((unsigned char) *s >= 0x20 && *s != 0x7f);
  fuzz.told = fuzz.told || last_error ()[0];
  CHECK (r != -1 || fuzz.told || errno == ENOTSUP);
  clear_last_error ();
  return r;
}

static bool
shares_clusters (void)
{
  struct blob b;
  bool shares;

  blob_load (fuzz.image, &b);
  shares = checker_shares (&b);
  blob_free (&b);
  return shares;
}

bool
fuzz_is_sound (void)
{
  const struct check_options options = { .mode = CHECK_FULL, .path = fuzz.image };
  struct check *check;
  const bool r = fuzz_heard (check_image (&options, &check)) == 0;

  if (r)
    check_free (check);
  return r && !shares_clusters ();
}

/* --- what the disks contain --- */

void
fuzz_forget (struct model *m)
{
  if (m)
    m->known = false;
}

void
fuzz_forget_all (void)
{
  fuzz_forget (&fuzz.active);
  for (unsigned i = 0; i < NR_SNAPSHOTS; i++) {
    fuzz_forget (&fuzz.snapshots[i]);
    fuzz.namesakes[i] = -1;
  }
}

struct model *
fuzz_our_snapshot (const char *name)
{
  const size_t n = strlen (OURS);

  return strncmp (name, OURS, n) == 0 ? &fuzz.snapshots[name[n] - '0'] : NULL;
}

static bool
is_edit (const struct given *g)
{
  return strncmp (g->key, "snapshot-", 9) == 0 || strcmp (g->key, "resize") == 0;
}

static void
follow_resize (const char *value)
{
  const bool relative = value[0] == '+' || value[0] == '-';
  char *unit;
  uint64_t size = strtoull (value + relative, &unit, 10), kept;

  size <<= *unit == 'G' ? 30 : *unit == 'M' ? 20 : *unit == 'K' ? 10 : 0;
  if (relative)
    size = value[0] == '+' ? fuzz.active.size + size : fuzz.active.size - size;
  size = round_up (size, 512);
  kept = min64 (min64 (size, fuzz.active.size), WINDOW);
  memset (fuzz.active.bytes + kept, 0, WINDOW - kept);
  fuzz.active.size = size;
}

/* What the changes before serving have done to the models. */
static void
follow (const struct given *g)
{
  struct model *const m = fuzz_our_snapshot (g->value);

  if (strcmp (g->key, "snapshot-create") == 0) {
    int *const n = &fuzz.namesakes[m - fuzz.snapshots];

    if (*n == 0)
      *m = fuzz.active;
    if (*n >= 0)
      ++*n;
  }
  else if (strcmp (g->key, "snapshot-apply") == 0) {
    if (m && m->known)
      fuzz.active = *m;
    else
      fuzz_forget (&fuzz.active);
  }
  else if (strcmp (g->key, "snapshot-delete") == 0) {
    for (unsigned i = 0; i < NR_SNAPSHOTS; i++)
      if (m == NULL || m == &fuzz.snapshots[i]) {
        fuzz_forget (&fuzz.snapshots[i]);
        fuzz.namesakes[i] = m && fuzz.namesakes[i] > 0 ? fuzz.namesakes[i] - 1 : -1;
      }
  }
  else
    follow_resize (g->value);
}

void
fuzz_follow_all (const struct given *given, unsigned n)
{
  for (unsigned i = 0; i < n; i++)
    if (is_edit (&given[i]))
      follow (&given[i]);
}
