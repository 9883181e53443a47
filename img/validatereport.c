/* SPDX-License-Identifier: BSD-3-Clause
 *
 * How are the results for images printed and written?
 *
 * In memory they are what the report in JSON says.  The other forms, TAP and JUnit,
 * follow from it.  In those, names and messages are printable, since both may be of any
 * bytes.
 *
 * Locks: none.
 */

#include <config.h>

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "util/cleanup.h"
#include "util/jsontext.h"
#include "util/report.h"
#include "util/utf8.h"
#include "img/validatereport.h"

static const char *const statuses[] = {
  [STEP_OK] = "ok", [STEP_FAILED] = "failed", [STEP_ERROR] = "error",
  [STEP_SKIPPED] = "skipped",
};
#define NR_STATUSES (sizeof statuses / sizeof statuses[0])

static const char *const verdicts[] = {
  [VALID] = "valid", [INVALID] = "invalid", [NOT_VALIDATED] = "error",
};

/* --- entries --- */

json_t *
entry_new (const char *name)
{
  return jsontext_object ({ "image", jsontext_string (name) },
                          { "verdict", json_string (verdicts[NOT_VALIDATED]) },
                          { "sha256", json_null () }, { "steps", json_array () },
                          { "check", json_null () });
}

json_t *
step_new (const char *name, enum status status, const char *message, double seconds)
{
  return jsontext_object ({ "name", jsontext_string (name) },
                          { "status", json_string (statuses[status]) },
                          { "message", jsontext_string (message) },
                          { "seconds", json_real (round (seconds * 1000) / 1000) });
}

static const char *
text_of (const json_t *object, const char *key)
{
  return json_string_value (json_object_get (object, key));
}

/* NR_STATUSES: it is none. */
static unsigned
status_of (const json_t *step)
{
  const char *text = text_of (step, "status");
  unsigned s = 0;

  while (s < NR_STATUSES && (text == NULL || strcmp (text, statuses[s]) != 0))
    s++;
  return s;
}

bool
entry_is_valid (const json_t *entry)
{
  const json_t *sha256 = json_object_get (entry, "sha256"), *one;
  const json_t *steps = json_object_get (entry, "steps");
  const json_t *findings = json_object_get (entry, "findings");
  size_t i;

  if (text_of (entry, "image") == NULL || json_object_get (entry, "check") == NULL ||
      !(json_is_null (sha256) || json_is_string (sha256)) ||
      json_array_size (steps) == 0 || (findings && !json_is_array (findings)))
    return false;
  json_array_foreach (steps, i, one)
    if (text_of (one, "name") == NULL || text_of (one, "message") == NULL ||
        !json_is_number (json_object_get (one, "seconds")) || status_of (one) == NR_STATUSES)
      return false;
  json_array_foreach (findings, i, one)
    if (text_of (one, "code") == NULL || text_of (one, "message") == NULL)
      return false;
  return true;
}

static unsigned
count_steps (const json_t *entry, enum status status)
{
  const json_t *step;
  unsigned n = 0;
  size_t i;

  json_array_foreach (json_object_get (entry, "steps"), i, step)
    n += status_of (step) == (unsigned) status;
  return n;
}

enum verdict
entry_verdict (const json_t *entry)
{
  return count_steps (entry, STEP_FAILED) ? INVALID
    : count_steps (entry, STEP_ERROR) ? NOT_VALIDATED : VALID;
}

/* --- text --- */

/* Prints a line of a message or a name.  UNWANTED: characters that are escaped, too: in
 * names the backslash, so that no two look alike.  XML: as in an attribute. */
static void
put_line (FILE *fp, const char *bytes, size_t len, const char *unwanted, bool xml)
{
  unsigned n;

  for (const char *s = bytes; s < bytes + len; s += n) {
    n = utf8_length (s) ?: 1;
    if (utf8_shown (s) == 0 || strchr (unwanted, *s))
      for (unsigned i = 0; i < n; i++)
        fprintf (fp, "\\x%02x", (unsigned char) s[i]);
    else if (xml && strchr ("<>&\"", *s))
      fprintf (fp, "&#%d;", *s);
    else
      fwrite (s, 1, n, fp);
  }
}

/* Prints TEXT, a string of a document.  BEFORE: NULL, or what each line of it begins
 * with; empty ones are left out.  Otherwise all is one line. */
static void
put_text (FILE *fp, const char *text, const char *before, const char *unwanted, bool xml)
{
  CLEANUP_FREE char *bytes = jsontext_bytes (text);
  size_t len;

  for (const char *line = bytes ? bytes : ""; *line; line += len) {
    len = before ? strcspn (line, "\n") : strlen (line);
    if (len == 0) {
      len = 1;
      continue;
    }
    if (before)
      fputs (before, fp);
    put_line (fp, line, len, unwanted, xml);
    if (before && !xml)
      putc ('\n', fp);
  }
}

/* --- TAP --- */

void
tap_entry (const json_t *entry, unsigned *n)
{
  const json_t *step;
  size_t i;

  json_array_foreach (json_object_get (entry, "steps"), i, step) {
    const unsigned status = status_of (step);

    printf ("%sok %u - ", status == STEP_OK || status == STEP_SKIPPED ? "" : "not ", ++*n);
    /* A # would begin a directive. */
    put_text (stdout, text_of (entry, "image"), NULL, "#\\", false);
    fputs (": ", stdout);
    put_text (stdout, text_of (step, "name"), NULL, "#", false);
    if (status == STEP_SKIPPED) {
      fputs (" # SKIP ", stdout);
      put_text (stdout, text_of (step, "message"), NULL, "#", false);
    }
    putchar ('\n');
    if (status != STEP_SKIPPED)
      put_text (stdout, text_of (step, "message"), "# ", "", false);
  }
  fflush (stdout);
}

/* --- JSON --- */

const struct report_kind validate_json = {
  "--json", { "{\n  \"valid\": ", "{\n  \"shard\": " }
};

static int
print_json_report (FILE *fp, const void *document)
{
  return jsontext_write (json_incref ((json_t *) document), fp);
}

int
write_json (const char *path, const json_t *entries, json_t *shard)
{
  json_t *report = json_object (), *entry;
  unsigned counts[3] = { 0 };
  size_t i;
  int r;

  json_array_foreach (entries, i, entry) {
    counts[entry_verdict (entry)]++;
    json_object_set_new (entry, "verdict", json_string (verdicts[entry_verdict (entry)]));
  }
  if (shard)
    report = jsontext_add (report, { "shard", json_incref (shard) });
  report = jsontext_add (report, { "valid", json_integer (counts[VALID]) },
                         { "invalid", json_integer (counts[INVALID]) },
                         { "errors", json_integer (counts[NOT_VALIDATED]) },
                         { "images", json_incref ((json_t *) entries) });
  r = reportfile_write (&validate_json, path, true, print_json_report, report);
  json_decref (report);
  return r;
}

/* --- JUnit --- */

const struct report_kind validate_junit = {
  "--junit", { "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites>" }
};

static void
put_attribute (FILE *fp, const char *name, const char *text)
{
  fprintf (fp, " %s=\"", name);
  put_text (fp, text, NULL, "\\", true);
  putc ('"', fp);
}

static void
put_case (FILE *fp, const json_t *entry, const json_t *step)
{
  static const char *const tags[] = {
    [STEP_FAILED] = "failure", [STEP_ERROR] = "error", [STEP_SKIPPED] = "skipped",
  };
  const unsigned status = status_of (step);

  fputs ("    <testcase", fp);
  put_attribute (fp, "classname", text_of (entry, "image"));
  put_attribute (fp, "name", text_of (step, "name"));
  fprintf (fp, " time=\"%.3f\">\n", json_number_value (json_object_get (step, "seconds")));
  if (tags[status]) {
    fprintf (fp, "      <%s message=\"", tags[status]);
    put_text (fp, text_of (step, "message"), " ", "", true);
    fputs ("\"/>\n", fp);
  }
  fputs ("    </testcase>\n", fp);
}

static int
print_junit (FILE *fp, const void *entries)
{
  const json_t *entry, *step, *steps;
  size_t i, k;

  fprintf (fp, "%s\n", validate_junit.begins[0]);
  json_array_foreach ((const json_t *) entries, i, entry) {
    double seconds = 0;

    steps = json_object_get (entry, "steps");
    json_array_foreach (steps, k, step)
      seconds += json_number_value (json_object_get (step, "seconds"));
    fputs ("  <testsuite", fp);
    put_attribute (fp, "name", text_of (entry, "image"));
    fprintf (fp, " tests=\"%zu\" failures=\"%u\" errors=\"%u\" skipped=\"%u\" "
             "time=\"%.3f\">\n",
             json_array_size (steps), count_steps (entry, STEP_FAILED),
             count_steps (entry, STEP_ERROR), count_steps (entry, STEP_SKIPPED), seconds);
    json_array_foreach (steps, k, step)
      put_case (fp, entry, step);
    fputs ("  </testsuite>\n", fp);
  }
  fputs ("</testsuites>\n", fp);
  return ferror (fp) ? -1 : 0;
}

int
write_junit (const char *path, const json_t *entries)
{
  return reportfile_write (&validate_junit, path, true, print_junit, entries);
}
