/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Which images does a policy accept?
 *
 * A policy is a table: what an image may have, and how large it may be.  Two are built
 * in; a file changes single rules of one.  What is judged are bytes that a user has
 * uploaded: the first cluster, the length and the end of a file.  Nothing is followed.
 * header_parse knows the format; here are only the questions that no other code asks of a
 * header.
 *
 * Locks: none.
 */

#include <config.h>

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "util/bytes.h"
#include "util/cleanup.h"
#include "util/jsontext.h"
#include "util/memory.h"
#include "util/publicname.h"
#include "util/report.h"
#include "util/text.h"
#include "img/policy.h"
#include "img/values.h"

/* --- the table --- */

enum key {
  BACKING_FILE, DATA_FILE, EXTERNAL_NAME, OTHER_FORMAT, ENCRYPTED, SNAPSHOTS, BITMAPS, DIRTY,
  MARKED_CORRUPT, EXTENDED_L2, ZSTD, UNKNOWN_EXTENSION, UNUSED_BYTES, NR_KEYS
};

enum { ALLOW, REFUSE };
enum { UPLOAD, STRICT };        /* the policies that are built in */

static const struct { const char *name; bool refuse[2]; } keys[NR_KEYS] = {
  [BACKING_FILE] = { "backing-file", { REFUSE, REFUSE } },
  [DATA_FILE] = { "data-file", { REFUSE, REFUSE } },
  [EXTERNAL_NAME] = { "external-name", { REFUSE, REFUSE } },
  [OTHER_FORMAT] = { "other-format", { REFUSE, REFUSE } },
  [ENCRYPTED] = { "encrypted", { ALLOW, REFUSE } },
  [SNAPSHOTS] = { "snapshots", { ALLOW, REFUSE } },
  [BITMAPS] = { "bitmaps", { ALLOW, REFUSE } },
  [DIRTY] = { "dirty", { ALLOW, REFUSE } },
  [MARKED_CORRUPT] = { "marked-corrupt", { ALLOW, REFUSE } },
  [EXTENDED_L2] = { "extended-l2", { ALLOW, REFUSE } },
  [ZSTD] = { "zstd", { ALLOW, REFUSE } },
  [UNKNOWN_EXTENSION] = { "unknown-extension", { ALLOW, REFUSE } },
  [UNUSED_BYTES] = { "unused-bytes", { ALLOW, REFUSE } },
};

/* The code of a limit is its key without "max-". */
enum limit { VIRTUAL_SIZE, FILE_SIZE, RATIO, NR_LIMITS };
static const char *const limits[NR_LIMITS] = {
  [VIRTUAL_SIZE] = "max-virtual-size", [FILE_SIZE] = "max-file-size", [RATIO] = "max-ratio",
};
#define CODE(limit) (limits[limit] + 4)

#define NO_LIMIT UINT64_MAX
/* The max-file-size of built-in policies: a stream that is longer than so much for the
 * disk and each snapshot has no end. */
#define FROM_HEADER (UINT64_MAX - 1)
#define SPARE_BYTES (UINT64_C (4) << 30)
#define SPARE_TIMES 16

/* All policies refuse these. */
static const char *const faults[] = {
  [HEADER_INVALID] = "header", [HEADER_NOT_QCOW2] = "format", [HEADER_VERSION] = "version",
  [HEADER_FEATURE] = "unknown-feature", [HEADER_SIZES] = "sizes", [HEADER_CUT] = "truncated",
};

/* QEMU's limit; ours is larger. */
#define MAX_DATA_NAME 1023

struct policy {
  bool refuse[NR_KEYS];
  uint64_t limit[NR_LIMITS];
};

static void
set_built_in (struct policy *p, unsigned which)
{
  for (unsigned i = 0; i < NR_KEYS; i++)
    p->refuse[i] = keys[i].refuse[which];
  for (unsigned i = 0; i < NR_LIMITS; i++)
    p->limit[i] = i == FILE_SIZE ? FROM_HEADER : NO_LIMIT;
}

static int
built_in (const char *name)
{
  return strcmp (name, "upload") == 0 ? UPLOAD : strcmp (name, "strict") == 0 ? STRICT : -1;
}

/* --- files with rules --- */

#define MOST_BYTES (64 << 10)
#define BLANKS " \t\r\f\v"

struct reading {
  const char *name;
  unsigned line;
  bool seen[NR_KEYS + NR_LIMITS];
  bool any;
};

static int bad_line (const struct reading *, const char *fmt, ...)
  __attribute__ ((__format__ (__printf__, 2, 3)));

static int
bad_line (const struct reading *r, const char *fmt, ...)
{
  CLEANUP_FREE char *text = NULL;
  va_list args;

  va_start (args, fmt);
  text = text_new_list (fmt, args);
  va_end (args);
  report_error ("--policy: %s: line %u: %s", r->name, r->line, text ? text : "no memory");
  return -1;
}

static int
set_limit (const struct reading *r, enum limit limit, const char *value, uint64_t *bytes)
{
  static const char units[] = "KMGTPE";
  const size_t digits = strspn (value, "0123456789");
  const char *const unit = value[digits] ? strchr (units, value[digits]) : NULL;
  const uint64_t times = unit ? UINT64_C (1) << 10 * (unit - units + 1) : 1;

  if (strcmp (value, "none") == 0) {
    *bytes = NO_LIMIT;
    return 0;
  }
  if (digits == 0 || digits > 18 || (value[digits] && (unit == NULL || value[digits + 1])) ||
      (unit && limit == RATIO))
    return bad_line (r, "%s must be a number%s, or none", limits[limit], limit == RATIO
                     ? "" : ", with K, M, G, T, P or E behind it");
  if (!mul_fits (strtoull (value, NULL, 10), times, bytes) || *bytes > INT64_MAX)
    *bytes = NO_LIMIT;
  return 0;
}

static int
set_rule (struct policy *p, const struct reading *r, unsigned n, const char *value)
{
  if (n >= NR_KEYS)
    return set_limit (r, n - NR_KEYS, value, &p->limit[n - NR_KEYS]);
  p->refuse[n] = strcmp (value, "refuse") == 0;
  return p->refuse[n] || strcmp (value, "allow") == 0 ? 0
    : bad_line (r, "%s must be allow or refuse", keys[n].name);
}

static int
take_rule (struct policy *p, struct reading *r, const char *key, const char *value)
{
  const bool any = r->any;
  unsigned n = 0;

  r->any = true;
  if (strcmp (key, "base") == 0) {
    if (any || built_in (value) == -1)
      return bad_line (r, "base must be upload or strict, and come first");
    set_built_in (p, built_in (value));
    return 0;
  }
  while (n < NR_KEYS + NR_LIMITS &&
         strcmp (key, n < NR_KEYS ? keys[n].name : limits[n - NR_KEYS]) != 0)
    n++;
  if (n == NR_KEYS + NR_LIMITS)
    return bad_line (r, "unknown key: %s", key);
  if (r->seen[n])
    return bad_line (r, "not KEY = VALUE, or a key again");
  r->seen[n] = true;
  return set_rule (p, r, n, value);
}

static int
take_line (struct policy *p, struct reading *r, char *line)
{
  char *key, *value, *end;

  line[strcspn (line, "#")] = '\0';
  key = line + strspn (line, BLANKS);
  end = key + strspn (key, "abcdefghijklmnopqrstuvwxyz0123456789-");
  value = end + strspn (end, BLANKS);
  if (key[0] == '\0')
    return 0;
  if (end == key || *value++ != '=')
    return bad_line (r, "not KEY = VALUE, or a key again");
  *end = '\0';
  value += strspn (value, BLANKS);
  end = value + strcspn (value, BLANKS);
  if (end == value || end[strspn (end, BLANKS)])
    return bad_line (r, "not KEY = VALUE, or a key again");
  *end = '\0';
  return take_rule (p, r, key, value);
}

static int
read_rules (struct policy *p, const char *name)
{
  size_t len;
  CLEANUP_FREE char *text = read_whole (name, MOST_BYTES, &len);
  struct reading r = { .name = name };
  char *rest = text, *line;

  if (text == NULL || strlen (text) < len) {
    report_error ("--policy: %s: %s", name, text ? "not a text" : strerror (errno));
    return -1;
  }
  while ((line = strsep (&rest, "\n")) != NULL) {
    r.line++;
    if (take_line (p, &r, line) == -1)
      return -1;
  }
  return 0;
}

struct policy *
policy_load (const char *name)
{
  struct policy *p = memory_new (1, sizeof *p);
  const int which = built_in (name);

  if (p == NULL)
    return NULL;
  set_built_in (p, which == -1 ? UPLOAD : which);
  if (which != -1 || read_rules (p, name) == 0)
    return p;
  free (p);
  return NULL;
}

void
policy_free (struct policy *p)
{
  free (p);
}

char *
policy_text (const struct policy *p)
{
  char *text = text_new ("%" PRIu64 " %" PRIu64 " %" PRIu64, p->limit[VIRTUAL_SIZE],
                         p->limit[FILE_SIZE], p->limit[RATIO]);

  for (unsigned i = 0; text && i < NR_KEYS; i++)
    if (p->refuse[i]) {
      char *more = text_new ("%s %s", text, keys[i].name);

      free (text);
      text = more;
    }
  if (text == NULL)
    report_error ("--policy: no memory");
  return text;
}

/* --- findings --- */

void
finding_add (json_t **list, const char *code, const char *fmt, ...)
{
  CLEANUP_FREE char *text = NULL;
  va_list args;

  va_start (args, fmt);
  text = text_new_list (fmt, args);
  va_end (args);
  *list = jsontext_append (*list, text == NULL ? NULL : jsontext_object (
    { "code", jsontext_string (code) }, { "message", jsontext_string (text) }));
}

/* About a file whose name is in the image.  FMT has a place for ` ("NAME")', or
 * nothing. */
static void
add_named (json_t **list, enum key key, const char *text, const char *name)
{
  CLEANUP_FREE char *shown = name ? publicname (name) : NULL;

  if (name)
    finding_add (list, keys[key].name, "%s (\"%s\")", text, publicname_or (shown));
  else
    finding_add (list, keys[key].name, "%s", text);
}

/* --- the first cluster --- */

size_t
policy_needs (const void *buf, size_t len)
{
  struct qcow2_header h;
  size_t cluster = 0;

  if (len >= POLICY_LEAST && header_is_qcow2 (buf, len)) {
    memcpy (&h, buf, POLICY_LEAST);
    if (get32 (h.cluster_bits) <= QCOW2_MAX_CLUSTER_BITS)
      cluster = (size_t) 1 << get32 (h.cluster_bits);
  }
  return max64 (cluster, OTHERFORMAT_BEGIN);
}

/* What decides most must be known, whatever else is wrong. */
static void
read_raw (struct first_cluster *c, const void *buf, size_t len)
{
  const size_t first = min64 (len, QCOW2_V2_HEADER_SIZE);

  memcpy (&c->raw, buf, first);
  if (get32 (c->raw.version) == 3)
    memcpy (&c->raw, buf, min64 (len, QCOW2_V3_HEADER_MIN));
  if (!header_is_qcow2 (buf, len) || get32 (c->raw.version) < 2 ||
      get32 (c->raw.version) > 3)
    memset (&c->raw, 0, sizeof c->raw);
}

/* The offset of the first byte from BEGIN to END that is not zero; or 0. */
static uint64_t
find_used (const uint8_t *buf, uint64_t begin, uint64_t end)
{
  while (begin < end && buf[begin] == 0)
    begin++;
  return begin < end ? begin : 0;
}

/* The header is valid, so all extensions are within the cluster. */
static void
walk_extensions (struct first_cluster *c, const uint8_t *buf)
{
  const uint64_t name = get64 (c->raw.backing_file_offset);
  const uint64_t name_end = name + get32 (c->raw.backing_file_size);
  const uint64_t end = name ? min64 (name, c->h.cluster_size) : c->h.cluster_size;
  uint64_t at = c->h.header_length;
  struct qcow2_extension ext;

  while (range_within (at, sizeof ext, end)) {
    memcpy (&ext, buf + at, sizeof ext);
    if (get32 (ext.type) == QCOW2_EXT_END) {
      at += sizeof ext.type;    /* its length means nothing */
      break;
    }
    switch (get32 (ext.type)) {
    case QCOW2_EXT_BACKING_FORMAT: case QCOW2_EXT_FEATURE_NAMES: case QCOW2_EXT_BITMAPS:
    case QCOW2_EXT_CRYPTO: case QCOW2_EXT_DATA_FILE: case QCOW2_EXT_OVERLAY:
    case QCOW2_EXT_ORIGIN:
      break;
    default:
      if (c->nr_unknown < MOST_UNKNOWN)
        c->unknown[c->nr_unknown++] = get32 (ext.type);
    }
    at += sizeof ext + round_up (get32 (ext.len), 8);
  }
  at = min64 (at, end);
  c->unused = name ? find_used (buf, at, end) : 0;
  if (c->unused == 0)
    c->unused = find_used (buf, max64 (at, name ? name_end : 0), c->h.cluster_size);
}

/* What is refused although the format allows it, or a repair could use it. */
static void
judge_limits (const struct header *h, json_t **found)
{
  if (h->reftable_clusters == 0)
    finding_add (found, faults[HEADER_SIZES], "the refcount table has no clusters");
  if (h->nb_snapshots > QCOW2_MAX_SNAPSHOTS)
    finding_add (found, faults[HEADER_SIZES], "%" PRIu32 " snapshots, more than %d",
                 h->nb_snapshots, QCOW2_MAX_SNAPSHOTS);
  if (h->data_file && strlen (h->data_file) > MAX_DATA_NAME)
    finding_add (found, faults[HEADER_INVALID], "the data file's name has more than %d bytes",
                 MAX_DATA_NAME);
}

/* Is at least one of both offset and name there?  (A backing file without a name is none
 * for us, but another program may see one.) */
static void
judge_names (const struct policy *p, const struct first_cluster *c, json_t **found)
{
  const bool backing = get64 (c->raw.backing_file_offset) != 0;
  const bool data = get64 (c->raw.incompatible_features) & QCOW2_INCOMPAT_DATA_FILE;

  if (p->refuse[BACKING_FILE] && backing)
    add_named (found, BACKING_FILE, "it has a backing file", c->h.backing_file);
  if (p->refuse[DATA_FILE] && data)
    add_named (found, DATA_FILE, "it has an external data file", c->h.data_file);
  if (p->refuse[EXTERNAL_NAME] && !data && c->h.data_file)
    add_named (found, EXTERNAL_NAME, "it names an external data file that it does not have",
               c->h.data_file);
  if (p->refuse[EXTERNAL_NAME] && c->h.backing_format && c->h.backing_file == NULL)
    add_named (found, EXTERNAL_NAME, "it names the format of a backing file that it does not "
               "have", c->h.backing_format);
  if (p->refuse[EXTERNAL_NAME] && c->h.overlay)
    add_named (found, EXTERNAL_NAME, "it names an image on top of it", c->h.overlay);
  if (p->refuse[EXTERNAL_NAME] && c->h.origin)
    add_named (found, EXTERNAL_NAME, "it names an image from which its disk has come",
               c->h.origin);
}

static void
judge_unknown (const struct policy *p, const struct first_cluster *c, json_t **found)
{
  char list[MOST_UNKNOWN * 12 + 1] = "";
  size_t used = 0;

  if (!p->refuse[UNKNOWN_EXTENSION])
    return;
  for (unsigned i = 0; i < c->nr_unknown; i++)
    used += snprintf (list + used, sizeof list - used, "%s0x%08" PRIx32, i ? ", " : "",
                      c->unknown[i]);
  if (used)
    finding_add (found, keys[UNKNOWN_EXTENSION].name, "it has unknown header extensions: %s",
                 list);
  if ((get64 (c->raw.compatible_features) & ~QCOW2_COMPAT_LAZY_REFCOUNTS) ||
      (get64 (c->raw.autoclear_features) &
       ~(QCOW2_AUTOCLEAR_BITMAPS | QCOW2_AUTOCLEAR_RAW_DATA_FILE)))
    finding_add (found, keys[UNKNOWN_EXTENSION].name,
                 "it has unknown compatible or autoclear features");
}

static void
judge_features (const struct policy *p, const struct first_cluster *c, json_t **found)
{
  static const struct { enum key key; uint64_t bit; const char *text; } bits[] = {
    { DIRTY, QCOW2_INCOMPAT_DIRTY, "it was not closed properly" },
    { MARKED_CORRUPT, QCOW2_INCOMPAT_CORRUPT, "it is marked corrupt" },
    { EXTENDED_L2, QCOW2_INCOMPAT_EXTENDED_L2, "it has extended L2 entries" },
  };
  const uint32_t crypt = get32 (c->raw.crypt_method), n = get32 (c->raw.nb_snapshots);

  if (p->refuse[ENCRYPTED] && crypt)
    finding_add (found, keys[ENCRYPTED].name, "it is encrypted%s",
                 crypt == QCOW2_CRYPT_LUKS ? " (LUKS)" : crypt == QCOW2_CRYPT_AES
                 ? " (AES)" : "");
  if (p->refuse[SNAPSHOTS] && n)
    finding_add (found, keys[SNAPSHOTS].name, "it has %" PRIu32 " internal snapshots", n);
  if (p->refuse[BITMAPS] && c->h.has_bitmaps)
    finding_add (found, keys[BITMAPS].name, "it has %" PRIu32 " persistent bitmaps",
                 c->h.bitmaps.count);
  for (unsigned i = 0; i < sizeof bits / sizeof bits[0]; i++)
    if (p->refuse[bits[i].key] && (get64 (c->raw.incompatible_features) & bits[i].bit))
      finding_add (found, keys[bits[i].key].name, "%s", bits[i].text);
  if (p->refuse[ZSTD] && c->h.compression_type == QCOW2_COMPRESSION_ZSTD)
    finding_add (found, keys[ZSTD].name, "it is compressed with zstd");
}

static void
judge_formats (const struct policy *p, const char *const *formats, unsigned n,
               json_t **found)
{
  for (unsigned i = 0; p->refuse[OTHER_FORMAT] && i < n; i++)
    finding_add (found, keys[OTHER_FORMAT].name, "it is also a file of another format: %s",
                 formats[i]);
}

void
policy_judge_begin (const struct policy *p, const char *name, const void *buf, size_t len,
                    struct first_cluster *c, json_t **found)
{
  CLEANUP_FREE char *why = NULL;

  *c = (struct first_cluster) { .valid = false };
  read_raw (c, buf, len);
  report_keep ();
  c->valid = header_parse (name, buf, len, QCOW2_MAX_HOST_OFFSET, &c->h) == 0;
  why = report_take_kept ();
  report_end_keeping (false);
  if (c->valid) {
    walk_extensions (c, buf);
    judge_limits (&c->h, found);
    c->nr_formats = otherformat_at_begin (buf, len, c->h.cluster_size, c->formats);
  }
  else
    finding_add (found, faults[c->h.fault], "%.*s",
                 why ? (int) strcspn (why, "\n") : 0, why ? why : "");
  judge_names (p, c, found);
  judge_formats (p, c->formats, c->nr_formats, found);
  judge_features (p, c, found);
  judge_unknown (p, c, found);
  if (p->refuse[UNUSED_BYTES] && c->unused)
    finding_add (found, keys[UNUSED_BYTES].name, "bytes of the first cluster that nothing "
                 "uses are not zeros, from %" PRIu64 " on", c->unused);
  if (get64 (c->raw.size) > p->limit[VIRTUAL_SIZE])
    finding_add (found, CODE (VIRTUAL_SIZE), "the disk has %" PRIu64 " bytes, more than %"
                 PRIu64, get64 (c->raw.size), p->limit[VIRTUAL_SIZE]);
}

/* --- the length and the end --- */

/* (Each is less than 2^57.) */
static void
judge_places (const struct header *h, uint64_t length, json_t **found)
{
  const struct { const char *what; uint64_t offset, len; } places[] = {
    { "L1 table", h->l1_offset, h->l1_entries * sizeof (struct be64) },
    { "refcount table", h->reftable_offset, h->reftable_clusters * h->cluster_size },
    { "snapshot table", h->snapshots_offset,
      h->nb_snapshots * (uint64_t) sizeof (struct qcow2_snapshot) },
    { "bitmap directory", h->bitmaps.dir_offset, h->bitmaps.dir_size },
    { "encryption header", h->crypto.offset, h->crypto.length },
  };

  for (unsigned i = 0; i < sizeof places / sizeof places[0]; i++)
    if (places[i].len && !range_within (places[i].offset, places[i].len, length))
      finding_add (found, faults[HEADER_CUT], "the %s, %" PRIu64 " bytes at %" PRIu64
                   ", lies beyond the end of the file, which has %" PRIu64 " bytes",
                   places[i].what, places[i].len, places[i].offset, length);
}

/* FROM_HEADER. */
static uint64_t
limit_of_header (const struct first_cluster *c)
{
  uint64_t limit;

  return mul_fits (get64 (c->raw.size), SPARE_TIMES, &limit) &&
    add_fits (limit, SPARE_BYTES, &limit) &&
    mul_fits (limit, UINT64_C (1) + get32 (c->raw.nb_snapshots), &limit) ? limit : NO_LIMIT;
}

void
policy_judge_length (const struct policy *p, const struct first_cluster *c, uint64_t length,
                     bool complete, json_t **found)
{
  uint64_t limit = p->limit[FILE_SIZE], most;

  if (limit == FROM_HEADER)
    limit = complete ? NO_LIMIT : limit_of_header (c);
  if (length > limit && complete)
    finding_add (found, CODE (FILE_SIZE), "the file has %" PRIu64 " bytes, more than %" PRIu64,
                 length, limit);
  else if (length > limit)
    finding_add (found, CODE (FILE_SIZE), "the file has more than %" PRIu64 " bytes", limit);
  if (!complete || !c->valid)
    return;
  judge_places (&c->h, length, found);
  if (p->limit[RATIO] != NO_LIMIT && mul_fits (length, p->limit[RATIO], &most) &&
      get64 (c->raw.size) > most)
    finding_add (found, CODE (RATIO), "the disk has %" PRIu64 " bytes, more than %" PRIu64
                 " times as many as the file (%" PRIu64 ")", get64 (c->raw.size),
                 p->limit[RATIO], length);
}

void
policy_judge_end (const struct policy *p, const void *buf, size_t len, json_t **found)
{
  const char *formats[OTHERFORMAT_MOST];

  judge_formats (p, formats, otherformat_at_end (buf, len, formats), found);
}
