/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Does the plugin keep its promises, whatever its user and its clients do?
 *
 * This is nbdkit, reduced to what matters to the plugin: it calls the callbacks of
 * nbd/plugin.c in the order in which nbdkit does, with requests that nbdkit lets through.
 * A script from a fuzzer chooses parameters, exports and requests.  One thread; several
 * connections.  Between two servers the image may be changed, described and mapped, by
 * the core, as nbdkit-qcow2-img does.
 *
 * Before each start, a full check decides whether the image is sound.  (One that uses a
 * cluster twice in the same mapping is not: see checker_shares.)  If it is:
 *
 *   - it stays sound, whatever happens
 *   - reads succeed; writes fail only for lack of space
 *   - a model knows the beginning of the active disk, also across restarts, snapshots and
 *     resizes, and the contents of two snapshots.  Reads and extents agree with it
 *
 * For any image: each error is one line of printable text, and an input takes less than
 * MAX_MEMORY, and MAX_SECONDS of the processor.  Whoever runs the target ends one that
 * hangs.
 */

#include <config.h>

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define NBDKIT_API_VERSION 2
#include <nbdkit-plugin.h>

#include "util/bytes.h"
#include "check/check.h"
#include "disk/chaininfo.h"
#include "disk/chainmap.h"
#include "lib/changes.h"
#include "lib/checker.h"
#include "lib/fuzzserver.h"
#include "lib/fuzzmemory.h"
#include "lib/stubs.h"

#define MAX_MEMORY (64u << 20)
#define MAX_SECONDS 10
#define PASSPHRASE "open sesame"

/* What the model knows of a disk. */
#define WINDOW (256u << 10)

struct model {
  bool known;
  uint64_t size;
  uint8_t bytes[WINDOW];
};

/* Snapshots that the script takes; those of an image have other names. */
#define NR_SNAPSHOTS 2
#define OURS "our snapshot "
#define NR_CLIENTS 3

struct client {
  void *handle;                 /* NULL: nobody */
  struct model *model;          /* of its export, or NULL */
  uint64_t size;
  bool writable;
};

static struct nbdkit_plugin *plugin;
static const char *directory;
static char image[4096];
static bool sound;
static bool told;               /* this server has reported an error */
static struct model active, snapshots[NR_SNAPSHOTS];    /* valid if the image is sound */

/* How many snapshots have that name: the first one is meant by it.  -1: unknown. */
static int namesakes[NR_SNAPSHOTS];
static struct client clients[NR_CLIENTS];
static const char *export_name;         /* of the client that connects */
static const char *passphrase;          /* that a server got last */

/* With QCOW2_TEST_DEBUG in the environment, prints what the script asks for. */
static void
show (const char *what, const char *name, uint64_t offset, uint64_t count)
{
  if (getenv ("QCOW2_TEST_DEBUG"))
    fprintf (stderr, "-- %s %s %" PRIu64 " %" PRIu64 "\n", what, name, offset, count);
}

/* --- in place of nbdkit --- */

extern struct nbdkit_plugin *plugin_init (void);

char *
nbdkit_absolute_path (const char *path)
{
  char *r;

  CHECK (asprintf (&r, "%s/%s", path[0] == '/' ? "" : directory, path) >= 0);
  return r;
}

int
nbdkit_read_password (const char *value, char **password)
{
  *password = strdup (value);
  return *password ? 0 : -1;
}

const char *
nbdkit_export_name (void)
{
  return export_name;
}

int
nbdkit_nanosleep (unsigned seconds, unsigned nanoseconds)
{
  (void) seconds; (void) nanoseconds;
  return 0;
}

/* (No target has a control socket.) */
void
nbdkit_shutdown (void)
{
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

/* --- what the plugin may open, and that it need not wait for the disk --- */

extern int __real_openat (int fd, const char *name, int flags, ...);
extern int __wrap_openat (int fd, const char *name, int flags, ...);

int
__wrap_openat (int fd, const char *name, int flags, ...)
{
  const size_t n = strlen (directory);
  va_list args;
  mode_t mode;

  va_start (args, flags);
  mode = (flags & O_CREAT) || (flags & O_TMPFILE) == O_TMPFILE
    ? va_arg (args, mode_t) : 0;
  va_end (args);
  if (strstr (name, "..") ||
      (name[0] == '/' && (strncmp (name, directory, n) != 0 || name[n] != '/'))) {
    errno = EACCES;
    return -1;
  }
  return __real_openat (fd, name, flags, mode);
}

extern int __wrap_fdatasync (int fd);
extern int __wrap_fsync (int fd);

int
__wrap_fdatasync (int fd)
{
  return fcntl (fd, F_GETFD) == -1 ? -1 : 0;
}

int
__wrap_fsync (int fd)
{
  return fcntl (fd, F_GETFD) == -1 ? -1 : 0;
}

/* --- judging --- */

/* After a call that returned R.  Each error is reported, or was before (R9). */
static int
heard (int r)
{
  for (const char *s = last_error (); *s; s++)
    CHECK ((unsigned char) *s >= 0x20 && *s != 0x7f);
  told = told || last_error ()[0];
  CHECK (r != -1 || told || errno == ENOTSUP);
  clear_last_error ();
  return r;
}

static bool
shares_clusters (void)
{
  struct blob b;
  bool shares;

  blob_load (image, &b);
  shares = checker_shares (&b);
  blob_free (&b);
  return shares;
}

static bool
is_sound (void)
{
  const struct check_options options = { .mode = CHECK_FULL, .path = image };
  struct check *check;
  const bool r = heard (check_image (&options, &check)) == 0;

  if (r)
    check_free (check);
  return r && !shares_clusters ();
}

/* What a request that failed has left. */
static void
forget (struct model *m)
{
  if (m)
    m->known = false;
}

static void
forget_all (void)
{
  forget (&active);
  for (unsigned i = 0; i < NR_SNAPSHOTS; i++) {
    forget (&snapshots[i]);
    namesakes[i] = -1;
  }
}

/* NULL: it is not ours. */
static struct model *
our_snapshot (const char *name)
{
  const size_t n = strlen (OURS);

  return strncmp (name, OURS, n) == 0 ? &snapshots[name[n] - '0'] : NULL;
}

static struct model *
known (const struct client *c)
{
  return sound && c->model && c->model->known ? c->model : NULL;
}

static void
learn (struct client *c)
{
  struct model *m = c->model;

  if (m == NULL || !sound)
    return;
  if (m->known) {
    CHECK (m->size == c->size);
    return;
  }
  memset (m->bytes, 0, sizeof m->bytes);
  m->size = c->size;
  m->known = true;
  CHECK (c->size == 0 ||
         plugin->pread (c->handle, m->bytes, min64 (c->size, WINDOW), 0, 0) == 0);
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
  show ("read", "", offset, count);
  buf = malloc (count);
  CHECK (buf != NULL);
  if (heard (plugin->pread (c->handle, buf, count, offset, 0)) == -1)
    CHECK (!sound);
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
    CHECK (!sound || errno == ENOSPC || errno == ENOTSUP);
    if (errno != ENOTSUP)
      forget (c->model);
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
  show ("write", kind == 0 ? "zeros" : "", offset, count);
  buf = make_contents (kind, count);
  changed (c, heard (plugin->pwrite (c->handle, buf, count, offset, fua (flags))), offset,
           count, buf);
  free (buf);
}

static void
do_zero (struct fuzz_script *s, struct client *c)
{
  const uint8_t flags = fuzz_byte (s);
  uint64_t offset, count;

  choose_range (s, c, UINT32_MAX, &offset, &count);
  show ("zero", "", offset, count);
  changed (c, heard (plugin->zero (c->handle, count, offset,
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
  show ("trim", "", offset, count);
  r = heard (plugin->trim (c->handle, count, offset, fua (flags)));
  CHECK (r == 0 || !sound || errno == ENOSPC);
  if (m == NULL)
    return;
  n = offset < WINDOW ? min64 (count, WINDOW - offset) : 0;
  buf = malloc (n + 1);
  CHECK (buf != NULL);
  CHECK (n == 0 || plugin->pread (c->handle, buf, n, offset, 0) == 0);
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
  if (heard (plugin->extents (c->handle, count, offset, flags, &e)) == -1)
    CHECK (!sound);
  else
    CHECK (e.next > offset);
}

static void
do_cache (struct fuzz_script *s, struct client *c)
{
  uint64_t offset, count;

  choose_range (s, c, 2 << 20, &offset, &count);
  if (heard (plugin->cache (c->handle, count, offset, 0)) == -1)
    CHECK (!sound);
}

static void
do_flush (struct client *c)
{
  if (heard (plugin->flush (c->handle, 0)) == -1)
    CHECK (!sound || errno == ENOSPC || !c->writable);
}

/* --- clients --- */

static void
go_away (struct client *c)
{
  if (c->handle)
    plugin->close (c->handle);
  heard (0);
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
  show ("open", export_name, b & 1, 0);
  c->handle = plugin->open (b & 1);
  if (c->handle == NULL) {
    heard (-1);
    return;
  }
  c->size = plugin->get_size (c->handle);
  c->writable = !(b & 1) && plugin->can_write (c->handle) == 1;
  CHECK ((int64_t) c->size >= 0);
  CHECK (plugin->block_size (c->handle, &minimum, &preferred, &maximum) == 0);
  CHECK (is_power_of_2 (preferred) && preferred >= 512);
  plugin->export_description (c->handle);
  if (other)
    return;
  c->model = export_name[0] ? our_snapshot (export_name) : &active;
  if (c->model == &active || (c->model && c->model->known))
    learn (c);
}

static void
do_list (void)
{
  struct nbdkit_exports list = { 0 };

  if (heard (plugin->list_exports (0, 0, &list)) == -1)
    CHECK (!sound);
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

/* --- parameters --- */

struct choice {
  const char *key;
  const char *values[8];
};

/* Those that need a server behind NBD, or wait, are not here. */
static const struct choice starts[] = {
  /* (fuzz/image.c knows the numbers of these two.) */
  { "check", { "repair", "full", "quick", "off" } },
  { "passphrase", { PASSPHRASE, "wrong" } },
  { "untrusted", { "true" } },
  { "snapshot-create", { OURS "0", OURS "1" } },
  { "snapshot-apply", { OURS "0", OURS "1", "1", "2" } },
  { "snapshot-delete", { OURS "0", OURS "1", "1", "2" } },
  { "resize", { "+64K", "-64K", "+1M", "-100K", "513K", "0", "2M", "+1G" } },
  { "shrink", { "true" } },
  { "preallocation", { "metadata", "falloc", "full" } },
  { "flatten", { "true" } },
  { "backing-format", { "raw", "qcow2" } },
  { "bitmap-add", { "x", "y" } },
  { "bitmap-clear", { "x", "y" } },
  { "bitmap-remove", { "x", "y" } },
  { "bitmap-durable", { "true", "false" } },
  { "bitmap-granularity", { "512", "64K", "2G" } },
  { "l2-cache", { "0", "64K", "1M" } },
  { "l2-slice", { "512", "64K", "2M" } },
  { "discard", { "ignore" } },
  { "detect-zeroes", { "on", "unmap" } },
  { "compress", { "on", "all" } },
  { "copy-on-read", { "true" } },
  { "cache", { "none" } },
  { "lock", { "false" } },
  { "snapshot", { OURS "0", OURS "1", "1", "2" } },
  { "backing", { "deny" } },
  { "data-file", { "deny" } },
  { "check-report", { "report" } },
  { "stats", { "stats" } },
  { "checkpoint-interval", { "0" } },
  { "watermark", { "1M" } },
};

/* In addition, for a new image; the first one is always given. */
static const struct choice creations[] = {
  { "create", { "1M", "100K", "0", "512", "4G", "1T", "64M", "auto" } },
  { "cluster-size", { "512", "4K", "16K", "64K", "2M" } },
  { "compat", { "0.10", "1.1" } },
  { "lazy-refcounts", { "true", "false" } },
  { "refcount-bits", { "1", "2", "8", "64" } },
  { "extended-l2", { "true" } },
  { "compression-type", { "zstd" } },
  { "encrypt", { "luks" } },
  { "backing-file", { FUZZSERVER_BELOW } },
  { "data-file", { FUZZSERVER_DATA } },
  { "data-file-raw", { "true" } },
};

#define COUNT(array) (sizeof (array) / sizeof ((array)[0]))
#define MAX_CHOSEN 7
#define MAX_GIVEN (1 + 3 * MAX_CHOSEN)

struct given {
  const char *key, *value;
};

static struct given
choose (const struct choice *c, uint8_t b)
{
  unsigned n = 0;

  while (n < COUNT (c->values) && c->values[n])
    n++;
  return (struct given) { c->key, c->values[b % n] };
}

/* Returns how many. */
static unsigned
choose_params (struct fuzz_script *s, bool create, struct given given[MAX_GIVEN])
{
  const unsigned all = COUNT (starts) + (create ? COUNT (creations) - 1 : 0);
  unsigned n = 0;

  if (create)
    given[n++] = choose (&creations[0], fuzz_byte (s));
  for (unsigned k = fuzz_byte (s) % MAX_CHOSEN; k > 0; k--) {
    const unsigned i = fuzz_byte (s) % all;

    given[n++] = choose (i < COUNT (starts) ? &starts[i]
                         : &creations[i - COUNT (starts) + 1], fuzz_byte (s));
    if (strcmp (given[n - 1].key, "encrypt") == 0) {
      given[n++] = (struct given) { "passphrase", PASSPHRASE };
      given[n++] = (struct given) { "iter-time", "1" };
    }
  }
  return n;
}

static int
give_params (const struct given *given, unsigned n)
{
  if (heard (plugin->config ("file", FUZZSERVER_IMAGE)) == -1)
    return -1;
  for (unsigned i = 0; i < n; i++)
    show (given[i].key, given[i].value, 0, 0);
  for (unsigned i = 0; i < n; i++)
    if (heard (plugin->config (given[i].key, given[i].value)) == -1)
      return -1;
  return heard (plugin->config_complete ());
}

static bool
is_edit (const struct given *g)
{
  return strncmp (g->key, "snapshot-", 9) == 0 || strcmp (g->key, "resize") == 0;
}

static void
follow_resize (const char *value)
{
  const bool relative = value[0] == '+' || value[0] == '-';
  char *unit;
  uint64_t size = strtoull (value + relative, &unit, 10), kept;

  size <<= *unit == 'G' ? 30 : *unit == 'M' ? 20 : *unit == 'K' ? 10 : 0;
  if (relative)
    size = value[0] == '+' ? active.size + size : active.size - size;
  size = round_up (size, 512);
  kept = min64 (min64 (size, active.size), WINDOW);
  memset (active.bytes + kept, 0, WINDOW - kept);
  active.size = size;
}

/* What the changes before serving have done to the models. */
static void
follow (const struct given *g)
{
  struct model *const m = our_snapshot (g->value);

  if (strcmp (g->key, "snapshot-create") == 0) {
    int *const n = &namesakes[m - snapshots];

    if (*n == 0)
      *m = active;
    if (*n >= 0)
      ++*n;
  }
  else if (strcmp (g->key, "snapshot-apply") == 0) {
    if (m && m->known)
      active = *m;
    else
      forget (&active);
  }
  else if (strcmp (g->key, "snapshot-delete") == 0) {
    for (unsigned i = 0; i < NR_SNAPSHOTS; i++)
      if (m == NULL || m == &snapshots[i]) {
        forget (&snapshots[i]);
        namesakes[i] = m && namesakes[i] > 0 ? namesakes[i] - 1 : -1;
      }
  }
  else
    follow_resize (g->value);
}

static void
follow_all (const struct given *given, unsigned n)
{
  for (unsigned i = 0; i < n; i++)
    if (is_edit (&given[i]))
      follow (&given[i]);
}

/* --- from start to end --- */

/* What the plugin prints itself is not for the log of a fuzzer. */
static int
hushed (int (*fn) (void))
{
  FILE *const before = stderr;
  static FILE *nowhere;
  int r;

  if (nowhere == NULL)
    nowhere = fopen ("/dev/null", "we");
  stderr = nowhere;
  r = fn ();
  stderr = before;
  return r;
}

static void
serve (struct fuzz_script *s, bool other)
{
  come (s, &clients[0], other);
  while (step (s, other))
    ;
  for (int i = 0; i < NR_CLIENTS; i++)
    go_away (&clients[i]);
}

static void
one_server (struct fuzz_script *s, bool create)
{
  struct given given[MAX_GIVEN];
  const unsigned n = choose_params (s, create, given);
  bool other = false, reinterpreted = false;

  for (unsigned i = 0; i < n; i++) {
    other = other || strcmp (given[i].key, "snapshot") == 0;
    /* Over other bytes, all disks are others. */
    if (strcmp (given[i].key, "backing-format") == 0)
      other = reinterpreted = true;
    /* With AES of old images, nothing tells that it is wrong. */
    if (strcmp (given[i].key, "passphrase") == 0 && given[i].value != passphrase) {
      passphrase = given[i].value;
      forget_all ();
    }
  }
  told = false;
  plugin->load ();
  if (give_params (given, n) == 0) {
    if (heard (hushed (plugin->get_ready)) == 0) {
      if (create) {
        CHECK (sound = is_sound ());
        memset (namesakes, 0, sizeof namesakes);
      }
      follow_all (given, n);
      if (plugin->after_fork () == 0)
        serve (s, other);
    }
    else
      forget_all ();            /* some of the changes may have been made */
    plugin->cleanup ();
    heard (0);
    if (reinterpreted)
      forget_all ();
  }
  plugin->unload ();
}

/* --- between servers --- */

static const char *
name_bitmap (uint8_t b)
{
  return b & 1 ? "x" : "y";
}

/* Some changes of bitmaps, all of which happen or none. */
static int
change_some_bitmaps (struct fuzz_script *s, const struct disk_options *o)
{
  static const enum bitmapedit_what whats[] = {
    BITMAP_ADD, BITMAP_REMOVE, BITMAP_CLEAR, BITMAP_ENABLE, BITMAP_DISABLE, BITMAP_MERGE,
    BITMAP_MERGE, BITMAP_MERGE,
  };
  struct bitmapedit edits[4];
  unsigned n = 0;

  do {
    const uint8_t b = fuzz_byte (s);

    edits[n++] = (struct bitmapedit) {
      .what = whats[b & 7], .name = name_bitmap (b >> 3), .merged = name_bitmap (b >> 4),
      .granularity_bits = b >> 5 == 0 ? 0 : 8 + (b >> 5),
    };
  } while (n < COUNT (edits) && fuzz_byte (s) & 1);
  return change_bitmaps (o, edits, n, NULL);
}

/* What never changes what the disk shows. */
static int
change_once (struct fuzz_script *s, const struct disk_options *o)
{
  static const char *const formats[] = { NULL, NULL, "raw", "qcow2" };
  struct disk_options denied = *o;
  const uint8_t kind = fuzz_byte (s), b = fuzz_byte (s);
  const struct rebase below = {
    .name = FUZZSERVER_BELOW, .format = b & 1 ? "raw" : "qcow2",
  };
  const struct amend amend = {
    .version = b & 1 ? 2 + (b >> 1 & 1) : 0, .refcount_bits = b & 4 ? 1 << (b >> 5) : 0,
    .lazy_refcounts = (b >> 3 & 3) % 3,
  };
  struct keyedit keys = { KEYEDIT_NONE, .iter_ms = 1 };
  uint64_t copied;

  switch (kind % 6) {
  case 0:
    denied.backing_format = formats[b >> 1 & 3];
    return change_commit (&denied, b & 1, NULL, &copied);
  case 1:
    return change_rebase (o, &below, NULL, &copied);
  case 2:
    return change_flatten (o, NULL, &copied);
  case 3:
    return change_amend (o, &amend);
  case 4:
    keys.add = b & 1 ? "another" : NULL;
    keys.add_slot = keys.add && b & 2 ? b >> 5 : -1;
    keys.erase = !keys.add || b & 4 ? b & 8 ? "another" : PASSPHRASE : NULL;
    return change_keys (o, &keys);
  default:
    return change_some_bitmaps (s, o);
  }
}

static void
change (struct fuzz_script *s)
{
  const struct disk_options options = {
    .path = image, .l2_cache = 1 << 20, .l2_slice = 4096, .backing = BACKING_FOLLOW,
    .lock = true, .discard = true, .checkpoint_interval_ms = 5000,
    .secret = { .passphrase = passphrase, .len = passphrase ? strlen (passphrase) : 0 },
  };

  told = false;
  show ("change", "", 0, 0);
  heard (change_once (s, &options));
}

/* Entries follow on each other; that of an empty disk is empty. */
static int
map_entry (void *opaque, const struct map_entry *e)
{
  uint64_t *const next = opaque;

  CHECK (e->start == *next && (e->length > 0 || e->start == 0));
  *next += e->length;
  return 0;
}

/* Of the disk, or of the first snapshot. */
static int
map_image (struct image *i, struct layers *layers, bool of_snapshot)
{
  const struct snapshot *s = of_snapshot && i->snapshots.n ? i->snapshots.list : NULL;
  uint64_t next = 0;

  if (s && snapshot_check_table (image, &i->header, s) == -1)
    return -1;
  return chainmap_each (layers, s, map_entry, &next);
}

static void
describe_and_map (bool of_snapshot)
{
  const struct disk_options options = {
    .path = image, .l2_cache = 1 << 20, .l2_slice = 4096, .backing = BACKING_FOLLOW,
    .secret.unneeded = true,
  };
  json_t *info = chaininfo_describe (&options, FUZZSERVER_IMAGE, true);
  struct layers *layers = NULL;
  struct image *i;

  told = false;
  heard (info ? 0 : -1);
  json_decref (info);
  i = disk_open_image (&options);
  if (i && image_load (i) == 0 && (!of_snapshot || image_read_snapshots (i) == 0))
    layers = disk_open_layers (&options, i);
  heard (layers && map_image (i, layers, of_snapshot) == 0 ? 0 : -1);
  layers_free (layers);
  image_close (i);
}

/* Of the processor, by all threads. */
static double
seconds (void)
{
  struct timespec now;

  CHECK (clock_gettime (CLOCK_PROCESS_CPUTIME_ID, &now) == 0);
  return now.tv_sec + now.tv_nsec / 1e9;
}

void
fuzzserver_run (struct fuzz_script *s, bool create)
{
  const double begun = seconds ();

  quiet_errors = true;
  clear_last_error ();
  fuzzmemory_begin ();
  forget_all ();
  sound = !create && is_sound ();
  show (sound ? "sound" : "not sound", "", 0, 0);
  do {
    const bool was = sound;

    one_server (s, create);
    create = create && access (image, F_OK) == -1;
    sound = !create && is_sound ();
    show (sound ? "sound" : "not sound", "", 0, 0);
    CHECK (sound || !was);
    const uint8_t between = create ? 0 : fuzz_byte (s);

    if (between & 1)
      change (s);
    if ((between & 6) == 6)
      describe_and_map (fuzz_byte (s) & 1);
  } while (!fuzz_script_ended (s));
  CHECK (fuzzmemory_end () < MAX_MEMORY);
  CHECK (seconds () - begun < MAX_SECONDS);
  quiet_errors = false;
}

/* --- the directory --- */

/* Only the operation fails. */
static void
ignore_signal (int sig, siginfo_t *info, void *context)
{
  (void) sig; (void) info; (void) context;
}

void
fuzzserver_begin (const char *dir)
{
  const struct sigaction ignored = {
    .sa_sigaction = ignore_signal, .sa_flags = SA_SIGINFO | SA_RESTART
  };
  const struct rlimit limit = { FUZZSERVER_MAX_FILE, RLIM_INFINITY };

  CHECK (sigaction (SIGXFSZ, &ignored, NULL) == 0);
  CHECK (setrlimit (RLIMIT_FSIZE, &limit) == 0);
  CHECK (getenv ("QCOW2_TEST_STORAGE") == NULL);
  directory = dir;
  fuzzserver_path (FUZZSERVER_IMAGE, image);
  plugin = plugin_init ();
  CHECK (plugin != NULL);
}

static char somewhere[4096];

static void
leave_somewhere (void)
{
  static const char *const names[] = {
    FUZZSERVER_IMAGE, FUZZSERVER_BELOW, FUZZSERVER_DATA, "report", "stats",
  };
  char path[4096];

  for (unsigned i = 0; i < COUNT (names); i++) {
    fuzzserver_path (names[i], path);
    unlink (path);
  }
  rmdir (somewhere);
}

void
fuzzserver_begin_somewhere (void)
{
  const char *parent = getenv ("TMPDIR");

  if (parent == NULL || parent[0] != '/' || strlen (parent) > 1000)
    parent = access ("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp";
  snprintf (somewhere, sizeof somewhere, "%s/qcow2-fuzz.XXXXXX", parent);
  CHECK (mkdtemp (somewhere) != NULL);
  atexit (leave_somewhere);
  fuzzserver_begin (somewhere);
}

void
fuzzserver_path (const char *name, char path[4096])
{
  CHECK ((unsigned) snprintf (path, 4096, "%s/%s", directory, name) < 4096);
}
