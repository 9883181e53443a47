/* SPDX-License-Identifier: BSD-3-Clause
 *
 * How does block-stream shorten the chain of a disk that is served?
 *
 * It starts a job that copies into the top image (stream.c).  Texts of errors are QEMU's,
 * and so is the order of the checks.
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
  unsigned gone;                /* so many layers below the top go */
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
  qmptarget_remove (w->host, 1, w->gone);
  return 0;
}

static void
free_work (void *opaque)
{
  struct work *w = opaque;

  stream_free (w->stream);
  free (w);
}

static const struct job_kind stream_kind = {
  .type = "stream", .writes = true, .run = run, .finish = finish, .free = free_work,
};

/* --- the command --- */

/* What is checked before the disk is known. */
static int
check (const json_t *arguments, struct qmp_error *e)
{
  static const char *const pairs[][2] = {
    { "base", "base-node" }, { "base", "bottom" }, { "bottom", "base-node" },
  };

  for (size_t i = 0; i < sizeof pairs / sizeof pairs[0]; i++)
    if (qmpargs_text (arguments, pairs[i][0]) && qmpargs_text (arguments, pairs[i][1]))
      return qmp_refuse (e, "'%s' and '%s' cannot be specified at the same time",
                         pairs[i][0], pairs[i][1]);
  return 0;
}

/* *BASE: the layer that stays below the top; 0: none does. */
static int
choose_base (const struct qmp_host *host, const json_t *arguments,
             const struct qmp_target *t, unsigned *base, struct qmp_error *e)
{
  const char *device = qmpargs_text (arguments, "device");
  const char *path = qmpargs_text (arguments, "base");
  const char *node = qmpargs_text (arguments, "base-node");
  const char *bottom = qmpargs_text (arguments, "bottom");
  const unsigned n = layers_count (disk_inside (t->disk).view->layers);
  int r;

  *base = 0;
  if (path) {
    *base = qmptarget_find_file (t->disk, path, 1);
    if (*base == n)
      return qmp_refuse (e, "Can't find '%s' in the backing chain", path);
  }
  if (node) {
    r = qmptarget_find_layer (host, t, node, base, e);
    if (r == 0 || (r == 1 && *base == 0))
      return qmp_refuse (e, "Node '%s' is not a backing image of '%s'", node, device);
    return r == -1 ? -1 : 0;
  }
  if (bottom) {
    r = qmptarget_find_layer (host, t, bottom, base, e);
    if (r == 0)
      return qmp_refuse (e, "Node '%s' is not in a chain starting from '%s'", bottom,
                         device);
    *base = *base + 1 < n ? *base + 1 : 0;
    return r == -1 ? -1 : 0;
  }
  return 0;
}

static struct work *
new_work (const struct qmp_host *host, struct disk *disk, unsigned base, const char *name,
          struct qmp_error *e)
{
  struct work *w = memory_new (1, sizeof *w);

  if (w == NULL)
    return NULL;
  w->host = host;
  w->gone = (base > 0 ? base : layers_count (disk_inside (disk).view->layers)) - 1;
  report_watch ();
  w->stream = stream_new (disk, base, name);
  if (qmp_refuse_unless (w->stream, e) == 0)
    return w;
  free (w);
  return NULL;
}

static int
stream (const struct qmp_host *host, const json_t *arguments,
        struct job_settings *settings, struct qmp_target *t, struct qmp_error *e)
{
  const char *device = qmpargs_text (arguments, "device");
  const char *name = qmpargs_text (arguments, "backing-file");
  struct work *w;
  unsigned base;

  if (t->layer > 0)
    return qmp_refuse (e, "Node '%s' is not the top of its disk", device);
  if (choose_base (host, arguments, t, &base, e) == -1 ||
      jobs_check_idle (host->jobs, t, device, e) == -1)
    return -1;
  if (base == 0 && name)
    return qmp_refuse (e, "backing file specified, but streaming the entire chain");
  w = new_work (host, t->disk, base, name, e);
  if (w == NULL)
    return -1;
  if (!stream_is_done (w->stream))
    settings->total = disk_inside (t->disk).view->size;
  if (jobs_start (host->jobs, settings, &stream_kind, t, device, w, e) == 0)
    return 0;
  free_work (w);
  return -1;
}

json_t *
qmpstream_run (const struct qmp_host *host, const json_t *arguments, struct qmp_error *e)
{
  const char *device = qmpargs_text (arguments, "device");
  struct job_settings settings;
  struct qmp_target t;
  int r;

  if (jobs_read_settings (arguments, &settings, e) == -1 || check (arguments, e) == -1)
    return NULL;
  if (qmptarget_find (host, device, &t, e) == -1) {
    qmp_refuse (e, "Cannot find device='%s' nor node-name='%s'", device, device);
    return NULL;
  }
  r = stream (host, arguments, &settings, &t, e);
  qmptarget_leave (&t);
  return r == -1 ? NULL : json_object ();
}
