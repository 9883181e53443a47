/* SPDX-License-Identifier: BSD-3-Clause
 *
 * nbduri.c: each URI has one normal form, with or without secrets; malformed URIs are
 * refused; and "below" compares whole components of names.  Another export of the same
 * server keeps all but the name.
 *
 * Random texts: the normal form of an accepted text is its own normal form, and the form
 * without secrets contains none of them.
 *
 * If there is no memory for a text, there is none, and errno says so; a text is never cut
 * off.
 *
 * Environment: SEED, ITERATIONS, FIRST, SECONDS (1) as for crash/requests.
 */

#include <config.h>

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "storage/nbduri.h"
#include "lib/allocations.h"
#include "lib/shortage.h"
#include "lib/trials.h"

static const struct { const char *uri, *shown, *full; } good[] = {
  { "nbd://h", "nbd://h/", "nbd://h/" },
  { "NBD://Host:10809/", "nbd://host/", "nbd://host/" },
  { "nbd+tcp://h:1/e", "nbd://h:1/e", "nbd://h:1/e" },
  { "nbd://[::1]:5/a/b%2fc", "nbd://[::1]:5/a/b/c", "nbd://[::1]:5/a/b/c" },
  { "nbds://me@h/x?tls-psk-file=/k", "nbds://h/x", "nbds://me@h/x?tls-psk-file=/k" },
  { "nbd+unix:///e?socket=/run/s", "nbd+unix:///e?socket=/run/s",
    "nbd+unix:///e?socket=/run/s" },
  { "nbds+unix://me@/?tls-certificates=/c&socket=/a%20b",
    "nbds+unix:///?socket=/a%20b", "nbds+unix://me@/?socket=/a%20b&tls-certificates=/c" },
  { "nbd+vsock://2/e", "nbd+vsock://2/e", "nbd+vsock://2/e" },
  { "nbd://h/%41%3f", "nbd://h/A%3F", "nbd://h/A%3F" },
};

static const char *const bad[] = {
  "", "nbd:", "nbd:h:1", "http://h/", "nbd://", "nbd:///x", "nbd://h:x/", "nbd://h:1:2/",
  "nbd://h:12345678901/", "nbd://h/%", "nbd://h/%4", "nbd://h/%4g", "nbd://h/%00",
  "nbd://h/a b", "nbd://h/a\n", "nbd://h/#f", "nbd://h/?socket=/s", "nbd://h/?x=1",
  "nbd://h/?tls-a=1&&tls-b=2", "nbd+unix:///e", "nbd+unix:///e?socket=s",
  "nbd+unix://h/e?socket=/s", "nbd+unix://:5/e?socket=/s",
  "nbd+unix:///?socket=/s&socket=/t", "nbd://[::1/", "nbd://[::1]x/", "nbd://h\"/",
};

static const struct { const char *uri, *prefix; bool below; } pairs[] = {
  { "nbd://h/a/b", "nbd://h", true }, { "nbd://h/a/b", "nbd://h/a", true },
  { "nbd://h/a/b", "nbd://h/a/", true }, { "nbd://h/ab", "nbd://h/a", false },
  { "nbd://h/a", "nbd://h/a/", false }, { "nbd://h/a", "nbd://h/a", true },
  { "nbd://h:1/a", "nbd://h", false }, { "nbd://h:10809/a", "nbd://H/", true },
  { "nbds://h/a", "nbd://h", false }, { "nbd://ho/a", "nbd://h", false },
  { "nbd+unix:///a?socket=/s", "nbd+unix:///?socket=/s", true },
  { "nbd+unix:///a?socket=/s2", "nbd+unix:///?socket=/s", false },
  { "nbd://h/a/../b", "nbd://h/a", false }, { "nbd://h/a/%2e./b", "nbd://h/a", false },
  { "nbd://h/..a/b..", "nbd://h", true },
  { "nbd://h/a%2fb", "nbd://h/a", true }, { "nbds://h/a", "nbds://me@h/?tls-x=y", true },
};

static const struct { const char *old, *uri; } olds[] = {
  { "nbd:h:1", "nbd://h:1/" }, { "nbd:h:10809:exportname=a:b", "nbd://h/a:b" },
  { "nbd:[::1]:9", "nbd://[::1]:9/" }, { "nbd:unix:/s", "nbd+unix:///?socket=/s" },
  { "nbd:unix:/a b:exportname=e", "nbd+unix:///e?socket=/a%20b" },
  { "nbd:h", NULL }, { "nbd:unix:s", NULL }, { "nbd:", NULL }, { "nbd:h:x", NULL },
  { "nbd:[::1]:9:exportname=e", "nbd://[::1]:9/e" }, { "nbd:::1:9", NULL },
  { "nbd:fe80::1:9", NULL }, { "nbd:a:b:9", NULL }, { "nbd:h:", NULL },
  { "nbd::9", NULL }, { "nbd:[::1]", NULL }, { "nbd:[::1]9", NULL },
};

/* Each allocation of CALL fails in turn. */
#define MEETS_SHORTAGES(call, expected)                                 \
  do {                                                                  \
    bool met_ = true;                                                   \
    for (uint64_t n_ = 0; met_; n_++) {                                 \
      char *text_;                                                      \
      int err_;                                                         \
      shortage_begin ((struct shortage) { n_, 1 });                     \
      errno = 0;                                                        \
      text_ = (call);                                                   \
      err_ = errno;                                                     \
      met_ = shortage_end () > 0;                                       \
      if (text_ ? strcmp (text_, (expected)) != 0 : !met_ || err_ != ENOMEM) \
        FAIL ("allocation %d: %.60s, not %.60s: %s", (int) n_, text_, (expected), \
              strerror (err_));                                         \
      free (text_);                                                     \
    }                                                                   \
  } while (0)

static void
test_good (void)
{
  const char *why;

  for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
    char *shown = nbduri_normal (good[i].uri, false, &why);
    char *full = nbduri_normal (good[i].uri, true, &why), *again;

    if (!shown || !full || strcmp (shown, good[i].shown) != 0 ||
        strcmp (full, good[i].full) != 0)
      FAIL ("%s: %s, %s", good[i].uri, shown, full);
    CHECK (nbduri_same (shown, full));
    again = nbduri_add_secrets (shown, full);
    CHECK (again && strcmp (again, full) == 0);
    free (again);
    free (shown);
    free (full);
  }
}

static void
test_bad (void)
{
  for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
    const char *why = NULL;
    char *text;

    errno = 0;
    text = nbduri_normal (bad[i], true, &why);
    if (text || errno != EINVAL || !why)
      FAIL ("%s: %s, %m", bad[i], text);
    CHECK (nbduri_add_secrets (bad[i], "nbd://h/") == NULL);
    CHECK (nbduri_add_secrets ("nbd://h/", bad[i]) == NULL);
  }
}

static void
test_export (void)
{
  static const struct { const char *uri, *export, *other; } all[] = {
    { "nbd://me@h:5/a/b?tls-psk-file=/k", "c d?", "nbd://me@h:5/c%20d%3F?tls-psk-file=/k" },
    { "nbd+unix:///a?socket=/s%20t", "", "nbd+unix:///?socket=/s%20t" },
    { "nbd://[::1]", "a/b", "nbd://[::1]/a/b" },
  };

  for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
    MEETS_SHORTAGES (nbduri_with_export (all[i].uri, all[i].export), all[i].other);
  CHECK (nbduri_with_export ("nbd://", "a") == NULL && errno == EINVAL);
}

static void
test_others (void)
{
  for (size_t i = 0; i < sizeof pairs / sizeof pairs[0]; i++)
    if (nbduri_is_below (pairs[i].uri, pairs[i].prefix) != pairs[i].below)
      FAIL ("%s, %s", pairs[i].uri, pairs[i].prefix);
  for (size_t i = 0; i < sizeof olds / sizeof olds[0]; i++) {
    char *uri = nbduri_from_old (olds[i].old);

    CHECK (nbduri_is_old (olds[i].old));
    if (uri ? !olds[i].uri || strcmp (uri, olds[i].uri) != 0 : olds[i].uri != NULL)
      FAIL ("%s: %s", olds[i].old, uri);
    free (uri);
  }
}

static void
test_too_long (void)
{
  static char uri[70000] = "nbd://h/";
  const char *why;

  memset (uri + strlen (uri), 'x', sizeof uri - strlen (uri) - 1);
  errno = 0;
  CHECK (nbduri_normal (uri, true, &why) == NULL && errno == EINVAL);
  CHECK (strcmp (why, "it is too long") == 0);
}

static void
test_no_memory (void)
{
  char name[3000], uri[3100], encoded[9100] = "nbd://h/";
  const char *why;

  for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
    MEETS_SHORTAGES (nbduri_normal (good[i].uri, true, &why), good[i].full);
    MEETS_SHORTAGES (nbduri_add_secrets (good[i].shown, good[i].full), good[i].full);
  }
  for (size_t i = 0; i < sizeof olds / sizeof olds[0]; i++)
    if (olds[i].uri)
      MEETS_SHORTAGES (nbduri_from_old (olds[i].old), olds[i].uri);
  MEETS_SHORTAGES (nbduri_make ("fe80::1", "5", NULL, "e"), "nbd://[fe80::1]:5/e");
  /* The host may be one that an image names: it gives no user and no credentials. */
  MEETS_SHORTAGES (nbduri_make ("user@h", "", NULL, "e"), "nbd://h/e");
  /* A text that becomes much longer. */
  memset (name, '+', sizeof name - 1);
  name[sizeof name - 1] = '\0';
  snprintf (uri, sizeof uri, "nbd://h/%s", name);
  for (const char *s = name; *s; s++)
    strcpy (encoded + 8 + 3 * (s - name), "%2B");
  MEETS_SHORTAGES (nbduri_normal (uri, true, &why), encoded);
}

/* One of the good ones with a few bytes changed. */
static void
random_trial (struct rng *rng)
{
  static const char bytes[] = "/:@?&=%#[]ab0 \n\x7f\xff";
  char text[100], *shown, *full, *again;
  const char *why;

  strcpy (text, good[rng_below (rng, sizeof good / sizeof good[0])].uri);
  for (unsigned n = rng_below (rng, 4); n > 0; n--)
    text[rng_below (rng, strlen (text))] = bytes[rng_below (rng, sizeof bytes - 1)];
  full = nbduri_normal (text, true, &why);
  shown = nbduri_normal (text, false, &why);
  CHECK (!full == !shown);
  if (full) {
    again = nbduri_normal (full, true, &why);
    if (!again || strcmp (again, full) != 0)
      FAIL ("%s: %s, then %s", text, full, again);
    free (again);
    again = nbduri_normal (full, false, &why);
    if (!again || strcmp (again, shown) != 0 || strchr (shown, '@') ||
        strstr (shown, "?tls-") || strstr (shown, "&tls-") ||
        !nbduri_same (shown, full))
      FAIL ("%s: %s, %s", text, shown, again);
    free (again);
  }
  free (full);
  free (shown);
}

int
main (void)
{
  test_good ();
  test_bad ();
  test_export ();
  test_others ();
  test_too_long ();
  test_no_memory ();
  printf ("%u texts\n", trials_run ("nbduri", 1, 1000, random_trial));
  return 0;
}
