/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The commands that add passphrases, and forget them.  See qmpobject.c.
 */

#ifndef QCOW2_QMPOBJECT_H
#define QCOW2_QMPOBJECT_H

#include "plugin/qmptarget.h"

/* Only the thread that runs commands uses them. */
struct qmp_secret;
struct qmp_secrets {
  struct qmp_secret *first;     /* the newest one */
  unsigned n;
};

extern json_t *qmpobject_add (const struct qmp_host *, const json_t *arguments,
                              struct qmp_error *);
extern const struct qmparg qmpobject_of_del[];
extern json_t *qmpobject_del (const struct qmp_host *, const json_t *arguments,
                              struct qmp_error *);

/* The passphrase with that id, which stays until the next command.  NULL: there is
 * none. */
extern const char *qmpobject_secret (const struct qmp_host *, const char *id);
/* Wipes all. */
extern void qmpobject_end (struct qmp_secrets *);

#endif /* QCOW2_QMPOBJECT_H */
