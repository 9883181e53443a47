/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The commands for jobs.  See qmpjobverbs.c.
 */

#ifndef QCOW2_QMPJOBVERBS_H
#define QCOW2_QMPJOBVERBS_H

#include "plugin/qmpjobs.h"

struct qmp_verb {
  const char *name;             /* of the command; NULL ends the list */
  const struct qmparg *arguments;
  enum job_verb verb;
};
extern const struct qmp_verb qmpjobverbs[];

/* Returns the answer, or NULL with the error, as these functions do. */
extern json_t *qmpjobverbs_run (const struct qmp_host *, const struct qmp_verb *,
                                const json_t *arguments, struct qmp_error *);

/* query-jobs, query-block-jobs */
extern json_t *qmpjobverbs_query (const struct qmp_host *, const json_t *arguments,
                                  struct qmp_error *);
extern json_t *qmpjobverbs_query_block (const struct qmp_host *, const json_t *arguments,
                                        struct qmp_error *);

#endif /* QCOW2_QMPJOBVERBS_H */
