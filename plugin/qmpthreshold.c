/* SPDX-License-Identifier: BSD-3-Clause
 *
 * How does a client of the control socket learn that storage has to be made larger?
 *
 * With block-set-write-threshold it sets a place in the file of an image, in bytes, and
 * gets one event when clusters beyond it are allocated (alloc.c), or at once if they
 * were.  As with QEMU, the threshold is gone then.  A node here is a file of the chain;
 * of QEMU's nodes it is the one of the storage, which its clients use for that, too, and
 * not the one of the format, where this would be a place of the guest's disk.
 *
 * The allocator tells it with locks held, so it only wakes the thread that runs commands,
 * which then looks at all disks.
 *
 * Locks: none of its own.
 */

#include <config.h>

#include "util/cleanup.h"
#include "util/jsontext.h"
#include "plugin/qmpjobs.h"
#include "plugin/qmpthreshold.h"

const struct qmparg qmpthreshold_arguments[] = {
  { "node-name", QMPARG_STRING, false },
  { "write-threshold", QMPARG_UINT64, false },
  { .key = NULL }
};

static int
set (const struct qmp_target *t, const char *name, uint64_t bytes, struct qmp_error *e)
{
  if (t->layer > 0)
    return qmp_refuse (e, "Node '%s' is read-only", name);
  if (disk_inside (t->disk).view->image->data)
    return qmp_refuse (e, "Node '%s' has an external data file", name);
  disk_set_threshold (t->disk, bytes);
  return 0;
}

json_t *
qmpthreshold_set (const struct qmp_host *host, const json_t *arguments, struct qmp_error *e)
{
  const char *name = qmpargs_text (arguments, "node-name");
  const json_int_t bytes =
    json_integer_value (json_object_get (arguments, "write-threshold"));
  struct qmp_target t;
  int r;

  if (qmptarget_find (host, name, &t, e) == -1) {
    qmp_refuse (e, "Device '%s' not found", name);
    return NULL;
  }
  r = set (&t, name, bytes, e);
  qmptarget_leave (&t);
  return r == 0 ? json_object () : NULL;
}

static int
look_at_node (void *opaque, const char *device, struct disk *disk)
{
  const struct qmp_host *host = opaque;
  CLEANUP_FREE char *name = NULL;
  uint64_t bytes, reached;

  if (!disk_take_reached (disk, &bytes, &reached))
    return 0;
  name = qmptarget_node (host, device, 0);
  jobs_tell (host->jobs, "BLOCK_WRITE_THRESHOLD", jsontext_object (
    { "node-name", name ? jsontext_string (name) : NULL },
    { "amount-exceeded", jsontext_number (reached - bytes) },
    { "write-threshold", jsontext_number (bytes) }));
  return 0;
}

void
qmpthreshold_look (const struct qmp_host *host)
{
  qmptarget_each (host, look_at_node, (void *) host);
}
