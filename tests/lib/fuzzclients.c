/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Do the clients of a server get what the plugin promises?
 *
 * The script chooses who connects, to which export, and with which requests, among those
 * that nbdkit lets through.  Where the image is sound, each answer is compared with the
 * model of the export's disk, which learns from each change, and forgets the disk when
 * one fails.
 */

#include <config.h>

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define NBDKIT_API_VERSION 2
#include <nbdkit-plugin.h>

#include "util/bytes.h"
#include "lib/fuzzserver-impl.h"
#include "lib/stubs.h"

#define NR_CLIENTS 3

struct client {
  void *handle;                 /* NULL: nobody */
  struct model *model;          /* of its export, or NULL */
  uint64_t size;
  bool writable;
};

static struct client clients[NR_CLIENTS];
static const char *export_name;         /* of the client that connects */

/* --- in place of nbdkit --- */

const char *
nbdkit_export_name (void)
{
  return export_name;
}

int
nbdkit_peer_name (struct sockaddr *addr, socklen_t *len)
{
  *addr = (struct sockaddr) { .sa_family = AF_UNIX };
  *len = sizeof *addr;
  return 0;
}

int64_t
nbdkit_peer_pid (void)
{
  return 1;
}

int64_t
nbdkit_peer_uid (void)
{
  return 1;
}

int
nbdkit_is_tls (void)
{
  return 0;
}

struct nbdkit_exports { unsigned n; };

int
nbdkit_add_export (struct nbdkit_exports *exports, const char *name,
                   const char *description)
{
  CHECK (strlen (name) <= 4096);
  CHECK (description == NULL || strlen (description) <= 4096);
  exports->n++;
  return 0;
}

struct nbdkit_extents {
  const struct model *model;
  uint64_t next, end;
};

int
nbdkit_add_extent (struct nbdkit_extents *e, uint64_t offset, uint64_t length,
                   uint32_t type)
{
  CHECK (offset == e->next && length > 0 && length <= e->end - offset);
  e->next += length;
  if (e->model && (type & NBDKIT_EXTENT_ZERO))
    for (uint64_t i = offset; i < e->next && i < WINDOW; i++)
      CHECK (e->model->bytes[i] == 0);
  return 0;
}

/* --- what the model says --- */

static struct model *
known (const struct client *c)
{
  return fuzz.sound && c->model && c->model->known ? c->model : NULL;
}

static void
learn (struct client *c)
{
  struct model *m = c->model;

  if (m == NULL || !fuzz.sound)
    return;
  if (m->known) {
    CHECK (m->size == c->size);
    return;
  }
  memset (m->bytes, 0, sizeof m->bytes);
  m->size = c->size;
  m->known = true;
  CHECK (c->size == 0 ||
         fuzz.plugin->pread (c->handle, m->bytes, min64 (c->size, WINDOW), 0, 0) == 0);
}

/* --- requests --- */

/* Somewhere on the disk, mostly where the model knows it. */
static void
choose_range (struct fuzz_script *s, const struct client *c, uint64_t max,
              uint64_t *offset, uint64_t *count)
{
  static const uint32_t counts[] = {
    1, 512, 1024, 4096, 4097, 16384, 65536, 65536 + 512, 3 * 65536, 1 << 20, 2 << 20,
    64 << 20, UINT32_MAX,
  };
  const uint8_t how = fuzz_byte (s);
  const uint64_t place = fuzz_word (s);

  switch (how >> 6) {
  case 0: *offset = place % (WINDOW / 512) * 512; break;
  case 1: *offset = place * 4; break;
  case 2: *offset = c->size - min64 (c->size, 1 + place * 64); break;
  default: *offset = (c->size >> 16) * place;
  }
  *offset = min64 (*offset, c->size - 1);
  *count = counts[(how & 15) % (sizeof counts / sizeof counts[0])];
  if (how & 16)
    *count += fuzz_byte (s);
  *count = min64 (min64 (*count, max), c->size - *offset);
}

static void
do_read (struct fuzz_script *s, struct client *c)
{
  const struct model *m = known (c);
  uint64_t offset, count;
  uint8_t *buf;

  choose_range (s, c, 512 << 10, &offset, &count);
  fuzz_show ("read", "", offset, count);
  buf = malloc (count);
  CHECK (buf != NULL);
  if (fuzz_heard (fuzz.plugin->pread (c->handle, buf, count, offset, 0)) == -1)
    CHECK (!fuzz.sound);
  else if (m && offset < WINDOW)
    CHECK (memcmp (buf, m->bytes + offset, min64 (count, WINDOW - offset)) == 0);
  free (buf);
}

/* After a change of the range.  BUF: its new contents, or NULL: zeros. */
static void
changed (struct client *c, int r, uint64_t offset, uint64_t count, const uint8_t *buf)
{
  const uint64_t n = offset < WINDOW ? min64 (count, WINDOW - offset) : 0;

  if (r == -1) {
    CHECK (!fuzz.sound || errno == ENOSPC || errno == ENOTSUP);
    if (errno != ENOTSUP)
      fuzz_forget (c->model);
  }
  else if (known (c) == NULL || n == 0)
    return;
  else if (buf)
    memcpy (c->model->bytes + offset, buf, n);
  else
    memset (c->model->bytes + offset, 0, n);
}

/* Contents that zero detection and compression like, or not. */
static uint8_t *
make_contents (uint8_t kind, uint64_t count)
{
  uint8_t *buf = malloc (count);
  struct rng rng;

  CHECK (buf != NULL);
  rng_init (&rng, kind, 0);
  for (uint64_t i = 0; i < count; i++)
    buf[i] = kind < 128 ? kind / 2 * (i / 512 % 4 != 3 || kind % 2) : rng_next (&rng);
  return buf;
}

static uint32_t
fua (uint8_t b)
{
  return b & 1 ? NBDKIT_FLAG_FUA : 0;
}

static void
do_write (struct fuzz_script *s, struct client *c)
{
  const uint8_t flags = fuzz_byte (s), kind = fuzz_byte (s);
  uint64_t offset, count;
  uint8_t *buf;

  choose_range (s, c, 512 << 10, &offset, &count);
  fuzz_show ("write", kind == 0 ? "zeros" : "", offset, count);
  buf = make_contents (kind, count);
  changed (c, fuzz_heard (fuzz.plugin->pwrite (c->handle, buf, count, offset,
                                               fua (flags))),
           offset, count, buf);
  free (buf);
}

static void
do_zero (struct fuzz_script *s, struct client *c)
{
  const uint8_t flags = fuzz_byte (s);
  uint64_t offset, count;

  choose_range (s, c, UINT32_MAX, &offset, &count);
  fuzz_show ("zero", "", offset, count);
  changed (c, fuzz_heard (fuzz.plugin->zero (c->handle, count, offset,
                                             fua (flags) |
                                             (flags & 2 ? NBDKIT_FLAG_MAY_TRIM : 0) |
                                             (flags & 4 ? NBDKIT_FLAG_FAST_ZERO : 0))),
           offset, count, NULL);
}

/* What it has left may show old data or zeros. */
static void
do_trim (struct fuzz_script *s, struct client *c)
{
  const uint8_t flags = fuzz_byte (s);
  struct model *m = known (c);
  uint64_t offset, count, n;
  uint8_t *buf;
  int r;

  choose_range (s, c, UINT32_MAX, &offset, &count);
  fuzz_show ("trim", "", offset, count);
  r = fuzz_heard (fuzz.plugin->trim (c->handle, count, offset, fua (flags)));
  CHECK (r == 0 || !fuzz.sound || errno == ENOSPC);
  if (m == NULL)
    return;
  n = offset < WINDOW ? min64 (count, WINDOW - offset) : 0;
  buf = malloc (n + 1);
  CHECK (buf != NULL);
  CHECK (n == 0 || fuzz.plugin->pread (c->handle, buf, n, offset, 0) == 0);
  for (uint64_t i = 0; i < n; i++) {
    CHECK (buf[i] == 0 || buf[i] == m->bytes[offset + i]);
    m->bytes[offset + i] = buf[i];
  }
  free (buf);
}

static void
do_extents (struct fuzz_script *s, struct client *c)
{
  const uint32_t flags = fuzz_byte (s) & 1 ? NBDKIT_FLAG_REQ_ONE : 0;
  struct nbdkit_extents e = { .model = known (c) };
  uint64_t offset, count;

  choose_range (s, c, UINT32_MAX, &offset, &count);
  e.next = offset;
  e.end = offset + count;
  if (fuzz_heard (fuzz.plugin->extents (c->handle, count, offset, flags, &e)) == -1)
    CHECK (!fuzz.sound);
  else
    CHECK (e.next > offset);
}

static void
do_cache (struct fuzz_script *s, struct client *c)
{
  uint64_t offset, count;

  choose_range (s, c, 2 << 20, &offset, &count);
  if (fuzz_heard (fuzz.plugin->cache (c->handle, count, offset, 0)) == -1)
    CHECK (!fuzz.sound);
}

static void
do_flush (struct client *c)
{
  if (fuzz_heard (fuzz.plugin->flush (c->handle, 0)) == -1)
    CHECK (!fuzz.sound || errno == ENOSPC || !c->writable);
}

/* --- clients --- */

static void
go_away (struct client *c)
{
  if (c->handle)
    fuzz.plugin->close (c->handle);
  fuzz_heard (0);
  memset (c, 0, sizeof *c);
}

/* OTHER: the export "" is not the active disk. */
static void
come (struct fuzz_script *s, struct client *c, bool other)
{
  static const char *const names[] = {
    "", "", "", "", OURS "0", OURS "1", "1", "2", "layer:0", "layer:1", "bitmap:x",
    "bitmap:y", "layer:4294967296", "nothing",
  };
  const uint8_t b = fuzz_byte (s);
  uint32_t minimum, preferred, maximum;

  go_away (c);
  export_name = names[(b >> 1) % (sizeof names / sizeof names[0])];
  fuzz_show ("open", export_name, b & 1, 0);
  c->handle = fuzz.plugin->open (b & 1);
  if (c->handle == NULL) {
    fuzz_heard (-1);
    return;
  }
  c->size = fuzz.plugin->get_size (c->handle);
  c->writable = !(b & 1) && fuzz.plugin->can_write (c->handle) == 1;
  CHECK ((int64_t) c->size >= 0);
  CHECK (fuzz.plugin->block_size (c->handle, &minimum, &preferred, &maximum) == 0);
  CHECK (is_power_of_2 (preferred) && preferred >= 512);
  fuzz.plugin->export_description (c->handle);
  if (other)
    return;
  c->model = export_name[0] ? fuzz_our_snapshot (export_name) : &fuzz.active;
  if (c->model == &fuzz.active || (c->model && c->model->known))
    learn (c);
}

static void
do_list (void)
{
  struct nbdkit_exports list = { 0 };

  if (fuzz_heard (fuzz.plugin->list_exports (0, 0, &list)) == -1)
    CHECK (!fuzz.sound);
}

/* One request of one client.  False: the server ends. */
static bool
step (struct fuzz_script *s, bool other)
{
  const uint8_t b = fuzz_byte (s);
  struct client *c = &clients[(b >> 4) % NR_CLIENTS];
  const unsigned op = b & 15;

  if (fuzz_script_ended (s) || op == 15)
    return false;
  if (op == 14)
    do_list ();
  else if (op == 13)
    go_away (c);
  else if (op == 12 || c->handle == NULL)
    come (s, c, other);
  else if (c->size == 0)
    return true;
  else if (op < 3)
    do_read (s, c);
  else if (op == 3)
    do_extents (s, c);
  else if (op == 4)
    do_cache (s, c);
  else if (op == 5)
    do_flush (c);
  else if (!c->writable)
    return true;
  else if (op < 9)
    do_write (s, c);
  else if (op < 11)
    do_zero (s, c);
  else
    do_trim (s, c);
  return true;
}

void
fuzz_serve (struct fuzz_script *s, bool other)
{
  come (s, &clients[0], other);
  while (step (s, other))
    ;
  for (int i = 0; i < NR_CLIENTS; i++)
    go_away (&clients[i]);
}
