/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Which commands does the control socket have?
 *
 * This table has them, with their arguments, that of qmpchange.c those that are also
 * actions of transactions, and that of qmpjobverbs.c those for jobs.  What is in none of
 * them is answered as QEMU answers unknown commands, and query-commands lists only what
 * is there.
 *
 * Locks: none; one thread runs commands.
 */

#include <config.h>

#include <string.h>

#include "util/jsontext.h"
#include "plugin/qmp.h"
#include "plugin/qmpamend.h"
#include "plugin/qmpblockdev.h"
#include "plugin/qmpchange.h"
#include "plugin/qmpcommands.h"
#include "plugin/qmpcommit.h"
#include "plugin/qmpjobverbs.h"
#include "plugin/qmpmirror.h"
#include "plugin/qmpobject.h"
#include "plugin/qmpoverlay.h"
#include "plugin/qmpquery.h"
#include "plugin/qmpstream.h"
#include "plugin/qmpthreshold.h"
#include "plugin/qmptransaction.h"
#include "plugin/qmpwhere.h"

typedef json_t *(*command_fn) (const struct qmp_host *, const json_t *arguments,
                               struct qmp_error *);

struct command {
  const char *name;
  const struct qmparg *arguments;       /* NULL: it checks them itself */
  command_fn run;
  bool changes;                 /* a disk */
};

static json_t *query_commands (const struct qmp_host *, const json_t *,
                               struct qmp_error *);
static json_t *query_version (const struct qmp_host *, const json_t *,
                              struct qmp_error *);
static json_t *empty (const struct qmp_host *, const json_t *, struct qmp_error *);

#define QUERY(name, function) { name, no_arguments, function, false }

static const struct qmparg no_arguments[] = { { .key = NULL } };
static const struct qmparg of_nodes[] = {
  { "flat", QMPARG_BOOL, true }, { .key = NULL }
};
static const struct qmparg of_blockstats[] = {
  { "query-nodes", QMPARG_BOOL, true }, { .key = NULL }
};
static const struct qmparg of_change[] = {
  { "device", QMPARG_STRING, false },
  { "image-node-name", QMPARG_STRING, false },
  { "backing-file", QMPARG_STRING, false },
  { .key = NULL }
};
static const struct qmparg of_delete[] = {
  { "device", QMPARG_STRING, false },
  { "id", QMPARG_STRING, true },
  { "name", QMPARG_STRING, true },
  { .key = NULL }
};
static const struct qmparg of_resize[] = {
  { "device", QMPARG_STRING, true },
  { "node-name", QMPARG_STRING, true },
  { "size", QMPARG_INT, false },
  { .key = NULL }
};
static const struct qmparg of_transaction[] = {
  { "actions", QMPARG_ARRAY, false },
  { "properties", QMPARG_OBJECT, true },
  { .key = NULL }
};

static const struct command commands[] = {
  { "block-commit", qmpcommit_arguments, qmpcommit_run, true },
  { "block-set-write-threshold", qmpthreshold_arguments, qmpthreshold_set, true },
  { "block-stream", qmpstream_arguments, qmpstream_run, true },
  { "block_resize", of_resize, qmpchange_resize, true },
  { "blockdev-add", NULL, qmpblockdev_add, true },
  { "blockdev-del", qmpblockdev_of_del, qmpblockdev_del, true },
  { "blockdev-mirror", qmpmirror_arguments, qmpmirror_run, true },
  { "blockdev-snapshot", qmpoverlay_of_node, qmpchange_snapshot, true },
  { "blockdev-snapshot-delete-internal-sync", of_delete, qmpchange_delete_snapshot,
    true },
  { "blockdev-snapshot-sync", qmpoverlay_of_file, qmpchange_snapshot_file, true },
  { "change-backing-file", of_change, qmpchange_backing_file, true },
  { "object-add", NULL, qmpobject_add, true },
  { "object-del", qmpobject_of_del, qmpobject_del, true },
  QUERY ("query-block", qmpquery_block),
  QUERY ("query-block-exports", qmpquery_exports),
  QUERY ("query-block-jobs", qmpjobverbs_query_block),
  { "query-blockstats", of_blockstats, qmpquery_blockstats, false },
  QUERY ("query-commands", query_commands),
  QUERY ("query-jobs", qmpjobverbs_query),
  { "query-named-block-nodes", of_nodes, qmpquery_nodes, false },
  QUERY ("query-version", query_version),
  QUERY ("quit", empty),
  { "transaction", of_transaction, qmptransaction_run, true },
  { "x-blockdev-amend", qmpamend_arguments, qmpamend_run, true },
  { "x-query-nbd-export", qmpwhere_arguments, qmpwhere_query, false },
  QUERY ("x-query-statistics", qmpquery_statistics),
};
#define NR_COMMANDS (sizeof commands / sizeof commands[0])

static json_t *
append_name (json_t *list, const char *name)
{
  return jsontext_append (list, jsontext_object ({ "name", jsontext_string (name) }));
}

static json_t *
query_commands (const struct qmp_host *host, const json_t *arguments, struct qmp_error *e)
{
  json_t *list = append_name (json_array (), "qmp_capabilities");

  (void) host, (void) arguments, (void) e;
  for (size_t i = 0; i < NR_COMMANDS; i++)
    list = append_name (list, commands[i].name);
  for (const struct qmp_action *a = qmpplan_actions; a->name; a++)
    if (a->act != ACT_ABORT)
      list = append_name (list, a->name);
  for (const struct qmp_verb *v = qmpjobverbs; v->name; v++)
    list = append_name (list, v->name);
  return list;
}

static json_t *
query_version (const struct qmp_host *host, const json_t *arguments, struct qmp_error *e)
{
  (void) host, (void) arguments, (void) e;
  return qmp_version ();
}

static json_t *
empty (const struct qmp_host *host, const json_t *arguments, struct qmp_error *e)
{
  (void) host, (void) arguments, (void) e;
  return json_object ();
}

static const struct qmp_verb *
find_verb (const char *name)
{
  const struct qmp_verb *v = qmpjobverbs;

  while (v->name && strcmp (v->name, name) != 0)
    v++;
  return v->name ? v : NULL;
}

/* May it be carried out with these arguments? */
static int
check (const struct qmp_host *host, const char *name, const struct qmparg *list,
       const json_t *arguments, bool changes, struct qmp_error *e)
{
  if (list && qmpargs_check (list, arguments, "", e) == -1)
    return -1;
  return !changes || host->why_fixed == NULL ? 0
    : qmp_refuse (e, "The command %s is not possible: %s", name, host->why_fixed);
}

json_t *
qmpcommands_run (const struct qmp_host *host, const char *name, const json_t *arguments,
                 bool *quit, struct qmp_error *e)
{
  const struct qmp_action *a = qmpplan_find_action (name);
  const struct qmp_verb *v = find_verb (name);
  const struct command *c = commands;

  if (v)
    return check (host, name, v->arguments, arguments, false, e) == -1 ? NULL
      : qmpjobverbs_run (host, v, arguments, e);
  if (a && a->act != ACT_ABORT)
    return check (host, name, a->arguments, arguments, true, e) == -1 ? NULL
      : qmpchange_run (host, a, arguments, e);
  while (c < commands + NR_COMMANDS && strcmp (c->name, name) != 0)
    c++;
  if (c == commands + NR_COMMANDS) {
    e->class = "CommandNotFound";
    qmp_refuse (e, "The command %s has not been found", name);
    return NULL;
  }
  if (check (host, name, c->arguments, arguments, c->changes, e) == -1)
    return NULL;
  *quit = c->run == empty;
  return c->run (host, arguments, e);
}
