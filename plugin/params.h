/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What does the user want?  See params.c.
 */

#ifndef QCOW2_PARAMS_H
#define QCOW2_PARAMS_H

#include <stdbool.h>

#include "check/check.h"
#include "disk/disk.h"
#include "plugin/createparams.h"
#include "plugin/editparams.h"
#include "plugin/eventlog.h"

/* The table in params.c describes them. */
enum param {
  PARAM_FILE, PARAM_DIR, PARAM_DIR_SYMLINKS, PARAM_L2_CACHE, PARAM_L2_SLICE,
  PARAM_BACKING,
  PARAM_BACKING_FORMAT, PARAM_DATA_FILE, PARAM_SNAPSHOT, PARAM_BITMAP_ADD,
  PARAM_BITMAP_CLEAR, PARAM_BITMAP_REMOVE, PARAM_BITMAP_GRANULARITY,
  PARAM_BITMAP_DURABLE,
  PARAM_SNAPSHOT_CREATE, PARAM_SNAPSHOT_APPLY, PARAM_SNAPSHOT_DELETE, PARAM_RESIZE,
  PARAM_SHRINK, PARAM_PREALLOCATION, PARAM_PASSPHRASE,
  PARAM_UNTRUSTED, PARAM_DISCARD, PARAM_DETECT_ZEROES, PARAM_COMPRESS, PARAM_STATS,
  PARAM_STATS_FORMAT,
  PARAM_COMPRESS_LEVEL, PARAM_COMPRESS_WINDOW,
  PARAM_COPY_ON_READ, PARAM_FLATTEN, PARAM_CACHE, PARAM_CHECK, PARAM_CHECK_REPORT,
  PARAM_LOCK, PARAM_CREATE, PARAM_CLUSTER_SIZE, PARAM_COMPAT, PARAM_REFCOUNT_BITS,
  PARAM_EXTENDED_L2, PARAM_LAZY_REFCOUNTS, PARAM_COMPRESSION_TYPE, PARAM_ENCRYPT,
  PARAM_ITER_TIME, PARAM_BACKING_FILE, PARAM_DATA_FILE_RAW,
  PARAM_ALLOW_URI, PARAM_RECONNECT, PARAM_CONNECT_TIMEOUT, PARAM_ON_ENOSPC,
  PARAM_WATERMARK, PARAM_ANSWER_TIMEOUT, PARAM_OVERWRITE,
  PARAM_CHECKPOINT_INTERVAL, PARAM_CONTROL, PARAM_LOG, PARAM_LOG_FORMAT, PARAM_LOG_LEVEL,
  NR_PARAMS
};

struct params {
  bool given[NR_PARAMS];
  struct disk_options options;  /* its strings are those below */
  struct createparams create;   /* an image to create first */
  struct editparams edit;       /* of bitmaps, snapshots and the size */
  bool stats_for_prometheus;
  bool log_as_json;
  enum eventlog_level log_level;
  bool flatten;                 /* copy data of backing files before serving */
  char **uris;                  /* URIs that were given, with their secrets */
  size_t nr_uris;
  const char **allow_uri;       /* those of them below which names in images may be */
  size_t nr_allow_uri;
  const char *word;             /* file= as it was given, unless that is a URI, or NULL */
  char *path, *backing_path, *data_file_path, *stats, *report, *control, *log;
  char **passphrases;           /* of the encrypted images from the top */
  size_t nr_passphrases;
  char *dir;                    /* or NULL; if set, options.path is the same */
  struct check_options check;   /* complete after params_complete */
};

#define PARAMS_DEFAULT {                                                     \
  .options = {                                                               \
    .l2_cache = 32 << 20, .l2_slice = 4096, .backing = BACKING_FOLLOW,        \
    .checkpoint_interval_ms = 5000,                                          \
    .discard = true, .lock = true, .link = STORAGE_LINK_DEFAULTS,            \
  },                                                                         \
  .create = CREATEPARAMS_DEFAULT,                                            \
  .log_level = EVENTLOG_INFO,                                                \
}

/* For nbdkit --help: one or two lines for each parameter. */
extern const char params_help[];

/* Sets one parameter.  VALUE must outlive the params.  Returns 0, or -1 (reported). */
extern int params_set (struct params *, const char *key, const char *value);
/* Is file= the name of a parameter whose value was forgotten?  Returns 0, or -1
 * (reported).  A file of that name counts as one. */
extern int params_check_file (const struct params *);
/* Call it after all parameters were set and checked (paramrules.c). */
extern void params_complete (struct params *);
/* Wipes and frees all passphrases. */
extern void params_forget_passphrases (struct params *);
extern void params_free (struct params *);

/* Was the parameter given, with a value that asks for something?  (flatten=false does
 * not.) */
extern bool params_asks (const struct params *, enum param);
/* How messages name a parameter: "file=", or with its value if that is one of a few
 * words: "flatten=true". */
#define PARAMS_NAME 64
extern const char *params_name (const struct params *, enum param,
                                char buf[PARAMS_NAME]);

#endif /* QCOW2_PARAMS_H */
