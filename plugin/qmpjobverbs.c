/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Which commands are there for jobs?
 *
 * QEMU has most of them twice: those for jobs of any kind, and the older ones for jobs of
 * block devices.  Here all jobs are such, so both mean the same; they differ in the names
 * of arguments, in errors, and in how they cancel a job that is ready.
 *
 * Locks: none; one thread runs commands.
 */

#include <config.h>

#include <string.h>

#include "util/jsontext.h"
#include "plugin/qmpjobverbs.h"

static const struct qmparg of_id[] = {
  { "id", QMPARG_STRING, false }, { .key = NULL }
};
static const struct qmparg of_device[] = {
  { "device", QMPARG_STRING, false }, { .key = NULL }
};
static const struct qmparg of_cancel[] = {
  { "device", QMPARG_STRING, false }, { "force", QMPARG_BOOL, true }, { .key = NULL }
};
static const struct qmparg of_speed[] = {
  { "device", QMPARG_STRING, false }, { "speed", QMPARG_INT, false }, { .key = NULL }
};

const struct qmp_verb qmpjobverbs[] = {
  { "block-job-cancel", of_cancel, JOB_CANCEL },
  { "block-job-complete", of_device, JOB_COMPLETE },
  { "block-job-dismiss", of_id, JOB_DISMISS },
  { "block-job-finalize", of_id, JOB_FINALIZE },
  { "block-job-pause", of_device, JOB_PAUSE },
  { "block-job-resume", of_device, JOB_RESUME },
  { "block-job-set-speed", of_speed, JOB_SET_SPEED },
  { "job-cancel", of_id, JOB_CANCEL },
  { "job-complete", of_id, JOB_COMPLETE },
  { "job-dismiss", of_id, JOB_DISMISS },
  { "job-finalize", of_id, JOB_FINALIZE },
  { "job-pause", of_id, JOB_PAUSE },
  { "job-resume", of_id, JOB_RESUME },
  { .name = NULL }
};

json_t *
qmpjobverbs_run (const struct qmp_host *host, const struct qmp_verb *v,
                 const json_t *arguments, struct qmp_error *e)
{
  const char *device = qmpargs_text (arguments, "device");
  const bool block = strncmp (v->name, "block-", strlen ("block-")) == 0;
  const struct job_order order = {
    .verb = v->verb, .block = block,
    .soft = block && !qmpargs_flag (arguments, "force"),
    .speed = json_integer_value (json_object_get (arguments, "speed")),
  };

  return jobs_order (host->jobs, device ? device : qmpargs_text (arguments, "id"), &order,
                     e) == -1 ? NULL : json_object ();
}

json_t *
qmpjobverbs_query (const struct qmp_host *host, const json_t *arguments,
                   struct qmp_error *e)
{
  (void) arguments, (void) e;
  return jobs_list (host->jobs, false);
}

json_t *
qmpjobverbs_query_block (const struct qmp_host *host, const json_t *arguments,
                         struct qmp_error *e)
{
  (void) arguments, (void) e;
  return jobs_list (host->jobs, true);
}
