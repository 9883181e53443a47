/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What does this compressed cluster contain?
 *
 * If a client reads 4K at a time, the same cluster must not be decompressed again for
 * each 4K.  So decompressed clusters are kept, in a table and in a list in order of use,
 * within a limit.
 *
 * If there is no entry for a cluster, its first reader, the leader, adds one at once, in
 * the state LOADING.  The leader then reads and decompresses with no lock held (R10).
 * Other readers of the same cluster wait for it; readers of other clusters do not.
 *
 *     (none) --> LOADING --> READY     in the table until evicted or forgotten
 *                   |
 *                   +------> FAILED    not in the table; waiting threads get
 *                                      the errno, later ones try again
 *
 * A leader that wants a whole cluster decompresses into its own buffer, and nothing is
 * kept: a client that reads whole clusters does not come back for a part.  If other
 * readers have begun to wait in the meantime, they get a copy, and the copy is kept.
 *
 * When the cache is full, a reader of the first half of a cluster that was not wanted
 * lately decompresses only as far as it needs, for itself, and nothing is kept.  Random
 * reads of more than the cache can hold would seldom find a kept cluster again.  `seen'
 * records these clusters: the next time they are loaded.  (This does not apply to the
 * very beginning of a cluster, because reads in order start there.)
 *
 * An entry that is evicted for a new one gives its buffer to it.
 *
 * A cluster can be loaded ahead of its reader.  Then its entry is like that of a reader
 * of a part, and the cluster is kept; but if it fails, threads that waited for it try
 * themselves.  When a reader of the whole cluster has got it, it leaves the table, and
 * its buffer is kept for the next one.  (Else reading in order would go through all of
 * the memory of the cache, and evict everything.)
 *
 * An entry has one reference from the table and one from each reader.  Readers copy from
 * it with no lock held.  It is freed with its last reference, which may be after it has
 * left the table.  A reader holds one entry at a time, so at most one cluster for each
 * reader cannot be evicted.
 *
 * The table is hashed by the layer and the part of the file (of REGION bytes) where the
 * compressed bytes begin, so that cluster_cache_forget finds the entries of a range of
 * the file without looking at all of them.
 *
 * Locks: `lock' guards all fields for which the comments below say so.  It is never held
 * during I/O, decompression or copying.  Nothing that takes another lock is called while
 * it is held.
 */

#include <config.h>

#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "util/bytes.h"
#include "util/cleanup.h"
#include "util/report.h"
#include "format/compress.h"
#include "image/decompress.h"
#include "image/clustercache.h"

#define REGION_BITS 12
#define MIN_BUCKETS 64
#define MAX_BUCKETS 65536
/* Buffers that are kept, and the part of the limit that they may use. */
#define MAX_SPARES 32
#define SPARES_PART 8


enum state { LOADING, READY, FAILED };

struct entry {
  /* Constant once the entry is in the table. */
  unsigned layer;
  uint64_t descriptor;
  uint64_t host, bytes;         /* of the compressed bytes */
  uint64_t size;                /* of the cluster, in bytes */

  /* Written by the leader before `state' changes, under the lock; constant after
   * that, so that readers with a reference need no lock. */
  char *data;
  int err;                      /* the errno if FAILED */

  /* Guarded by the lock of the cache. */
  enum state state;
  bool listed;                  /* in the table and in the list */
  bool ahead;                   /* loaded ahead, and not used yet */
  bool passing;                 /* loaded ahead, and only used once */
  unsigned refs;
  unsigned waiting;             /* number of readers that wait for `loaded' */
  uint64_t held;                /* bytes that are counted for it */
  struct entry *next;           /* in the bucket; or in a list of entries to free */
  struct entry *newer, *older;  /* in order of use */
  pthread_cond_t loaded;        /* signalled when the state is no longer LOADING */
};

struct cluster_cache {
  uint64_t limit;               /* constant */
  struct compress_pool *pool;   /* has its own lock */

  /* How many entries are in the table.  Written under the lock; cluster_cache_forget
   * explains why it may read this without the lock. */
  atomic_size_t listed;

  pthread_mutex_t lock;
  struct entry **buckets;       /* the heads: guarded by lock */
  size_t nbuckets;              /* a power of 2; constant */
  struct entry *newest, *oldest;        /* guarded by lock */
  struct entry *spares;         /* with buffers for new ones: guarded by lock */
  unsigned nr_spares;           /* guarded by lock */
  uint64_t longest;             /* largest `bytes' of any entry so far: guarded by lock */
  uint64_t *seen;               /* NBUCKETS host offsets, by hash: guarded by lock */
  struct cluster_cache_stats stats;  /* guarded by lock */
};

struct cluster_cache *
cluster_cache_new (uint64_t limit)
{
  struct cluster_cache *c = calloc (1, sizeof *c);

  if (c == NULL)
    goto fail;
  c->limit = limit;
  c->nbuckets = MIN_BUCKETS;
  while (c->nbuckets < MAX_BUCKETS && c->nbuckets < limit >> REGION_BITS)
    c->nbuckets *= 2;
  c->buckets = calloc (c->nbuckets, sizeof *c->buckets);
  c->seen = calloc (c->nbuckets, sizeof *c->seen);
  c->pool = compress_pool_new (NULL);
  if (c->buckets == NULL || c->seen == NULL || c->pool == NULL)
    goto fail;
  pthread_mutex_init (&c->lock, NULL);
  return c;

 fail:
  report_error ("cannot make a cache for compressed clusters: %m");
  if (c) {
    free (c->buckets);
    free (c->seen);
    compress_pool_free (c->pool);
    free (c);
  }
  return NULL;
}

static void
free_entries (struct entry *e)
{
  struct entry *next;

  for (; e; e = next) {
    next = e->next;
    pthread_cond_destroy (&e->loaded);
    free (e->data);
    free (e);
  }
}

/* Returns a buffer of SIZE bytes, one cluster, and frees the DOOMED entries.  It reuses
 * the buffer of an entry that was evicted to make space.  (To free and allocate it again
 * took a tenth of the time of a read.)  NULL: out of memory. */
static char *
take_buffer (struct entry **doomed, uint64_t size)
{
  char *data = NULL;
  struct entry *e;

  for (e = *doomed; e && data == NULL; e = e->next) {
    if (e->size == size) {
      data = e->data;
      e->data = NULL;
    }
  }
  free_entries (*doomed);
  *doomed = NULL;
  return data ? data : malloc (size);
}

/* --- the table and the list; the caller holds the lock --- */

/* WHERE is less than 2^56. */
static uint64_t
hash (unsigned layer, uint64_t where)
{
  uint64_t x = where + ((uint64_t) layer << 44);

  x = (x ^ x >> 31) * UINT64_C (0x9e3779b97f4a7c15);
  return x ^ x >> 32;
}

static struct entry **
bucket_of (struct cluster_cache *c, unsigned layer, uint64_t region)
{
  return &c->buckets[hash (layer, region) & (c->nbuckets - 1)];
}

/* Was this cluster requested recently?  Remembers that it is now. */
static bool
was_seen (struct cluster_cache *c, unsigned layer, uint64_t host)
{
  const uint64_t place = hash (layer, host);
  uint64_t *slot = &c->seen[place & (c->nbuckets - 1)];
  const bool seen = *slot == place;

  *slot = place;
  return seen;
}

static void
enlist (struct cluster_cache *c, struct entry *e)
{
  e->newer = NULL;
  e->older = c->newest;
  if (c->newest)
    c->newest->newer = e;
  else
    c->oldest = e;
  c->newest = e;
}

static void
delist (struct cluster_cache *c, struct entry *e)
{
  if (e->newer)
    e->newer->older = e->older;
  else
    c->newest = e->older;
  if (e->older)
    e->older->newer = e->newer;
  else
    c->oldest = e->newer;
}

static struct entry *
find (struct cluster_cache *c, unsigned layer, uint64_t descriptor, uint64_t host)
{
  struct entry *e;

  for (e = *bucket_of (c, layer, host >> REGION_BITS); e; e = e->next)
    if (e->descriptor == descriptor && e->layer == layer)
      return e;
  return NULL;
}

/* Drops a reference.  If it was the last one, the entry goes to *DOOMED, or becomes a
 * spare. */
static void
drop (struct cluster_cache *c, struct entry *e, struct entry **doomed)
{
  if (--e->refs > 0)
    return;
  if (e->passing && e->data && c->nr_spares < MAX_SPARES &&
      (c->nr_spares + 1) * e->size <= c->limit / SPARES_PART) {
    e->next = c->spares;
    c->spares = e;
    c->nr_spares++;
    return;
  }
  c->stats.bytes -= e->held;
  e->next = *doomed;
  *doomed = e;
}

/* Returns the buffer of a spare, or NULL. */
static char *
take_spare (struct cluster_cache *c, uint64_t size, struct entry **doomed)
{
  struct entry *e = c->spares;
  char *data = NULL;

  if (e == NULL)
    return NULL;
  c->spares = e->next;
  c->nr_spares--;
  c->stats.bytes -= e->held;
  if (e->size == size) {
    data = e->data;
    e->data = NULL;
  }
  e->next = *doomed;
  *doomed = e;
  return data;
}

static void
insert (struct cluster_cache *c, struct entry *e)
{
  struct entry **bucket = bucket_of (c, e->layer, e->host >> REGION_BITS);

  e->next = *bucket;
  *bucket = e;
  enlist (c, e);
  e->listed = true;
  e->refs++;
  c->listed++;
  c->longest = max64 (c->longest, e->bytes);
}

static void
discard (struct cluster_cache *c, struct entry *e, struct entry **doomed)
{
  struct entry **p;

  if (!e->listed)
    return;
  for (p = bucket_of (c, e->layer, e->host >> REGION_BITS); *p != e;
       p = &(*p)->next)
    ;
  *p = e->next;
  delist (c, e);
  e->listed = false;
  c->listed--;
  drop (c, e, doomed);
}

/* The effective limit while there are clusters of SIZE bytes. */
static uint64_t
limit_for (const struct cluster_cache *c, uint64_t size)
{
  return max64 (c->limit, (size + sizeof (struct entry)) * CLUSTER_CACHE_MIN);
}

/* Counts SIZE bytes, one cluster, for E, and evicts the least recently used entries until
 * the limit is kept or all others are in use. */
static void
hold (struct cluster_cache *c, struct entry *e, uint64_t size,
      struct entry **doomed)
{
  const uint64_t limit = limit_for (c, size);
  struct entry *old, *newer;

  e->held += size;
  c->stats.bytes += size;
  while (c->spares && c->stats.bytes > limit)
    take_spare (c, 0, doomed);
  for (old = c->oldest; old && c->stats.bytes > limit; old = newer) {
    newer = old->newer;
    if (old->refs == 1) {       /* only the table uses it */
      old->passing = false;     /* no spare */
      discard (c, old, doomed);
      c->stats.evictions++;
    }
  }
  c->stats.peak_bytes = max64 (c->stats.peak_bytes, c->stats.bytes);
}

void
cluster_cache_free (struct cluster_cache *c)
{
  struct entry *doomed = NULL;

  if (c == NULL)
    return;
  while (c->oldest) {
    assert (c->oldest->refs == 1);
    discard (c, c->oldest, &doomed);
  }
  while (c->spares)
    take_spare (c, 0, &doomed);
  free_entries (doomed);
  assert (c->stats.bytes == 0);
  compress_pool_free (c->pool);
  pthread_mutex_destroy (&c->lock);
  free (c->buckets);
  free (c->seen);
  free (c);
}

void
cluster_cache_get_stats (struct cluster_cache *c, struct cluster_cache_stats *stats)
{
  LOCK_FOR_BLOCK (&c->lock);

  *stats = c->stats;
}

/* --- reading --- */

/* One read. */
struct want {
  struct compressed_cluster from;
  unsigned layer;
  uint64_t descriptor;
  bool whole;                   /* the whole cluster is wanted */
  uint64_t end;                 /* end of the wanted range in the cluster */
};

/* Is it better to decompress only as far as needed, and to keep nothing?  The caller
 * holds the lock. */
static bool
is_passing (struct cluster_cache *c, const struct want *w, uint64_t within)
{
  const uint64_t cluster_size = w->from.header->cluster_size;

  return w->from.header->compression_type == QCOW2_COMPRESSION_DEFLATE &&
    within > 0 && w->end <= cluster_size / 2 &&
    c->stats.bytes + cluster_size + sizeof (struct entry) > limit_for (c, cluster_size) &&
    !was_seen (c, w->layer, w->from.host);
}

/* Creates an entry for W, LOADING, and adds it to the table.  The caller owns a
 * reference.  The caller holds the lock.  NULL: out of memory. */
static struct entry *
new_entry (struct cluster_cache *c, const struct want *w, struct entry **doomed)
{
  struct entry *e = calloc (1, sizeof *e);

  if (e == NULL)
    return NULL;
  e->layer = w->layer;
  e->descriptor = w->descriptor;
  e->host = w->from.host;
  e->bytes = w->from.bytes;
  e->size = w->from.header->cluster_size;
  e->state = LOADING;
  e->refs = 1;
  e->held = sizeof *e;
  pthread_cond_init (&e->loaded, NULL);

  insert (c, e);
  c->stats.inflations++;
  c->stats.bytes += sizeof *e;
  if (!w->whole) {
    e->data = take_spare (c, e->size, doomed);
    hold (c, e, e->size, doomed);
  }
  return e;
}

/* Loads E; this is the work of the leader.  If W wants the whole cluster, it is in BUF
 * afterwards; otherwise E has its own buffer, or NULL.  Returns 0 or an errno
 * (reported). */
static int
lead (struct cluster_cache *c, const struct want *w, struct entry *e, char *buf)
{
  struct entry *doomed = NULL;
  bool copy = false;
  int err, others_err;

  /* No other thread uses `data' before `state' changes. */
  if (w->whole)
    err = decompress_whole (&w->from, c->pool, buf);
  else
    err = e->data ? decompress_whole (&w->from, c->pool, e->data)
      : decompress_no_memory (&w->from);

  others_err = err;
  if (w->whole && err == 0) {
    {
      LOCK_FOR_BLOCK (&c->lock);

      copy = e->waiting > 0;
      if (copy)
        hold (c, e, w->from.header->cluster_size, &doomed);
      else {
        e->state = READY;       /* no other reader waits for it */
        discard (c, e, &doomed);
      }
    }
    if (!copy)
      goto out;
    /* Copy it, because BUF belongs to the client. */
    e->data = take_buffer (&doomed, e->size);
    if (e->data)
      memcpy (e->data, buf, e->size);
    else
      others_err = decompress_no_memory (&w->from);
  }

  {
    LOCK_FOR_BLOCK (&c->lock);

    e->err = others_err;
    e->state = others_err ? FAILED : READY;
    if (others_err)
      discard (c, e, &doomed);
    pthread_cond_broadcast (&e->loaded);
  }

 out:
  free_entries (doomed);
  return err;
}

/* Takes a reference to the entry for W, and waits while it is LOADING.  If there is none,
 * or loading it ahead has failed, creates one; then the caller is the *LEADER.  The
 * caller holds the lock.  NULL: out of memory. */
static struct entry *
enter (struct cluster_cache *c, const struct want *w, bool *leader,
       struct entry **doomed)
{
  struct entry *e;
  bool ahead;

  while ((e = find (c, w->layer, w->descriptor, w->from.host)) != NULL) {
    *leader = false;
    e->refs++;
    delist (c, e);
    enlist (c, e);
    ahead = e->ahead;
    if (e->state == LOADING) {
      c->stats.waits++;
      e->waiting++;
      while (e->state == LOADING)
        pthread_cond_wait (&e->loaded, &c->lock);
      e->waiting--;
      if (e->state == FAILED && ahead) {
        drop (c, e, doomed);
        continue;
      }
    }
    else
      c->stats.hits++;
    if (e->ahead)
      c->stats.ahead_hits++;
    e->ahead = false;
    return e;
  }
  *leader = true;
  return new_entry (c, w, doomed);
}

int
cluster_cache_read (struct cluster_cache *c, struct storage *file,
                    const struct header *h, unsigned layer, uint64_t descriptor,
                    uint64_t within, uint64_t len, void *buf)
{
  struct entry *e = NULL, *doomed = NULL;
  struct want w = {
    .layer = layer, .descriptor = descriptor,
    .whole = within == 0 && len == h->cluster_size,
    .end = within + len,
  };
  bool leader = false, passing = false;
  int err;

  assert (range_within (within, len, h->cluster_size));

  err = decompress_locate (&w.from, file, h, descriptor);
  if (err) {
    errno = err;
    return -1;
  }

  {
    LOCK_FOR_BLOCK (&c->lock);

    passing = find (c, layer, descriptor, w.from.host) == NULL &&
      is_passing (c, &w, within);
    if (passing)
      c->stats.inflations++;
    else
      e = enter (c, &w, &leader, &doomed);
  }
  if (passing) {
    err = decompress_beginning (&w.from, c->pool, within, w.end, buf);
    if (err == 0)
      return 0;
    if (err > 0) {
      errno = err;
      return -1;
    }
    LOCK_FOR_BLOCK (&c->lock);
    e = enter (c, &w, &leader, &doomed);
  }
  if (e == NULL) {
    errno = decompress_no_memory (&w.from);
    return -1;
  }
  if (leader && !w.whole && e->data == NULL)
    e->data = take_buffer (&doomed, e->size);
  free_entries (doomed);
  doomed = NULL;

  err = leader ? lead (c, &w, e, buf) : e->err;
  if (err == 0 && !(leader && w.whole))
    memcpy (buf, e->data + within, len);

  {
    LOCK_FOR_BLOCK (&c->lock);

    if (e->passing && w.whole)
      discard (c, e, &doomed);
    drop (c, e, &doomed);
  }
  free_entries (doomed);
  if (err) {
    errno = err;
    return -1;
  }
  return 0;
}

void
cluster_cache_ahead (struct cluster_cache *c, struct storage *file,
                     const struct header *h, unsigned layer, uint64_t descriptor)
{
  struct entry *e = NULL, *doomed = NULL;
  struct want w = { .layer = layer, .descriptor = descriptor };

  if (decompress_locate (&w.from, file, h, descriptor) != 0)
    return;
  {
    LOCK_FOR_BLOCK (&c->lock);

    if (find (c, layer, descriptor, w.from.host) == NULL)
      e = new_entry (c, &w, &doomed);
    if (e) {
      e->ahead = e->passing = true;
      c->stats.ahead++;
    }
  }
  if (e) {
    if (e->data == NULL)
      e->data = take_buffer (&doomed, e->size);
    lead (c, &w, e, NULL);
    LOCK_FOR_BLOCK (&c->lock);
    drop (c, e, &doomed);
  }
  free_entries (doomed);
}

bool
cluster_cache_is_late (struct cluster_cache *c, const struct header *h, unsigned layer,
                       uint64_t descriptor)
{
  uint64_t host, bytes;
  const struct entry *e;
  LOCK_FOR_BLOCK (&c->lock);

  if (!compress_descriptor (h, descriptor, &host, &bytes))
    return false;
  e = find (c, layer, descriptor, host);
  return e && e->ahead && e->state == LOADING;
}

/* --- forgetting --- */

static bool
is_in (const struct entry *e, unsigned layer, uint64_t from, uint64_t to)
{
  return e->layer == layer && e->host < to && e->host + e->bytes > from;
}

void
cluster_cache_forget (struct cluster_cache *c, unsigned layer,
                      uint64_t host_from, uint64_t host_to)
{
  struct entry *e, *next, *doomed = NULL;
  uint64_t first, last, region;

  /* Without the lock: threads that added entries of this range have ended their requests
   * before the caller could begin (see clustercache.h), so their counts are visible.
   * Entries of other ranges do not matter. */
  if (host_from >= host_to || c->listed == 0)
    return;

  {
    LOCK_FOR_BLOCK (&c->lock);

    /* An entry that overlaps the range may begin before it. */
    first = (host_from - min64 (host_from, c->longest)) >> REGION_BITS;
    last = (host_to - 1) >> REGION_BITS;

    if (last - first < c->listed) {
      for (region = first; region <= last; region++) {
        for (e = *bucket_of (c, layer, region); e; e = next) {
          next = e->next;
          if (is_in (e, layer, host_from, host_to))
            discard (c, e, &doomed);
        }
      }
    }
    else {
      for (e = c->oldest; e; e = next) {
        next = e->newer;
        if (is_in (e, layer, host_from, host_to))
          discard (c, e, &doomed);
      }
    }
  }
  free_entries (doomed);
}
