/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What is shown of a name is the name itself, or has "..." where something was left out;
 * and a name that an attacker wrote is read up to its end, not beyond (run with
 * AddressSanitizer).  Where the JSON library finds no memory, no secret of a JSON name
 * is shown.  serve/no-secret-in-messages.sh shows what is left out otherwise.
 *
 * Environment: SEED.
 */

#include <config.h>

#include <stdlib.h>
#include <string.h>
#include <jansson.h>

#include "util/publicname.h"
#include "lib/trials.h"

/* Copies NAME, so that a byte behind its end is behind the end of its memory, too. */
static char *
shown (const char *name)
{
  char *exact = strdup (name), *text = publicname (exact);

  CHECK (text != NULL);
  free (exact);
  return text;
}

static void
test_shown (void)
{
  static const struct {
    const char *name, *shown;
  } names[] = {
    { "", "" },
    { ":", ":..." },
    { "nbd:", "nbd:" },
    { "nbd:unix", "nbd:unix" },
    { "nbd:unix:", "nbd:unix:" },
    { "nbd:unix:exportname=", "nbd:unix:exportname=" },
    { "nbd:unix:exportname=e:exportname=f", "nbd:unix:exportname=e:exportname=f" },
    { "nbd:unix:/s:exportname=e", "nbd:unix:/s:exportname=e" },
    { "nbd:unix:/s:password", "nbd:..." },
    { "nbd:[", "nbd:..." },
    { "nbd:[]", "nbd:[]" },
    { "nbd://", "nbd://" },
    { "nbd://[", "nbd://..." },
    { "nbd://@", "nbd://...@" },
    { "nbd://?", "nbd://?..." },
    { "rbd:", "rbd:" },
    { "rbd:pool/image:key=password", "rbd:pool/image:..." },
    { "json:", "json:..." },
  };

  for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
    char *text = shown (names[i].name);

    if (strcmp (text, names[i].shown) != 0)
      FAIL ("%s: %s", names[i].name, text);
    free (text);
  }
}

static void
random_trial (struct rng *rng)
{
  static const char *const parts[] = {
    "nbd", "unix", "exportname=", ":exportname=", "?socket=", "rbd", "json:", "file",
    "https", "://", "/", ":", "@", "[", "]", "::1", "10809", "a", "?", "&", "\x01", "\xff",
    "{\"filename\":\"", "\"}",
  };
  char name[400] = "", *text;

  for (unsigned k = rng_below (rng, 10); k > 0; k--)
    strcat (name, parts[rng_below (rng, sizeof parts / sizeof parts[0])]);
  text = shown (name);
  if (strcmp (text, name) != 0 && strstr (text, "...") == NULL)
    FAIL ("%s: %s", name, text);
  free (text);
}

static unsigned allocations;    /* until one fails */
static bool failed;

static void *
allocate (size_t n)
{
  if (allocations-- > 0)
    return malloc (n);
  failed = true;
  return NULL;
}

static void
test_no_memory (void)
{
  unsigned k = 0;

  json_set_alloc_funcs (allocate, free);
  do {
    char *text;

    failed = false;
    allocations = k++;
    text = shown ("json:{\"driver\":\"https\",\"file\":{\"username\":\"SECRET\","
                  "\"password\":\"SECRET\",\"filename\":\"nbd://SECRET@h/e\"}}");
    /* (The library may write parts of the text then.) */
    if (failed ? strstr (text, "SECRET") != NULL
        : strcmp (text, "json:{\"driver\": \"https\", \"file\": {\"username\": \"...\", "
                  "\"password\": \"...\", \"filename\": \"nbd://...@h/e\"}}") != 0)
      FAIL ("allocation %u: %s", k, text);
    free (text);
  } while (failed);
  json_set_alloc_funcs (malloc, free);
  printf ("%u allocations\n", k - 1);
  CHECK (k > 20);
}

int
main (void)
{
  test_shown ();
  test_no_memory ();
  printf ("%u names\n", trials_run ("publicname", 1, 20000, random_trial));
  return 0;
}
