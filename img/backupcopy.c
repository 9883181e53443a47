/* SPDX-License-Identifier: BSD-3-Clause
 *
 * How does the disk of an instant get into the file of a generation?
 *
 * The file has a name from the beginning, that of a part (repository.c), so that a copy
 * that is cut off can go on.  The copy runs from the beginning of the disk to its end,
 * and tells from time to time up to where all of it is durable.  What is behind that is
 * copied again: the instant has not changed, so that is either there, or not yet.  But a
 * raw file gets its end anew: after a power cut, not every filesystem has zeros there.
 *
 * Locks: none.
 */

#include <config.h>

#include <errno.h>
#include <inttypes.h>

#include "util/bytes.h"
#include "util/report.h"
#include "copy/copy.h"
#include "copy/difference.h"
#include "img/backupcopy.h"
#include "img/progress.h"
#include "img/rawsize.h"

/* Bytes of zeros that are no data. */
#define BLOCK 4096
/* Of new images, in bytes. */
#define CLUSTER 65536

/* --- the file --- */

static int
make_raw (const struct imagefile *f, uint64_t size)
{
  const struct storage_options options = { .cache = f->options.cache };
  struct newfile *n;
  int r;

  if (newfile_begin (f->options.path, &options, &n) == -1)
    return -1;
  r = rawsize_set (newfile_file (n), size, PREALLOCATION_OFF) == -1 ? -1
    : newfile_publish (n);
  newfile_end (n);
  return r;
}

static int
make_qcow2 (struct imagefile *f, struct newoptions *o, uint64_t size)
{
  struct created *created;

  imagefile_will_write (f);
  o->has_size = true;
  o->create.image.size = size;
  if (newoptions_complete (o, f) == -1)
    return -1;
  o->create.replace = false;
  if (create_image (&o->create, &created) == -1)
    return -1;
  created_keep (created);
  return 0;
}

int
backupcopy_open (const struct backupcopy *c, struct copytarget *t, struct imagefile *f,
                 struct newoptions *o, uint64_t size)
{
  *t = (struct copytarget) { .file = f };
  progress_within (0, 0);       /* it takes no time that would matter */
  if ((c->begin == 0 &&
       (f->raw ? make_raw (f, size) : make_qcow2 (f, o, size)) == -1) ||
      copytarget_old (t, f, o->create.image.backing_file == NULL, size) == -1)
    return -1;
  if (c->begin == 0 || !f->raw)
    return 0;
  return storage_truncate (t->raw, c->begin) == -1 ? -1
    : rawsize_set (t->raw, size, PREALLOCATION_OFF);
}

/* --- what is in it --- */

struct pair { const struct copy_end *now, *stored; };

static int
zero_chunk (void *opaque, void *scratch, uint64_t at, uint64_t end, uint64_t *copied)
{
  const struct pair *p = opaque;
  struct storage_holes known[2];
  struct extent x, y;
  int r = 0;

  (void) scratch, (void) copied;
  storage_holes_begin (&known[0], false);
  storage_holes_begin (&known[1], false);
  while (r == 0 && at < end) {
    x.len = y.len = end - at;
    if (p->now->ops->extent (p->now, at, &x, &known[0]) == -1)
      return -1;
    y.len = x.len = min64 (x.len, end - at);
    y.type = EXTENT_ZERO;
    if (x.type != EXTENT_DATA)
      r = p->stored->ops->extent (p->stored, at, &y, &known[1]);
    y.len = min64 (x.len, y.len);
    if (r == 0 && y.type == EXTENT_DATA)
      r = p->stored->ops->zero (p->stored, y.len, at);
    at += y.len;
  }
  return r;
}

/* A disk that becomes smaller, and larger again, loses data, and no bitmap records that:
 * what is zeros now must not be data below the new file. */
static int
zero_what_has_gone (const struct backupcopy *c, const struct copy_end *stored)
{
  struct pair p = { c->all, stored };
  const struct chunks_watch watch = PROGRESS_WATCH;
  const struct chunks_job job = {
    .words = { .path = c->file }, .size = p.now->size, .remote = p.now->remote,
    .opaque = &p, .work = zero_chunk,
  };
  uint64_t copied;

  return chunks_run (&job, &watch, &copied);
}

int
backupcopy_run (const struct backupcopy *c, struct copytarget *t, uint64_t *bytes)
{
  const struct chunks_words words = { .path = c->file };
  const struct chunks_watch watch = PROGRESS_WATCH;
  const bool full = c->changes == NULL;
  const struct copy copy = {
    .from = full ? *c->all : *c->changes, .to = t->end, .zeros = t->zeros,
    .contained = !full, .unit = full && c->compress ? CLUSTER : 0,
    .sparse = full && !c->compress ? BLOCK : CLUSTER, .begin = c->begin, .rate = c->rate,
    .settled = c->settled, .opaque = c->opaque,
  };

  /* (What is said to be settled changes no more.) */
  return (!full && zero_what_has_gone (c, &t->end) == -1) ||
    copy_all (&copy, &words, true, &watch, bytes) == -1 ? -1 : 0;
}

int
backupcopy_verify (const struct backupcopy *c, const struct copytarget *t, uint64_t size)
{
  const struct chunks_words words = { .path = c->file };
  const struct chunks_watch watch = PROGRESS_WATCH;
  struct copy_end same = t->end;        /* (a device can be larger) */
  struct difference d;

  same.size = size;
  if (difference_find (c->all, &same, false, &words, &watch, &d) == -1)
    return -1;
  if (d.at == UINT64_MAX)
    return 0;
  return report_refusal (EBADMSG, "%s: at offset %" PRIu64 ", what was stored is not what the "
                         "disk shows%s", c->file, d.at, c->changes == NULL ? ""
                         : ": the bitmap does not know all changes, make a backup with "
                         "--full");
}
