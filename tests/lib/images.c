/* SPDX-License-Identifier: BSD-3-Clause
 *
 * How do tests get images from another program, and another opinion about ours?
 *
 * From qemu-img and qemu-io, as child processes.  Everything happens in a private
 * directory, which images_enter makes the current one, so file names are plain names.
 */

#include <config.h>

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "util/bytes.h"
#include "lib/encrypted.h"
#include "lib/images.h"
#include "lib/reach.h"

extern char **environ;

static char *directory;

void
images_enter (const char *name)
{
  struct command probe[2] = { { .n = 0 }, { .n = 0 } };
  char *cwd = getcwd (NULL, 0);
  int i;

  CHECK (cwd != NULL);
  CHECK (asprintf (&directory, "%s/%s.XXXXXX", cwd, name) > 0);
  free (cwd);
  CHECK (mkdtemp (directory) != NULL);
  CHECK (chdir (directory) == 0);
  reach_begin (directory);

  command_add (&probe[0], "qemu-img");
  command_add (&probe[1], "qemu-io");
  for (i = 0; i < 2; i++) {
    command_add (&probe[i], "--version");
    if (command_run (&probe[i]) != 0) {
      printf ("skipped: qemu-img or qemu-io is missing\n");
      images_leave ();
      exit (77);
    }
  }
}

void
images_leave (void)
{
  DIR *dir = opendir (".");
  struct dirent *d;

  reach_end ();
  CHECK (dir != NULL);
  while ((d = readdir (dir)) != NULL)
    if (d->d_name[0] != '.')
      unlink (d->d_name);
  closedir (dir);
  CHECK (chdir ("..") == 0);
  rmdir (directory);
  free (directory);
  directory = NULL;
}

unsigned
files_in (const char *path)
{
  DIR *dir = opendir (path);
  unsigned n = 0;

  CHECK (dir != NULL);
  while (readdir (dir))
    n++;
  closedir (dir);
  return n - 2;
}

char *
images_path (const char *name)
{
  char *path;

  CHECK (asprintf (&path, "%s/%s", directory, name) > 0);
  return path;
}

/* --- commands --- */

void
command_add (struct command *c, const char *fmt, ...)
{
  va_list args;

  CHECK (c->n + 1 < (int) (sizeof c->argv / sizeof c->argv[0]));
  va_start (args, fmt);
  CHECK (vasprintf (&c->argv[c->n++], fmt, args) >= 0);
  va_end (args);
  c->argv[c->n] = NULL;
}

void
command_words (struct command *c, const char *words)
{
  int n;

  for (; *words; words += n + strspn (words + n, " ")) {
    n = strcspn (words, " ");
    command_add (c, "%.*s", n, words);
  }
}

static int
spawn_and_wait (struct command *c)
{
  posix_spawn_file_actions_t actions;
  pid_t pid;
  int err, status;

  posix_spawn_file_actions_init (&actions);
  posix_spawn_file_actions_addopen (&actions, 0, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_addopen (&actions, 1, "log",
                                    O_WRONLY | O_CREAT | O_TRUNC, 0600);
  posix_spawn_file_actions_adddup2 (&actions, 1, 2);
  err = posix_spawnp (&pid, c->argv[0], &actions, NULL, c->argv, environ);
  posix_spawn_file_actions_destroy (&actions);
  if (err == ENOENT)
    return 127;
  CHECK (err == 0);

  while (waitpid (pid, &status, 0) == -1)
    CHECK (errno == EINTR);
  return WIFEXITED (status) ? WEXITSTATUS (status) : 128 + WTERMSIG (status);
}

static void
command_free (struct command *c)
{
  while (c->n > 0)
    free (c->argv[--c->n]);
}

int
command_run (struct command *c)
{
  int status = spawn_and_wait (c);

  command_free (c);
  return status;
}

/* Shows the output of a command. */
static void
show_log (void)
{
  struct blob log;

  blob_load ("log", &log);
  fwrite (log.data, 1, log.len, stderr);
  blob_free (&log);
}

/* qemu-img measures how long PBKDF2 takes, and refuses if that was too short for its
 * clock.  Nothing is wrong then: it may be run again. */
static bool
clock_was_coarse (void)
{
  static const char says[] = "Unable to get accurate CPU usage";
  struct blob log;
  bool r;

  blob_load ("log", &log);
  r = memmem (log.data, log.len, says, strlen (says)) != NULL;
  blob_free (&log);
  return r;
}

void
command_must (struct command *c)
{
  int i, tries = 1, status = spawn_and_wait (c);

  for (; status != 0 && tries < 20 && clock_was_coarse (); tries++)
    status = spawn_and_wait (c);
  if (status != 0) {
    for (i = 0; i < c->n; i++)
      fprintf (stderr, "%s ", c->argv[i]);
    fprintf (stderr, "\nin %s: exit status %d\n", directory, status);
    show_log ();
  }
  CHECK (status == 0);
  command_free (c);
}

/* --- how QEMU opens them --- */

/* Properties of an image that image_create has made, which QEMU's tools need as
 * arguments: they require the secret of each layer that is encrypted. */
struct known {
  char name[24];
  bool raw;
  const char *encrypt;
  const struct known *below;
};

static struct known known[16];
static unsigned nr_known;

static struct known *
find_known (const char *name)
{
  unsigned i;

  for (i = 0; i < nr_known; i++)
    if (strcmp (known[i].name, name) == 0)
      return &known[i];
  return NULL;
}

void
image_remember (const char *name, const struct image_spec *spec)
{
  struct known *k = find_known (name);

  if (k == NULL) {
    CHECK (nr_known < sizeof known / sizeof known[0]);
    k = &known[nr_known++];
  }
  CHECK (strlen (name) < sizeof k->name);
  strcpy (k->name, name);
  k->raw = spec->raw;
  k->encrypt = spec->encrypt;
  k->below = spec->backing ? find_known (spec->backing) : NULL;
}

static bool
needs_secret (const struct known *k)
{
  for (; k; k = k->below)
    if (k->encrypt)
      return true;
  return false;
}

static void
describe (const struct known *k, bool below, char **text)
{
  char *more = NULL, *old = *text;

  if (k->below && below)
    describe (k->below, true, &more);
  CHECK (asprintf (text, "%s{\"driver\": \"%s\", \"file\": {\"driver\": "
                   "\"file\", \"filename\": \"%s\"}%s%s%s%s%s}",
                   old ? old : "", k->raw ? "raw" : "qcow2", k->name,
                   k->encrypt ? ", \"encrypt\": {\"key-secret\": \"s\", "
                   "\"format\": \"" : "", k->encrypt ? k->encrypt : "",
                   k->encrypt ? "\"}" : "",
                   more ? ", \"backing\": " : "", more ? more : "") > 0);
  free (more);
  free (old);
}

static void
add_secret (struct command *c)
{
  command_add (c, "--object");
  command_add (c, "secret,id=s,data=%s", IMAGES_SECRET);
}

/* Adds the image NAME as an argument for one of QEMU's tools.  FORMAT is NULL if the tool
 * has no such option.  BELOW: the tool may read the layers below. */
static void
add_image (struct command *c, const char *name, const char *format, bool below)
{
  const struct known *k = find_known (name);
  char *text = NULL;

  if (needs_secret (k)) {
    add_secret (c);
    describe (k, below, &text);
    command_add (c, "json:%s", text);
    free (text);
    return;
  }
  if (format) {
    command_add (c, "-f");
    command_add (c, "%s", format);
  }
  command_add (c, "%s", name);
}

/* --- images --- */

void
image_create (const char *name, const struct image_spec *spec)
{
  struct command c = { .n = 0 };

  image_remember (name, spec);
  if (spec->encrypt && strcmp (spec->encrypt, "luks") == 0) {
    encrypted_create (name, spec);
    return;
  }
  command_words (&c, "qemu-img create -q -f");
  if (spec->raw)
    command_add (&c, "raw");
  else {
    command_words (&c, "qcow2 -o");
    command_add (&c, "compat=%s,cluster_size=%" PRIu64 ",refcount_bits=%u",
                 spec->version == 2 ? "0.10" : "1.1", spec->cluster_size,
                 spec->refcount_bits);
    if (spec->extended)
      command_words (&c, "-o extended_l2=on");
    if (spec->preallocation) {
      command_add (&c, "-o");
      command_add (&c, "preallocation=%s", spec->preallocation);
    }
    if (spec->data_file) {
      char *data_file = reach_data_file_in_header (spec->data_file);

      command_add (&c, "-o");
      command_add (&c, "data_file=%s,data_file_raw=%s", data_file,
                   spec->data_file_raw ? "on" : "off");
      free (data_file);
    }
    if (spec->encrypt) {
      add_secret (&c);
      command_add (&c, "-o");
      command_add (&c, "encrypt.format=%s,encrypt.key-secret=s", spec->encrypt);
    }
    if (spec->backing) {
      char *backing = reach_backing_in_header (spec->backing);

      /* (Not opened: the backing file may be encrypted.) */
      command_words (&c, "-u -b");
      command_add (&c, "%s", backing);
      free (backing);
      command_add (&c, "-F");
      command_add (&c, spec->backing_raw ? "raw" : "qcow2");
    }
  }
  command_add (&c, "%s", name);
  command_add (&c, "%" PRIu64, spec->size);
  command_must (&c);
}

/* Makes a file whose contents identify their place: each 8 bytes are different.  It is
 * repeated if LEN is large.  N is the number of the command that uses it. */
static void
save_pattern (struct rng *rng, int n, uint64_t len)
{
  const uint64_t base = rng_next (rng) << 24;
  struct blob b;
  char name[32];
  uint64_t i;

  b.len = len < 128 << 10 ? len : 128 << 10;
  b.data = malloc (b.len + 8);
  CHECK (b.data != NULL);
  for (i = 0; i < b.len; i += 8) {
    uint64_t word = base + i + 1;
    memcpy (b.data + i, &word, sizeof word);
  }
  snprintf (name, sizeof name, "pattern%d", n);
  blob_save (name, &b);
  blob_free (&b);
}

/* Clusters that were never written can be written as compressed ones. */
static void
add_compressed (struct command *c, const struct image_spec *spec,
                struct rng *rng)
{
  const uint64_t cs = spec->cluster_size, clusters = spec->size / cs;
  uint64_t at = rng_below (rng, 4), n;
  int i;

  for (i = 0; i < 6 && at < clusters; i++) {
    n = 1 + rng_below (rng, cs < 65536 ? 20 : 3);
    if (n > clusters - at)
      n = clusters - at;
    save_pattern (rng, c->n, n * cs);
    command_add (c, "-c");
    command_add (c, "write -c -s pattern%d %" PRIu64 " %" PRIu64, c->n - 1,
                 at * cs, n * cs);
    at += n + rng_below (rng, clusters / 3 + 1);
  }
}

static void
add_change (struct command *c, const struct image_spec *spec, struct rng *rng)
{
  static const uint64_t units[] = { 1, 512, 4096 };
  const uint64_t longest = spec->size / 4 < 256 << 10 ?
    spec->size / 4 + 1 : 256 << 10;
  uint64_t unit = rng_below (rng, 4) == 0 ? spec->cluster_size :
    units[rng_below (rng, 3)];
  uint64_t offset, len;

  if (unit == 0 || unit > spec->size / 2)
    unit = 1;
  offset = rng_below (rng, spec->size) / unit * unit;
  len = (1 + rng_below (rng, longest) / unit) * unit;
  if (len > spec->size - offset)
    len = spec->size - offset;

  switch (rng_below (rng, 6)) {
  case 0:
    command_add (c, "-c");
    command_add (c, "write -z%s %" PRIu64 " %" PRIu64,
                 rng_below (rng, 2) ? "u" : "", offset, len);
    break;
  case 1:
    /* Discard may do less than requested; no test relies on it. */
    command_add (c, "-c");
    command_add (c, "discard %" PRIu64 " %" PRIu64, offset, len);
    break;
  default:
    save_pattern (rng, c->n, len);
    command_add (c, "-c");
    command_add (c, "write -s pattern%d %" PRIu64 " %" PRIu64, c->n - 1,
                 offset, len);
  }
}

void
image_fill (const char *name, const struct image_spec *spec,
            struct rng *rng, int n)
{
  struct command c = { .n = 0 };

  if (n == 0 && !spec->compressed)
    return;
  /* (It need not wait for the host's disk.) */
  command_words (&c, "qemu-io -d unmap -t unsafe");
  if (spec->compressed)
    add_compressed (&c, spec, rng);
  while (n-- > 0)
    add_change (&c, spec, rng);
  add_image (&c, name, spec->raw ? "raw" : "qcow2", true);
  command_must (&c);
}

void
image_over_raw (struct image_spec *spec, struct rng *rng, uint64_t size, int n,
                struct blob *contents)
{
  const struct image_spec raw = { .raw = true, .size = size };

  image_create ("below", &raw);
  image_fill ("below", &raw, rng, n);
  blob_load ("below", contents);
  spec->backing = "below";
  spec->backing_raw = true;
}

void
image_snapshot (const char *name, const char *snapshot)
{
  struct command c = { .n = 0 };

  command_words (&c, "qemu-img snapshot -c");
  command_add (&c, "%s", snapshot);
  add_image (&c, name, NULL, true);
  command_must (&c);
}

void
image_bitmap (const char *name, const char *bitmap, unsigned granularity_bits)
{
  struct command c = { .n = 0 };

  command_words (&c, "qemu-img bitmap --add");
  if (granularity_bits > 0) {
    command_add (&c, "-g");
    command_add (&c, "%" PRIu64, UINT64_C (1) << granularity_bits);
  }
  add_image (&c, name, NULL, false);
  command_add (&c, "%s", bitmap);
  command_must (&c);
}

void
image_bitmap_disable (const char *name, const char *bitmap)
{
  struct command c = { .n = 0 };

  command_words (&c, "qemu-img bitmap --disable");
  add_image (&c, name, NULL, false);
  command_add (&c, "%s", bitmap);
  command_must (&c);
}

/* --- header extensions --- */

#define PUSHED 0x70757368u

/* Returns the offset of the extension after the one at AT in B's header, or 0 if AT is
 * the end mark. */
static uint64_t
next_extension (const struct blob *b, uint64_t at)
{
  return blob_get (b, at, 4) == 0 ? 0
    : at + 8 + (blob_get (b, at + 4, 4) + 7) / 8 * 8;
}

uint64_t
image_push_extensions (const char *name, struct rng *rng)
{
  uint64_t list, at, next, last, used, backing, cs, len = 0;
  struct blob b;

  blob_load (name, &b);
  list = last = at = blob_get (&b, 100, 4);
  cs = UINT64_C (1) << blob_get (&b, 20, 4);
  if (blob_get (&b, 4, 4) < 3)
    goto out;
  while ((next = next_extension (&b, at)) != 0) {
    last = at;
    at = next;
  }
  used = at + 8;
  backing = blob_get (&b, 8, 8);
  if (backing != 0)
    used = backing + blob_get (&b, 16, 4);
  /* The data begins in the last 8 or 16 bytes of a sector, 8 behind LAST or AT. */
  if (rng_below (rng, 2))
    last = at;
  len = (rng_below (rng, 4) ? 512 - 16 - 8 * rng_below (rng, 2) - (last + 8) % 512 + 512
         : 8 * (1 + rng_below (rng, 100))) % 512 / 8 * 8;
  if (len == 0)
    len = 8;
  /* The space that a change of the header may need: 32 bytes, or if its list of
   * extensions is longer than a sector, all of the list once more. */
  if (used + 8 + len + 32 > 512 && 2 * (used + 8 + len + 48) > cs) {
    len = 0;
    goto out;
  }
  memmove (b.data + list + 8 + len, b.data + list, used - list);
  blob_put (&b, list, PUSHED, 4);
  blob_put (&b, list + 4, len, 4);
  memset (b.data + list + 8, 0xe7, len);
  if (backing != 0)
    blob_put (&b, 8, backing + 8 + len, 8);
  blob_save (name, &b);
 out:
  blob_free (&b);
  return len;
}

char *
blob_extension (const struct blob *b, uint32_t type)
{
  uint64_t at, len;

  for (at = blob_get (b, 100, 4); at != 0; at = next_extension (b, at)) {
    len = blob_get (b, at + 4, 4);
    if (blob_get (b, at, 4) == type && len > 0 && range_within (at + 8, len, b->len))
      return strndup ((char *) b->data + at + 8, len);
  }
  return NULL;
}

bool
blob_has_pushed (const struct blob *b, uint64_t len)
{
  uint64_t at, i;

  for (at = blob_get (b, 100, 4); at != 0; at = next_extension (b, at))
    if (blob_get (b, at, 4) == PUSHED && blob_get (b, at + 4, 4) == len) {
      for (i = 0; i < len && blob_get (b, at + 8 + i, 1) == 0xe7; i++)
        ;
      return i == len;
    }
  return false;
}

void
image_print (const struct image_spec *spec)
{
  printf ("v%d, clusters %" PRIu64 ", size %" PRIu64 ", counts %u%s%s%s%s%s%s%s",
          spec->version, spec->cluster_size, spec->size, spec->refcount_bits,
          spec->extended ? ", subclusters" : "",
          spec->preallocation ? ", " : "",
          spec->preallocation ? spec->preallocation : "",
          spec->backing ? ", backing file" : "",
          spec->data_file_raw ? ", raw data file"
          : spec->data_file ? ", data file" : "",
          spec->encrypt ? ", " : "", spec->encrypt ? spec->encrypt : "");
}

void
image_contents (const char *name, const char *snapshot, struct blob *b)
{
  struct command c = { .n = 0 };

  command_words (&c, "qemu-img convert -O raw");
  if (snapshot) {
    command_add (&c, "-l");
    command_add (&c, "snapshot.name=%s", snapshot);
  }
  add_image (&c, name, "qcow2", true);
  command_add (&c, "contents");
  command_must (&c);
  blob_load ("contents", b);
  unlink ("contents");
}

bool
image_shows (const char *name, const char *snapshot, const struct blob *expected)
{
  struct blob b;
  bool same;

  image_contents (name, snapshot, &b);
  same = blob_same (&b, expected);
  blob_free (&b);
  return same;
}

void
image_mark (const char *name, uint64_t at, uint64_t bits)
{
  struct blob b;

  blob_load (name, &b);
  blob_put (&b, at, blob_get (&b, at, 8) | bits, 8);
  blob_save (name, &b);
  blob_free (&b);
}

int
image_check (const char *name)
{
  struct command c = { .n = 0 };
  int status;

  command_words (&c, "qemu-img check");
  add_image (&c, name, "qcow2", true);
  status = command_run (&c);
  if (status != 0 && status != 3) {
    fprintf (stderr, "qemu-img check %s: exit status %d\n", name, status);
    show_log ();
  }
  return status;
}

/* --- files --- */

void
blob_load (const char *name, struct blob *b)
{
  int fd = open (name, O_RDONLY | O_CLOEXEC);
  struct stat st;
  uint64_t done = 0;

  CHECK (fd >= 0);
  CHECK (fstat (fd, &st) == 0);
  b->len = st.st_size;
  b->data = malloc (b->len + 1);
  CHECK (b->data != NULL);
  while (done < b->len) {
    ssize_t n = read (fd, b->data + done, b->len - done);
    CHECK (n > 0);
    done += n;
  }
  close (fd);
}

/* Holes stay holes: most files contain mostly zeros. */
void
blob_save (const char *name, const struct blob *b)
{
  static const unsigned char zeros[4096];
  int fd = open (name, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  uint64_t at, n;

  CHECK (fd >= 0);
  CHECK (ftruncate (fd, b->len) == 0);
  for (at = 0; at < b->len; at += n) {
    n = b->len - at < sizeof zeros ? b->len - at : sizeof zeros;
    if (memcmp (b->data + at, zeros, n) == 0)
      continue;
    CHECK (pwrite (fd, b->data + at, n, at) == (ssize_t) n);
  }
  close (fd);
}

struct blob
blob_resized (const struct blob *b, uint64_t len)
{
  const struct blob copy = { calloc (1, len + 1), len };
  const uint64_t n = b->len < len ? b->len : len;

  CHECK (copy.data != NULL);
  if (n > 0)
    memcpy (copy.data, b->data, n);
  return copy;
}

struct blob
blob_copy (const struct blob *b)
{
  return blob_resized (b, b->len);
}

void
blob_free (struct blob *b)
{
  free (b->data);
  b->data = NULL;
  b->len = 0;
}

bool
blob_same (const struct blob *a, const struct blob *b)
{
  return a->len == b->len && memcmp (a->data, b->data, a->len) == 0;
}

uint64_t
blob_get (const struct blob *b, uint64_t at, unsigned bytes)
{
  uint64_t value = 0;
  unsigned i;

  for (i = 0; i < bytes; i++)
    value = value << 8 | (at < b->len && i < b->len - at ? b->data[at + i] : 0);
  return value;
}

void
blob_put (struct blob *b, uint64_t at, uint64_t value, unsigned bytes)
{
  while (bytes-- > 0) {
    if (at < b->len && bytes < b->len - at)
      b->data[at + bytes] = value;
    value >>= 8;
  }
}
