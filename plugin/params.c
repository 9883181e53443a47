/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What does the user want?
 *
 * One table describes each parameter of the command line: the kind of its value, where
 * the value goes, and whether the parameter can be given more than once.  A parameter
 * with a kind of its own has a function.  The text of --help follows the table.
 * paramrules.c decides which parameters can be used together.  Each error is one line
 * and names the parameter.  Paths are made absolute, because the server changes its
 * directory.
 *
 * The passphrase is kept until the image is open, and then wiped.
 *
 * Locks: none; nbdkit configures plugins before there are threads.
 */

#include <config.h>

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define NBDKIT_API_VERSION 2
#include <nbdkit-plugin.h>

#include "util/cleanup.h"
#include "util/memory.h"
#include "util/report.h"
#include "storage/nbduri.h"
#include "format/compress.h"
#include "format/format.h"
#include "plugin/paramhint.h"
#include "plugin/params.h"
#include "plugin/paramvalue.h"

#define MIN_SLICE 512
#define MAX_SLICE (2 << 20)
/* Maximum iter-time=, in milliseconds: luksmake.c limits the result anyway. */
#define MAX_ITER_TIME 60000
/* Maximum time to wait for a server. */
#define MAX_SECONDS 86400

/* --- the table --- */

enum kind {
  KIND_TEXT,                    /* const char *: owned by nbdkit */
  KIND_PATH,                    /* char *: absolute; params_free frees it */
  KIND_BYTES,                   /* uint64_t */
  KIND_NUMBER,                  /* unsigned */
  KIND_FLAG,                    /* bool */
  KIND_CHOICE,                  /* bool, int or enum: one of `choices' */
  KIND_EDIT,                    /* the function `edit' (editparams.c) */
  KIND_OTHER,                   /* the function `set' */
};

struct spec {
  const char *key;
  enum kind kind;
  size_t at, size;              /* offset and size of the value in struct params */
  const struct choice *choices;
  int (*edit) (struct editparams *, const char *key, const char *value);
  int (*set) (struct params *, const char *key, const char *value);
  bool repeatable;
};

/* Functions for values with a kind of their own.  They return 0, or -1 (reported). */
static int set_file (struct params *, const char *key, const char *value);
static int set_slice (struct params *, const char *key, const char *value);
static int set_level (struct params *, const char *key, const char *value);
static int set_backing (struct params *, const char *key, const char *value);
static int set_format (struct params *, const char *key, const char *value);
static int set_data_file (struct params *, const char *key, const char *value);
static int set_passphrase (struct params *, const char *key, const char *value);
static int set_size (struct params *, const char *key, const char *value);
static int set_iter_time (struct params *, const char *key, const char *value);
static int set_backing_file (struct params *, const char *key, const char *value);
static int set_allow_uri (struct params *, const char *key, const char *value);
static int set_checkpoint_interval (struct params *, const char *key, const char *value);
static int set_reconnect (struct params *, const char *key, const char *value);
static int set_connect_timeout (struct params *, const char *key, const char *value);
static int set_log (struct params *, const char *key, const char *value);
static int set_answer_timeout (struct params *, const char *key, const char *value);

static const struct choice discards[] = {
  { "unmap", true }, { "ignore", false }, { NULL, 0 }
};
static const struct choice detects[] = {
  { "off", DETECT_ZEROES_OFF }, { "on", DETECT_ZEROES_ON },
  { "unmap", DETECT_ZEROES_UNMAP }, { NULL, 0 }
};
static const struct choice compresses[] = {
  { "off", COMPRESS_OFF }, { "on", COMPRESS_ON }, { "all", COMPRESS_ALL }, { NULL, 0 }
};
static const struct choice caches[] = {
  { "default", STORAGE_CACHE_DEFAULT }, { "none", STORAGE_CACHE_NONE },
  { "unsafe", STORAGE_CACHE_UNSAFE }, { NULL, 0 }
};
static const struct choice formats[] = {
  { "qcow2", false }, { "raw", true }, { NULL, 0 }
};
static const struct choice preallocations[] = {
  { "off", PREALLOCATION_OFF }, { "metadata", PREALLOCATION_METADATA },
  { "falloc", PREALLOCATION_FALLOC }, { "full", PREALLOCATION_FULL }, { NULL, 0 }
};
static const struct choice symlinks[] = {
  { "refuse", false }, { "follow", true }, { NULL, 0 }
};
static const struct choice checks[] = {
  { "off", CHECK_OFF }, { "quick", CHECK_QUICK }, { "full", CHECK_FULL },
  { "repair", CHECK_REPAIR }, { "repair-leaks", CHECK_REPAIR_LEAKS }, { NULL, 0 }
};
static const struct choice compats[] = {
  { "0.10", 2 }, { "1.1", 3 }, { "v2", 2 }, { "v3", 3 }, { NULL, 0 }
};
static const struct choice compressions[] = {
  { "zlib", QCOW2_COMPRESSION_DEFLATE }, { "zstd", QCOW2_COMPRESSION_ZSTD }, { NULL, 0 }
};
static const struct choice windows[] = {
  { "4K", false }, { "32K", true }, { NULL, 0 }
};
static const struct choice full_policies[] = {
  { "fail", false }, { "wait", true }, { NULL, 0 }
};
static const struct choice stats_formats[] = {
  { "json", false }, { "prometheus", true }, { NULL, 0 }
};
static const struct choice log_formats[] = {
  { "text", false }, { "json", true }, { NULL, 0 }
};
static const struct choice log_levels[] = {
  { "error", EVENTLOG_ERROR }, { "warning", EVENTLOG_WARNING }, { "info", EVENTLOG_INFO },
  { NULL, 0 }
};
static const struct choice encryptions[] = { { "luks", true }, { NULL, 0 } };

#define AT(field) \
  .at = offsetof (struct params, field), .size = sizeof ((struct params *) 0)->field
#define TEXT(field) .kind = KIND_TEXT, AT (field)
#define PATH(field) .kind = KIND_PATH, AT (field)
#define BYTES(field) .kind = KIND_BYTES, AT (field)
#define NUMBER(field) .kind = KIND_NUMBER, AT (field)
#define FLAG(field) .kind = KIND_FLAG, AT (field)
#define CHOICE(field, words) .kind = KIND_CHOICE, AT (field), .choices = words
#define EDIT(function) .kind = KIND_EDIT, .edit = function
#define EDITS(function) EDIT (function), .repeatable = true
#define OTHER(function) .kind = KIND_OTHER, .set = function

static const struct spec specs[NR_PARAMS] = {
  [PARAM_FILE] = { "file", OTHER (set_file) },
  [PARAM_DIR] = { "dir", PATH (dir) },
  [PARAM_DIR_SYMLINKS] = { "dir-symlinks", CHOICE (options.in_dir.follow, symlinks) },
  [PARAM_L2_CACHE] = { "l2-cache", BYTES (options.l2_cache) },
  [PARAM_L2_SLICE] = { "l2-slice", OTHER (set_slice) },
  [PARAM_BACKING] = { "backing", OTHER (set_backing) },
  [PARAM_BACKING_FORMAT] = { "backing-format", OTHER (set_format) },
  [PARAM_DATA_FILE] = { "data-file", OTHER (set_data_file) },
  [PARAM_SNAPSHOT] = { "snapshot", TEXT (options.snapshot) },
  [PARAM_BITMAP_ADD] = { "bitmap-add", EDITS (editparams_add_bitmap) },
  [PARAM_BITMAP_CLEAR] = { "bitmap-clear", EDITS (editparams_clear_bitmap) },
  [PARAM_BITMAP_REMOVE] = { "bitmap-remove", EDITS (editparams_remove_bitmap) },
  [PARAM_BITMAP_GRANULARITY] =
    { "bitmap-granularity", EDIT (editparams_set_granularity) },
  [PARAM_BITMAP_DURABLE] = { "bitmap-durable", FLAG (options.bitmap_durable) },
  [PARAM_SNAPSHOT_CREATE] = { "snapshot-create", EDITS (editparams_create_snapshot) },
  [PARAM_SNAPSHOT_APPLY] = { "snapshot-apply", EDITS (editparams_apply_snapshot) },
  [PARAM_SNAPSHOT_DELETE] = { "snapshot-delete", EDITS (editparams_delete_snapshot) },
  [PARAM_RESIZE] = { "resize", EDITS (editparams_resize) },
  [PARAM_SHRINK] = { "shrink", FLAG (edit.options.shrink) },
  [PARAM_PREALLOCATION] =
    { "preallocation", CHOICE (edit.options.preallocation, preallocations) },
  [PARAM_PASSPHRASE] = { "passphrase", OTHER (set_passphrase), .repeatable = true },
  [PARAM_UNTRUSTED] = { "untrusted", FLAG (options.untrusted) },
  [PARAM_DISCARD] = { "discard", CHOICE (options.discard, discards) },
  [PARAM_DETECT_ZEROES] = { "detect-zeroes", CHOICE (options.detect_zeroes, detects) },
  [PARAM_COMPRESS] = { "compress", CHOICE (options.compress, compresses) },
  [PARAM_COMPRESS_LEVEL] = { "compress-level", OTHER (set_level) },
  [PARAM_COMPRESS_WINDOW] =
    { "compress-window", CHOICE (options.compress_options.long_window, windows) },
  [PARAM_STATS] = { "stats", PATH (stats) },
  [PARAM_STATS_FORMAT] = { "stats-format", CHOICE (stats_for_prometheus, stats_formats) },
  [PARAM_COPY_ON_READ] = { "copy-on-read", FLAG (options.copy_on_read) },
  [PARAM_FLATTEN] = { "flatten", FLAG (flatten) },
  [PARAM_CACHE] = { "cache", CHOICE (options.cache, caches) },
  [PARAM_CHECK] = { "check", CHOICE (check.mode, checks) },
  [PARAM_CHECK_REPORT] = { "check-report", PATH (report) },
  [PARAM_LOCK] = { "lock", FLAG (options.lock) },
  [PARAM_CREATE] = { "create", OTHER (set_size) },
  [PARAM_CLUSTER_SIZE] =
    { "cluster-size", BYTES (create.options.image.cluster_size) },
  [PARAM_COMPAT] = { "compat", CHOICE (create.options.image.version, compats) },
  [PARAM_REFCOUNT_BITS] =
    { "refcount-bits", NUMBER (create.options.image.refcount_bits) },
  [PARAM_EXTENDED_L2] = { "extended-l2", FLAG (create.options.image.extended_l2) },
  [PARAM_LAZY_REFCOUNTS] =
    { "lazy-refcounts", FLAG (create.options.image.lazy_refcounts) },
  [PARAM_COMPRESSION_TYPE] =
    { "compression-type", CHOICE (create.options.image.compression_type, compressions) },
  [PARAM_ENCRYPT] = { "encrypt", CHOICE (create.options.encrypt, encryptions) },
  [PARAM_ITER_TIME] = { "iter-time", OTHER (set_iter_time) },
  [PARAM_BACKING_FILE] = { "backing-file", OTHER (set_backing_file) },
  [PARAM_DATA_FILE_RAW] =
    { "data-file-raw", FLAG (create.options.image.data_file_raw) },
  [PARAM_ALLOW_URI] = { "allow-uri", OTHER (set_allow_uri), .repeatable = true },
  [PARAM_CHECKPOINT_INTERVAL] = {
    "checkpoint-interval", OTHER (set_checkpoint_interval)
  },
  [PARAM_RECONNECT] = { "reconnect", OTHER (set_reconnect) },
  [PARAM_CONNECT_TIMEOUT] = { "connect-timeout", OTHER (set_connect_timeout) },
  [PARAM_ON_ENOSPC] = { "on-enospc", CHOICE (options.wait_for_space, full_policies) },
  [PARAM_WATERMARK] = { "watermark", BYTES (options.watermark) },
  [PARAM_ANSWER_TIMEOUT] = { "answer-timeout", OTHER (set_answer_timeout) },
  [PARAM_CONTROL] = { "control", PATH (control) },
  [PARAM_LOG] = { "log", OTHER (set_log) },
  [PARAM_LOG_FORMAT] = { "log-format", CHOICE (log_as_json, log_formats) },
  [PARAM_LOG_LEVEL] = { "log-level", CHOICE (log_level, log_levels) },
  [PARAM_OVERWRITE] = { "overwrite", FLAG (create.options.overwrite) },
};

/* --- help --- */

/* The image, then the parameters for any image, then those for new images, each group in
 * alphabetical order.  tests/unit/plugin/params.c compares this text with the table
 * above: keys, kinds of values, words to choose from, and defaults.
 * tests/project/help-agrees.sh compares it with the manual. */
const char params_help[] =
  "[file=]<PATH|URI>            The image (or use dir=).\n"
  "dir=<DIRECTORY>              Serve all images in this directory.\n"
  "allow-uri=<URI>              NBD exports that images may use.\n"
  "answer-timeout=<SECONDS>     Wait for a silent NBD server (default 180).\n"
  "backing=follow|deny|<PATH|URI>\n"
  "                             Which backing file to open (default follow).\n"
  "backing-format=qcow2|raw     Format of the backing file.\n"
  "bitmap-add=<NAME>            Add a persistent bitmap before serving.\n"
  "bitmap-clear=<NAME>          Clear a persistent bitmap before serving.\n"
  "bitmap-durable=true|false    Bitmaps survive a crash (default false).\n"
  "bitmap-granularity=<SIZE>    Granularity of the bitmaps to add.\n"
  "bitmap-remove=<NAME>         Remove a persistent bitmap before serving.\n"
  "cache=default|none|unsafe    Use of the host's page cache (default default).\n"
  "check=off|quick|full|repair|repair-leaks\n"
  "                             Check the image before serving (default off).\n"
  "check-report=<FILE>          Write the findings to this file, as JSON.\n"
  "checkpoint-interval=<SECONDS>\n"
  "                             How long changes may stay in memory (default 5).\n"
  "compress=off|on|all          Compress newly written clusters (default off).\n"
  "compress-level=<N>           1 (fast) to 9 or 12 (zlib) or 22 (zstd).\n"
  "compress-window=4K|32K       How far zlib looks back (default 4K).\n"
  "connect-timeout=<SECONDS>    Wait for an NBD server (default 10).\n"
  "control=<SOCKET>             Take QMP commands on this socket.\n"
  "copy-on-read=true|false      Keep data read from backing files (default false).\n"
  "data-file=follow|deny|<PATH|URI>\n"
  "                             Which data file to open (default follow).\n"
  "detect-zeroes=off|on|unmap   Detect zeros in writes (default off).\n"
  "dir-symlinks=refuse|follow   Follow links that stay below dir=\n"
  "                             (default refuse).\n"
  "discard=unmap|ignore         Give trimmed space back (default unmap).\n"
  "flatten=true|false           Copy all data from backing files before serving\n"
  "                             (default false).\n"
  "l2-cache=<SIZE>              Memory limit for mappings (default 32M).\n"
  "l2-slice=<SIZE>              Part of an L2 table read at a time (default 4K).\n"
  "lock=true|false              Lock the image as QEMU does (default true).\n"
  "log=<FILE>|stderr           Write a line for each event: connections, changes,\n"
  "                             failures.\n"
  "log-format=text|json         How to write them (default text).\n"
  "log-level=error|warning|info Leave out what is less important (default info).\n"
  "on-enospc=fail|wait          What writes do without space (default fail).\n"
  "passphrase=<SECRET>          Passphrase: literal, -, +FILE or -FD.\n"
  "preallocation=off|metadata|falloc|full\n"
  "                             Allocation for create= and resize= (default off).\n"
  "reconnect=<SECONDS>          Wait for a lost NBD connection (default 30).\n"
  "resize=[+|-]<SIZE>           Change the size of the disk before serving.\n"
  "shrink=true|false            Allow resize= to shrink (default false).\n"
  "snapshot=<NAME|ID>           Serve this internal snapshot, read-only.\n"
  "snapshot-apply=<NAME|ID>     Revert to this snapshot before serving.\n"
  "snapshot-create=<NAME>       Create an internal snapshot before serving.\n"
  "snapshot-delete=<NAME|ID>    Delete an internal snapshot before serving.\n"
  "stats=<FILE>                 Write counters to this file.\n"
  "stats-format=json|prometheus How to write them (default json).\n"
  "untrusted=true|false         Read-only, no other files (default false).\n"
  "watermark=<SIZE>             Report that less is left on a device.\n"
  "create=<SIZE>|auto           Create the image, in a new file or on a device.\n"
  "backing-file=<PATH|URI>      New image: backing file.\n"
  "cluster-size=<SIZE>          New image: cluster size (default 64K).\n"
  "compat=0.10|1.1              New image: version (default 1.1).\n"
  "compression-type=zlib|zstd   New image: compression type (default zlib).\n"
  "data-file-raw=true|false     New image: data-file= is raw (default false).\n"
  "encrypt=luks                 New image: encrypt with passphrase=.\n"
  "extended-l2=true|false       New image: use subclusters (default false).\n"
  "iter-time=<MILLISECONDS>     New image: time per passphrase (default 2000).\n"
  "lazy-refcounts=true|false    New image: use lazy refcounts (default false).\n"
  "overwrite=true|false         New image: replace what a device contains\n"
  "                             (default false).\n"
  "refcount-bits=<N>            New image: refcount width (default 16).\n"
  "(If a filter takes a parameter for itself, write qcow2- before it.)";

/* --- memory --- */

void
params_forget_passphrases (struct params *p)
{
  while (p->nr_passphrases > 0)
    forget_passphrase (&p->passphrases[--p->nr_passphrases]);
  p->options.secret = (struct image_secret) { .passphrase = NULL };
}

void
params_free (struct params *p)
{
  params_forget_passphrases (p);
  free (p->passphrases);
  editparams_free (&p->edit);
  for (size_t i = 0; i < p->nr_uris; i++)
    free (p->uris[i]);
  free (p->uris);
  free (p->allow_uri);
  free (p->path);
  free (p->dir);
  free (p->stats);
  free (p->backing_path);
  free (p->data_file_path);
  free (p->report);
  free (p->control);
  free (p->log);
}

/* --- values with a kind of their own --- */

/* Parses a path or an NBD URI.  *SECRETS belongs to P; it is NULL for a path. */
static int
take_storage (struct params *p, const char *key, const char *value, char **r,
              const char **secrets)
{
  if (MEMORY_APPEND (p->uris, p->nr_uris) == -1 ||
      parse_storage (key, value, r, &p->uris[p->nr_uris]) == -1)
    return -1;
  *secrets = p->uris[p->nr_uris];
  p->nr_uris += *secrets != NULL;
  return 0;
}

static int
set_storage (struct params *p, const char *key, const char *value, char **r)
{
  const char *secrets;

  return take_storage (p, key, value, r, &secrets);
}

static int
set_file (struct params *p, const char *key, const char *value)
{
  if (set_storage (p, key, value, &p->path) == -1)
    return -1;
  if (!nbduri_is (value))
    p->word = value;
  return 0;
}

static int
allow (struct params *p, const char *uri)
{
  if (MEMORY_APPEND (p->allow_uri, p->nr_allow_uri) == -1)
    return -1;
  p->allow_uri[p->nr_allow_uri++] = uri;
  return 0;
}

static int
set_allow_uri (struct params *p, const char *key, const char *value)
{
  CLEANUP_FREE char *shown = NULL;
  const char *uri;

  if (!nbduri_is (value))
    return bad_file (key, value, "must be an NBD URI");
  if (take_storage (p, key, value, &shown, &uri) == -1)
    return -1;
  return allow (p, uri);
}

/* Parses seconds; the result is in milliseconds. */
static int
parse_seconds (const char *key, const char *value, unsigned least, unsigned *ms)
{
  if (parse_number (key, value, ms) == -1)
    return -1;
  if (*ms < least || *ms > MAX_SECONDS)
    return bad_value (key, value, "must be %u to %d seconds", least, MAX_SECONDS);
  *ms *= 1000;
  return 0;
}

static int
set_checkpoint_interval (struct params *p, const char *key, const char *value)
{
  return parse_seconds (key, value, 0, &p->options.checkpoint_interval_ms);
}

static int
set_reconnect (struct params *p, const char *key, const char *value)
{
  return parse_seconds (key, value, 0, &p->options.link.reconnect_ms);
}

static int
set_connect_timeout (struct params *p, const char *key, const char *value)
{
  return parse_seconds (key, value, 1, &p->options.link.connect_timeout_ms);
}

static int
set_answer_timeout (struct params *p, const char *key, const char *value)
{
  return parse_seconds (key, value, 0, &p->options.link.answer_timeout_ms);
}

/* (./stderr is a file.) */
static int
set_log (struct params *p, const char *key, const char *value)
{
  if (strcmp (value, EVENTLOG_STDERR) != 0)
    return parse_plain_path (key, value, &p->log);
  p->log = memory_text (value);
  return p->log ? 0 : -1;
}

static int
set_slice (struct params *p, const char *key, const char *value)
{
  return parse_power (key, value, MIN_SLICE, MAX_SLICE, "512 and 2M",
                      &p->options.l2_slice);
}

static int
set_backing (struct params *p, const char *key, const char *value)
{
  if (strcmp (value, "follow") == 0)
    p->options.backing = BACKING_FOLLOW;
  else if (strcmp (value, "deny") == 0)
    p->options.backing = BACKING_DENY;
  else {
    p->options.backing = BACKING_PATH;
    if (set_storage (p, key, value, &p->backing_path) == -1)
      return -1;
    p->options.backing_path = p->backing_path;
  }
  return 0;
}

static int
set_format (struct params *p, const char *key, const char *value)
{
  int raw;

  if (parse_choice (key, value, formats, &raw) == -1)
    return -1;
  p->options.backing_format = raw ? "raw" : "qcow2";
  return 0;
}

static int
set_data_file (struct params *p, const char *key, const char *value)
{
  if (strcmp (value, "follow") == 0)
    p->options.data_file = DATA_FILE_FOLLOW;
  else if (strcmp (value, "deny") == 0)
    p->options.data_file = DATA_FILE_DENY;
  else {
    p->options.data_file = DATA_FILE_PATH;
    if (set_storage (p, key, value, &p->data_file_path) == -1)
      return -1;
    p->options.data_file_path = p->data_file_path;
    p->create.data_file = value;
    p->create.options.data_path = p->data_file_path;
  }
  return 0;
}

static int
set_passphrase (struct params *p, const char *key, const char *value)
{
  char **list;

  if (MEMORY_APPEND (p->passphrases, p->nr_passphrases) == -1)
    return -1;
  list = p->passphrases;
  list[p->nr_passphrases] = NULL;
  if (parse_passphrase (key, value, &list[p->nr_passphrases]) == -1)
    return -1;
  p->nr_passphrases++;
  p->options.secret = (struct image_secret) {
    .passphrase = list[0], .len = strlen (list[0]),
    .more = (const char *const *) list + 1, .nr_more = p->nr_passphrases - 1,
  };
  return 0;
}

static int
set_size (struct params *p, const char *key, const char *value)
{
  p->create.wanted = true;
  if (strcmp (value, "auto") == 0) {
    p->create.options.size_of_backing = true;
    return 0;
  }
  return parse_bytes (key, value, &p->create.options.image.size);
}

static int
set_iter_time (struct params *p, const char *key, const char *value)
{
  unsigned *const ms = &p->create.options.iter_ms;

  if (parse_number (key, value, ms) == -1)
    return -1;
  if (*ms == 0 || *ms > MAX_ITER_TIME)
    return bad_value (key, value, "must be 1 to %d milliseconds", MAX_ITER_TIME);
  return 0;
}

/* The image decides how high it may be. */
static int
set_level (struct params *p, const char *key, const char *value)
{
  unsigned *const level = &p->options.compress_options.level;
  const unsigned most = compress_max_level (QCOW2_COMPRESSION_ZSTD, false);

  if (parse_number (key, value, level) == -1)
    return -1;
  if (*level == 0 || *level > most)
    return bad_value (key, value, "must be 1 to %u", most);
  return 0;
}

/* The header will contain the name as the user gave it. */
static int
set_backing_file (struct params *p, const char *key, const char *value)
{
  CLEANUP_FREE char *shown = NULL;
  const char *uri;

  p->create.backing_file = value;
  if (!nbduri_is (value))
    return parse_stored_path (key, value);
  /* Naming a URI here allows its use. */
  return take_storage (p, key, value, &shown, &uri) == -1 ? -1 : allow (p, uri);
}

/* --- any parameter --- */

/* Filters see parameters first, and take those that they know (luks: passphrase=, cache:
 * cache=): so each has a longer name, too. */
#define PREFIX "qcow2-"

static size_t
prefix_of (const char *key)
{
  return strncmp (key, PREFIX, strlen (PREFIX)) ? 0 : strlen (PREFIX);
}

static enum param
find (const char *key)
{
  const size_t skipped = prefix_of (key);
  enum param i;

  for (i = 0; i < NR_PARAMS; i++)
    if (strcmp (key + skipped, specs[i].key) == 0)
      break;
  return i;
}

static int
set_choice (const struct spec *spec, const char *key, const char *value, void *at)
{
  int choice;

  if (parse_choice (key, value, spec->choices, &choice) == -1)
    return -1;
  if (spec->size == sizeof (bool))
    *(bool *) at = choice;
  else {
    assert (spec->size == sizeof choice);
    memcpy (at, &choice, sizeof choice);
  }
  return 0;
}

static int
set (struct params *p, const struct spec *spec, const char *key, const char *value)
{
  void *const at = (char *) p + spec->at;

  switch (spec->kind) {
  case KIND_TEXT:
    *(const char **) at = value;
    return 0;
  case KIND_PATH: return parse_plain_path (key, value, at);
  case KIND_BYTES: return parse_bytes (key, value, at);
  case KIND_NUMBER: return parse_number (key, value, at);
  case KIND_FLAG: return parse_flag (key, value, at);
  case KIND_CHOICE: return set_choice (spec, key, value, at);
  case KIND_EDIT: return spec->edit (&p->edit, key, value);
  case KIND_OTHER: return spec->set (p, key, value);
  }
  abort ();
}

/* Commands of the program that parameters do not do. */
static const char *const commands[] = {
  "amend", "commit", "compare", "info", "map", "rebase",
};

static int
unknown (const char *key)
{
  const size_t skipped = prefix_of (key);
  char text[PARAMHINT_SIZE];
  const char *const meant = paramhint_nearest (params_help, key + skipped, text);

  for (size_t i = 0; i < sizeof commands / sizeof commands[0]; i++)
    if (strcmp (key + skipped, commands[i]) == 0) {
      report_error ("unknown parameter '%s': nbdkit-qcow2-img %s does that", key,
                    commands[i]);
      return -1;
    }
  if (meant)
    report_error ("unknown parameter '%s': did you mean %.*s%s?", key, (int) skipped, key,
                  meant);
  else
    report_error ("unknown parameter '%s': nbdkit qcow2 --help shows all", key);
  return -1;
}

/* A parameter without "=" is the name of a file for nbdkit. */
static int
given_twice (const struct params *p, const struct spec *spec, const char *value)
{
  char text[PARAMHINT_SIZE];
  const char *meant = NULL, *word = value;

  if (spec == &specs[PARAM_FILE] &&
      (meant = paramhint_word (params_help, word, text)) == NULL && p->word)
    meant = paramhint_word (params_help, word = p->word, text);
  if (meant)
    report_error ("%s= was given more than once (%s is a file here: did you mean %s?)",
                  spec->key, word, meant);
  else
    report_error ("%s= was given more than once", spec->key);
  return -1;
}

int
params_check_file (const struct params *p)
{
  char text[PARAMHINT_SIZE];
  const char *const word = p->word;
  const char *const meant = word ? paramhint_word (params_help, word, text) : NULL;

  if (meant == NULL || p->create.wanted || access (p->path, F_OK) == 0)
    return 0;
  report_error ("there is no file '%s': did you mean %s?", word, meant);
  return -1;
}

int
params_set (struct params *p, const char *key, const char *value)
{
  const enum param i = find (key);

  if (i == NR_PARAMS)
    return unknown (key);
  if (p->given[i] && !specs[i].repeatable)
    return given_twice (p, &specs[i], value);
  p->given[i] = true;
  return set (p, &specs[i], key, value);
}

/* Returns the value of a flag or a choice, and 1 for all other kinds. */
static int
value_of (const struct params *p, const struct spec *spec)
{
  const void *const at = (const char *) p + spec->at;
  int value;

  if (spec->kind != KIND_FLAG && spec->kind != KIND_CHOICE)
    return 1;
  if (spec->size == sizeof (bool))
    return *(const bool *) at;
  memcpy (&value, at, sizeof value);
  return value;
}

bool
params_asks (const struct params *p, enum param i)
{
  return p->given[i] && value_of (p, &specs[i]) != 0;
}

const char *
params_name (const struct params *p, enum param i, char buf[PARAMS_NAME])
{
  const struct spec *spec = &specs[i];
  const struct choice *c = spec->choices;
  const char *word = "";

  if (!p->given[i])
    ;
  else if (spec->kind == KIND_FLAG)
    word = value_of (p, spec) ? "true" : "false";
  else if (spec->kind == KIND_CHOICE) {
    while (c->word && c->value != value_of (p, spec))
      c++;
    if (c->word)
      word = c->word;
  }
  snprintf (buf, PARAMS_NAME, "%s=%s", spec->key, word);
  return buf;
}

/* --- all parameters --- */

/* Sets the options of the check. */
static void
complete_check (struct params *p)
{
  const struct disk_options *o = &p->options;

  p->check.path = o->path;
  p->check.report = p->report;
  p->check.untrusted = o->untrusted;
  p->check.chain = disk_chain_options (o);
  p->check.chain.image.file.try_writable = false;
}

void
params_complete (struct params *p)
{
  /* Not the real path: a relative backing file is next to the name that was given. */
  p->options.path = p->dir ? p->dir : p->path;
  p->options.rules = (struct filename_rules) { p->allow_uri, p->nr_allow_uri };
  p->options.link.secrets = (const char *const *) p->uris;
  p->options.link.nr_secrets = p->nr_uris;
  editparams_complete (&p->edit);
  p->create.options.image.preallocation = p->edit.options.preallocation;
  if (p->options.untrusted) {
    p->options.backing = BACKING_DENY;
    p->options.data_file = DATA_FILE_DENY;
  }
  if (p->options.backing == BACKING_PATH && p->options.backing_format == NULL)
    report_debug ("backing-format is taken from the image's header");
  complete_check (p);
  createparams_complete (&p->create, p->path, &p->options);
}
