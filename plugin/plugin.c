/* SPDX-License-Identifier: BSD-3-Clause
 *
 * How does nbdkit call the plugin?
 *
 * This file knows NBD, but not the format; disk/ and the folders below know the format,
 * but not NBD.  It contains the only global state of the plugin: the parameters
 * (params.c), and the disk or the directory of images (dir.c), in which each connection
 * has its export.
 *
 * The disk is opened in .get_ready, while errors still reach the user's terminal.  At
 * that time it is not known whether clients may write (nbdkit passes -r to .open).  So
 * .get_ready changes only what parameters ask for (prepare.c), and the first writable
 * .open makes the disk writable.  nbdkit opens and closes several times for one client;
 * the disk counts the connections.
 */

#include <config.h>

#include <errno.h>
#ifdef __GLIBC__
#include <malloc.h>
#endif
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define NBDKIT_API_VERSION 2
#include <nbdkit-plugin.h>

#include "util/bytes.h"
#include "util/cleanup.h"
#include "util/clock.h"
#include "util/jsontext.h"
#include "util/memory.h"
#include "util/report.h"
#include "disk/dir.h"
#include "disk/disk.h"
#include "disk/export.h"
#include "change/newimage.h"
#include "plugin/clientlog.h"
#include "plugin/control.h"
#include "plugin/ending.h"
#include "plugin/eventlog.h"
#include "plugin/iostats.h"
#include "plugin/paramrules.h"
#include "plugin/params.h"
#include "plugin/prepare.h"
#include "plugin/qmpnodes.h"
#include "plugin/qmpobject.h"
#include "plugin/stats.h"
#include "plugin/statsimage.h"

/* -D qcow2.stats=1 -v prints statistics at the end. */
NBDKIT_DLL_PUBLIC int qcow2_debug_stats;

static struct params params = PARAMS_DEFAULT;
static struct disk *disk;       /* NULL: a directory is served */
static struct dir *dir;
static uint64_t most, started;  /* see struct stats */
static struct stats_file *stats_file;   /* NULL: stats= was not given */
static struct control *control; /* NULL: control= was not given */
static struct iostats *iostats; /* NULL: none of these and log= was given */
static struct qmp_nodes nodes;
static struct qmp_added added;
static struct qmp_secrets secrets;
static atomic_uint_fast64_t connections_open, connections_ever;
static atomic_int_fast64_t connected_ms;        /* when the last one was opened */
static atomic_bool clients_came;        /* one, at least, whether or not it was served */
static atomic_bool ending;      /* all clients have gone */

/* A write beyond the maximum size of a file (ulimit -f) raises SIGXFSZ, which ends the
 * process.  With a handler only the write fails (EFBIG).  SIG_IGN would be inherited by
 * the command of --run. */
static bool handles_xfsz;

static void
do_nothing (int sig)
{
}

/* (Fuzz targets load the plugin again and again.) */
static void
qcow2_load (void)
{
  struct sigaction old;
  const struct sigaction ours = { .sa_handler = do_nothing, .sa_flags = SA_RESTART };

  params = (struct params) PARAMS_DEFAULT;
  most = 0;
  connections_ever = 0;
  clients_came = false;
  ending = false;
  if (sigaction (SIGXFSZ, NULL, &old) == 0 && old.sa_handler == SIG_DFL)
    handles_xfsz = sigaction (SIGXFSZ, &ours, NULL) == 0;
}

static void
close_control (void)
{
  control_close (control);
  control = NULL;
  iostats_free (iostats);
  iostats = NULL;
  qmpnodes_end (&added);
  qmpobject_end (&secrets);
  qmptarget_free_nodes (&nodes);
}

static json_t *
describe_server (void)
{
  return !eventlog_is_open () ? NULL : jsontext_object (
    { "image", eventlog_text (params.options.path) },
    { "pid", json_integer (getpid ()) },
    { "version", jsontext_string (PACKAGE_VERSION) });
}

/* Before it serves.  WHY, or NULL: what was reported. */
static void
log_failed_start (const char *why)
{
  json_t *const server = describe_server ();

  eventlog_close (EVENTLOG_ERROR, "start-failed", server == NULL ? NULL : jsontext_add (
    server, { "text", eventlog_text (why ? why : "") }));
}

static void
qcow2_unload (void)
{
  if (handles_xfsz)             /* the handler is about to be unloaded */
    signal (SIGXFSZ, SIG_DFL);
  ending_stop ();               /* the server did not start */
  close_control ();
  log_failed_start (NULL);
  params_free (&params);
}

/* --- parameters --- */

static int
qcow2_config (const char *key, const char *value)
{
  return params_set (&params, key, value);
}

static int
qcow2_config_complete (void)
{
  if (paramrules_check (&params) == -1)
    return -1;
  params_complete (&params);
  return 0;
}

static void
qcow2_dump_plugin (void)
{
  printf ("qcow2_read=yes\n");
  printf ("qcow2_write=yes\n");
  printf ("qcow2_backing=yes\n");
  printf ("qcow2_copy_on_read=yes\n");
  printf ("qcow2_flatten=yes\n");
  printf ("qcow2_snapshots=yes\n");
  printf ("qcow2_snapshot_edit=yes\n");
  printf ("qcow2_resize=yes\n");
  printf ("qcow2_bitmaps=yes\n");
  printf ("qcow2_bitmap_exports=yes\n");
  printf ("qcow2_layer_exports=yes\n");
  printf ("qcow2_log=yes\n");
  printf ("qcow2_dir=yes\n");
  printf ("qcow2_dir_symlinks=yes\n");
  printf ("qcow2_stats=yes\n");
  printf ("qcow2_zlib=%s\n", disk_can_inflate ("zlib") ? "yes" : "no");
  printf ("qcow2_zstd=%s\n", disk_can_inflate ("zstd") ? "yes" : "no");
  printf ("qcow2_compress=yes\n");
  printf ("qcow2_luks=yes\n");
  printf ("qcow2_aes=yes\n");
  printf ("qcow2_check=yes\n");
  printf ("qcow2_extended_l2=yes\n");
  printf ("qcow2_data_file=yes\n");
  printf ("qcow2_create=yes\n");
  printf ("qcow2_control=yes\n");
}

/* --- start and end of the server --- */

/* All threads of the server share one heap, so that memory that one thread frees is
 * available to the others.  (By default glibc makes up to eight heaps per processor, and
 * each may come to hold as much memory as all threads need.  16 threads on 16 processors
 * are no faster with them: doc/PERFORMANCE.md.)  The environment of the server can
 * override this. */
static void
share_heap (void)
{
#ifdef __GLIBC__
  const char *tunables = getenv ("GLIBC_TUNABLES");

  if (getenv ("MALLOC_ARENA_MAX") == NULL &&
      (tunables == NULL || strstr (tunables, "arena_max") == NULL))
    mallopt (M_ARENA_MAX, 1);
#endif
}

/* Returns freed memory to the host. */
static void
trim_heap (void)
{
#ifdef __GLIBC__
  malloc_trim (0);
#endif
}

static void
get_stats (struct stats *s)
{
  if (dir)
    dir_get_stats (dir, &s->disk);
  else
    disk_get_stats (disk, &s->disk);
  s->most = most;
  s->one_disk = dir == NULL;
  s->watermark = params.options.watermark;
  s->limit = params.options.l2_cache;
  s->started = started;
  s->open = connections_open;
  s->ever = connections_ever;
}

/* The same, with the images. */
static void
get_all_stats (struct stats *s)
{
  get_stats (s);
  s->images = statsimage_all (QMPTARGET_DEVICE, disk, dir, iostats, &s->omitted);
  s->jobs = control_jobs (control);
  s->bounds = statsimage_bounds ();
}

static json_t *
describe_stats (void)
{
  struct stats s;

  get_all_stats (&s);
  return stats_describe (&s);
}

static void
publish_news (void)
{
  if (stats_file)
    stats_news (stats_file);
  control_news (control);
}

static int
open_stats (void)
{
  if (params.stats == NULL)
    return 0;
  stats_file = stats_open (params.stats, params.stats_for_prometheus, get_all_stats);
  return stats_file ? 0 : -1;
}

/* Can the file of stats= be written?  Checked before anything is done, and again after
 * all other files were created. */
static int
check_stats (void)
{
  return params.stats ? stats_check (params.stats) : 0;
}

/* Is the client still waiting for the request of this thread?  When the client has gone
 * or the server is to end, nbdkit wakes up threads that sleep in nbdkit_nanosleep, and
 * says why; there is no other way to ask.  It does so too if the client has only sent
 * NBD_CMD_DISC or shut down its side, and waits for its answers: hence ORPHAN_MS.  (Work
 * before clients come has no client.) */
#define ORPHAN_MS 2000

static bool
client_waits (void)
{
  return connections_open == 0 || nbdkit_nanosleep (0, 0) == 0;
}

/* The same for what waits for NBD servers, also when the last client is leaving. */
static bool
anyone_waits (void)
{
  return !ending && (!clients_came || nbdkit_nanosleep (0, 0) == 0);
}

static int
open_control (void)
{
  if (params.control == NULL)
    return 0;
  control = control_open (params.control);
  return control ? 0 : -1;
}

static int
open_iostats (void)
{
  if (params.stats == NULL && params.control == NULL && params.log == NULL)
    return 0;
  iostats = iostats_new ();
  return iostats ? 0 : -1;
}

/* Why can no command change what is served? */
static const char *
why_fixed (void)
{
  return params.options.untrusted ? "the image is untrusted"
    : params.options.snapshot ? "a snapshot is served" : NULL;
}

static int
start_control (void)
{
  const struct qmp_host host = {
    .disk = disk, .dir = dir, .iostats = iostats, .why_fixed = why_fixed (),
    .nodes = &nodes, .added = &added, .secrets = &secrets,
    .options = &params.options, .statistics = describe_stats,
  };

  return control ? control_start (control, &host) : 0;
}

static int
get_ready (void)
{
  started = time (NULL);
  params.options.client_waits = client_waits;
  params.options.link.client_waits = anyone_waits;
  params.options.linger_ms = ORPHAN_MS;
  params.options.guard_below = true;
  params.options.news = publish_news;
  /* With dir= the passphrase is needed as long as the server runs. */
  if (eventlog_open (params.log, params.log_as_json, params.log_level) == -1 ||
      check_stats () == -1 ||
      (params.dir ? dir_open (&params.options, &dir)
       : prepare_disk (&params, &disk)) == -1)
    return -1;
  if (disk)
    most = newimage_full_size_of (&disk_inside (disk).view->image->header);
  return check_stats () == -1 || open_iostats () == -1 || open_stats () == -1 ||
    open_control () == -1 ? -1 : stats_file ? stats_write (stats_file) : 0;
}

static int
qcow2_get_ready (void)
{
  CLEANUP_FREE char *why = NULL;
  int r;

  share_heap ();
  report_watch ();
  r = get_ready ();
  why = report_first ();
  if (r == -1) {
    stats_close (stats_file);
    stats_file = NULL;
    close_control ();
    disk_close (disk);
    disk = NULL;
    log_failed_start (why);
  }
  createparams_settle (&params.create, r == 0);
  return r;
}

/* Does any request run?  (One that waits for space is none.) */
static int
is_busy (void *opaque, const char *name, struct disk *d)
{
  (void) opaque, (void) name;
  return disk_is_busy (d);
}

static bool
anything_is_busy (void)
{
  return dir ? dir_each (dir, is_busy, NULL) != 0 : disk && disk_is_busy (disk);
}

static void
cancel_jobs (void)
{
  control_cancel (control);
}

/* Threads are started here: nbdkit may have become another process. */
static int
qcow2_after_fork (void)
{
  const struct ending_server server = {
    .dir = params.nr_allow_uri > 0 ? dir : NULL, .open = &connections_open,
    .last_ms = &connected_ms, .is_busy = anything_is_busy, .begins = cancel_jobs,
    .spared = control_socket (control),
  };

  if (eventlog_start () == -1 || (stats_file && stats_start (stats_file) == -1) ||
      ending_start (&server) == -1 || start_control () == -1) {
    log_failed_start (NULL);
    return -1;
  }
  eventlog_write (EVENTLOG_INFO, "start", describe_server ());
  return 0;
}

/* Called when no connection is served any more.  (When nbdkit is told to end, it does not
 * call .close for open connections: if ending.c has not closed them before, their handles
 * are lost, but the disk comes to rest.) */
static void
qcow2_cleanup (void)
{
  struct stats s;

  ending = true;
  control_stop (control);
  ending_stop ();
  if (disk == NULL && dir == NULL)
    return;
  stats_stop (stats_file);
  if (qcow2_debug_stats) {
    get_stats (&s);
    stats_print (&s);
  }
  disk_close (disk);
  disk = NULL;
  dir_close (dir);
  dir = NULL;
  close_control ();
  stats_close (stats_file);
  stats_file = NULL;
  eventlog_close (EVENTLOG_INFO, "end", describe_server ());
}

/* --- connections --- */

/* A connection. */
struct handle {
  struct export *export;        /* NULL: a probe */
  struct dir_image *image;      /* the image of the export; NULL without a directory */
  struct iostats_client *counts;        /* or NULL */
  struct clientlog *log;        /* or NULL */
};

static struct iostats_client *
counts_of (void *handle)
{
  return ((const struct handle *) handle)->counts;
}

static struct export *
export_of (void *handle)
{
  return ((const struct handle *) handle)->export;
}

/* nbdkit accepts no more exports than this in a list.  Clients can use the others all the
 * same. */
#define MAX_LISTED 10000

struct list {
  struct nbdkit_exports *exports;
  unsigned n;
  bool full;
};

/* Returns 1 to end the list of a directory.  (The exports of an image are known without
 * further work, and the rest is counted to report how many are unlisted.) */
static int
add_export (void *opaque, const char *name, const char *description)
{
  struct list *list = opaque;

  if (list->n == MAX_LISTED) {
    list->full = true;
    return dir ? 1 : 0;
  }
  list->n++;
  return nbdkit_add_export (list->exports, name, description);
}

/* Reports each case once, because clients may ask for lists at any time. */
static void
tell_unlisted (bool full, unsigned unlisted)
{
  static atomic_flag told_full = ATOMIC_FLAG_INIT, told_unlisted = ATOMIC_FLAG_INIT;

  if (full && !atomic_flag_test_and_set (&told_full))
    report_error ("%s: the list of exports ends after %d: nbdkit takes no more",
                  params.options.path, MAX_LISTED);
  if (unlisted > 0 && !atomic_flag_test_and_set (&told_unlisted))
    report_error ("%s: left out of the list of exports: %u (names that are not unique, "
                  "not UTF-8, or longer than %d bytes)", params.options.path, unlisted,
                  EXPORTS_MAX_NAME);
}

/* (With --tls=require nbdkit itself refuses this, and all else, until TLS is
 * negotiated.) */
static int
qcow2_list_exports (int readonly, int is_tls, struct nbdkit_exports *exports)
{
  struct list list = { .exports = exports };
  unsigned unlisted = 0;
  const int r = dir ? dir_list (dir, add_export, &list, &unlisted)
    : exports_list (disk, add_export, &list, &unlisted);

  if (r != -1)
    tell_unlisted (list.full, unlisted);
  report_last (r == -1 ? "cannot list the exports" : "despite that, the exports were listed");
  return r == -1 ? -1 : 0;
}

/* With -s, this thread has started the server. */
static int
qcow2_preconnect (int readonly)
{
  report_last ("despite that, the server started");
  return 0;
}

/* NULL: a directory has none. */
static const char *
qcow2_default_export (int readonly, int is_tls)
{
  return dir ? NULL : "";
}

/* Preserves errno. */
static void
leave (struct handle *h)
{
  struct iocounts counts;
  KEEP_ERRNO_FOR_BLOCK;

  iostats_leave (iostats, h->counts, &counts);
  clientlog_close (h->log, &counts);
  if (h->export)
    export_close (h->export);
  if (h->image)
    dir_leave (dir, h->image);
  free (h);
}

static int
enter (struct handle *h, const char *name, bool writable)
{
  struct disk *used;

  if (dir) {
    h->image = dir_enter (dir, name, &name);
    if (h->image == NULL)
      return -1;
  }
  used = dir ? dir_disk (h->image) : disk;
  disk_allow_ahead (used);
  h->export = export_open (used, name, writable);
  if (h->export)
    h->counts = iostats_enter (iostats, dir ? dir_name (h->image) : QMPTARGET_DEVICE,
                               name);
  if (h->export)
    h->log = clientlog_open (disk_get_options (used)->path, name,
                             export_is_writable (h->export));
  return h->export ? 0 : -1;
}

/* Is it a probe, which asks whether the server lives?  It gets an empty export in any
 * case, and touches no image: nothing waits for it, and it waits for nothing. */
static bool
is_probe (const char *name)
{
  return name && strcmp (name, EXPORTS_HEALTH) == 0;
}

static void *
qcow2_open (int readonly)
{
  const char *name = nbdkit_export_name ();
  struct handle *h = memory_new (1, sizeof *h);
  CLEANUP_FREE char *why = NULL;
  int r;

  if (h == NULL)
    return NULL;
  if (!is_probe (name)) {
    clients_came = true;
    report_watch ();
    r = name ? enter (h, name, !readonly) : -1;
    why = report_first ();
    if (r == -1) {
      /* (EBUSY: another program has locked it, and nobody needs to mend it.) */
      if (dir && name && h->image == NULL && errno != ENOENT && errno != EBUSY &&
          anyone_waits ())
        dir_refused (dir, name, why ? why : "");
      leave (h);
      clientlog_refused (params.options.path, name ? name : "", why);
      report_last ("cannot open the export: %m");
      return NULL;
    }
    report_last ("despite that, the export was opened");
  }
  connected_ms = clock_ms ();
  connections_open++;
  connections_ever++;
  return h;
}

static void
qcow2_close (void *handle)
{
  const bool probe = export_of (handle) == NULL;

  leave (handle);
  report_last ("despite that, the export was closed");
  connections_open--;
  if (!probe && stats_file)
    stats_news (stats_file);
  /* This may have been the last connection to an image. */
  if (dir || connections_open == 0)
    trim_heap ();
}

static int64_t
qcow2_get_size (void *handle)
{
  return export_of (handle) ? export_size (export_of (handle)) : 0;
}

static const char *
qcow2_export_description (void *handle)
{
  return export_of (handle) ? export_description (export_of (handle)) : "the server lives";
}

static int
qcow2_block_size (void *handle, uint32_t *minimum, uint32_t *preferred,
                  uint32_t *maximum)
{
  *minimum = 1;
  *preferred = export_of (handle) ? max64 (export_unit_size (export_of (handle)), 4096) : 4096;
  *maximum = 0xffffffff;
  return 0;
}

static int
qcow2_can_write (void *handle)
{
  return export_of (handle) && export_is_writable (export_of (handle));
}

/* The only request that needs no bytes. */
static int
qcow2_can_flush (void *handle)
{
  return export_of (handle) != NULL;
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

/* Only these wait for space. */
static bool
changes (enum iostats_kind kind)
{
  return kind != IOSTATS_READ && kind != IOSTATS_CACHE && kind != IOSTATS_EXTENTS;
}

/* What came of it, with result R?  It has not failed if the client has gone, which is why
 * it was given up, or no longer waits for space; nor if the client asked for zeros only
 * if that is fast, for which ENOTSUP is an answer. */
static enum iostats_result
judge (enum iostats_kind kind, int r)
{
  return __builtin_expect (r == 0, 1) ? IOSTATS_DONE
    : errno == ESHUTDOWN ||
      (errno == ENOSPC && params.options.wait_for_space && changes (kind)) ||
      (errno == ENOTSUP && kind == IOSTATS_ZERO) ? IOSTATS_REFUSED : IOSTATS_FAILED;
}

/* It ended with R, which is returned. */
static int
end (void *handle, enum iostats_kind kind, int64_t begun, uint64_t offset, uint32_t count,
     int r)
{
  const enum iostats_result result = judge (kind, r);

  iostats_end (counts_of (handle), kind, begun, offset, count, result);
  if (__builtin_expect (result == IOSTATS_FAILED, 0))
    clientlog_failed (((const struct handle *) handle)->log, kind, offset, count);
  return r;
}

static int
qcow2_pread (void *handle, void *buf, uint32_t count, uint64_t offset,
             uint32_t flags)
{
  const int64_t begun = iostats_begin (counts_of (handle), IOSTATS_READ);
  const int r = export_read (export_of (handle), buf, count, offset);

  return end (handle, IOSTATS_READ, begun, offset, count, r);
}

static int
qcow2_pwrite (void *handle, const void *buf, uint32_t count, uint64_t offset,
              uint32_t flags)
{
  const int64_t begun = iostats_begin (counts_of (handle), IOSTATS_WRITE);
  const int r = export_write (export_of (handle), buf, count, offset,
                       flags & NBDKIT_FLAG_FUA);

  return end (handle, IOSTATS_WRITE, begun, offset, count, r);
}

static int
qcow2_trim (void *handle, uint32_t count, uint64_t offset, uint32_t flags)
{
  const int64_t begun = iostats_begin (counts_of (handle), IOSTATS_TRIM);
  const int r = export_trim (export_of (handle), count, offset, flags & NBDKIT_FLAG_FUA);

  return end (handle, IOSTATS_TRIM, begun, offset, count, r);
}

static int
qcow2_zero (void *handle, uint32_t count, uint64_t offset, uint32_t flags)
{
  const int64_t begun = iostats_begin (counts_of (handle), IOSTATS_ZERO);
  const int r = export_zero (export_of (handle), count, offset,
                      (flags & NBDKIT_FLAG_MAY_TRIM ? REQUEST_MAY_TRIM : 0) |
                      (flags & NBDKIT_FLAG_FAST_ZERO ? REQUEST_FAST : 0),
                      flags & NBDKIT_FLAG_FUA);

  return end (handle, IOSTATS_ZERO, begun, offset, count, r);
}

static int
qcow2_flush (void *handle, uint32_t flags)
{
  const int64_t begun = iostats_begin (counts_of (handle), IOSTATS_FLUSH);
  const int r = export_flush (export_of (handle));

  return end (handle, IOSTATS_FLUSH, begun, 0, 0, r);
}

static int
qcow2_cache (void *handle, uint32_t count, uint64_t offset, uint32_t flags)
{
  const int64_t begun = iostats_begin (counts_of (handle), IOSTATS_CACHE);
  const int r = export_cache (export_of (handle), count, offset);

  return end (handle, IOSTATS_CACHE, begun, offset, count, r);
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

/* Extents never go beyond the request: some servers do not accept that. */
static int
qcow2_extents (void *handle, uint32_t count, uint64_t offset, uint32_t flags,
               struct nbdkit_extents *extents)
{
  const int64_t begun = iostats_begin (counts_of (handle), IOSTATS_EXTENTS);
  const int r = export_extents (export_of (handle), count, offset,
                                flags & NBDKIT_FLAG_REQ_ONE, add_extent, extents);

  return end (handle, IOSTATS_EXTENTS, begun, offset, count, r);
}

#define THREAD_MODEL NBDKIT_THREAD_MODEL_PARALLEL

static struct nbdkit_plugin plugin = {
  .name = "qcow2",
  .longname = "nbdkit qcow2 plugin",
  .version = PACKAGE_VERSION,
  .description = "Serve qcow2 disk images read-write, without QEMU.",
  .load = qcow2_load,
  .unload = qcow2_unload,
  .config = qcow2_config,
  .config_complete = qcow2_config_complete,
  .config_help = params_help,
  .magic_config_key = "file",
  .dump_plugin = qcow2_dump_plugin,
  .get_ready = qcow2_get_ready,
  .after_fork = qcow2_after_fork,
  .cleanup = qcow2_cleanup,
  .preconnect = qcow2_preconnect,
  .list_exports = qcow2_list_exports,
  .default_export = qcow2_default_export,
  .open = qcow2_open,
  .close = qcow2_close,
  .get_size = qcow2_get_size,
  .export_description = qcow2_export_description,
  .block_size = qcow2_block_size,
  .can_write = qcow2_can_write,
  .can_flush = qcow2_can_flush,
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

/* The macro defines plugin_init without a declaration; clang warns about that. */
extern struct nbdkit_plugin *plugin_init (void);

NBDKIT_REGISTER_PLUGIN (plugin)
