/* SPDX-License-Identifier: BSD-3-Clause
 *
 * How is a new image created?
 *
 * newimage.c computes the contents, byte by byte.  This file streams them to the image,
 * from its beginning to its end, in large writes.  Zeros that are not required are
 * skipped, unless all bytes must be written.  So the time is that of writing the bytes,
 * whatever the cluster size.
 *
 * The file has no name until all of it is durable (newfile.c): a crash leaves either no
 * file or the whole image.  An external data file gets its name first, so that no image
 * ever names a data file that does not exist; a crash in between leaves only the data
 * file.
 *
 * Creating an image is often only the first of several steps.  If a later one fails, the
 * user must be able to correct the command and run it again, without an existing image in
 * the way.  So a new image is kept open until the caller decides to keep it or to remove
 * it.  It is removed only if its name still refers to the open file, and no other program
 * has it locked.
 *
 * The backing file is opened to check its format and to get its size; it is not kept
 * open.
 *
 * Locks: none while the image is created, because no other program can know the file;
 * those of a writer while it is removed.
 */

#include <config.h>

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "util/bytes.h"
#include "util/cleanup.h"
#include "util/report.h"
#include "storage/newfile.h"
#include "format/luksmake.h"
#include "image/filename.h"
#include "image/image.h"
#include "offline/create.h"

/* Bytes that are computed and written at a time, which fit into the cache of a
 * processor. */
#define CHUNK (UINT64_C (1) << 20)
/* Whole blocks of this size that are zeros need not be written. */
#define BLOCK 4096
/* After this many bytes, the host is asked to start writing back. */
#define WRITE_BACK (UINT64_C (8) << 20)

struct maker {
  const struct create_options *o;
  struct newimage n;
  struct newfile *image, *data; /* data: the external data file, or NULL */
  uint8_t *chunk;               /* CHUNK bytes */
  void *luks;                   /* LUKSMAKE_BYTES, or NULL */
  uint64_t done, total;         /* in bytes, for the progress callback */
};

/* The new files, which have their names and are open. */
struct created {
  struct newfile *image, *data; /* data: may be NULL */
  bool lock;
};

/* --- the backing file --- */

static int
open_backing (const char *path, const struct create_options *o, uint64_t *size)
{
  struct image_options options = {
    .file = o->file, .secret = o->secret, .rules = o->rules,
  };
  const bool raw = strcmp (o->image.backing_format, "raw") == 0;
  struct image *image;

  options.file.try_writable = false;
  image = raw ? image_open_file (path, &options.file) : image_open (path, &options);
  if (image == NULL)
    return -1;
  *size = raw ? storage_size (image->file) : image->header.size;
  image_close (image);
  return 0;
}

static int
look_below (const struct create_options *o, struct newimage_options *image)
{
  CLEANUP_FREE char *path = NULL;
  const char *told;
  uint64_t size;

  if (image->backing_file == NULL)
    return 0;
  path = filename_of_backing (o->path, image->backing_file, &o->rules, &told);
  if (path == NULL || open_backing (path, o, &size) == -1)
    return -1;
  if (o->size_of_backing)
    image->size = size;
  return 0;
}

/* --- writing --- */

static int
advance (struct maker *m, uint64_t bytes)
{
  m->done += bytes;
  return m->o->progress ? m->o->progress (m->o->opaque, m->done, m->total) : 0;
}

/* Everything up to END was written: asks the host to start writing it back. */
static void
write_back (struct storage *f, uint64_t end)
{
  if (end % WRITE_BACK == 0 && end > 0)
    storage_write_back (f, end - WRITE_BACK, WRITE_BACK);
}

/* Writes the parts of m->chunk that are not zeros.  The file has only holes there. */
static int
write_sparse (struct maker *m, struct storage *f, uint64_t len, uint64_t offset)
{
  uint64_t from = 0, to;

  while (from < len) {
    while (from < len && bytes_are_zero (m->chunk + from, min64 (BLOCK, len - from)))
      from += min64 (BLOCK, len - from);
    to = from;
    while (to < len && !bytes_are_zero (m->chunk + to, min64 (BLOCK, len - to)))
      to += min64 (BLOCK, len - to);
    if (storage_write (f, m->chunk + from, to - from, offset + from) == -1)
      return -1;
    from = to;
  }
  return 0;
}

/* Copies the part of the encryption header that lies in the chunk at OFFSET. */
static void
place_luks (struct maker *m, uint64_t offset, uint64_t len)
{
  const uint64_t start = m->n.luks_offset;
  const uint64_t from = max64 (offset, start);
  const uint64_t to = min64 (offset + len, start + LUKSMAKE_BYTES);

  if (m->luks && from < to)
    memcpy (m->chunk + (from - offset), (uint8_t *) m->luks + (from - start),
            to - from);
}

static int
write_metadata (struct maker *m, bool sparse)
{
  struct storage *const f = newfile_file (m->image);
  const uint64_t end = m->n.metadata_end;
  uint64_t offset, len;

  for (offset = 0; offset < end; offset += len) {
    len = min64 (CHUNK, end - offset);
    newimage_fill (&m->n, offset, m->chunk, len);
    place_luks (m, offset, len);
    if ((sparse ? write_sparse (m, f, len, offset)
         : storage_write (f, m->chunk, len, offset)) == -1)
      return -1;
    write_back (f, offset + len);
    if (advance (m, len) == -1)
      return -1;
  }
  return 0;
}

static int
write_zeros (struct maker *m, struct storage *f, uint64_t offset, uint64_t end)
{
  uint64_t len;

  memset (m->chunk, 0, CHUNK);
  for (; offset < end; offset += len) {
    /* Pieces start at multiples of CHUNK, except for the first one. */
    len = min64 (CHUNK - offset % CHUNK, end - offset);
    if (storage_write (f, m->chunk, len, offset) == -1)
      return -1;
    write_back (f, offset + len);
    if (advance (m, len) == -1)
      return -1;
  }
  return 0;
}

/* Gives F its length, and allocates space.  *WRITTEN: zeros must be written, so that
 * space is allocated. */
static int
prepare (struct maker *m, struct storage *f, uint64_t size, bool *written)
{
  const enum preallocation p = m->n.options.preallocation;

  *written = p == PREALLOCATION_FULL;
  if (storage_truncate (f, size) == -1)
    return -1;
  if (p == PREALLOCATION_FALLOC) {
    if (storage_allocate (f, 0, size) == -1)
      return -1;
    *written = storage_cannot_allocate (f);
  }
  return 0;
}

static int
write_all (struct maker *m)
{
  struct storage *const image = newfile_file (m->image);
  struct storage *const data = m->data ? newfile_file (m->data) : NULL;
  bool image_written, data_written = false;

  /* The L1 table is zeros now and changes in place later.  Allocate its space now,
   * because a full host could not do so later. */
  if (prepare (m, image, m->n.file_size, &image_written) == -1 ||
      storage_allocate (image, m->n.l1_offset, m->n.l1_entries * UINT64_C (8)) == -1 ||
      (data && prepare (m, data, m->n.options.size, &data_written) == -1))
    return -1;
  m->total = (image_written ? m->n.file_size : m->n.metadata_end) +
    (data_written ? m->n.options.size : 0);

  if (write_metadata (m, !image_written) == -1)
    return -1;
  if (image_written &&
      write_zeros (m, image, m->n.metadata_end, m->n.file_size) == -1)
    return -1;
  return data_written ? write_zeros (m, data, 0, m->n.options.size) : 0;
}

/* --- the whole image --- */

static int
make_luks (struct maker *m)
{
  const struct create_options *o = m->o;

  if (!o->encrypt)
    return 0;
  m->luks = malloc (LUKSMAKE_BYTES);
  if (m->luks == NULL) {
    nbdkit_error ("malloc: %m");
    return -1;
  }
  return luksmake (o->path, o->secret.passphrase, o->secret.len, o->iter_ms, m->luks);
}

static int
make (struct maker *m)
{
  const struct create_options *o = m->o;
  struct newimage_options image = o->image;

  image.luks_bytes = o->encrypt ? LUKSMAKE_BYTES : 0;
  if (newfile_check (o->path) == -1 ||
      (image.data_file && newfile_check (o->data_path) == -1) ||
      look_below (o, &image) == -1 ||
      newimage_plan (&image, &m->n) == -1 ||
      make_luks (m) == -1)
    return -1;
  m->chunk = malloc (CHUNK);
  if (m->chunk == NULL) {
    nbdkit_error ("malloc: %m");
    return -1;
  }
  /* Report the first step before the first change. */
  m->total = m->n.file_size;
  if (advance (m, 0) == -1 ||
      newfile_begin (o->path, &o->file, &m->image) == -1 ||
      (image.data_file && newfile_begin (o->data_path, &o->file, &m->data) == -1) ||
      write_all (m) == -1)
    return -1;

  if (m->data && newfile_publish (m->data) == -1)
    return -1;
  if (newfile_publish (m->image) == -1) {
    KEEP_ERRNO_FOR_BLOCK;

    if (m->data)
      newfile_withdraw (m->data);
    return -1;
  }
  return 0;
}

int
create_image (const struct create_options *options, struct created **created)
{
  struct maker m = { .o = options };
  struct created *c = calloc (1, sizeof *c);
  int r = -1;

  if (c == NULL)
    nbdkit_error ("calloc: %m");
  else
    r = make (&m);
  KEEP_ERRNO_FOR_BLOCK;
  free (m.chunk);
  free (m.luks);                /* it contains no secrets */
  if (r == 0) {
    nbdkit_debug ("%s: created, %" PRIu64 " bytes, a disk of %" PRIu64,
                  options->path, m.n.file_size, m.n.options.size);
    *c = (struct created) { m.image, m.data, options->file.lock };
    *created = c;
  }
  else {
    newfile_end (m.image);
    newfile_end (m.data);
    free (c);
  }
  return r;
}

void
created_keep (struct created *c)
{
  if (c == NULL)
    return;
  newfile_end (c->image);
  newfile_end (c->data);
  free (c);
}

void
created_withdraw (struct created *c)
{
  struct storage *image;

  if (c == NULL)
    return;
  image = newfile_file (c->image);
  if (c->lock && storage_lock (image, STORAGE_WRITER) == -1)
    nbdkit_error ("%s: the new image was not removed", storage_path (image));
  else {
    /* The image first: no image ever names a data file that does not exist. */
    newfile_withdraw (c->image);
    if (c->data)
      newfile_withdraw (c->data);
    nbdkit_debug ("%s: the new image was removed", storage_path (image));
  }
  created_keep (c);
}
