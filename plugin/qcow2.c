/* SPDX-License-Identifier: BSD-3-Clause
 *
 * nbdkit's callbacks and parameters.
 *
 * This file knows NBD and nothing of the format; disk.c and below know the format and
 * nothing of NBD.  It holds the plugin's only global state: the parameters,
 * and the disk.
 *
 * The disk is opened in .get_ready, while errors still reach the user's
 * terminal, but it is not known then whether clients may write (-r is told to
 * .open).  So .get_ready changes nothing, and the first writable .open makes the disk
 * writable.  nbdkit opens and closes several times for one client; the disk
 * counts them.
 */

#include <config.h>

#include <errno.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NBDKIT_API_VERSION 2
#include <nbdkit-plugin.h>

#include "bytes.h"
#include "disk.h"

/* -D qcow2.stats=1 prints statistics at the end. */
NBDKIT_DLL_PUBLIC int qcow2_debug_stats;

static struct disk_options options = {
  .l2_cache = 32 << 20,
  .l2_slice = 4096,
  .backing = BACKING_FOLLOW,
  .discard = true,
  .lock = true,
};
static char *path, *backing_path, *passphrase;
static const char *snapshot;            /* serve this one, and nothing else */
static bool backing_set;
static struct disk *disk;

#define MIN_SLICE 512
#define MAX_SLICE (2 << 20)

/* Nobody needs it once the image is open. */
static void
forget_passphrase (void)
{
  if (passphrase)
    explicit_bzero (passphrase, strlen (passphrase));
  free (passphrase);
  passphrase = NULL;
  options.secret = (struct chain_secret) { NULL, 0 };
}

static void
qcow2_unload (void)
{
  forget_passphrase ();
  free (path);
  free (backing_path);
}

/* --- parameters --- */

struct choice { const char *word; int value; };

static int
parse_choice (const char *key, const char *value,
              const struct choice *choices, int *r)
{
  char words[128] = "";
  const struct choice *c;

  for (c = choices; c->word; c++)
    if (strcmp (value, c->word) == 0) {
      *r = c->value;
      return 0;
    }
  for (c = choices; c->word; c++) {
    if (c != choices)
      strcat (words, c[1].word ? ", " : " or ");
    strcat (words, c->word);
  }
  nbdkit_error ("%s=%s: must be %s", key, value, words);
  return -1;
}

static int
parse_flag (const char *key, const char *value, bool *r)
{
  int b = nbdkit_parse_bool (value);

  if (b == -1) {
    nbdkit_error ("%s=%s: not a boolean", key, value);
    return -1;
  }
  *r = b;
  return 0;
}

static int
parse_bytes (const char *key, const char *value, uint64_t *r)
{
  int64_t size = nbdkit_parse_size (value);

  if (size == -1) {
    nbdkit_error ("%s=%s: not a size", key, value);
    return -1;
  }
  *r = size;
  return 0;
}

static int
config_file (const char *value)
{
  if (path) {
    nbdkit_error ("file= was given twice");
    return -1;
  }
  /* Not the real path: a relative backing file is looked for next to the name
   * that was given. */
  path = nbdkit_absolute_path (value);
  options.path = path;
  return path ? 0 : -1;
}

static int
config_slice (const char *key, const char *value)
{
  if (parse_bytes (key, value, &options.l2_slice) == -1)
    return -1;
  if (!is_power_of_2 (options.l2_slice) || options.l2_slice < MIN_SLICE ||
      options.l2_slice > MAX_SLICE) {
    nbdkit_error ("%s=%s: must be a power of two between %d and %d",
                  key, value, MIN_SLICE, MAX_SLICE);
    return -1;
  }
  return 0;
}

static int
config_backing (const char *value)
{
  if (backing_set) {
    nbdkit_error ("backing= was given twice");
    return -1;
  }
  backing_set = true;
  if (strcmp (value, "follow") == 0)
    options.backing = BACKING_FOLLOW;
  else if (strcmp (value, "deny") == 0)
    options.backing = BACKING_DENY;
  else {
    options.backing = BACKING_PATH;
    backing_path = nbdkit_absolute_path (value);
    options.backing_path = backing_path;
    if (backing_path == NULL)
      return -1;
  }
  return 0;
}

/* qcow2-passphrase= is the same for those who put nbdkit's luks filter on top, which takes
 * passphrase= for itself. */
static int
config_passphrase (const char *value)
{
  forget_passphrase ();
  if (nbdkit_read_password (value, &passphrase) == -1)
    return -1;
  options.secret.passphrase = passphrase;
  options.secret.len = strlen (passphrase);
  return 0;
}

static int
qcow2_config (const char *key, const char *value)
{
  static const struct choice formats[] = {
    { "qcow2", 0 }, { "raw", 1 }, { NULL, 0 }
  };
  static const struct choice discards[] = {
    { "unmap", true }, { "ignore", false }, { NULL, 0 }
  };
  static const struct choice detects[] = {
    { "off", DETECT_ZEROES_OFF }, { "on", DETECT_ZEROES_ON },
    { "unmap", DETECT_ZEROES_UNMAP }, { NULL, 0 }
  };
  static const struct choice caches[] = {
    { "default", false }, { "none", true }, { NULL, 0 }
  };
  int choice;

  if (strcmp (key, "file") == 0)
    return config_file (value);
  if (strcmp (key, "l2-cache") == 0)
    return parse_bytes (key, value, &options.l2_cache);
  if (strcmp (key, "l2-slice") == 0)
    return config_slice (key, value);
  if (strcmp (key, "backing") == 0)
    return config_backing (value);
  if (strcmp (key, "backing-format") == 0) {
    if (parse_choice (key, value, formats, &choice) == -1)
      return -1;
    options.backing_format = formats[choice].word;
    return 0;
  }
  if (strcmp (key, "passphrase") == 0 ||
      strcmp (key, "qcow2-passphrase") == 0)
    return config_passphrase (value);
  if (strcmp (key, "snapshot") == 0) {
    snapshot = value;
    return 0;
  }
  if (strcmp (key, "untrusted") == 0)
    return parse_flag (key, value, &options.untrusted);
  if (strcmp (key, "discard") == 0) {
    if (parse_choice (key, value, discards, &choice) == -1)
      return -1;
    options.discard = choice;
    return 0;
  }
  if (strcmp (key, "detect-zeroes") == 0) {
    if (parse_choice (key, value, detects, &choice) == -1)
      return -1;
    options.detect_zeroes = choice;
    return 0;
  }
  if (strcmp (key, "cache") == 0) {
    if (parse_choice (key, value, caches, &choice) == -1)
      return -1;
    options.drop_cache = choice;
    return 0;
  }
  if (strcmp (key, "lock") == 0)
    return parse_flag (key, value, &options.lock);

  nbdkit_error ("unknown parameter '%s'", key);
  return -1;
}

static int
qcow2_config_complete (void)
{
  if (path == NULL) {
    nbdkit_error ("the file parameter is missing: nbdkit qcow2 disk.qcow2");
    return -1;
  }
  if (options.untrusted) {
    if (options.backing == BACKING_PATH) {
      nbdkit_error ("untrusted=true does not go with backing=PATH");
      return -1;
    }
    options.backing = BACKING_DENY;
  }
  if (options.backing == BACKING_PATH && options.backing_format == NULL)
    nbdkit_debug ("backing-format is taken from the image's header");
  return 0;
}

#define qcow2_config_help                                                    \
  "[file=]<PATH>                (required) The qcow2 image.\n"               \
  "l2-cache=<SIZE>              Most memory for mappings (default 32M).\n"   \
  "l2-slice=<SIZE>              Part of an L2 table to read at a time (4K).\n"\
  "backing=follow|deny|<PATH>   What to do about the backing file.\n"        \
  "backing-format=qcow2|raw     Format of the backing file; never guessed.\n"\
  "snapshot=<NAME|ID>           Serve this internal snapshot, read-only.\n"  \
  "passphrase=<SECRET>          Of encrypted images: literal, -, +FILE, -FD.\n"\
  "qcow2-passphrase=<SECRET>    The same, below nbdkit's luks filter.\n"     \
  "untrusted=true|false         Image from strangers: deny files it names.\n"\
  "discard=unmap|ignore         What trim does (default unmap).\n"           \
  "detect-zeroes=off|on|unmap   What to do with zeros that are written.\n"   \
  "cache=default|none           Keep data out of the page cache: none.\n"    \
  "lock=on|off                  QEMU-compatible image locks (default on)."

static void
qcow2_dump_plugin (void)
{
  printf ("qcow2_read=yes\n");
  printf ("qcow2_write=yes\n");
  printf ("qcow2_backing=yes\n");
  printf ("qcow2_snapshots=yes\n");
  printf ("qcow2_zlib=%s\n", disk_can_inflate ("zlib") ? "yes" : "no");
  printf ("qcow2_zstd=%s\n", disk_can_inflate ("zstd") ? "yes" : "no");
  printf ("qcow2_luks=yes\n");
  printf ("qcow2_aes=yes\n");
  printf ("qcow2_extended_l2=no\n");
  printf ("qcow2_data_file=no\n");
}

/* --- the server's life --- */

static int
qcow2_get_ready (void)
{
  const int r = disk_open (&options, &disk);

  forget_passphrase ();
  if (r == -1)
    return -1;
  if (disk_why_readonly (disk))
    nbdkit_debug ("%s: served read-only: %s", path, disk_why_readonly (disk));
  nbdkit_debug ("%s: %s", path, disk_description (disk));
  if (snapshot && disk_open_snapshot (disk, snapshot) == NULL)
    return -1;
  return 0;
}

static void
print_stats (void)
{
  struct disk_stats s;

  disk_get_stats (disk, &s);
  fprintf (stderr,
           "qcow2: map: %" PRIu64 " hits, %" PRIu64 " misses, %" PRIu64
           " evictions, %" PRIu64 " bytes held, %" PRIu64 " at most\n"
           "qcow2: clusters: %" PRIu64 " allocated, %" PRIu64 " freed, %"
           PRIu64 " punched\n"
           "qcow2: flush: %" PRIu64 " requests, %" PRIu64 " shared, %" PRIu64
           " checkpoints, %" PRIu64 " syncs\n",
           s.map.hits, s.map.misses, s.map.evictions,
           s.map.bytes, s.map.peak_bytes,
           s.alloc.allocated, s.alloc.freed, s.alloc.punched,
           s.checkpoint.flushes, s.checkpoint.shared,
           s.checkpoint.runs, s.checkpoint.syncs);
}

/* All connections are closed. */
static void
qcow2_cleanup (void)
{
  if (disk == NULL)
    return;
  if (qcow2_debug_stats)
    print_stats ();
  disk_close (disk);
  disk = NULL;
}

/* --- connections --- */

/* Exports: "" is the disk as it is now (or, with snapshot=, that snapshot, and there are no
 * others), and each internal snapshot goes by its name. */
struct handle {
  bool writable;
  struct disk_snapshot *snapshot;       /* NULL: the active disk */
};

static int
qcow2_list_exports (int readonly, int is_tls, struct nbdkit_exports *exports)
{
  char text[128];
  unsigned i;

  if (nbdkit_add_export (exports, "", disk_description (disk)) == -1)
    return -1;
  if (snapshot)
    return 0;
  for (i = 0; i < disk_nr_snapshots (disk); i++) {
    const char *name = disk_snapshot_name (disk, i, text, sizeof text);

    if (name && nbdkit_add_export (exports, name, text) == -1)
      return -1;
  }
  return 0;
}

static const char *
qcow2_default_export (int readonly, int is_tls)
{
  return "";
}

/* Which snapshot does the export name mean?  -1: there is no such export. */
static int
choose_snapshot (const char *name, struct disk_snapshot **ds)
{
  *ds = NULL;
  if (name[0] == '\0') {
    if (snapshot == NULL)
      return 0;
    name = snapshot;
  }
  else if (snapshot && strcmp (name, snapshot) != 0) {
    nbdkit_error ("only snapshot \"%s\" is served, as export \"\"", snapshot);
    errno = ENOENT;
    return -1;
  }
  *ds = disk_open_snapshot (disk, name);
  return *ds ? 0 : -1;
}

static void *
qcow2_open (int readonly)
{
  const char *name = nbdkit_export_name ();
  struct handle *h = malloc (sizeof *h);

  if (h == NULL) {
    nbdkit_error ("malloc: %m");
    return NULL;
  }
  if (name == NULL || choose_snapshot (name, &h->snapshot) == -1) {
    free (h);
    return NULL;
  }
  h->writable = !readonly && h->snapshot == NULL;
  if (disk_connect (disk, &h->writable) == -1) {
    free (h);
    return NULL;
  }
  return h;
}

static void
qcow2_close (void *handle)
{
  struct handle *h = handle;

  disk_disconnect (disk, h->writable);
  free (h);
}

static int64_t
qcow2_get_size (void *handle)
{
  const struct handle *h = handle;

  return h->snapshot ? disk_snapshot_size (h->snapshot) : disk_size (disk);
}

static const char *
qcow2_export_description (void *handle)
{
  const struct handle *h = handle;

  return h->snapshot ? disk_snapshot_description (h->snapshot)
    : disk_description (disk);
}

static int
qcow2_block_size (void *handle, uint32_t *minimum, uint32_t *preferred,
                  uint32_t *maximum)
{
  *minimum = 1;
  *preferred = max64 (disk_cluster_size (disk), 4096);
  *maximum = 0xffffffff;
  return 0;
}

static int
qcow2_can_write (void *handle)
{
  const struct handle *h = handle;

  return h->writable;
}

static int
qcow2_yes (void *handle)
{
  return 1;
}

static int
qcow2_can_fua (void *handle)
{
  return NBDKIT_FUA_NATIVE;
}

static int
qcow2_can_cache (void *handle)
{
  return NBDKIT_CACHE_NATIVE;
}

/* --- requests --- */

static int
qcow2_pread (void *handle, void *buf, uint32_t count, uint64_t offset,
             uint32_t flags)
{
  const struct handle *h = handle;

  if (h->snapshot)
    return disk_snapshot_read (disk, h->snapshot, buf, count, offset);
  return disk_read (disk, buf, count, offset);
}

static int
qcow2_pwrite (void *handle, const void *buf, uint32_t count, uint64_t offset,
              uint32_t flags)
{
  return disk_write (disk, buf, count, offset, flags & NBDKIT_FLAG_FUA);
}

static int
qcow2_trim (void *handle, uint32_t count, uint64_t offset, uint32_t flags)
{
  return disk_trim (disk, count, offset, flags & NBDKIT_FLAG_FUA);
}

static int
qcow2_zero (void *handle, uint32_t count, uint64_t offset, uint32_t flags)
{
  return disk_zero (disk, count, offset, flags & NBDKIT_FLAG_MAY_TRIM,
                    flags & NBDKIT_FLAG_FAST_ZERO, flags & NBDKIT_FLAG_FUA);
}

static int
qcow2_flush (void *handle, uint32_t flags)
{
  return disk_flush (disk);
}

static int
qcow2_cache (void *handle, uint32_t count, uint64_t offset, uint32_t flags)
{
  const struct handle *h = handle;

  if (h->snapshot)
    return disk_snapshot_cache (disk, h->snapshot, count, offset);
  return disk_cache (disk, count, offset);
}

static int
add_extent (void *opaque, uint64_t offset, uint64_t len,
            enum extent_type type)
{
  static const uint32_t types[] = {
    [EXTENT_DATA] = 0,
    [EXTENT_HOLE] = NBDKIT_EXTENT_HOLE | NBDKIT_EXTENT_ZERO,
    [EXTENT_ZERO] = NBDKIT_EXTENT_ZERO,
  };

  return nbdkit_add_extent (opaque, offset, len, types[type]);
}

/* Extents never reach beyond the request: some servers can't take it. */
static int
qcow2_extents (void *handle, uint32_t count, uint64_t offset, uint32_t flags,
               struct nbdkit_extents *extents)
{
  const struct handle *h = handle;
  const bool one = flags & NBDKIT_FLAG_REQ_ONE;

  if (h->snapshot)
    return disk_snapshot_extents (disk, h->snapshot, count, offset, one,
                                  add_extent, extents);
  return disk_extents (disk, count, offset, one, add_extent, extents);
}

#define THREAD_MODEL NBDKIT_THREAD_MODEL_PARALLEL

static struct nbdkit_plugin plugin = {
  .name = "qcow2",
  .longname = "nbdkit qcow2 plugin",
  .version = PACKAGE_VERSION,
  .description = "Serve qcow2 disk images read-write, without QEMU.",
  .unload = qcow2_unload,
  .config = qcow2_config,
  .config_complete = qcow2_config_complete,
  .config_help = qcow2_config_help,
  .magic_config_key = "file",
  .dump_plugin = qcow2_dump_plugin,
  .get_ready = qcow2_get_ready,
  .cleanup = qcow2_cleanup,
  .list_exports = qcow2_list_exports,
  .default_export = qcow2_default_export,
  .open = qcow2_open,
  .close = qcow2_close,
  .get_size = qcow2_get_size,
  .export_description = qcow2_export_description,
  .block_size = qcow2_block_size,
  .can_write = qcow2_can_write,
  .can_flush = qcow2_yes,
  .can_trim = qcow2_yes,
  .can_zero = qcow2_yes,
  .can_fast_zero = qcow2_yes,
  .can_extents = qcow2_yes,
  .can_multi_conn = qcow2_yes,
  .can_fua = qcow2_can_fua,
  .can_cache = qcow2_can_cache,
  .pread = qcow2_pread,
  .pwrite = qcow2_pwrite,
  .trim = qcow2_trim,
  .zero = qcow2_zero,
  .flush = qcow2_flush,
  .cache = qcow2_cache,
  .extents = qcow2_extents,
  .errno_is_preserved = 1,
};

NBDKIT_REGISTER_PLUGIN (plugin)
