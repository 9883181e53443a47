/* SPDX-License-Identifier: BSD-3-Clause
 *
 * How are images divided among several runs, and how are their reports joined?
 *
 * All runs are given the same images and options, and divide the images alone, with the
 * same result: the heaviest image that is left goes to the lightest part.  So if all
 * weigh the same they are dealt like cards, in the order of their names.
 *
 * A report says to which run it belongs, by digests.  The images of all shards have to be
 * those of the list: what was lost, or was there twice, becomes an error of its own.
 *
 * Locks: none.
 */

#include <config.h>

#include <openssl/evp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "util/bytes.h"
#include "util/cleanup.h"
#include "util/jsontext.h"
#include "util/memory.h"
#include "util/report.h"
#include "util/text.h"
#include "img/command.h"
#include "img/validatereport.h"
#include "img/validateshards.h"
#include "img/values.h"

/* What it takes to begin with an image, in bytes that could be read meanwhile. */
#define START_BYTES (1 << 20)
#define MOST_REPORT (UINT64_C (1) << 30)        /* bytes of a file */

/* --- dividing --- */

static int
compare_names (const void *a, const void *b)
{
  return strcmp (*(char *const *) a, *(char *const *) b);
}

void
names_sort (char **names, unsigned n)
{
  qsort (names, n, sizeof *names, compare_names);
}

struct weighed { char *name; uint64_t weight; };

static int
compare_weights (const void *a_, const void *b_)
{
  const struct weighed *a = a_, *b = b_;

  return a->weight != b->weight ? (a->weight < b->weight ? 1 : -1)
    : strcmp (a->name, b->name);
}

static uint64_t
weight_of (const char *name, bool balance)
{
  struct stat st;

  return !balance ? 1 : START_BYTES + (stat (name, &st) == 0 ? st.st_size : 0);
}

struct part { uint64_t load; unsigned index; };

static bool
is_lighter (const struct part *a, const struct part *b)
{
  return a->load != b->load ? a->load < b->load : a->index < b->index;
}

/* HEAP[0], the lightest of N parts, has become heavier: restores the order of the
 * heap. */
static void
sink (struct part *heap, unsigned n)
{
  unsigned at = 0, child;

  while ((child = 2 * at + 1) < n) {
    struct part moved = heap[at];

    if (child + 1 < n && is_lighter (&heap[child + 1], &heap[child]))
      child++;
    if (!is_lighter (&heap[child], &moved))
      break;
    heap[at] = heap[child];
    heap[child] = moved;
    at = child;
  }
}

int
shards_part (char **names, unsigned n, unsigned index, unsigned count, bool balance)
{
  const unsigned parts = count < n ? count : n;
  CLEANUP_FREE struct weighed *list = memory_new (n, sizeof *list);
  CLEANUP_FREE struct part *heap = memory_new (parts, sizeof *heap);
  unsigned mine = 0;

  if (list == NULL || heap == NULL)
    return -1;
  for (unsigned i = 0; i < n; i++)
    list[i] = (struct weighed) { names[i], weight_of (names[i], balance) };
  for (unsigned i = 0; i < parts; i++)
    heap[i].index = i + 1;
  qsort (list, n, sizeof *list, compare_weights);
  for (unsigned i = 0, others = n; i < n; i++) {
    names[heap[0].index == index ? mine++ : --others] = list[i].name;
    heap[0].load += list[i].weight;
    sink (heap, parts);
  }
  names_sort (names, mine);
  return mine;
}

json_t *
shards_digest (char *const *texts, unsigned n)
{
  unsigned char digest[EVP_MAX_MD_SIZE];
  EVP_MD_CTX *context = EVP_MD_CTX_new ();
  bool ok = context && EVP_DigestInit_ex (context, EVP_sha256 (), NULL) == 1;
  char text[65] = "";
  unsigned len = 0;

  for (unsigned i = 0; ok && i < n; i++)
    ok = EVP_DigestUpdate (context, texts[i], strlen (texts[i]) + 1) == 1;
  ok = ok && EVP_DigestFinal_ex (context, digest, &len) == 1;
  EVP_MD_CTX_free (context);
  for (unsigned i = 0; i < len && i < 32; i++)
    snprintf (text + 2 * i, 3, "%02x", digest[i]);
  return ok ? json_string (text) : NULL;
}

/* --- reading reports --- */

struct shard {
  const char *path;
  json_t *images, *run;         /* run: what is the same in all reports of one run */
  unsigned index, count;
};

/* Its value, or -1. */
static json_int_t
number_at (const json_t *object, const char *key)
{
  const json_t *n = json_object_get (object, key);

  return json_is_integer (n) ? json_integer_value (n) : -1;
}

static bool
take_shard (struct shard *s, json_t *report)
{
  json_t *run = json_object_get (report, "shard"), *entry;
  const json_int_t index = number_at (run, "index"), count = number_at (run, "count");
  size_t i;

  s->images = json_incref (json_object_get (report, "images"));
  s->run = json_incref (run);
  if (!json_is_array (s->images))
    return false;
  json_array_foreach (s->images, i, entry)
    if (!entry_is_valid (entry))
      return false;
  if (run == NULL)
    return true;
  s->index = index;
  s->count = count;
  return index >= 1 && index <= count && count <= MAX_SHARDS &&
    number_at (run, "images") >= 0 && json_is_string (json_object_get (run, "list")) &&
    json_is_boolean (json_object_get (json_object_get (run, "options"), "balance")) &&
    json_object_del (run, "index") == 0;
}

/* -1: reported. */
static int
read_shard (struct shard *s, const char *path)
{
  size_t len;
  CLEANUP_FREE char *text = read_whole (path, MOST_REPORT, &len);
  json_t *report = text ? jsontext_read (text, len) : NULL;
  int r = -1;

  s->path = path;
  if (text == NULL)
    report_error ("%s: %m", path);
  else if (!take_shard (s, report))
    report_error ("%s: not a report that --json has written", path);
  else if (s->run == NULL)
    report_error ("%s: not the report of a shard (--shard)", path);
  else
    r = 0;
  json_decref (report);
  return r;
}

/* Do these belong together?  -1: reported. */
static int
check_pair (const struct shard *a, const struct shard *b)
{
  static const struct { const char *key, *what; } same[] = {
    { "count", "different numbers of shards" }, { "list", "different lists of images" },
    { "options", "different options" },
  };

  for (unsigned i = 0; i < sizeof same / sizeof same[0]; i++)
    if (!json_equal (json_object_get (a->run, same[i].key),
                     json_object_get (b->run, same[i].key))) {
      report_error ("%s and %s: reports of runs with %s", a->path, b->path, same[i].what);
      return -1;
    }
  return 0;
}

static int
compare_shards (const void *a_, const void *b_)
{
  const struct shard *a = a_, *b = b_;

  return a->index < b->index ? -1 : a->index > b->index;
}

/* In the order of their indices.  -1: reported. */
static int
read_shards (struct shard *shards, const char *const *paths, unsigned n)
{
  for (unsigned i = 0; i < n; i++)
    if (read_shard (&shards[i], paths[i]) == -1 ||
        check_pair (&shards[0], &shards[i]) == -1)
      return -1;
  qsort (shards, n, sizeof *shards, compare_shards);
  for (unsigned i = 1; i < n; i++)
    if (shards[i].index == shards[i - 1].index) {
      report_error ("%s and %s: two reports of shard %u/%u", shards[i - 1].path,
                    shards[i].path, shards[i].index, shards[i].count);
      return -1;
    }
  return 0;
}

/* --- joining them --- */

struct found { char *name; json_t *entry; unsigned shard; };

static int
compare_found (const void *a_, const void *b_)
{
  const struct found *a = a_, *b = b_;
  const int r = strcmp (a->name, b->name);

  return r ? r : a->shard < b->shard ? -1 : a->shard > b->shard;
}

/* An error that is no image's. */
static json_t *
add_error (json_t *entries, const char *name, const char *step, const char *message)
{
  json_t *entry = entry_new (name);

  json_array_append_new (json_object_get (entry, "steps"),
                         step_new (step, STEP_ERROR, message, 0));
  return jsontext_append (entries, entry);
}

static json_t *
add_missing (json_t *entries, const struct shard *shards, unsigned n)
{
  for (unsigned index = 1, i = 0; index <= shards[0].count; index++) {
    char name[40];

    if (i < n && shards[i].index == index) {
      i++;
      continue;
    }
    snprintf (name, sizeof name, "shard %u/%u", index, shards[0].count);
    entries = add_error (entries, name, "report", "no report of this shard was given");
  }
  return entries;
}

/* Adds an error for each image that several shards have validated.  NAMES gets all names,
 * *N: their number. */
static json_t *
add_doubles (json_t *entries, const struct found *found, size_t all, char **names,
             unsigned *n)
{
  *n = 0;
  for (size_t i = 0, next; i < all; i = next) {
    char *list = text_new ("%u", found[i].shard);

    for (next = i + 1; next < all && strcmp (found[next].name, found[i].name) == 0; next++) {
      char *more = text_new ("%s, %u", list ? list : "", found[next].shard);

      free (list);
      list = more;
    }
    names[(*n)++] = found[i].name;
    if (next > i + 1) {
      char *text = text_new ("more than one shard validated it: %s", list ? list : "");

      entries = add_error (entries, found[i].name, "shards", text ? text : "");
      free (text);
    }
    free (list);
  }
  return entries;
}

/* Are these the images that were to be validated? */
static json_t *
add_difference (json_t *entries, const json_t *run, char *const *names, unsigned n)
{
  json_t *list = shards_digest (names, n);
  const json_t *options = json_object_get (run, "options");
  char text[120];

  if (!json_equal (list, json_object_get (run, "list"))) {
    snprintf (text, sizeof text, "the reports have %u of %lld images%s", n,
              (long long) number_at (run, "images"),
              json_is_true (json_object_get (options, "balance"))
              ? ": did the size of a file change?" : "");
    entries = add_error (entries, "shards", "images", text);
  }
  json_decref (list);
  return entries;
}

/* FOUND: all entries, sorted.  NAMES: room for all names. */
static json_t *
join (const struct shard *shards, unsigned n, const struct found *found, size_t all,
      char **names)
{
  json_t *entries = json_array ();
  unsigned different;

  for (size_t i = 0; i < all; i++)
    entries = jsontext_append (entries, json_incref (found[i].entry));
  entries = add_doubles (entries, found, all, names, &different);
  entries = add_missing (entries, shards, n);
  if (n == shards[0].count)
    entries = add_difference (entries, shards[0].run, names, different);
  return entries;
}

static json_t *
join_all (const struct shard *shards, unsigned n)
{
  struct found *found;
  char **names;
  size_t all = 0, at = 0, k;
  json_t *entry, *entries = NULL;

  for (unsigned i = 0; i < n; i++)
    all += json_array_size (shards[i].images);
  found = memory_new (all + 1, sizeof *found);
  names = memory_new (all + 1, sizeof *names);
  for (unsigned i = 0; found && i < n; i++)
    json_array_foreach (shards[i].images, k, entry) {
      found[at] = (struct found) {
        jsontext_bytes (json_string_value (json_object_get (entry, "image"))), entry,
        shards[i].index
      };
      if (found[at].name == NULL)
        break;
      at++;
    }
  if (found && names && at == all) {
    qsort (found, all, sizeof *found, compare_found);
    entries = join (shards, n, found, all, names);
  }
  while (found && at > 0)
    free (found[--at].name);
  free (found);
  free (names);
  if (entries == NULL)
    report_error ("no memory for the reports");
  return entries;
}

json_t *
shards_merge (const char *const *paths, unsigned n)
{
  struct shard *shards = memory_new (n, sizeof *shards);
  json_t *entries = NULL;

  if (shards && read_shards (shards, paths, n) == 0)
    entries = join_all (shards, n);
  for (unsigned i = 0; shards && i < n; i++) {
    json_decref (shards[i].images);
    json_decref (shards[i].run);
  }
  free (shards);
  return entries;
}
