/* SPDX-License-Identifier: BSD-3-Clause
 *
 * How does block-commit merge layers of a disk that is served into one below them?
 *
 * It starts a job that copies into the base (commit.c).  The base is opened and locked
 * before the command is answered.  Texts of errors are QEMU's, and so is the order of
 * the checks. The top image itself cannot be committed: clients write it.
 *
 * Locks: none of its own; see qmpjobs.h.
 */

#include <config.h>

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "util/bytes.h"
#include "util/memory.h"
#include "util/report.h"
#include "format/header.h"
#include "change/commit.h"
#include "plugin/qmpcommit.h"
#include "plugin/qmpjobs.h"

/* Bytes between two looks at orders. */
#define STEP (UINT64_C (1) << 20)

const struct qmparg qmpcommit_arguments[] = {
  JOB_ARGUMENTS,
  { "device", QMPARG_STRING, false },
  { "base-node", QMPARG_STRING, true },
  { "base", QMPARG_STRING, true },
  { "top-node", QMPARG_STRING, true },
  { "top", QMPARG_STRING, true },
  { "backing-file", QMPARG_STRING, true },
  { "filter-node-name", QMPARG_STRING, true },
  { .key = NULL }
};

/* --- the job --- */

struct work {
  const struct qmp_host *host;
  struct commit *commit;
  struct commit_layers layers;
  char *name;                   /* of layers.name; or NULL */
};

static int
run (struct job *j, void *opaque)
{
  const struct work *w = opaque;
  const uint64_t size = commit_size (w->commit);
  uint64_t at = 0, copied = 0;
  bool reads;

  while (at < size) {
    if (job_step (j, at, size, copied) == -1)
      return -1;
    copied = 0;
    if (commit_range (w->commit, at, min64 (at + STEP, size), &copied, &reads) == -1)
      switch (job_fails (j, reads, errno)) {
      case JOB_FAIL: return -1;
      case JOB_AGAIN: continue;
      case JOB_SKIP: break;
      }
    at = min64 (at + STEP, size);
  }
  return job_step (j, size, size, copied);
}

static int
finish (struct job *j, void *opaque)
{
  const struct work *w = opaque;

  (void) j;
  if (commit_finish (w->commit) == -1)
    return -1;
  qmptarget_remove (w->host, w->layers.top, w->layers.base - w->layers.top);
  return 0;
}

static void
free_work (void *opaque)
{
  struct work *w = opaque;

  commit_free (w->commit);
  free (w->name);
  free (w);
}

static const struct job_kind commit_kind = {
  .type = "commit", .run = run, .finish = finish, .free = free_work,
};

/* --- the command --- */

static int
choose_top (const struct qmp_host *host, const json_t *arguments,
            const struct qmp_target *t, unsigned *top, struct qmp_error *e)
{
  const char *path = qmpargs_text (arguments, "top");
  const char *node = qmpargs_text (arguments, "top-node");
  int r;

  *top = 0;
  if (path && node)
    return qmp_refuse (e, "'top-node' and 'top' are mutually exclusive");
  if (node) {
    r = qmptarget_find_layer (host, t, node, top, e);
    return r != 0 ? r : qmp_refuse (e, "'%s' is not in this backing file chain", node);
  }
  if (path == NULL)
    return 0;
  *top = qmptarget_find_file (t->disk, path, 0);
  return *top < layers_count (disk_inside (t->disk).view->layers) ? 0
    : qmp_refuse (e, "Top image file %s not found", path);
}

static int
choose_base (const struct qmp_host *host, const json_t *arguments,
             const struct qmp_target *t, unsigned top, unsigned *base, struct qmp_error *e)
{
  const char *path = qmpargs_text (arguments, "base");
  const char *node = qmpargs_text (arguments, "base-node");
  const unsigned n = layers_count (disk_inside (t->disk).view->layers);
  int r = 1;

  *base = n - 1;
  if (path && node)
    return qmp_refuse (e, "'base-node' and 'base' are mutually exclusive");
  if (node) {
    r = qmptarget_find_layer (host, t, node, base, e);
    if (r == 0 || (r == 1 && *base < top))
      return qmp_refuse (e, "'%s' is not in this backing file chain", node);
  }
  else if (path) {
    *base = qmptarget_find_file (t->disk, path, top + 1);
    if (*base == n)
      return qmp_refuse (e, "Can't find '%s' in the backing chain", path);
  }
  if (r == -1)
    return -1;
  return *base == top ? qmp_refuse (e, "cannot commit an image into itself") : 0;
}

static int
check_top (const struct qmp_target *t, unsigned top, const char *device, const char *name,
           struct qmp_error *e)
{
  const char *why = disk_why_fixed (t->disk);

  if (top == 0)
    return qmp_refuse (e, name ? "'backing-file' specified, but 'top' is the active layer"
                       : "The active layer cannot be committed while it is served: take an "
                       "external snapshot first, and commit the layer below it");
  if (why)
    return qmp_refuse (e, "Node '%s' is read-only: %s", device, why);
  if (name && name[0] == '\0')
    return qmp_refuse (e, "Parameter 'backing-file' expects the name of a file");
  if (name && strlen (name) > QCOW2_MAX_BACKING_NAME)
    return qmp_refuse (e, "Parameter 'backing-file' is longer than %d bytes",
                       QCOW2_MAX_BACKING_NAME);
  return 0;
}

static struct work *
new_work (const struct qmp_host *host, struct disk *disk, const struct commit_layers *layers,
          struct qmp_error *e)
{
  struct work *w = memory_new (1, sizeof *w);

  if (w == NULL)
    return NULL;
  w->host = host;
  w->layers = *layers;
  report_watch ();
  if (layers->name == NULL || (w->layers.name = w->name = strdup (layers->name)) != NULL)
    w->commit = commit_new (disk, &w->layers);
  if (qmp_refuse_unless (w->commit, e) == 0)
    return w;
  free (w->name);
  free (w);
  return NULL;
}

static int
commit (const struct qmp_host *host, const json_t *arguments,
        struct job_settings *settings, struct qmp_target *t, struct qmp_error *e)
{
  const char *device = qmpargs_text (arguments, "device");
  struct commit_layers layers = { .name = qmpargs_text (arguments, "backing-file") };
  struct work *w;

  if (t->layer > 0)
    return qmp_refuse (e, "Need a root block node");
  if (jobs_check_idle (host->jobs, t, device, e) == -1 ||
      choose_top (host, arguments, t, &layers.top, e) == -1 ||
      choose_base (host, arguments, t, layers.top, &layers.base, e) == -1 ||
      check_top (t, layers.top, device, layers.name, e) == -1)
    return -1;
  w = new_work (host, t->disk, &layers, e);
  if (w == NULL)
    return -1;
  settings->total = commit_size (w->commit);
  if (jobs_start (host->jobs, settings, &commit_kind, t, device, w, e) == 0)
    return 0;
  free_work (w);
  return -1;
}

json_t *
qmpcommit_run (const struct qmp_host *host, const json_t *arguments, struct qmp_error *e)
{
  const char *device = qmpargs_text (arguments, "device");
  struct job_settings settings;
  struct qmp_target t;
  int r;

  if (jobs_read_settings (arguments, &settings, e) == -1)
    return NULL;
  if (qmptarget_find (host, device, &t, e) == -1) {
    /* (libvirt finds out by this whether the command is there.) */
    e->class = "DeviceNotFound";
    qmp_refuse (e, "Device '%s' not found", device);
    return NULL;
  }
  r = commit (host, arguments, &settings, &t, e);
  qmptarget_leave (&t);
  return r == -1 ? NULL : json_object ();
}
