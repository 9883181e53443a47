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
 * A new file that may replace another one (newfile.c) has no name until the caller says
 * that it is complete, because he may write the disk first.
 *
 * On a block device or an NBD export, the first sector takes the place of the name
 * (newdevice.c): it is written last.
 *
 * All files of the backing chain are opened, for a reader, to check their formats and to
 * get the size of the first one; they are not kept open.  They must be other files than
 * the device, or than the file that is replaced.
 *
 * Locks: none while the image is created, because no other program can know the file;
 * those of a writer while it is removed, and on a file that is replaced, all the time.
 */

#include <config.h>

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "util/bytes.h"
#include "util/cleanup.h"
#include "util/memory.h"
#include "util/report.h"
#include "storage/newfile.h"
#include "format/luksmake.h"
#include "image/filename.h"
#include "image/image.h"
#include "mapping/chain.h"
#include "change/create.h"
#include "change/newdevice.h"

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
  struct storage *device;       /* in place of image, or NULL */
  bool touched;                 /* the device may have been changed */
  uint8_t first[NEWDEVICE_FIRST];       /* what is written to it last */
  uint8_t *chunk;               /* CHUNK bytes */
  void *luks;                   /* LUKSMAKE_BYTES, or NULL */
  uint64_t done, total;         /* in bytes, for the progress callback */
};

/* The new image.  Files have their names and are open.  A device is not, because an NBD
 * server may admit one client only. */
struct created {
  struct newfile *image, *data; /* image: NULL on a device; data: may be NULL */
  const struct create_options *options;
  uint64_t disk_size;           /* bytes */
  uint64_t end, most;           /* size of the image now, and at most; UINT64_MAX:
                                   unknown */
  uint64_t device_size;         /* bytes */
};

/* --- the backing file --- */

static struct image *
open_backing (const char *path, bool raw, const struct image_options *options)
{
  return raw ? image_open_file (path, &options->file) : image_open (path, options);
}

/* What is written or replaced may be the same file as one of the chain, which would then
 * be lost. */
static int
check_not_target (const struct maker *m, const struct image *image)
{
  const struct storage *const d = m->device ? m->device : newfile_old (m->image);

  if (d == NULL ||
      (!storage_same (image->file, d) &&
       !(image->data && storage_same (image->data, d))))
    return 0;
  return report_refusal (EDEADLK, "%s: cannot create: it is in the backing chain of the "
                         "new image", storage_path (d));
}

/* Looks at one file of the chain, the DEPTH-th.  *SIZE: of the first one.  *NEXT: what is
 * below it, to be freed; NULL: nothing, or nothing that matters. */
static int
look_at (const struct maker *m, const char *path, unsigned depth,
         struct chain_options *chain, bool *raw, uint64_t *size, char **next)
{
  struct image *image = open_backing (path, *raw, &chain->image);
  const char *format;
  int r = 0;

  if (image == NULL)
    return -1;
  if (depth == 0)
    *size = *raw ? storage_size (image->file) : image->header.size;
  if (check_not_target (m, image) == -1 ||
      (!*raw && (image_open_data (image, &chain->image) == -1 ||
                 check_not_target (m, image) == -1)) ||
      chain_below (path, *raw ? NULL : &image->header, chain, next, &format) == -1)
    r = -1;
  else if (*next)
    *raw = strcmp (format, "raw") == 0;
  KEEP_ERRNO_FOR_BLOCK;
  image_close (image);
  return r;
}

static int
look_below (const struct maker *m, struct newimage_options *image)
{
  const struct create_options *const o = m->o;
  struct chain_options chain = {
    .image = { .file = o->file, .secret.unneeded = true, .rules = o->rules },
  };
  char *path, *next;
  const char *told;
  uint64_t size = 0;
  bool raw;
  int r = 0;

  if (image->backing_file == NULL)
    return 0;
  chain_go_below_top (&chain);
  chain.image.file.try_writable = false;
  raw = strcmp (image->backing_format, "raw") == 0;
  path = filename_of_backing (o->path, image->backing_file, &o->rules, &told);
  if (path == NULL)
    return -1;
  /* (If the chain has a loop, it is refused when it is served.) */
  for (unsigned depth = 0; r == 0 && path && depth < CHAIN_MAX_LAYERS; depth++) {
    next = NULL;
    r = look_at (m, path, depth, &chain, &raw, &size, &next);
    free (path);
    path = next;
  }
  KEEP_ERRNO_FOR_BLOCK;
  free (path);
  if (r == 0 && o->size_of_backing)
    image->size = size;
  return r;
}

/* The backing file need not exist.  But if it does, what it needs is not replaced. */
static int
look_below_unsafe (const struct maker *m, struct newimage_options *image)
{
  bool before;
  int r;

  if (m->device == NULL && newfile_old (m->image) == NULL)
    return 0;
  before = report_silence (true);
  r = look_below (m, image);
  report_silence (before);
  return r == -1 && errno == EDEADLK ? look_below (m, image) : 0;
}

/* --- writing --- */

static int
advance (struct maker *m, uint64_t bytes)
{
  m->done += bytes;
  return m->o->progress ? m->o->progress (m->o->opaque, m->done, m->total) : 0;
}

static struct storage *
image_file (const struct maker *m)
{
  return m->device ? m->device : newfile_file (m->image);
}

/* Does everything that was not written read as zeros? */
static bool
is_zeros (const struct maker *m)
{
  return m->device == NULL || !m->o->overwrite;
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

/* The first sector of a device is written later. */
static void
keep_first (struct maker *m)
{
  memcpy (m->first, m->chunk, sizeof m->first);
  memset (m->chunk, 0, sizeof m->first);
}

static int
write_metadata (struct maker *m, bool sparse)
{
  struct storage *const f = image_file (m);
  const uint64_t end = m->n.metadata_end;
  uint64_t offset, len;

  for (offset = 0; offset < end; offset += len) {
    len = min64 (CHUNK, end - offset);
    newimage_fill (&m->n, offset, m->chunk, len);
    place_luks (m, offset, len);
    if (m->device && offset == 0)
      keep_first (m);
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

  for (; offset < end; offset += len) {
    /* Pieces start at multiples of CHUNK, except for the first one. */
    len = min64 (CHUNK - offset % CHUNK, end - offset);
    if (storage_write_zeros (f, offset, len) == -1)
      return -1;
    write_back (f, offset + len);
    if (advance (m, len) == -1)
      return -1;
  }
  return 0;
}

/* Gives a new file its length, and allocates space.  *WRITTEN: zeros must be written, so
 * that space is allocated. */
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
write_file (struct maker *m, bool all)
{
  if (write_metadata (m, !all) == -1)
    return -1;
  return all ? write_zeros (m, image_file (m), m->n.metadata_end, m->n.file_size) : 0;
}

/* Must data clusters on a device be zeroed?  Otherwise they read as zeros, and that is
 * all the user wants; or there are none. */
static bool
zeroes_data (const struct maker *m)
{
  const enum preallocation p = m->n.options.preallocation;

  return m->n.file_size > m->n.metadata_end &&
    !(p == PREALLOCATION_METADATA && is_zeros (m));
}

static int
advance_maker (void *m, uint64_t bytes)
{
  return advance (m, bytes);
}

static int
write_device (struct maker *m)
{
  static const enum newdevice_zeros ways[] = {
    [PREALLOCATION_METADATA] = NEWDEVICE_FREE, [PREALLOCATION_FALLOC] = NEWDEVICE_KEEP,
    [PREALLOCATION_FULL] = NEWDEVICE_WRITE,
  };
  const struct newdevice_watch watch = { advance_maker, m };

  if (is_zeros (m) && newdevice_check_zeros (m->device, m->chunk, CHUNK, &watch) == -1)
    return -1;
  m->touched = true;
  if ((!is_zeros (m) && newdevice_erase (m->device) == -1) ||
      write_metadata (m, is_zeros (m)) == -1)
    return -1;
  return !zeroes_data (m) ? 0
    : newdevice_zero (m->device, m->n.metadata_end, m->n.file_size,
                      ways[m->n.options.preallocation], &watch);
}

/* How many bytes write_device reads and writes. */
static uint64_t
device_total (const struct maker *m)
{
  return (is_zeros (m) ? storage_size (m->device) : 0) +
    (zeroes_data (m) ? m->n.file_size : m->n.metadata_end);
}

static int
write_all (struct maker *m)
{
  struct storage *const data = m->data ? newfile_file (m->data) : NULL;
  bool image_written = false, data_written = false;

  /* The L1 table is zeros now and changes in place later.  Allocate its space now,
   * because a full host could not do so later. */
  if ((m->image &&
       (prepare (m, image_file (m), m->n.file_size, &image_written) == -1 ||
        storage_allocate (image_file (m), m->n.l1_offset,
                          m->n.l1_entries * UINT64_C (8)) == -1)) ||
      (data && prepare (m, data, m->n.options.size, &data_written) == -1))
    return -1;
  m->total = (m->device ? device_total (m)
              : image_written ? m->n.file_size : m->n.metadata_end) +
    (data_written ? m->n.options.size : 0);

  if ((m->device ? write_device (m) : write_file (m, image_written)) == -1)
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
  m->luks = memory_get (LUKSMAKE_BYTES);
  if (m->luks == NULL)
    return -1;
  return luksmake (o->path, o->secret.passphrase, o->secret.len, o->iter_ms, m->luks);
}

/* Whatever is wrong is found before anything is changed. */
static int
open_target (struct maker *m)
{
  const struct create_options *o = m->o;

  if (newdevice_is (o->path))
    return newdevice_open (o->path, &o->file, &m->device);
  return o->replace ? newfile_begin_over (o->path, &o->file, &m->image)
    : newfile_check (o->path) == -1 ? -1 : newfile_begin (o->path, &o->file, &m->image);
}

static int
check_device_size (const struct maker *m)
{
  const bool preallocated = m->n.file_size > m->n.metadata_end;

  if (m->device == NULL || m->n.file_size <= storage_size (m->device))
    return 0;
  return report_refusal (ENOSPC, "%s: cannot create: the device has %" PRIu64 " bytes, but "
                         "%s needs %" PRIu64, storage_path (m->device),
                         storage_size (m->device), preallocated ? "the preallocated image"
                         : "the metadata of the new image", m->n.file_size);
}

static int
begin_data (struct maker *m)
{
  const struct create_options *o = m->o;

  return o->image.data_file ? newfile_begin (o->data_path, &o->file, &m->data) : 0;
}

/* The data file first: no image ever names one that does not exist. */
static int
publish (struct maker *m)
{
  if (m->data && newfile_publish (m->data) == -1)
    return -1;
  if ((m->device ? newdevice_publish (m->device, m->first)
       : m->o->replace ? 0 : newfile_publish (m->image)) == 0)
    return 0;
  KEEP_ERRNO_FOR_BLOCK;
  if (m->data)
    newfile_withdraw (m->data);
  return -1;
}

static int
make (struct maker *m)
{
  const struct create_options *o = m->o;
  struct newimage_options image = o->image;

  image.luks_bytes = o->encrypt ? LUKSMAKE_BYTES : 0;
  if (open_target (m) == -1 ||
      (image.data_file && newfile_check (o->data_path) == -1) ||
      (o->unsafe ? look_below_unsafe : look_below) (m, &image) == -1 ||
      newimage_plan (&image, &m->n) == -1 ||
      check_device_size (m) == -1 ||
      make_luks (m) == -1)
    return -1;
  m->chunk = memory_get (CHUNK);
  if (m->chunk == NULL)
    return -1;
  /* Report the first step before the first change. */
  m->total = m->n.file_size;
  return advance (m, 0) == -1 || begin_data (m) == -1 || write_all (m) == -1 ||
    publish (m) == -1 ? -1 : 0;
}

/* Something has failed. */
static void
give_up (struct maker *m)
{
  KEEP_ERRNO_FOR_BLOCK;

  if (m->touched)
    newdevice_withdraw (m->device, m->n.file_size, is_zeros (m));
  storage_close (m->device);
  newfile_end (m->image);
  newfile_end (m->data);
}

int
create_image (const struct create_options *options, struct created **created)
{
  struct maker m = { .o = options };
  struct created *c = memory_new (1, sizeof *c);
  const int r = c ? make (&m) : -1;
  KEEP_ERRNO_FOR_BLOCK;
  free (m.chunk);
  free (m.luks);                /* it contains no secrets */
  if (r == 0) {
    report_event (EVENT_CHANGED, options->path, "created, %" PRIu64 " bytes, a disk of %"
                  PRIu64, m.n.file_size, m.n.options.size);
    *c = (struct created) {
      .image = m.image, .data = m.data, .options = options, .end = m.n.file_size,
      .disk_size = m.n.options.size, .most = newimage_full_size (&m.n.options),
      .device_size = m.device ? storage_size (m.device) : 0,
    };
    storage_close (m.device);
    *created = c;
  }
  else {
    give_up (&m);
    free (c);
  }
  return r;
}

int
created_publish (struct created *c)
{
  return c->image && c->options->replace ? newfile_publish (c->image) : 0;
}

struct dirfile
created_place (const struct created *c)
{
  return c->image ? newfile_place (c->image) : (struct dirfile) { .name = NULL };
}

const char *
create_data_name (const char *given, const char *data_path, const char *path)
{
  /* Length of the current directory, with a slash, if the name is relative. */
  const size_t n = strlen (data_path) - strlen (given);
  const char *slash = strrchr (path, '/');

  return slash && n == (size_t) (slash + 1 - path) && strncmp (path, data_path, n) == 0
    ? given : data_path;
}

uint64_t
created_disk_size (const struct created *c)
{
  return c->disk_size;
}

bool
created_may_outgrow (const struct created *c, uint64_t *most, uint64_t *size)
{
  *most = c->most;
  *size = c->device_size;
  return c->image == NULL && *size < *most;
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

/* -1: it was not removed. */
static int
withdraw_device (const struct created *c)
{
  const struct create_options *o = c->options;
  struct storage *device;

  if (newdevice_open (o->path, &o->file, &device) == -1)
    return -1;
  newdevice_withdraw (device, c->end, !o->overwrite);
  storage_close (device);
  return 0;
}

static int
withdraw_file (const struct created *c)
{
  if (c->options->file.lock &&
      storage_lock (newfile_file (c->image), STORAGE_WRITER) == -1)
    return -1;
  newfile_withdraw (c->image);
  return 0;
}

void
created_withdraw (struct created *c)
{
  const char *path;

  if (c == NULL)
    return;
  path = c->options->path;
  /* The image first: no image ever names a data file that does not exist. */
  if ((c->image ? withdraw_file : withdraw_device) (c) == -1)
    report_error ("%s: the new image was not removed", path);
  else {
    if (c->data)
      newfile_withdraw (c->data);
    report_debug ("%s: the new image was removed", path);
  }
  created_keep (c);
}
