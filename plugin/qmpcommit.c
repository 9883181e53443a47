/* SPDX-License-Identifier: BSD-3-Clause
 *
 * How does block-commit merge layers of a disk that is served into one below them?
 *
 * It starts a job that copies into the base (commit.c).  The base is opened and locked
 * before the command is answered.  Texts of errors are QEMU's, and so is the order of
 * the checks.
 *
 * The top image itself is copied while clients write it, until the job is told to
 * complete: then they go on with the base (job-complete), or with the top
 * (block-job-cancel).
 *
 * Locks: none of its own; see qmpjobs.h.
 */

#include <config.h>

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "util/bytes.h"
#include "util/cleanup.h"
#include "util/memory.h"
#include "util/report.h"
#include "format/header.h"
#include "change/commit.h"
#include "plugin/qmpcommit.h"
#include "plugin/qmpfollow.h"
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

/* --- the same, of the top image --- */

static int
run_active (struct job *j, void *opaque)
{
  const struct work *w = opaque;

  report_watch ();
  if (job_told (j, commit_begin (w->commit)) == -1)
    return -1;
  return qmpfollow_run (j, commit_follow (w->commit));
}

static int
catch_up (struct job *j, void *opaque)
{
  const struct work *w = opaque;

  return qmpfollow_catch_up (j, commit_follow (w->commit));
}

static void
give_way (void *opaque)
{
  const struct work *w = opaque;

  follow_give_way (commit_follow (w->commit));
}

static int
finish_active (struct job *j, void *opaque)
{
  const struct work *w = opaque;

  if (!job_pivots (j))
    return commit_stay (w->commit);
  if (commit_pivot (w->commit) == -1)
    return -1;
  job_keep_open (j);
  qmptarget_remove (w->host, 0, w->layers.base);
  return 0;
}

static const struct job_kind active_kind = {
  .type = "commit", .repeats = true, .run = run_active, .prepare = catch_up,
  .give_way = give_way, .finish = finish_active, .free = free_work,
};

/* --- the command --- */

static int
choose_top (const struct job_command *c, unsigned *top)
{
  const char *path = qmpargs_text (c->arguments, "top");
  const char *node = qmpargs_text (c->arguments, "top-node");
  int r;

  *top = 0;
  if (path && node)
    return qmp_refuse (c->e, "'top-node' and 'top' are mutually exclusive");
  if (node) {
    r = qmptarget_find_layer (c->host, &c->target, node, top, c->e);
    return r != 0 ? r
      : qmp_refuse (c->e, "'%s' is not in this backing file chain", node);
  }
  if (path == NULL)
    return 0;
  *top = qmptarget_find_file (c->target.disk, path, 0);
  return *top < qmptarget_count (c->target.disk) ? 0
    : qmp_refuse (c->e, "Top image file %s not found", path);
}

static int
choose_base (const struct job_command *c, unsigned top, unsigned *base)
{
  const char *path = qmpargs_text (c->arguments, "base");
  const char *node = qmpargs_text (c->arguments, "base-node");
  const unsigned n = qmptarget_count (c->target.disk);
  int r = 1;

  *base = n - 1;
  if (path && node)
    return qmp_refuse (c->e, "'base-node' and 'base' are mutually exclusive");
  if (node) {
    r = qmptarget_find_layer (c->host, &c->target, node, base, c->e);
    if (r == 0 || (r == 1 && *base < top))
      return qmp_refuse (c->e, "'%s' is not in this backing file chain", node);
  }
  else if (path) {
    *base = qmptarget_find_file (c->target.disk, path, top + 1);
    if (*base == n)
      return qmp_refuse (c->e, "Can't find '%s' in the backing chain", path);
  }
  if (r == -1)
    return -1;
  return *base == top ? qmp_refuse (c->e, "cannot commit an image into itself") : 0;
}

static int
check_top (const struct job_command *c, unsigned top, const char *name)
{
  const char *why = disk_why_fixed (c->target.disk);

  if (top == 0 && name)
    return qmp_refuse (c->e, "'backing-file' specified, but 'top' is the active layer");
  if (why)
    return qmp_refuse (c->e, "Node '%s' is read-only: %s", c->device, why);
  if (name && name[0] == '\0')
    return qmp_refuse (c->e, "Parameter 'backing-file' expects the name of a file");
  if (name && strlen (name) > QCOW2_MAX_BACKING_NAME)
    return qmp_refuse (c->e, "Parameter 'backing-file' is longer than %d bytes",
                       QCOW2_MAX_BACKING_NAME);
  return 0;
}

static struct work *
new_work (const struct job_command *c, const struct commit_layers *layers)
{
  struct work *w = memory_new (1, sizeof *w);

  if (w == NULL)
    return NULL;
  w->host = c->host;
  w->layers = *layers;
  report_watch ();
  if (layers->name == NULL || (w->layers.name = w->name = strdup (layers->name)) != NULL)
    w->commit = commit_new (c->target.disk, &w->layers);
  if (qmp_refuse_unless (w->commit, c->e) == 0)
    return w;
  free (w->name);
  free (w);
  return NULL;
}

static int
start (struct job_command *c)
{
  struct commit_layers layers = { .name = qmpargs_text (c->arguments, "backing-file") };
  struct work *w;

  if (jobs_read_settings (c) == -1)
    return -1;
  if (qmptarget_find (c->host, c->device, &c->target, c->e) == -1) {
    /* (libvirt finds out by this whether the command is there.) */
    c->e->class = "DeviceNotFound";
    return qmp_refuse (c->e, "Device '%s' not found", c->device);
  }
  if (c->target.layer > 0)
    return qmp_refuse (c->e, "Need a root block node");
  if (jobs_check_idle (c->host->jobs, &c->target, c->device, c->e) == -1 ||
      choose_top (c, &layers.top) == -1 ||
      choose_base (c, layers.top, &layers.base) == -1 ||
      check_top (c, layers.top, layers.name) == -1)
    return -1;
  layers.follows = layers.top == 0;
  w = new_work (c, &layers);
  if (w == NULL)
    return -1;
  if (!layers.follows)
    c->settings.total = commit_size (w->commit);
  if (jobs_start (c, layers.follows ? &active_kind : &commit_kind, w) == 0)
    return 0;
  free_work (w);
  return -1;
}

json_t *
qmpcommit_run (const struct qmp_host *host, const json_t *arguments, struct qmp_error *e)
{
  return jobs_run_command (host, arguments, start, e);
}
