/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The parameters, in process, as an attacker would set them: each with all kinds of
 * invalid values, and random ones; every two of them together, in both orders.  An error
 * is one short line that names the parameter and contains no control characters.  Sizes
 * have the values that nbdkit_parse_size gives them.  The text of --help agrees with what
 * is accepted, and with the defaults.
 */

#include <config.h>

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define NBDKIT_API_VERSION 2
#include <nbdkit-plugin.h>

#include "plugin/paramrules.h"
#include "plugin/params.h"
#include "plugin/paramvalue.h"
#include "lib/stubs.h"

#define LONG 10000
#define MAX_LINE 500

/* --- in place of nbdkit --- */

char *
nbdkit_absolute_path (const char *path)
{
  char *r;

  CHECK (path[0]);              /* nbdkit reports the others itself */
  CHECK (asprintf (&r, "%s%s", path[0] == '/' ? "" : "/current/", path) >= 0);
  return r;
}

int
nbdkit_read_password (const char *value, char **password)
{
  *password = strdup (value[0] == '-' ? "secret" : value);
  CHECK (*password != NULL);
  return 0;
}

/* --- what is given --- */

/* A good value for each, which asks for something. */
static const char *const good[NR_PARAMS] = {
  [PARAM_FILE] = "a", [PARAM_DIR] = "d", [PARAM_L2_CACHE] = "1M",
  [PARAM_DIR_SYMLINKS] = "follow",
  [PARAM_L2_SLICE] = "4K", [PARAM_BACKING] = "/b", [PARAM_BACKING_FORMAT] = "raw",
  [PARAM_DATA_FILE] = "/data", [PARAM_SNAPSHOT] = "s", [PARAM_BITMAP_ADD] = "b",
  [PARAM_BITMAP_CLEAR] = "b", [PARAM_BITMAP_REMOVE] = "b",
  [PARAM_BITMAP_GRANULARITY] = "64K", [PARAM_SNAPSHOT_CREATE] = "s",
  [PARAM_SNAPSHOT_APPLY] = "s", [PARAM_SNAPSHOT_DELETE] = "s", [PARAM_RESIZE] = "2M",
  [PARAM_SHRINK] = "true", [PARAM_PREALLOCATION] = "full", [PARAM_PASSPHRASE] = "x",
  [PARAM_UNTRUSTED] = "true",
  [PARAM_DISCARD] = "ignore", [PARAM_DETECT_ZEROES] = "on", [PARAM_COMPRESS] = "on",
  [PARAM_COMPRESS_LEVEL] = "3", [PARAM_COMPRESS_WINDOW] = "32K",
  [PARAM_STATS] = "stats", [PARAM_STATS_FORMAT] = "prometheus",
  [PARAM_COPY_ON_READ] = "true", [PARAM_FLATTEN] = "true",
  [PARAM_CACHE] = "none", [PARAM_CHECK] = "repair", [PARAM_CHECK_REPORT] = "report",
  [PARAM_LOCK] = "off", [PARAM_CREATE] = "1M", [PARAM_CLUSTER_SIZE] = "64K",
  [PARAM_COMPAT] = "0.10", [PARAM_REFCOUNT_BITS] = "16", [PARAM_EXTENDED_L2] = "true",
  [PARAM_LAZY_REFCOUNTS] = "true", [PARAM_COMPRESSION_TYPE] = "zstd",
  [PARAM_ENCRYPT] = "luks", [PARAM_ITER_TIME] = "10", [PARAM_BACKING_FILE] = "b",
  [PARAM_DATA_FILE_RAW] = "true", [PARAM_ALLOW_URI] = "nbd://h/e",
  [PARAM_RECONNECT] = "5", [PARAM_CONNECT_TIMEOUT] = "5", [PARAM_ON_ENOSPC] = "wait",
  [PARAM_WATERMARK] = "1M", [PARAM_ANSWER_TIMEOUT] = "5", [PARAM_OVERWRITE] = "true",
  [PARAM_CHECKPOINT_INTERVAL] = "7", [PARAM_CONTROL] = "qmp",
  [PARAM_BITMAP_DURABLE] = "true",
  [PARAM_LOG] = "log", [PARAM_LOG_FORMAT] = "json", [PARAM_LOG_LEVEL] = "warning",
};

static char keys[NR_PARAMS][PARAMS_NAME];

static void
find_keys (void)
{
  const struct params none = PARAMS_DEFAULT;

  for (enum param i = 0; i < NR_PARAMS; i++) {
    CHECK (good[i] != NULL);
    params_name (&none, i, keys[i]);
    CHECK (strchr (keys[i], '=') == keys[i] + strlen (keys[i]) - 1);
    keys[i][strlen (keys[i]) - 1] = '\0';
  }
}

/* One line for R == -1, none for 0.  It begins with KEY (or NULL) and =. */
static void
check_told (int r, unsigned long before, const char *key)
{
  const char *said = last_error ();
  bool ok = error_count () == before + (r == -1);

  if (r == -1) {
    ok = ok && strlen (said) <= MAX_LINE;
    ok = ok && (key == NULL || (strncmp (said, key, strlen (key)) == 0 &&
                                said[strlen (key)] == '='));
    for (const char *p = said; *p; p++)
      ok = ok && (unsigned char) *p >= 0x20 && *p != 0x7f;
  }
  if (!ok)
    fprintf (stderr, "%s: %lu errors, the last one: %s\n", key ? key : "",
             error_count () - before, said);
  CHECK (ok);
}

static int
give (struct params *p, enum param i, const char *value)
{
  const unsigned long before = error_count ();
  const int r = params_set (p, keys[i], value);

  check_told (r, before, keys[i]);
  return r;
}

static int
end (struct params *p)
{
  const unsigned long before = error_count ();
  const int r = paramrules_check (p);

  check_told (r, before, NULL);
  if (r == 0)
    params_complete (p);
  params_free (p);
  return r;
}

static int
one (enum param i, const char *value)
{
  struct params p = PARAMS_DEFAULT;

  if ((i != PARAM_FILE && i != PARAM_DIR && give (&p, PARAM_FILE, "a") == -1) ||
      give (&p, i, value) == -1) {
    params_free (&p);
    return -1;
  }
  return end (&p);
}

/* --- values --- */

static void
test_values (uint64_t seed)
{
  static char longs[2][LONG + 2];
  static const char *const values[] = {
    "", " ", "-", "+", "-1", "-0", "+1", "0", "1", "2", "0x10", "1e3", "1.5", "nan",
    "9223372036854775807", "9223372036854775808", "18446744073709551615",
    "18446744073709551616", "99999999999999999999999999999999999999999", "4294967296",
    "8E", "16E", "36028797018963969s", "9007199254740993K", "K", "KK", "1KK", "TRUE",
    "true", "maybe", "/", ".", "..", "follow", "deny", "auto", "off", "\033[31m",
    "a\nb", "a\tb", "\r", "\177", "\xff\xfe", "\xc3", "%s%n%1000000d", "'", "\"", "\\",
    "-2", "-3x", "-777", "-99999999999999999999", "+/no/such\nfile", "+", longs[0],
    longs[1],
  };
  const size_t n = sizeof values / sizeof values[0];
  struct rng rng;

  memset (longs[0], '7', LONG);
  memset (longs[1], '7', LONG);
  longs[1][LONG] = 'K';
  rng_init (&rng, seed, 1);
  for (enum param i = 0; i < NR_PARAMS; i++) {
    for (size_t k = 0; k < n; k++)
      one (i, values[k]);
    for (unsigned k = 0; k < 200; k++) {
      char text[32] = "";
      const unsigned len = rng_below (&rng, sizeof text);

      for (unsigned c = 0; c < len; c++)
        if (rng_below (&rng, 2))
          text[c] = "0123456789eEkKbs+- "[rng_below (&rng, 19)];
        else
          text[c] = 1 + rng_below (&rng, 255);
      one (i, text);
    }
  }
  /* Values of secrets are not shown. */
  CHECK (one (PARAM_PASSPHRASE, "-secret") == -1);
  CHECK (strstr (last_error (), "secret") == NULL);
  /* The name of a file is. */
  CHECK (one (PARAM_PASSPHRASE, "+/no/such") == -1);
  CHECK (strstr (last_error (), "passphrase=+/no/such: ") != NULL);
}

static void
test_sizes (void)
{
  static const struct { const char *text; uint64_t size; } sizes[] = {
    { "0", 0 }, { "00010", 10 }, { "512", 512 }, { "3b", 3 }, { "3B", 3 },
    { "3k", 3 << 10 }, { "3K", 3 << 10 }, { "3m", 3 << 20 }, { "3M", 3 << 20 },
    { "3g", UINT64_C (3) << 30 }, { "3T", UINT64_C (3) << 40 },
    { "3p", UINT64_C (3) << 50 }, { "7E", UINT64_C (7) << 60 }, { "3s", 1536 },
    { "3S", 1536 }, { "9223372036854775807", INT64_MAX },
    { "8191P", UINT64_C (8191) << 50 },
  };
  static const char *const bad[] = {
    "", "b", "K", "1KB", "1Ki", "1 K", " 1", "1 ", "+1", "-1", "0x1", "1.0", "8E",
    "9223372036854775808", "8192P", "18446744073709551616", "18014398509481984s",
    "20000000000000000000", "1x", "1\n",
  };
  static const char *const yes[] = { "1", "true", "T", "yes", "Y", "on", "ON", "True" };
  static const char *const no[] = { "0", "false", "f", "No", "n", "OFF", "off" };
  static const char *const neither[] = { "", "2", "tr", "o", "yess", "01", " on", "-1" };
  uint64_t size;
  unsigned number;
  bool flag;

  for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
    CHECK (parse_bytes ("k", sizes[i].text, &size) == 0 && size == sizes[i].size);
  for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
    CHECK (parse_bytes ("k", bad[i], &size) == -1);
  for (size_t i = 0; i < sizeof yes / sizeof yes[0]; i++)
    CHECK (parse_flag ("k", yes[i], &flag) == 0 && flag);
  for (size_t i = 0; i < sizeof no / sizeof no[0]; i++)
    CHECK (parse_flag ("k", no[i], &flag) == 0 && !flag);
  for (size_t i = 0; i < sizeof neither / sizeof neither[0]; i++)
    CHECK (parse_flag ("k", neither[i], &flag) == -1);
  CHECK (parse_number ("k", "4294967295", &number) == 0 && number == UINT32_MAX);
  CHECK (parse_number ("k", "4294967296", &number) == -1);
  CHECK (parse_number ("k", "", &number) == -1);
  CHECK (parse_number ("k", "-1", &number) == -1);
}

/* --- all of them, and all pairs --- */

static int
two (enum param i, enum param k)
{
  struct params p = PARAMS_DEFAULT;

  if (i != PARAM_FILE && k != PARAM_FILE && i != PARAM_DIR && k != PARAM_DIR)
    CHECK (give (&p, PARAM_FILE, "a") == 0);
  CHECK (give (&p, i, good[i]) == 0 && give (&p, k, good[k]) == 0);
  return end (&p);
}

static void
test_pairs (void)
{
  char *told;
  int r;

  for (enum param i = 0; i < NR_PARAMS; i++)
    for (enum param k = 0; k < i; k++) {
      clear_last_error ();
      r = two (i, k);
      told = strdup (last_error ());
      /* The order does not matter. */
      clear_last_error ();
      CHECK (two (k, i) == r && strcmp (told, last_error ()) == 0);
      free (told);
    }
}

static void
test_twice (void)
{
  for (enum param i = 0; i < NR_PARAMS; i++) {
    struct params p = PARAMS_DEFAULT;
    const bool repeatable = (i >= PARAM_BITMAP_ADD && i <= PARAM_BITMAP_REMOVE) ||
      (i >= PARAM_SNAPSHOT_CREATE && i <= PARAM_RESIZE) || i == PARAM_ALLOW_URI ||
      i == PARAM_PASSPHRASE;

    CHECK (give (&p, i, good[i]) == 0);
    CHECK (give (&p, i, good[i]) == (repeatable ? 0 : -1));
    if (!repeatable)
      CHECK (strstr (last_error (), "was given more than once") != NULL);
    params_free (&p);
  }
}

/* Each has a longer name, which errors show. */
static void
test_prefix (void)
{
  for (enum param i = 0; i < NR_PARAMS; i++) {
    struct params p = PARAMS_DEFAULT;
    char key[PARAMS_NAME + 6];

    snprintf (key, sizeof key, "qcow2-%s", keys[i]);
    CHECK (params_set (&p, key, good[i]) == 0 && p.given[i]);
    params_free (&p);
  }
  CHECK (params_set (&(struct params) PARAMS_DEFAULT, "qcow2-cache", "x") == -1);
  CHECK (strncmp (last_error (), "qcow2-cache=x: ", 15) == 0);
  CHECK (params_set (&(struct params) PARAMS_DEFAULT, "qcow2-", "x") == -1);
  CHECK (params_set (&(struct params) PARAMS_DEFAULT, "qcow2-qcow2-cache", "none") == -1);
}

/* Each value arrives where it belongs. */
static void
test_arrival (void)
{
  struct params p = PARAMS_DEFAULT;

  for (enum param i = 0; i < NR_PARAMS; i++)
    CHECK (give (&p, i, good[i]) == 0 &&
           params_asks (&p, i) == (i != PARAM_DISCARD && i != PARAM_LOCK));
  CHECK (strcmp (p.path, "/current/a") == 0 && strcmp (p.dir, "/current/d") == 0);
  CHECK (p.options.l2_cache == 1 << 20 && p.options.l2_slice == 4096);
  CHECK (p.options.backing == BACKING_PATH && p.options.data_file == DATA_FILE_PATH);
  CHECK (strcmp (p.options.backing_format, "raw") == 0);
  CHECK (strcmp (p.options.snapshot, "s") == 0);
  CHECK (p.edit.nr_bitmaps == 3 && p.edit.nr_edits == 4 && p.edit.granularity_bits == 16);
  CHECK (p.edit.options.shrink && p.edit.options.preallocation == PREALLOCATION_FULL);
  CHECK (p.options.untrusted && !p.options.discard && p.options.compress);
  CHECK (p.options.detect_zeroes == DETECT_ZEROES_ON && p.options.copy_on_read);
  CHECK (p.flatten && !p.options.lock);
  CHECK (p.options.cache == STORAGE_CACHE_NONE);
  CHECK (p.check.mode == CHECK_REPAIR && strcmp (p.report, "/current/report") == 0);
  CHECK (strcmp (p.stats, "/current/stats") == 0);
  CHECK (strcmp (p.control, "/current/qmp") == 0 && strcmp (p.word, "a") == 0);
  CHECK (p.create.wanted && p.create.options.image.size == 1 << 20);
  CHECK (p.create.options.image.cluster_size == 65536);
  CHECK (p.create.options.image.version == 2 && p.create.options.encrypt);
  CHECK (p.create.options.image.refcount_bits == 16);
  CHECK (p.create.options.image.extended_l2 && p.create.options.image.lazy_refcounts);
  CHECK (p.create.options.image.compression_type == 1);
  CHECK (p.create.options.iter_ms == 10 && p.create.options.image.data_file_raw);
  CHECK (strcmp (p.create.backing_file, "b") == 0);
  params_free (&p);
}

/* --- help --- */

static const struct params untouched = PARAMS_DEFAULT;

/* No word that a parameter knows, no size and no number. */
#define NO_WORD "no-such-word"

/* Parameter I, alone, with this value: 0, or -1.  *SAME: it is what it is by default. */
static int
only (enum param i, const char *value, bool *same)
{
  struct params p;
  int r;

  memcpy (&p, &untouched, sizeof p);    /* padding as well */
  r = give (&p, i, value);
  memset (p.given, 0, sizeof p.given);
  *same = memcmp (&p, &untouched, sizeof p) == 0;
  params_free (&p);
  return r;
}

/* Does the error for NO_WORD name WORD, between "must be " or ", " and the next one? */
static bool
names_word (const char *word)
{
  const char *said = strstr (last_error (), ": must be ");
  const size_t len = strlen (word);

  if (said == NULL)
    return false;
  for (said += 10; (said = strstr (said, word)) != NULL; said++)
    if (said[-1] == ' ' && (said[len] == '\0' || strchr (", ", said[len])))
      return true;
  return false;
}

static unsigned
count_words (void)
{
  const char *p = strstr (last_error (), ": must be ");
  unsigned n = p != NULL;

  for (; p && *p; p++)
    n += *p == ',' || strncmp (p, " or ", 4) == 0;
  return n;
}

/* VALUES is what follows "key=": words, a <PLACEHOLDER>, or both, with | between them. */
static void
check_values (enum param i, char *values)
{
  const bool is_size = strstr (values, "<SIZE>") != NULL;
  const bool is_number = strcmp (values, "<N>") == 0 ||
    strcmp (values, "<MILLISECONDS>") == 0 || strcmp (values, "<SECONDS>") == 0;
  const bool is_uri = strcmp (values, "<URI>") == 0;
  const bool is_free = strchr (values, '<') && !is_size && !is_number && !is_uri;
  unsigned words = 0;
  bool same;

  CHECK (only (i, NO_WORD, &same) == (is_free ? 0 : -1));
  CHECK (!is_size || strstr (last_error (), ": not a size"));
  CHECK (!is_number || strstr (last_error (), ": not a whole number"));
  CHECK (!is_uri || strstr (last_error (), ": must be an NBD URI"));
  if (values[0] == '[')         /* [+|-]<SIZE> */
    return;
  for (char *word = strtok (values, "|"); word; word = strtok (NULL, "|"))
    if (word[0] != '<' && word[strlen (word) - 1] != '>') {
      words++;
      CHECK (is_free || is_size || names_word (word));
      CHECK (only (i, word, &same) == 0);
      CHECK (only (i, NO_WORD, &same) == (is_free ? 0 : -1));
    }
  /* No others, but two names that are left out of the text. */
  if (!is_free && !is_size && !is_number && !is_uri)
    CHECK (count_words () == words + (i == PARAM_COMPAT ? 2 : 0));
}

/* "key=values text (default X)." */
static enum param
check_help (char *line)
{
  char key[32], values[64], text[128], word[32];
  const char *deflt = strstr (line, "(default ");
  bool same;
  enum param i = 0;

  CHECK (sscanf (line, "%31[^=]=%63s %127[^\n]", key, values, text) == 3);
  CHECK (text[strlen (text) - 1] == '.');
  if (key[0] == '[') {          /* [file=]<PATH> */
    memmove (key, key + 1, strlen (key));
    memmove (values, values + 1, strlen (values));
  }
  while (i < NR_PARAMS && strcmp (keys[i], key) != 0)
    i++;
  if (i == NR_PARAMS)
    return i;
  if (strchr (values, '|') && !strchr (values, '<'))
    CHECK (deflt != NULL || i == PARAM_BACKING_FORMAT);
  check_values (i, values);
  if (deflt) {
    CHECK (sscanf (deflt, "(default %31[^)])", word) == 1);
    CHECK (only (i, word, &same) == 0 && same);
  }
  return i;
}

/* Each parameter has its line, what is said there is accepted and nothing else, and the
 * defaults are those. */
static void
test_help (void)
{
  char *text = strdup (params_help), *rest = text, *line;
  bool seen[NR_PARAMS + 1] = { false };
  enum param i;

  CHECK (text != NULL);
  for (line = text; *line; line += strcspn (line, "\n"), line += *line == '\n')
    CHECK (strcspn (line, "\n") < 80);
  /* Lines that go on. */
  while ((line = strstr (text, "\n ")) != NULL)
    *line = ' ';
  while ((line = strsep (&rest, "\n")) != NULL) {
    char *copy = strdup (line);

    if (line[0] == '(') {       /* about all of them */
      free (copy);
      continue;
    }
    CHECK (copy != NULL);
    printf ("help: %s\n", line);        /* which one it was, if this fails */
    fflush (stdout);
    i = check_help (copy);
    CHECK (i < NR_PARAMS && !seen[i]);
    seen[i] = true;
    free (copy);
  }
  for (i = 0; i < NR_PARAMS; i++) {
    if (!seen[i])
      fprintf (stderr, "--help lacks %s=\n", keys[i]);
    CHECK (seen[i]);
  }
  free (text);
}

int
main (void)
{
  const uint64_t seed = seed_from_env ();

  quiet_errors = true;
  find_keys ();
  test_arrival ();
  test_help ();
  test_sizes ();
  test_twice ();
  test_prefix ();
  test_values (seed);
  test_pairs ();
  return 0;
}
