/* SPDX-License-Identifier: BSD-3-Clause
 *
 * A client frees clusters while a checkpoint collects what it is going to write.  It
 * writes without the pointers to them, but the next one lowers the counts.  In version 2,
 * where no start gives leaks back, the next one follows at once: a server that is killed
 * when it has answered all requests then leaks at most 1 MiB.  But clients that free more
 * each time do not hold up a flush for ever.
 */

#include <config.h>

#include <string.h>

#include "mapping/l2.h"
#include "space/alloc.h"
#include "disk/export.h"
#include "lib/images.h"
#include "lib/survivor.h"
#include "lib/trials.h"

#define IMAGE "a.qcow2"
#define CLUSTER (UINT64_C (64) << 10)
#define SIZE (UINT64_C (64) << 20)
#define FREED (UINT64_C (8) << 20)

static struct disk *d;
static struct export *client;
static bool frees;              /* in the next checkpoint */
static bool always_frees;       /* so it seems */
static int checkpoints;

extern int __real_l2_take (struct l2 *, struct l2_batch *);
extern int __wrap_l2_take (struct l2 *, struct l2_batch *);

int
__wrap_l2_take (struct l2 *l2, struct l2_batch *batch)
{
  checkpoints++;
  if (frees) {
    frees = false;
    CHECK (export_trim (client, FREED, FREED, false) == 0);
  }
  return __real_l2_take (l2, batch);
}

extern bool __real_alloc_wants_release (struct alloc *);
extern bool __wrap_alloc_wants_release (struct alloc *);

bool
__wrap_alloc_wants_release (struct alloc *alloc)
{
  return always_frees || __real_alloc_wants_release (alloc);
}

/* What is in the file now is what a killed server would leave. */
static uint64_t
leaked (void)
{
  struct blob b;
  uint64_t leaks;

  blob_load (IMAGE, &b);
  leaks = survivor_check (&b, true, "now");
  blob_free (&b);
  return leaks * CLUSTER;
}

int
main (void)
{
  static const struct image_spec spec = {
    .version = 2, .cluster_size = CLUSTER, .refcount_bits = 16, .size = SIZE,
  };
  struct disk_options options = {
    .l2_cache = 1 << 20, .l2_slice = 4096, .discard = true,
  };
  static char buf[4 * FREED];
  char *path;

  images_enter ("freed-meanwhile");
  options.path = path = images_path (IMAGE);
  image_create (IMAGE, &spec);
  CHECK (disk_open (&options, &d) == 0);
  CHECK ((client = export_open (d, "", true)) != NULL);
  memset (buf, 'a', sizeof buf);
  CHECK (export_write (client, buf, sizeof buf, 0, false) == 0);
  CHECK (export_flush (client) == 0);

  frees = true;
  CHECK (export_trim (client, CLUSTER, 0, true) == 0);
  CHECK (!frees);
  if (leaked () > 1 << 20)
    FAIL ("%u KiB leaked", (unsigned) (leaked () >> 10));

  always_frees = true;
  checkpoints = 0;
  CHECK (export_flush (client) == 0);
  CHECK (checkpoints > 1);
  always_frees = false;

  CHECK (export_close (client) == 0);
  CHECK (disk_close (d) == 0);
  CHECK (leaked () == 0);
  free (path);
  images_leave ();
  return 0;
}
