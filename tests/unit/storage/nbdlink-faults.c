/* SPDX-License-Identifier: BSD-3-Clause
 *
 * nbdlink.c, when libnbd or memory fails while a connection is made, and when the
 * server's answers make no sense: the export is not opened, one message says why, nothing
 * is left behind, and the next time it can be opened.
 *
 * Newer versions of libnbd (1.18) know extents with lengths of 64 bits.  The plugin then
 * finds the same holes as with older ones.  (Here, libnbd's functions for 32 bits stand
 * in for these.)
 *
 * The server is in this process (lib/remoteserver); libnbd's functions are replaced where
 * the plugin loads them.
 */

#include <config.h>

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "storage/nbdlib.h"
#include "storage/storage.h"
#include "lib/remoteserver.h"
#include "lib/images.h"
#include "lib/reach.h"
#include "lib/stubs.h"

#define MIB (UINT64_C (1) << 20)
#define SIZE (8 * MIB)

static char *uri;
static struct remoteserver *server;

/* --- memory that fails (the linker's --wrap), for the thread of the test --- */

static _Thread_local long allocations_left = -1;        /* -1: there is memory */
static _Thread_local bool no_memory;    /* was met */

extern void *__real_calloc (size_t, size_t);
extern void *__wrap_calloc (size_t, size_t);

void *
__wrap_calloc (size_t n, size_t size)
{
  if (allocations_left == 0) {
    allocations_left = -1;
    no_memory = true;
    errno = ENOMEM;
    return NULL;
  }
  if (allocations_left > 0)
    allocations_left--;
  return __real_calloc (n, size);
}

/* --- libnbd --- */

static struct nbdlib real, lib;

extern int __real_nbdlib_load (struct nbdlib *, const char **);
extern int __wrap_nbdlib_load (struct nbdlib *, const char **);

int
__wrap_nbdlib_load (struct nbdlib *to, const char **why)
{
  (void) why;
  *to = lib;
  return 0;
}

static struct nbd_handle *
fail_create (void)
{
  return NULL;
}

static int
fail_set_handle_name (struct nbd_handle *nbd, const char *name)
{
  (void) nbd, (void) name;
  return -1;
}

static int
fail_set_uri_allow_local_file (struct nbd_handle *nbd, bool allow)
{
  (void) nbd, (void) allow;
  return -1;
}

static int
fail_add_meta_context (struct nbd_handle *nbd, const char *name)
{
  (void) nbd, (void) name;
  return -1;
}

static int
fail_aio_connect_uri (struct nbd_handle *nbd, const char *name)
{
  (void) nbd, (void) name;
  return -1;
}

static int64_t
fail_get_size (struct nbd_handle *nbd)
{
  (void) nbd;
  return -1;
}

static int64_t block_minimum, block_maximum;

static int64_t
make_up_block_size (struct nbd_handle *nbd, int which)
{
  (void) nbd;
  return which == LIBNBD_SIZE_MINIMUM ? block_minimum : block_maximum;
}

/* --- opening --- */

static const struct storage_link_options link_options = STORAGE_LINK_DEFAULTS;
static const struct storage_options options = { .link = &link_options };

static struct storage *
open_export (void)
{
  struct storage *s;

  CHECK (storage_open (uri, &options, &s) == 0);
  CHECK (storage_size (s) >= SIZE);    /* and room to grow */
  return s;
}

/* Once LIB is whole again, it opens. */
static void
is_refused (int err, const char *text)
{
  const unsigned descriptors = reach_open_descriptors ();
  const unsigned long errors = error_count ();
  struct storage *s;

  quiet_errors = true;
  errno = 0;
  CHECK (storage_open (uri, &options, &s) == -1 && errno == err);
  quiet_errors = false;
  CHECK (error_count () == errors + 1);
  CHECK (strstr (last_error (), "far") && strstr (last_error (), text));
  remoteserver_rest (server);
  CHECK (reach_open_descriptors () == descriptors);
  lib = real;
  storage_close (open_export ());
}

static void
test_libnbd_fails (void)
{
#define FAILS(name)                             \
  do {                                          \
    lib.name = fail_##name;                     \
    is_refused (EIO, "cannot connect: ");       \
  } while (0)

  FAILS (create);
  FAILS (set_handle_name);
  FAILS (set_uri_allow_local_file);
  FAILS (add_meta_context);
  FAILS (aio_connect_uri);
  FAILS (get_size);
}

static void
test_block_sizes (void)
{
  static const int64_t sizes[][2] = {   /* minimum, maximum */
    { 3, 4096 }, { 4096, 512 }, { INT64_C (1) << 32, INT64_C (1) << 40 },
  };

  for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
    block_minimum = sizes[i][0];
    block_maximum = sizes[i][1];
    lib.get_block_size = make_up_block_size;
    is_refused (EIO, "its block size constraints make no sense");
  }
}

static void
test_no_memory (void)
{
  struct storage *s;
  int failed = 0;

  for (long i = 0; ; i++) {
    const unsigned descriptors = reach_open_descriptors ();
    int r;

    quiet_errors = true;
    clear_last_error ();
    no_memory = false;
    allocations_left = i;
    errno = 0;
    r = storage_open (uri, &options, &s);
    allocations_left = -1;
    quiet_errors = false;
    if (r == 0)
      storage_close (s);
    else
      CHECK (no_memory && errno == ENOMEM && last_error ()[0] != '\0');
    failed += r == -1;
    remoteserver_rest (server);
    CHECK (reach_open_descriptors () == descriptors);
    if (!no_memory)
      break;
  }
  CHECK (failed > 2);
  printf ("%d allocations failed\n", failed);
}

/* --- extents --- */

static unsigned long_answers;

struct long_call {
  struct nbdlib_extents_callback extents;
  nbd_completion_callback done;
};

static int
pass_extents (void *opaque, const char *context, uint64_t offset, uint32_t *entries,
              size_t n, int *error)
{
  const struct long_call *c = opaque;
  struct nbdlib_extent longer[100];

  CHECK (n % 2 == 0 && n / 2 <= 100);
  for (size_t i = 0; i < n / 2; i++)
    longer[i] = (struct nbdlib_extent) { entries[2 * i], entries[2 * i + 1] };
  long_answers++;
  return c->extents.callback (c->extents.user_data, context, offset, longer, n / 2, error);
}

static int
pass_end (void *opaque, int *error)
{
  const struct long_call *c = opaque;

  return c->done.callback (c->done.user_data, error);
}

static void
free_call (void *opaque)
{
  free (opaque);
}

static int64_t
block_status_64 (struct nbd_handle *nbd, uint64_t count, uint64_t offset,
                 struct nbdlib_extents_callback extents, nbd_completion_callback done,
                 uint32_t flags)
{
  struct long_call *c = malloc (sizeof *c);

  CHECK (c != NULL);
  *c = (struct long_call) { extents, done };
  return real.aio_block_status (
    nbd, count, offset,
    (nbd_extent_callback) { .callback = pass_extents, .user_data = c },
    (nbd_completion_callback) {
      .callback = pass_end, .user_data = c, .free = free_call,
    }, flags);
}

static int
is_negotiated (struct nbd_handle *nbd)
{
  (void) nbd;
  return 1;
}

#define MOST_PARTS 40

/* Fills PARTS with the length of each part, negative for holes.  Returns their number. */
static unsigned
find_parts (int64_t parts[MOST_PARTS])
{
  struct storage *s = open_export ();
  unsigned n = 0;
  bool hole;

  for (uint64_t at = 0, len; at < SIZE; at += len) {
    len = SIZE - at;
    hole = storage_hole (s, at, &len);
    CHECK (len > 0 && n < MOST_PARTS);
    parts[n++] = hole ? -(int64_t) len : (int64_t) len;
  }
  storage_close (s);
  return n;
}

static void
test_long_extents (void)
{
  int64_t parts[MOST_PARTS] = { 0 }, longer[MOST_PARTS] = { 0 };
  const unsigned n = find_parts (parts);

  CHECK (n == 5 && long_answers == 0);
  CHECK (parts[0] == -(int64_t) MIB && parts[1] == (int64_t) MIB);
  lib.aio_block_status_64 = block_status_64;
  lib.get_extended_headers_negotiated = is_negotiated;
  CHECK (find_parts (longer) == n && memcmp (parts, longer, sizeof parts) == 0);
  CHECK (long_answers > 0);
  lib = real;
}

int
main (void)
{
  const struct remotemanners manners = {
    .fast = REMOTE_FAST, .multi_conn = true, .status = true, .minimum = 1, .maximum = 4 * MIB,
  };
  char socket[64], data[65536], *dir, *path;
  const char *why;
  int fd;

  images_enter ("nbdlink-faults");
  memset (data, 'x', sizeof data);
  fd = open ("far", O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  CHECK (fd >= 0 && ftruncate (fd, SIZE) == 0);
  for (uint64_t at = MIB; at < 2 * MIB; at += sizeof data)
    CHECK (pwrite (fd, data, sizeof data, at) == sizeof data &&
           pwrite (fd, data, sizeof data, at + 4 * MIB) == sizeof data);
  close (fd);
  dir = images_path (".");
  path = images_path ("far");
  snprintf (socket, sizeof socket, "/tmp/qcow2-link.%d", (int) getpid ());
  unlink (socket);
  CHECK (asprintf (&uri, "nbd+unix:///far?socket=%s", socket) > 0);
  server = remoteserver_start (socket, dir);
  remoteserver_behave (server, &manners);
  remoteserver_hooks (server, path, &without_sync);
  CHECK (__real_nbdlib_load (&real, &why) == 0);
  lib = real;

  test_libnbd_fails ();
  test_block_sizes ();
  test_no_memory ();
  test_long_extents ();

  remoteserver_stop (server);
  unlink (socket);
  free (uri);
  free (path);
  free (dir);
  images_leave ();
  return 0;
}
