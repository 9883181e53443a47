/* SPDX-License-Identifier: BSD-3-Clause
 *
 * How does a command add and erase passphrases of an encrypted image in use?
 *
 * x-blockdev-amend starts a job.  Its thread derives keys, which takes seconds; then the
 * key slots change in one short step (keyedit.c).  As QEMU does, the command answers
 * first whatever its options say, and what is wrong with them is told as the job's
 * failure: in QEMU's words, but for what keyedit.c finds.
 *
 * Locks: see qmpjobs.c.
 */

#include <config.h>

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "util/report.h"
#include "util/passphrase.h"
#include "format/luks.h"
#include "change/keyedit.h"
#include "plugin/qmpamend.h"
#include "plugin/qmpjobs.h"
#include "plugin/qmpobject.h"

const struct qmparg qmpamend_arguments[] = {
  { "job-id", QMPARG_STRING, false },
  { "node-name", QMPARG_STRING, false },
  { "options", QMPARG_OBJECT, false },
  { "force", QMPARG_BOOL, true },
  { .key = NULL }
};
static const struct qmparg of_options[] = {
  { "driver", QMPARG_STRING, false },
  { "encrypt", QMPARG_OBJECT, true },
  { .key = NULL }
};
static const struct qmparg of_qcow[] = {
  { "format", QMPARG_STRING, false }, { .key = NULL }
};
static const struct qmparg of_luks[] = {
  { "format", QMPARG_STRING, false },
  { "state", QMPARG_STRING, false },
  { "new-secret", QMPARG_STRING, true },
  { "old-secret", QMPARG_STRING, true },
  { "keyslot", QMPARG_INT, true },
  { "iter-time", QMPARG_INT, true },
  { "secret", QMPARG_STRING, true },
  { .key = NULL }
};

/* For testing a passphrase on one key slot: nothing stops that once it has begun. */
#define MOST_MS 60000

struct work {
  bool changes;                 /* the options name something to change */
  struct keyedit edit;
  char *passphrase;             /* that of `edit'; NULL: none */
  struct qmp_error wrong;       /* with the options */
  struct keychange *change;     /* the job's thread, then finish */
};

/* --- the job --- */

static int
step (void *job)
{
  return job_step (job, 1, 1, 0);
}

static int
prepare (struct job *j, void *opaque)
{
  struct work *w = opaque;

  if (step (j) == -1)
    return -1;
  w->edit.step = step;
  w->edit.opaque = j;
  report_watch ();
  if (w->wrong.desc) {
    report_error ("%s", w->wrong.desc);
    errno = EINVAL;
  }
  else if (w->changes)
    w->change = keyedit_prepare (job_disk (j), &w->edit);
  return job_told (j, !w->wrong.desc && (w->change || !w->changes) ? 0 : -1);
}

static int
finish (struct job *j, void *opaque)
{
  const struct work *w = opaque;

  return w->changes ? keyedit_make (job_disk (j), w->change) : 0;
}

static void
free_work (void *opaque)
{
  struct work *w = opaque;

  keyedit_free (w->change);
  passphrase_free (w->passphrase);
  qmp_error_free (&w->wrong);
  free (w);
}

static const struct job_kind amend = {
  .type = "amend", .no_block_job = true, .run = prepare, .finish = finish,
  .free = free_work,
};

/* --- its options --- */

static const char *
find_secret (const struct job_command *c, const char *id, struct qmp_error *e)
{
  const char *text = qmpobject_secret (c->host, id);

  if (text == NULL)
    qmp_refuse (e, "No secret with id '%s'", id);
  return text;
}

static int
read_slot (const json_t *luks, int *slot, struct qmp_error *e)
{
  const json_t *given = json_object_get (luks, "keyslot");
  const json_int_t n = given ? json_integer_value (given) : -1;

  if (given && (n < 0 || n >= LUKS_SLOTS))
    return qmp_refuse (e, "Invalid keyslot %" JSON_INTEGER_FORMAT " specified, must be "
                       "between 0 and %d", n, LUKS_SLOTS - 1);
  *slot = n;
  return 0;
}

/* -1: W->wrong says why. */
static int
read_luks (const struct job_command *c, const json_t *luks, struct work *w)
{
  struct qmp_error *const e = &w->wrong;
  const bool adds = strcmp (qmpargs_text (luks, "state"), "active") == 0;
  const char *new = qmpargs_text (luks, "new-secret"), *text = NULL;
  const char *old = qmpargs_text (luks, "old-secret");
  const char *unlocks = qmpargs_text (luks, "secret");
  const char *const id = adds ? new : old;
  const json_t *ms = json_object_get (luks, "iter-time");

  if (adds && new == NULL)
    return qmp_refuse (e, "'new-secret' is required to activate a keyslot");
  if (adds && old)
    return qmp_refuse (e, "'old-secret' must not be given when activating keyslots");
  if (!adds && new)
    return qmp_refuse (e, "'new-secret' must not be given when erasing keyslots");
  if (!adds && ms)
    return qmp_refuse (e, "'iter-time' must not be given when erasing keyslots");
  if (!adds && old == NULL && json_object_get (luks, "keyslot") == NULL)
    return qmp_refuse (e, "To erase keyslot(s), either explicit keyslot index or the "
                       "password currently contained in them must be given");
  if (read_slot (luks, adds ? &w->edit.add_slot : &w->edit.erase_slot, e) == -1 ||
      (unlocks && find_secret (c, unlocks, e) == NULL) ||
      (id && (text = find_secret (c, id, e)) == NULL))
    return -1;
  if (ms && (json_integer_value (ms) < 1 || json_integer_value (ms) > MOST_MS))
    return qmp_refuse (e, "iter-time is out of range");
  if (adds && text[0] == '\0')
    return qmp_refuse (e, "The passphrase must not be empty");
  w->edit.iter_ms = ms ? json_integer_value (ms) : 2000;
  w->passphrase = text ? strdup (text) : NULL;
  *(adds ? &w->edit.add : &w->edit.erase) = w->passphrase;
  return text == NULL || w->passphrase ? 0 : qmp_refuse (e, "out of memory");
}

/* -1: the command is refused. */
static int
check_options (const struct job_command *c, const json_t *options)
{
  const json_t *encrypt = json_object_get (options, "encrypt");
  const char *format = qmpargs_text (encrypt, "format"), *state;
  const bool luks = format && strcmp (format, "luks") == 0;

  if (strcmp (qmpargs_text (options, "driver"), "qcow2") != 0)
    return qmp_refuse (c->e, "x-blockdev-amend doesn't support changing the block driver");
  if (encrypt == NULL)
    return 0;
  if (qmpargs_check (luks ? of_luks : of_qcow, encrypt, "options.encrypt.", c->e) == -1)
    return -1;
  if (!luks && strcmp (format, "qcow") != 0)
    return qmp_refuse (c->e, "Parameter 'format' does not accept value '%s'", format);
  state = luks ? qmpargs_text (encrypt, "state") : "active";
  return strcmp (state, "active") == 0 || strcmp (state, "inactive") == 0 ? 0
    : qmp_refuse (c->e, "Parameter 'state' does not accept value '%s'", state);
}

static struct work *
new_work (const struct job_command *c, const json_t *encrypt)
{
  struct work *w = calloc (1, sizeof *w);

  if (w == NULL) {
    qmp_refuse (c->e, "out of memory");
    return NULL;
  }
  *w = (struct work) {
    .changes = encrypt,
    .edit = { KEYEDIT_NONE, .force = qmpargs_flag (c->arguments, "force") },
  };
  if (encrypt && strcmp (qmpargs_text (encrypt, "format"), "luks") != 0)
    qmp_refuse (&w->wrong, "Amend can't be used to change the qcow2 encryption format");
  else if (encrypt)
    read_luks (c, encrypt, w);
  return w;
}

static int
start (struct job_command *c)
{
  const json_t *options = json_object_get (c->arguments, "options");
  struct work *w;

  c->device = qmpargs_text (c->arguments, "node-name");
  if (qmpargs_check (of_options, options, "options.", c->e) == -1 ||
      jobs_read_settings (c) == -1)
    return -1;
  if (qmptarget_find (c->host, c->device, &c->target, c->e) == -1)
    return qmp_refuse (c->e, "Cannot find device='' nor node-name='%s'", c->device);
  if (check_options (c, options) == -1)
    return -1;
  if (c->target.layer > 0)
    return qmp_refuse (c->e, "Node '%s' is read-only", c->device);
  w = new_work (c, json_object_get (options, "encrypt"));
  if (w == NULL)
    return -1;
  c->settings.auto_dismiss = false;
  c->settings.total = 1;
  if (jobs_start (c, &amend, w) == 0)
    return 0;
  free_work (w);
  return -1;
}

json_t *
qmpamend_run (const struct qmp_host *host, const json_t *arguments, struct qmp_error *e)
{
  return jobs_run_command (host, arguments, start, e);
}
