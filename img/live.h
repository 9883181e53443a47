/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Commands on a disk that a server is using, over its control socket.  See live.c.
 *
 * Functions that return int return 0, or -1 (reported).
 */

#ifndef QCOW2_IMG_LIVE_H
#define QCOW2_IMG_LIVE_H

#include <stdbool.h>

#include <jansson.h>

#include "img/command.h"

struct live;

/* Runs the command on the disk that its first operand means, of the server with this
 * control SOCKET.  Returns the exit status. */
extern int live_run (const struct arguments *, const char *socket);

/* From now on, the functions below are about the disk that NAME means. */
extern int live_use (struct live *, const char *name);
/* Does the server tell of the disk?  (Not of one in a directory that is not in use.) */
extern bool live_is_known (const struct live *);
/* How QMP calls the disk. */
extern const char *live_device (const struct live *);
/* What QMP says of the image in use (`inserted' of query-block), with the files below it.
 * NULL: reported. */
extern const json_t *live_inserted (const struct live *);
/* What info says of it. */
extern const json_t *live_image (const struct live *);
/* The file of its chain, below the top, that NAME means, as in the header of the image:
 * what info says of it.  NULL: reported. */
extern const json_t *live_below (const struct live *, const char *name);

/* Where clients of NBD find the disk DEVICE, which the user calls NAME: at the address
 * NBD, if that is not NULL.  *URI, *PREFIX: the address, and what names of its exports
 * begin with; the caller frees both, also on failure. */
extern int live_find_server (struct live *, const char *name, const char *device,
                             const char *nbd, char **uri, char **prefix);
/* The URI of an export there.  NULL: reported. */
extern char *live_uri (const char *name, const char *uri, const char *prefix,
                       const char *export);
/* Both, for the disk in use, or (not NULL) its internal SNAPSHOT, a name or an id as
 * without a server.  The option --nbd, if it is given, is the address. */
extern const struct option option_nbd;
extern char *live_export (struct live *, const struct arguments *, const char *snapshot);

/* The only command that starts a job which is no block job. */
#define LIVE_AMEND "x-blockdev-amend"

/* Has the server run this command of QMP.  Frees ARGUMENTS; NULL: there was no memory. */
extern int live_do (struct live *, const char *command, json_t *arguments);
/* The same.  *ANSWER: what it returns; the caller frees it. */
extern int live_ask (struct live *, const char *command, json_t *arguments,
                     json_t **answer);
/* The same for one that starts a job, which this awaits: shows how far it is, completes
 * it when it is ready, and cancels it when the user stops this program. */
extern int live_job (struct live *, const struct arguments *, const char *command,
                     json_t *arguments);

#endif /* QCOW2_IMG_LIVE_H */
