/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Does the plugin keep its promises, whatever its user and its clients do?
 *
 * This is nbdkit, reduced to what matters to the plugin: it calls the callbacks of
 * plugin/plugin.c in the order in which nbdkit does.  A script from a fuzzer chooses
 * parameters, then exports and requests (fuzzclients.c).  One thread; several
 * connections.  Between two servers the image may be changed, described and mapped
 * (fuzzchange.c).
 *
 * Before each start, it is decided whether the image is sound (fuzzjudge.c).  If it is:
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

#include "lib/fuzzserver-impl.h"
#include "lib/fuzzmemory.h"
#include "lib/stubs.h"

#define MAX_MEMORY (64u << 20)
#define MAX_SECONDS 10

static const char *directory;

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
  { "log", { "/dev/null" } },
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

#define MAX_CHOSEN 7
#define MAX_GIVEN (1 + 3 * MAX_CHOSEN)

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
  if (fuzz_heard (fuzz.plugin->config ("file", FUZZSERVER_IMAGE)) == -1)
    return -1;
  for (unsigned i = 0; i < n; i++)
    fuzz_show (given[i].key, given[i].value, 0, 0);
  for (unsigned i = 0; i < n; i++)
    if (fuzz_heard (fuzz.plugin->config (given[i].key, given[i].value)) == -1)
      return -1;
  return fuzz_heard (fuzz.plugin->config_complete ());
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
    if (strcmp (given[i].key, "passphrase") == 0 && given[i].value != fuzz.passphrase) {
      fuzz.passphrase = given[i].value;
      fuzz_forget_all ();
    }
  }
  fuzz.told = false;
  fuzz.plugin->load ();
  if (give_params (given, n) == 0) {
    if (fuzz_heard (hushed (fuzz.plugin->get_ready)) == 0) {
      if (create) {
        CHECK (fuzz.sound = fuzz_is_sound ());
        memset (fuzz.namesakes, 0, sizeof fuzz.namesakes);
      }
      fuzz_follow_all (given, n);
      if (fuzz.plugin->after_fork () == 0)
        fuzz_serve (s, other);
    }
    else
      fuzz_forget_all ();       /* some of the changes may have been made */
    fuzz.plugin->cleanup ();
    fuzz_heard (0);
    if (reinterpreted)
      fuzz_forget_all ();
  }
  fuzz.plugin->unload ();
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
  fuzz_forget_all ();
  fuzz.sound = !create && fuzz_is_sound ();
  fuzz_show (fuzz.sound ? "sound" : "not sound", "", 0, 0);
  do {
    const bool was = fuzz.sound;

    one_server (s, create);
    create = create && access (fuzz.image, F_OK) == -1;
    fuzz.sound = !create && fuzz_is_sound ();
    fuzz_show (fuzz.sound ? "sound" : "not sound", "", 0, 0);
    CHECK (fuzz.sound || !was);
    const uint8_t between = create ? 0 : fuzz_byte (s);

    if (between & 1)
      fuzz_change (s);
    if ((between & 6) == 6)
      fuzz_describe_and_map (fuzz_byte (s) & 1);
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
  fuzzserver_path (FUZZSERVER_IMAGE, fuzz.image);
  fuzz.plugin = plugin_init ();
  CHECK (fuzz.plugin != NULL);
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
