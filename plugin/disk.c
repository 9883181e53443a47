/* SPDX-License-Identifier: BSD-3-Clause
 *
 * How is a disk put together, and when is it written?
 *
 * A disk is a stack of layers, a map, and up to two views: one in which nothing
 * ever changes, which is there from the start, and a writable one, which is
 * made when the first client comes that may write.  From then on all clients, also
 * those that only read, use the writable one: `current' says which.  A
 * request that began before the change goes on with the older view: what it
 * looks up there is protected by its grace pin, as any other mapping of a moment
 * ago.
 *
 * Until a client may write, nothing in the file is changed and only the reader's
 * lock is held.  When the last one that may write has left, the disk is quiesced: the
 * image is then clean, durable and without leaks; the writer's lock stays.
 *
 * Locks: `lock' guards coming and going: writers, `w' while it is made.  It is
 * held during quiescing, so that nobody comes meanwhile.  Requests don't take it.
 */

#include <config.h>

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "bitmap.h"
#include "cleanup.h"
#include "compress.h"
#include "disk.h"
#include "printable.h"
#include "repair.h"
#include "report.h"
#include "snapshot.h"

/* Bytes of inflated clusters that are kept for readers of small pieces. */
#define INFLATED_CACHE (UINT64_C (16) << 20)

/* Changed slices wait for a checkpoint up to half of l2-cache, and up to this many
 * bytes if that is less. */
#define MIN_DIRTY (UINT64_C (64) << 10)

/* An internal snapshot that a client has asked for. */
struct disk_snapshot {
  struct disk_snapshot *next;
  const struct snapshot *snapshot;
  struct view view;
  char description[128];
};

struct disk {
  struct disk_options options;
  char description[128];
  const char *why_readonly;     /* under lock, once clients may come */

  struct grace *grace;
  struct map *map;
  struct layers *layers;        /* layer 0 is the top image */
  struct snapshots snapshots;   /* of the top image */
  struct inflated *inflated;
  struct health *health;
  struct bitmaps *bitmaps;      /* NULL: there are none, or they forbid changes */
  char why_bitmaps[BITMAPDIR_WHY];

  struct view frozen;           /* what is served while nobody may write */
  struct view live;
  _Atomic (const struct view *) current;

  pthread_mutex_t lock;
  struct disk_snapshot *served; /* opened so far; list under lock, its elements
                                   don't change */
  unsigned writers;             /* connections that may write; under lock */
  bool told_readonly;           /* why_readonly was reported; under lock */
  bool restless;                /* the last quiesce failed; under lock */
  struct writable w;            /* made once under lock, then constant */
  struct refcounts *refcounts;  /* likewise */
};

/* --- opening --- */

static const char *
find_why_readonly (const struct disk *d, const struct header *h,
                   const struct hostfile *file)
{
  if (d->options.untrusted)
    return "untrusted images are not written";
  if (!hostfile_is_writable (file))
    return "the file is not writable";
  if (h->incompatible & QCOW2_INCOMPAT_CORRUPT)
    return "the image is marked corrupt";
  return NULL;
}

/* Bitmaps that writing would make wrong keep the image read-only. */
static int
open_bitmaps (struct disk *d)
{
  const struct header *h = layers_header (d->layers, 0);
  int r;

  if (d->why_readonly || !h->has_bitmaps)
    return 0;
  r = bitmap_open (layers_file (d->layers, 0), h, layers_overlap (d->layers, 0),
                   &d->bitmaps, d->why_bitmaps);
  if (r == 1)
    d->why_readonly = d->why_bitmaps;
  return r == -1 ? -1 : 0;
}

static void
describe (struct disk *d, const struct header *h)
{
  char cluster[32];

  if (h->cluster_size >= 1 << 20)
    snprintf (cluster, sizeof cluster, "%uM",
              (unsigned) (h->cluster_size >> 20));
  else if (h->cluster_size >= 1024)
    snprintf (cluster, sizeof cluster, "%uK",
              (unsigned) (h->cluster_size >> 10));
  else
    snprintf (cluster, sizeof cluster, "%u", (unsigned) h->cluster_size);
  snprintf (d->description, sizeof d->description,
            "qcow2 v%u, %s clusters%s, %u layer%s%s", h->version, cluster,
            h->crypt_method == QCOW2_CRYPT_LUKS ? ", LUKS"
            : h->crypt_method == QCOW2_CRYPT_AES ? ", AES" : "",
            layers_count (d->layers), layers_count (d->layers) == 1 ? "" : "s",
            d->why_readonly ? ", read-only" : "");
}

/* An image from strangers gets no more memory and time than any sane one needs. */
#define UNTRUSTED_L1_BYTES (4u << 20)
#define UNTRUSTED_REFTABLE_BYTES (1u << 20)
#define UNTRUSTED_SNAPSHOTS 256

static int
check_untrusted (const char *path, const struct header *h)
{
  const char *what = NULL;

  if (h->l1_entries > UNTRUSTED_L1_BYTES / 8)
    what = "an L1 table of more than 4 MiB";
  else if (h->reftable_clusters * h->cluster_size > UNTRUSTED_REFTABLE_BYTES)
    what = "a refcount table of more than 1 MiB";
  else if (h->nb_snapshots > UNTRUSTED_SNAPSHOTS)
    what = "more than 256 snapshots";
  if (what == NULL)
    return 0;
  nbdkit_error ("%s: the image has %s, which is refused of untrusted images",
                path, what);
  errno = EPERM;
  return -1;
}

static int
open_layers (struct disk *d)
{
  const struct disk_options *o = &d->options;
  struct hostfile_options file_options = {
    .try_writable = !o->untrusted, .lock = o->lock,
    .drop_cache = o->drop_cache, .hooks = o->hooks,
  };
  const struct chain_options chain = {
    .backing = o->backing, .backing_path = o->backing_path,
    .backing_format = o->backing_format, .secret = o->secret,
    .file = file_options,
  };
  struct crypt_cipher *cipher;
  struct hostfile *file;
  struct header header;

  if (chain_open_image (o->path, &file_options, &o->secret, &file, &header,
                        &cipher) == -1)
    return -1;
  if ((o->untrusted && check_untrusted (o->path, &header) == -1) ||
      layers_add_qcow2 (d->layers, file, &header, cipher) == -1) {
    crypt_free (cipher);
    header_free (&header);
    hostfile_close (file);
    return -1;
  }
  if (snapshots_read (file, layers_header (d->layers, 0),
                      layers_overlap (d->layers, 0), &d->snapshots) == -1)
    return -1;
  return chain_open (d->layers, &chain);
}

int
disk_open (const struct disk_options *options, struct disk **ret)
{
  struct disk *d = calloc (1, sizeof *d);
  struct header *h;

  if (d == NULL) {
    nbdkit_error ("calloc: %m");
    return -1;
  }
  d->options = *options;
  pthread_mutex_init (&d->lock, NULL);

  d->layers = layers_new ();
  if (d->layers == NULL || open_layers (d) == -1)
    goto error;
  h = layers_header (d->layers, 0);

  d->grace = grace_new ();
  d->map = map_new (options->l2_cache);
  if (d->grace == NULL || d->map == NULL) {
    nbdkit_error ("out of memory");
    goto error;
  }
  d->health = health_new (layers_file (d->layers, 0), h);
  d->inflated = inflated_new (INFLATED_CACHE);
  if (d->health == NULL || d->inflated == NULL)
    goto error;

  d->frozen.size = h->size;
  d->frozen.layers = d->layers;
  d->frozen.inflated = d->inflated;
  d->frozen.health = d->health;
  d->frozen.lower = layers_view_new (d->layers, 0, d->map, h->size,
                                     options->l2_slice);
  if (d->frozen.lower == NULL)
    goto error;
  atomic_init (&d->current, &d->frozen);

  d->why_readonly = find_why_readonly (d, h, layers_file (d->layers, 0));
  if (open_bitmaps (d) == -1)
    goto error;
  describe (d, h);
  d->options.secret = (struct chain_secret) { NULL, 0 };
  *ret = d;
  return 0;

 error:
  disk_close (d);
  return -1;
}

/* --- becoming writable --- */

/* R8: autoclear bits of features that we don't maintain are cleared before the first
 * change. */
static int
clear_autoclear (struct hostfile *file, struct header *h, uint64_t keep)
{
  const struct be64 kept = put64 (h->autoclear & keep);

  if (h->version < 3 || (h->autoclear & ~keep) == 0)
    return 0;
  if (hostfile_write (file, &kept, sizeof kept,
                      offsetof (struct qcow2_header,
                                autoclear_features)) == -1 ||
      hostfile_sync (file) == -1)
    return -1;
  h->autoclear &= keep;
  return 0;
}

static void
free_writable (struct disk *d)
{
  checkpoint_free (d->w.checkpoint);
  inflight_free (d->w.inflight);
  if (d->w.alloc)
    alloc_close (d->w.alloc);
  l2_close (d->w.l2);
  refcount_close (d->refcounts);
  layers_view_free (d->live.lower);
  memset (&d->w, 0, sizeof d->w);
  memset (&d->live, 0, sizeof d->live);
  d->refcounts = NULL;
}

/* The header's cluster is in use in any image.  If its count is 0, then the counts
 * are not to be relied on: what is free is not known.
 */
static int
check_header_count (struct disk *d)
{
  uint64_t value;

  if (refcount_get (d->refcounts, 0, &value) == -1)
    return -1;
  if (value != 0)
    return 0;
  nbdkit_error ("%s: corrupt refcounts: the header's cluster at 0 is in use but "
                "its reference count is 0", d->options.path);
  errno = EUCLEAN;
  return -1;
}

/* An image that was not closed properly gets right refcounts before anything relies on
 * them.  What can't be repaired stays as it is, and is served read-only for as long as
 * we serve it (R9). */
static int
repair_dirty (struct disk *d, struct hostfile *file, struct header *h,
              struct overlap *overlap)
{
  if (!(h->incompatible & QCOW2_INCOMPAT_DIRTY))
    return 0;
  if (repair_refcounts (file, h, &d->snapshots, overlap) == 0 &&
      health_end_changes (d->health) == 0)
    return 0;
  d->why_readonly = "the image was not closed properly, and could not be repaired";
  d->told_readonly = true;      /* and more than this */
  return -1;
}

/* Called with the lock held. */
static int
become_writable (struct disk *d)
{
  struct hostfile *file = layers_file (d->layers, 0);
  struct header *h = layers_header (d->layers, 0);
  struct overlap *overlap = layers_overlap (d->layers, 0);
  struct writable *w = &d->w;

  if (d->options.lock && hostfile_lock (file, HOSTFILE_WRITER) == -1)
    return -1;
  if (repair_dirty (d, file, h, overlap) == -1) {
    if (d->options.lock)
      hostfile_lock (file, HOSTFILE_READER);
    return -1;
  }

  w->file = file;
  w->payload = layers_payload (d->layers, 0);
  w->header = h;
  w->discard = d->options.discard;
  w->detect_zeroes = d->options.detect_zeroes;

  d->refcounts = refcount_open (file, h, overlap);
  if (d->refcounts == NULL || check_header_count (d) == -1)
    goto error;
  w->l2 = l2_open (file, h, overlap, d->health, d->map, d->options.l2_slice);
  if (w->l2 == NULL)
    goto error;
  w->alloc = alloc_open (file, h->cluster_bits, d->refcounts, overlap,
                         d->grace, d->options.discard);
  if (w->alloc == NULL)
    goto error;
  l2_set_alloc (w->l2, w->alloc);
  w->inflight = inflight_new ();
  if (w->inflight == NULL)
    goto error;
  w->checkpoint = checkpoint_new (file, w->l2, w->alloc, d->refcounts, overlap,
                                  d->health, h->cluster_bits,
                                  max64 (d->options.l2_cache / 2, MIN_DIRTY));
  if (w->checkpoint == NULL)
    goto error;
  if (d->bitmaps &&
      bitmap_start (d->bitmaps, d->refcounts, w->alloc, w->checkpoint,
                    d->health) == -1)
    goto error;
  w->bitmaps = d->bitmaps;

  d->live = d->frozen;
  d->live.w = w;
  d->live.lower = layers_view_new (d->layers, 1, d->map, h->size,
                                   d->options.l2_slice);
  if (d->live.lower == NULL)
    goto error;
  if (clear_autoclear (file, h,
                       d->bitmaps ? QCOW2_AUTOCLEAR_BITMAPS : 0) == -1)
    goto error;

  health_set_writable (d->health);
  atomic_store (&d->current, &d->live);
  return 0;

 error:
  /* As QEMU does: refcount structures that are no good mark the image. */
  if (errno == EUCLEAN) {
    health_set_writable (d->health);
    health_corrupt (d->health, "refcounts can't be used");
  }
  free_writable (d);
  if (d->options.lock)
    hostfile_lock (file, HOSTFILE_READER);
  return -1;
}

/* Called with the lock held, when no writer is left.  Readers may still have
 * requests in flight that hold back what was freed, for a moment. */
static int
quiesce (struct disk *d)
{
  const struct timespec moment = { .tv_nsec = 1000000 };
  int i, r;

  if (health_check (d->health) == -1)
    return -1;                  /* its cause was reported */
  /* If that fails, they are tried again later; the disk comes to rest anyway. */
  r = bitmap_store (d->bitmaps);
  for (i = 0; i < 5000; i++) {
    if (checkpoint_quiesce (d->w.checkpoint) == -1)
      return -1;
    if (alloc_quarantined (d->w.alloc) == 0)
      return health_end_changes (d->health) == -1 ? -1 : r;
    nanosleep (&moment, NULL);
  }
  return r;
}

int
disk_connect (struct disk *d, bool *writable)
{
  LOCK_FOR_BLOCK (&d->lock);

  if (*writable && d->why_readonly) {
    if (!d->told_readonly)
      nbdkit_error ("%s: served read-only: %s", d->options.path,
                    d->why_readonly);
    d->told_readonly = true;
    *writable = false;
  }
  if (!*writable)
    return 0;
  if (d->w.file == NULL && become_writable (d) == -1) {
    if (d->why_readonly == NULL)
      return -1;
    *writable = false;
    return 0;
  }
  d->writers++;
  return 0;
}

int
disk_disconnect (struct disk *d, bool writable)
{
  int r;
  LOCK_FOR_BLOCK (&d->lock);

  if (!writable || --d->writers > 0)
    return 0;
  r = quiesce (d);
  d->restless = r == -1;
  return r;
}

static void
free_snapshots (struct disk *d)
{
  struct disk_snapshot *s, *next;

  for (s = d->served; s; s = next) {
    next = s->next;
    layers_view_free (s->view.lower);
    free (s);
  }
  snapshots_free (&d->snapshots);
}

int
disk_close (struct disk *d)
{
  int r = 0;

  if (d == NULL)
    return 0;
  /* Perhaps there is space on the host now (R9). */
  if (d->writers > 0 || d->restless)
    r = quiesce (d);
  free_writable (d);
  bitmap_close (d->bitmaps);
  free_snapshots (d);
  layers_view_free (d->frozen.lower);
  health_free (d->health);
  inflated_free (d->inflated);
  if (d->map)
    map_free (d->map);
  if (d->grace)
    grace_free (d->grace);
  layers_free (d->layers);
  pthread_mutex_destroy (&d->lock);
  free (d);
  return r;
}

/* --- what it is --- */

uint64_t
disk_size (const struct disk *d)
{
  return d->frozen.size;
}

uint64_t
disk_cluster_size (const struct disk *d)
{
  return layers_header (d->layers, 0)->cluster_size;
}

const char *
disk_description (const struct disk *d)
{
  return d->description;
}

const char *
disk_why_readonly (const struct disk *d)
{
  return d->why_readonly;
}

bool
disk_can_inflate (const char *type)
{
  unsigned t;

  for (t = QCOW2_COMPRESSION_DEFLATE; t <= QCOW2_COMPRESSION_ZSTD; t++)
    if (strcmp (type, compress_name (t)) == 0)
      return compress_supported (t);
  return false;
}

void
disk_get_stats (struct disk *d, struct disk_stats *stats)
{
  LOCK_FOR_BLOCK (&d->lock);

  memset (stats, 0, sizeof *stats);
  map_get_stats (d->map, &stats->map);
  if (d->w.file) {
    alloc_get_stats (d->w.alloc, &stats->alloc);
    checkpoint_get_stats (d->w.checkpoint, &stats->checkpoint);
  }
}

/* --- internal snapshots --- */

/* "snapshot of 2026-11-21 08:30:00 UTC, 64 MiB" */
static void
describe_snapshot (const struct snapshot *s, char *text, size_t size)
{
  const time_t date = s->date_sec;
  char when[32];
  struct tm tm;

  gmtime_r (&date, &tm);
  strftime (when, sizeof when, "%Y-%m-%d %H:%M:%S", &tm);
  snprintf (text, size, "snapshot of %s UTC, %" PRIu64 " bytes%s", when,
            s->disk_size, s->vm_state_size ? ", with VM state" : "");
}

unsigned
disk_nr_snapshots (const struct disk *d)
{
  return d->snapshots.n;
}

const char *
disk_snapshot_name (const struct disk *d, unsigned i, char *text, size_t size)
{
  describe_snapshot (&d->snapshots.list[i], text, size);
  return snapshots_unique_name (&d->snapshots, i);
}

/* Called with the lock held. */
static struct disk_snapshot *
serve_snapshot (struct disk *d, const struct snapshot *s)
{
  const struct header *h = layers_header (d->layers, 0);
  const char *path = hostfile_path (layers_file (d->layers, 0));
  const uint64_t covered =
    (uint64_t) s->l1_entries << (h->cluster_bits + h->l2_bits);
  struct disk_snapshot *ds;

  if (s->disk_size > covered) {
    nbdkit_error ("%s: snapshot \"%s\" can't be served: its L1 table at offset %"
                  PRIu64 " is too short for its size", path, s->name,
                  s->l1_offset);
    errno = EINVAL;
    return NULL;
  }
  ds = calloc (1, sizeof *ds);
  if (ds == NULL) {
    nbdkit_error ("calloc: %m");
    return NULL;
  }
  ds->snapshot = s;
  ds->view = d->frozen;
  ds->view.size = s->disk_size;
  ds->view.lower = layers_view_new_snapshot (d->layers, d->map, s->l1_offset,
                                             s->disk_size,
                                             d->options.l2_slice);
  if (ds->view.lower == NULL) {
    free (ds);
    return NULL;
  }
  describe_snapshot (s, ds->description, sizeof ds->description);
  ds->next = d->served;
  d->served = ds;
  return ds;
}

struct disk_snapshot *
disk_open_snapshot (struct disk *d, const char *name)
{
  const struct snapshot *s = snapshots_find (&d->snapshots, name);
  char text[PRINTABLE_SIZE (64)];
  struct disk_snapshot *ds;
  LOCK_FOR_BLOCK (&d->lock);

  if (s == NULL) {
    nbdkit_error ("%s: there is no snapshot \"%s\"",
                  hostfile_path (layers_file (d->layers, 0)),
                  printable (name, strlen (name), text, sizeof text));
    errno = ENOENT;
    return NULL;
  }
  for (ds = d->served; ds; ds = ds->next)
    if (ds->snapshot == s)
      return ds;
  return serve_snapshot (d, s);
}

uint64_t
disk_snapshot_size (const struct disk_snapshot *ds)
{
  return ds->view.size;
}

const char *
disk_snapshot_description (const struct disk_snapshot *ds)
{
  return ds->description;
}

/* A snapshot's clusters keep their references while it exists.  The pin is for the
 * backing chain's sake no more than for theirs: it costs nothing, and requests
 * may rely on having one. */
int
disk_snapshot_read (struct disk *d, struct disk_snapshot *ds, void *buf,
                    uint64_t count, uint64_t offset)
{
  const struct grace_pin pin = grace_enter (d->grace);
  const int r = request_read (&ds->view, buf, count, offset);

  grace_leave (d->grace, pin);
  return r;
}

int
disk_snapshot_extents (struct disk *d, struct disk_snapshot *ds,
                       uint64_t count, uint64_t offset, bool one,
                       extent_fn emit, void *opaque)
{
  const struct grace_pin pin = grace_enter (d->grace);
  const int r = request_extents (&ds->view, count, offset, one, emit, opaque);

  grace_leave (d->grace, pin);
  return r;
}

int
disk_snapshot_cache (struct disk *d, struct disk_snapshot *ds, uint64_t count,
                     uint64_t offset)
{
  const struct grace_pin pin = grace_enter (d->grace);
  const int r = request_cache (&ds->view, count, offset);

  grace_leave (d->grace, pin);
  return r;
}

/* --- requests --- */

/* The pin comes first: whatever view is loaded under it stays good. */
static const struct view *
begin (struct disk *d, struct grace_pin *pin)
{
  *pin = grace_enter (d->grace);
  return atomic_load (&d->current);
}

int
disk_read (struct disk *d, void *buf, uint64_t count, uint64_t offset)
{
  struct grace_pin pin;
  const struct view *v = begin (d, &pin);
  int r = request_read (v, buf, count, offset);

  grace_leave (d->grace, pin);
  return r;
}

/* After a change, without the pin: a checkpoint if the client wants it durable,
 * or if much is waiting. */
static int
settle_change (const struct view *v, int r, bool settle, bool fua)
{
  int err = errno;

  if (r == 0 && fua && settle)
    return checkpoint_flush (v->w->checkpoint);
  if (settle)
    checkpoint_relieve (v->w->checkpoint);
  errno = err;
  return r;
}

int
disk_write (struct disk *d, const void *buf, uint64_t count, uint64_t offset,
            bool fua)
{
  struct grace_pin pin;
  const struct view *v = begin (d, &pin);
  bool settle = false;
  int r = request_write (v, buf, count, offset, fua, &settle);

  grace_leave (d->grace, pin);
  return settle_change (v, r, settle, fua);
}

int
disk_trim (struct disk *d, uint64_t count, uint64_t offset, bool fua)
{
  struct grace_pin pin;
  const struct view *v = begin (d, &pin);
  bool settle = false;
  int r = request_trim (v, count, offset, &settle);

  grace_leave (d->grace, pin);
  return settle_change (v, r, settle || fua, fua);
}

int
disk_zero (struct disk *d, uint64_t count, uint64_t offset, bool may_trim,
           bool fast, bool fua)
{
  struct grace_pin pin;
  const struct view *v = begin (d, &pin);
  bool settle = false;
  int r = request_zero (v, count, offset, may_trim, fast, &settle);

  grace_leave (d->grace, pin);
  return settle_change (v, r, settle || fua, fua);
}

int
disk_flush (struct disk *d)
{
  const struct view *v = atomic_load (&d->current);

  return v->w ? checkpoint_flush (v->w->checkpoint) : 0;
}

int
disk_extents (struct disk *d, uint64_t count, uint64_t offset, bool one,
              extent_fn emit, void *opaque)
{
  struct grace_pin pin;
  const struct view *v = begin (d, &pin);
  int r = request_extents (v, count, offset, one, emit, opaque);

  grace_leave (d->grace, pin);
  return r;
}

int
disk_cache (struct disk *d, uint64_t count, uint64_t offset)
{
  struct grace_pin pin;
  const struct view *v = begin (d, &pin);
  int r = request_cache (v, count, offset);

  grace_leave (d->grace, pin);
  return r;
}
