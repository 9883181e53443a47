/* SPDX-License-Identifier: BSD-3-Clause
 *
 * nbdfile.c, nbdpool.c, nbdlink.c: many threads on one export read what they wrote, over
 * servers with many and with few features; and when the server is killed,
 *
 *   with everything flushed      requests continue as soon as there is a server again
 *   with something unflushed     all flushes and writes fail from then on, reads work
 *   for good                     requests end when the time to reconnect has passed
 *   and what comes back is smaller        nothing is read from it
 *
 * An export that grows is used beyond its old end, while requests are in flight; and
 * connections are closed between them, which loses nothing, and hides no loss.
 *
 * The server is nbdkit's file plugin with filters that remove features.  Its file
 * contains all flushed data.  Several threads share blocks of which they write parts.
 *
 * Environment: SEED, ITERATIONS, FIRST, SECONDS (4) as for crash/requests.
 */

#include <config.h>

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "storage/storage.h"
#include "lib/images.h"
#include "lib/trials.h"

#define THREADS 12
#define REGION (UINT64_C (60) << 10)    /* of each; no multiple of all blocks */
#define SIZE (UINT64_C (1) << 20)

extern char **environ;

/* What the server does without. */
static const char *const manners[][3] = {
  { NULL }, { "--filter=nozero", NULL }, { "--filter=noextents", NULL },
  { "--filter=fua", "fuamode=emulate", NULL },
  { "--filter=multi-conn", "multi-conn-mode=disable", NULL },
  { "--filter=blocksize-policy", "blocksize-minimum=512", NULL },
  { "--filter=blocksize-policy", "blocksize-minimum=4096", NULL },
};
#define MANNERS (sizeof manners / sizeof manners[0])

static pid_t server;
static char *socket_path, *file_path;
static unsigned rounds, kills;

/* --- the server --- */

/* nbdkit with these arguments, which end with NULL. */
static void
start_nbdkit (const char *const *arguments)
{
  const struct timespec moment = { .tv_nsec = 5000000 };
  const char *argv[20] = {
    "nbdkit", "-f", "--exit-with-parent", "-U", socket_path, "-P", "pid"
  };
  struct stat st = { 0 };
  int n;

  for (n = 7; *arguments; arguments++)
    argv[n++] = *arguments;
  CHECK (n < 20);
  unlink (socket_path);
  unlink ("pid");
  CHECK (posix_spawnp (&server, "nbdkit", NULL, NULL, (char **) argv, environ) == 0);
  /* It listens when that is there. */
  while (stat ("pid", &st) == -1 || st.st_size == 0) {
    CHECK (waitpid (server, NULL, WNOHANG) == 0);
    nanosleep (&moment, NULL);
  }
}

static void
start_server (unsigned manner)
{
  const char *arguments[6] = { NULL };
  int n = 0;

  if (manners[manner][0])
    arguments[n++] = manners[manner][0];
  arguments[n++] = "file";
  arguments[n++] = file_path;
  if (manners[manner][0] && manners[manner][1])
    arguments[n++] = manners[manner][1];
  if (strstr (manners[manner][0] ? manners[manner][0] : "", "blocksize"))
    arguments[n++] = "blocksize-error-policy=error";
  start_nbdkit (arguments);
}

static void
kill_server (void)
{
  CHECK (kill (server, SIGKILL) == 0 && waitpid (server, NULL, 0) == server);
  kills++;
}

/* --- threads --- */

struct worker {
  struct storage *s;
  struct rng rng;
  uint64_t start;               /* of its region */
  unsigned requests;
  unsigned char model[REGION];
};

static void
one_write (struct worker *w, uint64_t offset, uint64_t len)
{
  unsigned char *p = w->model + offset;
  const uint64_t part = rng_below (&w->rng, len);
  const struct iovec iov[2] = { { p, part }, { p + part, len - part } };
  const int r = rng_below (&w->rng, 8);

  if (r < 2) {
    /* 0: it can't, and nothing has happened. */
    const int done = (r ? storage_punch : storage_zero) (w->s, w->start + offset, len);

    if (done == -1)
      FAIL ("at %" PRIu64 ": %s", w->start, last_error ());
    if (done == 1)
      memset (p, 0, len);
    return;
  }
  memset (p, rng_next (&w->rng), part);
  memset (p + part, rng_next (&w->rng), len - part);
  if (storage_writev (w->s, iov, 2, w->start + offset, r == 2) == -1)
    FAIL ("at %" PRIu64 ": %s", w->start, last_error ());
}

static void *
work (void *opaque)
{
  struct worker *w = opaque;
  unsigned char *buf = malloc (REGION);

  CHECK (buf != NULL);
  for (unsigned i = 0; i < w->requests; i++) {
    const uint64_t offset = rng_below (&w->rng, REGION - 1);
    const uint64_t len = 1 + rng_below (&w->rng, rng_below (&w->rng, 4) ? 600
                                        : REGION - offset) % (REGION - offset);
    uint64_t known = len;
    bool hole;

    switch (rng_below (&w->rng, 4)) {
    case 0:
    case 1:
      one_write (w, offset, len);
      break;
    case 2:
      CHECK (storage_read (w->s, buf, len, w->start + offset) == 0);
      if (memcmp (buf, w->model + offset, len) != 0)
        FAIL ("%" PRIu64 "+%" PRIu64 " reads other than it was written",
              w->start + offset, len);
      break;
    case 3:
      storage_prefetch (w->s, w->start + offset, len);
      hole = storage_hole (w->s, w->start + offset, &known);
      CHECK (known > 0 && known <= len);
      for (uint64_t k = 0; hole && k < known; k++)
        CHECK (w->model[offset + k] == 0);
    }
  }
  free (buf);
  return NULL;
}

static struct worker workers[THREADS];

static void
run (struct storage *s, struct rng *rng, unsigned requests)
{
  for (unsigned i = 0; i < THREADS; i++) {
    workers[i].s = s;
    workers[i].requests = requests;
    rng_init (&workers[i].rng, rng_next (rng), i);
  }
  run_threads (work, workers, sizeof workers[0], THREADS);
}

/* What was flushed is in the file. */
static void
check_file (void)
{
  const int fd = open (file_path, O_RDONLY | O_CLOEXEC);
  unsigned char buf[REGION];

  CHECK (fd >= 0);
  for (unsigned i = 0; i < THREADS; i++) {
    CHECK (pread (fd, buf, REGION, workers[i].start) == REGION);
    if (memcmp (buf, workers[i].model, REGION) != 0)
      FAIL ("region %u is not what was flushed", i);
  }
  close (fd);
}

struct load {
  struct storage *s;
  struct rng *rng;
};

/* While the server is away. */
static void *
run_load (void *opaque)
{
  struct load *load = opaque;

  run (load->s, load->rng, 20);
  return NULL;
}

static void
check_unflushed (struct storage *s, unsigned manner, bool disconnect)
{
  const unsigned char byte = workers[0].model[0] + 1;
  unsigned char buf;

  CHECK (storage_write (s, &byte, 1, 0) == 0);
  kill_server ();
  if (disconnect)
    storage_disconnect (s);
  start_server (manner);
  CHECK (storage_sync (s) == -1 && errno == EIO);
  CHECK (storage_sync (s) == -1 && errno == EIO);
  CHECK (storage_write (s, &byte, 1, 0) == -1 && errno == EIO);
  CHECK (storage_sync_changes (s) == -1);
  CHECK (storage_read (s, &buf, 1, 0) == 0);
}

/* Connections are closed while others use them. */
static void
check_disconnect (struct storage *s, struct rng *rng)
{
  struct load load = { s, rng };
  pthread_t thread;

  CHECK (pthread_create (&thread, NULL, run_load, &load) == 0);
  for (unsigned i = 0; i < 4; i++)
    storage_disconnect (s);
  CHECK (pthread_join (thread, NULL) == 0);
  storage_disconnect (s);
  check_file ();
}

/* The export grows while others use it. */
static void
check_growth (struct storage *s, struct rng *rng)
{
  const bool truncates = rng_below (rng, 2), durable = rng_below (rng, 2);
  struct load load = { s, rng };
  unsigned char buf[3] = { 0 };
  const struct iovec iov = { (void *) "new", 3 };
  pthread_t thread;

  CHECK (truncate (file_path, 2 * SIZE) == 0);
  CHECK (storage_size_now (s, false) == SIZE);
  CHECK (pthread_create (&thread, NULL, run_load, &load) == 0);
  if (truncates)
    CHECK (storage_truncate (s, 2 * SIZE) == 0);
  CHECK (storage_writev (s, &iov, 1, 2 * SIZE - 3, durable) == 0);
  CHECK (storage_size (s) == 2 * SIZE);
  CHECK (storage_read (s, buf, 3, 2 * SIZE - 3) == 0 && memcmp (buf, "new", 3) == 0);
  CHECK (pthread_join (thread, NULL) == 0);
  CHECK (storage_sync (s) == 0);
  check_file ();
}

static struct storage *
open_export (const struct storage_link_options *link)
{
  const struct storage_options options = { .try_writable = true, .link = link };
  struct storage *s;
  char *uri;

  CHECK (asprintf (&uri, "nbd+unix:///?socket=%s", socket_path) > 0);
  CHECK (storage_open (uri, &options, &s) == 0 && storage_is_writable (s));
  CHECK (storage_size (s) == SIZE && !storage_is_regular (s));
  free (uri);
  return s;
}

static void
run_trial (struct rng *rng)
{
  static const struct storage_link_options link = STORAGE_LINK_DEFAULTS;
  const struct timespec moment = { .tv_nsec = 50000000 };
  const unsigned manner = rng_below (rng, MANNERS);
  struct storage *s;
  struct load load;
  pthread_t thread;
  char byte = 0;

  trials_about ("%s", manners[manner][0] ? manners[manner][0] : "all that file offers");
  CHECK (truncate (file_path, 0) == 0 && truncate (file_path, SIZE) == 0);
  start_server (manner);
  s = open_export (&link);
  for (unsigned i = 0; i < THREADS; i++)
    workers[i] = (struct worker) { .start = i * REGION };
  run (s, rng, 60);
  check_growth (s, rng);
  check_disconnect (s, rng);

  /* Nothing is lost: all wait, and go on.  (The server ends with the thread that has
   * started it: this one.) */
  kill_server ();
  load = (struct load) { s, rng };
  CHECK (pthread_create (&thread, NULL, run_load, &load) == 0);
  nanosleep (&moment, NULL);
  start_server (manner);
  CHECK (pthread_join (thread, NULL) == 0);
  CHECK (storage_sync (s) == 0);
  check_file ();

  /* Beyond the end. */
  CHECK (storage_write (s, &byte, 1, 2 * SIZE) == -1 && errno == ENOSPC);
  CHECK (storage_truncate (s, 2 * SIZE + 1) == -1 && errno == ENOSPC);
  check_unflushed (s, manner, rng_below (rng, 2));
  storage_close (s);
  kill_server ();
  rounds++;
}

/* (The first connection may take long on a busy machine.) */
static const struct storage_link_options impatient = {
  .connect_timeout_ms = 600000, .reconnect_ms = 300,
};

/* Nobody comes back. */
static void
test_gone (void)
{
  struct storage *s;
  char byte;

  start_server (0);
  s = open_export (&impatient);
  kill_server ();
  CHECK (storage_read (s, &byte, 1, 0) == -1 && errno == EIO);
  CHECK (strstr (last_error (), "cannot read 1 bytes at offset 0") != NULL);
  storage_close (s);
}

/* What comes back is smaller: bytes that were there would read as zeros. */
static void
test_shrunk (void)
{
  struct storage *s;
  char byte;

  start_server (0);
  s = open_export (&impatient);
  CHECK (storage_read (s, &byte, 1, 0) == 0);
  kill_server ();
  CHECK (truncate (file_path, SIZE / 2) == 0);
  start_server (0);
  CHECK (storage_read (s, &byte, 1, 0) == -1 && errno == EIO);
  CHECK (storage_size_now (s, true) == SIZE);
  kill_server ();
  CHECK (truncate (file_path, SIZE) == 0);
  start_server (0);
  while (storage_read (s, &byte, 1, 0) == -1)   /* not in time: each one tries once */
    CHECK (errno == EIO);
  storage_close (s);
  kill_server ();
}

static void
flushes_fail (bool fail)
{
  const int fd = fail ? open ("far.fail", O_WRONLY | O_CREAT | O_CLOEXEC, 0600) : -1;

  CHECK (fail ? fd >= 0 && close (fd) == 0 : unlink ("far.fail") == 0);
}

/* A flush that failed once may have been about any writes (R9): also if it is part of a
 * durable write, which the server (FUA native) or we ourselves (none) make so, or of
 * closing a connection. */
static void
test_failed_flush (const char *fua)
{
  static const struct storage_link_options link = STORAGE_LINK_DEFAULTS;
  char *size, *pread, *pwrite;
  const char *arguments[] = {
    "eval", "can_write=exit 0", "can_flush=exit 0", fua, NULL, NULL, NULL, NULL, NULL
  };
  const struct iovec iov = { "x", 1 };
  struct storage *s;

  CHECK (asprintf (&size, "get_size=stat -c %%s %s", file_path) > 0);
  CHECK (asprintf (&pread, "pread=dd if=%s iflag=skip_bytes,count_bytes skip=$4 count=$3 "
                   "status=none", file_path) > 0);
  CHECK (asprintf (&pwrite, "pwrite=if [ -e %s.fail ] && [ \"$5\" = fua ]; then "
                   "echo EIO no >&2; exit 1; fi; dd of=%s oflag=seek_bytes conv=notrunc "
                   "seek=$4 status=none", file_path, file_path) > 0);
  arguments[5] = size;
  arguments[6] = pread;
  arguments[7] = pwrite;
  /* nbdkit runs scripts elsewhere. */
  CHECK (asprintf ((char **) &arguments[4], "flush=if [ -e %s.fail ]; then "
                   "echo EIO no >&2; exit 1; fi", file_path) > 0);
  start_nbdkit (arguments);
  s = open_export (&link);
  CHECK (storage_writev (s, &iov, 1, 7, true) == 0 && storage_sync (s) == 0);
  flushes_fail (true);
  CHECK (storage_writev (s, &iov, 1, 8, true) == -1 && errno == EIO);
  flushes_fail (false);
  CHECK (storage_sync (s) == -1 && errno == EIO);
  storage_close (s);

  s = open_export (&link);
  CHECK (storage_write (s, "y", 1, 9) == 0);
  flushes_fail (true);
  storage_disconnect (s);
  flushes_fail (false);
  CHECK (storage_sync (s) == -1 && errno == EIO);
  storage_close (s);
  kill_server ();
  for (int i = 4; i < 8; i++)
    free ((char *) arguments[i]);
}

static void
prepare_trial (struct rng *rng)
{
  struct command c = { .n = 0 };
  int fd;

  if (socket_path == NULL) {
    signal (SIGPIPE, SIG_IGN);
    command_words (&c, "nbdkit --version");
    if (command_run (&c) != 0) {
      printf ("skipped: nbdkit is missing\n");
      exit (77);
    }
    file_path = images_path ("far");
    /* A socket's name must be short. */
    CHECK (asprintf (&socket_path, "/tmp/qcow2-nbdfile.%d", (int) getpid ()) > 0);
    fd = open (file_path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    CHECK (fd >= 0 && ftruncate (fd, SIZE) == 0 && close (fd) == 0);
    test_gone ();
    test_shrunk ();
    test_failed_flush ("can_fua=echo none");
    test_failed_flush ("can_fua=echo native");
  }
  run_trial (rng);
}

int
main (void)
{
  quiet_errors = true;
  trials_run ("nbdfile", 4, MANNERS, prepare_trial);
  unlink (socket_path);
  printf ("%u rounds, %u servers killed\n", rounds, kills);
  return 0;
}
