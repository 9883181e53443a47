/* SPDX-License-Identifier: BSD-3-Clause
 *
 * A backing chain of 4096 files is opened, and described, also if the process may have
 * few files open: it raises its own limit.  Of one more, both are refused, with one
 * message.  Without memory, the description of a shorter one fails, and says why.
 *
 * All images are copies of one small one, with other names in their headers.
 */

#include <config.h>

#include <errno.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "mapping/chain.h"
#include "disk/disk.h"
#include "disk/chaininfo.h"
#include "lib/allocations.h"
#include "lib/images.h"
#include "lib/shortage.h"
#include "lib/stubs.h"


static void
make_chain (unsigned n)
{
  const struct image_spec base = {
    .version = 3, .cluster_size = 512, .refcount_bits = 16, .size = 512,
  };
  struct image_spec spec = base;
  struct blob b;
  uint64_t at;
  char name[20];

  image_create ("0000", &base);
  spec.backing = "0000";
  image_create ("0001", &spec);
  blob_load ("0001", &b);
  at = blob_get (&b, 8, 8);
  CHECK (at > 0 && memcmp (b.data + at, "0000", 4) == 0);
  for (unsigned i = 2; i < n; i++) {
    snprintf (name, sizeof name, "%04u", i - 1);
    memcpy (b.data + at, name, 4);
    snprintf (name, sizeof name, "%04u", i);
    blob_save (name, &b);
  }
  blob_free (&b);
}

/* 0, or errno. */
static int
open_chain (const struct disk_options *options)
{
  struct disk *d;

  if (disk_open (options, &d) == -1)
    return errno;
  CHECK (disk_close (d) == 0);
  return 0;
}

static int
describe_chain (const struct disk_options *options)
{
  const bool was_spared = shortage_spare (true);
  json_t *info = SHORTAGE_MEETS (chaininfo_describe (options, options->path, true));
  const int err = info ? 0 : errno;

  json_decref (info);
  shortage_spare (was_spared);
  return err;
}

static void
is_refused (int (*use) (const struct disk_options *), const struct disk_options *options)
{
  const unsigned long errors = error_count ();

  quiet_errors = true;
  CHECK (use (options) == ELOOP && error_count () == errors + 1);
  CHECK (strstr (last_error (), "/0000: the backing chain has more than 4096 files"));
  quiet_errors = false;
}

/* Each allocation fails in turn. */
static void
describe_without_memory (const struct disk_options *options)
{
  bool met = true;
  int err;

  quiet_errors = true;
  for (uint64_t n = 0; met; n++) {
    clear_last_error ();
    shortage_begin ((struct shortage) { n, 1 });
    err = describe_chain (options);
    met = shortage_end () > 0;
    CHECK (err == 0 || (met && err == ENOMEM && last_error ()[0] != '\0'));
  }
  quiet_errors = false;
}

static char *
numbered (unsigned i)
{
  char name[20];

  snprintf (name, sizeof name, "%04u", i);
  return images_path (name);
}

int
main (void)
{
  struct disk_options options = { .l2_slice = 512, .backing = BACKING_FOLLOW };
  struct rlimit limit;

  CHECK (getrlimit (RLIMIT_NOFILE, &limit) == 0);
  if (limit.rlim_max < CHAIN_MAX_LAYERS + 200) {
    printf ("skipped: this user may have only %u files open\n",
            (unsigned) limit.rlim_max);
    return 77;
  }
  images_enter ("chain-too-long");
  limit.rlim_cur = 256;
  CHECK (setrlimit (RLIMIT_NOFILE, &limit) == 0);
  make_chain (CHAIN_MAX_LAYERS + 1);
  options.path = numbered (CHAIN_MAX_LAYERS - 1);
  CHECK (open_chain (&options) == 0);
  CHECK (describe_chain (&options) == 0);
  CHECK (getrlimit (RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur == limit.rlim_max);
  free ((char *) options.path);
  options.path = numbered (CHAIN_MAX_LAYERS);
  is_refused (open_chain, &options);
  is_refused (describe_chain, &options);
  free ((char *) options.path);
  options.path = numbered (9);
  describe_without_memory (&options);
  free ((char *) options.path);
  images_leave ();
  return 0;
}
