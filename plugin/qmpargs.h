/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Are these the arguments of a command, and what did it fail for?  See qmpargs.c.
 */

#ifndef QCOW2_QMPARGS_H
#define QCOW2_QMPARGS_H

#include <stdbool.h>

#include <jansson.h>

/* Why a command failed. */
struct qmp_error {
  const char *class;            /* NULL: "GenericError" */
  char *desc;                   /* NULL on ENOMEM */
};

/* Sets the error, unless there is one, and returns -1. */
extern int qmp_refuse (struct qmp_error *, const char *fmt, ...)
  __attribute__ ((__format__ (__printf__, 2, 3)));
/* After report_watch: refuses, unless WELL, in the core's words for the first error, or
 * in those for errno.  Returns 0 or -1. */
extern int qmp_refuse_unless (bool well, struct qmp_error *);
extern void qmp_error_free (struct qmp_error *);

enum qmparg_type {
  QMPARG_STRING, QMPARG_BOOL, QMPARG_UINT32, QMPARG_UINT64, QMPARG_INT,
  QMPARG_ARRAY, QMPARG_OBJECT,
  QMPARG_REF, QMPARG_REF_OR_NULL,       /* an object, or the name of one (or null) */
};

struct qmparg {
  const char *key;              /* NULL ends a list of arguments */
  enum qmparg_type type;
  bool optional;
};

/* Checks ARGUMENTS, an object, or NULL if there are none.  WHERE: how messages name the
 * object, such as "actions[0].data."; "" for the arguments of a command.  Returns 0, or
 * -1 with the error. */
extern int qmpargs_check (const struct qmparg *, const json_t *arguments,
                          const char *where, struct qmp_error *);

/* An optional string: NULL: it was not given. */
extern const char *qmpargs_text (const json_t *arguments, const char *key);
/* An optional flag; by default false. */
extern bool qmpargs_flag (const json_t *arguments, const char *key);

/* Is it what QEMU accepts as the name of a new job or node? */
extern bool qmpargs_is_id (const char *);
/* For the name of a file, which may become that of a backing file: it is absolute, and
 * has no control characters.  WHERE, KEY: its argument.  -1: refused. */
extern int qmpargs_check_path (const char *path, const char *where, const char *key,
                               struct qmp_error *);

#endif /* QCOW2_QMPARGS_H */
