/* SPDX-License-Identifier: BSD-3-Clause
 *
 * validate: which of many images have a fault, and which are not to be accepted?
 *
 * For a CI job, or for uploads.  Each image is looked at in a process of its own (pool.c
 * and validateimage.c); this one only collects what they tell, prints it as TAP, and
 * writes reports.  Several runs can share the work (validateshards.c).
 *
 * Wrong usage is an exit status of its own, because 1 means that an image has a fault.
 *
 * Locks: none.
 */

#include <config.h>

#include <ctype.h>
#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "util/cleanup.h"
#include "util/jsontext.h"
#include "util/memory.h"
#include "util/processors.h"
#include "util/publicname.h"
#include "util/report.h"
#include "util/text.h"
#include "img/imagefile.h"
#include "img/pool.h"
#include "img/secrets.h"
#include "img/validate.h"
#include "img/validatereport.h"
#include "img/validateshards.h"
#include "img/values.h"

/* Exit statuses. */
enum { FINE = 0, FAULTY = 1, USAGE = 2, UNKNOWN = 3 };

#define MOST_JOBS 10000
#define MOST_LIST (UINT64_C (1) << 30)  /* bytes */

static const struct option
  option_policy = {
    0, "policy", "POLICY", "first decide whether the image is accepted: POLICY is upload, "
    "strict, or a file (see the manual).  This opens no other file, and takes at most 64 MiB "
    "and 10 seconds.  IMAGE - is a stream on stdin, which is read to its end.  The steps "
    "follow, for what is accepted, only if one of their options is given"
  },
  option_sha256 = {
    0, "sha256", "SUM", "the expected checksum of the disk (not of the file); only with one "
    "IMAGE"
  },
  option_sums = {
    0, "sums", "FILE", "a file with the checksums of disks, in the format of sha256sum, with "
    "the names of the images; other images fail"
  },
  option_hash = { 0, "hash", NULL, "always compute the checksum, for --json" },
  option_fsck = {
    0, "fsck", NULL, "check filesystems, with e2fsck, xfs_repair or fsck.vfat; each is first "
    "copied to TMPDIR"
  },
  option_check = { 0, "check", "quick|full", "how thorough the check is (default full)" },
  option_no_read = { 0, "no-read", NULL, "do not read the disk" },
  option_no_leaks = {
    0, "no-leaks", NULL, "treat leaked clusters as a failure; by default they are only "
    "reported"
  },
  option_untrusted = {
    0, "untrusted", NULL, "open no other file, and limit the work that an image causes"
  },
  option_passphrase_file = {
    0, "passphrase-file", "FILE", "file with the passphrase of encrypted images"
  },
  option_backing_format = {
    0, "backing-format", "qcow2|raw", "the format of the backing files of images that do not "
    "state it"
  },
  option_list = {
    0, "list", "FILE", "more images: a file with their names, each on a line of its own (or "
    "ended by a NUL, as find -print0 writes them); - is stdin"
  },
  option_jobs = {
    0, "jobs", "N", "number of images to check at a time (default: the number of processors)"
  },
  option_timeout = {
    0, "timeout", "SECONDS", "time limit for each step, and for a stream (default: none)"
  },
  option_json = { 0, "json", "FILE", "write all results to FILE, as JSON" },
  option_junit = { 0, "junit", "FILE", "write all results to FILE, as JUnit XML" },
  option_shard = {
    0, "shard", "I/N", "validate only part I (1 to N) of the images: N jobs with the same "
    "images and options, and each with its own I, validate all.  The numbers of images in the "
    "parts differ by one at most"
  },
  option_balance = {
    0, "balance", NULL, "with --shard: each part has about the same number of bytes, by the "
    "sizes of the files"
  },
  option_merge = {
    0, "merge", NULL, "the operands are the reports (--json) of all shards: print, write and "
    "return what one run for all images would.  A missing report is an error; reports that "
    "do not belong together are refused.  Only --json and --junit can be used with it"
  };

static const struct option *const options[] = {
  &option_policy, &option_sha256, &option_sums, &option_hash, &option_fsck, &option_check,
  &option_no_read, &option_no_leaks, &option_untrusted, &option_passphrase_file,
  &option_object, &option_backing_format, &option_allow_uri, &option_force_share,
  &option_list, &option_jobs, &option_timeout, &option_json, &option_junit, &option_shard,
  &option_balance, &option_merge, NULL
};

struct validate {
  struct validate_options o;
  struct secrets *secrets;
  char *list, *passphrase;      /* what was read from files */
  char *sum;
  char *json_path, *junit_path;
  unsigned jobs;
  json_t *shard;                /* what the report says of it; or NULL */
  json_t **entries;             /* of the images, in their order */
  unsigned steps;               /* that were printed */
};

static int usage (const struct option *, const char *fmt, ...)
  __attribute__ ((__format__ (__printf__, 2, 3)));

static int
usage (const struct option *o, const char *fmt, ...)
{
  CLEANUP_FREE char *text = NULL;
  va_list args;

  va_start (args, fmt);
  text = text_new_list (fmt, args);
  va_end (args);
  report_error ("--%s: %s", o->name, text ? text : "no memory");
  return -1;
}

/* --- names of images --- */

/* The caller frees it.  NULL: reported. */
static char *
read_file (const struct option *o, const char *name, size_t *len)
{
  char *text = read_whole (name, MOST_LIST, len);

  if (text == NULL)
    usage (o, "%s: %m", name);
  return text;
}

static int
add_name (struct validate *v, char *name)
{
  if (MEMORY_APPEND (v->o.names, v->o.n) == -1)
    return -1;
  v->o.names[v->o.n++] = name;
  return 0;
}

static int
add_list (struct validate *v, const char *name)
{
  char *at, *end, separator;
  size_t len;

  v->list = read_file (&option_list, strcmp (name, "-") == 0 ? "/dev/stdin" : name, &len);
  if (v->list == NULL)
    return -1;
  separator = memchr (v->list, '\0', len) ? '\0' : '\n';
  for (at = v->list; at < v->list + len; at = end + 1) {
    end = memchr (at, separator, v->list + len - at);
    if (end == NULL)
      end = v->list + len;
    *end = '\0';
    if (at[0] && add_name (v, at) == -1)
      return -1;
  }
  return 0;
}

/* Only files can be named; a message would show all of a URI. */
static int
check_name (const char *name)
{
  const size_t protocol = publicname_protocol (name);
  CLEANUP_FREE char *shown = NULL;

  if (protocol == 0 || strncmp (name + protocol, "//", 2) != 0 || access (name, F_OK) == 0)
    return 0;
  shown = publicname (name);
  report_error ("must be the name of a file, not a URI: %s", publicname_or (shown));
  return -1;
}

static int
check_stdin (const struct validate *v)
{
  const char *list = value_of (v->o.arguments, &option_list);
  unsigned n = 0;

  for (unsigned i = 0; i < v->o.n; i++)
    n += strcmp (v->o.names[i], "-") == 0;
  if (n == 0)
    return 0;
  if (!v->o.policy_only)
    report_error ("- (stdin) can only be judged by --policy: for a file write ./-");
  else if (n > 1 || (list && strcmp (list, "-") == 0))
    report_error ("- (stdin) was given twice");
  else
    return 0;
  return -1;
}

static int
take_names (struct validate *v)
{
  const struct arguments *a = v->o.arguments;
  const char *list = value_of (a, &option_list);

  for (unsigned i = 0; i < a->nr_operands; i++)
    if (add_name (v, (char *) a->operands[i]) == -1)
      return -1;
  if (list && add_list (v, list) == -1)
    return -1;
  if (v->o.n == 0) {
    report_error ("no image was given: see --help");
    return -1;
  }
  for (unsigned i = 0; i < v->o.n; i++)
    if (check_name (v->o.names[i]) == -1)
      return -1;
  return check_stdin (v);
}

/* --- checksums --- */

/* In lower case, if it is one. */
static bool
take_sum (char *text)
{
  for (unsigned i = 0; i < 64; i++)
    if (isxdigit ((unsigned char) text[i]))
      text[i] = tolower ((unsigned char) text[i]);
    else
      return false;
  return true;
}

/* As sha256sum writes it after a backslash. */
static void
unescape (char *name)
{
  char *to = name;

  for (; *name; name++)
    if (name[0] == '\\' && name[1] && strchr ("n\\r", name[1])) {
      name++;
      *to++ = *name == 'n' ? '\n' : *name == 'r' ? '\r' : '\\';
    }
    else
      *to++ = *name;
  *to = '\0';
}

static int
add_sum (struct validate *v, char *line)
{
  const bool escaped = line[0] == '\\';
  char *const sum = line + escaped, *const name = sum + 66;

  if (!take_sum (sum) || sum[64] != ' ' || (sum[65] != ' ' && sum[65] != '*') ||
      name[0] == '\0')
    return usage (&option_sums, "not a line of sha256sum: %s", line);
  sum[64] = '\0';
  if (escaped)
    unescape (name);
  if (json_object_set_new_nocheck (v->o.sums, name, json_string (sum)) == 0)
    return 0;
  return usage (&option_sums, "no memory");
}

static int
read_sums (struct validate *v, const char *name)
{
  size_t len;
  CLEANUP_FREE char *text = read_file (&option_sums, name, &len);
  char *rest = text, *line;

  v->o.sums = json_object ();
  if (text == NULL || v->o.sums == NULL)
    return -1;
  while ((line = strsep (&rest, "\n")) != NULL)
    if ((line[0] || rest) && add_sum (v, line) == -1)
      return -1;
  return 0;
}

static int
take_checksums (struct validate *v)
{
  const struct arguments *a = v->o.arguments;
  const char *sum = value_of (a, &option_sha256), *sums = value_of (a, &option_sums);

  if (sum) {
    if (v->o.n != 1 || sums)
      return usage (&option_sha256, "is for one image: see --sums");
    v->sum = strdup (sum);
    if (v->sum == NULL || !take_sum (v->sum) || v->sum[64])
      return usage (&option_sha256, "not a checksum of 64 hexadecimal digits");
    v->o.sha256 = v->sum;
  }
  return sums ? read_sums (v, sums) : 0;
}

/* --- shards --- */

static int
parse_shard (const char *text, unsigned *index, unsigned *count)
{
  char *end;
  const unsigned long i = strtoul (text, &end, 10);
  const unsigned long n = *end == '/' ? strtoul (end + 1, &end, 10) : 0;

  if (text[strspn (text, "0123456789/")] || text[0] == '/' || strchr (text, '/') == NULL ||
      *end || i < 1 || i > n || n > MAX_SHARDS)
    return usage (&option_shard, "not I/N, with I from 1 to N, and N at most %d", MAX_SHARDS);
  *index = i;
  *count = n;
  return 0;
}

/* Names and sums, as one list. */
static json_t *
digest_sums (json_t *sums)
{
  const size_t n = json_object_size (sums);
  CLEANUP_FREE char **names = memory_new (n + 1, sizeof *names);
  CLEANUP_FREE char **both = memory_new (2 * n + 1, sizeof *both);
  const char *name;
  json_t *sum;
  size_t i = 0;

  if (sums == NULL)
    return json_null ();
  if (names == NULL || both == NULL)
    return NULL;
  json_object_foreach (sums, name, sum)
    names[i++] = (char *) name;
  names_sort (names, n);
  for (i = 0; i < n; i++) {
    both[2 * i] = names[i];
    both[2 * i + 1] = (char *) json_string_value (json_object_get (sums, names[i]));
  }
  return shards_digest (both, 2 * n);
}

/* What a report tells about its shard: enough to find those of the same run. */
static json_t *
describe_shard (const struct validate *v, unsigned index, unsigned count)
{
  const struct validate_options *o = &v->o;
  CLEANUP_FREE char *policy = o->policy ? policy_text (o->policy) : NULL;

  if (o->policy && policy == NULL)
    return NULL;
  return jsontext_object (
    { "index", json_integer (index) }, { "count", json_integer (count) },
    { "images", json_integer (o->n) }, { "list", shards_digest (o->names, o->n) },
    { "options", jsontext_object (
      { "balance", json_boolean (is_given (o->arguments, &option_balance)) },
      { "check", json_string (o->check == CHECK_QUICK ? "quick" : "full") },
      { "fsck", json_boolean (o->fsck) }, { "hash", json_boolean (o->hash) },
      { "no-leaks", json_boolean (o->no_leaks) }, { "no-read", json_boolean (o->no_read) },
      { "untrusted", json_boolean (o->untrusted) },
      { "policy", policy ? jsontext_string (policy) : json_null () },
      { "sha256", o->sha256 ? json_string (o->sha256) : json_null () },
      { "sums", digest_sums (o->sums) }) });
}

static int
take_shard (struct validate *v)
{
  const struct arguments *a = v->o.arguments;
  const char *text = value_of (a, &option_shard);
  const bool balance = is_given (a, &option_balance);
  unsigned index = 0, count = 0;
  int n;

  if (text == NULL)
    return balance ? usage (&option_balance, "requires --shard") : 0;
  if (parse_shard (text, &index, &count) == -1)
    return -1;
  names_sort (v->o.names, v->o.n);
  for (unsigned i = 1; i < v->o.n; i++)
    if (strcmp (v->o.names[i - 1], v->o.names[i]) == 0)
      return usage (&option_shard, "an image was given twice: %s", v->o.names[i]);
  v->shard = describe_shard (v, index, count);
  if (v->shard == NULL)
    return usage (&option_shard, "no memory");
  n = shards_part (v->o.names, v->o.n, index, count, balance);
  v->o.n = n == -1 ? 0 : n;
  return n == -1 ? -1 : 0;
}

/* --- other options --- */

/* The first line. */
static int
read_passphrase (struct validate *v, const char *name)
{
  size_t len;

  v->passphrase = read_file (&option_passphrase_file, name, &len);
  if (v->passphrase == NULL)
    return -1;
  v->passphrase[strcspn (v->passphrase, "\n")] = '\0';
  v->o.passphrase = v->passphrase;
  return 0;
}

static int
take_passphrase (struct validate *v)
{
  const char *file = value_of (v->o.arguments, &option_passphrase_file);

  v->secrets = secrets_read (v->o.arguments);
  if (v->secrets == NULL)
    return -1;
  v->o.passphrase = secrets_only (v->secrets);
  return file ? read_passphrase (v, file) : 0;
}

static int
take_policy (struct validate *v)
{
  const struct arguments *a = v->o.arguments;
  const char *name = value_of (a, &option_policy);

  if (name == NULL)
    return 0;
  v->o.policy = policy_load (name);
  v->o.untrusted = true;
  v->o.policy_only = !(is_given (a, &option_check) || is_given (a, &option_sha256) ||
                       is_given (a, &option_sums) || v->o.hash || v->o.fsck || v->o.no_read);
  return v->o.policy ? 0 : -1;
}

static int
take_numbers (struct validate *v)
{
  const char *jobs = value_of (v->o.arguments, &option_jobs);
  const char *timeout = value_of (v->o.arguments, &option_timeout);
  uint64_t n = processors ();
  char *end;

  if (jobs && parse_number ("--jobs", jobs, 1, MOST_JOBS, &n) == -1)
    return -1;
  v->jobs = n;
  if (timeout) {
    v->o.timeout = strtod (timeout, &end);
    if (end == timeout || *end || !isfinite (v->o.timeout) || v->o.timeout <= 0)
      return usage (&option_timeout, "must be more than 0 seconds");
  }
  return 0;
}

/* Before the work: a report must not cost a file that is none. */
static int
take_report (const struct arguments *a, const struct option *o, const struct report_kind *kind,
             char **path)
{
  const char *name = value_of (a, o);
  CLEANUP_FREE char *directory = getcwd (NULL, 0);

  if (name == NULL)
    return 0;
  if (strcmp (name, "-") == 0)
    return usage (o, "stdout is for TAP; give the name of a file");
  *path = name[0] == '/' ? strdup (name)
    : directory ? text_new ("%s/%s", directory, name) : NULL;
  if (*path == NULL)
    return usage (o, "%s", strerror (errno));
  return access (*path, F_OK) == 0 ? reportfile_check (kind, *path, false) : 0;
}

static int
take_reports (struct validate *v)
{
  const struct arguments *a = v->o.arguments;

  return take_report (a, &option_json, &validate_json, &v->json_path) == -1 ||
    take_report (a, &option_junit, &validate_junit, &v->junit_path) == -1 ? -1 : 0;
}

static int
take_options (struct validate *v)
{
  const struct arguments *a = v->o.arguments;
  const char *check = value_of (a, &option_check);

  v->o.check = check && check[0] == 'q' ? CHECK_QUICK : CHECK_FULL;
  v->o.hash = is_given (a, &option_hash);
  v->o.fsck = is_given (a, &option_fsck);
  v->o.no_read = is_given (a, &option_no_read);
  v->o.no_leaks = is_given (a, &option_no_leaks);
  v->o.untrusted = is_given (a, &option_untrusted);
  v->o.backing_format = value_of (a, &option_backing_format);
  return take_policy (v) == -1 || take_names (v) == -1 || take_numbers (v) == -1 ||
    take_checksums (v) == -1 || take_reports (v) == -1 || take_passphrase (v) == -1
    ? -1 : take_shard (v);
}

/* --- the results --- */

/* ENTRIES are freed.  Returns the exit status. */
static int
write_reports (const struct validate *v, json_t *entries)
{
  int status = FINE;
  json_t *entry;
  size_t i;

  json_array_foreach (entries, i, entry) {
    const enum verdict verdict = entry_verdict (entry);

    if (verdict == INVALID || (verdict == NOT_VALIDATED && status == FINE))
      status = verdict == INVALID ? FAULTY : UNKNOWN;
  }
  printf ("1..%u%s\n", v->steps, v->steps ? "" : " # SKIP no image");
  if ((v->json_path && write_json (v->json_path, entries, v->shard) == -1) ||
      (v->junit_path && write_junit (v->junit_path, entries) == -1))
    status = UNKNOWN;
  json_decref (entries);
  return status;
}

static void
work (void *opaque, unsigned i)
{
  const struct validate *v = opaque;

  validate_image (&v->o, i);
}

static void
done (void *opaque, unsigned i, json_t *last, const char *why, bool late)
{
  struct validate *v = opaque;

  v->entries[i] = validate_entry (v->o.names[i], last, why, late);
  if (v->entries[i])
    tap_entry (v->entries[i], &v->steps);
}

static int
validate_all (struct validate *v)
{
  const struct pool_work all = {
    .n = v->o.n, .jobs = v->jobs < v->o.n ? v->jobs : v->o.n, .opaque = v, .work = work,
    .done = done,
  };
  json_t *entries = json_array ();

  v->entries = memory_new (v->o.n + 1, sizeof *v->entries);
  if (v->entries == NULL)
    return UNKNOWN;
  puts ("TAP version 13");
  if (v->o.n)
    pool_run (&all);
  for (unsigned i = 0; i < v->o.n; i++)
    entries = jsontext_append (entries, v->entries[i]);
  if (entries)
    return write_reports (v, entries);
  report_error ("no memory for the results");
  return UNKNOWN;
}

/* --- joining reports --- */

static int
check_merge (const struct arguments *a)
{
  for (unsigned i = 0; i < a->nr_given; i++) {
    const struct option *o = a->given[i].option;

    if (o != &option_merge && o != &option_json && o != &option_junit)
      return usage (&option_merge, "cannot be used with --%s", o->name);
  }
  if (a->nr_operands)
    return 0;
  report_error ("no report was given: see --help");
  return -1;
}

static int
merge (struct validate *v)
{
  const struct arguments *a = v->o.arguments;
  json_t *entries, *entry;
  size_t i;

  if (check_merge (a) == -1 || take_reports (v) == -1)
    return USAGE;
  entries = shards_merge (a->operands, a->nr_operands);
  if (entries == NULL)
    return USAGE;
  puts ("TAP version 13");
  json_array_foreach (entries, i, entry)
    tap_entry (entry, &v->steps);
  return write_reports (v, entries);
}

/* --- the command --- */

static int
run (const struct arguments *a)
{
  struct validate v = { .o = { .arguments = a } };
  const int status = is_given (a, &option_merge) ? merge (&v)
    : take_options (&v) == -1 ? USAGE : validate_all (&v);

  policy_free (v.o.policy);
  json_decref (v.o.sums);
  json_decref (v.shard);
  free (v.o.names);
  free (v.entries);
  free (v.list);
  if (v.passphrase)
    explicit_bzero (v.passphrase, strlen (v.passphrase));
  free (v.passphrase);
  free (v.sum);
  free (v.json_path);
  free (v.junit_path);
  secrets_free (v.secrets);
  return status;
}

const struct command validate_command = {
  "validate", "IMAGE...|-|REPORT...",
  "Check images for faults: their metadata and all that is stored, in all files of the "
  "backing chain; and that each byte of their disks can be read.  With other options "
  "also checksums and filesystems.  Images are not changed.  Results go to stdout as TAP, one "
  "test for each step of each image.  Exit status: 0 no fault was found, and the policy "
  "accepts all, 1 an image has a fault or is refused, 2 wrong usage or reports that do not "
  "belong together, 3 no fault was found, but an image could not be validated (it does not "
  "exist, another program uses it, the passphrase is wrong, a backing file or a tool is "
  "missing).",
  options, 0, UINT_MAX, .usage = USAGE, .output_lost = UNKNOWN, .run = run
};
