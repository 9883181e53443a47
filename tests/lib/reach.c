/* SPDX-License-Identifier: BSD-3-Clause
 *
 * How can tests of the core run on each kind of storage?
 *
 * A test makes its images as files, and says what the core opens in terms of files.  If
 * QCOW2_TEST_STORAGE=nbd is in the environment, the core gets NBD URIs instead, of a
 * server in this process (remoteserver.c) that serves these files; and headers name other
 * files by URI, for the core as well as for QEMU.  What hooks do to a file, they then do
 * behind the server.
 *
 * Locks: none: for the thread that opens images (the server has locks of its own).
 */

#include <config.h>

#include <dirent.h>
#include <string.h>
#include <unistd.h>

#include "lib/images.h"
#include "lib/reach.h"
#include "lib/shortage.h"

struct uri {
  char *path, *text;
};

static struct remoteserver *server;
static struct remotemanners manners;
static char socket_path[64], prefix[100];
static const char *const allowed[] = { prefix };
static struct uri uris[32];
static unsigned nr_uris;

struct remoteserver *
reach_server (void)
{
  return server;
}

void
reach_begin (const char *dir)
{
  const char *kind = getenv ("QCOW2_TEST_STORAGE");

  if (kind == NULL || kind[0] == '\0')
    return;
  CHECK (strcmp (kind, "nbd") == 0);
  /* The path of a socket must be short. */
  snprintf (socket_path, sizeof socket_path, "/tmp/qcow2-far.%d", (int) getpid ());
  snprintf (prefix, sizeof prefix, "nbd+unix:///?socket=%s", socket_path);
  unlink (socket_path);
  server = remoteserver_start (socket_path, dir);
}

void
reach_end (void)
{
  if (server == NULL)
    return;
  remoteserver_stop (server);
  server = NULL;
  unlink (socket_path);
  while (nr_uris > 0) {
    free (uris[--nr_uris].path);
    free (uris[nr_uris].text);
  }
}

unsigned
reach_open_descriptors (void)
{
  unsigned n = 0;
  DIR *dir;

  if (server)
    remoteserver_rest (server);
  dir = opendir ("/proc/self/fd");
  CHECK (dir != NULL);
  while (readdir (dir))
    n++;
  closedir (dir);
  return n;
}

void
reach_choose_manners (struct rng *rng)
{
  if (server == NULL)
    return;
  manners = remoteserver_random_manners (rng);
  remoteserver_behave (server, &manners);
  remotemanners_print (&manners);
}

bool
reach_punches (uint64_t sizes)
{
  return server == NULL || (!manners.no_zero && (sizes & (manners.minimum - 1)) == 0);
}

bool
reach_shares_blocks (void)
{
  return server && manners.minimum > 512;
}

bool
reach_writes_durably (void)
{
  return server == NULL || !manners.no_fua;
}

static char *
make_uri (const char *name)
{
  char *text;

  CHECK (asprintf (&text, "nbd+unix:///%s?socket=%s", name, socket_path) > 0);
  return text;
}

char *
reach_backing_in_header (const char *name)
{
  char *text = server ? make_uri (name) : strdup (name);

  CHECK (text != NULL);
  return text;
}

char *
reach_data_file_in_header (const char *name)
{
  char *text = server ? images_path (name) : strdup (name);

  CHECK (text != NULL);
  return text;
}

static const char *
find_uri (const char *path)
{
  struct uri *u = uris;

  while (u < uris + nr_uris && strcmp (u->path, path) != 0)
    u++;
  if (u == uris + nr_uris) {
    CHECK (nr_uris < sizeof uris / sizeof uris[0]);
    nr_uris++;
    *u = (struct uri) { strdup (path), make_uri (strrchr (path, '/') + 1) };
    CHECK (u->path != NULL);
  }
  return u->text;
}

void
reach_hook (const char *path, const struct storage_hooks *hooks)
{
  if (server)
    remoteserver_hooks (server, path, hooks);
}

const char *
reach_path (const char *path, const struct storage_hooks **hooks)
{
  const bool was_spared = shortage_spare (true);

  if (server) {
    reach_hook (path, *hooks);
    *hooks = NULL;
    path = find_uri (path);
  }
  shortage_spare (was_spared);
  return path;
}

struct filename_rules
reach_rules (void)
{
  return server ? (struct filename_rules) { allowed, 1 } : (struct filename_rules) { 0 };
}

/* The URI of the data file of the image at PATH, or NULL. */
static const char *
find_data_uri (const char *path)
{
  const char *uri = NULL;
  char *name = NULL;
  struct blob b;

  blob_load (path, &b);
  if (blob_get (&b, 4, 4) == 3 && (blob_get (&b, 72, 8) & QCOW2_INCOMPAT_DATA_FILE))
    name = blob_extension (&b, QCOW2_EXT_DATA_FILE);
  if (name)
    uri = find_uri (name);
  free (name);
  blob_free (&b);
  return uri;
}

struct disk_options
reach_disk (const struct disk_options *options)
{
  struct disk_options o = *options;
  const bool was_spared = shortage_spare (true);

  if (server && o.data_file == DATA_FILE_FOLLOW &&
      (o.data_file_path = find_data_uri (o.path)) != NULL)
    o.data_file = DATA_FILE_PATH;
  shortage_spare (was_spared);
  o.path = reach_path (o.path, &o.hooks);
  o.rules = reach_rules ();
  o.link = (struct storage_link_options) STORAGE_LINK_DEFAULTS;
  o.lock = o.lock && server == NULL;    /* NBD has none */
  return o;
}

int
reach_open (const struct disk_options *options, struct disk **disk)
{
  const struct disk_options o = reach_disk (options);

  return disk_open (&o, disk);
}

int
reach_check (const struct check_options *options, struct check **check)
{
  struct check_options o = *options;

  o.path = reach_path (o.path, &o.chain.image.file.hooks);
  o.chain.image.rules = reach_rules ();
  o.chain.image.file.link = NULL;       /* the defaults */
  return check_image (&o, check);
}
