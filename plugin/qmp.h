/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Speaks QMP with a client.  See qmp.c.
 */

#ifndef QCOW2_QMP_H
#define QCOW2_QMP_H

#include <stdbool.h>
#include <stddef.h>

#include <jansson.h>

#include "plugin/qmpargs.h"

/* What a server offers. */
struct qmp_service {
  /* Carries out the command NAME, with ARGUMENTS, an object or NULL.  Returns the answer,
   * or NULL with the error, which the caller frees. */
  json_t *(*run) (void *opaque, const char *name, const json_t *arguments,
                  struct qmp_error *);
  void *opaque;
  /* Sends a message to a client. */
  void (*send) (void *client, const char *text, size_t len);
};

/* The conversation with a client. */
struct qmp;

/* Greets the client.  NULL: reported. */
extern struct qmp *qmp_new (const struct qmp_service *, void *client);
extern void qmp_free (struct qmp *);    /* accepts NULL */

/* Takes from N bytes of the client those up to the end of a command, which it carries out
 * and answers.  Returns how many bytes it has taken. */
extern size_t qmp_hear (struct qmp *, const char *bytes, size_t n);

/* Tells the client that something has happened, if it wants to know.  DATA stays with the
 * caller; NULL: there is none. */
extern void qmp_tell (struct qmp *, const char *event, json_t *data);

/* The member of the greeting, and the answer to query-version.  NULL on ENOMEM. */
extern json_t *qmp_version (void);

#endif /* QCOW2_QMP_H */
