/* SPDX-License-Identifier: BSD-3-Clause
 *
 * How does block-stream shorten the chain of a disk that is served?
 *
 * It starts a job that copies into the top image, or into one below it (stream.c).  Texts
 * of errors are QEMU's, and so is the order of the checks.
 *
 * Locks: none of its own; see qmpjobs.h.
 */

#include <config.h>

#include <stdlib.h>

#include "util/memory.h"
#include "util/report.h"
#include "change/stream.h"
#include "plugin/qmpjobs.h"
#include "plugin/qmpstream.h"

const struct qmparg qmpstream_arguments[] = {
  JOB_ARGUMENTS,
  { "device", QMPARG_STRING, false },
  { "base", QMPARG_STRING, true },
  { "base-node", QMPARG_STRING, true },
  { "backing-file", QMPARG_STRING, true },
  { "bottom", QMPARG_STRING, true },
  { "filter-node-name", QMPARG_STRING, true },
  { .key = NULL }
};

/* --- the job --- */

struct work {
  const struct qmp_host *host;
  struct stream *stream;
  unsigned first, gone;         /* so many layers go, from this one on */
};

static int
step (void *job, uint64_t done, uint64_t total, uint64_t copied)
{
  return job_step (job, done, total, copied);
}

/* (For QEMU, copying is a way of reading.) */
static int
fails (void *job, bool reads, int err)
{
  (void) reads;
  switch (job_fails (job, true, err)) {
  case JOB_AGAIN: return 0;
  case JOB_SKIP: return 1;
  case JOB_FAIL: break;
  }
  return -1;
}

static int
run (struct job *j, void *opaque)
{
  const struct work *w = opaque;
  const struct stream_watch watch = { .step = step, .fails = fails, .opaque = j };

  return stream_is_done (w->stream) ? 0 : stream_copy (w->stream, &watch);
}

static int
finish (struct job *j, void *opaque)
{
  const struct work *w = opaque;

  (void) j;
  if (stream_finish (w->stream) == -1)
    return -1;
  qmptarget_remove (w->host, w->first, w->gone);
  return 0;
}

static void
free_work (void *opaque)
{
  struct work *w = opaque;

  stream_free (w->stream);
  free (w);
}

static const struct job_kind top_kind = {
  .type = "stream", .writes = true, .run = run, .finish = finish, .free = free_work,
};
static const struct job_kind layer_kind = {
  .type = "stream", .run = run, .finish = finish, .free = free_work,
};

/* --- the command --- */

/* What is checked before the disk is known. */
static int
check (const struct job_command *c)
{
  static const char *const pairs[][2] = {
    { "base", "base-node" }, { "base", "bottom" }, { "bottom", "base-node" },
  };

  for (size_t i = 0; i < sizeof pairs / sizeof pairs[0]; i++)
    if (qmpargs_text (c->arguments, pairs[i][0]) &&
        qmpargs_text (c->arguments, pairs[i][1]))
      return qmp_refuse (c->e, "'%s' and '%s' cannot be specified at the same time",
                         pairs[i][0], pairs[i][1]);
  return 0;
}

/* *BASE: the layer that stays below the target; 0: none does. */
static int
choose_base (const struct job_command *c, unsigned *base)
{
  const char *path = qmpargs_text (c->arguments, "base");
  const char *node = qmpargs_text (c->arguments, "base-node");
  const char *bottom = qmpargs_text (c->arguments, "bottom");
  const unsigned n = qmptarget_count (c->target.disk), layer = c->target.layer;
  int r;

  *base = 0;
  if (path) {
    *base = qmptarget_find_file (c->target.disk, path, layer + 1);
    if (*base == n)
      return qmp_refuse (c->e, "Can't find '%s' in the backing chain", path);
  }
  if (node) {
    r = qmptarget_find_layer (c->host, &c->target, node, base, c->e);
    if (r == 0 || (r == 1 && *base <= layer))
      return qmp_refuse (c->e, "Node '%s' is not a backing image of '%s'", node,
                         c->device);
    return r == -1 ? -1 : 0;
  }
  if (bottom) {
    r = qmptarget_find_layer (c->host, &c->target, bottom, base, c->e);
    if (r == 0 || (r == 1 && *base < layer))
      return qmp_refuse (c->e, "Node '%s' is not in a chain starting from '%s'", bottom,
                         c->device);
    *base = *base + 1 < n ? *base + 1 : 0;
    return r == -1 ? -1 : 0;
  }
  return 0;
}

static struct work *
new_work (const struct job_command *c, unsigned base, const char *name)
{
  struct work *w = memory_new (1, sizeof *w);

  if (w == NULL)
    return NULL;
  w->host = c->host;
  w->first = c->target.layer + 1;
  w->gone = (base > 0 ? base : qmptarget_count (c->target.disk)) - w->first;
  report_watch ();
  w->stream = stream_new (c->target.disk, c->target.layer, base, name);
  if (qmp_refuse_unless (w->stream, c->e) == 0)
    return w;
  free (w);
  return NULL;
}

static int
start (struct job_command *c)
{
  const char *name = qmpargs_text (c->arguments, "backing-file");
  struct work *w;
  unsigned base;

  if (jobs_read_settings (c) == -1 || check (c) == -1 ||
      qmptarget_need (c->host, c->device, &c->target, c->e) == -1)
    return -1;
  if (choose_base (c, &base) == -1 ||
      jobs_check_idle (c->host->jobs, &c->target, c->device, c->e) == -1)
    return -1;
  if (base == 0 && name)
    return qmp_refuse (c->e, "backing file specified, but streaming the entire chain");
  w = new_work (c, base, name);
  if (w == NULL)
    return -1;
  if (!stream_is_done (w->stream))
    c->settings.total = stream_size (w->stream);
  if (jobs_start (c, c->target.layer > 0 ? &layer_kind : &top_kind, w) == 0)
    return 0;
  free_work (w);
  return -1;
}

json_t *
qmpstream_run (const struct qmp_host *host, const json_t *arguments, struct qmp_error *e)
{
  return jobs_run_command (host, arguments, start, e);
}
