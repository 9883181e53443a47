/* SPDX-License-Identifier: BSD-3-Clause
 *
 * How does a command copy a disk in use to a node, and let its clients go on there?
 *
 * blockdev-mirror starts a job (qmpjobs.c), which copies to a node that blockdev-add has
 * opened (mirror.c).  When the job is ready, job-complete moves the disk: the node
 * becomes its top, with its own chain, and the disk's old nodes go.  (With a directory,
 * nodes have numbers, and that one goes.)  Cancelled when it is ready, the job leaves in
 * the target what the disk was at that instant.
 *
 * The work is done in the job's thread; the last step, and what concerns nodes, in the
 * one that runs commands.  That step is short: the job's thread catches up before it, as
 * long as it takes (qmpfollow.c).  The node stays in use as long as the job lasts.
 *
 * Locks: see qmpjobs.c.
 */

#include <config.h>

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "util/cleanup.h"
#include "util/report.h"
#include "change/mirror.h"
#include "plugin/qmpfollow.h"
#include "plugin/qmpjobs.h"
#include "plugin/qmpmirror.h"
#include "plugin/qmpnodes.h"

const struct qmparg qmpmirror_arguments[] = {
  { "job-id", QMPARG_STRING, true },
  { "device", QMPARG_STRING, false },
  { "target", QMPARG_STRING, false },
  { "sync", QMPARG_STRING, false },
  { "speed", QMPARG_INT, true },
  { "granularity", QMPARG_UINT32, true },
  { "buf-size", QMPARG_INT, true },
  { "on-source-error", QMPARG_STRING, true },
  { "on-target-error", QMPARG_STRING, true },
  { "copy-mode", QMPARG_STRING, true },
  { "auto-finalize", QMPARG_BOOL, true },
  { "auto-dismiss", QMPARG_BOOL, true },
  { .key = NULL }
};

struct work {
  const struct qmp_host *host;
  struct qmp_node *node;        /* the target; used by this job */
  struct mirror_options options;
  struct mirror *mirror;        /* NULL: not begun; the job's thread, then finish */
  unsigned layers;              /* that the target has */
  bool moved;                   /* the disk goes on with the target */
};

/* --- the job --- */

static int
copy (struct job *j, void *opaque)
{
  struct work *w = opaque;

  report_watch ();
  if (job_told (j, mirror_begin (job_disk (j), &w->options, &w->mirror)) == -1)
    return -1;
  return qmpfollow_run (j, mirror_follow (w->mirror));
}

static int
catch_up (struct job *j, void *opaque)
{
  const struct work *w = opaque;

  if (job_pivots (j))
    mirror_announce (w->mirror);
  return qmpfollow_catch_up (j, mirror_follow (w->mirror));
}

static void
give_way (void *opaque)
{
  const struct work *w = opaque;

  follow_give_way (mirror_follow (w->mirror));
}

/* The disk goes on with the target, and has its nodes. */
static int
move (struct job *j, struct work *w)
{
  struct qmp_nodes names;
  const unsigned keep = w->options.sync == MIRROR_TOP ? w->layers - 1 : 0;

  if (w->host->dir) {           /* (where they have numbers) */
    w->moved = mirror_pivot (w->mirror) == 0;
    if (w->moved)
      job_keep_open (j);
    return w->moved ? 0 : -1;
  }
  if (qmptarget_name_chain (w->host, w->layers, keep, w->node->name, &names) == -1) {
    report_error ("malloc: %m");
    return -1;
  }
  w->moved = mirror_pivot (w->mirror) == 0;
  KEEP_ERRNO_FOR_BLOCK;
  if (w->moved)
    qmptarget_switch_chain (w->host, &names);
  else
    qmptarget_free_nodes (&names);
  return w->moved ? 0 : -1;
}

static int
finish (struct job *j, void *opaque)
{
  struct work *w = opaque;

  return job_pivots (j) ? move (j, w) : mirror_finish (w->mirror);
}

static void
end (void *opaque)
{
  struct work *w = opaque;
  struct qmp_node *const n = w->node;

  mirror_end (w->mirror);
  n->users--;
  if (w->moved && w->host->dir)
    qmpnodes_remove (w->host->added, n);
  else if (w->moved)
    qmpnodes_hand_over (w->host->added, n);
  else if (n->image)
    qmpnodes_read_again (n, w->host->options);
  free (w);
}

static const char *
why_incomplete (void *opaque)
{
  const struct work *w = opaque;

  return mirror_why_no_pivot (w->mirror);
}

static const struct job_kind mirror = {
  .type = "mirror", .repeats = true, .run = copy, .prepare = catch_up,
  .give_way = give_way, .finish = finish, .free = end,
  .why_incomplete = why_incomplete,
};

/* --- the command --- */

static int
read_sync (const char *word, enum mirror_sync *sync, struct qmp_error *e)
{
  static const char *const words[] = {
    [MIRROR_FULL] = "full", [MIRROR_TOP] = "top", [MIRROR_NONE] = "none",
  };

  for (size_t i = 0; i < sizeof words / sizeof words[0]; i++)
    if (strcmp (words[i], word) == 0) {
      *sync = i;
      return 0;
    }
  return strcmp (word, "incremental") == 0 || strcmp (word, "bitmap") == 0
    ? qmp_refuse (e, "Sync mode '%s' not supported", word)
    : qmp_refuse (e, "Parameter 'sync' does not accept value '%s'", word);
}

static int
read_numbers (const struct job_command *c, struct mirror_options *o)
{
  const json_int_t n = json_integer_value (json_object_get (c->arguments, "granularity"));

  if (n != 0 && (n < 512 || n > 64 << 20))
    return qmp_refuse (c->e,
                       "Parameter 'granularity' expects a value in range [512B, 64MB]");
  if ((n & (n - 1)) != 0)
    return qmp_refuse (c->e, "Parameter 'granularity' expects a power of 2");
  if (json_integer_value (json_object_get (c->arguments, "buf-size")) < 0)
    return qmp_refuse (c->e, "Invalid parameter 'buf-size'");
  o->granularity = n;
  return 0;
}

/* What does not depend on the disk. */
static int
read_arguments (struct job_command *c, struct mirror_options *o)
{
  const char *mode = qmpargs_text (c->arguments, "copy-mode");
  struct job_settings *const s = &c->settings;
  struct qmp_error *const e = c->e;

  if (mode && strcmp (mode, "write-blocking") == 0)
    return qmp_refuse (e, "The copy-mode '%s' is not possible", mode);
  if (mode && strcmp (mode, "background") != 0)
    return qmp_refuse (e, "Parameter 'copy-mode' does not accept value '%s'", mode);
  return jobs_read_settings (c) == -1 ||
    jobs_read_on_error (c->arguments, "on-source-error", &s->on_error, e) == -1 ||
    jobs_read_on_error (c->arguments, "on-target-error", &s->on_write_error, e) == -1 ||
    read_sync (qmpargs_text (c->arguments, "sync"), &o->sync, e) == -1 ? -1 : 0;
}

/* NULL: refused. */
static struct qmp_node *
find_node (const struct job_command *c)
{
  const char *name = qmpargs_text (c->arguments, "target");
  struct qmp_node *n = qmpnodes_find (c->host->added, name);
  struct qmp_target t;

  if (n == NULL || n->served) {
    if (qmptarget_need (c->host, name, &t, c->e) == -1)
      return NULL;
    if (t.disk == c->target.disk && t.layer == 0)
      qmp_refuse (c->e, "Can't mirror node into itself");
    qmptarget_leave (&t);
  }
  if (n == NULL || n->users > 0)
    qmp_refuse (c->e, "Node '%s' is in use", name);
  else if (n->left)
    qmp_refuse (c->e, "Node '%s' has left its disk: remove it, and add it again", name);
  else if (n->readonly)
    qmp_refuse (c->e, "Block node is read-only");
  else
    return n;
  return NULL;
}

static int
start_to (struct job_command *c, struct qmp_node *n, const struct mirror_options *o)
{
  struct work *w = calloc (1, sizeof *w);

  if (w == NULL)
    return qmp_refuse (c->e, "out of memory");
  *w = (struct work) {
    .host = c->host, .node = n, .options = *o,
    .layers = n->layers ? layers_count (n->layers) : 0,
  };
  w->options.target = (struct mirror_target) {
    .image = n->image, .raw = n->image ? NULL : n->storage, .backing = n->backing,
  };
  n->users++;
  if (jobs_start (c, &mirror, w) == 0)
    return 0;
  n->users--;
  free (w);
  return -1;
}

/* (QEMU finds a node of another job there.) */
static bool
is_busy (const struct job_command *c)
{
  struct qmp_error busy = { .desc = NULL };
  const int r = jobs_check_idle (c->host->jobs, &c->target, c->device, &busy);

  qmp_error_free (&busy);
  return r == -1;
}

static int
start (struct job_command *c)
{
  struct mirror_options o = { .granularity = 0 };
  struct qmp_node *n;

  if (read_arguments (c, &o) == -1 ||
      qmptarget_need (c->host, c->device, &c->target, c->e) == -1)
    return -1;
  if (c->target.layer > 0 || is_busy (c))
    return qmp_refuse (c->e, "Need a root block node");
  n = find_node (c);
  if (n == NULL || read_numbers (c, &o) == -1)
    return -1;
  return start_to (c, n, &o);
}

json_t *
qmpmirror_run (const struct qmp_host *host, const json_t *arguments, struct qmp_error *e)
{
  return jobs_run_command (host, arguments, start, e);
}
