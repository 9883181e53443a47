/* SPDX-License-Identifier: BSD-3-Clause
 *
 * jsonname.c: the "json:" names that QEMU writes have the same meaning as in QEMU; an
 * unsupported name is refused with its key or driver.  Random changes to names are
 * accepted or refused, and do no harm, as in publicname.c (run with AddressSanitizer).
 *
 * Environment: SEED, ITERATIONS, FIRST, SECONDS (1) as for crash/requests.
 */

#include <config.h>

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "util/publicname.h"
#include "image/jsonname.h"
#include "lib/trials.h"

#define NBD(server) "json:{\"driver\":\"qcow2\",\"file\":{\"driver\":\"nbd\"," server "}}"

static const struct { const char *text, *name, *format; } good[] = {
  { NBD ("\"server\":{\"type\":\"unix\",\"path\":\"/s\"},\"export\":\"e\""),
    "nbd+unix:///e?socket=/s", "qcow2" },
  { NBD ("\"server.type\":\"inet\",\"server.host\":\"h\",\"server.port\":\"7\""),
    "nbd://h:7/", "qcow2" },
  { NBD ("\"host\":\"::1\",\"port\":10809"), "nbd://[::1]/", "qcow2" },
  { "json:{\"file.driver\":\"nbd\",\"file.path\":\"/s\"}", "nbd+unix:///?socket=/s", NULL },
  { "json:{\"driver\":\"raw\",\"file\":{\"driver\":\"file\",\"filename\":\"/a\"}}", "/a",
    "raw" },
  { "json:{\"driver\":\"raw\",\"file\":{\"driver\":\"host_device\",\"filename\":\"/a\","
    "\"cache\":{\"direct\":true,\"no-flush\":false},\"node-name\":\"n\"},"
    "\"read-only\":true}", "/a", "raw" },
  { "json:{\"driver\":\"qcow2\",\"file.filename\":\"nbd://h/e\"}", "nbd://h/e", "qcow2" },
  { "json:{\"driver\":\"qcow2\",\"encrypt.key-secret\":\"s\",\"encrypt\":"
    "{\"format\":\"luks\"},\"file.filename\":\"/a\"}", "/a", "qcow2" },
  { "json:{\"driver\":\"file\",\"filename\":\"/a\"}", "/a", NULL },
  { "json:{\"driver\":\"host_cdrom\",\"filename\":\"/a\"}", "/a", NULL },
  /* QEMU's parser takes single quotes, too. */
  { "json:{'driver':'qcow2','file':{\"driver\":'file','filename':'/it\\'s \"a\\\\b'}}",
    "/it's \"a\\b", "qcow2" },
  { "json:{\"driver\":\"file\",\"filename\":\"/it's\"}", "/it's", NULL },
  { "json:{\"driver\":\"file\",\"filename\":\"nbd://h/\"}", "./nbd://h/", NULL },
  { "json:{\"driver\":\"nbd\",\"host\":\"h\"}", "nbd://h/", NULL },
};

static const struct { const char *text; int err; const char *why; } bad[] = {
  { "json:", EINVAL, "" }, { "json:{'file.filename':'/a}", EINVAL, "malformed" },
  { "json:{'file.filename':'/a\\'}", EINVAL, "malformed" },
  { "json:{'file.filename':\"/a'}", EINVAL, "malformed" },
  { "json:[]", EINVAL, "no JSON object" },
  { "json:{}", EINVAL, "names no file" },
  { "json:{\"driver\":\"qcow2\"}", EINVAL, "names no file" },
  { "json:{\"driver\":\"qcow2\",\"file\":\"node\"}", ENOTSUP, "command line" },
  { "json:{\"driver\":\"raw\",\"offset\":5,\"file.filename\":\"/a\"}", ENOTSUP, "\"offset\"" },
  { "json:{\"driver\":\"vmdk\",\"file.filename\":\"/a\"}", ENOTSUP, "vmdk" },
  { "json:{\"driver\":\"qcow2\",\"file.driver\":\"rbd\"}", ENOTSUP, "rbd" },
  { "json:{\"driver\":\"qcow2\",\"file\":{\"driver\":\"qcow2\",\"file.filename\":\"/a\"}}",
    ENOTSUP, "qcow2" },
  { NBD ("\"host\":\"h\",\"path\":\"/s\""), EINVAL, "either" },
  { NBD ("\"export\":\"h\""), EINVAL, "either" },
  { NBD ("\"host\":\"h\",\"tls-creds\":\"t\""), ENOTSUP, "tls-creds" },
  { NBD ("\"server.type\":\"fd\",\"server.str\":\"h\""), ENOTSUP, "fd" },
  { NBD ("\"host\":\"h\",\"x-dirty-bitmap\":\"t\""), ENOTSUP, "x-dirty-bitmap" },
  { NBD ("\"host\":\"h\",\"port\":\"x\""), EINVAL, "malformed" },
  { "json:{\"file\":{\"filename\":\"/a\"},\"file.filename\":\"/b\"}", EINVAL, "twice" },
  { "json:{\"file.filename\":[1]}", EINVAL, "neither" },
  { "json:{\"file.filename\":null}", EINVAL, "neither" },
};

static void
test_good (void)
{
  char why[JSONNAME_WHY];

  for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
    struct jsonname n;

    CHECK (jsonname_is (good[i].text));
    if (jsonname_parse (good[i].text, &n, why) == -1)
      FAIL ("%s: %s", good[i].text, why);
    if (strcmp (n.name, good[i].name) != 0 ||
        (n.format ? !good[i].format || strcmp (n.format, good[i].format) != 0
         : good[i].format != NULL))
      FAIL ("%s: %s, %s", good[i].text, n.name, n.format);
    free (n.name);
  }
}

static void
test_bad (void)
{
  for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
    char why[JSONNAME_WHY] = "";
    struct jsonname n;

    if (jsonname_parse (bad[i].text, &n, why) == 0)
      FAIL ("%s: %s", bad[i].text, n.name);
    if (errno != bad[i].err || strstr (why, bad[i].why) == NULL || why[0] == '\0')
      FAIL ("%s: %s: %m", bad[i].text, why);
  }
}

/* A thousand levels, a thousand keys. */
static void
test_large (void)
{
  char deep[8192] = "json:", wide[65536] = "json:{", why[JSONNAME_WHY];
  struct jsonname n;

  for (int i = 0; i < 1000; i++) {
    strcat (deep, "{\"a\":");
    sprintf (wide + strlen (wide), "\"k%d\":1,", i);
  }
  CHECK (jsonname_parse (deep, &n, why) == -1);
  free (publicname (deep));
  strcat (wide, "\"z\":1}");
  CHECK (jsonname_parse (wide, &n, why) == -1 && strstr (why, "more than"));
}

static void
random_trial (struct rng *rng)
{
  static const char bytes[] = "{}[]\":,.0atrue\\ \x01\xff";
  char text[300], why[JSONNAME_WHY] = "";
  struct jsonname n;
  char *shown;

  strcpy (text, good[rng_below (rng, sizeof good / sizeof good[0])].text);
  for (unsigned k = 1 + rng_below (rng, 3); k > 0; k--)
    text[5 + rng_below (rng, strlen (text) - 5)] =
      bytes[rng_below (rng, sizeof bytes - 1)];
  shown = publicname (text);
  CHECK (shown != NULL && strncmp (shown, "json:", 5) == 0);
  free (shown);
  if (jsonname_parse (text, &n, why) == 0) {
    CHECK (n.name != NULL);
    free (n.name);
  }
  else
    CHECK (why[0] != '\0' && (errno == EINVAL || errno == ENOTSUP));
}

int
main (void)
{
  test_good ();
  test_bad ();
  test_large ();
  printf ("%u texts\n", trials_run ("jsonname", 1, 1000, random_trial));
  return 0;
}
